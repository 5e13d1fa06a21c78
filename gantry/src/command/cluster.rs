//! `gantry cluster`: the cluster as its nodes see it, and who leads what.

pub(crate) mod roll;

use std::time::Duration;

use anyhow::{Result, bail};
use broker::http::{
    BalanceReport, BootstrapReport, ClusterStatus, DrainStatus, Event, Events, LeaderStatus, NodeView, Plan,
    ReplicaRole, ReplicaView, SyncStatus,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::now_ms;
use crate::http_get::NodesArgs;
use crate::output::{self, Format};

pub(in crate::command) const LOOK_TIME_MAX: Duration = Duration::from_secs(10);
/// Longer than a node waits for anything.
pub(in crate::command) const CHANGE_TIME_MAX: Duration = Duration::from_secs(70);
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show all nodes and groups: who leads, how far each member is, and whether anything needs a person
    Status(StatusArgs),
    /// Show what happened in the last hour: elections with their gaps, nodes that went and came, faults
    Events(EventsArgs),
    /// Begin a new cluster from nodes that were all started with --await-bootstrap and have no data
    Bootstrap(BalanceArgs),
    /// Hand over the leadership of a group, to a node or to the best replica
    Transfer(TransferArgs),
    /// Move all leaderships away from a node, and give it none until `undrain`; for maintenance
    Drain(NodeArgs),
    /// Let a node lead again
    Undrain(NodeArgs),
    /// Move leaderships to preferred leaders, and spread those of groups without one over the nodes
    Balance(BalanceArgs),
    /// Restart node by node, and wait for health after each
    Roll(roll::RollArgs),
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Show it again every two seconds
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    nodes: NodesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// The newest so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    #[command(flatten)]
    nodes: NodesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TransferArgs {
    /// The group
    group: String,
    /// The node that is to lead
    #[arg(long)]
    to: Option<String>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    nodes: NodesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node
    node: String,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    nodes: NodesArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BalanceArgs {
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    nodes: NodesArgs,
}

pub(crate) async fn run(command: ClusterCommand, format: Format) -> Result<()> {
    match command {
        ClusterCommand::Status(args) => status(args, format).await,
        ClusterCommand::Events(args) => {
            let path = format!("/v1/events?limit={}", args.limit);
            let events: Events = args.nodes.call("GET", &path, None, LOOK_TIME_MAX).await?;
            show(&events, format, events_text)
        }
        ClusterCommand::Transfer(TransferArgs { group, to, dry_run, nodes }) => {
            let to = to.map_or_else(String::new, |to| format!("&to={}", encode(&to)));
            let path = format!("/v1/groups/{}/transfer-leader?dry_run={dry_run}{to}", encode(&group));
            change::<LeaderStatus>(&nodes, &path, dry_run, format, |leader| format!("{} leads {group}", leader.node))
                .await
                .map(drop)
        }
        ClusterCommand::Drain(NodeArgs { node, dry_run, nodes }) => {
            let path = format!("/v1/nodes/{}/drain?dry_run={dry_run}", encode(&node));
            let done = change::<DrainStatus>(&nodes, &path, dry_run, format, |_| {
                format!("{node} is drained: it leads nothing as long as others can, over restarts too")
            });
            match done.await?.map(|status| status.still_leads) {
                Some(left) if !left.is_empty() => {
                    bail!("{node} still leads {}: nobody else can take it just now", left.join(", "))
                }
                _ => Ok(()),
            }
        }
        ClusterCommand::Undrain(NodeArgs { node, dry_run, nodes }) => {
            let path = format!("/v1/nodes/{}/undrain?dry_run={dry_run}", encode(&node));
            change::<DrainStatus>(&nodes, &path, dry_run, format, |_| {
                format!("{node} may lead again; groups that prefer it come back by themselves")
            })
            .await
            .map(drop)
        }
        ClusterCommand::Bootstrap(BalanceArgs { dry_run, nodes }) => {
            let path = format!("/v1/cluster/bootstrap?dry_run={dry_run}");
            change::<BootstrapReport>(&nodes, &path, dry_run, format, |report| match report.begun.as_slice() {
                [] => format!("nothing to do: {} have begun already", report.nodes.join(", ")),
                begun => format!("{} have begun; `gantry cluster status` shows the leaders", begun.join(", ")),
            })
            .await
            .map(drop)
        }
        ClusterCommand::Balance(BalanceArgs { dry_run, nodes }) => {
            let path = format!("/v1/cluster/balance?dry_run={dry_run}");
            let done = change::<BalanceReport>(&nodes, &path, dry_run, format, balance_text).await?;
            let failed = done.is_some_and(|report| report.moves.iter().any(|planned| planned.error.is_some()));
            if failed { bail!("not every leadership has moved") } else { Ok(()) }
        }
        ClusterCommand::Roll(args) => roll::run(args, format).await,
    }
}

/// Makes a call that changes something; shows the plan of a dry run, or what was done, and returns that.
pub(in crate::command) async fn change<T: DeserializeOwned + Serialize>(
    nodes: &NodesArgs,
    path: &str,
    dry_run: bool,
    format: Format,
    text: impl FnOnce(&T) -> String,
) -> Result<Option<T>> {
    if dry_run {
        let plan: Plan = nodes.call("POST", path, None, CHANGE_TIME_MAX).await?;
        show(&plan, format, |plan| plan.would.clone())?;
        return Ok(None);
    }
    let done: T = nodes.call("POST", path, None, CHANGE_TIME_MAX).await?;
    show(&done, format, text)?;
    Ok(Some(done))
}

fn show<T: Serialize>(value: &T, format: Format, text: impl FnOnce(&T) -> String) -> Result<()> {
    if format == Format::Json { output::json(value) } else { output::line(&text(value)) }
}

/// A name as a part of a path or a query.
pub(in crate::command) fn encode(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
        encoded
    })
}

pub(in crate::command) async fn look(nodes: &NodesArgs) -> Result<ClusterStatus> {
    nodes.call("GET", "/v1/cluster", None, LOOK_TIME_MAX).await
}

async fn status(args: StatusArgs, format: Format) -> Result<()> {
    loop {
        let found = look(&args.nodes).await;
        if !args.watch {
            return show(&found?, format, status_text);
        }
        match found {
            Ok(status) if format == Format::Json => output::json(&status)?,
            // Clears the screen.
            Ok(status) => output::line(&format!("\x1b[2J\x1b[H{}", status_text(&status)))?,
            Err(error) => output::line(&format!("{error:#}"))?,
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

fn status_text(status: &ClusterStatus) -> String {
    let nodes = status.nodes.iter().map(|node| {
        [
            node.node.clone(),
            node_state(node),
            if node.leads.is_empty() { "-".to_owned() } else { node.leads.join(" ") },
            node.disk.as_ref().map_or_else(dash, |disk| format!("{} free, {}", bytes(disk.free_bytes), disk.level)),
            node.uptime_ms.map_or_else(dash, |uptime| duration(uptime / 1_000)),
            node.version.clone().unwrap_or_else(dash),
        ]
    });
    let members = status.groups.iter().flat_map(|group| group.members.iter().map(move |member| (group, member)));
    let members = members.map(|(group, member)| {
        let number = |value: Option<u64>| value.map_or_else(dash, |value| value.to_string());
        let lag = member.lag_entries.map(|entries| match member.lag_bytes {
            Some(lag) if entries > 0 => format!("{entries} ({})", bytes(lag)),
            _ => entries.to_string(),
        });
        [
            group.name.clone(),
            member.node.clone(),
            member.id.to_string(),
            role(member),
            group.term.to_string(),
            number(member.last),
            number(member.flushed),
            number(member.committed),
            number(member.applied),
            lag.unwrap_or_else(dash),
            sync(member.sync),
        ]
    });
    format!(
        "{} ({}): {}\n\n{}\n\n{}",
        status.cluster,
        status.cluster_id,
        status.health,
        output::table(&["node", "state", "leads", "disk", "up", "version"], nodes),
        output::table(
            &["group", "node", "id", "role", "term", "last", "flushed", "committed", "applied", "lag", "sync"],
            members
        )
    )
}

fn dash() -> String {
    "-".to_owned()
}

fn node_state(node: &NodeView) -> String {
    let state = match (&node.error, node.state) {
        (Some(_), _) | (None, None) => "silent".to_owned(),
        (None, Some(_)) if node.ready => "ready".to_owned(),
        (None, Some(state)) => {
            serde_json::to_value(state).ok().and_then(|word| word.as_str().map(ToOwned::to_owned)).unwrap_or_default()
        }
    };
    if node.drained { format!("{state}, drained") } else { state }
}

fn role(member: &ReplicaView) -> String {
    let word = match member.role {
        Some(ReplicaRole::Leader) => "leader",
        Some(ReplicaRole::Follower) if !member.voter => "learner",
        Some(ReplicaRole::Follower) => "follower",
        Some(ReplicaRole::Electing) => "electing",
        Some(ReplicaRole::Recovering) => "recovering",
        Some(ReplicaRole::Returning) => "returning",
        Some(ReplicaRole::Failed) => "failed",
        Some(ReplicaRole::Joining) => "joins",
        Some(ReplicaRole::Removed) => "removed",
        None => "silent",
    };
    let marks = [("damaged", member.damaged), ("catching up", member.catching_up)];
    marks.into_iter().filter(|(_, holds)| *holds).fold(word.to_owned(), |text, (mark, _)| format!("{text}, {mark}"))
}

/// Mean and 99th percentile.
fn sync(sync: Option<SyncStatus>) -> String {
    let Some(sync) = sync.filter(|sync| sync.count > 0) else { return dash() };
    let millis = |micros: u64| format!("{:.1}ms", micros as f64 / 1_000.0);
    format!("{}, 99%: {}", millis(sync.mean_us), sync.p99_us.map_or_else(|| "> 2.5s".to_owned(), millis))
}

fn bytes(count: u64) -> String {
    match count {
        0..10_240 => format!("{count} B"),
        10_240..10_485_760 => format!("{} KiB", count >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", count >> 20),
        _ => format!("{} GiB", count >> 30),
    }
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn events_text(found: &Events) -> String {
    let row = |event: &Event| {
        let age = u64::try_from(now_ms().saturating_sub(event.at_ms)).unwrap_or(0) / 1_000;
        [
            format!("{} ago", duration(age)),
            event.seen_by.clone(),
            event.gap_ms.map_or_else(dash, |gap| format!("{gap}ms")),
            event.text.clone(),
        ]
    };
    let table = output::table(&["when", "seen by", "gap", "what"], found.events.iter().map(row));
    if found.missing.is_empty() { table } else { format!("{table}\n\nnot asked: {}", found.missing.join("; ")) }
}

fn balance_text(report: &BalanceReport) -> String {
    if report.moves.is_empty() {
        return "all is balanced: nothing has moved".to_owned();
    }
    let rows = report.moves.iter().map(|planned| {
        [
            planned.group.clone(),
            planned.from.clone(),
            planned.to.clone(),
            planned.error.clone().unwrap_or_else(|| "moved".to_owned()),
        ]
    });
    output::table(&["group", "from", "to", ""], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        assert_eq!(encode("broker-a_1.x~"), "broker-a_1.x~");
        assert_eq!(encode("../a?b=c&d e%"), "..%2Fa%3Fb%3Dc%26d%20e%25");
    }

    #[test]
    fn sizes_and_times_have_one_unit() {
        assert_eq!(
            [bytes(9), bytes(1 << 20), bytes(1 << 30), bytes(1 << 40)],
            ["9 B", "1024 KiB", "1024 MiB", "1024 GiB"]
        );
        assert_eq!([duration(119), duration(120), duration(7_200), duration(200_000)], ["119s", "2m", "2h", "2d"]);
    }
}
