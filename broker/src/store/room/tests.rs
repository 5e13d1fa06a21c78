//! Derived files on a full disk.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::state_machine::replica_tests::soon;
use crate::state_machine::testing::{Group, message};

const PAGE_BYTES: u64 = 4096;

/// A group whose next queue file takes no byte, with 11 messages of which 8 are in the first file.
async fn stuck_group() -> (Group, PathBuf) {
    let group = Group::new();
    group.put_topic("T", 1).await;
    for _ in 0..8 {
        group.send(message("T", 0, "body")).await;
    }
    group.checkpoint().await;
    let file = group.path().join(format!("consumequeue/T/0/{:020}", 160));
    symlink("/dev/full", &file).unwrap();
    for _ in 8..11 {
        group.send(message("T", 0, "body")).await;
    }
    (group, file)
}

#[tokio::test]
async fn a_queue_file_without_room_waits_for_it_and_goes_on() {
    let (mut group, file) = stuck_group().await;
    let control = group.opened().control.clone();
    let mut waits = control.waits_for_room();
    let checkpoint = tokio::spawn(async move { control.checkpoint().await });
    let text = soon("waiting", waits.wait_for(Option::is_some)).await.unwrap().clone().unwrap();
    assert!(text.contains(&file.display().to_string()), "{text}");
    // What was dispatched before can be read all the same.
    group.dispatched().await;
    assert_eq!(group.store().max_offset("T", 0), 11);
    fs::remove_file(&file).unwrap();
    group.close_queue_files("T", 0);
    soon("the checkpoint", checkpoint).await.unwrap().unwrap();
    assert_eq!(*waits.borrow_and_update(), None);
    assert_eq!(fs::metadata(&file).unwrap().len(), 60);
    // The checksums agree with the files, so nothing is built again.
    let last = group.state().applied_index();
    group.kill();
    group.start().await;
    assert_eq!(group.started_behind(), last);
}

#[tokio::test]
async fn a_stop_does_not_wait_for_room() {
    let (group, _) = stuck_group().await;
    let control = group.opened().control.clone();
    let mut waits = control.waits_for_room();
    let checkpoint = tokio::spawn({
        let control = control.clone();
        async move { control.checkpoint().await }
    });
    soon("waiting", waits.wait_for(Option::is_some)).await.unwrap();
    control.stop_waiting_for_room();
    soon("the checkpoint", checkpoint).await.unwrap().unwrap_err();
    soon("the stop", control.stop()).await.unwrap_err();
}

/// A small file system in memory.
struct Mounted(PathBuf);

impl Mounted {
    /// `None`, and why, where one may not mount.
    fn new(dir: &Path) -> Option<Self> {
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"]).arg(dir).output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(dir.to_owned())),
            Ok(output) => {
                eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("skipped: mount: {error}");
                None
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: a failed test has files open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// All queue and index files below `dir`.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for part in ["consumequeue/T/0", "index"] {
        for item in fs::read_dir(dir.join(part)).unwrap() {
            let path = item.unwrap().path();
            let name = format!("{part}/{}", path.file_name().unwrap().display());
            all.insert(name, fs::read(&path).unwrap());
        }
    }
    all
}

async fn send_with_keys(group: &Group) {
    group.put_topic("T", 1).await;
    for number in 0..200 {
        let properties = format!("KEYS\u{1}a{number} b c{}\u{2}UNIQ_KEY\u{1}u{number}\u{2}", number % 3);
        group.send(message("T", 0, "body").properties(&properties).stored_at(1_700_000_000_000 + number)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_written_whenever_a_page_gets_free_are_the_same_as_ever() {
    let mut plain = Group::new();
    send_with_keys(&plain).await;
    plain.stop().await;

    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = Mounted::new(dir.path()) else { return };
    let mut group = Group::with(|options| options.dir.clone_from(&mounted.0));
    let filler = mounted.0.join("filler");
    let mut filled = 0;
    while fs::File::options().append(true).create(true).open(&filler).is_ok_and(|mut file| {
        let page = [0; PAGE_BYTES as usize];
        std::io::Write::write_all(&mut file, &page).is_ok()
    }) {
        filled += PAGE_BYTES;
    }
    let mut waits = group.opened().control.waits_for_room();
    let group = &mut group;
    let mut rounds = 0;
    {
        let sending = send_with_keys(group);
        let freeing = async {
            // One page whenever reput waits, until there is enough for everything.
            while soon("waiting", waits.changed()).await.is_ok() && rounds < 20 {
                if waits.borrow_and_update().is_some() && filled > 0 {
                    filled -= PAGE_BYTES;
                    rounds += 1;
                    fs::File::options().write(true).open(&filler).unwrap().set_len(filled).unwrap();
                }
            }
            fs::remove_file(&filler).unwrap();
        };
        futures::join!(sending, freeing);
    }
    group.dispatched().await;
    group.stop().await;
    assert_eq!(rounds, 20);
    let (expected, found) = (files(plain.path()), files(&mounted.0));
    assert_eq!(expected.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    for (name, bytes) in expected {
        assert!(found[&name] == bytes, "{name} differs");
    }
}
