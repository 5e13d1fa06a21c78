//! `gantry group reset`: moves the offsets of a consumer group, first as a plan.

use anyhow::{Context, Result};
use broker::http::{ResetOrder, ResetPlan, ResetTo};
use clap::Args;
use serde::Serialize;

use crate::command::cluster::{CHANGE_TIME_MAX, LOOK_TIME_MAX, encode, look};
use crate::exit_code::ExitCode;
use crate::http_get::NodesArgs;
use crate::output::{self, Format};

#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// The consumer group
    name: String,
    /// The topic
    #[arg(long)]
    topic: String,
    /// `earliest`, `latest`, or a store time in milliseconds since 1970
    #[arg(long, value_parser = parse_target)]
    to: ResetTo,
    /// Do it, as the plan says; without this the plan is only shown
    #[arg(long)]
    apply: bool,
    #[command(flatten)]
    nodes: NodesArgs,
}

fn parse_target(text: &str) -> std::result::Result<ResetTo, String> {
    match text {
        "earliest" => Ok(ResetTo::Earliest),
        "latest" => Ok(ResetTo::Latest),
        _ => text.parse().map(ResetTo::TimeMs).map_err(|_| "expected earliest, latest or milliseconds".to_owned()),
    }
}

/// What happens in one broker group.
#[derive(Serialize)]
struct Line {
    broker: String,
    plan: ResetPlan,
}

pub(super) async fn run(args: ResetArgs, format: Format) -> Result<()> {
    let ResetArgs { name, topic, to, apply, nodes } = args;
    let order = serde_json::to_value(ResetOrder { topic: topic.clone(), to }).context("encoding the order")?;
    let path = |broker: &str, dry_run: bool| {
        format!("/v1/groups/{}/consumer-groups/{}/reset?dry_run={dry_run}", encode(broker), encode(&name))
    };
    let mut lines = Vec::new();
    for broker in look(&nodes).await?.groups {
        // Not every broker group has every topic and consumer group.
        match nodes.call("POST", &path(&broker.name, true), Some(&order), LOOK_TIME_MAX).await {
            Ok(plan) => lines.push(Line { broker: broker.name, plan }),
            Err(error) if ExitCode::of(&error) == ExitCode::NotFound.number() => {}
            Err(error) => return Err(error),
        }
    }
    if lines.is_empty() {
        let text = format!("no broker group has both {name} and {topic}");
        return Err(anyhow::anyhow!(text).context(ExitCode::NotFound));
    }
    if apply {
        for line in &mut lines {
            let order = serde_json::to_value(&line.plan.apply).context("encoding the order")?;
            line.plan = nodes.call("POST", &path(&line.broker, false), Some(&order), CHANGE_TIME_MAX).await?;
        }
    }
    if format == Format::Json {
        return output::json(&lines);
    }
    let rows = lines.iter().flat_map(|line| {
        line.plan.queues.iter().map(|queue| {
            [
                line.broker.clone(),
                queue.queue_id.to_string(),
                queue.from.map_or_else(|| "-".to_owned(), |from| from.to_string()),
                queue.to.to_string(),
                queue.again.to_string(),
                queue.skipped.to_string(),
            ]
        })
    });
    let table = output::table(&["broker", "queue", "from", "to", "again", "skipped"], rows);
    let members = lines.iter().map(|line| line.plan.members).max().unwrap_or(0);
    let end = if apply {
        format!("moved; {members} members go on there with their next pull")
    } else {
        format!("nothing was changed: --apply does this; {members} members are connected")
    };
    output::line(&format!("{table}\n\n{end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_words_or_times() {
        assert_eq!(parse_target("earliest"), Ok(ResetTo::Earliest));
        assert_eq!(parse_target("latest"), Ok(ResetTo::Latest));
        assert_eq!(parse_target("1700000000000"), Ok(ResetTo::TimeMs(1_700_000_000_000)));
        assert!(parse_target("yesterday").is_err());
    }
}
