//! `gantry recover`: a group whose majority is gone goes on from the longest log that is left.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use broker::http::{EntryStatus, LossReport, RecoveryStatus};
use clap::Args;
use serde::Serialize;

use crate::exit_code::ExitCode;
use crate::http_get::{get_json, post_json};
use crate::output::{self, Format};

const LOOK_TIME_MAX: Duration = Duration::from_secs(5);
/// The replica is stopped, recovered, started and elected.
const RECOVER_TIME_MAX: Duration = Duration::from_secs(120);
/// How far above every term seen the group goes on: a node that is missing may have seen a few more.
const TERM_STEP: u64 = 100;

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The group
    group: String,
    /// HTTP addresses (`node.http_listen`) of the nodes that are left, separated by commas
    #[arg(long, value_delimiter = ',', required = true)]
    nodes: Vec<SocketAddr>,
    /// A configured node that cannot be asked; give it once for each. What only it has is lost
    #[arg(long)]
    without: Vec<String>,
    /// Show what each node has and what would be done, and change nothing
    #[arg(long, conflicts_with = "accept_loss")]
    dry_run: bool,
    /// Go on: messages that were acknowledged and are on none of these nodes are lost
    #[arg(long)]
    accept_loss: bool,
}

#[derive(Serialize)]
struct View<'a> {
    nodes: &'a [RecoveryStatus],
    plan: &'a Plan,
    report: Option<&'a LossReport>,
}

/// What follows from what the nodes have.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Plan {
    /// The node that the group goes on from.
    node: String,
    last: EntryStatus,
    term: u64,
    generation: u64,
    /// The others that still have an identity: they give it up and come back.
    retire: Vec<String>,
}

pub(crate) async fn run(args: RecoverArgs, format: Format) -> Result<()> {
    let path = format!("/v1/groups/{}/recovery", args.group);
    let mut found = Vec::new();
    for addr in &args.nodes {
        let status: RecoveryStatus = get_json(*addr, &path, LOOK_TIME_MAX)
            .await
            .context(ExitCode::Unreachable)
            .with_context(|| format!("asking {addr}; leave it out and name its node by --without if it is gone"))?;
        found.push((*addr, status));
    }
    let statuses: Vec<RecoveryStatus> = found.iter().map(|(_, status)| status.clone()).collect();
    let plan = plan(&statuses, &args.without)?;
    if !args.accept_loss {
        show(&View { nodes: &statuses, plan: &plan, report: None }, format)?;
        if !args.dry_run {
            bail!("nothing was done: --accept-loss goes on, --dry-run only looks");
        }
        return Ok(());
    }
    let address_of = |node: &str| {
        let found = found.iter().find(|(_, status)| status.node == node);
        found.map(|(addr, _)| *addr).expect("the plan names nodes that answered")
    };
    let order = format!(
        "/v1/groups/{}/recover?accept_loss=true&last_term={}&last_index={}&term={}&generation={}",
        args.group, plan.last.term, plan.last.index, plan.term, plan.generation
    );
    let report: LossReport = post_json(address_of(&plan.node), &order, RECOVER_TIME_MAX).await?;
    show(&View { nodes: &statuses, plan: &plan, report: Some(&report) }, format)?;
    // Only now: until the group goes on, every identity that is left may still be worth something.
    for node in &plan.retire {
        let path = format!("/v1/groups/{}/retire", args.group);
        let retired: Result<RecoveryStatus> = post_json(address_of(node), &path, RECOVER_TIME_MAX).await;
        if let Err(error) = retired {
            eprintln!("gantry: {node} has not been told that it is out, and finds out by itself: {error:#}");
        }
    }
    Ok(())
}

/// Decides, or says why nothing can be decided.
fn plan(found: &[RecoveryStatus], without: &[String]) -> Result<Plan> {
    let group = &found.first().context("no node was asked")?.group;
    if let Some(led) = found.iter().find(|status| status.leader.is_some()) {
        let leader = led.leader.clone().unwrap_or_default();
        bail!("{} knows a leader of {group}, {leader}: there is nothing to recover", led.node);
    }
    for (at, status) in found.iter().enumerate() {
        if found.iter().take(at).any(|before| before.node == status.node) {
            bail!("{} was asked twice", status.node);
        }
        if without.contains(&status.node) {
            bail!("{} is to be done without, but it answers", status.node);
        }
        for node in &status.nodes {
            if !without.contains(node) && !found.iter().any(|found| found.node == *node) {
                bail!("{node} holds {group} too and was not asked: add its address, or --without {node} if it is gone");
            }
        }
    }
    let with_identity = found.iter().filter(|status| status.node_id.is_some() && status.generation == newest(found));
    let all = found.first().map_or(0, |status| status.nodes.len());
    if with_identity.count() > all / 2 {
        bail!("a majority of {group} still has its identity and needs no recovery: it elects a leader by itself");
    }
    let longest = found.iter().filter(|status| status.last.is_some()).max_by_key(|status| status.last);
    let longest = longest.with_context(|| format!("no node has anything of {group}"))?;
    Ok(Plan {
        node: longest.node.clone(),
        last: longest.last.context("filtered above")?,
        term: found.iter().map(|status| status.term).max().unwrap_or(0) + TERM_STEP,
        generation: newest(found) + 1,
        retire: found
            .iter()
            .filter(|status| status.node_id.is_some() && status.node != longest.node)
            .map(|status| status.node.clone())
            .collect(),
    })
}

fn newest(found: &[RecoveryStatus]) -> u64 {
    found.iter().map(|status| status.generation).max().unwrap_or(0)
}

fn show(view: &View<'_>, format: Format) -> Result<()> {
    if format == Format::Json { output::json(view) } else { output::line(&view.to_text()) }
}

impl View<'_> {
    fn to_text(&self) -> String {
        let entry = |entry: Option<EntryStatus>| entry.map_or_else(|| "-".to_owned(), |entry| entry.to_string());
        let rows = self.nodes.iter().map(|status| {
            [
                status.node.clone(),
                status.node_id.map_or_else(|| "retired".to_owned(), |id| id.to_string()),
                entry(status.last),
                entry(status.committed),
                status.term.to_string(),
                status.generation.to_string(),
            ]
        });
        let table = output::table(&["node", "identity", "log ends with", "committed", "term", "generation"], rows);
        let Plan { node, last, term, generation, retire } = self.plan;
        let mut text = format!(
            "{table}\n\n{node} has the longest log. Everything up to {last} is kept. Entries behind it, if there were any, \
             are on none of these nodes."
        );
        match self.report {
            None => {
                text += &format!("\nIt would go on alone, in term {term} and generation {generation}.");
                if !retire.is_empty() {
                    text += &format!(" Then {} would come back under another identity.", retire.join(", "));
                }
            }
            Some(report) => {
                let queues = report.queues.iter().map(|queue| {
                    [queue.topic.clone(), queue.queue_id.to_string(), queue.first_offset_at_risk.to_string()]
                });
                text += &format!(
                    "\n{node} goes on as identity {}, in generation {generation}. Lost is what was acknowledged at these \
                     offsets or above; the list is in {} on {node}.\n\n{}",
                    report.node_id,
                    report.file,
                    output::table(&["topic", "queue", "lost from offset"], queues)
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(node: &str, node_id: Option<u64>, term: u64, index: u64) -> RecoveryStatus {
        RecoveryStatus {
            group: "g".to_owned(),
            node: node.to_owned(),
            nodes: ["n1", "n2", "n3"].map(ToOwned::to_owned).to_vec(),
            node_id,
            retired: Vec::new(),
            generation: 0,
            term: term + 1,
            last: Some(EntryStatus { term, index }),
            committed: None,
            leader: None,
        }
    }

    #[track_caller]
    fn refused(found: &[RecoveryStatus], without: &[&str], why: &str) {
        let without: Vec<String> = without.iter().map(ToString::to_string).collect();
        let error = plan(found, &without).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn the_longest_log_goes_on_and_whoever_has_an_identity_gives_it_up() {
        let found = [status("n1", Some(1), 4, 90), status("n2", None, 5, 70), status("n3", None, 5, 80)];
        let expected = Plan {
            node: "n3".to_owned(),
            last: EntryStatus { term: 5, index: 80 },
            term: 106,
            generation: 1,
            retire: vec!["n1".to_owned()],
        };
        assert_eq!(plan(&found, &[]).unwrap(), expected);
    }

    #[test]
    fn nothing_is_decided_while_a_node_is_missing_a_leader_is_known_or_a_majority_is_left() {
        let two = [status("n1", Some(1), 4, 90), status("n2", None, 5, 70)];
        refused(&two, &[], "--without n3");
        refused(&two, &["n2", "n3"], "it answers");
        assert_eq!(plan(&two, &["n3".to_owned()]).unwrap().node, "n2");
        refused(&[two[0].clone(), two[0].clone()], &["n2", "n3"], "asked twice");
        let led = RecoveryStatus { leader: Some("n9".to_owned()), ..two[0].clone() };
        refused(&[led, two[1].clone()], &["n3"], "n9");
        let healthy = [status("n1", Some(1), 4, 90), status("n2", Some(2), 5, 70), status("n3", None, 5, 80)];
        refused(&healthy, &[], "by itself");
    }
}
