//! Full and failing disks under real processes: file systems in files, filled to each mark, to the last block, and freed
//! again, or made read-only by their kernel.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, group_status, is_alive, poll};

#[path = "../../../raft-store/tests/support/image.rs"]
mod image;

use image::{Image, run};

const GROUP: &str = "broker-a";
const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Messages are refused with less free than four segments and 64 MiB, or 2 % of the disk.
const FREE_MIN: u64 = 320 * MIB;
/// So large that the marks lie in order: early at 819 MiB free, forced at 409 MiB.
const DISK: u64 = 8 << 30;
/// Writes are back so long after there is room.
const BACK_TIME_MAX: Duration = Duration::from_secs(10);

/// Waits until a node knows how full its disk is.
fn await_level(cluster: &Cluster, node: &str, level: &str) {
    poll(SOON, level, || {
        let group = group_status(cluster, node)?;
        (group["disk"]["level"] == level).then_some(())
    });
}

/// Sends one message; says why if it was refused.
fn send(cluster: &Cluster, body: &str) -> Result<(), String> {
    let output = cluster.spawn(&["send", "t", body]).wait_with_output().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

/// Checks how many messages can be read, once what was acknowledged can be.
fn assert_stored(cluster: &Cluster, expected: i64) {
    let stored = || -> i64 {
        let queues: Value = cluster.run_json(&["topic", "describe", "t"]);
        queues.as_array().unwrap().iter().map(|queue| queue["max_offset"].as_i64().unwrap()).sum()
    };
    let found = poll(SOON, "everything acknowledged can be read", || Some(stored()).filter(|found| *found >= expected));
    assert_eq!(found, expected);
}

#[test]
fn a_disk_that_fills_up_and_empties_again_costs_refusals_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = Image::mount_at("ext4", DISK, "", &dir.path().join("n1/data")) else { return };
    let mut cluster = Cluster::start_in(dir, &["--nodes", "1", "--groups", "1"]);
    let pid = cluster.pid_of("n1").unwrap();
    let rounds = if std::env::var_os("SLOW_TESTS").is_some() { 50 } else { 2 };
    let mut sent = 0;
    for round in 0..rounds {
        let mut send_one = |when: &str| {
            send(&cluster, when).unwrap_or_else(|refused| panic!("round {round}, {when}: {refused}"));
            sent += 1;
        };
        send_one("with room");
        for (level, free) in [("early", 700 * MIB), ("forced", FREE_MIN + 40 * MIB)] {
            image.leave_free(free);
            await_level(&cluster, "n1", level);
            send_one(level);
        }
        for free in [FREE_MIN - 40 * MIB, 0] {
            image.leave_free(free);
            await_level(&cluster, "n1", "full");
            assert!(send(&cluster, "refused").is_err());
            let status = group_status(&cluster, "n1").unwrap();
            assert!(status["disk"]["refusal"].as_str().unwrap().starts_with("disk"), "{status}");
            // What is there is read, and where readers stand is kept.
            let group = format!("readers-{round}-{free}");
            cluster.run(&["tail", "t", "--from", "earliest", "--count", "1", "--group", &group]);
        }
        // A little more than the mark is not enough: one segment more, and it would be full again.
        image.leave_free(FREE_MIN + 40 * MIB);
        std::thread::sleep(Duration::from_millis(1_500));
        await_level(&cluster, "n1", "full");
        assert!(send(&cluster, "refused").is_err());
        image.empty();
        let freed = Instant::now();
        poll(BACK_TIME_MAX, "writes are back", || send(&cluster, "back").ok());
        assert!(freed.elapsed() < BACK_TIME_MAX);
        sent += 1;
        // Whatever was refused was not stored.
        assert_stored(&cluster, sent);
    }
    assert!(is_alive(pid) && cluster.pid_of("n1") == Some(pid), "the process has lived through it all");

    // Without a block free a node starts, and shows what it has.
    image.leave_free(0);
    cluster.dev(&["kill", "n1"]);
    cluster.dev(&["start", "n1"]);
    cluster.leader_of(GROUP);
    assert_stored(&cluster, sent);
    assert!(send(&cluster, "refused").is_err());
    image.empty();
    poll(BACK_TIME_MAX, "writes are back", || send(&cluster, "back").ok());
    cluster.stop();
}

#[test]
fn a_full_replica_stands_by_while_others_serve_and_votes_when_one_of_them_dies() {
    let dir = tempfile::tempdir().unwrap();
    let Some(image) = Image::mount_at("ext4", DISK, "", &dir.path().join("n1/data")) else { return };
    let cluster = Cluster::start_in(dir, &["--groups", "1"]);
    let pid = cluster.pid_of("n1").unwrap();
    poll(SOON, "its preferred leader leads", || (cluster.leader_of(GROUP) == "n1").then_some(()));
    cluster.run(&["send", "t", "with room"]);
    // It drops what it can to make room, and that would be a segment more to fill each time.
    let kept = image.keep_files(&cluster.data().join("n1/data/broker-a/log"));
    // Whoever leads, it is not the one without room.
    image.leave_free(0);
    await_level(&cluster, "n1", "full");
    poll(SOON, "another node leads", || (cluster.leader_of(GROUP) != "n1").then_some(()));
    let lags = |group: &Value, node: &str| {
        let last = group["last"].as_u64()?;
        let member = group["members"].as_array()?.iter().find(|member| member["node"] == node)?.clone();
        Some(last - member["matched"].as_u64()?)
    };
    // More than its open segment and the one ahead can take: from then on it takes nothing more. On a busy machine the
    // lead may move meanwhile, and with it fewer messages are taken.
    let leader = poll(SOON, "it is left behind", || {
        let bench = ["bench", "produce", "--topic", "big", "--count", "4000", "--size", "65536", "--inflight", "8"];
        cluster.spawn(&bench).wait_with_output().unwrap();
        let leader = cluster.leader_of(GROUP);
        let behind = lags(&group_status(&cluster, &leader)?, "n1")?;
        (leader != "n1" && behind > 100).then_some(leader)
    });
    assert!(is_alive(pid) && cluster.pid_of("n1") == Some(pid));

    // Its vote is needed now.
    cluster.dev(&["kill", &leader]);
    let third = ["n2", "n3"].into_iter().find(|node| *node != leader).unwrap();
    poll(SOON, "the third node is elected", || {
        let group = group_status(&cluster, third)?;
        (group["role"] == "leader").then_some(())
    });
    // With room it catches up, and what the two have is acknowledged again.
    drop(kept);
    image.empty();
    poll(SOON, "messages are taken", || send(&cluster, "with room again").ok());
    assert!(is_alive(pid) && cluster.pid_of("n1") == Some(pid));
}

#[test]
fn a_process_ends_when_its_disk_fails_and_another_node_leads() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("n1/data");
    let Some(image) = Image::mount_at("ext4", DISK, ",errors=remount-ro", &root) else { return };
    let cluster = Cluster::start_in(dir, &["--groups", "1"]);
    let pid = cluster.pid_of("n1").unwrap();
    poll(SOON, "its preferred leader leads", || (cluster.leader_of(GROUP) == "n1").then_some(()));
    cluster.run(&["send", "t", "before"]);
    let device = run("findmnt", &["-n", "-o", "SOURCE", &image.root().display().to_string()]).unwrap();
    let trigger = format!("/sys/fs/ext4/{}/trigger_fs_error", device.trim_start_matches("/dev/"));
    if let Err(error) = std::fs::write(&trigger, "test") {
        eprintln!("skipped: {trigger}: {error}");
        return;
    }
    // Nobody sends anything: the log tries its disk by itself.
    poll(SOON, "the process ends", || (!is_alive(pid)).then_some(()));
    poll(SOON, "another node leads", || (cluster.leader_of(GROUP) != "n1").then_some(()));
    cluster.run(&["send", "t", "after"]);
    assert_stored(&cluster, 2);
    let log = std::fs::read_to_string(cluster.data().join("log/n1.log")).unwrap();
    assert!(log.contains("storage failed"), "{log}");
}
