//! What is done at the log's end once it is judged: kept aside, written again, closed, and the commit mark clamped.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ids::{LogId, LogPosition};
use crate::options::Layout;
use crate::progress::Purged;
use crate::region::Files;
use crate::segment::Segment;

/// How much of what is cut is kept aside.
const ASIDE_BYTES_MAX: u64 = 64 << 20;

pub(super) fn keep_aside(files: &dyn Files, open: &Segment, end: LogPosition, report: &mut Vec<String>, found: &str) {
    let offset = open.offset(end);
    let bytes = (open.region.bytes() - offset).min(ASIDE_BYTES_MAX);
    let mut copy = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let kept = open.region.read(offset, &mut copy).is_ok();
    let used = copy.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    copy.truncate(used);
    let name = format!("{end:020}-cut");
    let outcome = if kept && files.keep_aside(&name, &copy).is_ok() { "kept in quarantine" } else { "not kept" };
    report.push(format!("{}: cut at {end} ({found}), {used} bytes, {outcome}", open.region.path().display()));
}

/// Writes what is not proven durable once more, and syncs it.
pub(super) fn rewrite_tail(segments: &[Arc<Segment>], proven: LogPosition, end: LogPosition) -> Result<()> {
    const BLOCK_BYTES: u64 = 1 << 20;
    for segment in segments {
        let (first, last) = {
            let content = segment.content();
            let first = content.opening.map(|opening| segment.base.plus(u64::from(opening.first_offset)));
            (first, content.end.min(end))
        };
        let Some(first) = first else { continue };
        let mut position = first.max(proven);
        // A sync of any record brought the head along; without one it may be as little on disk as they are.
        let head_is_proven = proven > first;
        if position >= last && head_is_proven {
            continue;
        }
        let path = segment.region.path();
        while position < last {
            let bytes = BLOCK_BYTES.min(last.since(position));
            let mut block = vec![0; usize::try_from(bytes).expect("a block fits memory")];
            let offset = segment.offset(position);
            segment.region.read(offset, &mut block).map_err(|e| segment.read_failed(offset, e))?;
            segment.region.write(offset, &block).map_err(|e| Error::io("writing", path, e))?;
            position = position.plus(bytes);
        }
        let mut head = vec![0; 1024];
        segment.region.read(0, &mut head).map_err(|e| segment.read_failed(0, e))?;
        segment.region.write(0, &head).map_err(|e| Error::io("writing", path, e))?;
        segment.region.sync().map_err(|e| Error::io("syncing", path, e))?;
    }
    Ok(())
}

/// A crash between closing a segment and writing its footer leaves none.
pub(super) fn complete_footers(segments: &[Arc<Segment>], layout: &Layout) -> Result<()> {
    for segment in segments {
        let (closed, opening) = {
            let content = segment.content();
            (content.sealed, content.opening)
        };
        let Some(opening) = opening.filter(|_| closed) else { continue };
        if segment.read_footer(layout, opening)?.is_none() {
            let path = segment.region.path();
            segment.write_footer(layout).map_err(|e| Error::io("writing", path, e))?;
            segment.region.sync().map_err(|e| Error::io("syncing", path, e))?;
        }
    }
    Ok(())
}

/// What is chosen may lawfully be ahead of this log after a crash; what is reported never is.
pub(super) fn clamp_committed(
    segments: &[Arc<Segment>],
    hint: Option<LogId>,
    last: Option<LogId>,
    purged: Option<Purged>,
    end: LogPosition,
) -> Result<(Option<LogId>, LogPosition)> {
    let floor = purged.map(|purged| purged.id);
    let floor_end = purged.map_or(LogPosition::ZERO, |purged| purged.resume.position);
    let Some(hint) = hint.filter(|hint| floor.is_none_or(|floor| hint.index > floor.index)) else {
        return Ok((floor, floor_end));
    };
    match last {
        None => Ok((floor, floor_end)),
        Some(last) if last.index <= hint.index => Ok((Some(last), committed_end_of(segments, last, end)?)),
        Some(_) => {
            let end = committed_end_of(segments, hint, end)?;
            Ok((Some(hint), end))
        }
    }
}

fn committed_end_of(segments: &[Arc<Segment>], id: LogId, end: LogPosition) -> Result<LogPosition> {
    let holder = segments.iter().rfind(|segment| segment.first_index().is_some_and(|first| first <= id.index));
    match holder {
        Some(segment) => Ok(segment.find(id.index, LogPosition::ZERO)?.end()),
        None => Ok(end),
    }
}
