//! A name server over real sockets.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use namesrv::Options;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::body::RegisterBrokerBody;
use protocol::body::TopicConfig;
use protocol::body::TopicRouteData;
use remoting::Channel;
use remoting::ChannelOptions;
use remoting::Ignore;

const LONG: Duration = Duration::from_secs(20);

fn channel(address: SocketAddr) -> Channel {
    Channel::new(address.to_string(), ChannelOptions::default(), Arc::new(Ignore))
}

async fn register(channel: &Channel, member: u8, leader: u8) {
    let mut body = RegisterBrokerBody::default();
    body.topics.data_version.counter = 1;
    body.topics.topic_config_table.insert("T".into(), TopicConfig::new("T", 4, 6));
    let request = RemotingCommand::request(RequestCode::REGISTER_BROKER)
        .with_ext("brokerName", "broker-a")
        .with_ext("brokerAddr", format_args!("10.0.0.{member}:10911"))
        .with_ext("clusterName", "C")
        .with_ext("brokerId", member)
        .with_ext("gantryTerm", 1)
        .with_ext("gantryNode", member)
        .with_ext("gantryLeader", leader)
        .with_body(body.encode());
    assert!(channel.call(request, LONG).await.unwrap().is_success());
}

async fn leader_address(channel: &Channel) -> Option<String> {
    let request = RemotingCommand::request(RequestCode::GET_ROUTEINFO_BY_TOPIC).with_ext("topic", "T");
    let answer = channel.call(request, LONG).await.unwrap();
    answer.is_success().then(|| {
        let route = TopicRouteData::decode(&answer.body).unwrap();
        route.broker_datas[0].broker_addrs[&0].clone()
    })
}

#[tokio::test]
async fn node_whose_connection_drops_hands_id_0_to_another() {
    let listener = remoting::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let namesrv = namesrv::serve(listener, Options::default()).unwrap();
    let (client, first, second) =
        (channel(namesrv.local_addr()), channel(namesrv.local_addr()), channel(namesrv.local_addr()));
    assert_eq!(leader_address(&client).await, None);
    register(&first, 1, 1).await;
    register(&second, 2, 1).await;
    assert_eq!(leader_address(&client).await.unwrap(), "10.0.0.1:10911");
    first.close(LONG).await;
    while leader_address(&client).await.unwrap() != "10.0.0.2:10911" {}
    second.close(LONG).await;
    // The last address stays for a while: clients had better try it than nothing.
    assert_eq!(leader_address(&client).await.unwrap(), "10.0.0.2:10911");
    namesrv.shutdown(LONG).await;
    assert!(client.call(RemotingCommand::request(RequestCode::GET_BROKER_CLUSTER_INFO), LONG).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn silent_broker_is_forgotten_by_the_clock() {
    let listener = remoting::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let namesrv = namesrv::serve(listener, Options::default()).unwrap();
    let (client, broker) = (channel(namesrv.local_addr()), channel(namesrv.local_addr()));
    register(&broker, 1, 1).await;
    assert!(leader_address(&client).await.is_some());
    tokio::time::sleep(Duration::from_secs(119)).await;
    assert!(leader_address(&client).await.is_some());
    tokio::time::sleep(Duration::from_secs(45)).await;
    assert!(leader_address(&client).await.is_none());
}
