//! A disk that fills up or hardly writes: what is refused, what goes on, and who leads.

use broker::disk::DiskLevel;
use broker::raft::Unfit;
use protocol::{RequestCode, ResponseCode};

use crate::cluster::{Cluster, Node, soon};
use crate::requests::{check, heartbeat, message, offsets, pull, request, settled};

fn fill(node: &Node, level: DiskLevel) {
    node.disk.send_modify(|disk| disk.level = level);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_messages_and_nothing_else() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    check(&client.call(message("T", 0, "before", "")).await, 0, &[]);
    settled(&client).await;
    for level in [DiskLevel::Early, DiskLevel::Forced] {
        fill(node, level);
        check(&client.call(message("T", 0, "still", "")).await, 0, &[]);
    }

    fill(node, DiskLevel::Full);
    let refused = client.call(message("T", 0, "refused", "")).await;
    check(&refused, ResponseCode::SERVICE_NOT_AVAILABLE.0, &[("MSG_REGION", "DefaultRegion")]);
    let remark = refused.remark.as_deref().unwrap_or_default();
    assert!(remark.starts_with("not proposed: disk almost full: 40960 MiB free"), "{remark}");

    // Reads, members, offsets and topics go on.
    check(&client.call(pull("T", 0, 0, 4, 0)).await, 0, &[]);
    check(&client.call(heartbeat("c1", "g", "T")).await, 0, &[]);
    let created = request(
        RequestCode::UPDATE_AND_CREATE_TOPIC,
        &[
            ("topic", "U"),
            ("defaultTopic", "TBW102"),
            ("readQueueNums", "1"),
            ("writeQueueNums", "1"),
            ("perm", "6"),
            ("topicFilterType", "SINGLE_TAG"),
            ("topicSysFlag", "0"),
            ("order", "false"),
        ],
    );
    check(&client.call(created).await, 0, &[]);
    let commit = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "T", 0).with_ext("commitOffset", 1);
    check(&client.call(commit).await, 0, &[]);
    let read = client.call(offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", 0)).await;
    check(&read, 0, &[("offset", "1")]);

    fill(node, DiskLevel::Forced);
    let sent = client.call(message("T", 0, "after", "")).await;
    check(&sent, 0, &[("queueOffset", "3")]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_full_disk_hands_over_to_a_replica_with_room() {
    let cluster = Cluster::start(3).await;
    let full = cluster.leader().await;
    check(&full.client().call(message("T", 0, "before", "")).await, 0, &[]);
    // The other one that is full gets nothing handed over.
    let (also_full, roomy) = {
        let mut others = cluster.nodes.values().filter(|node| node.id != full.id);
        (others.next().unwrap(), others.next().unwrap())
    };
    fill(also_full, DiskLevel::Full);
    fill(full, DiskLevel::Full);
    soon("the replica with room leads", async {
        roomy.raft.role().wait_for(|role| role.is_ready_leader()).await.unwrap();
        roomy.group.serving().await;
    })
    .await;
    // Sent to whichever replica: it goes to where there is room.
    let follows = full.raft.role().wait_for(|role| role.leader().is_some_and(|(id, _)| id == roomy.id)).await.is_ok();
    assert!(follows);
    check(&full.client().call(message("T", 0, "after", "")).await, 0, &[("queueOffset", "1")]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_hardly_writes_hands_over_and_does_not_stand_again() {
    let cluster = Cluster::start(3).await;
    let slow = cluster.leader().await;
    check(&slow.client().call(message("T", 0, "before", "")).await, 0, &[]);
    slow.raft.set_unfit(Unfit::DiskSlow, true);
    let mut role = slow.raft.role();
    soon("the slow one follows", role.wait_for(|role| role.leader().is_some())).await.unwrap();
    let next = cluster.leader().await;
    assert_ne!(next.id, slow.id);
    check(&slow.client().call(message("T", 0, "after", "")).await, 0, &[("queueOffset", "1")]);
    // Whoever leads now finds only the third one willing.
    next.raft.set_unfit(Unfit::DiskSlow, true);
    let third = cluster.nodes.values().find(|node| node.id != slow.id && node.id != next.id).unwrap();
    soon("the third one leads", third.raft.role().wait_for(|role| role.is_ready_leader())).await.unwrap();
    cluster.stop().await;
}
