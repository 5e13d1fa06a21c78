//! Real file systems in files. Needs root and loop devices; where there are none, tests say so and end.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs::{self, File};
use std::os::unix::fs::DirEntryExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A mounted image. Unmounted and removed when dropped.
pub(crate) struct Image {
    pub(crate) kind: &'static str,
    file: PathBuf,
    root: PathBuf,
    _dir: tempfile::TempDir,
}

/// Runs a program of the system, and returns what it printed.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(args).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Image {
    /// A new file system of `bytes`, of which the disk has only what is written. `None`, with the reason printed, where
    /// this cannot be done.
    pub(crate) fn mount(kind: &'static str, bytes: u64, options: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("mnt");
        Self::new(kind, bytes, options, dir, root)
    }

    /// The same, with its root at `root`.
    pub(crate) fn mount_at(kind: &'static str, bytes: u64, options: &str, root: &Path) -> Option<Self> {
        Self::new(kind, bytes, options, tempfile::tempdir().unwrap(), root.to_owned())
    }

    fn new(kind: &'static str, bytes: u64, options: &str, dir: tempfile::TempDir, root: PathBuf) -> Option<Self> {
        let image = Self { kind, file: dir.path().join("image"), root, _dir: dir };
        let made = image.make(bytes, options);
        if let Err(reason) = made {
            eprintln!("skipped {kind}: {reason}");
            return None;
        }
        Some(image)
    }

    fn make(&self, bytes: u64, options: &str) -> Result<(), String> {
        let text = self.file.display().to_string();
        File::create(&self.file).and_then(|file| file.set_len(bytes)).map_err(|error| error.to_string())?;
        match self.kind {
            "ext4" => run("mkfs.ext4", &["-q", "-F", "-m", "0", "-J", "size=4", &text])?,
            _ => run("mkfs.xfs", &["-q", "-f", &text])?,
        };
        fs::create_dir_all(&self.root).map_err(|error| error.to_string())?;
        self.mount_again(options)
    }

    pub(crate) fn mount_again(&self, options: &str) -> Result<(), String> {
        let options = format!("loop{options}");
        run("mount", &["-t", self.kind, "-o", &options, &self.file.display().to_string(), &self.root_text()]).map(drop)
    }

    pub(crate) fn unmount(&self) -> Result<(), String> {
        run("umount", &[&self.root_text()]).map(drop)
    }

    /// The file that holds the file system.
    pub(crate) fn file(&self) -> &Path {
        &self.file
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn root_text(&self) -> String {
        self.root.display().to_string()
    }

    fn filler(&self) -> PathBuf {
        self.root.join("filler")
    }

    /// Takes blocks until about `bytes` are left, or gives some back. Takes every block if none are to be left.
    pub(crate) fn leave_free(&self, bytes: u64) {
        self.empty();
        let free = run("stat", &["-f", "-c", "%a %S", &self.root_text()]).unwrap();
        let (blocks, size) = free.split_once(' ').unwrap();
        let free: u64 = blocks.parse::<u64>().unwrap() * size.parse::<u64>().unwrap();
        let taken = free.saturating_sub(bytes);
        if taken > 0 {
            // A little less than all can be taken at once: the file needs blocks to be found by.
            let first = if bytes == 0 { taken - taken / 100 } else { taken };
            run("fallocate", &["-l", &first.to_string(), &self.filler().display().to_string()]).unwrap();
        }
        if bytes == 0 {
            take_all(&self.filler());
        }
    }

    /// Lets no file of the directory `dir` give its blocks back by being removed: each gets a second name, which it keeps
    /// until the result is dropped.
    pub(crate) fn keep_files(&self, dir: &Path) -> KeepFiles {
        let (stop, dir, names) = (Arc::new(AtomicBool::new(false)), dir.to_owned(), self.root.join("kept"));
        // With room for names, as no block may be left for them later.
        fs::create_dir_all(&names).unwrap();
        keep_all(&dir, &names);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                keep_all(&dir, &names);
                std::thread::sleep(Duration::from_millis(5));
            }
            fs::remove_dir_all(&names).unwrap();
        });
        KeepFiles { stop, thread: Some(thread) }
    }

    /// Gives back what was taken.
    pub(crate) fn empty(&self) {
        let _ = fs::remove_file(self.filler());
    }
}

/// See [`Image::keep_files`].
pub(crate) struct KeepFiles {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for KeepFiles {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Names by inode: a file that is renamed stays one.
fn keep_all(dir: &Path, names: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let _ = fs::hard_link(entry.path(), names.join(entry.ino().to_string()));
    }
}

fn take_all(filler: &Path) {
    let filler = File::options().create(true).append(true).open(filler).unwrap();
    for step in [1 << 20, 4096, 512] {
        let bytes = vec![1; step];
        while std::io::Write::write_all(&mut &filler, &bytes).is_ok() {}
    }
    let _ = filler.sync_all();
}

impl Drop for Image {
    fn drop(&mut self) {
        // Processes of a test that failed may not have ended yet.
        if self.unmount().is_err() {
            let _ = run("umount", &["-l", &self.root_text()]);
        }
    }
}
