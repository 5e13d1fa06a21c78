//! What a simulated disk holds: what its users see, and what is left of that after a power cut.
//!
//! Two things wait for a sync: pages of files, and changes to names. Until then each of them reaches the disk or does
//! not, in any combination. A page may also get there in part, since a disk writes sectors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

pub(super) const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// Which sectors of a page are there after a power cut, one bit each. For everything else: 0 or not.
pub(crate) type Sectors = u8;

/// Everything survives.
pub(crate) const WHOLE: Sectors = 0xff;

/// The contents of a file. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    live: Arc<Vec<u8>>,
    durable: Arc<Vec<u8>>,
    /// Pages that were written and not synced.
    pub(super) dirty: BTreeSet<usize>,
    /// Whether the disk knows the file's size. Until then the file may turn out empty.
    sized: bool,
}

impl Image {
    pub(super) fn new(bytes: usize) -> Self {
        let zeros = Arc::new(vec![0; bytes]);
        Self { live: Arc::clone(&zeros), durable: zeros, ..Self::default() }
    }

    pub(super) fn live(&self) -> &[u8] {
        &self.live
    }

    pub(super) fn live_mut(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(&mut self.live)
    }

    pub(super) fn durable(&self) -> &[u8] {
        &self.durable
    }

    pub(super) fn durable_mut(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(&mut self.durable)
    }

    /// Changes the contents as a write does.
    pub(super) fn change(&mut self, start: usize, bytes: usize, change: impl FnOnce(&mut [u8])) {
        change(&mut self.live_mut()[start..start + bytes]);
        if bytes > 0 {
            self.dirty.extend(start / PAGE..=(start + bytes - 1) / PAGE);
        }
    }

    /// Brings pages to the disk.
    pub(super) fn sync(&mut self, pages: &BTreeSet<usize>) {
        self.sized = true;
        for page in pages.iter().filter(|page| self.dirty.remove(page)) {
            let range = page * PAGE..((page + 1) * PAGE).min(self.live.len());
            Arc::make_mut(&mut self.durable)[range.clone()].copy_from_slice(&self.live[range]);
        }
    }

    /// Makes the disk hold what is seen.
    pub(super) fn settle(&mut self) {
        self.durable = Arc::clone(&self.live);
    }

    fn cut(&self, survives: &mut impl FnMut() -> Sectors) -> Self {
        let has_size = self.sized || survives() != 0;
        let mut left = Arc::clone(&self.durable);
        for page in &self.dirty {
            let sectors = survives();
            for sector in (0..PAGE / SECTOR).filter(|sector| sectors >> sector & 1 == 1) {
                let start = page * PAGE + sector * SECTOR;
                let range = start.min(left.len())..(start + SECTOR).min(left.len());
                Arc::make_mut(&mut left)[range.clone()].copy_from_slice(&self.live[range]);
            }
        }
        if !has_size {
            return Self { sized: true, ..Self::default() };
        }
        Self { live: Arc::clone(&left), durable: left, dirty: BTreeSet::new(), sized: true }
    }

    fn units(&self) -> usize {
        usize::from(!self.sized) + self.dirty.len()
    }
}

/// A change to a name that its directory has not been synced for.
#[derive(Debug, Clone)]
enum NameChange {
    Link(String, u64),
    Rename { from: String, to: String, file: u64 },
    Unlink(String),
}

impl NameChange {
    fn name(&self) -> &str {
        match self {
            Self::Link(name, _) | Self::Rename { from: name, .. } | Self::Unlink(name) => name,
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Link(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Rename { from, to, file } => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
            Self::Unlink(name) => {
                names.remove(name);
            }
        }
    }
}

/// Files and their names. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Volume {
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    waiting: Vec<NameChange>,
    files: BTreeMap<u64, Image>,
    next: u64,
}

impl Volume {
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.names.keys()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    pub(super) fn image(&self, file: u64) -> &Image {
        &self.files[&file]
    }

    pub(super) fn image_mut(&mut self, file: u64) -> &mut Image {
        self.files.get_mut(&file).expect("files stay as long as the volume")
    }

    pub(super) fn link(&mut self, name: &str, image: Image) {
        let file = self.next;
        self.next += 1;
        self.files.insert(file, image);
        self.change(NameChange::Link(name.to_owned(), file));
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(file) = self.number(from) else { return false };
        self.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned(), file });
        true
    }

    pub(super) fn unlink(&mut self, name: &str) -> bool {
        let known = self.names.contains_key(name);
        if known {
            self.change(NameChange::Unlink(name.to_owned()));
        }
        known
    }

    /// Takes a file away for ever.
    pub(super) fn forget(&mut self, name: &str) {
        self.names.remove(name);
        self.durable_names.remove(name);
    }

    fn change(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.waiting.push(change);
    }

    /// Brings the names in `dir` to the disk, a path below the disk's own.
    pub(super) fn sync_directory(&mut self, dir: &Path) {
        let durable_names = &mut self.durable_names;
        self.waiting.retain(|change| {
            let elsewhere = Path::new(change.name()).parent() != Some(dir);
            if !elsewhere {
                change.apply(durable_names);
            }
            elsewhere
        });
    }

    /// How many things may survive a power cut or not.
    pub(super) fn units(&self) -> usize {
        self.waiting.len() + self.files.values().map(Image::units).sum::<usize>()
    }

    /// What is left after a power cut: `survives` is asked for each of the [`Volume::units`], in order.
    pub(super) fn cut(&self, mut survives: impl FnMut() -> Sectors) -> Self {
        let mut names = self.durable_names.clone();
        for change in &self.waiting {
            if survives() != 0 {
                change.apply(&mut names);
            }
        }
        let files = self.files.iter().map(|(file, image)| (*file, image.cut(&mut survives))).collect();
        Self { durable_names: names.clone(), names, waiting: Vec::new(), files, next: self.next }
    }

    /// What is left if the operating system failed to bring pages to the disk, and told nobody: they are still seen.
    pub(super) fn lose_write_back(&self) -> Self {
        let mut lost = self.clone();
        lost.files.values_mut().for_each(|image| image.dirty.clear());
        lost
    }

    /// What is left if a write was interrupted: only its first `pages` pages were changed since `before`.
    pub(super) fn interrupt(&self, before: &Self, file: u64, range: (usize, usize), pages: usize) -> Self {
        let mut left = before.clone();
        let end = range.1.min((range.0 / PAGE + pages) * PAGE);
        let image = self.image(file);
        left.image_mut(file).change(range.0, end - range.0, |place| place.copy_from_slice(&image.live[range.0..end]));
        left
    }
}
