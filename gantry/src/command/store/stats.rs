//! `gantry store stats`: what takes the space in a stopped node's directory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use raft_store::Seen;
use serde::Serialize;

use super::entry::Content;
use super::{GroupDir, StoreArgs, printable};
use crate::command::progress_bar;
use crate::output::{self, Format};

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Serialize)]
struct Stats {
    group: String,
    /// Messages by topic, the largest first.
    topics: Vec<TopicSpace>,
    /// Log records by kind.
    kinds: BTreeMap<&'static str, KindSpace>,
    /// Bytes on disk by what the files are.
    files: BTreeMap<&'static str, u64>,
    segments: u64,
    first_position: Option<u64>,
    end_position: Option<u64>,
    /// Damaged places met on the way; `gantry store check` names them.
    damaged: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
struct TopicSpace {
    topic: String,
    messages: u64,
    bytes: u64,
    queues: u64,
    first_stored_ms: i64,
    last_stored_ms: i64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct KindSpace {
    records: u64,
    bytes: u64,
}

pub(crate) fn run(args: &StatsArgs, format: Format) -> Result<()> {
    let mut all = Vec::new();
    for group in args.store.groups()? {
        all.push(gather(&group)?);
    }
    match format {
        Format::Json => output::json(&all),
        Format::Table => output::line(&all.iter().map(Stats::to_text).collect::<Vec<_>>().join("\n\n")),
    }
}

fn gather(group: &GroupDir) -> Result<Stats> {
    let inspection = group.open()?;
    let mut topics: BTreeMap<String, (TopicSpace, std::collections::BTreeSet<i32>)> = BTreeMap::new();
    let mut stats = Stats {
        group: group.name.clone(),
        topics: Vec::new(),
        kinds: BTreeMap::new(),
        files: files(group)?,
        segments: 0,
        first_position: None,
        end_position: None,
        damaged: 0,
    };
    let bar = progress_bar(inspection.overview().flushed_end.map_or(0, raft_store::LogPosition::get));
    inspection.walk(&mut |seen| {
        match seen {
            Seen::Segment(segment) => {
                stats.segments += 1;
                bar.set_position(segment.base.get());
            }
            Seen::Finding(finding) => stats.damaged += u64::from(!finding.harmless),
            Seen::Record(record) => {
                let content = Content::of(&record);
                let kind = stats.kinds.entry(content.kind).or_default();
                kind.records += 1;
                kind.bytes += record.stored_bytes;
                stats.first_position.get_or_insert_with(|| record.position.get());
                stats.end_position = Some(record.position.get() + record.stored_bytes);
                for (_, message) in &content.messages {
                    if !topics.contains_key(message.topic()) {
                        topics.insert(message.topic().to_owned(), Default::default());
                    }
                    let Some((space, queues)) = topics.get_mut(message.topic()) else { continue };
                    let stored = message.store_timestamp();
                    space.messages += 1;
                    space.bytes += message.size() as u64;
                    space.first_stored_ms =
                        if space.messages == 1 { stored } else { space.first_stored_ms.min(stored) };
                    space.last_stored_ms = space.last_stored_ms.max(stored);
                    queues.insert(message.queue_id());
                }
            }
        }
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    stats.topics = topics
        .into_iter()
        .map(|(topic, (space, queues))| TopicSpace { topic, queues: queues.len() as u64, ..space })
        .collect();
    stats.topics.sort_by_key(|space| std::cmp::Reverse(space.bytes));
    Ok(stats)
}

/// Bytes on disk by kind of file.
fn files(group: &GroupDir) -> Result<BTreeMap<&'static str, u64>> {
    let mut files = BTreeMap::new();
    let quarantine = group.log.join("quarantine");
    let set_aside = used(&quarantine)?;
    files.insert("log", used(&group.log)?.saturating_sub(set_aside));
    files.insert("quarantine", set_aside);
    for (name, dir) in [("consumequeue", "consumequeue"), ("index", "index"), ("checkpoints", "checkpoints")] {
        files.insert(name, used(&group.dir.join(dir))?);
    }
    Ok(files)
}

fn used(path: &Path) -> Result<u64> {
    let reading = || format!("looking at {}", path.display());
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(0) };
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for item in std::fs::read_dir(path).with_context(reading)? {
            bytes += used(&item.with_context(reading)?.path())?;
        }
    }
    Ok(bytes)
}

impl Stats {
    fn to_text(&self) -> String {
        let place = |position: Option<u64>| position.map_or_else(|| "-".to_owned(), |position| position.to_string());
        let mut parts = vec![format!(
            "group {}: {} segments, records from {} to {}",
            self.group,
            self.segments,
            place(self.first_position),
            place(self.end_position)
        )];
        let total: u64 = self.kinds.values().map(|kind| kind.bytes).sum();
        let share = |bytes: u64| format!("{:.1} %", 100.0 * bytes as f64 / total.max(1) as f64);
        let rows = self.topics.iter().map(|space| {
            [
                printable(&space.topic),
                space.messages.to_string(),
                space.bytes.to_string(),
                share(space.bytes),
                space.queues.to_string(),
            ]
        });
        parts.push(output::table(&["topic", "messages", "bytes", "of the log", "queues"], rows));
        let rows = self.kinds.iter().map(|(kind, space)| {
            [(*kind).to_owned(), space.records.to_string(), space.bytes.to_string(), share(space.bytes)]
        });
        parts.push(output::table(&["record", "count", "bytes", "of the log"], rows));
        let rows = self.files.iter().map(|(name, bytes)| [(*name).to_owned(), bytes.to_string()]);
        parts.push(output::table(&["files", "bytes on disk"], rows));
        if self.damaged > 0 {
            parts.push(format!("{} damaged places: see `gantry store check`", self.damaged));
        }
        parts.join("\n\n")
    }
}
