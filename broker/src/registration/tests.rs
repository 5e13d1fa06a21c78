//! What name servers are told, and when.

use std::net::SocketAddr;

use protocol::{RemotingCommand, RequestCode, ResponseCode, TopicName};
use remoting::{Handler, Options, Responder, Server, ServerHandle};
use tokio::sync::mpsc;

use super::*;

use crate::state_machine::{DataVersion, TopicChanges, TopicConfig};

/// A name server that confirms everything and tells the test what it was asked.
struct NameServer(mpsc::Sender<RemotingCommand>);

impl Handler for NameServer {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        responder.send(RemotingCommand::response_to(&request, ResponseCode::SUCCESS));
        self.0.try_send(request).unwrap();
    }
}

fn name_server() -> (SocketAddr, mpsc::Receiver<RemotingCommand>, ServerHandle) {
    let listener = remoting::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel(100);
    let server = Server::new(Options::default(), Arc::new(NameServer(sender))).start(listener).unwrap();
    (addr, requests, server)
}

struct Group {
    record: Mutex<GroupRecord>,
    topics: Mutex<Vec<Arc<TopicConfig>>>,
}

impl RegisteredGroup for Group {
    fn record(&self) -> GroupRecord {
        self.record.lock().clone()
    }

    fn topics(&self) -> Option<Vec<Arc<TopicConfig>>> {
        Some(self.topics.lock().clone())
    }

    fn topic_changes(&self, _counter: u64) -> Option<TopicChanges> {
        Some(TopicChanges::default())
    }
}

fn group() -> Arc<Group> {
    let record = GroupRecord {
        name: "broker-a".to_owned(),
        client_addr: "127.0.0.1:10911".parse().unwrap(),
        id: 1,
        leads: false,
        term: 3,
        leader: Some(2),
        version: DataVersion::default(),
    };
    Arc::new(Group { record: Mutex::new(record), topics: Mutex::default() })
}

fn start(name_servers: Vec<String>, group: &Arc<Group>) -> Registration {
    let options = RegistrationOptions { cluster: "DefaultCluster".to_owned(), name_servers };
    Registration::start(&options, vec![Arc::clone(group) as Arc<dyn RegisteredGroup>])
}

#[tokio::test]
async fn a_change_is_told_at_once_and_a_dead_name_server_delays_nobody() {
    let (addr, mut requests, _server) = name_server();
    // Nobody listens there.
    let dead = remoting::bind(([127, 0, 0, 1], 0).into()).unwrap().local_addr().unwrap();
    let group = group();
    let registration = start(vec![dead.to_string(), addr.to_string()], &group);
    let handle = registration.handle();

    let first = requests.recv().await.unwrap();
    assert_eq!(first.request_code(), RequestCode::REGISTER_BROKER);
    assert_eq!(first.ext.get("brokerId"), Some("1"));

    {
        let mut record = group.record.lock();
        record.leads = true;
        record.leader = Some(1);
        record.term = 4;
        *group.topics.lock() = vec![Arc::new(TopicConfig::new(TopicName::parse("t").unwrap(), 4, 6))];
        record.version.counter = 1;
    }
    handle.changed();
    assert!(handle.registered(Duration::from_secs(5)).await);
    let second = requests.try_recv().unwrap();
    assert_eq!(second.ext.get("brokerId"), Some("0"));
    assert_eq!(second.ext.get("gantryTerm"), Some("4"));

    let status = handle.status();
    assert!(!status[0].registered && status[0].last_error.is_some(), "{status:?}");
    assert!(status[1].registered && status[1].last_error.is_none(), "{status:?}");

    registration.stop().await;
    assert_eq!(requests.recv().await.unwrap().request_code(), RequestCode::UNREGISTER_BROKER);
}

#[tokio::test]
async fn without_a_name_server_nothing_is_registered() {
    let dead = remoting::bind(([127, 0, 0, 1], 0).into()).unwrap().local_addr().unwrap();
    let registration = start(vec![dead.to_string()], &group());
    assert!(!registration.handle().registered(Duration::from_secs(5)).await);
    registration.stop().await;
}

#[tokio::test]
async fn a_name_server_that_restarts_gets_everything_again() {
    let (addr, mut requests, server) = name_server();
    let group = group();
    let registration = start(vec![addr.to_string()], &group);
    requests.recv().await.unwrap();
    server.shutdown(Duration::from_secs(1)).await;

    let (sender, mut requests) = mpsc::channel(100);
    let listener = remoting::bind(addr).unwrap();
    let _server = Server::new(Options::default(), Arc::new(NameServer(sender))).start(listener).unwrap();
    // A change finds the connection gone; what had been confirmed to the old process counts for nothing.
    registration.handle().changed();
    let again = requests.recv().await.unwrap();
    assert_eq!(again.request_code(), RequestCode::REGISTER_BROKER);
    assert_eq!(again.ext.get("gantryBase"), None);
    registration.stop().await;
}
