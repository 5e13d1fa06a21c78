//! What is refused to a node that wants to come back under another identity.

use raft_store::LOST_STORE;

use super::retire::{Cluster, send, soon};
use super::*;
use crate::peer::rejoin::ReplaceRequest;
use crate::peer::{GroupIdentity, PeerAddress};

fn request(former: u64) -> ReplaceRequest {
    ReplaceRequest {
        former: (former, LOST_STORE),
        store_uuid: [7; 16],
        present: None,
        raft_addr: "127.0.0.1:1".to_owned(),
        client_addr: "127.0.0.1:1".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_is_replaced_for_its_own_node_alone_and_only_once_it_is_silent() {
    let cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let own = usize::try_from(leader.node_id()).unwrap();
    let (one, other) = (own % 3 + 1, (own + 1) % 3 + 1);
    let (former, others_id) = (u64::try_from(one).unwrap(), u64::try_from(other).unwrap());
    let members = leader.raft.metrics().members;

    // A node that was never a member, or is one no more.
    let refused = leader.raft.replace("n9", request(9)).await.unwrap_err();
    assert!(refused.contains("node n9 is no member of group broker-a"), "{refused}");
    // A node whose process lives: somebody has started a second one on an empty disk.
    let refused = leader.raft.replace(&format!("n{one}"), request(former)).await.unwrap_err();
    assert!(refused.contains("was heard a moment ago"), "{refused}");
    // Even under the name of an identity that nobody uses.
    let refused = leader.raft.replace(&format!("n{one}"), request(99)).await.unwrap_err();
    assert!(refused.contains("was heard a moment ago"), "{refused}");

    // What a peer says of another one's identity, or of one with another store, gets no further than the greeting.
    let hub = &cluster.running[&one].hub;
    let address =
        PeerAddress { node: format!("n{own}"), raft_addr: cluster.group(own).options().own_member().raft_addr.clone() };
    for (node_id, store_uuid, text) in [
        (others_id, LOST_STORE, format!("node {other} of group broker-a is n{other}, not n{one}")),
        (former, [9; 16], format!("node {one} of group broker-a has another store than the one that asks")),
    ] {
        let group = "broker-a".to_owned();
        let identity = GroupIdentity { group, node_id, store_uuid, start_counter: 9, generation: 0 };
        let fields = request(node_id).encode();
        let asked = hub.ask_to_rejoin(&address, &identity, &fields, Duration::from_secs(10)).await;
        let Err(refused) = asked else { panic!("not refused: {text}") };
        assert!(refused.to_string().contains(&text), "{refused}");
    }
    assert_eq!(members, leader.raft.metrics().members);
    assert_eq!(Some(0), send(&leader, 0).await);
    drop(leader);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_word_to_rejoin_changes_nothing_where_nothing_is_lost() {
    let mut cluster = Cluster::start("sync").await;
    cluster.stop_node(2).await;
    cluster.rejoin_node(2).await;
    soon("a replica that runs", cluster.group(2).led()).await;
    let running = cluster.group(2).running().unwrap();
    assert_eq!((Some(2), true), (running.recovered.node_id, running.recovered.retired.is_empty()));
    drop(running);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_of_one_cannot_come_back_on_an_empty_disk() {
    let dir = tempfile::tempdir().unwrap();
    let start = StartOptions { bootstrap: Bootstrap::Forbidden, rejoin: true, started: Instant::now() };
    let error =
        Node::start(options(dir.path()), start, ClientPorts::default()).await.err().expect("nobody has its messages");
    assert!(matches!(error, StartError::Log { source: raft_store::Error::NoStore { .. }, .. }), "{error:?}");
}
