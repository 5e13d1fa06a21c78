//! What `/health/live` and `/health/ready` answer, asked over HTTP.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

/// Status and sentence.
async fn ask(node: &Node, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(node.shared.options.node.http_listen).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    retire::soon("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let health: serde_json::Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    (status, health["health"].as_str().unwrap().to_owned())
}

/// What both say, and the sentence, which is the same.
async fn check(node: &Node, live: u16, ready: u16, says: &str) {
    let (live_status, live_text) = ask(node, "/health/live").await;
    let (ready_status, ready_text) = ask(node, "/health/ready").await;
    assert_eq!((live_status, ready_status), (live, ready), "{ready_text}");
    assert!(ready_text.contains(says) && live_text == ready_text, "{ready_text:?} and {live_text:?} lack {says:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_clients_do_not_find_lives_and_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(options(dir.path()), true).await.unwrap();
    for group in &node.shared.groups {
        group.led().await;
    }
    check(&node, 200, 503, "no name server knows this node").await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_or_drains_lives_and_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(options(dir.path()), true).await.unwrap();
    *node.shared.state.lock() = NodeState::Starting;
    check(&node, 200, 503, "starting: 0 of 2 groups are being recovered").await;
    *node.shared.state.lock() = NodeState::Stopping;
    check(&node, 200, 503, "stopping: requests are forwarded").await;
    *node.shared.state.lock() = NodeState::Running;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_majority_lives_and_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    // Two more members that never run.
    let own = options.groups[1].members[0].clone();
    for id in [2, 3] {
        let mut member = own.clone();
        (member.id, member.node, member.raft_addr) = (id, format!("n{id}"), "127.0.0.1:1".to_owned());
        options.groups[1].members.push(member);
    }
    let node = start(options, true).await.unwrap();
    node.shared.groups[0].led().await;
    check(&node, 200, 503, "no leader that answers: broker-b").await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_disk_has_failed_is_neither_live_nor_ready() {
    let dir = tempfile::tempdir().unwrap();
    let node = start(options(dir.path()), true).await.unwrap();
    let failed = &node.shared.groups[1];
    failed.led().await;
    failed.running().unwrap().raft.shutdown().await;
    let reason = node.failed().await;
    check(&node, 503, 503, &reason).await;
    node.abandon().await;
}
