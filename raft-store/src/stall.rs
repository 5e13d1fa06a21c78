//! Notices a disk that is slow, and one that is gone.
//!
//! A disk can stop answering without an error: the thread that asked it then hangs in the kernel, and only another one
//! can tell. So every write and sync is timed on its way through [`Timed`], one thread looks how long the oldest has
//! been under way, and another writes a byte of its own and syncs it whenever nobody else has for a while, so that an
//! idle log notices as soon as a busy one: a disk that is gone, and a file system that was made read-only.
//!
//! | A write or sync takes | What follows |
//! | --- | --- |
//! | over 1 s | a warning |
//! | over 5 s | [`Pace::Slow`]: this replica should not lead |
//! | over 20 s | the log latches: whoever hangs in the kernel must look dead to its peers |

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::options::Preparation;
use crate::region::{Files, Listed, Region};

/// The file that is written to when nothing else is.
pub(crate) const PROBE: &str = "probe";
const PROBE_BYTES: u64 = 4096;
/// A disk that was slow counts as slow for this many times the limit.
const SLOW_FOR: u32 = 6;

/// How slow a disk may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StallLimits {
    /// A write or sync that takes longer is warned of.
    pub warn: Duration,
    /// With one that takes longer the disk is slow.
    pub slow: Duration,
    /// With one that takes longer the disk is gone, and the log latches.
    pub dead: Duration,
    /// How long nothing may be written before a byte is, to see whether it can be.
    pub probe_interval: Duration,
}

impl Default for StallLimits {
    fn default() -> Self {
        Self {
            warn: Duration::from_secs(1),
            slow: Duration::from_secs(5),
            dead: Duration::from_secs(20),
            probe_interval: Duration::from_secs(1),
        }
    }
}

impl StallLimits {
    /// What cannot be, if something cannot.
    pub(crate) fn wrong(&self) -> Option<String> {
        let ordered = !self.warn.is_zero() && self.warn < self.slow && self.slow < self.dead;
        if !ordered {
            return Some(format!(
                "stall limits must rise: warn {:?}, slow {:?}, dead {:?}",
                self.warn, self.slow, self.dead
            ));
        }
        self.probe_interval.is_zero().then(|| "stall.probe_interval must not be 0".to_owned())
    }
}

/// How the disk keeps up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// It does.
    Normal,
    /// A write or sync has taken too long just now: another replica should lead.
    Slow,
}

// ---- the seam ----

/// What is under way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    state: Mutex<Calls>,
    /// Whether syncs wait, as with a disk that does not answer.
    #[cfg(feature = "faults")]
    held: (Mutex<bool>, Condvar),
    /// Whether the next sync fails.
    #[cfg(feature = "faults")]
    fails: std::sync::atomic::AtomicBool,
}

#[derive(Debug)]
struct Calls {
    /// One entry for each call that has not returned.
    calls: Vec<Option<(Instant, PathBuf)>>,
    last_sync: Instant,
}

impl UnderWay {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(Calls { calls: Vec::new(), last_sync: Instant::now() }),
            #[cfg(feature = "faults")]
            held: Default::default(),
            #[cfg(feature = "faults")]
            fails: Default::default(),
        })
    }

    fn time<T>(&self, path: &Path, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let slot = {
            let calls = &mut self.state.lock().calls;
            let slot = calls.iter().position(Option::is_none).unwrap_or_else(|| {
                calls.push(None);
                calls.len() - 1
            });
            calls[slot] = Some((Instant::now(), path.to_owned()));
            slot
        };
        let result = call();
        self.state.lock().calls[slot] = None;
        result
    }

    /// Makes syncs wait, or lets them go on.
    #[cfg(feature = "faults")]
    pub(crate) fn hold(&self, hold: bool) {
        *self.held.0.lock() = hold;
        self.held.1.notify_all();
    }

    /// Makes the next sync fail.
    #[cfg(feature = "faults")]
    pub(crate) fn fail_next(&self) {
        self.fails.store(true, std::sync::atomic::Ordering::Release);
    }

    #[cfg(feature = "faults")]
    fn check_failure(&self) -> io::Result<()> {
        const EIO: i32 = 5;
        match self.fails.swap(false, std::sync::atomic::Ordering::AcqRel) {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => Ok(()),
        }
    }

    #[cfg(feature = "faults")]
    fn wait_while_held(&self) {
        let mut held = self.held.0.lock();
        while *held {
            self.held.1.wait(&mut held);
        }
    }

    fn note_sync(&self) {
        self.state.lock().last_sync = Instant::now();
    }

    fn idle_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.state.lock().last_sync)
    }

    /// The oldest call that has not returned.
    fn oldest(&self) -> Option<(Instant, PathBuf)> {
        self.state.lock().calls.iter().flatten().min_by_key(|(since, _)| *since).cloned()
    }
}

/// A directory whose writes and syncs are timed.
#[derive(Debug)]
pub(crate) struct Timed<T: ?Sized> {
    under_way: Arc<UnderWay>,
    inner: Arc<T>,
}

impl<T: ?Sized> Timed<T> {
    pub(crate) fn new(inner: Arc<T>, under_way: Arc<UnderWay>) -> Arc<Self> {
        Arc::new(Self { under_way, inner })
    }
}

impl Files for Timed<dyn Files> {
    fn path(&self, name: &str) -> PathBuf {
        self.inner.path(name)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        self.inner.list()
    }

    // Not timed: it lawfully takes long to fill a whole file.
    fn create(&self, name: &str, bytes: u64, head: &[u8], preparation: Preparation) -> Result<Arc<dyn Region>> {
        let region = self.inner.create(name, bytes, head, preparation)?;
        Ok(Timed::new(region, Arc::clone(&self.under_way)))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Region>> {
        Ok(Timed::new(self.inner.open(name)?, Arc::clone(&self.under_way)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        self.inner.remove(names)
    }

    fn sync_names(&self) -> Result<()> {
        self.inner.sync_names()
    }

    fn write_note(&self, name: &str, contents: &[u8]) -> Result<()> {
        self.inner.write_note(name, contents)
    }

    fn read_note(&self, name: &str) -> Result<Vec<u8>> {
        self.inner.read_note(name)
    }

    fn keep_aside(&self, name: &str, contents: &[u8]) -> Result<()> {
        self.inner.keep_aside(name, contents)
    }
}

impl Region for Timed<dyn Region> {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn bytes(&self) -> u64 {
        self.inner.bytes()
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.under_way.time(self.path(), || self.inner.write(offset, bytes))
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.under_way.time(self.path(), || self.inner.zero(offset, bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.under_way.time(self.path(), || {
            #[cfg(feature = "faults")]
            {
                self.under_way.wait_while_held();
                self.under_way.check_failure()?;
            }
            self.inner.sync()
        })?;
        self.under_way.note_sync();
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, into)
    }

    fn read_from_disk(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        self.inner.read_from_disk(offset, bytes)
    }

    fn lend(&self, offset: u64, bytes: u64, stable_end: u64) -> io::Result<Option<Bytes>> {
        self.inner.lend(offset, bytes, stable_end)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        self.inner.next_data(offset)
    }

    fn seal(&self) {
        self.inner.seal();
    }

    fn warm(&self) -> io::Result<()> {
        self.inner.warm()
    }

    fn is_warm(&self) -> bool {
        self.inner.is_warm()
    }

    fn cool(&self) {
        self.inner.cool();
    }
}

// ---- the threads ----

/// Tells what a look at the oldest call means. Pure.
#[derive(Debug)]
struct Judge {
    limits: StallLimits,
    slow_until: Option<Instant>,
    warned: Option<Instant>,
    last_look: Option<Instant>,
    /// Calls are timed from here on: before, this process did not run.
    counted_from: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Fine,
    /// To be told to people, once for each call.
    Warn,
    Dead,
}

impl Judge {
    fn new(limits: StallLimits) -> Self {
        Self { limits, slow_until: None, warned: None, last_look: None, counted_from: None }
    }

    fn look(&mut self, now: Instant, oldest: Option<Instant>) -> (Pace, Verdict) {
        // Whoever looks this late was stopped, and with it whoever waits for the disk: that is not the disk's fault.
        if self.last_look.is_some_and(|last| now.saturating_duration_since(last) > self.limits.warn) {
            self.counted_from = Some(now);
        }
        self.last_look = Some(now);
        let since = oldest.map(|since| self.counted_from.map_or(since, |from| since.max(from)));
        let age = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if age >= self.limits.slow {
            self.slow_until = Some(now + SLOW_FOR * self.limits.slow);
        }
        let pace = if self.slow_until.is_some_and(|until| now < until) { Pace::Slow } else { Pace::Normal };
        let verdict = if age >= self.limits.dead {
            Verdict::Dead
        } else if age >= self.limits.warn && self.warned != oldest {
            self.warned = oldest;
            Verdict::Warn
        } else {
            Verdict::Fine
        };
        (pace, verdict)
    }
}

/// The two threads of one store. Dropping it ends them.
pub(crate) struct StallWatch {
    stop: Arc<(Mutex<bool>, Condvar)>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads work with.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) limits: StallLimits,
    pub(crate) pace: Arc<watch::Sender<Pace>>,
    /// Closes the log.
    pub(crate) fail: Arc<dyn Fn(&Error) + Send + Sync>,
    /// Whether the log is closed.
    pub(crate) is_closed: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl StallWatch {
    pub(crate) fn start(watched: Watched) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let mut this = Self { stop: Arc::clone(&stop), threads: Vec::new() };
        let (for_watch, for_probe) = (watched.clone(), watched);
        let (stop_watch, stop_probe) = (Arc::clone(&stop), stop);
        let name = |name: &str| std::thread::Builder::new().name(name.to_owned());
        this.threads.push(name("log-watch").spawn(move || watch(&for_watch, &stop_watch))?);
        this.threads.push(name("log-probe").spawn(move || probe(&for_probe, &stop_probe))?);
        Ok(this)
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Waits for `time`. Whether to go on.
fn pause(stop: &(Mutex<bool>, Condvar), time: Duration) -> bool {
    let mut stopped = stop.0.lock();
    if !*stopped {
        stop.1.wait_for(&mut stopped, time);
    }
    !*stopped
}

fn watch(watched: &Watched, stop: &(Mutex<bool>, Condvar)) {
    let mut judge = Judge::new(watched.limits);
    while pause(stop, watched.limits.warn / 4) {
        let oldest = watched.under_way.oldest();
        let (pace, verdict) = judge.look(Instant::now(), oldest.as_ref().map(|(since, _)| *since));
        watched.pace.send_if_modified(|before| std::mem::replace(before, pace) != pace);
        let Some((since, path)) = oldest else { continue };
        match verdict {
            Verdict::Fine => {}
            Verdict::Warn => tracing::warn!(file = %path.display(), since = ?since.elapsed(), "the disk is slow"),
            Verdict::Dead => {
                (watched.fail)(&Error::io("waiting for the disk of", path, io::ErrorKind::TimedOut.into()));
                return;
            }
        }
    }
}

fn probe(watched: &Watched, stop: &(Mutex<bool>, Condvar)) {
    let mut region: Option<Arc<dyn Region>> = None;
    let mut count = 0_u8;
    while pause(stop, watched.limits.probe_interval) {
        if (watched.is_closed)() {
            return;
        }
        if watched.under_way.idle_for(Instant::now()) < watched.limits.probe_interval {
            continue;
        }
        count = count.wrapping_add(1);
        let written = probe_region(watched, &mut region).and_then(|region| {
            let failed = |doing| move |e| Error::io(doing, watched.files.path(PROBE), e);
            region.write(0, &[count]).map_err(failed("writing"))?;
            region.sync().map_err(failed("syncing"))
        });
        match written {
            // A full disk is no broken one.
            Ok(()) | Err(Error::NoSpace { .. }) => {}
            Err(error) => return (watched.fail)(&error),
        }
    }
}

fn probe_region(watched: &Watched, region: &mut Option<Arc<dyn Region>>) -> Result<Arc<dyn Region>> {
    if let Some(region) = region {
        return Ok(Arc::clone(region));
    }
    let exists = watched.files.list()?.iter().any(|listed| listed.name == PROBE && listed.bytes == PROBE_BYTES);
    let opened = if exists {
        watched.files.open(PROBE)?
    } else {
        watched.files.create(PROBE, PROBE_BYTES, &[0], Preparation::Prewrite)?
    };
    *region = Some(Arc::clone(&opened));
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_slow_for_a_while_after_it_was_and_dead_when_it_hangs() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut judge = Judge::new(StallLimits::default());
        let steps = [
            // now, start of the oldest call, pace, verdict
            (0, None, Pace::Normal, Verdict::Fine),
            (2, Some(2), Pace::Normal, Verdict::Fine),
            (3, Some(2), Pace::Normal, Verdict::Warn),
            (4, Some(2), Pace::Normal, Verdict::Fine),
            (5, Some(4), Pace::Normal, Verdict::Warn),
            (9, Some(4), Pace::Slow, Verdict::Fine),
            (10, None, Pace::Slow, Verdict::Fine),
            (38, Some(38), Pace::Slow, Verdict::Fine),
            (39, Some(38), Pace::Normal, Verdict::Warn),
            (57, Some(38), Pace::Slow, Verdict::Fine),
            (58, Some(38), Pace::Slow, Verdict::Dead),
        ];
        let mut clock = start;
        for (now, oldest, pace, verdict) in steps {
            let mut last = None;
            while clock <= at(now) {
                let looked = judge.look(clock, oldest.map(at).filter(|since| *since <= clock));
                // A warning is given once, at one of the looks since the last step.
                let warned = last.is_some_and(|(_, verdict)| verdict == Verdict::Warn);
                last = Some(if warned && looked.1 == Verdict::Fine { (looked.0, Verdict::Warn) } else { looked });
                clock += Duration::from_millis(250);
            }
            assert_eq!(Some((pace, verdict)), last, "at {now} s");
        }
    }

    #[test]
    fn a_process_that_was_stopped_does_not_blame_its_disk() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut judge = Judge::new(StallLimits::default());
        assert_eq!((Pace::Normal, Verdict::Fine), judge.look(at(0), Some(at(0))));
        // Half a minute of nothing, with a sync under way.
        for millis in [30_000, 30_250, 30_500, 30_750] {
            assert_eq!((Pace::Normal, Verdict::Fine), judge.look(at(millis), Some(at(0))), "at {millis} ms");
        }
        // From then on it counts.
        let mut now = 31_000;
        while judge.look(at(now), Some(at(0))).1 != Verdict::Dead {
            now += 250;
        }
        assert_eq!(50_000, now);
    }

    #[test]
    fn the_oldest_call_counts_and_a_call_that_returned_does_not() {
        let under_way = UnderWay::new();
        let path = Path::new("file");
        under_way
            .time(path, || {
                let (outer, _) = under_way.oldest().unwrap();
                under_way.time(path, || {
                    assert_eq!(outer, under_way.oldest().unwrap().0);
                    Ok(())
                })?;
                assert_eq!(outer, under_way.oldest().unwrap().0);
                Ok(())
            })
            .unwrap();
        assert_eq!(None, under_way.oldest());
    }
}
