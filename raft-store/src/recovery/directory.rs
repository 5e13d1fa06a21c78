//! What lies in the directory: the small files, the names, the segments. Read, and refused if it is not ours.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::hard_state::{self, HardState};
use crate::identity::{self, Evidence, LOCK, NodeFile};
use crate::ids::LogPosition;
use crate::latch_note;
use crate::options::{Layout, Options};
use crate::progress::{self, Hints, Progress, Purged, PurgedFile};
use crate::region::{Files, Listed};
use crate::segment::{self, Segment};
use crate::sigbus;
use crate::stall::PROBE;
use crate::view::Vote;

/// The small files, opened or created.
pub(super) struct Small {
    pub(super) node: NodeFile,
    pub(super) hard_state: HardState,
    pub(super) vote: Option<Vote>,
    pub(super) purged_file: PurgedFile,
    pub(super) purged: Option<Purged>,
    /// `None` if it cannot be read: then nothing is known to be flushed.
    pub(super) progress: Option<Progress>,
}

pub(super) fn open_small(files: &dyn Files, options: &Options, listed: &[Listed], now: &Evidence) -> Result<Small> {
    let has = |name: &str| listed.iter().any(|listed| listed.name == name);
    let any_segment = listed.iter().any(|listed| segment::parse_file_name(&listed.name).is_some());
    if !has(identity::KIND.name) {
        if any_segment {
            return Err(Error::UnreadableSlots {
                file: files.path(identity::KIND.name),
                found: "the file is missing, segments are not".into(),
                consequence: identity::KIND.if_unreadable,
            });
        }
        if !options.may_begin() {
            return Err(Error::NoStore { dir: options.dir.clone() });
        }
        // The node file comes last: where it is, everything else is.
        let hard_state = HardState::create(files)?;
        let progress = Progress::create(files, Hints { flushed_end: start_of_log(), ..Hints::default() })?;
        let purged_file = PurgedFile::create(files)?;
        let node = NodeFile::create(files, options, now.clone())?;
        return Ok(Small { node, hard_state, vote: None, purged_file, purged: None, progress: Some(progress) });
    }
    let node = NodeFile::open(files)?;
    node.check(files, options)?;
    for kind in [hard_state::KIND, progress::PURGED] {
        if !has(kind.name) {
            let (file, found) = (files.path(kind.name), "the file is missing".into());
            return Err(Error::UnreadableSlots { file, found, consequence: kind.if_unreadable });
        }
    }
    let (hard_state, vote) = HardState::open(files)?;
    let (purged_file, purged) = PurgedFile::open(files)?;
    let progress = match Progress::open(files) {
        Ok(progress) => Some(progress),
        Err(Error::UnreadableSlots { .. }) => None,
        Err(_) if !has(progress::PROGRESS.name) => None,
        Err(error) => return Err(error),
    };
    Ok(Small { node, hard_state, vote, purged_file, purged, progress })
}

/// Where the first record of a new log goes.
pub(super) fn start_of_log() -> LogPosition {
    LogPosition::new(segment::HEADER_BYTES)
}

/// Refuses a directory that holds what no store writes.
pub(super) fn check_names(files: &dyn Files, listed: &[Listed]) -> Result<()> {
    let known = [
        LOCK,
        latch_note::NAME,
        PROBE,
        sigbus::NOTES,
        identity::KIND.name,
        hard_state::KIND.name,
        progress::PROGRESS.name,
    ];
    for file in listed.iter().filter(|listed| !listed.directory) {
        let name = file.name.as_str();
        let ours = known.contains(&name)
            || name == progress::PURGED.name
            || name == crate::scrub::NOTE
            || segment::parse_file_name(name).is_some()
            || name.ends_with(&format!(".{}", crate::durable::TEMPORARY));
        if !ours {
            return Err(Error::ForeignFile { file: files.path(name) });
        }
    }
    Ok(())
}

/// Opens the segments that belong to the log, in order. Those that a purge left over are returned by
/// name instead.
pub(super) fn open_segments(
    files: &dyn Files,
    layout: &Layout,
    listed: &[Listed],
    start: LogPosition,
    reset: bool,
) -> Result<(Vec<Arc<Segment>>, Vec<String>)> {
    let mut segments: Vec<Arc<Segment>> = Vec::new();
    let mut left_over = Vec::new();
    let first_base = layout.segment_base(start);
    for file in listed.iter().filter(|listed| !listed.directory) {
        let Some(base) = segment::parse_file_name(&file.name) else { continue };
        if reset || base < first_base {
            left_over.push(file.name.clone());
            continue;
        }
        if file.bytes != layout.segment_bytes {
            let (file, found) = (files.path(&file.name), file.bytes);
            return Err(Error::WrongSize { file, found, expected: layout.segment_bytes });
        }
        let expected = segments.last().map_or(first_base, |last| layout.next_base(last.base));
        if base != expected {
            return Err(Error::Gap { dir: files.path(""), expected, found: base });
        }
        let segment = Segment::empty(layout, base, files.open(&file.name)?);
        segment.check_head(layout)?;
        segments.push(Arc::new(segment));
    }
    Ok((segments, left_over))
}
