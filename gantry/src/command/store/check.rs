//! `gantry store check`: verifies everything in a stopped node's directory and names what is damaged, worst first.

use std::ops::ControlFlow;

use anyhow::{Result, anyhow};
use broker::store::DerivedCheck;
use clap::Args;
use raft_store::{Finding, RECORD_HEADER_BYTES, Seen};
use serde::Serialize;

use super::{GroupDir, StoreArgs, printable};
use crate::command::progress_bar;
use crate::exit_code::ExitCode;
use crate::output::{self, Format};

/// Findings listed of one group.
const FINDINGS_MAX: usize = 100;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    store: StoreArgs,
}

/// What the check of one group came to.
#[derive(Debug, Serialize)]
struct Report {
    group: String,
    ok: bool,
    segments: u64,
    /// Of them, with the digest of each chunk.
    segments_with_digests: u64,
    records: u64,
    bytes: u64,
    queue_entries: u64,
    /// Damage, the first of it first: at most a hundred.
    faults: Vec<FindingLine>,
    fault_count: u64,
    /// What an interrupted write has left, and the next start puts right.
    harmless: Vec<FindingLine>,
}

#[derive(Debug, Serialize)]
struct FindingLine {
    file: String,
    from: Option<u64>,
    to: Option<u64>,
    found: String,
}

pub(crate) fn run(args: &CheckArgs, format: Format) -> Result<()> {
    let mut reports = Vec::new();
    for group in args.store.groups()? {
        reports.push(check(&group)?);
    }
    match format {
        Format::Json => output::json(&reports)?,
        Format::Table => {
            let texts: Vec<_> = reports.iter().map(Report::to_text).collect();
            output::line(&texts.join("\n"))?;
        }
    }
    match reports.iter().find(|report| !report.ok) {
        None => Ok(()),
        Some(report) => {
            let first = report.faults.first().map(FindingLine::to_text).unwrap_or_default();
            Err(anyhow!("group {}: {first}", report.group).context(ExitCode::Damaged))
        }
    }
}

fn check(group: &GroupDir) -> Result<Report> {
    let inspection = group.open()?;
    let overview = inspection.overview();
    let mut derived = DerivedCheck::open(&group.dir, *overview.cluster_id.bytes());
    let mut report = Report {
        group: group.name.clone(),
        ok: true,
        segments: 0,
        segments_with_digests: 0,
        records: 0,
        bytes: 0,
        queue_entries: 0,
        faults: Vec::new(),
        fault_count: 0,
        harmless: Vec::new(),
    };
    let bar = progress_bar(overview.flushed_end.map_or(0, raft_store::LogPosition::get));
    let mut whole = true;
    inspection.walk(&mut |seen| {
        match seen {
            Seen::Segment(segment) => {
                report.segments += 1;
                report.segments_with_digests += u64::from(segment.footer == raft_store::FooterSeen::Digests);
                bar.set_position(segment.base.get());
            }
            Seen::Record(record) => {
                report.records += u64::from(record.kind.is_some());
                report.bytes += record.stored_bytes;
                if record.kind == Some(raft_store::BodyKind::Normal) {
                    derived.entry(record.id, record.position.plus(RECORD_HEADER_BYTES), &record.payload);
                }
            }
            Seen::Finding(finding) => {
                whole &= finding.harmless;
                report.add(&finding);
            }
        }
        ControlFlow::Continue(())
    })?;
    bar.finish_and_clear();
    report.queue_entries = derived.checked_entries();
    for finding in derived.finish(whole) {
        report.add(&Finding { file: finding.file, range: None, found: finding.found, harmless: false });
    }
    Ok(report)
}

/// A finding as one line.
pub(super) fn describe(finding: &Finding) -> String {
    FindingLine::of(finding).to_text()
}

impl Report {
    fn add(&mut self, finding: &Finding) {
        let line = FindingLine::of(finding);
        if finding.harmless {
            if self.harmless.len() < FINDINGS_MAX {
                self.harmless.push(line);
            }
            return;
        }
        self.ok = false;
        self.fault_count += 1;
        if self.faults.len() < FINDINGS_MAX {
            self.faults.push(line);
        }
    }

    fn to_text(&self) -> String {
        let verdict = if self.ok { "ok".to_owned() } else { format!("{} faults", self.fault_count) };
        let mut lines = vec![format!(
            "{}: {verdict}: {} records, {} bytes, {} segments, {} of them with digests, {} queue entries",
            self.group, self.records, self.bytes, self.segments, self.segments_with_digests, self.queue_entries
        )];
        lines.extend(self.faults.iter().map(|line| format!("  fault     {}", line.to_text())));
        if self.fault_count > self.faults.len() as u64 {
            lines.push(format!("  and {} more", self.fault_count - self.faults.len() as u64));
        }
        lines.extend(self.harmless.iter().map(|line| format!("  harmless  {}", line.to_text())));
        lines.join("\n")
    }
}

impl FindingLine {
    fn of(finding: &Finding) -> Self {
        Self {
            file: finding.file.display().to_string(),
            from: finding.range.map(|(from, _)| from.get()),
            to: finding.range.map(|(_, to)| to.get()),
            found: finding.found.clone(),
        }
    }

    fn to_text(&self) -> String {
        let found = printable(&self.found);
        match (self.from, self.to) {
            (Some(from), Some(to)) => format!("{} from {from} to {to}: {found}", self.file),
            _ => format!("{}: {found}", self.file),
        }
    }
}
