//! The peer port: forwarding, copies, refusals, and the end of a peer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use protocol::{RemotingCommand, RequestCode, ResponseCode};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::link::CallError;
use super::*;
use crate::raft::tests::cluster::{CLUSTER, Cluster, GROUP, LONG, hub, identity, soon};

/// Two hubs that know each other and host the same group, without Raft.
async fn pair() -> (PeerHub, PeerHub) {
    let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let two = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let members = members(one.local_addr().unwrap(), two.local_addr().unwrap());
    let (one, two) = (hub(1, one).await, hub(2, two).await);
    one.add_group(identity(1, 1), members.clone());
    two.add_group(identity(2, 1), members);
    (one, two)
}

fn members(one: SocketAddr, two: SocketAddr) -> BTreeMap<u64, PeerAddress> {
    [(1, one), (2, two)]
        .into_iter()
        .map(|(id, address)| (id, PeerAddress { node: format!("n{id}"), raft_addr: address.to_string() }))
        .collect()
}

fn client() -> SocketAddr {
    "10.1.2.3:4567".parse().unwrap()
}

fn request(body: &'static [u8]) -> RemotingCommand {
    RemotingCommand::request(RequestCode::SEND_MESSAGE_V2).with_ext("topic", "t").with_body(Bytes::from_static(body))
}

/// Answers with the body it got; holds what asks to be held.
#[derive(Default)]
struct Echo {
    seen: Mutex<Vec<(SocketAddr, bool)>>,
    held: Mutex<Vec<ForwardReply>>,
    arrived: Notify,
}

impl ForwardHandler for Echo {
    fn forwarded(&self, origin: SocketAddr, request: RemotingCommand, _: Forwarder, reply: ForwardReply) {
        self.seen.lock().push((origin, reply.is_oneway()));
        match &request.body[..] {
            b"hold" => self.held.lock().push(reply),
            b"drop" => drop(reply),
            _ => {
                let answer = RemotingCommand::response_to(&request, ResponseCode::SUCCESS).with_remark("echo");
                reply.send_parts(&answer, vec![request.body.clone(), Bytes::from_static(b"!")]);
            }
        }
        self.arrived.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_request_is_answered_as_if_the_client_had_asked_there() {
    let (one, two) = pair().await;
    let echo = Arc::new(Echo::default());
    two.set_forward_handler(GROUP, Arc::clone(&echo) as Arc<dyn ForwardHandler>);
    let answer = one.forward(GROUP, 2, client(), &request(b"hello"), LONG).await.unwrap();
    assert_eq!((answer.code, &answer.body[..]), (ResponseCode::SUCCESS.0, &b"hello!"[..]));
    assert_eq!(answer.remark.as_deref(), Some("echo"));
    assert_eq!(*echo.seen.lock(), [(client(), false)]);
    one.forward_oneway(GROUP, 2, client(), &request(b"oneway")).unwrap();
    soon("one-way request", async {
        while echo.seen.lock().len() < 2 {
            echo.arrived.notified().await;
        }
    })
    .await;
    assert!(echo.seen.lock()[1].1);
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_request_delays_no_other_and_many_share_a_connection() {
    let (one, two) = pair().await;
    let echo = Arc::new(Echo::default());
    two.set_forward_handler(GROUP, Arc::clone(&echo) as Arc<dyn ForwardHandler>);
    let held = request(b"hold");
    let mut slow = Box::pin(one.forward(GROUP, 2, client(), &held, LONG));
    assert!((&mut slow).now_or_never().is_none());
    let body = request(b"quick");
    let quick = (0..500).map(|_| one.forward(GROUP, 2, client(), &body, LONG));
    let answers = soon("quick requests", futures::future::join_all(quick)).await;
    assert!(answers.iter().all(Result::is_ok));
    let reply = echo.held.lock().pop().unwrap();
    reply.send(&RemotingCommand::response_to(&held, ResponseCode::SUCCESS));
    soon("slow request", slow).await.unwrap();
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_of_the_peer_fails_what_is_in_flight_at_once_and_says_what_is_known() {
    let (one, two) = pair().await;
    let echo = Arc::new(Echo::default());
    assert!(one.forward(GROUP, 2, client(), &request(b"early"), LONG).await.unwrap_err().is_not_sent());
    two.set_forward_handler(GROUP, Arc::clone(&echo) as Arc<dyn ForwardHandler>);
    let dropped = one.forward(GROUP, 2, client(), &request(b"drop"), LONG).await.unwrap_err();
    assert!(!dropped.is_not_sent());
    let held = request(b"hold");
    let flying = one.forward(GROUP, 2, client(), &held, Duration::from_secs(3600));
    let killed = async {
        while echo.held.lock().is_empty() {
            echo.arrived.notified().await;
        }
        two.shutdown_now();
        two.shutdown().await;
    };
    let (failed, ()) = soon("failure", futures::future::join(flying, killed)).await;
    assert!(!failed.unwrap_err().is_not_sent(), "it was received");
    let refused = one.forward(GROUP, 2, client(), &held, Duration::from_secs(3600)).await.unwrap_err();
    assert!(refused.is_not_sent(), "{refused}");
    assert!(one.forward(GROUP, 9, client(), &held, LONG).await.unwrap_err().is_not_sent());
    assert!(one.forward("nowhere", 2, client(), &held, LONG).await.unwrap_err().is_not_sent());
    one.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_without_an_answer_in_time_has_an_unknown_outcome() {
    let (one, two) = pair().await;
    two.set_forward_handler(GROUP, Arc::new(Echo::default()));
    let late = one.forward(GROUP, 2, client(), &request(b"hold"), Duration::from_millis(50)).await.unwrap_err();
    assert!(!late.is_not_sent());
    one.shutdown().await;
    two.shutdown().await;
}

struct Table;

impl CopyHandler for Table {
    fn copy(&self, request: Bytes) -> BoxFuture<'static, Bytes> {
        async move { Bytes::from([&request[..], b" copied"].concat()) }.boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_table_is_copied() {
    let (one, two) = pair().await;
    assert!(one.copy_client_table(GROUP, 2, Bytes::new(), LONG).await.unwrap_err().is_not_sent());
    two.set_copy_handler(GROUP, Arc::new(Table));
    let copy = one.copy_client_table(GROUP, 2, Bytes::from_static(b"all"), LONG).await.unwrap();
    assert_eq!(&copy[..], b"all copied");
    one.shutdown().await;
    two.shutdown().await;
}

/// A group whose replica on node 2 has not started.
const STARTING: &str = "broker-s";

/// What happens to a node that dials node 2 with `change`d options or members.
async fn dialled_by(
    class: Class,
    change: impl FnOnce(&mut PeerHubOptions, &mut GroupIdentity, &mut BTreeMap<u64, PeerAddress>),
) -> Result<(), String> {
    let two = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut members = members(one.local_addr().unwrap(), two.local_addr().unwrap());
    let hosted = vec![GROUP.to_owned(), STARTING.to_owned()];
    let two =
        PeerHub::start(PeerHubOptions { cluster_id: CLUSTER, node: "n2".to_owned(), groups: hosted }, two).unwrap();
    two.add_group(identity(2, 1), members.clone());
    two.set_forward_handler(GROUP, Arc::new(Echo::default()));
    let mut options = PeerHubOptions { cluster_id: CLUSTER, node: "n1".to_owned(), groups: vec![GROUP.to_owned()] };
    let mut identity = identity(1, 1);
    change(&mut options, &mut identity, &mut members);
    let name = identity.group.clone();
    let to = *members.keys().next_back().unwrap();
    let one = PeerHub::start(options, one).unwrap();
    one.add_group(identity, members);
    let group = one.hub().group(&name).unwrap();
    let dialled = soon("handshake", one.hub().dial_group(&group, to, class)).await;
    one.shutdown().await;
    two.shutdown().await;
    match dialled {
        Ok(_) => Ok(()),
        Err(PeerError::Refused(reason)) => Err(reason),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_turned_away_with_a_reason() {
    let check = async |class, change: fn(&mut PeerHubOptions, &mut GroupIdentity, &mut BTreeMap<u64, PeerAddress>)| {
        dialled_by(class, change).await
    };
    assert_eq!(check(Class::Forward, |_, _, _| {}).await, Ok(()));
    let refused = check(Class::Forward, |options, _, _| options.cluster_id = [1; 16]).await;
    assert_eq!(refused.unwrap_err(), "another cluster");
    let refused = check(Class::Forward, |_, identity, _| identity.group = "broker-z".to_owned()).await;
    assert_eq!(refused.unwrap_err(), "group broker-z is not hosted here");
    let refused = check(Class::Forward, |_, identity, _| identity.group = STARTING.to_owned()).await;
    assert_eq!(refused.unwrap_err(), "replica of group broker-s does not run");
    let refused = check(Class::Forward, |_, _, members| {
        let address = members.remove(&2).unwrap();
        members.insert(3, address);
    })
    .await;
    assert_eq!(refused.unwrap_err(), "replica of group broker-a is node 2, not 3");
    let refused = check(Class::Forward, |_, _, members| members.get_mut(&2).unwrap().node = "n7".to_owned()).await;
    assert_eq!(refused.unwrap_err(), "node n2 is not n7");
    let refused = check(Class::Forward, |options, identity, _| {
        options.node = "n8".to_owned();
        identity.node_id = 8;
    })
    .await;
    assert_eq!(refused.unwrap_err(), "node 8 is no member of group broker-a");
    // A node that is known may have come under another identity meanwhile, and even lead.
    assert_eq!(check(Class::Forward, |_, identity, _| identity.node_id = 8).await, Ok(()));
    let refused = check(Class::Forward, |options, _, _| options.node = "n8".to_owned()).await;
    assert_eq!(refused.unwrap_err(), "member 1 of group broker-a is n1, not n8");
    let refused = check(Class::Rpc, |_, _, _| {}).await;
    assert_eq!(refused.unwrap_err(), "replica of group broker-a does not run");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_identity_that_was_checked_may_speak_of_the_log() {
    let (one, two) = pair().await;
    let member = PeerAddress { node: "n2".to_owned(), raft_addr: two.local_addr().to_string() };
    let relay = one.relay_link(GROUP, member);
    relay.0.ask(Kind::Ping, &[], Vec::new(), LONG).await.unwrap();
    for kind in [Kind::Vote, Kind::Heartbeat, Kind::TransferLeader, Kind::Snapshot, Kind::FetchRange] {
        let error = relay.0.ask(kind, &[], Vec::new(), LONG).await.unwrap_err();
        // The connection is closed, without an answer.
        assert!(matches!(error, CallError::Unknown(_)), "{kind:?}: {error}");
    }
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replaced_disk_and_rolled_back_disk_are_turned_away() {
    let (one, two) = pair().await;
    let group = two.hub().group(GROUP).unwrap();
    assert_eq!(group.remember(&identity(1, 5), 77), Ok(()));
    assert_eq!(group.remember(&identity(1, 6), 78), Ok(()));
    assert_eq!(group.remember(&identity(1, 6), 78), Ok(()));
    for (counter, incarnation) in [(5, 77), (6, 79)] {
        let rolled_back = group.remember(&identity(1, counter), incarnation).unwrap_err();
        assert_eq!(Outcast::of(&rolled_back), Some(Outcast::RolledBack), "{rolled_back}");
    }
    let replaced = GroupIdentity { store_uuid: [9; 16], ..identity(1, 7) };
    let replaced = group.remember(&replaced, 79).unwrap_err();
    assert!(replaced.contains("disk was replaced"), "{replaced}");
    assert_eq!(Outcast::of(&replaced), None, "that is for a person to look at");
    let refused = one.forward(GROUP, 2, client(), &request(b"hello"), LONG).await.unwrap_err();
    assert!(refused.to_string().contains("rolled_back"), "{refused}");
    assert!(one.outcast(GROUP).await.starts_with("rolled_back: node 1 "));
    one.shutdown().await;
    two.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_on_the_port_ends_its_connection_and_nothing_else() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    for noise in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[0, 0, 0, 60, 0, 0, 0, 44]] {
        let mut socket = tokio::net::TcpStream::connect(&cluster.members[&leader].raft_addr).await.unwrap();
        socket.write_all(noise).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut rest = Vec::new();
        // Closed or reset, but not kept.
        let _ = soon("connection ends", socket.read_to_end(&mut rest)).await;
    }
    cluster.raft(leader).propose(crate::raft::tests::stores::record(1, 20)).await.unwrap();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retired_identities_and_members_of_an_older_generation_are_turned_away_and_told_why() {
    let (one, two) = pair().await;
    two.set_successors(GROUP, Arc::new(|node_id| (node_id == 1).then_some(77)));
    let refused = one.forward(GROUP, 2, client(), &request(b"hello"), LONG).await.unwrap_err();
    assert!(refused.to_string().contains("goes on as node 77"), "{refused}");
    assert!(one.outcast(GROUP).await.starts_with("retired: node 1 "));
    one.shutdown().await;
    two.shutdown().await;

    let (one, two) = pair().await;
    let later = GroupIdentity { generation: 1, ..identity(2, 1) };
    two.add_group(later, two.hub().group(GROUP).unwrap().members.read().clone());
    let refused = one.forward(GROUP, 2, client(), &request(b"hello"), LONG).await.unwrap_err();
    assert!(refused.to_string().contains("superseded"), "{refused}");
    assert!(one.outcast(GROUP).await.starts_with("superseded: "));
    // And the other way round it is the one that answers who learns it.
    two.forward(GROUP, 1, client(), &request(b"hello"), LONG).await.unwrap_err();
    one.shutdown().await;
    two.shutdown().await;
}
