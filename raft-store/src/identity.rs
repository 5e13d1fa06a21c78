//! The `node` file: whose directory this is, and how it was left. And the lock on it.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};
use crate::ids::ClusterId;
use crate::mapped_file;
use crate::options::{FlushMode, Options};
use crate::region::Files;
use crate::slots::{SlotFile, SlotKind};
use crate::view::StopClass;

/// The file.
pub(crate) const KIND: SlotKind = SlotKind {
    name: "node",
    magic: *b"gantNODE",
    version: 1,
    if_unreadable: "whose log this is and how it was left is unknown: replace this replica under a new id",
};

/// The lock file.
pub(crate) const LOCK: &str = "lock";

/// How long the lock of a process that has ended may still be there: what it had open is closed a little after its death.
const RELEASE_TIME: Duration = Duration::from_secs(1);
const RELEASE_POLL: Duration = Duration::from_millis(1);

const NAME_BYTES_MAX: usize = 255;

/// What the page cache's survival can be told from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Evidence {
    /// Changes with each start of the operating system.
    pub(crate) boot_id: String,
    /// Changes when the device behind the directory is replaced.
    pub(crate) disk_sequence: u64,
    /// Changes with each mount.
    pub(crate) mount_id: u64,
}

/// A Raft identity that was given up: it never votes or acknowledges again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retired {
    /// The node id.
    pub node_id: u64,
    /// The store it was bound to: the same files, but under another name now. [`LOST_STORE`] if they are lost.
    pub store_uuid: [u8; 16],
}

/// What a store is called that went with its disk: what its name was nobody knows any more.
pub const LOST_STORE: [u8; 16] = [0; 16];

/// Retired identities that are remembered: the first, which is the configured one, and the newest.
const RETIRED_MAX: usize = 64;

/// Whose directory this is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) cluster_id: ClusterId,
    /// Raised when a cluster goes on without its majority, so that old members cannot come back.
    pub(crate) generation: u64,
    /// `None` after the last identity was retired and before another one is given out.
    pub(crate) node_id: Option<u64>,
    /// Whose log this is among those of the node. Empty in a store that was never told.
    pub(crate) group: String,
    pub(crate) node_name: String,
    pub(crate) store_uuid: [u8; 16],
    pub(crate) start_counter: u64,
    pub(crate) segment_bytes: u64,
    /// Whether appends count as done once the disk has them.
    pub(crate) flush_is_sync: bool,
    pub(crate) evidence: Evidence,
    /// Whether everything was flushed when the store was closed.
    pub(crate) clean: bool,
    /// Oldest first.
    pub(crate) retired: Vec<Retired>,
}

/// The open file.
#[derive(Debug)]
pub(crate) struct NodeFile {
    file: SlotFile,
    identity: Identity,
}

impl NodeFile {
    pub(crate) fn create(files: &dyn Files, options: &Options, evidence: Evidence) -> Result<Self> {
        let lost = Retired { node_id: options.node_id, store_uuid: LOST_STORE };
        let retired = if options.rejoin { vec![lost] } else { Vec::new() };
        let identity = Identity {
            cluster_id: options.cluster_id,
            generation: 0,
            node_id: Some(options.node_id).filter(|id| !options.rejoin && *id != 0),
            group: options.group.clone(),
            node_name: options.node_name.clone(),
            store_uuid: new_uuid()?,
            start_counter: 0,
            segment_bytes: options.segment_bytes,
            flush_is_sync: options.flush == FlushMode::Sync,
            evidence,
            clean: true,
            retired,
        };
        let file = SlotFile::create(files, KIND, &encode(&identity))?;
        Ok(Self { file, identity })
    }

    pub(crate) fn open(files: &dyn Files) -> Result<Self> {
        let (file, contents) = SlotFile::open(files, KIND)?;
        let identity = decode(contents).ok_or_else(|| Error::UnreadableSlots {
            file: files.path(KIND.name),
            found: "contents of another shape".into(),
            consequence: KIND.if_unreadable,
        })?;
        Ok(Self { file, identity })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Refuses a directory that belongs to somebody else.
    pub(crate) fn check(&self, files: &dyn Files, options: &Options) -> Result<()> {
        let file = files.path(KIND.name);
        let found = &self.identity;
        if found.cluster_id != options.cluster_id {
            let (found, expected) = (found.cluster_id, options.cluster_id);
            return Err(Error::ForeignCluster { file, found, expected });
        }
        let first = found.retired.first().map(|retired| retired.node_id).or(found.node_id);
        let is_configured = options.node_id != 0;
        if is_configured && first != Some(options.node_id) && found.node_id != Some(options.node_id) {
            let found = first.unwrap_or_default();
            return Err(Error::ForeignNode { file, found, expected: options.node_id });
        }
        if !found.group.is_empty() && found.group != options.group {
            let (found, expected) = (found.group.clone(), options.group.clone());
            return Err(Error::ForeignGroup { file, found, expected });
        }
        if found.segment_bytes != options.segment_bytes {
            return Err(Error::Options(format!(
                "segment_bytes = {}, but {} was created with {}: records would lie elsewhere than on the other replicas",
                options.segment_bytes,
                file.display(),
                found.segment_bytes
            )));
        }
        Ok(())
    }

    /// How the store was left, going by what is true now.
    pub(crate) fn stop_class(&self, now: &Evidence, latched: bool) -> StopClass {
        if latched {
            StopClass::Latched
        } else if self.identity.start_counter == 0 {
            StopClass::New
        } else if self.identity.clean {
            StopClass::Clean
        } else if self.identity.evidence == *now {
            StopClass::Process
        } else {
            StopClass::Os
        }
    }

    /// Marks the store as in use by this process. Durable before anything else is written.
    pub(crate) fn mark_running(&mut self, options: &Options, now: Evidence) -> Result<()> {
        self.identity.start_counter += 1;
        self.identity.group.clone_from(&options.group);
        self.identity.node_name.clone_from(&options.node_name);
        self.identity.evidence = now;
        self.identity.clean = false;
        self.file.save(&encode(&self.identity))
    }

    /// Gives up the node id. On return no start brings it back, and the store has another name: what was said under
    /// the old one cannot be taken for what is said under the next.
    pub(crate) fn retire(&mut self) -> Result<()> {
        let Some(node_id) = self.identity.node_id else { return Ok(()) };
        let mut next = self.identity.clone();
        next.retired.push(Retired { node_id, store_uuid: next.store_uuid });
        if next.retired.len() > RETIRED_MAX {
            next.retired.remove(1);
        }
        next.node_id = None;
        next.store_uuid = new_uuid()?;
        self.replace(next)
    }

    /// Takes a node id that was given out for this store.
    ///
    /// # Panics
    /// If it has one, or had this one before.
    pub(crate) fn adopt(&mut self, node_id: u64, generation: u64) -> Result<()> {
        assert!(self.identity.node_id.is_none(), "an identity is retired before the next one is taken");
        assert!(self.identity.retired.iter().all(|retired| retired.node_id != node_id), "no identity comes back");
        let generation = generation.max(self.identity.generation);
        self.replace(Identity { node_id: Some(node_id), generation, ..self.identity.clone() })
    }

    /// Notes how appends count as done from now on.
    pub(crate) fn set_flush(&mut self, is_sync: bool) -> Result<()> {
        self.replace(Identity { flush_is_sync: is_sync, ..self.identity.clone() })
    }

    fn replace(&mut self, next: Identity) -> Result<()> {
        if next != self.identity {
            self.file.save(&encode(&next))?;
            self.identity = next;
        }
        Ok(())
    }

    /// Marks the store as closed with everything flushed.
    pub(crate) fn mark_clean(&mut self) -> Result<()> {
        self.identity.clean = true;
        self.file.save(&encode(&self.identity))
    }
}

fn encode(identity: &Identity) -> BytesMut {
    let mut out = BytesMut::with_capacity(512);
    out.put_slice(identity.cluster_id.bytes());
    out.put_u64(identity.generation);
    // 0 is nobody's.
    out.put_u64(identity.node_id.unwrap_or(0));
    out.put_slice(&identity.store_uuid);
    out.put_u64(identity.start_counter);
    out.put_u64(identity.segment_bytes);
    out.put_u8(u8::from(identity.flush_is_sync));
    out.put_u8(u8::from(identity.clean));
    out.put_u64(identity.evidence.disk_sequence);
    out.put_u64(identity.evidence.mount_id);
    put_text(&mut out, &identity.evidence.boot_id);
    put_text(&mut out, &identity.node_name);
    out.put_u16(u16::try_from(identity.retired.len()).expect("bounded by RETIRED_MAX"));
    for retired in &identity.retired {
        out.put_u64(retired.node_id);
        out.put_slice(&retired.store_uuid);
    }
    put_text(&mut out, &identity.group);
    out
}

fn decode(mut from: Bytes) -> Option<Identity> {
    let cluster_id = ClusterId::new(take_array(&mut from)?);
    let generation = from.try_get_u64().ok()?;
    let node_id = Some(from.try_get_u64().ok()?).filter(|id| *id != 0);
    let store_uuid = take_array(&mut from)?;
    let start_counter = from.try_get_u64().ok()?;
    let segment_bytes = from.try_get_u64().ok()?;
    let flush_is_sync = from.try_get_u8().ok()? != 0;
    let clean = from.try_get_u8().ok()? != 0;
    let disk_sequence = from.try_get_u64().ok()?;
    let mount_id = from.try_get_u64().ok()?;
    let boot_id = take_text(&mut from)?;
    let node_name = take_text(&mut from)?;
    let count = from.try_get_u16().ok()?;
    let mut retired = Vec::new();
    for _ in 0..count {
        retired.push(Retired { node_id: from.try_get_u64().ok()?, store_uuid: take_array(&mut from)? });
    }
    // Missing in stores of before there was one.
    let group = take_text(&mut from).unwrap_or_default();
    Some(Identity {
        cluster_id,
        generation,
        node_id,
        group,
        node_name,
        store_uuid,
        start_counter,
        segment_bytes,
        flush_is_sync,
        evidence: Evidence { boot_id, disk_sequence, mount_id },
        clean,
        retired,
    })
}

fn put_text(out: &mut BytesMut, text: &str) {
    let mut bytes = text.len().min(NAME_BYTES_MAX);
    while !text.is_char_boundary(bytes) {
        bytes -= 1;
    }
    out.put_u16(u16::try_from(bytes).expect("cut to less"));
    out.put_slice(&text.as_bytes()[..bytes]);
}

fn take_text(from: &mut Bytes) -> Option<String> {
    let bytes = usize::from(from.try_get_u16().ok()?);
    (from.remaining() >= bytes).then(|| String::from_utf8_lossy(&from.split_to(bytes)).into_owned())
}

fn take_array(from: &mut Bytes) -> Option<[u8; 16]> {
    let mut out = [0; 16];
    from.try_copy_to_slice(&mut out).ok()?;
    Some(out)
}

fn new_uuid() -> Result<[u8; 16]> {
    random_bytes().map_err(|e| Error::io("reading", "/dev/urandom", e))
}

fn random_bytes() -> io::Result<[u8; 16]> {
    let mut out = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut out)?;
    Ok(out)
}

/// Gathers what the stop class is told from.
pub(crate) fn evidence(dir: &Path) -> Result<Evidence> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|e| Error::io("reading", "/proc/sys/kernel/random/boot_id", e))?
        .trim()
        .to_owned();
    let handle = File::open(dir).map_err(|e| Error::io("opening", dir, e))?;
    let device = handle.metadata().map_err(|e| Error::io("looking at", dir, e))?.dev();
    let disk_sequence = disk_sequence(device).unwrap_or(0);
    Ok(Evidence { boot_id, disk_sequence, mount_id: mapped_file::mount_id(&handle).unwrap_or(0) })
}

/// A number that each attached disk gets once. A partition has its disk's.
fn disk_sequence(device: u64) -> Option<u64> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let block = format!("/sys/dev/block/{major}:{minor}");
    ["diskseq", "../diskseq"]
        .iter()
        .find_map(|file| fs::read_to_string(Path::new(&block).join(file)).ok())
        .and_then(|text| text.trim().parse().ok())
}

/// The directory is this process's own for as long as it lives.
///
/// It is unlocked by word, not by closing the file: a child that another thread has just forked holds the file too,
/// until it becomes another program.
#[derive(Debug)]
pub(crate) struct DirLock(File);

impl Drop for DirLock {
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "the lock of a store is let go late");
        }
    }
}

/// Takes the directory for this process.
pub(crate) fn lock(dir: &Path) -> Result<DirLock> {
    let path = dir.join(LOCK);
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(|e| Error::io("opening", &path, e))?;
    take(file, dir)
}

/// The same without changing anything in the directory: a store that was never started has no lock to take.
pub(crate) fn lock_unchanged(dir: &Path) -> Result<Option<DirLock>> {
    let path = dir.join(LOCK);
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("opening", &path, error)),
    };
    take(file, dir).map(Some)
}

fn take(file: File, dir: &Path) -> Result<DirLock> {
    let asked = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(DirLock(file)),
            Err(TryLockError::WouldBlock) if asked.elapsed() < RELEASE_TIME => std::thread::sleep(RELEASE_POLL),
            Err(TryLockError::WouldBlock) => return Err(Error::Locked { dir: dir.to_owned() }),
            Err(TryLockError::Error(e)) => return Err(Error::io("locking", dir.join(LOCK), e)),
        }
    }
}

/// Refuses file systems on which an allocated block may still be missing when it is written.
pub(crate) fn check_file_system(dir: &Path) -> Result<()> {
    let handle = File::open(dir).map_err(|e| Error::io("opening", dir, e))?;
    let magic = mapped_file::file_system_magic(&handle).map_err(|e| Error::io("looking at", dir, e))?;
    let found = match magic {
        0xef53 | 0x5846_5342 => return Ok(()),
        0x0102_1994 => "tmpfs".to_owned(),
        0x9123_683e => "btrfs".to_owned(),
        0x2fc1_2fc1 => "zfs".to_owned(),
        0x6969 => "nfs".to_owned(),
        0x794c_7630 => "overlayfs".to_owned(),
        0x6573_5546 => "fuse".to_owned(),
        other => format!("a file system of type {other:#x}"),
    };
    Err(Error::UnprovenFileSystem { dir: dir.to_owned(), found })
}
