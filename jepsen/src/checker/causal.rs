//! A08 across queues: a message that came of another must not come before it by any chain of queues and processes.
//!
//! Edges: the next message of the same queue, the message that was sent because another was received, and the next
//! acknowledged message of the same process. A cycle is an order that no time explains. Tarjan's algorithm finds the
//! cycles in time linear in messages and edges.

use std::collections::HashMap;

use super::{Checker, Report};
use crate::anomaly::Anomaly;
use crate::history::{Call, Nanos, Process, SendMode};
use crate::index::{Index, Kind};

pub(super) const CHECKER: Checker = Checker { name: "causal", finds: &[Anomaly::A08], run: check };

fn check(index: &Index<'_>, report: &mut Report) {
    let edges = edges(index);
    report.checked += edges.iter().map(|to| to.len() as u64).sum::<u64>();
    for cycle in cycles(&edges) {
        let messages: Vec<_> = cycle.iter().filter_map(|at| index.messages.get(*at as usize)).collect();
        report.find(Anomaly::A08, messages.iter().map(|message| message.op.op), || {
            let names: Vec<String> = messages.iter().map(|message| message.unique.to_string()).collect();
            format!("each of these comes before the next, and the last before the first: {}", names.join(", "))
        });
    }
}

fn edges(index: &Index<'_>) -> Vec<Vec<u32>> {
    let mut edges: Vec<Vec<u32>> = index.messages.iter().map(|_| Vec::new()).collect();
    let number = |unique| index.message_number(unique).and_then(|at| u32::try_from(at).ok());
    for queue in &index.queues {
        let mut before: Option<usize> = None;
        for got in queue.cells() {
            let this = number(got.unique);
            if let (Some(before), Some(this)) = (before, this) {
                edges[before].push(this);
            }
            before = this.map(|at| at as usize);
        }
    }
    let mut last: HashMap<Process, (usize, Nanos)> = HashMap::new();
    for (at, message) in index.messages.iter().enumerate() {
        let Call::Send(send) = &message.op.call else { continue };
        let this = u32::try_from(at).unwrap_or(u32::MAX);
        if let Some(cause) = send.cause.and_then(|cause| index.message_number(cause)) {
            edges[cause].push(this);
        }
        let (Kind::Plain, SendMode::Sync, Some(ok)) = (message.kind, send.mode, message.op.ok_at()) else { continue };
        if let Some((before, ended)) = last.insert(message.op.process, (at, ok))
            && ended <= message.op.invoked
        {
            edges[before].push(this);
        }
    }
    edges
}

/// What Tarjan's algorithm knows of a node.
#[derive(Clone, Copy, Default)]
struct Mark {
    /// The order in which it was met, from 1; 0 if it was not.
    met: u32,
    low: u32,
    on_stack: bool,
}

/// The strongly connected components with more than one node, without recursion.
fn cycles(edges: &[Vec<u32>]) -> Vec<Vec<u32>> {
    let mut marks = vec![Mark::default(); edges.len()];
    let mut stack: Vec<u32> = Vec::new();
    let mut found = Vec::new();
    let mut met = 0;
    for root in 0..edges.len() {
        if marks[root].met != 0 {
            continue;
        }
        let mut path: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((node, next)) = path.pop() {
            if next == 0 {
                met += 1;
                marks[node] = Mark { met, low: met, on_stack: true };
                stack.push(u32::try_from(node).unwrap_or(u32::MAX));
            }
            if let Some(to) = edges[node].get(next).map(|to| *to as usize) {
                path.push((node, next + 1));
                if marks[to].met == 0 {
                    path.push((to, 0));
                } else if marks[to].on_stack {
                    marks[node].low = marks[node].low.min(marks[to].met);
                }
                continue;
            }
            if let Some((parent, _)) = path.last() {
                marks[*parent].low = marks[*parent].low.min(marks[node].low);
            }
            if marks[node].low == marks[node].met {
                let from = stack.iter().rposition(|at| *at as usize == node).unwrap_or_default();
                let component = stack.split_off(from);
                component.iter().for_each(|at| marks[*at as usize].on_stack = false);
                if component.len() > 1 {
                    found.push(component);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::cycles;

    #[test]
    fn only_nodes_that_reach_each_other_are_a_cycle() {
        assert!(cycles(&[vec![1], vec![2], vec![]]).is_empty());
        let mut found = cycles(&[vec![1], vec![2], vec![0, 3], vec![]]);
        found[0].sort_unstable();
        assert_eq!(found, [[0, 1, 2]]);
    }
}
