//! Spreads the leaders of groups that prefer no node over the nodes.
//!
//! Each node looks after what it leads itself: it asks the voters of such a group whether they would lead it, and how many
//! groups their nodes lead. One that leads at least two fewer than this node is offered one group. After the move it leads
//! no more than this node, so nothing ever has a reason to move back.
//!
//! That is the least difference. Besides, it must have lasted for a while and a random time on top, during which others
//! may do the same; the counts are asked for again right before the move; and after a move nothing moves for as long.
//! Groups that prefer a node go home by themselves, sooner than that, and count where their home is.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

use super::Shared;
use super::group::Running;

/// Looks in the time for which a difference must last.
const LOOKS: u32 = 6;

/// When a difference is acted upon. Decides, and does nothing.
#[derive(Debug)]
struct Patience {
    after: Duration,
    due: Option<Instant>,
}

/// A voter of a group that this node leads, and the groups that its node leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) group: String,
    pub(super) to: u64,
    pub(super) leads: u32,
}

/// The offer to take for a node that leads `own` groups: the idlest node's, if the difference is worth a move.
fn choose(own: u32, offers: Vec<Offer>) -> Option<Offer> {
    let best = offers.into_iter().min_by(|a, b| (a.leads, &a.group, a.to).cmp(&(b.leads, &b.group, b.to)))?;
    (own >= best.leads.saturating_add(2)).then_some(best)
}

impl Patience {
    /// Whether to act now, if there `is` something to do. `extra` is what comes on top this time.
    fn is_over(&mut self, now: Instant, is: bool, extra: Duration) -> bool {
        if !is {
            self.due = None;
            return false;
        }
        let due = *self.due.get_or_insert(now + self.after + extra);
        now >= due
    }

    /// What is to do next must last as long again, counted from the next look.
    fn moved(&mut self) {
        self.due = None;
    }
}

impl Shared {
    /// How many groups this node leads, or will lead again as soon as they are home.
    pub(super) fn leads_or_will(&self) -> u32 {
        let node = &self.options.node.name;
        let here = |group: &&Arc<super::NodeGroup>| {
            let Some(running) = group.running() else { return false };
            match group.preferred_node() {
                Some(home) => home == *node,
                None => running.raft.role().borrow().is_leader(),
            }
        };
        u32::try_from(self.groups.iter().filter(here).count()).unwrap_or(u32::MAX)
    }

    /// Groups without a home that this node leads.
    fn movable(&self) -> Vec<Arc<Running>> {
        let leads = |running: &Arc<Running>| running.raft.role().borrow().is_ready_leader();
        let homeless = self.groups.iter().filter(|group| group.preferred_node().is_none());
        homeless.filter_map(|group| group.running()).filter(leads).collect()
    }

    /// What could move, and where to.
    pub(super) async fn offers(&self) -> Vec<Offer> {
        // A drained node gives everything away in any case.
        if self.drain.is_on() || self.leads_or_will() < 2 {
            return Vec::new();
        }
        let mut offers = Vec::new();
        for running in self.movable() {
            let group = running.group.name().to_owned();
            let takers = running.raft.takers().await;
            offers.extend(takers.into_iter().map(|(to, leads)| Offer { group: group.clone(), to, leads }));
        }
        offers
    }

    async fn hand_on(&self, offer: &Offer) -> bool {
        let Some(running) = self.movable().into_iter().find(|running| running.group.name() == offer.group) else {
            return false;
        };
        let Offer { group, to, leads } = offer;
        let own = self.leads_or_will();
        match running.raft.transfer_leader(Some(*to)).await {
            Ok(to) => {
                tracing::info!(group, to, own, leads, "leadership moves to a node that leads less");
                true
            }
            Err(error) => {
                tracing::debug!(group, to, %error, "leadership does not move to a node that leads less");
                false
            }
        }
    }
}

/// Spreads leaders for ever. `after`: how long a difference must last.
pub(super) async fn run(shared: Arc<Shared>, after: Duration) -> Infallible {
    let mut patience = Patience { after, due: None };
    let mut tick = tokio::time::interval(after / LOOKS);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        // One look counts for both: what is decided is what was just heard.
        let offer = choose(shared.leads_or_will(), shared.offers().await);
        let extra = after.mul_f64(rand::random::<f64>() / 2.0);
        if !patience.is_over(Instant::now(), offer.is_some(), extra) {
            continue;
        }
        if let Some(offer) = offer {
            shared.hand_on(&offer).await;
            // Whether it moved or not, the next one waits as long.
            patience.moved();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offers(of: &[(&str, u64, u32)]) -> Vec<Offer> {
        of.iter().map(|(group, to, leads)| Offer { group: (*group).to_owned(), to: *to, leads: *leads }).collect()
    }

    #[test]
    fn only_a_node_that_leads_two_fewer_is_worth_a_move() {
        let chosen = |own, of: &[(&str, u64, u32)]| choose(own, offers(of)).map(|offer| (offer.group, offer.to));
        assert_eq!(chosen(3, &[]), None);
        assert_eq!(chosen(1, &[("a", 2, 0)]), None, "it would only change places");
        assert_eq!(chosen(2, &[("a", 2, 1), ("a", 3, 1)]), None);
        assert_eq!(chosen(2, &[("b", 3, 0), ("a", 2, 1), ("a", 3, 0)]), Some(("a".to_owned(), 3)));
        assert_eq!(chosen(5, &[("a", 2, 3), ("b", 4, 2)]), Some(("b".to_owned(), 4)));
    }

    #[test]
    fn whatever_the_order_of_moves_they_end_with_a_difference_of_one() {
        for seed in 0..200_u64 {
            let mut numbers = seed;
            let mut below = |limit: usize| {
                numbers = numbers.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                usize::try_from(numbers >> 33).unwrap() % limit
            };
            let nodes = 2 + below(5);
            let mut leader: Vec<usize> = (0..1 + below(20)).map(|_| below(nodes)).collect();
            let mut moves = 0;
            let count = |leader: &[usize], node: usize| leader.iter().filter(|leads| **leads == node).count();
            loop {
                // Two nodes may look at one moment, and then both move.
                let looking: Vec<usize> = (0..nodes).filter(|_| below(2) == 0).collect();
                let decided: Vec<(usize, Offer)> = looking
                    .into_iter()
                    .filter_map(|node| {
                        let of = leader.iter().enumerate().filter(|(_, leads)| **leads == node);
                        let offers = of.flat_map(|(group, _)| {
                            let leader = &leader;
                            (0..nodes).filter(move |to| *to != node).map(move |to| Offer {
                                group: format!("{group:02}"),
                                to: to as u64,
                                leads: u32::try_from(count(leader, to)).unwrap(),
                            })
                        });
                        let own = u32::try_from(count(&leader, node)).unwrap();
                        Some((node, choose(own, offers.collect())?))
                    })
                    .take(1)
                    .collect();
                for (_, offer) in decided {
                    leader[offer.group.parse::<usize>().unwrap()] = usize::try_from(offer.to).unwrap();
                    moves += 1;
                }
                let counts: Vec<usize> = (0..nodes).map(|node| count(&leader, node)).collect();
                if counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1 {
                    break;
                }
                assert!(moves <= leader.len(), "seed {seed}: {counts:?}");
            }
        }
    }

    #[test]
    fn a_difference_must_last_and_moves_keep_their_distance() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (after, extra) = (Duration::from_secs(30), Duration::from_secs(10));
        let mut patience = Patience { after, due: None };
        assert!(!patience.is_over(at(0), true, extra));
        assert!(!patience.is_over(at(39), true, Duration::ZERO), "the first look has said when");
        assert!(!patience.is_over(at(39), false, extra));
        assert!(!patience.is_over(at(45), true, extra), "it began again");
        assert!(patience.is_over(at(85), true, extra));
        patience.moved();
        assert!(!patience.is_over(at(90), true, Duration::ZERO));
        assert!(!patience.is_over(at(115), true, extra));
        assert!(patience.is_over(at(120), true, extra));
    }
}
