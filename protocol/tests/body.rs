//! Bodies in the dialects of their senders, limits, and the exact text of what we send.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

use std::collections::BTreeMap;

use expect_test::{Expect, expect};
use protocol::body::*;
use protocol::{BodyError, JsonError};

/// Reads a heartbeat and prints what counts in it.
fn check_heartbeat(body: &str, expected: Expect) {
    let data = HeartbeatData::decode(body.as_bytes()).unwrap();
    let mut text = format!("{}\n", data.client_id);
    for producer in &data.producers {
        text += &format!("produces in {}\n", producer.group);
    }
    for consumer in &data.consumers {
        let ConsumerData { group, consume_type, message_model, consume_from_where, .. } = consumer;
        text += &format!("consumes in {group} {consume_type:?} {message_model:?} {consume_from_where:?}\n");
        for data in &consumer.subscriptions {
            let SubscriptionData { topic, expression, expression_type, version, .. } = data;
            let expression = expression.escape_default();
            text += &format!("  {topic} {expression_type} '{expression}' v{version} {:?}\n", data.codes());
        }
    }
    expected.assert_eq(&text);
}

#[test]
fn java_heartbeats_have_names() {
    check_heartbeat(
        r#"{"clientID":"c","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB","subVersion":1796006334701,"tagsSet":["TagA","TagB"],"topic":"t"},{"classFilterMode":false,"codeSet":[],"expressionType":"SQL92","subString":"a > 1","subVersion":1,"tagsSet":[],"topic":"s"}],"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"p"}],"withoutSub":false}"#,
        expect![[r#"
            c
            produces in p
            consumes in g Passively Clustering FirstOffset
              t TAG 'TagA || TagB' v1796006334701 [2598919, 2598920]
              s SQL92 'a > 1' v1 []
        "#]],
    );
}

#[test]
fn cpp_heartbeats_have_numbers_for_names_and_text_for_numbers() {
    check_heartbeat(
        concat!(
            r#"{"clientID":"1441-127.0.0.1@c_tag","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g","messageModel":1,"subscriptionDataSet":[{"subString":"*","subVersion":"1796006334701","topic":"%RETRY%g"},{"codeSet":[0,0],"subString":"TagA || TagB","subVersion":"1796006334701","tagsSet":["TagA","TagB"],"topic":"t"}]}]}"#,
            "\n"
        ),
        expect![[r#"
            1441-127.0.0.1@c_tag
            consumes in g Passively Clustering LastOffset
              %RETRY%g TAG '*' v1796006334701 []
              t TAG 'TagA || TagB' v1796006334701 [2598919, 2598920]
        "#]],
    );
}

#[test]
fn go_heartbeats_have_text_for_codes_and_may_have_null_for_lists() {
    check_heartbeat(
        r#"{"clientID":"c","producerDataSet":null,"consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY","messageModel":"BROADCASTING","consumeFromWhere":"CONSUME_FROM_TIMESTAMP","subscriptionDataSet":[{"classFilterMode":false,"topic":"t","subString":"\u8ba2\u5355","tagsSet":["\u8ba2\u5355"],"codeSet":["-1782228175"],"subVersion":1796006812810393526,"expressionType":"TAG"}],"unitMode":false}]}"#,
        expect![[r#"
            c
            consumes in g Passively Broadcasting Timestamp
              t TAG '\u{8ba2}\u{5355}' v1796006812810393526 [1129459]
        "#]],
    );
}

#[test]
fn subscriptions_are_written_with_java_codes() {
    let data = SubscriptionData::by_tags("t", "TagB||TagA", 7);
    let body = CheckClientConfig { client_id: "c".into(), group: "g".into(), subscription_data: data, namespace: None };
    assert_eq!(
        body.encode(),
        r#"{"clientId":"c","group":"g","subscriptionData":{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagB||TagA","subVersion":7,"tagsSet":["TagB","TagA"],"topic":"t"}}"#
    );
    let all = SubscriptionData::by_tags("t", " ", 7);
    assert!(all.matches_all() && all.codes().is_empty() && all.expression == "*");
}

#[test]
fn unknown_enum_values_are_refused() {
    let heartbeat = |kind: &str| {
        let body = format!(
            r#"{{"clientID":"c","consumerDataSet":[{{"groupName":"g","consumeType":{kind},"messageModel":0,"consumeFromWhere":0}}]}}"#
        );
        HeartbeatData::decode(body.as_bytes())
    };
    for kind in ["1", r#""1""#, r#""CONSUME_POP""#] {
        assert!(heartbeat(kind).is_ok(), "{kind}");
    }
    for kind in ["9", "-1", r#""CONSUME""#, "null", "1.0"] {
        assert!(matches!(heartbeat(kind), Err(BodyError::Shape(_))), "{kind}");
    }
}

#[test]
fn routes_are_written_as_go_needs_them() {
    let route = TopicRouteData {
        broker_datas: vec![BrokerData {
            broker_addrs: BTreeMap::from([(0, "127.0.0.1:10911".into()), (2, "127.0.0.1:10921".into())]),
            broker_name: "broker-a".into(),
            cluster: "C".into(),
            enable_acting_master: false,
        }],
        queue_datas: vec![QueueData {
            broker_name: "broker-a".into(),
            perm: 6,
            read_queue_nums: 4,
            topic_sys_flag: 0,
            write_queue_nums: 4,
        }],
        ..TopicRouteData::default()
    };
    assert_eq!(
        route.encode(),
        r#"{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911","2":"127.0.0.1:10921"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#
    );
    assert_eq!(TopicRouteData::default().encode(), r#"{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}"#);
    // As Java writes it to clients that do not ask for plain JSON.
    let java = r#"{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",2:"127.0.0.1:10921"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}"#;
    assert_eq!(TopicRouteData::decode(java.as_bytes()).unwrap(), route);
}

#[test]
fn tables_by_queue_have_objects_as_keys() {
    let queue = MessageQueue { broker_name: "b".into(), queue_id: 1, topic: "T".into() };
    let table = ResetOffsetTable { offset_table: [(queue, 7)].into_iter().collect() };
    assert_eq!(table.encode(), r#"{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:7}}"#);
    assert_eq!(
        ResetOffsetList::from(&table).encode(),
        r#"{"offsetTable":[{"brokerName":"b","offset":7,"queueId":1,"topic":"T"}]}"#
    );
    // Blanks, another order, numbers in quotes.
    let other = "{ \"offsetTable\" : { { \"topic\" : \"T\", \"queueId\":\"1\",\n\"brokerName\":\"b\" } : 7 } }\n";
    assert_eq!(ResetOffsetTable::decode(other.as_bytes()).unwrap(), table);
    assert_eq!(ResetOffsetTable::decode(br#"{"offsetTable":null}"#).unwrap(), ResetOffsetTable::default());
    assert_eq!(ResetOffsetTable::decode(b"{}").unwrap(), ResetOffsetTable::default());
}

#[test]
fn running_infos_of_python_wrap_and_quote_their_numbers() {
    let body = br#"{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"cachedMsgCount":0,"commitOffset":"18446744073709551615","droped":true,"lastPullTimestamp":"1796006383702"},{"brokerName":"b","queueId":1,"topic":"T"}:{"dropped":true}},"properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"}}"#;
    let info = ConsumerRunningInfo::decode(body).unwrap();
    let first = info.mq_table.values().next().unwrap();
    assert_eq!((first.commit_offset, first.last_pull_timestamp), (-1, 1_796_006_383_702));
    assert!(info.mq_table.values().all(|queue| queue.dropped));
}

#[test]
fn results_may_be_numbers() {
    let go = br#"{"order":false,"autoCommit":true,"consumeResult":0,"remark":"","spentTimeMills":0}"#;
    assert_eq!(ConsumeDirectlyResult::decode(go).unwrap().consume_result, ConsumeResult::Success);
    let java = br#"{"autoCommit":true,"consumeResult":"CR_LATER","order":false,"spentTimeMills":2}"#;
    assert_eq!(ConsumeDirectlyResult::decode(java).unwrap().consume_result, ConsumeResult::Later);
}

#[test]
fn a_group_nobody_configured_has_the_usual_settings() {
    assert_eq!(
        SubscriptionGroupConfig::new("g").encode(),
        r#"{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}"#
    );
    let partial = SubscriptionGroupConfig::decode(br#"{"groupName":"g"}"#).unwrap();
    assert_eq!(partial, SubscriptionGroupConfig::new("g"));
}

#[test]
fn bodies_beyond_the_limits_are_refused() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let decode = |text: &str| HeartbeatData::decode(text.as_bytes()).unwrap_err();
    let dialect = |text: &str| match decode(text) {
        BodyError::Dialect(error) => error,
        other => panic!("{other}"),
    };
    assert_eq!(dialect(&nested(33)), JsonError::Depth);
    assert_eq!(dialect(&format!("{}:1}}", "{".repeat(40))), JsonError::Depth);
    let producers =
        |count| format!(r#"{{"clientID":"c","producerDataSet":[{}]}}"#, vec![r#"{"groupName":"g"}"#; count].join(","));
    assert_eq!(HeartbeatData::decode(producers(4096).as_bytes()).unwrap().producers.len(), 4096);
    assert_eq!(dialect(&producers(4097)), JsonError::Count);
    assert!(matches!(decode(&" ".repeat(1024 * 1024 + 1)), BodyError::Length { .. }));
    assert_eq!(dialect(""), JsonError::Truncated);
    assert_eq!(dialect("{} x"), JsonError::Trailing);
    assert_eq!(dialect(r#"{:1}"#), JsonError::Unexpected);
    assert!(matches!(HeartbeatData::decode(b"\xff"), Err(BodyError::Layout(_))));
    assert!(matches!(decode(r#"{"clientID":1}"#), BodyError::Shape(_)));
}

#[test]
fn compressed_registrations_read_back() {
    let mut body = RegisterBrokerBody::default();
    body.topics.data_version = DataVersion { counter: 3, state_version: 1, timestamp: 1_796_006_223_580 };
    let mut topic = TopicConfig::new("T", 4, 6);
    topic.write_queue_nums = 8;
    topic.attributes.insert("+message.type".into(), "a b".into());
    for topic in [topic, TopicConfig::new("%RETRY%g", 1, 6)] {
        body.topics.topic_config_table.insert(topic.topic_name.clone(), topic);
    }
    let compressed = body.encode_compressed();
    assert_eq!(RegisterBrokerBody::decode_compressed(&compressed).unwrap(), body);
    assert!(RegisterBrokerBody::decode_compressed(&compressed[..compressed.len() / 2]).is_err());
    assert!(RegisterBrokerBody::decode_compressed(b"").is_err());
}

#[test]
fn settings_are_lines() {
    let text = encode_config_text([("brokerName", "broker-a"), ("note", "one\ntwo")]);
    assert_eq!(text, "brokerName=broker-a\nnote=one\n");
    let read = decode_config_text(b"# comment\n\n brokerName = broker-a \r\nempty=\nalone\n").unwrap();
    assert_eq!(
        read,
        BTreeMap::from([
            ("brokerName".into(), "broker-a".into()),
            ("empty".into(), String::new()),
            ("alone".into(), String::new())
        ])
    );
}
