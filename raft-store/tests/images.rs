//! Real file systems in images: full to the last block, and made read-only by their kernel. Needs root and loop devices.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/image.rs"]
mod image;
mod support;

use std::fs;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use image::{Image, run};
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use raft_store::{FlushMode, Health, Options, StopClass};
use support::{Config, Store, entry};

const SEGMENT_BYTES: u64 = 4 << 20;
const IMAGE_BYTES: u64 = 64 << 20;

/// What the store of an image is opened with.
fn store_in(image: &Image) -> Options {
    let mut options = support::options(&image.root().join("store"), FlushMode::Sync);
    options.segment_bytes = SEGMENT_BYTES;
    // The file system is what the store asks for.
    options.allow_unproven_fs = false;
    options
}

/// 64 KiB entries until one has to wait for room; what waits is dropped. Returns the next index.
fn append_until_full(store: &mut Store, mut index: u64) -> u64 {
    loop {
        let waits = store.with_storage(async |storage| {
            let (sender, receiver) = Config::oneshot();
            let append = storage.append(vec![entry(1, index, vec![7; 64 << 10])], IOFlushed::signal(sender));
            let mut append = pin!(append);
            match tokio::time::timeout(Duration::from_millis(300), &mut append).await {
                Ok(result) => {
                    result.unwrap();
                    receiver.await.unwrap().unwrap();
                    false
                }
                Err(_) => true,
            }
        });
        if waits {
            return index;
        }
        index += 1;
    }
}

fn check(store: &mut Store, entries: u64) {
    let found = store.entries(0, u64::MAX).unwrap();
    assert_eq!(entries, found.len() as u64);
    for (index, found) in found.iter().enumerate() {
        assert_eq!(entry(1, index as u64, vec![7; 64 << 10]).body, found.body);
    }
}

#[test]
fn a_disk_without_a_free_block_holds_appends_and_starts_and_costs_nothing() {
    let rounds = if std::env::var_os("SLOW_TESTS").is_some() { 50 } else { 3 };
    for kind in ["ext4", "xfs"] {
        // xfs has a smallest size.
        let bytes = if kind == "xfs" { 320 << 20 } else { IMAGE_BYTES };
        let Some(image) = Image::mount(kind, bytes, "") else { continue };
        let mut store = Store::open(store_in(&image)).unwrap();
        store.vote(1).unwrap();
        let mut next = 0;
        for round in 0..rounds {
            image.leave_free(0);
            next = append_until_full(&mut store, next);
            assert_eq!(Health::Good, *store.view.health().borrow(), "{kind}, round {round}");
            assert!(*store.view.is_short_of_room().borrow());
            store.vote(round + 2).unwrap();
            // With not a block free: a kill, a start, everything there, and a stop in order.
            store.kill();
            let mut killed = Store::open(store_in(&image)).unwrap();
            assert_eq!(StopClass::Process, killed.recovered.stop);
            check(&mut killed, next);
            killed.close();
            store = Store::open(store_in(&image)).unwrap();
            assert_eq!(StopClass::Clean, store.recovered.stop);
            check(&mut store, next);
            image.empty();
            store.append(vec![entry(1, next, vec![7; 64 << 10])]).unwrap();
            next += 1;
            check(&mut store, next);
            if next > 600 {
                // Make room for more rounds, as retention does.
                store.kill();
                fs::remove_dir_all(image.root().join("store")).unwrap();
                store = Store::open(store_in(&image)).unwrap();
                next = 0;
            }
        }
    }
}

#[test]
fn a_file_system_that_becomes_read_only_is_noticed_by_an_idle_log_and_told_to_the_next_start() {
    let Some(image) = Image::mount("ext4", IMAGE_BYTES, ",errors=remount-ro") else { return };
    let memory = tempfile::tempdir().unwrap();
    let mut options = store_in(&image);
    options.runtime_dir = Some(memory.path().to_owned());
    options.stall.probe_interval = Duration::from_millis(100);
    let mut store = Store::open(options.clone()).unwrap();
    store.vote(1).unwrap();
    for index in 0..10 {
        store.append(vec![entry(1, index, vec![7; 64 << 10])]).unwrap();
    }
    store.close();
    // A start leaves nothing that is still to be written.
    let mut store = Store::open(options.clone()).unwrap();
    let device = run("findmnt", &["-n", "-o", "SOURCE", &image.root().display().to_string()]).unwrap();
    let name = Path::new(&device).file_name().unwrap().to_str().unwrap();
    let trigger = format!("/sys/fs/ext4/{name}/trigger_fs_error");
    if let Err(error) = fs::write(&trigger, "test") {
        eprintln!("skipped: {trigger}: {error}");
        return;
    }
    let mut health = store.view.health();
    let noticed = store.block_on(async {
        tokio::time::timeout(Duration::from_secs(5), health.wait_for(|health| *health != Health::Good)).await.is_ok()
    });
    assert!(noticed, "nothing was written, and nobody noticed");
    store.append(vec![entry(1, 10, "more")]).unwrap_err();
    store.kill();
    assert_eq!(1, fs::read_dir(memory.path()).unwrap().count(), "only memory took the note");

    image.unmount().unwrap();
    run("fsck.ext4", &["-y", &image.file().display().to_string()]).ok();
    image.mount_again("").unwrap();
    let mut store = Store::open(options).unwrap();
    assert_eq!(StopClass::Latched, store.recovered.stop);
    check(&mut store, 10);
    assert_eq!(0, fs::read_dir(memory.path()).unwrap().count());
    store.append(vec![entry(1, 10, "more")]).unwrap();
}
