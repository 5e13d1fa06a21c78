//! `gantry store dump`: the records of the log as text, or as one JSON object a line.

use std::ops::ControlFlow;

use anyhow::Result;
use clap::Args;
use raft_store::{Finding, LogPosition, RecordSeen, Seen};
use serde::Serialize;

use super::entry::{Content, MessageLine};
use super::{GroupDir, StoreArgs, printable};
use crate::output::{self, Format};

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// First log position
    #[arg(long, value_name = "POSITION", default_value_t = 0)]
    from_position: u64,
    /// First log position no longer printed
    #[arg(long, value_name = "POSITION")]
    to_position: Option<u64>,
    /// First entry
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    from_index: u64,
    /// Last entry
    #[arg(long, value_name = "INDEX")]
    to_index: Option<u64>,
    /// Only messages of this topic
    #[arg(long)]
    topic: Option<String>,
    /// Only messages with this key, the sender's own or a given one
    #[arg(long)]
    key: Option<String>,
    /// Stop after this many records of each group
    #[arg(long, value_name = "RECORDS")]
    limit: Option<u64>,
}

/// One record.
#[derive(Debug, Serialize)]
struct RecordLine<'a> {
    group: &'a str,
    position: u64,
    term: u64,
    index: u64,
    kind: &'static str,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<MessageLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct DamageLine<'a> {
    group: &'a str,
    damaged: String,
    from: Option<u64>,
    to: Option<u64>,
    found: String,
}

pub(crate) fn run(args: &DumpArgs, format: Format) -> Result<()> {
    for group in args.store.groups()? {
        dump(&group, args, format)?;
    }
    Ok(())
}

fn dump(group: &GroupDir, args: &DumpArgs, format: Format) -> Result<()> {
    let inspection = group.open()?;
    if format == Format::Table {
        output::line(&head(group, inspection.overview()))?;
    }
    let mut printed = 0;
    let mut outcome = Ok(());
    inspection.walk_from(LogPosition::new(args.from_position), &mut |seen| {
        let step = match seen {
            Seen::Segment(_) => Ok(true),
            Seen::Finding(finding) => print_finding(group, &finding, format).map(|()| true),
            Seen::Record(record) if is_behind(&record, args) => Ok(false),
            Seen::Record(record) => print_record(group, &record, args, format).map(|wanted| {
                printed += u64::from(wanted);
                args.limit.is_none_or(|limit| printed < limit)
            }),
        };
        match step {
            Ok(true) => ControlFlow::Continue(()),
            Ok(false) => ControlFlow::Break(()),
            Err(error) => {
                outcome = Err(error);
                ControlFlow::Break(())
            }
        }
    })?;
    outcome
}

fn head(group: &GroupDir, overview: &raft_store::Overview) -> String {
    let id = |id: Option<raft_store::LogId>| id.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let vote = overview.vote.map_or_else(
        || "-".to_owned(),
        |vote| format!("term {} for {}{}", vote.term, vote.node_id, if vote.committed { ", committed" } else { "" }),
    );
    let flushed = overview.flushed_end.map_or_else(|| "unknown".to_owned(), |end| end.to_string());
    let node_id = overview.node_id.map_or_else(|| "no id yet,".to_owned(), |id| id.to_string());
    let retired = match overview.retired.as_slice() {
        [] => String::new(),
        ids => format!(", was {}", ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
    };
    [
        format!("group {}", group.name),
        format!("  cluster    {}", overview.cluster_id),
        format!("  node       {node_id} {}{retired}", printable(&overview.node_name)),
        format!("  starts     {}, left {}", overview.start_counter, if overview.clean { "clean" } else { "running" }),
        format!("  flush      {}", if overview.flush_is_sync { "sync" } else { "async" }),
        format!("  vote       {vote}"),
        format!("  flushed    up to {flushed}"),
        format!("  committed  {}", id(overview.committed)),
        format!("  applied    {}", id(overview.applied)),
        format!("  purged     {}", id(overview.purged)),
    ]
    .join("\n")
}

fn is_behind(record: &RecordSeen, args: &DumpArgs) -> bool {
    args.to_position.is_some_and(|to| record.position.get() >= to)
        || args.to_index.is_some_and(|to| record.id.index.get() > to)
}

/// Prints a record that passes the filters, and says whether it did.
fn print_record(group: &GroupDir, record: &RecordSeen, args: &DumpArgs, format: Format) -> Result<bool> {
    if record.position.get() < args.from_position || record.id.index.get() < args.from_index {
        return Ok(false);
    }
    let content = Content::of(record);
    let mut messages: Vec<_> = content.messages.iter().map(|(at, record)| MessageLine::of(*at, record)).collect();
    if args.topic.is_some() || args.key.is_some() {
        messages.retain(|message| {
            args.topic.as_ref().is_none_or(|topic| message.topic == *topic)
                && args.key.as_ref().is_none_or(|key| message.has_key(key))
        });
        if messages.is_empty() {
            return Ok(false);
        }
    }
    let line = RecordLine {
        group: &group.name,
        position: record.position.get(),
        term: record.id.term.get(),
        index: record.id.index.get(),
        kind: content.kind,
        bytes: record.stored_bytes,
        command: content.command,
        messages,
        problem: content.problem,
    };
    match format {
        Format::Json => output::json(&line)?,
        Format::Table => output::line(&line.to_text())?,
    }
    Ok(true)
}

fn print_finding(group: &GroupDir, finding: &Finding, format: Format) -> Result<()> {
    match format {
        Format::Table => output::line(&format!("{:>20}  DAMAGED {}", "", super::check::describe(finding))),
        Format::Json => output::json(&DamageLine {
            group: &group.name,
            damaged: finding.file.display().to_string(),
            from: finding.range.map(|(from, _)| from.get()),
            to: finding.range.map(|(_, to)| to.get()),
            found: finding.found.clone(),
        }),
    }
}

impl RecordLine<'_> {
    fn to_text(&self) -> String {
        let what = self.command.as_deref().unwrap_or_default();
        let first = format!("{:>20}  {}-{} {} {what}", self.position, self.term, self.index, self.kind);
        let mut lines = vec![format!("{} {} bytes", first.trim_end(), self.bytes)];
        for message in &self.messages {
            let mut line = format!(
                "{:>20}    {}:{} {} bytes",
                message.physical_offset,
                printable(&message.topic),
                message.queue,
                message.bytes
            );
            for (name, value) in
                [("id", message.unique_key.clone()), ("keys", joined(&message.keys)), ("tags", message.tags.clone())]
            {
                if let Some(value) = value {
                    line.push_str(&format!(" {name}={}", printable(&value)));
                }
            }
            if !message.body_crc_agrees {
                line.push_str(" BODY CHECKSUM DIFFERS");
            }
            lines.push(line);
        }
        lines.extend(self.problem.iter().map(|problem| format!("{:>20}    {}", "", printable(problem))));
        lines.join("\n")
    }
}

fn joined(keys: &[String]) -> Option<String> {
    (!keys.is_empty()).then(|| keys.join(","))
}
