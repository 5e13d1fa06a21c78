//! A disk for tests: it keeps what was synced apart from what was only written, and fails on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use super::{Files, Listed, Region};
use crate::error::{Error, Result};
use crate::options::Preparation;

const PAGE: usize = 4096;

/// What happened to the disk, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    Write(String),
    Sync(String),
    Create(String),
    Remove(String),
}

#[derive(Debug, Default)]
struct Faults {
    /// The next sync of a file whose name starts so fails. Later ones succeed, as a kernel's do.
    sync: Option<String>,
    write: Option<String>,
    create: bool,
    /// Files that could not be created for want of room.
    refused: Vec<String>,
    /// Creating a file fails for another reason than a full disk.
    broken_creates: bool,
    /// Syncs of files whose names start so wait until this is cleared.
    hold: Option<String>,
    held: usize,
    /// After this many more changes the power is gone: nothing changes any more, everything fails.
    dies_after: Option<usize>,
}

#[derive(Debug, Default)]
struct Shared {
    faults: Mutex<Faults>,
    changed: Condvar,
    events: Mutex<Vec<Event>>,
}

/// The directory.
#[derive(Debug, Default)]
pub(crate) struct SimulatedDisk {
    files: Mutex<BTreeMap<String, Arc<SimulatedFile>>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct SimulatedFile {
    name: String,
    path: PathBuf,
    image: Mutex<Image>,
    shared: Arc<Shared>,
}

#[derive(Debug, Clone)]
struct Image {
    live: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl SimulatedDisk {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Everything since the last call.
    pub(crate) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut self.shared.events.lock())
    }

    pub(crate) fn fail_next_sync(&self, name: &str) {
        self.shared.faults.lock().sync = Some(name.into());
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

    /// Makes syncs wait until [`SimulatedDisk::release_syncs`].
    pub(crate) fn hold_syncs(&self, name: &str) {
        self.shared.faults.lock().hold = Some(name.into());
    }

    /// Waits until a sync waits.
    pub(crate) fn wait_for_held_sync(&self) {
        let mut faults = self.shared.faults.lock();
        while faults.held == 0 {
            self.shared.changed.wait(&mut faults);
        }
    }

    pub(crate) fn release_syncs(&self) {
        self.shared.faults.lock().hold = None;
        self.shared.changed.notify_all();
    }

    /// The disk after a power cut: of what was not synced, each page survives or not as `survives`
    /// says.
    pub(crate) fn power_cut(&self, mut survives: impl FnMut() -> bool) -> Arc<Self> {
        let mut files = BTreeMap::new();
        let shared = Arc::new(Shared::default());
        for (name, file) in &*self.files.lock() {
            let mut image = file.image.lock().clone();
            for page in &image.dirty {
                if survives() {
                    let range = page * PAGE..((page + 1) * PAGE).min(image.live.len());
                    image.durable[range.clone()].copy_from_slice(&image.live[range]);
                }
            }
            let image = Image { live: image.durable.clone(), durable: image.durable, dirty: BTreeSet::new() };
            files.insert(name.clone(), Arc::new(file.with_image(image, &shared)));
        }
        Arc::new(Self { files: Mutex::new(files), shared })
    }

    /// The same disk after the process was killed: all that was written is there, nothing waits.
    pub(crate) fn after_kill(&self) -> Arc<Self> {
        let shared = Arc::new(Shared::default());
        let files = self.files.lock();
        let copy = |file: &SimulatedFile| Arc::new(file.with_image(file.image.lock().clone(), &shared));
        let files = files.iter().map(|(name, file)| (name.clone(), copy(file))).collect();
        Arc::new(Self { files: Mutex::new(files), shared })
    }

    /// Changes stored bytes behind everybody's back.
    pub(crate) fn damage(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        let files = self.files.lock();
        let mut image = files[name].image.lock();
        change(&mut image.live);
        image.durable = image.live.clone();
    }

    /// Changes what the disk has, and not what is read through the cache.
    pub(crate) fn damage_disk(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        change(&mut self.files.lock()[name].image.lock().durable);
    }

    /// Cuts a file.
    pub(crate) fn shorten(&self, name: &str, bytes: usize) {
        let files = self.files.lock();
        let mut image = files[name].image.lock();
        image.live.truncate(bytes);
        image.durable.truncate(bytes);
    }

    /// Changes what is read, and no more than that.
    pub(crate) fn damage_live(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        change(&mut self.files.lock()[name].image.lock().live);
    }

    pub(crate) fn forget(&self, name: &str) {
        self.files.lock().remove(name);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.files.lock().keys().cloned().collect()
    }

    pub(crate) fn contents(&self, name: &str) -> Vec<u8> {
        self.files.lock()[name].image.lock().live.clone()
    }
}

impl Shared {
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
}

impl SimulatedFile {
    fn with_image(&self, image: Image, shared: &Arc<Shared>) -> Self {
        Self { name: self.name.clone(), path: self.path.clone(), image: Mutex::new(image), shared: Arc::clone(shared) }
    }

    fn note(&self, event: Event) {
        self.shared.events.lock().push(event);
    }

    fn change(&self, offset: u64, bytes: usize, change: impl FnOnce(&mut [u8])) {
        let start = usize::try_from(offset).unwrap();
        let mut image = self.image.lock();
        change(&mut image.live[start..start + bytes]);
        if bytes > 0 {
            image.dirty.extend(start / PAGE..=(start + bytes - 1) / PAGE);
        }
    }
}

impl Files for SimulatedDisk {
    fn path(&self, name: &str) -> PathBuf {
        Path::new("/simulated").join(name)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        let files = self.files.lock();
        let listed = |(name, file): (&String, &Arc<SimulatedFile>)| Listed {
            name: name.clone(),
            bytes: file.bytes(),
            directory: false,
        };
        Ok(files.iter().map(listed).collect())
    }

    fn create(&self, name: &str, bytes: u64, head: &[u8], _: Preparation) -> Result<Arc<dyn Region>> {
        if self.shared.faults.lock().create {
            self.shared.faults.lock().refused.push(name.into());
            self.shared.changed.notify_all();
            return Err(Error::NoSpace { file: self.path(name) });
        }
        if self.shared.faults.lock().broken_creates {
            return Err(Error::io("creating", self.path(name), io::Error::from_raw_os_error(libc::EIO)));
        }
        self.shared.live().map_err(|e| Error::io("creating", self.path(name), e))?;
        let mut live = vec![0; usize::try_from(bytes).unwrap()];
        live[..head.len()].copy_from_slice(head);
        let image = Image { durable: live.clone(), live, dirty: BTreeSet::new() };
        let file = Arc::new(SimulatedFile {
            name: name.into(),
            path: self.path(name),
            image: Mutex::new(image),
            shared: Arc::clone(&self.shared),
        });
        file.note(Event::Create(name.into()));
        self.files.lock().insert(name.into(), Arc::clone(&file));
        Ok(file)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Region>> {
        match self.files.lock().get(name) {
            Some(file) => Ok(Arc::clone(file) as Arc<dyn Region>),
            None => Err(Error::io("opening", self.path(name), io::ErrorKind::NotFound.into())),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.shared.live().map_err(|e| Error::io("renaming", self.path(from), e))?;
        let mut files = self.files.lock();
        let missing = || Error::io("renaming", self.path(from), io::ErrorKind::NotFound.into());
        let file = files.remove(from).ok_or_else(missing)?;
        let image = file.image.lock().clone();
        let (name, path, image) = (to.to_owned(), self.path(to), Mutex::new(image));
        let renamed = SimulatedFile { name, path, image, shared: Arc::clone(&self.shared) };
        files.insert(to.to_owned(), Arc::new(renamed));
        Ok(())
    }

    fn remove(&self, names: &[String]) -> Result<()> {
        for name in names {
            self.shared.live().map_err(|e| Error::io("removing", self.path(name), e))?;
            if let Some(file) = self.files.lock().remove(name) {
                file.note(Event::Remove(name.clone()));
            }
        }
        Ok(())
    }

    fn write_note(&self, name: &str, contents: &[u8]) -> Result<()> {
        self.create(name, contents.len() as u64, contents, Preparation::Allocate).map(|_| ())
    }

    fn read_note(&self, name: &str) -> Result<Vec<u8>> {
        self.open(name)?;
        Ok(self.contents(name))
    }

    fn keep_aside(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }
}

impl Region for SimulatedFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn bytes(&self) -> u64 {
        self.image.lock().live.len() as u64
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.note(Event::Write(self.name.clone()));
        let fails = self.shared.faults.lock().write.take_if(|name| self.name.starts_with(name.as_str())).is_some();
        if fails {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.shared.live()?;
        self.change(offset, bytes.len(), |place| place.copy_from_slice(bytes));
        Ok(())
    }

    fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.shared.live()?;
        self.change(offset, usize::try_from(bytes).unwrap(), |place| place.fill(0));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let pages = self.image.lock().dirty.clone();
        {
            let mut faults = self.shared.faults.lock();
            while faults.hold.as_ref().is_some_and(|name| self.name.starts_with(name.as_str())) {
                faults.held += 1;
                self.shared.changed.notify_all();
                self.shared.changed.wait(&mut faults);
                faults.held -= 1;
            }
            if faults.sync.take_if(|name| self.name.starts_with(name.as_str())).is_some() {
                // The kernel marks the pages clean, and never writes them.
                self.image.lock().dirty.clear();
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
        }
        self.shared.live()?;
        let mut image = self.image.lock();
        for page in pages {
            let range = page * PAGE..((page + 1) * PAGE).min(image.live.len());
            let (live, durable) = {
                let image = &mut *image;
                (&image.live, &mut image.durable)
            };
            durable[range.clone()].copy_from_slice(&live[range]);
            image.dirty.remove(&page);
        }
        drop(image);
        self.note(Event::Sync(self.name.clone()));
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap();
        into.copy_from_slice(self.image.lock().live.get(start..start + into.len()).ok_or_else(short)?);
        Ok(())
    }

    fn read_from_disk(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let start = usize::try_from(offset).unwrap();
        self.image.lock().durable.get(start..start + bytes).map(<[u8]>::to_vec).ok_or_else(short)
    }

    fn lend(&self, _: u64, _: u64, _: u64) -> io::Result<Option<Bytes>> {
        Ok(None)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let start = usize::try_from(offset).unwrap();
        let image = self.image.lock();
        Ok(image.live[start..].iter().position(|byte| *byte != 0).map(|at| offset + at as u64))
    }

    fn seal(&self) {}

    fn warm(&self) -> io::Result<()> {
        Ok(())
    }

    fn is_warm(&self) -> bool {
        false
    }

    fn cool(&self) {}
}

fn short() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}
