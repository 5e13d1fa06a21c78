//! Recorded frames of real clients against what a real name server answered, and requests of our own.

use bytes::BytesMut;
use expect_test::Expect;
use expect_test::expect;
use protocol::FrameLimits;
use protocol::HeaderForm;
use protocol::body::TopicConfig;
use protocol::body::TopicConfigTable;

use super::*;

struct Recorded {
    request: RemotingCommand,
    answer: RemotingCommand,
}

fn recorded(name: &str) -> Recorded {
    let line = include_str!("golden.txt")
        .lines()
        .find(|line| line.split(' ').next() == Some(name))
        .unwrap_or_else(|| panic!("no frame {name}"));
    let mut frames = line.split(' ').skip(1).map(|hex| {
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        protocol::decode_frame(&mut BytesMut::from(&bytes[..]), &FrameLimits::default()).unwrap().unwrap()
    });
    Recorded { request: frames.next().unwrap(), answer: frames.next().unwrap() }
}

fn processor() -> Processor {
    Processor::new(Duration::from_secs(120))
}

fn ask(processor: &Processor, request: &RemotingCommand) -> RemotingCommand {
    processor.answer(request, None, Instant::now())
}

/// The body as text, with RocketMQ's unquoted numeric keys quoted: we never write those.
fn body(command: &RemotingCommand) -> String {
    String::from_utf8(command.body.to_vec()).unwrap().replace("{0:", "{\"0\":")
}

fn check_like_recorded(processor: &Processor, name: &str) {
    let Recorded { request, answer: expected } = recorded(name);
    let answer = ask(processor, &request);
    assert_eq!(answer.code, expected.code, "{name}");
    assert_eq!(answer.opaque, expected.opaque, "{name}");
    assert_eq!(answer.flag, expected.flag, "{name}");
    assert_eq!(answer.language, expected.language, "{name}");
    assert_eq!(answer.version, expected.version, "{name}");
    assert_eq!(answer.form, request.form, "{name}");
    assert_eq!(answer.ext.iter().collect::<Vec<_>>(), expected.ext.iter().collect::<Vec<_>>(), "{name}");
    assert_eq!(body(&answer), body(&expected), "{name}");
    // The real one adds a second line with a link.
    let first_line =
        |command: &RemotingCommand| command.remark.clone().map(|text| text.lines().next().unwrap().to_owned());
    assert_eq!(first_line(&answer), first_line(&expected), "{name}");
}

#[test]
fn recorded_exchanges_come_out_the_same() {
    let processor = processor();
    check_like_recorded(&processor, "register");
    for name in [
        "miss-java5",
        "miss-go",
        "route-java5",
        "route-java4",
        "route-binary",
        "route-go",
        "route-python",
        "route-mqadmin",
        "clusters-mqadmin",
        "put-kv",
        "delete-kv",
        "delete-topic-go",
        "unknown",
        "unregister",
    ] {
        check_like_recorded(&processor, name);
    }
    assert_eq!(ask(&processor, &recorded("route-java5").request).code, ResponseCode::TOPIC_NOT_EXIST.0);
}

#[test]
fn binary_requests_get_binary_answers() {
    let answer = ask(&processor(), &recorded("route-binary").request);
    assert_eq!(answer.form, HeaderForm::RocketMq);
}

fn register(member: u64, term: u64, leader: u64, counter: i64, topics: &[(&str, i32)]) -> RemotingCommand {
    let mut request = RemotingCommand::request(RequestCode::REGISTER_BROKER);
    RegisterBrokerRequest {
        broker_name: "broker-a".into(),
        broker_addr: format!("10.0.0.{member}:10911"),
        cluster_name: "C".into(),
        ha_server_addr: Some(format!("10.0.0.{member}:10912")),
        broker_id: if member == leader { 0 } else { i64::try_from(member).unwrap() },
        heartbeat_timeout_millis: None,
        enable_acting_master: None,
        compressed: false,
        body_crc32: 0,
        gantry_term: Some(term),
        gantry_node: Some(member),
        gantry_leader: Some(leader),
        gantry_base: None,
        gantry_gone: None,
    }
    .encode_into(&mut request.ext);
    let topics = topics.iter().map(|(name, queues)| ((*name).to_owned(), TopicConfig::new(name, *queues, 6)));
    let table = TopicConfigTable {
        data_version: DataVersion { counter, state_version: 0, timestamp: 0 },
        mapping_data_version: None,
        topic_config_table: topics.collect(),
    };
    request.with_body(RegisterBrokerBody { filter_server_list: Vec::new(), topics: table }.encode())
}

fn show(answer: &RemotingCommand) -> String {
    let ext: Vec<_> = answer.ext.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let text =
        format!("{} {} [{}] {}", answer.code, answer.remark.as_deref().unwrap_or("-"), ext.join(" "), body(answer));
    format!("{}\n", text.trim_end())
}

fn check(processor: &Processor, request: &RemotingCommand, expected: Expect) {
    expected.assert_eq(&show(&ask(processor, request)));
}

fn get(code: RequestCode, ext: &[(&str, &str)]) -> RemotingCommand {
    ext.iter().fold(RemotingCommand::request(code), |request, (key, value)| request.with_ext(key, value))
}

#[test]
fn raft_group_is_routed_to_its_leader_and_all_its_replicas() {
    let processor = processor();
    check(
        &processor,
        &register(1, 7, 2, 3, &[("T", 4)]),
        expect![[r#"
            0 - [haServerAddr=10.0.0.1:10912 masterAddr=10.0.0.1:10911 gantryWholeTable=false]
        "#]],
    );
    check(
        &processor,
        &register(2, 7, 2, 3, &[("T", 4), ("C", 1)]),
        expect![[r#"
            0 - [gantryWholeTable=false]
        "#]],
    );
    check(
        &processor,
        &register(3, 7, 2, 3, &[]),
        expect![[r#"
            0 - [haServerAddr=10.0.0.2:10912 masterAddr=10.0.0.2:10911 gantryWholeTable=false]
        "#]],
    );
    check(
        &processor,
        &get(RequestCode::GET_ROUTEINFO_BY_TOPIC, &[("topic", "T")]),
        expect![[r#"
        0 - [] {"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.2:10911","1":"10.0.0.1:10911","3":"10.0.0.3:10911"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}
    "#]],
    );
    check(
        &processor,
        &get(RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER, &[]),
        expect![[r#"
        0 - [] {"topicList":["C","T"]}
    "#]],
    );
    check(
        &processor,
        &get(RequestCode::GET_TOPICS_BY_CLUSTER, &[("cluster", "other")]),
        expect![[r#"
        0 - [] {"topicList":[]}
    "#]],
    );
    check(
        &processor,
        &get(RequestCode::GET_SYSTEM_TOPIC_LIST_FROM_NS, &[]),
        expect![[r#"
        0 - [] {"brokerAddr":"10.0.0.2:10911","topicList":["C","broker-a"]}
    "#]],
    );
    let group = [("clusterName", "C"), ("brokerName", "broker-a")];
    check(
        &processor,
        &get(RequestCode::GET_BROKER_MEMBER_GROUP, &group),
        expect![[r#"
        0 - [] {"brokerMemberGroup":{"brokerAddrs":{"0":"10.0.0.2:10911","1":"10.0.0.1:10911","3":"10.0.0.3:10911"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}}
    "#]],
    );
}

#[test]
fn increment_without_its_base_asks_for_the_whole_table() {
    let processor = processor();
    let increment = register(1, 7, 1, 9, &[("T", 4)]).with_ext("gantryBase", 8);
    check(
        &processor,
        &increment,
        expect![[r#"
            0 - [gantryWholeTable=true]
        "#]],
    );
}

#[test]
fn order_conf_of_a_topic_is_in_its_route_and_in_answers_to_brokers() {
    let processor = processor();
    let value = [("namespace", "ORDER_TOPIC_CONFIG"), ("key", "T"), ("value", "broker-a:4")];
    check(
        &processor,
        &get(RequestCode::PUT_KV_CONFIG, &value),
        expect![[r#"
            0 - []
        "#]],
    );
    check(
        &processor,
        &register(1, 1, 1, 1, &[("T", 4)]),
        expect![[r#"
            0 - [gantryWholeTable=false] {"table":{"T":"broker-a:4"}}
        "#]],
    );
    let route = ask(&processor, &get(RequestCode::GET_ROUTEINFO_BY_TOPIC, &[("topic", "T")]));
    assert!(body(&route).contains(r#""orderTopicConf":"broker-a:4","#), "{}", body(&route));
    check(
        &processor,
        &get(RequestCode::GET_KV_CONFIG, &value[..2]),
        expect![[r#"
            0 - [value=broker-a:4]
        "#]],
    );
    check(
        &processor,
        &get(RequestCode::GET_KVLIST_BY_NAMESPACE, &value[..1]),
        expect![[r#"
        0 - [] {"table":{"T":"broker-a:4"}}
    "#]],
    );
    ask(&processor, &get(RequestCode::DELETE_KV_CONFIG, &value[..2]));
    check(
        &processor,
        &get(RequestCode::GET_KV_CONFIG, &value[..2]),
        expect![[r#"
            22 No config item, Namespace: ORDER_TOPIC_CONFIG Key: T []
        "#]],
    );
    check(
        &processor,
        &get(RequestCode::GET_KVLIST_BY_NAMESPACE, &value[..1]),
        expect![[r#"
            22 No config item, Namespace: ORDER_TOPIC_CONFIG []
        "#]],
    );
}

#[test]
fn write_perm_is_wiped_and_given_back() {
    let processor = processor();
    ask(&processor, &register(1, 1, 1, 1, &[("T", 4), ("U", 4)]));
    let broker = [("brokerName", "broker-a")];
    check(
        &processor,
        &get(RequestCode::WIPE_WRITE_PERM_OF_BROKER, &broker),
        expect![[r#"
            0 - [wipeTopicCount=2]
        "#]],
    );
    let route = get(RequestCode::GET_ROUTEINFO_BY_TOPIC, &[("topic", "T")]);
    assert!(body(&ask(&processor, &route)).contains(r#""perm":4"#));
    check(
        &processor,
        &get(RequestCode::ADD_WRITE_PERM_OF_BROKER, &broker),
        expect![[r#"
            0 - [addTopicCount=2]
        "#]],
    );
    assert!(body(&ask(&processor, &route)).contains(r#""perm":6"#));
    check(
        &processor,
        &get(RequestCode::ADD_WRITE_PERM_OF_BROKER, &[("brokerName", "none")]),
        expect![[r#"
            0 - [addTopicCount=0]
        "#]],
    );
}

#[test]
fn data_version_is_compared() {
    let processor = processor();
    ask(&processor, &register(1, 1, 1, 5, &[("T", 4)]));
    let broker =
        [("brokerName", "broker-a"), ("brokerAddr", "10.0.0.1:10911"), ("clusterName", "C"), ("brokerId", "0")];
    let query = |counter| {
        let version = DataVersion { counter, state_version: 0, timestamp: 0 };
        get(RequestCode::QUERY_DATA_VERSION, &broker).with_body(version.encode())
    };
    check(
        &processor,
        &query(5),
        expect![[r#"
        0 - [changed=false] {"counter":5,"stateVersion":0,"timestamp":0}
    "#]],
    );
    check(
        &processor,
        &query(6),
        expect![[r#"
        0 - [changed=true] {"counter":5,"stateVersion":0,"timestamp":0}
    "#]],
    );
}

#[test]
fn settings_are_shown_and_not_changed() {
    let processor = processor();
    processor.set_address(SocketAddr::from(([127, 0, 0, 1], 9876)));
    check(
        &processor,
        &get(RequestCode::GET_NAMESRV_CONFIG, &[]),
        expect![[r#"
            0 - [] brokerSilentMaxMillis=120000
            listenAddress=127.0.0.1:9876
            listenPort=9876
        "#]],
    );
    check(
        &processor,
        &get(RequestCode::UPDATE_NAMESRV_CONFIG, &[]).with_body("a=b\n"),
        expect![[r#"
            16 a name server's settings are not changed while it runs: change conf/namesrv.toml or its command line and start it again []
        "#]],
    );
}

#[test]
fn damaged_or_senseless_registrations_change_nothing() {
    let processor = processor();
    let good = register(1, 1, 1, 1, &[("T", 4)]);
    check(
        &processor,
        &good.clone().with_ext("bodyCrc32", 12345),
        expect![[r#"
            1 crc32 not match []
        "#]],
    );
    let mut plain = good.clone();
    plain.ext.remove("gantryNode");
    plain.ext.remove("brokerId");
    check(
        &processor,
        &plain.clone().with_ext("brokerId", -1),
        expect![[r#"
            1 broker ids are not negative []
        "#]],
    );
    check(
        &processor,
        &plain,
        expect![[r#"
            1 field brokerId is missing []
        "#]],
    );
    assert_eq!(ask(&processor, &good.with_body("{")).code, 1);
    check(
        &processor,
        &get(RequestCode::GET_BROKER_CLUSTER_INFO, &[]),
        expect![[r#"
        0 - [] {"brokerAddrTable":{},"clusterAddrTable":{}}
    "#]],
    );
}

#[test]
fn compressed_registration_is_read() {
    let processor = processor();
    let request = register(1, 1, 1, 1, &[]).with_ext("compressed", true);
    let topics = [("T".to_owned(), TopicConfig::new("T", 4, 6))];
    let table = TopicConfigTable { topic_config_table: topics.into(), ..TopicConfigTable::default() };
    let body = RegisterBrokerBody { filter_server_list: Vec::new(), topics: table }.encode_compressed();
    assert_eq!(ask(&processor, &request.with_body(body)).code, 0);
    check(
        &processor,
        &get(RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER, &[]),
        expect![[r#"
        0 - [] {"topicList":["T"]}
    "#]],
    );
}

#[test]
fn every_code_of_the_page_of_what_works_is_answered() {
    let page = include_str!("../../../docs/compatibility.md");
    let (_, table) = page.split_once("## Requests to a name server").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let mut asked = 0;
    for row in table.lines().filter(|line| line.starts_with("| ") && line.contains(|c: char| c.is_ascii_digit())) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [codes, _, state] = cells[..] else { panic!("a row of other than three cells: {row}") };
        for code in codes.split(", ").map(|code| code.parse().unwrap()) {
            let answer = ask(&processor(), &RemotingCommand::request(RequestCode(code)));
            let refused = answer.response_code() == ResponseCode::NO_PERMISSION;
            assert_eq!(refused, state.starts_with("refused"), "{code}: {answer:?}");
            assert_ne!(answer.response_code(), ResponseCode::REQUEST_CODE_NOT_SUPPORTED, "{code}: {answer:?}");
            asked += 1;
        }
    }
    assert!(asked > 20, "only {asked} codes were found in the table");
}
