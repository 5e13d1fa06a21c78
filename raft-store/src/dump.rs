//! Readable text of a store directory. Reads only; for people and for tests.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::hard_state::HardState;
use crate::identity::NodeFile;
use crate::ids::LogPosition;
use crate::options::Layout;
use crate::progress::{Progress, PurgedFile};
use crate::record::{self, Header, HeaderBytes, Kind};
use crate::region::{Directory, Files};
use crate::segment::{self, OpeningFound, Segment};

/// Writes what is in the store at `dir`: the small files, and one line for each record.
///
/// Meant for a store that nobody has open. What cannot be read is named in the text, and the rest goes
/// on.
///
/// # Errors
/// If `dir` holds no store, or `out` takes no more.
pub fn dump(dir: &Path, out: &mut dyn Write) -> Result<()> {
    let files = Directory::new(dir.to_owned());
    let node = NodeFile::open(&files)?;
    let identity = node.identity();
    let layout = Layout { segment_bytes: identity.segment_bytes, cluster_id: identity.cluster_id };
    let mut lines = vec![
        format!("cluster {} generation {}", identity.cluster_id, identity.generation),
        format!("node {} {:?} started {} times", identity.node_id, identity.node_name, identity.start_counter),
        format!("left {}", if identity.clean { "clean" } else { "running" }),
        format!("flush {}", if identity.flush_is_sync { "sync" } else { "async" }),
        describe("vote", HardState::open(&files).map(|(_, vote)| vote)),
        describe("progress", Progress::open(&files).map(|progress| progress.hints())),
        describe("purged", PurgedFile::open(&files).map(|(_, purged)| purged)),
    ];
    write_lines(dir, out, &mut lines)?;
    for listed in files.list()? {
        let Some(base) = segment::parse_file_name(&listed.name) else { continue };
        let segment = Segment::empty(&layout, base, files.open(&listed.name)?);
        lines.push(format!("segment {}", listed.name));
        if let Err(error) = segment.check_head(&layout) {
            lines.push(format!("  {error}"));
        }
        match segment.read_opening(&layout)? {
            OpeningFound::None => lines.push("  no records".into()),
            OpeningFound::Damaged => lines.push("  the opening is damaged".into()),
            OpeningFound::Opening(opening) => {
                lines.push(format!("  {opening:?}"));
                let start = base.plus(u64::from(opening.first_offset));
                dump_records(&Arc::new(segment), start, &layout, &mut |line| {
                    lines.push(line);
                    if lines.len() >= 1000 { write_lines(dir, out, &mut lines) } else { Ok(()) }
                })?;
            }
        }
        write_lines(dir, out, &mut lines)?;
    }
    Ok(())
}

fn describe(name: &str, contents: Result<impl std::fmt::Debug>) -> String {
    match contents {
        Ok(contents) => format!("{name} {contents:?}"),
        Err(error) => format!("{name} {error}"),
    }
}

fn write_lines(dir: &Path, out: &mut dyn Write, lines: &mut Vec<String>) -> Result<()> {
    for line in lines.drain(..) {
        writeln!(out, "{line}").map_err(|e| Error::io("writing the text of", dir, e))?;
    }
    Ok(())
}

fn dump_records(
    segment: &Segment,
    start: LogPosition,
    layout: &Layout,
    line: &mut dyn FnMut(String) -> Result<()>,
) -> Result<()> {
    let reading = |e| Error::io("reading", segment.region.path(), e);
    let records_end = layout.records_end(segment.base);
    let mut position = start;
    while position.plus(record::HEADER_BYTES) <= records_end {
        let mut bytes: HeaderBytes = [0; 64];
        segment.region.read(segment.offset(position), &mut bytes).map_err(reading)?;
        let header = match Header::decode(segment.seed, position, &bytes) {
            Ok(header) if header.end() <= records_end => header,
            Ok(_) => return line(format!("  {position} a record longer than its segment")),
            Err(fault) => return line(format!("  {position} {fault}")),
        };
        let mut payload = vec![0; header.payload_bytes as usize];
        segment.region.read(segment.offset(position) + record::HEADER_BYTES, &mut payload).map_err(reading)?;
        let kind = match header.kind {
            Kind::Body(kind) => format!("{kind:?}").to_lowercase(),
            Kind::Pad => "pad".into(),
        };
        let verdict = if header.verifies(segment.seed, &payload) { "" } else { " DAMAGED" };
        line(format!("  {position} entry {} {kind} {} bytes{verdict}", header.id, header.payload_bytes))?;
        if header.kind == Kind::Pad {
            return Ok(());
        }
        position = header.end();
    }
    Ok(())
}
