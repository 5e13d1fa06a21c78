//! Faults of the network: which links they concern, what is wrong with them, and how that is seen.

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::Instant;

use super::Kind;
use crate::cluster::lab::{Effect, Host, Lab, Link};
use crate::cluster::{Layout, Shape};
use crate::seed::Stream;

/// Datagrams that show whether a link is cut.
const CUT_PROBES: usize = 3;
/// Datagrams that show what share is lost.
const LOSS_PROBES: usize = 200;
/// What has not arrived by then is lost.
const LOST_AFTER: Duration = Duration::from_millis(200);
/// Over an open link they arrive sooner than that, however busy the machine is.
const OPEN_WITHIN: Duration = Duration::from_secs(3);
/// Each half of a flapping link's period.
const FLAP_MS: (u64, u64) = (25, 250);

/// One fault of the network.
pub(super) struct Bad {
    effect: Effect,
    links: Vec<Link>,
    /// Links between brokers that stay as they are.
    well: Vec<Link>,
    flaps: bool,
}

impl Bad {
    /// What `kind` does around the broker `target`.
    pub(super) fn drawn(kind: Kind, target: u16, shape: Shape, stream: &mut Stream) -> Self {
        let broker = Host::Broker(target);
        let others = || (1..=shape.brokers).filter(move |number| *number != target).map(Host::Broker);
        let outer = || (1..=shape.name_servers).map(Host::NameServer).chain([Host::Clients]);
        let into = |from: Host| Link { from, to: broker };
        let out_of = |to: Host| Link { from: broker, to };
        let both = |other: Host| [into(other), out_of(other)];
        let pairs = others().flat_map(|from| others().map(move |to| Link { from, to }));
        let between: Vec<Link> = pairs.filter(|link| link.from != link.to).collect();
        let links: Vec<Link> = match kind {
            Kind::DeafLeader => others().map(into).collect(),
            Kind::MuteLeader => others().map(out_of).collect(),
            Kind::Bridge => between.clone(),
            Kind::CutOffLeader => others().chain(outer()).flat_map(both).collect(),
            Kind::NoClients => both(Host::Clients).into(),
            Kind::ResetLeader => others().map(into).collect(),
            _ => others().flat_map(both).collect(),
        };
        let effect = match kind {
            Kind::SlowFollower | Kind::SlowLeader => Effect::Slow(to_u32(stream.between(200, 2_000))),
            Kind::LossyFollower | Kind::LossyLeader => Effect::Lossy(to_u32(stream.between(5, 30))),
            Kind::ResetLeader => Effect::Reset,
            _ => Effect::Cut,
        };
        let all = between.into_iter().chain(others().flat_map(both));
        let well = all.filter(|link| !links.contains(link)).collect();
        Self { effect, links, well, flaps: kind == Kind::FlappingLeader }
    }

    /// Installs it.
    ///
    /// # Errors
    /// A tool refuses.
    pub(super) fn apply(&self, lab: &Lab) -> Result<()> {
        self.links.iter().try_for_each(|link| lab.apply(*link, self.effect))
    }

    /// On return it was seen, and also that nothing else is wrong: says how.
    ///
    /// # Errors
    /// The links are not as they should be.
    pub(super) async fn verify(&self, lab: &mut Lab) -> Result<String> {
        match self.effect {
            Effect::Cut => {
                expect_open(lab, &self.well).await?;
                let arrived = lab.arrivals(&self.links, CUT_PROBES, LOST_AFTER).await?;
                for (link, arrived) in self.links.iter().zip(&arrived) {
                    ensure!(*arrived == 0, "{arrived} of {CUT_PROBES} datagrams arrived over {link}");
                }
                Ok(format!("no datagram arrives over {}, all others are open", names(&self.links)))
            }
            Effect::Slow(kbit) => {
                let mut most = 0;
                for link in &self.links {
                    let rate = lab.rate(*link).await?;
                    ensure!(rate <= 2 * kbit, "{link} carries {rate} kbit/s, it should carry {kbit}");
                    most = most.max(rate);
                }
                Ok(format!("{} carry at most {most} kbit/s, {kbit} are allowed", names(&self.links)))
            }
            Effect::Reset => {
                for link in &self.links {
                    ensure!(lab.is_refused(*link)?, "a connection over {link} is not refused");
                }
                Ok(format!("connections over {} are refused", names(&self.links)))
            }
            Effect::Lossy(percent) => {
                let arrived = lab.arrivals(&self.links, LOSS_PROBES, LOST_AFTER).await?;
                let expected = LOSS_PROBES * percent as usize / 100;
                for (link, arrived) in self.links.iter().zip(&arrived) {
                    let lost = LOSS_PROBES - arrived;
                    ensure!(
                        (expected / 3..=3 * expected).contains(&lost),
                        "{lost} of {LOSS_PROBES} datagrams were lost over {link}, {expected} are to be expected"
                    );
                }
                Ok(format!("{arrived:?} of {LOSS_PROBES} datagrams arrive over {}", names(&self.links)))
            }
        }
    }

    /// Lets it last.
    ///
    /// # Errors
    /// A tool refuses.
    pub(super) async fn last(&self, lab: &mut Lab, lasts: Duration, stream: &mut Stream) -> Result<()> {
        let until = Instant::now() + lasts;
        let mut is_bad = true;
        while self.flaps && Instant::now() < until {
            let half = Duration::from_millis(stream.between(FLAP_MS.0, FLAP_MS.1));
            tokio::time::sleep_until(until.min(Instant::now() + half)).await;
            is_bad = !is_bad;
            if is_bad { self.apply(lab)? } else { self.clear(lab)? }
        }
        tokio::time::sleep_until(until).await;
        if is_bad { Ok(()) } else { self.apply(lab) }
    }

    /// Heals it. On return every link is seen to be open.
    ///
    /// # Errors
    /// A link stays bad.
    pub(super) async fn heal(&self, lab: &mut Lab) -> Result<()> {
        self.clear(lab)?;
        for link in self.links.iter().filter(|_| self.effect == Effect::Reset) {
            ensure!(!lab.is_refused(*link)?, "a connection over {link} is still refused");
        }
        expect_open(lab, &self.links).await
    }

    fn clear(&self, lab: &Lab) -> Result<()> {
        self.links.iter().try_for_each(|link| lab.clear(*link, self.effect))
    }
}

async fn expect_open(lab: &mut Lab, links: &[Link]) -> Result<()> {
    let arrived = lab.arrivals(links, CUT_PROBES, OPEN_WITHIN).await?;
    let closed: Vec<Link> =
        links.iter().zip(&arrived).filter(|(_, arrived)| **arrived == 0).map(|(link, _)| *link).collect();
    ensure!(closed.is_empty(), "no datagram arrives over {}, which should be open", names(&closed));
    Ok(())
}

/// The brokers that a fault of the network concerns.
pub(super) fn concerned(kind: Kind, target: u16, layout: &Layout) -> Vec<u16> {
    match kind {
        Kind::Bridge => (1..=layout.shape.brokers).filter(|number| *number != target).collect(),
        _ => vec![target],
    }
}

fn names(links: &[Link]) -> String {
    links.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Seed;

    fn bad(kind: Kind) -> String {
        let shape = Shape { brokers: 3, name_servers: 2, groups: 2 };
        let bad = Bad::drawn(kind, 1, shape, &mut Seed(1).stream("x"));
        assert!(bad.links.iter().all(|link| !bad.well.contains(link)));
        names(&bad.links)
    }

    #[test]
    fn each_partition_cuts_its_links() {
        assert_eq!(bad(Kind::IsolateLeader), "n2->n1, n1->n2, n3->n1, n1->n3");
        assert_eq!(bad(Kind::DeafLeader), "n2->n1, n3->n1");
        assert_eq!(bad(Kind::ResetLeader), "n2->n1, n3->n1");
        assert_eq!(bad(Kind::MuteLeader), "n1->n2, n1->n3");
        assert_eq!(bad(Kind::Bridge), "n2->n3, n3->n2");
        assert_eq!(bad(Kind::NoClients), "clients->n1, n1->clients");
        assert_eq!(bad(Kind::CutOffLeader).split(", ").count(), 10);
    }
}
