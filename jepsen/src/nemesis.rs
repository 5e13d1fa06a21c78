//! Faults and their schedule: drawn from the seed before the run, aimed by role when their time comes.
//!
//! Each fault is installed, verified by a probe that must see it, and healed. One that no probe saw is recorded as
//! indeterminate and makes the run unknown; one that could not be aimed is recorded as skipped.

mod network;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::time::Instant;

use self::network::Bad;
use crate::cluster::{Cluster, Node, group_name, post};
use crate::history::{Fault, FaultState, Note};
use crate::recorder::Recorder;
use crate::seed::{Seed, Stream};

/// Before a fault that the cluster must tolerate, it may take so long to be whole again.
const WHOLE_TIME_MAX: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long one call that hands leadership over may take.
const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(2);

/// A family of faults, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// No faults at all
    None,
    /// SIGKILL of a leader, a follower, any node, a majority, all nodes; and a node that is killed while it starts
    Kill,
    /// SIGSTOP of a leader or a follower
    Pause,
    /// Links cut: around a leader or a follower, in one direction, between two of three, flapping, off the clients
    Partition,
    /// Links of a leader or a follower that are slow, lose packets or answer with resets
    Links,
    /// What operators do: leaderships handed over, nodes stopped and restarted in order, one after the other
    Operate,
    /// Name servers killed, one or all
    Names,
    /// A killed node that comes back without its queue files, its indexes, or anything
    Loss,
}

impl Family {
    /// Whether it touches the network, which takes one that belongs to the run.
    pub fn needs_lab(self) -> bool {
        matches!(self, Self::Partition | Self::Links)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    KillLeader,
    KillFollower,
    KillRandom,
    KillMajority,
    KillAll,
    /// Killed again and again while it starts.
    CrashLoop,
    PauseLeader,
    PauseFollower,
    /// Cut off from the other brokers; clients and name servers still reach it.
    IsolateLeader,
    IsolateFollower,
    /// It hears no other broker, but they hear it.
    DeafLeader,
    /// It hears the other brokers, but they do not hear it.
    MuteLeader,
    /// Two brokers hear the third, but not each other.
    Bridge,
    /// Cut off from the other brokers, again and again.
    FlappingLeader,
    /// Cut off from everybody.
    CutOffLeader,
    /// Cut off from clients only.
    NoClients,
    SlowFollower,
    SlowLeader,
    LossyFollower,
    LossyLeader,
    /// Alive, but its peer port answers with resets, as that of a dead process would.
    ResetLeader,
    /// Asked to hand over all that it leads.
    HandOver,
    /// SIGTERM.
    StopLeader,
    StopFollower,
    /// Every node stopped and started, the next one when the cluster is whole.
    RollingRestart,
    NameServerDown,
    AllNameServersDown,
    /// Killed, and its ConsumeQueues are deleted.
    LoseQueues,
    /// Killed, and its indexes are deleted.
    LoseIndexes,
    /// Killed, and everything it had is deleted; it comes back under another identity.
    Wipe,
}

/// How a fault is installed and healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Means {
    Kill,
    Pause,
    Network,
    HandOver,
    Stop,
    RollingRestart,
    NameServers,
    /// Killed, and this is deleted below the directory of each group.
    Delete(&'static str),
    Wipe,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::KillLeader => "kill-leader",
            Self::KillFollower => "kill-follower",
            Self::KillRandom => "kill-random",
            Self::KillMajority => "kill-majority",
            Self::KillAll => "kill-all",
            Self::CrashLoop => "crash-loop",
            Self::PauseLeader => "pause-leader",
            Self::PauseFollower => "pause-follower",
            Self::IsolateLeader => "isolate-leader",
            Self::IsolateFollower => "isolate-follower",
            Self::DeafLeader => "deaf-leader",
            Self::MuteLeader => "mute-leader",
            Self::Bridge => "bridge",
            Self::FlappingLeader => "flapping-leader",
            Self::CutOffLeader => "cut-off-leader",
            Self::NoClients => "no-clients",
            Self::SlowFollower => "slow-follower",
            Self::SlowLeader => "slow-leader",
            Self::LossyFollower => "lossy-follower",
            Self::LossyLeader => "lossy-leader",
            Self::ResetLeader => "reset-leader",
            Self::HandOver => "hand-over",
            Self::StopLeader => "stop-leader",
            Self::StopFollower => "stop-follower",
            Self::RollingRestart => "rolling-restart",
            Self::NameServerDown => "name-server-down",
            Self::AllNameServersDown => "all-name-servers-down",
            Self::LoseQueues => "lose-queues",
            Self::LoseIndexes => "lose-indexes",
            Self::Wipe => "wipe",
        }
    }

    fn means(self) -> Means {
        match self {
            Self::KillLeader
            | Self::KillFollower
            | Self::KillRandom
            | Self::KillMajority
            | Self::KillAll
            | Self::CrashLoop => Means::Kill,
            Self::PauseLeader | Self::PauseFollower => Means::Pause,
            Self::IsolateLeader
            | Self::IsolateFollower
            | Self::DeafLeader
            | Self::MuteLeader
            | Self::Bridge
            | Self::FlappingLeader
            | Self::CutOffLeader
            | Self::NoClients
            | Self::SlowFollower
            | Self::SlowLeader
            | Self::LossyFollower
            | Self::LossyLeader
            | Self::ResetLeader => Means::Network,
            Self::HandOver => Means::HandOver,
            Self::StopLeader | Self::StopFollower => Means::Stop,
            Self::RollingRestart => Means::RollingRestart,
            Self::NameServerDown | Self::AllNameServersDown => Means::NameServers,
            Self::LoseQueues => Means::Delete("consumequeue"),
            Self::LoseIndexes => Means::Delete("index"),
            Self::Wipe => Means::Wipe,
        }
    }

    /// Whether a majority stays able to serve meanwhile, and clients to reach it. A leader whose links are bad but not
    /// cut is nobody's to replace, and slow with them.
    fn is_tolerable(self) -> bool {
        !matches!(self, Self::KillMajority | Self::KillAll | Self::NoClients | Self::SlowLeader | Self::LossyLeader)
    }

    /// The name of a target.
    fn name_of(self, number: u16) -> String {
        if self.means() == Means::NameServers { format!("ns{number}") } else { format!("n{number}") }
    }

    fn moves_leadership(self) -> bool {
        matches!(
            self,
            Self::KillLeader
                | Self::KillMajority
                | Self::KillAll
                | Self::IsolateLeader
                | Self::CutOffLeader
                | Self::HandOver
                | Self::StopLeader
                | Self::RollingRestart
        )
    }
}

/// One fault of a plan, in milliseconds from the beginning of the main phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Planned {
    pub at_ms: u64,
    pub lasts_ms: u64,
    pub kind: Kind,
}

/// The faults of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    pub family: Family,
    pub faults: Vec<Planned>,
}

impl Plan {
    /// Draws the faults of a main phase that lasts so long; the last one is healed before its end.
    pub fn drawn(seed: Seed, family: Family, main: Duration) -> Self {
        let kinds: &[Kind] = match family {
            Family::None => &[],
            Family::Kill => &[
                Kind::KillLeader,
                Kind::KillLeader,
                Kind::KillFollower,
                Kind::KillRandom,
                Kind::KillMajority,
                Kind::KillAll,
                Kind::CrashLoop,
            ],
            Family::Pause => &[Kind::PauseLeader, Kind::PauseLeader, Kind::PauseFollower],
            Family::Partition => &[
                Kind::IsolateLeader,
                Kind::IsolateLeader,
                Kind::IsolateFollower,
                Kind::DeafLeader,
                Kind::MuteLeader,
                Kind::Bridge,
                Kind::FlappingLeader,
                Kind::CutOffLeader,
                Kind::NoClients,
            ],
            Family::Links => {
                &[Kind::SlowFollower, Kind::SlowLeader, Kind::LossyFollower, Kind::LossyLeader, Kind::ResetLeader]
            }
            Family::Operate => &[Kind::HandOver, Kind::StopLeader, Kind::StopFollower, Kind::RollingRestart],
            Family::Names => &[Kind::NameServerDown, Kind::AllNameServersDown],
            Family::Loss => &[Kind::LoseQueues, Kind::LoseIndexes, Kind::Wipe],
        };
        // A cut shorter than an election is worth nothing.
        let lasts = if family.needs_lab() { (1_000, 8_000) } else { (300, 4_000) };
        let mut stream = seed.stream("plan.nemesis");
        let end = u64::try_from(main.as_millis()).unwrap_or(u64::MAX);
        let mut faults = Vec::new();
        let mut at_ms = 500;
        while let Some(kind) = stream.pick(kinds).copied() {
            let lasts_ms = stream.between(lasts.0, lasts.1);
            if at_ms + lasts_ms > end {
                break;
            }
            faults.push(Planned { at_ms, lasts_ms, kind });
            at_ms += lasts_ms + stream.between(2_500, 6_000);
        }
        Self { family, faults }
    }

    /// Which kinds must be installed at least once for the run to count.
    pub fn kinds(&self) -> BTreeMap<Box<str>, u64> {
        self.faults.iter().map(|fault| (fault.kind.name().into(), 1)).collect()
    }

    /// Whether some fault of the plan must move leadership.
    pub fn moves_leadership(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind.moves_leadership())
    }
}

/// Carries a plan out. On return everything is healed.
///
/// # Errors
/// A process cannot be started again, or the history not be written: failures of the harness.
pub async fn run(plan: &Plan, seed: Seed, cluster: &mut Cluster, recorder: &Recorder) -> Result<()> {
    let mut stream = seed.stream("nemesis.targets");
    let begun = Instant::now();
    for (nth, planned) in plan.faults.iter().enumerate() {
        tokio::time::sleep_until(begun + Duration::from_millis(planned.at_ms)).await;
        let note = |state, target: &[u16], why: String| {
            recorder.note(Note::Fault(Fault {
                id: format!("f{nth}").into(),
                kind: planned.kind.name().into(),
                state,
                target: target.iter().map(|number| planned.kind.name_of(*number).into()).collect(),
                tolerable: planned.kind.is_tolerable(),
                jump_ms: None,
                why: why.into(),
            }))
        };
        let targets = match aim(planned.kind, cluster, &mut stream).await {
            Ok(targets) => targets,
            Err(why) => {
                note(FaultState::Skipped, &[], why)?;
                continue;
            }
        };
        let lasts = Duration::from_millis(planned.lasts_ms);
        if planned.kind.means() == Means::Network {
            let (lab, layout) =
                (cluster.lab.as_mut().context("a fault of a network that is not ours")?, &cluster.layout);
            let target = *targets.first().context("a fault without a target")?;
            let bad = Bad::drawn(planned.kind, target, layout.shape, &mut stream);
            let concerned = network::concerned(planned.kind, target, layout);
            bad.apply(lab)?;
            match bad.verify(lab).await {
                Ok(seen) => note(FaultState::Installed, &concerned, seen)?,
                Err(error) => note(FaultState::Indeterminate, &concerned, format!("{error:#}"))?,
            }
            bad.last(lab, lasts, &mut stream).await?;
            bad.heal(lab).await?;
            note(FaultState::Healed, &concerned, String::new())?;
            continue;
        }
        match install(planned.kind, &targets, cluster, &mut stream).await {
            Ok(probe) => note(FaultState::Installed, &targets, format!("seen by a probe after {probe:?}"))?,
            Err(error) => note(FaultState::Indeterminate, &targets, format!("{error:#}"))?,
        }
        tokio::time::sleep(lasts).await;
        heal(planned.kind, &targets, cluster, &mut stream).await?;
        note(FaultState::Healed, &targets, String::new())?;
    }
    Ok(())
}

/// Chooses the brokers to hit, by what they are now.
async fn aim(kind: Kind, cluster: &Cluster, stream: &mut Stream) -> Result<Vec<u16>, String> {
    let layout = &cluster.layout;
    let shape = layout.shape;
    if kind.is_tolerable() || kind.means() == Means::Network {
        await_whole(cluster).await?;
    }
    let all: Vec<u16> = (1..=shape.brokers).collect();
    let group = group_name(u16::try_from(stream.below(u64::from(shape.groups))).unwrap_or_default());
    let leader = layout.leader_of(&group).await;
    let any = |stream: &mut Stream| stream.pick(&all).copied().unwrap_or(1);
    Ok(match kind {
        Kind::KillLeader
        | Kind::PauseLeader
        | Kind::IsolateLeader
        | Kind::DeafLeader
        | Kind::MuteLeader
        | Kind::FlappingLeader
        | Kind::CutOffLeader
        | Kind::NoClients
        | Kind::SlowLeader
        | Kind::LossyLeader
        | Kind::ResetLeader
        | Kind::HandOver
        | Kind::StopLeader => vec![leader.ok_or_else(|| format!("{group} has no leader"))?],
        Kind::KillFollower
        | Kind::PauseFollower
        | Kind::IsolateFollower
        | Kind::SlowFollower
        | Kind::LossyFollower
        | Kind::StopFollower => {
            let leader = leader.ok_or_else(|| format!("{group} has no leader"))?;
            let followers: Vec<u16> = all.iter().copied().filter(|number| *number != leader).collect();
            vec![stream.pick(&followers).copied().ok_or("there is no follower")?]
        }
        Kind::KillRandom | Kind::CrashLoop | Kind::Bridge | Kind::LoseQueues | Kind::LoseIndexes | Kind::Wipe => {
            vec![any(stream)]
        }
        Kind::NameServerDown => vec![u16::try_from(stream.between(1, shape.name_servers.into())).unwrap_or(1)],
        Kind::AllNameServersDown => (1..=shape.name_servers).collect(),
        Kind::KillMajority => {
            let spared = any(stream);
            let others = all.iter().copied().filter(|number| *number != spared);
            others.take(usize::from(shape.brokers / 2 + 1)).collect()
        }
        Kind::KillAll | Kind::RollingRestart => all,
    })
}

/// Waits until every broker runs and every group has a leader, so that losing one more is tolerable.
async fn await_whole(cluster: &Cluster) -> Result<(), String> {
    let layout = &cluster.layout;
    let whole = async {
        'again: loop {
            for number in 1..=layout.shape.brokers {
                let runs = layout.status(number).await.is_ok_and(|status| status["ready"] == true);
                if !runs {
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue 'again;
                }
            }
            return;
        }
    };
    let in_time = tokio::time::timeout(WHOLE_TIME_MAX, whole).await;
    in_time.map_err(|_| format!("not every broker is ready after {WHOLE_TIME_MAX:?}"))
}

/// Installs a fault. Says how long it took until the slowest probe saw it.
async fn install(kind: Kind, targets: &[u16], cluster: &mut Cluster, stream: &mut Stream) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    for number in targets {
        let seen = match kind.means() {
            Means::Pause => node(kind, *number, cluster)?.pause().await?,
            Means::Stop => node(kind, *number, cluster)?.terminate().await?,
            Means::HandOver => hand_over(*number, cluster).await?,
            Means::RollingRestart => {
                let seen = node(kind, *number, cluster)?.terminate().await?;
                node(kind, *number, cluster)?.start(&[])?;
                await_whole(cluster).await.map_err(anyhow::Error::msg)?;
                seen
            }
            Means::Kill | Means::NameServers | Means::Delete(_) | Means::Wipe | Means::Network => {
                node(kind, *number, cluster)?.kill().await?
            }
        };
        slowest = slowest.max(seen);
        if kind == Kind::CrashLoop {
            for _ in 0..3 {
                let node = node(kind, *number, cluster)?;
                node.start(&[])?;
                tokio::time::sleep(Duration::from_millis(stream.between(5, 400))).await;
                slowest = slowest.max(node.kill().await?);
            }
        }
        match kind.means() {
            Means::Delete(what) => cluster.delete_derived(*number, what)?,
            Means::Wipe => cluster.delete_data(*number)?,
            _ => {}
        }
    }
    Ok(slowest)
}

/// Asks a broker to hand over all that it leads, until others are seen to lead it.
async fn hand_over(number: u16, cluster: &Cluster) -> Result<Duration> {
    let (layout, begun) = (&cluster.layout, Instant::now());
    for group in (0..layout.shape.groups).map(group_name) {
        while layout.leader_of(&group).await == Some(number) {
            ensure!(begun.elapsed() < WHOLE_TIME_MAX, "n{number} still leads {group}");
            let path = format!("/v1/groups/{group}/transfer-leader");
            // Refused where no replica is ready to lead; asked again until one does.
            let _ = post(layout.http_addr(number), &path, HAND_OVER_TIME_MAX).await;
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(begun.elapsed())
}

/// Starts or resumes the targets, in any order.
async fn heal(kind: Kind, targets: &[u16], cluster: &mut Cluster, stream: &mut Stream) -> Result<()> {
    let mut left = targets.to_vec();
    while !left.is_empty() {
        let nth = usize::try_from(stream.below(left.len() as u64)).unwrap_or_default();
        let node = node(kind, left.swap_remove(nth), cluster)?;
        if kind.means() == Means::Pause {
            node.resume()?;
        } else if !node.is_running() {
            node.start(if kind == Kind::Wipe { &["--rejoin"] } else { &[] })?;
        }
        tokio::time::sleep(Duration::from_millis(stream.below(200))).await;
    }
    Ok(())
}

fn node(kind: Kind, number: u16, cluster: &mut Cluster) -> Result<&mut Node> {
    let name = kind.name_of(number);
    cluster.node(&name).with_context(|| format!("there is no {name}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Family, Plan};
    use crate::seed::Seed;

    #[test]
    fn a_plan_comes_again_from_its_seed_and_ends_in_time() {
        let main = Duration::from_secs(60);
        let plan = Plan::drawn(Seed(1), Family::Kill, main);
        assert_eq!(plan, Plan::drawn(Seed(1), Family::Kill, main));
        assert!(plan.faults.len() >= 5);
        let last = plan.faults.last().unwrap();
        assert!(last.at_ms + last.lasts_ms <= 60_000);
        assert!(Plan::drawn(Seed(1), Family::None, main).faults.is_empty());
        for family in [Family::Operate, Family::Names, Family::Loss] {
            assert!(!Plan::drawn(Seed(1), family, main).faults.is_empty(), "{family:?}");
        }
    }
}
