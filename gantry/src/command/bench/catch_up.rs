//! `gantry bench catch-up`: what producers feel while a replica is sent gigabytes that it lacks.
//!
//! A follower of a `gantry dev` cluster is killed, gigabytes are sent, and it is started again. Producers are measured
//! while it catches up, and before and after that, when nothing is to be caught up; each round compares its own windows,
//! so that a machine whose speed drifts does not matter.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use broker::http::{GroupStatus, NodeStatus};
use broker::raft::FAR_BEHIND_ENTRIES;
use broker::sequencer::SequencerOptions;
use clap::Args;
use protocol::TopicName;
use remoting::Channel;
use serde::Serialize;

use super::{CALL_TIME_MAX, QUEUES_OF_NEW_TOPIC, quantile_ms, targets_of};
use crate::cluster::Cluster;
use crate::command::topic::create_everywhere;
use crate::dev::Driver;
use crate::http_get::get_json;
use crate::load::made_up_body;
use crate::load::produce::{Loop, Outcome, Plan, Run, Target};
use crate::output::{self, Format};

const TOPIC: &str = "gantry-bench-catch-up";
/// In flight while the log is filled.
const FILL_IN_FLIGHT: u64 = 1024;
const STATUS_TIME_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A follower that has not begun to catch up, or an idle cluster that has not settled, by then never will.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(300);

#[derive(Debug, Args)]
pub(crate) struct CatchUpArgs {
    /// Directory of the `gantry dev` to use; start it with --groups 1 and nothing else to do
    #[arg(long, default_value = "data/dev")]
    dev: PathBuf,
    /// What the follower lacks when it comes back; with less than 125 MiB it might not count as far behind
    #[arg(long, default_value = "3GiB", value_parser = broker::config::parse_bytes)]
    lacks: u64,
    /// Rounds, each with a window before, one while it catches up, and one after
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of each half of a window: first messages in flight, then messages at a rate
    #[arg(long, default_value = "10s", value_parser = broker::config::parse_duration)]
    time: Duration,
    /// Bytes of a body
    #[arg(long, default_value_t = 1024)]
    size: usize,
    /// Messages in flight in the first half
    #[arg(long, default_value_t = 64)]
    inflight: u64,
    /// Messages a second in the second half
    #[arg(long, default_value_t = 5000.0)]
    rate: f64,
}

/// What producers saw in one window.
#[derive(Clone, Copy, Debug, Serialize)]
struct Window {
    /// Closed loop.
    per_second: f64,
    closed_p99_ms: f64,
    /// Open loop.
    open_p50_ms: f64,
    open_p99_ms: f64,
    failed: u64,
    /// What the follower was sent in that time; 0 where it lacked nothing.
    caught_up_mib_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    body_bytes: usize,
    lacked_bytes: u64,
    /// Windows without, one more than rounds.
    without: Vec<Window>,
    during: Vec<Window>,
    /// Throughput while it catches up against the windows around it; the median of the rounds.
    throughput_ratio: f64,
    /// The same of the latency in the open loop.
    open_p50_ratio: f64,
    open_p99_ratio: f64,
}

struct Bench<'a> {
    args: &'a CatchUpArgs,
    driver: Driver,
    channels: Vec<Channel>,
    targets: Vec<Target>,
    follower: String,
}

pub(super) async fn run(cluster: &Cluster, args: CatchUpArgs, format: Format) -> Result<()> {
    args.check()?;
    let driver = Driver::new(args.dev.clone());
    let (leader, follower) = driver.leader_and_follower()?;
    let topic = TopicName::parse(TOPIC).context("the name of the topic")?;
    if cluster.find_route(&topic).await?.is_none() {
        create_everywhere(cluster, &topic, QUEUES_OF_NEW_TOPIC).await?;
    }
    let (channels, targets) = targets_of(cluster, std::slice::from_ref(&topic), &[], 1).await?;
    let bench = Bench { args: &args, driver, channels, targets, follower };
    bench.settled().await?;
    eprintln!("{leader} leads, {} will be away; warming up", bench.follower);
    bench.produce(Loop::Closed { in_flight: FILL_IN_FLIGHT }, u64::MAX, args.time).await?;

    let mut without = vec![bench.window(false).await?];
    let mut during = Vec::new();
    for round in 1..=args.rounds {
        bench.driver.kill(&bench.follower)?;
        eprintln!(
            "round {round} of {}: sending {} MiB while {} is away",
            args.rounds,
            args.lacks >> 20,
            bench.follower
        );
        let count = args.lacks / args.size.max(1) as u64;
        bench.produce(Loop::Closed { in_flight: FILL_IN_FLIGHT }, count, CHANGE_TIME_MAX).await?;
        bench.driver.start(&bench.follower)?;
        let is_seen = |group: &GroupStatus| bench.lacked(group).is_some_and(|(entries, far)| far || entries == 0);
        let seen = bench.until("the follower is being caught up", is_seen).await?;
        bench.ensure_far(&seen, "before it was seen to be far behind")?;
        during.push(bench.window(true).await?);
        eprintln!("round {round}: waiting until it has everything");
        bench.settled().await?;
        without.push(bench.window(false).await?);
    }
    let report = Report::new(&args, without, during);
    if format == Format::Json {
        return output::json(&report);
    }
    output::line(&report.to_text())
}

impl CatchUpArgs {
    fn check(&self) -> Result<()> {
        ensure!(self.rate > 0.0 && self.rate.is_finite(), "--rate must be above 0");
        ensure!(self.inflight > 0, "--inflight must be above 0");
        let least = lacks_min(self.size);
        ensure!(
            self.lacks >= least,
            "--lacks is too little: a follower counts as far behind once it lacks {FAR_BEHIND_ENTRIES} entries of the log; \
             with bodies of {} bytes it takes at least --lacks {}MiB",
            self.size,
            least.div_ceil(1 << 20)
        );
        Ok(())
    }
}

/// The least that makes a follower lack twice as many entries as count as far behind: it comes closer before anybody has
/// looked. An entry is a pack of messages, or one larger message.
fn lacks_min(body_bytes: usize) -> u64 {
    let entry_bytes = SequencerOptions::default().pack_bytes_max.max(body_bytes) as u64;
    (2 * FAR_BEHIND_ENTRIES).saturating_mul(entry_bytes)
}

impl Bench<'_> {
    /// The group as its leader sees it.
    async fn group(&self) -> Result<GroupStatus> {
        let (addr, name) = self.driver.leader_http()?;
        let status: NodeStatus = get_json(addr, "/v1/status", STATUS_TIME_MAX).await?;
        status.groups.into_iter().find(|group| group.name == name).context("the leader does not know its group")
    }

    /// Entries that the follower lacks, and whether it counts as far behind.
    fn lacked(&self, group: &GroupStatus) -> Option<(u64, bool)> {
        let member = group.members.iter().find(|member| member.node == self.follower)?;
        Some((group.last?.saturating_sub(member.matched.unwrap_or(0)), member.catching_up))
    }

    /// Fails if the follower does not count as far behind any more.
    fn ensure_far(&self, group: &GroupStatus, when: &str) -> Result<()> {
        if !self.lacked(group).is_some_and(|(_, far)| far) {
            bail!("{} had caught up {when}: let it lack more with --lacks", self.follower);
        }
        Ok(())
    }

    async fn until(&self, what: &str, is_reached: impl Fn(&GroupStatus) -> bool) -> Result<GroupStatus> {
        let started = Instant::now();
        loop {
            // Between two leaders there is nobody to ask.
            if let Ok(group) = self.group().await
                && is_reached(&group)
            {
                return Ok(group);
            }
            ensure!(started.elapsed() < CHANGE_TIME_MAX, "{what}: not within {CHANGE_TIME_MAX:?}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until nobody lacks anything.
    async fn settled(&self) -> Result<()> {
        self.until("every replica has everything", |group| {
            self.lacked(group).is_some_and(|(entries, far)| entries == 0 && !far)
        })
        .await?;
        Ok(())
    }

    async fn produce(&self, mode: Loop, count: u64, time: Duration) -> Result<Outcome> {
        let run = Run::new(Plan {
            channels: self.channels.clone(),
            targets: self.targets.clone(),
            body: made_up_body(self.args.size),
            mode,
            count,
            time,
            call_time_max: CALL_TIME_MAX,
        })?;
        run.carry_out().await
    }

    async fn window(&self, catches_up: bool) -> Result<Window> {
        let (before, started) = (self.sent(&self.group().await?), Instant::now());
        let closed = self.produce(Loop::Closed { in_flight: self.args.inflight }, u64::MAX, self.args.time).await?;
        let open = Loop::Open { per_second: self.args.rate, in_flight_max: 100_000 };
        let open = self.produce(open, u64::MAX, self.args.time).await?;
        let after = self.group().await?;
        if catches_up {
            self.ensure_far(&after, "before the window ended")?;
        }
        let sent = self.sent(&after).saturating_sub(before) as f64 * self.bytes_per_entry(&after);
        Ok(Window {
            per_second: closed.acked as f64 / closed.elapsed.as_secs_f64(),
            closed_p99_ms: quantile_ms(&closed.latency, 0.99),
            open_p50_ms: quantile_ms(&open.latency, 0.5),
            open_p99_ms: quantile_ms(&open.latency, 0.99),
            failed: closed.failed.values().chain(open.failed.values()).sum(),
            caught_up_mib_per_second: if catches_up {
                sent / started.elapsed().as_secs_f64() / f64::from(1 << 20)
            } else {
                0.0
            },
        })
    }

    /// The last entry that the follower has.
    fn sent(&self, group: &GroupStatus) -> u64 {
        let member = group.members.iter().find(|member| member.node == self.follower);
        member.and_then(|member| member.matched).unwrap_or(0)
    }

    fn bytes_per_entry(&self, group: &GroupStatus) -> f64 {
        let Some(log) = &group.log else { return 0.0 };
        let entries = group.last.unwrap_or(0).saturating_sub(log.first.unwrap_or(0)) + 1;
        log.end_position.saturating_sub(log.start_position) as f64 / entries as f64
    }
}

impl Report {
    fn new(args: &CatchUpArgs, without: Vec<Window>, during: Vec<Window>) -> Self {
        let ratio = |of: fn(&Window) -> f64| {
            let around = without.windows(2).map(|pair| (of(&pair[0]) + of(&pair[1])) / 2.0);
            let mut ratios: Vec<f64> = during.iter().zip(around).map(|(window, around)| of(window) / around).collect();
            ratios.sort_by(f64::total_cmp);
            ratios[ratios.len() / 2]
        };
        Self {
            body_bytes: args.size,
            lacked_bytes: args.lacks,
            throughput_ratio: ratio(|window| window.per_second),
            open_p50_ratio: ratio(|window| window.open_p50_ms),
            open_p99_ratio: ratio(|window| window.open_p99_ms),
            without,
            during,
        }
    }

    fn to_text(&self) -> String {
        let row = |name: &str, window: &Window| {
            [
                name.to_owned(),
                format!("{:.0}", window.per_second),
                format!("{:.2}", window.closed_p99_ms),
                format!("{:.2}", window.open_p50_ms),
                format!("{:.2}", window.open_p99_ms),
                window.failed.to_string(),
                format!("{:.0}", window.caught_up_mib_per_second),
            ]
        };
        let mut rows = Vec::new();
        for (number, window) in self.without.iter().enumerate() {
            rows.push(row("without", window));
            rows.extend(self.during.get(number).map(|window| row("catching up", window)));
        }
        let head = ["window", "acked/s", "p99 ms", "open p50 ms", "open p99 ms", "failed", "sent MiB/s"];
        format!(
            "{}\n\nmedian of the rounds, catching up against without: throughput {:.2}, open loop p50 {:.2}, p99 {:.2}",
            output::table(&head, rows),
            self.throughput_ratio,
            self.open_p50_ratio,
            self.open_p99_ratio
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CatchUpArgs,
    }

    fn check(line: &str) -> Result<()> {
        Line::parse_from(line.split(' ')).args.check()
    }

    #[test]
    fn what_would_not_count_as_far_behind_is_refused_with_the_least_that_does() {
        let refusal = check("catch-up --lacks 48MiB").unwrap_err().to_string();
        assert!(refusal.contains("once it lacks 1000 entries"), "{refusal}");
        assert!(refusal.ends_with("at least --lacks 125MiB"), "{refusal}");
        check("catch-up --lacks 125MiB").unwrap();
        check("catch-up").unwrap();
        // A message larger than a pack is an entry of its own.
        let refusal = check("catch-up --lacks 1999MiB --size 1048576").unwrap_err().to_string();
        assert!(refusal.ends_with("at least --lacks 2000MiB"), "{refusal}");
        check("catch-up --lacks 2000MiB --size 1048576").unwrap();
    }
}
