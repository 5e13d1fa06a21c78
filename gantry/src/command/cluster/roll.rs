//! `gantry cluster roll`: restarts node by node.
//!
//! ```text
//!  for each node:  all is well -> drain -> restart -> a new process answers, and all is well -> undrain
//! ```
//!
//! Nothing is restarted while anything is not well, so at most one replica of a group is away at a time. The first node that
//! does not come back in time ends it; that node is left drained.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use broker::http::{ClusterStatus, DrainStatus, NodeView};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use tokio::time::Instant;

use super::{CHANGE_TIME_MAX, encode, look};
use crate::http_get::NodesArgs;
use crate::output::{self, Format};

const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// All must have been well for so long before the next step.
const CALM_LOOKS: u32 = 3;

#[derive(Debug, Args)]
pub(crate) struct RollArgs {
    /// What restarts a node, given to `sh -c`; {node} stands for its name, as does $GANTRY_NODE:
    /// 'ssh {node} systemctl restart gantry-broker@{node}'
    #[arg(long, conflicts_with = "by_signal", required_unless_present_any = ["by_signal", "dry_run"])]
    command: Option<String>,
    /// Send the process of each node SIGTERM instead: for nodes on this machine whose supervisor starts again what ends
    #[arg(long)]
    by_signal: bool,
    /// Only these nodes, separated by commas; all, if none is named
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How long a node may take to come back and to be in step, and the cluster to be well before, in seconds
    #[arg(long, default_value_t = 600)]
    wait: u64,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    nodes: NodesArgs,
}

/// One node that was restarted.
#[derive(Serialize)]
struct Restarted {
    node: String,
    /// From the start of the restart until all was well again.
    took_ms: u64,
}

pub(crate) async fn run(args: RollArgs, format: Format) -> Result<()> {
    let wait = Duration::from_secs(args.wait);
    let status = look(&args.nodes).await?;
    let order = order(&status, &args.only)?;
    if args.dry_run {
        let text = format!("{} would be restarted, one after the other; now: {}", order.join(", "), status.health);
        return output::line(&text);
    }
    let mut restarted = Vec::new();
    for node in order {
        let before =
            until_well(&args.nodes, wait, &node, None).await.context("nothing is restarted before all is well")?;
        if format != Format::Json {
            output::line(&format!("{node}: draining"))?;
        }
        let was_drained = before.drained;
        let _: DrainStatus = post(&args.nodes, &node, "drain").await?;
        until_leads_nothing(&args.nodes, wait, &node)
            .await
            .with_context(|| format!("{node} is left drained, and was not restarted"))?;
        let started = Instant::now();
        if format != Format::Json {
            output::line(&format!("{node}: restarting"))?;
        }
        restart(&args, &node, before.pid).await.with_context(|| format!("restarting {node}, which is left drained"))?;
        until_well(&args.nodes, wait, &node, Some(&before))
            .await
            .with_context(|| format!("{node} was restarted and is left drained"))?;
        if !was_drained {
            let _: DrainStatus = post(&args.nodes, &node, "undrain").await?;
        }
        let took = started.elapsed();
        if format != Format::Json {
            output::line(&format!("{node}: back after {took:.1?}"))?;
        }
        restarted.push(Restarted { node, took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX) });
    }
    if format == Format::Json {
        output::json(&restarted)?;
    }
    Ok(())
}

async fn post(nodes: &NodesArgs, node: &str, what: &str) -> Result<DrainStatus> {
    let path = format!("/v1/nodes/{}/{what}", encode(node));
    nodes.call("POST", &path, None, CHANGE_TIME_MAX).await
}

/// Those that lead least come first: the fewest leaderships move twice.
fn order(status: &ClusterStatus, only: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = only.iter().find(|name| !status.nodes.iter().any(|node| node.node == **name)) {
        bail!("there is no node {unknown}");
    }
    let mut nodes: Vec<_> = status.nodes.iter().filter(|node| only.is_empty() || only.contains(&node.node)).collect();
    nodes.sort_by_key(|node| node.leads.len());
    Ok(nodes.into_iter().map(|node| node.node.clone()).collect())
}

async fn restart(args: &RollArgs, node: &str, pid: Option<u32>) -> Result<()> {
    let Some(command) = &args.command else {
        let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("{node} does not tell the number of its process"))?;
        return kill_process(pid, Signal::TERM).context("sending SIGTERM");
    };
    let text = command.replace("{node}", node);
    let status = tokio::process::Command::new("sh")
        .args(["-c", &text])
        .env("GANTRY_NODE", node)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .await
        .context("starting sh")?;
    if status.success() { Ok(()) } else { bail!("`{text}` ended with {status}") }
}

/// Waits until all is well, and, if `before` is what the node was before its restart, until another process answers for it.
async fn until_well(nodes: &NodesArgs, wait: Duration, node: &str, before: Option<&NodeView>) -> Result<NodeView> {
    let deadline = Instant::now() + wait;
    let mut calm = 0;
    loop {
        let (found, reason) = match look(nodes).await {
            Ok(status) => {
                let found = status.nodes.iter().find(|found| found.node == node).cloned();
                let renewed = before.is_none_or(|before| is_renewed(before, found.as_ref()));
                let reason = match (status.healthy, renewed) {
                    (true, true) => None,
                    (true, false) => Some(format!("{node} is still the process it was")),
                    (false, _) => Some(status.health),
                };
                (found, reason)
            }
            // The node that was asked may be the one that restarts.
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        calm = if reason.is_none() { calm + 1 } else { 0 };
        if let (true, Some(found)) = (calm >= CALM_LOOKS, found) {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("not well within {wait:?}: {}", reason.unwrap_or_else(|| format!("there is no node {node}")));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Waits until a drained node has given everything away: under load others take over only once they are close behind.
async fn until_leads_nothing(nodes: &NodesArgs, wait: Duration, node: &str) -> Result<()> {
    let deadline = Instant::now() + wait;
    loop {
        let status = look(nodes).await?;
        let leads = status.nodes.iter().find(|found| found.node == node).map(|found| found.leads.join(", "));
        match leads {
            Some(leads) if leads.is_empty() => return Ok(()),
            _ if Instant::now() < deadline => tokio::time::sleep(LOOK_INTERVAL).await,
            Some(leads) => bail!("it still leads {leads} after {wait:?}"),
            None => bail!("there is no node {node}"),
        }
    }
}

/// Whether another process answers than before.
fn is_renewed(before: &NodeView, now: Option<&NodeView>) -> bool {
    now.is_some_and(|now| now.uptime_ms.is_some() && (now.pid != before.pid || now.uptime_ms < before.uptime_ms))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, leads: &[&str], pid: u32, uptime_ms: u64) -> NodeView {
        let text = json!({ "node": name, "error": null, "state": "running", "ready": true, "drained": false,
            "health": "", "version": "1", "uptime_ms": uptime_ms, "pid": pid, "leads": leads, "disk": null });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn who_leads_least_is_restarted_first() {
        let status = ClusterStatus {
            cluster: String::new(),
            cluster_id: String::new(),
            seen_by: String::new(),
            healthy: true,
            health: String::new(),
            nodes: vec![node("n1", &["a", "b"], 1, 1), node("n2", &[], 1, 1), node("n3", &["c"], 1, 1)],
            groups: Vec::new(),
        };
        assert_eq!(order(&status, &[]).unwrap(), ["n2", "n3", "n1"]);
        assert_eq!(order(&status, &["n1".to_owned(), "n3".to_owned()]).unwrap(), ["n3", "n1"]);
        assert!(order(&status, &["n4".to_owned()]).unwrap_err().to_string().contains("n4"));
    }

    #[test]
    fn a_process_that_did_not_restart_is_noticed() {
        let before = node("n1", &[], 7, 1_000);
        assert!(!is_renewed(&before, Some(&node("n1", &[], 7, 1_500))));
        assert!(!is_renewed(&before, None));
        assert!(is_renewed(&before, Some(&node("n1", &[], 8, 1_500))));
        // In a container every process may have the same number.
        assert!(is_renewed(&before, Some(&node("n1", &[], 7, 500))));
    }
}
