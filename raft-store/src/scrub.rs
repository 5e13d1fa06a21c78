//! Re-reads sealed segments from the disk, long after they were written, to find damage before somebody needs the bytes.
//!
//! One thread for each log. A segment that is new gets its digests: once it is on disk and chosen, its records are
//! verified and the SHA-256 of each mebibyte goes into its footer. The bytes are the same on every replica, and so is
//! the footer. After that, pass after pass, every chunk is read past the page cache, at a bounded rate, and compared.
//!
//! The position of a pass survives a restart, so a node that is restarted often completes its passes all the same.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};

use crate::damage::{self, DamagedRange};
use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::segment::{self, Content, Digests, Segment};
use crate::segmented_log::Log;

/// Where a pass stands, in the store's directory.
pub(crate) const NOTE: &str = "scrub";
/// How often the thread looks whether there is anything to do.
const IDLE: Duration = Duration::from_secs(1);
/// New segments are read from memory, but not so fast that the writer feels it.
const DIGEST_BYTES_PER_SECOND: u64 = 128 << 20;
/// A pass must not take longer.
const PASS_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// How a log is scrubbed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubOptions {
    /// The most that is read from the disk in a second.
    pub bytes_per_second: u64,
    /// From the start of one pass to that of the next.
    pub interval: Duration,
}

/// How the scrubbing of one log goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubStatus {
    /// When the present pass began, in milliseconds since 1970. `None` between two passes.
    pub pass_started_ms: Option<u64>,
    /// When the last complete pass ended.
    pub last_pass_ms: Option<u64>,
    /// Bytes read since the start of the process.
    pub bytes: u64,
    /// Segments compared since the start of the process.
    pub segments: u64,
    /// Damaged places found since the start of the process.
    pub faults: u64,
}

#[derive(Default)]
struct Shared {
    stop: Mutex<bool>,
    wake: Condvar,
    status: Mutex<ScrubStatus>,
}

/// The running thread. Dropping it stops it.
pub(crate) struct Scrubber {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Scrubber {
    pub(crate) fn spawn(log: Arc<Log>, options: ScrubOptions) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let dir = log.options.dir.clone();
        let mut work = Work::new(log, options, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("log-scrub".into()).spawn(move || work.run());
        let thread = thread.map_err(|e| Error::io("starting a thread for", dir, e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn status(&self) -> ScrubStatus {
        *self.shared.status.lock()
    }
}

impl Drop for Scrubber {
    fn drop(&mut self) {
        *self.shared.stop.lock() = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread is to end.
struct Stopped;

pub(crate) struct Work {
    log: Arc<Log>,
    options: ScrubOptions,
    shared: Arc<Shared>,
    /// Segments whose footers have digests.
    digested: HashSet<LogPosition>,
    /// Start of the present pass, and the segment it goes on with.
    pass: Option<(u64, LogPosition)>,
    last_started_ms: u64,
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Work {
    fn new(log: Arc<Log>, options: ScrubOptions, shared: Arc<Shared>) -> Self {
        let mut work = Self { log, options, shared, digested: HashSet::new(), pass: None, last_started_ms: 0 };
        work.load();
        work
    }

    fn run(&mut self) {
        while self.round().is_ok() {
            if self.pause(IDLE).is_err() {
                return;
            }
        }
    }

    /// Does what there is to do.
    fn round(&mut self) -> std::result::Result<(), Stopped> {
        for segment in self.sealed() {
            if !self.digested.contains(&segment.base) {
                self.add_digests(&segment)?;
            }
        }
        let now = now_ms();
        if self.pass.is_none() && now.saturating_sub(self.last_started_ms) >= millis(self.options.interval) {
            self.pass = Some((now, LogPosition::ZERO));
            self.last_started_ms = now;
            self.shared.status.lock().pass_started_ms = Some(now);
        }
        let Some((started, mut next)) = self.pass else { return Ok(()) };
        self.warn_if_slow();
        while let Some(segment) = self.sealed().into_iter().find(|segment| segment.base >= next) {
            self.compare(&segment)?;
            next = self.log.layout.next_base(segment.base);
            self.pass = Some((started, next));
            self.save();
        }
        self.pass = None;
        {
            let mut status = self.shared.status.lock();
            status.pass_started_ms = None;
            status.last_pass_ms = Some(now_ms());
        }
        self.save();
        Ok(())
    }

    fn warn_if_slow(&self) {
        let bytes = self.sealed().len() as u64 * self.log.layout.segment_bytes;
        let seconds = bytes / self.options.bytes_per_second.max(1);
        if seconds > PASS_TIME_MAX.as_secs() {
            let enough = bytes.div_ceil(PASS_TIME_MAX.as_secs()).div_ceil(1 << 20);
            tracing::warn!(
                dir = %self.log.options.dir.display(),
                "scrubbing {bytes} bytes takes {} days at this rate: {enough} MiB/s would do it in 7",
                seconds / 86_400
            );
        }
    }

    /// Sealed segments that are on disk and chosen, and not known to be damaged.
    fn sealed(&self) -> Vec<Arc<Segment>> {
        let damaged: Vec<_> = self.log.damage.borrow().iter().map(|range| range.base).collect();
        let state = self.log.state();
        let settled = state.flushed_end.min(state.committed_end);
        let is_sealed = |segment: &&Arc<Segment>| {
            let content = segment.content();
            let is_closed = content.sealed && !segment.owes_footer();
            is_closed && content.end <= settled && !damaged.contains(&segment.base)
        };
        state.segments.iter().filter(is_sealed).cloned().collect()
    }

    // ---- digests ----

    fn add_digests(&mut self, segment: &Segment) -> std::result::Result<(), Stopped> {
        let layout = &self.log.layout;
        let content = segment.content().clone();
        let Some(opening) = content.opening else { return Ok(()) };
        if matches!(segment.read_footer_digests(layout, opening), Ok(Some((_, Some(_))))) {
            self.digested.insert(segment.base);
            return Ok(());
        }
        let read = |offset: u64, into: &mut [u8]| segment.region.read(offset, into);
        let damaged = self.verify(segment, &content, &read);
        self.wait_for(layout.segment_bytes, DIGEST_BYTES_PER_SECOND)?;
        if damaged {
            return Ok(());
        }
        let written = segment
            .write_footer_with_digests(layout, &read)
            .and_then(|()| segment.region.sync())
            .map_err(|e| Error::io("writing the digests of", segment.region.path(), e));
        match written {
            Ok(()) => {
                self.digested.insert(segment.base);
            }
            // It was purged meanwhile.
            Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            // The kernel tells of a failed write once, and has now.
            Err(error) => {
                self.log.latch(&error.to_string());
            }
        }
        Ok(())
    }

    /// Walks all records. What is wrong is noted.
    fn verify(&self, segment: &Segment, content: &Content, read: &crate::scan::Read<'_>) -> bool {
        let gaps = damage::gaps(segment, content, &self.log.layout, read);
        let damaged = !gaps.is_empty();
        for (from, to, found) in gaps {
            self.note(segment, from, to, found);
        }
        damaged
    }

    fn note(&self, segment: &Segment, from: LogPosition, to: LogPosition, found: String) {
        if self.is_gone(segment) {
            return;
        }
        self.shared.status.lock().faults += 1;
        let file = segment.region.path().to_owned();
        self.log.note_damage(DamagedRange { base: segment.base, file, from, to, found });
    }

    /// Whether a purge, a cut or a repair took the segment away meanwhile.
    fn is_gone(&self, segment: &Segment) -> bool {
        let state = self.log.state();
        let found = state.segments.binary_search_by_key(&segment.base, |segment| segment.base);
        let now = found.ok().and_then(|at| state.segments.get(at));
        now.is_none_or(|now| !Arc::ptr_eq(&now.region, &segment.region))
    }

    // ---- comparing ----

    fn compare(&mut self, segment: &Segment) -> std::result::Result<(), Stopped> {
        let layout = self.log.layout;
        let content = segment.content().clone();
        let Some(opening) = content.opening else { return Ok(()) };
        let from_disk = |offset: u64, into: &mut [u8]| {
            let start = offset / 4096 * 4096;
            let end = (offset + into.len() as u64).next_multiple_of(4096);
            let bytes = usize::try_from(end - start).map_err(std::io::Error::other)?;
            let found = segment.region.read_from_disk(start, bytes)?;
            let skip = usize::try_from(offset - start).map_err(std::io::Error::other)?;
            into.copy_from_slice(found.get(skip..skip + into.len()).ok_or(std::io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let footer = segment.read_footer_with(&layout, opening, &from_disk);
        let Ok(Some((_, Some(digests)))) = footer else {
            let footer_at = layout.records_end(segment.base);
            let has_digests = self.digested.contains(&segment.base);
            if has_digests && !self.verify(segment, &content, &from_disk) {
                self.note(segment, footer_at, layout.next_base(segment.base), "a footer that is damaged".into());
            }
            return Ok(());
        };
        if let Some((from, to)) = self.first_difference(segment, &digests, &from_disk)?
            && !self.verify(segment, &content, &from_disk)
        {
            // No record is touched: what is wrong lies beside them.
            self.note(segment, from, to, "a digest that does not hold".into());
        }
        self.shared.status.lock().segments += 1;
        Ok(())
    }

    fn first_difference(
        &self,
        segment: &Segment,
        digests: &Digests,
        from_disk: &crate::scan::Read<'_>,
    ) -> std::result::Result<Option<(LogPosition, LogPosition)>, Stopped> {
        for (number, expected) in (0..).zip(digests) {
            let (from, to) = segment::chunk(&self.log.layout, number);
            let found = segment::digest_of(from_disk, from, to);
            self.shared.status.lock().bytes += to - from;
            if found.as_ref().ok() != Some(expected) {
                return Ok(Some((segment.base.plus(from), segment.base.plus(to))));
            }
            self.wait_for(to - from, self.options.bytes_per_second)?;
        }
        Ok(None)
    }

    // ---- time ----

    /// Waits as long as `bytes` may take.
    fn wait_for(&self, bytes: u64, bytes_per_second: u64) -> std::result::Result<(), Stopped> {
        self.pause(Duration::from_secs_f64(bytes as f64 / bytes_per_second.max(1) as f64))
    }

    fn pause(&self, time: Duration) -> std::result::Result<(), Stopped> {
        let until = Instant::now() + time;
        let mut stop = self.shared.stop.lock();
        while !*stop && Instant::now() < until {
            let _ = self.shared.wake.wait_until(&mut stop, until);
        }
        if *stop { Err(Stopped) } else { Ok(()) }
    }

    // ---- the note ----

    fn load(&mut self) {
        let Ok(text) = self.log.files.read_note(NOTE) else { return };
        let text = String::from_utf8_lossy(&text).into_owned();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.parse::<u64>().ok())
        };
        self.last_started_ms = value("started").unwrap_or(0);
        self.pass = value("next").map(|next| (self.last_started_ms, LogPosition::new(next)));
        let mut status = self.shared.status.lock();
        status.last_pass_ms = value("completed");
        status.pass_started_ms = self.pass.map(|(started, _)| started);
    }

    fn save(&self) {
        let mut text = format!("started {}\n", self.last_started_ms);
        if let Some((_, next)) = self.pass {
            text.push_str(&format!("next {next}\n"));
        }
        if let Some(completed) = self.shared.status.lock().last_pass_ms {
            text.push_str(&format!("completed {completed}\n"));
        }
        if let Err(error) = self.log.files.write_note(NOTE, text.as_bytes()) {
            tracing::warn!(%error, "where the scrubber stands cannot be noted");
        }
    }
}
