//! Starts that the operating system has a word in: other users, other file systems.
#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use raft_store::{Error, FlushMode};
use support::{Store, options};

const NOBODY: u32 = 65_534;

/// Not a test of its own: opens the store it is told to and prints why that is refused.
#[test]
fn child_that_opens_a_store() {
    let Some(dir) = std::env::var_os("OPEN_STORE") else { return };
    let error = Store::open(options(Path::new(&dir), FlushMode::Sync)).err().expect("refused");
    println!("refused: {error}");
}

/// The refusal that user `uid` gets.
fn refusal_as(uid: u32, dir: &Path) -> String {
    // The test itself may lie where that user cannot read.
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = place.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).unwrap();
    let mut child = Command::new(&copy);
    child.args(["child_that_opens_a_store", "--exact", "--nocapture"]).env("OPEN_STORE", dir).current_dir("/").uid(uid);
    let output = child.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().find_map(|line| line.split_once("refused: ")).map(|(_, text)| text.to_owned()).unwrap()
}

#[test]
fn a_directory_of_another_user_is_refused_with_both_users_named() {
    let dir = tempfile::tempdir().unwrap();
    let me = fs::metadata(dir.path()).unwrap().uid();
    if me != 0 {
        eprintln!("skipped: only root can start a process as another user");
        return;
    }
    let store = dir.path().join("store");
    Store::open(options(&store, FlushMode::Sync)).unwrap().close();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    for (mode, owner) in [(0o755, "it belongs to user 0"), (0o700, "its directory is closed")] {
        fs::set_permissions(&store, Permissions::from_mode(mode)).unwrap();
        let text = refusal_as(NOBODY, &store);
        assert!(text.contains("no permission for") && text.contains("lock"), "{text}");
        assert!(text.contains(owner) && text.contains("runs as user 65534"), "{text}");
    }
}

#[test]
fn a_file_system_that_reserves_nothing_is_refused_unless_it_is_allowed() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    if !mounts.lines().any(|line| line.split(' ').skip(1).take(2).eq(["/dev/shm", "tmpfs"])) {
        eprintln!("skipped: /dev/shm is no tmpfs here");
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut options = options(dir.path(), FlushMode::Sync);
    options.allow_unproven_fs = false;
    let error = Store::open(options.clone()).err().expect("refused");
    assert!(matches!(error, Error::UnprovenFileSystem { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("tmpfs") && text.contains("use ext4 or xfs"), "{text}");
    options.allow_unproven_fs = true;
    Store::open(options).unwrap().close();
}
