//! A disk for tests: it keeps what was synced apart from what was only written, and fails on demand.
//!
//! It can also remember what it held after each change, so that one run of a script gives every moment at which it could
//! have been interrupted.

mod volume;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use self::volume::{Image, PAGE, Volume};
pub(crate) use self::volume::{Sectors, WHOLE};
use super::{Files, Listed, Region};
use crate::durable::{self, Steps};
use crate::error::{Error, Result};
use crate::options::Preparation;

/// Where the disk seems to be.
const ROOT: &str = "/simulated";
/// How long a sync is held at most.
const HELD_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(20);

/// What happened to the disk, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Write(String),
    Sync(String),
    Create(String),
    Remove(String),
    /// The file is closed and unmapped; later reads open it again.
    Close(String),
}

#[derive(Debug, Default)]
struct Faults {
    /// The next sync of a file whose name starts so fails. Later ones succeed, as a kernel's do.
    sync: Option<String>,
    /// So many more syncs succeed; then one fails, and later ones succeed.
    syncs_until_failure: Option<usize>,
    write: Option<String>,
    create: bool,
    /// Files that could not be created for want of room.
    refused: Vec<String>,
    /// Creating a file fails for another reason than a full disk.
    broken_creates: bool,
    /// Syncs of files whose names start so wait until this is cleared.
    hold: Option<String>,
    held: usize,
    /// So many of them may go on all the same.
    let_through: usize,
    /// Bytes of files that cannot be read.
    unreadable: Vec<(u64, Range<usize>)>,
    /// After this many more changes the power is gone: nothing changes any more, everything fails.
    dies_after: Option<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    volume: Mutex<Volume>,
    faults: Mutex<Faults>,
    changed: Condvar,
    events: Mutex<Vec<Event>>,
    recording: Mutex<Option<Recording>>,
    /// Copies for people, by name.
    aside: Mutex<BTreeMap<String, Vec<u8>>>,
}

#[derive(Debug, Default)]
struct Recording {
    moments: Vec<Moment>,
    mark: usize,
}

/// What the disk held after one change.
#[derive(Debug, Clone)]
pub(crate) struct Moment {
    volume: Volume,
    /// File and range, if the change was a write.
    write: Option<(u64, usize, usize)>,
    /// The mark that was set then.
    pub(crate) mark: usize,
}

/// The directory.
#[derive(Debug, Default)]
pub(crate) struct SimulatedDisk {
    shared: Arc<Shared>,
}

/// An open file.
#[derive(Debug)]
struct SimulatedFile {
    name: String,
    path: PathBuf,
    number: u64,
    shared: Arc<Shared>,
}

impl Moment {
    /// How many things may survive a power cut or not.
    pub(crate) fn units(&self) -> usize {
        self.volume.units()
    }

    /// The disk if the power is cut now. `survives` is asked for each of the [`Moment::units`], in order.
    pub(crate) fn power_cut(&self, survives: impl FnMut() -> Sectors) -> Arc<SimulatedDisk> {
        SimulatedDisk::holding(self.volume.cut(survives))
    }

    /// The disk if the process is killed now.
    pub(crate) fn kill(&self) -> Arc<SimulatedDisk> {
        SimulatedDisk::holding(self.volume.clone())
    }

    /// The disk if the process is killed now, and what the operating system has yet to write never gets to the disk.
    pub(crate) fn kill_and_lose_write_back(&self) -> Arc<SimulatedDisk> {
        SimulatedDisk::holding(self.volume.lose_write_back())
    }

    /// The disk if the process was killed during the write that led here, for every page at which that could be.
    pub(crate) fn kills_on_the_way(&self, before: &Self) -> Vec<Arc<SimulatedDisk>> {
        let Some((file, start, end)) = self.write else { return Vec::new() };
        let pages = end.div_ceil(PAGE) - start / PAGE;
        (1..pages)
            .map(|pages| SimulatedDisk::holding(self.volume.interrupt(&before.volume, file, (start, end), pages)))
            .collect()
    }
}

impl SimulatedDisk {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    fn holding(volume: Volume) -> Arc<Self> {
        let shared = Shared { volume: Mutex::new(volume), ..Shared::default() };
        Arc::new(Self { shared: Arc::new(shared) })
    }

    /// From now on remembers what it holds after each change.
    pub(crate) fn record(&self) {
        *self.shared.recording.lock() = Some(Recording::default());
        self.shared.remember(&self.shared.volume.lock(), None);
    }

    /// Moments from now on carry this mark.
    pub(crate) fn set_mark(&self, mark: usize) {
        if let Some(recording) = &mut *self.shared.recording.lock() {
            recording.mark = mark;
        }
    }

    /// What was remembered.
    pub(crate) fn take_moments(&self) -> Vec<Moment> {
        self.shared.recording.lock().take().map_or_else(Vec::new, |recording| recording.moments)
    }

    /// Everything since the last call.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.shared.events.lock())
    }

    pub(crate) fn fail_next_sync(&self, name: &str) {
        self.shared.faults.lock().sync = Some(name.into());
    }

    /// Lets `syncs` more syncs succeed and then one fail, of whatever file.
    pub(crate) fn fail_sync_after(&self, syncs: usize) {
        self.shared.faults.lock().syncs_until_failure = Some(syncs);
    }

    /// Whether that has yet to happen.
    pub(crate) fn has_sync_to_fail(&self) -> bool {
        self.shared.faults.lock().syncs_until_failure.is_some()
    }

    pub(crate) fn fail_next_write(&self, name: &str) {
        self.shared.faults.lock().write = Some(name.into());
    }

    /// Lets `changes` more writes, syncs, creations and removals happen; then the power is gone.
    pub(crate) fn die_after(&self, changes: usize) {
        self.shared.faults.lock().dies_after = Some(changes);
    }

    /// Whether the power is gone.
    pub(crate) fn is_dead(&self) -> bool {
        self.shared.faults.lock().dies_after == Some(0)
    }

    pub(crate) fn fail_creates(&self, fail: bool) {
        self.shared.faults.lock().create = fail;
    }

    /// Waits until a file cannot be created for want of room. Whether that happened within a long time.
    pub(crate) fn wait_for_refused_create(&self, name: &str) -> bool {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let mut faults = self.shared.faults.lock();
        while !faults.refused.iter().any(|refused| refused == name) {
            if self.shared.changed.wait_until(&mut faults, until).timed_out() {
                return false;
            }
        }
        faults.refused.clear();
        true
    }

    /// From now on no file can be created, and not for want of room.
    pub(crate) fn break_creates(&self) {
        self.shared.faults.lock().broken_creates = true;
    }

    /// Makes syncs wait until [`SimulatedDisk::release_syncs`], or for a while.
    pub(crate) fn hold_syncs(&self, name: &str) {
        self.shared.faults.lock().hold = Some(name.into());
    }

    /// Waits until a sync waits, but not for ever: without one the test has failed.
    pub(crate) fn wait_for_held_sync(&self) {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mut faults = self.shared.faults.lock();
        while faults.held == 0 {
            assert!(!self.shared.changed.wait_until(&mut faults, until).timed_out(), "no sync waits");
        }
    }

    pub(crate) fn release_syncs(&self) {
        self.shared.faults.lock().hold = None;
        self.shared.changed.notify_all();
    }

    /// Lets one sync that waits go on, and waits until it has.
    pub(crate) fn release_one_sync(&self) {
        let mut faults = self.shared.faults.lock();
        faults.let_through += 1;
        self.shared.changed.notify_all();
        while faults.let_through > 0 {
            self.shared.changed.wait(&mut faults);
        }
    }

    /// Copies that were kept aside, by name.
    pub(crate) fn aside(&self) -> BTreeMap<String, Vec<u8>> {
        self.shared.aside.lock().clone()
    }

    /// The disk after a power cut: of what was not synced, each page and each name survives or not as
    /// `survives` says.
    pub(crate) fn power_cut(&self, mut survives: impl FnMut() -> bool) -> Arc<Self> {
        let survives = || if survives() { WHOLE } else { 0 };
        Self::holding(self.shared.volume.lock().cut(survives))
    }

    /// The same disk after the process was killed: all that was written is there, nothing waits.
    pub(crate) fn after_kill(&self) -> Arc<Self> {
        Self::holding(self.shared.volume.lock().clone())
    }

    fn change_image(&self, name: &str, change: impl FnOnce(&mut Image)) {
        let mut volume = self.shared.volume.lock();
        let file = volume.number(name).unwrap();
        change(volume.image_mut(file));
    }

    /// Changes stored bytes behind everybody's back.
    pub(crate) fn damage(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        self.change_image(name, |image| {
            change(image.live_mut());
            image.settle();
        });
    }

    /// Changes what the disk has, and not what is read through the cache.
    pub(crate) fn damage_disk(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        self.change_image(name, |image| change(image.durable_mut()));
    }

    /// Cuts a file.
    pub(crate) fn shorten(&self, name: &str, bytes: usize) {
        self.change_image(name, |image| {
            image.live_mut().truncate(bytes);
            image.durable_mut().truncate(bytes);
        });
    }

    /// Changes what is read, and no more than that.
    pub(crate) fn damage_live(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        self.change_image(name, |image| change(image.live_mut()));
    }

    /// From now on this part of a file cannot be read. Another file under its name can.
    pub(crate) fn make_unreadable(&self, name: &str, bytes: Range<usize>) {
        let file = self.shared.volume.lock().number(name).unwrap();
        self.shared.faults.lock().unreadable.push((file, bytes));
    }

    pub(crate) fn forget(&self, name: &str) {
        self.shared.volume.lock().forget(name);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.shared.volume.lock().names().cloned().collect()
    }

    pub(crate) fn contents(&self, name: &str) -> Vec<u8> {
        let volume = self.shared.volume.lock();
        volume.image(volume.number(name).unwrap()).live().to_vec()
    }

    /// Replaces a file in the way the real disk's files are replaced.
    pub(crate) fn write_file(&self, name: &str, contents: &[u8]) -> Result<()> {
        durable::put(self, &self.path(name), |path| self.fill(path, contents.len(), contents))
    }

    /// Makes a file whose contents, size and name are not yet durable.
    fn fill(&self, path: &Path, bytes: usize, head: &[u8]) -> Result<()> {
        {
            let mut faults = self.shared.faults.lock();
            if faults.create {
                faults.refused.push(name_of(&path.with_extension("")));
                self.shared.changed.notify_all();
                return Err(Error::NoSpace { file: path.to_owned() });
            }
            if faults.broken_creates {
                return Err(Error::io("creating", path, io::Error::from_raw_os_error(libc::EIO)));
            }
        }
        self.shared
            .change(|volume| {
                let mut image = Image::new(bytes);
                image.change(0, head.len(), |place| place.copy_from_slice(head));
                volume.link(&name_of(path), image);
                Ok(None)
            })
            .map_err(|e| Error::io("creating", path, e))
    }
}

/// The name of a path on the disk.
fn name_of(path: &Path) -> String {
    path.strip_prefix(ROOT).unwrap().to_str().unwrap().to_owned()
}

impl Steps for SimulatedDisk {
    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.shared.change(|volume| {
            let file = volume.number(&name_of(path)).ok_or(io::ErrorKind::NotFound)?;
            let image = volume.image_mut(file);
            image.sync(&image.dirty.clone());
            Ok(None)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let renamed = self.shared.change(|volume| {
            let renamed = volume.rename(&name_of(from), &name_of(to));
            if renamed { Ok(None) } else { Err(io::ErrorKind::NotFound.into()) }
        });
        renamed.inspect(|()| self.shared.note(Event::Create(name_of(to))))
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let unlinked = self.shared.change(|volume| {
            let unlinked = volume.unlink(&name_of(path));
            if unlinked { Ok(None) } else { Err(io::ErrorKind::NotFound.into()) }
        });
        unlinked.inspect(|()| self.shared.note(Event::Remove(name_of(path))))
    }

    fn sync_directory(&self, dir: &Path) -> io::Result<()> {
        self.shared.change(|volume| {
            volume.sync_directory(dir.strip_prefix(ROOT).unwrap());
            Ok(None)
        })
    }
}

impl Shared {
    fn check_readable(&self, file: u64, bytes: Range<usize>) -> io::Result<()> {
        let faults = self.faults.lock();
        let meets =
            |(other, gone): &(u64, Range<usize>)| *other == file && gone.start < bytes.end && bytes.start < gone.end;
        if faults.unreadable.iter().any(meets) { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
    }

    /// One more change, if there is still power.
    fn live(&self) -> io::Result<()> {
        let mut faults = self.faults.lock();
        match &mut faults.dies_after {
            None => Ok(()),
            Some(0) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// One change of what the disk holds, if there is still power. Tells file and range if it is a write.
    fn change(&self, change: impl FnOnce(&mut Volume) -> io::Result<Option<(u64, usize, usize)>>) -> io::Result<()> {
        let mut volume = self.volume.lock();
        self.live()?;
        let write = change(&mut volume)?;
        self.remember(&volume, write);
        Ok(())
    }

    fn remember(&self, volume: &Volume, write: Option<(u64, usize, usize)>) {
        if let Some(recording) = &mut *self.recording.lock() {
            let mark = recording.mark;
            recording.moments.push(Moment { volume: volume.clone(), write, mark });
        }
    }

    fn note(&self, event: Event) {
        self.events.lock().push(event);
    }
}

impl Files for SimulatedDisk {
    fn path(&self, name: &str) -> PathBuf {
        Path::new(ROOT).join(name)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        let volume = self.shared.volume.lock();
        // What lies in directories below is not the store's.
        let names = volume.names().filter(|name| !name.contains('/'));
        let listed = |name: &String| {
            let bytes = volume.number(name).map_or(0, |file| volume.image(file).live().len() as u64);
            Listed { name: name.clone(), bytes, directory: false }
        };
        Ok(names.map(listed).collect())
    }

    fn create(&self, name: &str, bytes: u64, head: &[u8], _: Preparation) -> Result<Arc<dyn Region>> {
        let size = usize::try_from(bytes).unwrap();
        durable::put(self, &self.path(name), |path| self.fill(path, size, head))?;
        self.open(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Region>> {
        let missing = || Error::io("opening", self.path(name), io::ErrorKind::NotFound.into());
        let number = self.shared.volume.lock().number(name).ok_or_else(missing)?;
        let (name, path, shared) = (name.to_owned(), self.path(name), Arc::clone(&self.shared));
        Ok(Arc::new(SimulatedFile { name, path, number, shared }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        durable::rename_by(self, &self.path(from), &self.path(to))
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.path(name)).collect();
        durable::remove_by(self, paths.iter().map(PathBuf::as_path))
    }

    fn sync_names(&self) -> Result<()> {
        self.sync_directory(Path::new(ROOT)).map_err(|e| Error::io("syncing", ROOT, e))
    }

    fn write_note(&self, name: &str, contents: &[u8]) -> Result<()> {
        self.write_file(name, contents)
    }

    fn read_note(&self, name: &str) -> Result<Vec<u8>> {
        self.open(name)?;
        Ok(self.contents(name))
    }

    fn keep_aside(&self, name: &str, contents: &[u8]) -> Result<()> {
        self.shared.aside.lock().insert(name.to_owned(), contents.to_vec());
        Ok(())
    }
}

impl Region for SimulatedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.shared.volume.lock().image(self.number).live().len() as u64
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.shared.note(Event::Write(self.name.clone()));
        let fails = self.shared.faults.lock().write.take_if(|name| self.name.starts_with(name.as_str())).is_some();
        if fails {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let start = usize::try_from(offset).unwrap();
        self.shared.change(|volume| {
            volume.image_mut(self.number).change(start, bytes.len(), |place| place.copy_from_slice(bytes));
            Ok(Some((self.number, start, start + bytes.len())))
        })
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let (start, bytes) = (usize::try_from(offset).unwrap(), usize::try_from(bytes).unwrap());
        self.shared.change(|volume| {
            volume.image_mut(self.number).change(start, bytes, |place| place.fill(0));
            Ok(None)
        })
    }

    fn sync(&self) -> io::Result<()> {
        let pages = self.shared.volume.lock().image(self.number).dirty.clone();
        {
            let mut faults = self.shared.faults.lock();
            while faults.hold.as_ref().is_some_and(|name| self.name.starts_with(name.as_str())) {
                faults.held += 1;
                self.shared.changed.notify_all();
                // A test that waits for what this holds up fails, rather than waiting for ever.
                let late = self.shared.changed.wait_for(&mut faults, HELD_TIME_MAX).timed_out();
                faults.held -= 1;
                if late {
                    break;
                }
                if faults.let_through > 0 {
                    faults.let_through -= 1;
                    self.shared.changed.notify_all();
                    break;
                }
            }
            let is_the_one = match &mut faults.syncs_until_failure {
                Some(0) => true,
                Some(left) => {
                    *left -= 1;
                    false
                }
                None => false,
            };
            if is_the_one {
                faults.syncs_until_failure = None;
            }
            if is_the_one || faults.sync.take_if(|name| self.name.starts_with(name.as_str())).is_some() {
                drop(faults);
                // The kernel marks the pages clean, and never writes them.
                self.shared.volume.lock().image_mut(self.number).dirty.clear();
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
        self.shared.change(|volume| {
            volume.image_mut(self.number).sync(&pages);
            Ok(None)
        })?;
        self.shared.note(Event::Sync(self.name.clone()));
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        self.shared.check_readable(self.number, start..start + into.len())?;
        let volume = self.shared.volume.lock();
        let live = volume.image(self.number).live();
        into.copy_from_slice(live.get(start..start + into.len()).ok_or_else(short)?);
        Ok(())
    }

    fn read_from_disk(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let start = usize::try_from(offset).unwrap();
        self.shared.check_readable(self.number, start..start + bytes)?;
        let volume = self.shared.volume.lock();
        volume.image(self.number).durable().get(start..start + bytes).map(<[u8]>::to_vec).ok_or_else(short)
    }

    fn lend(&self, _: u64, _: u64, _: u64) -> io::Result<Option<Bytes>> {
        Ok(None)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let start = usize::try_from(offset).unwrap();
        let volume = self.shared.volume.lock();
        let live = volume.image(self.number).live();
        Ok(live[start..].iter().position(|byte| *byte != 0).map(|at| offset + at as u64))
    }

    fn seal(&self) {}

    fn warm(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_warm(&self) -> bool {
        false
    }

    fn cool(&self) {
        self.shared.note(Event::Close(self.name.clone()));
    }
}

fn short() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
