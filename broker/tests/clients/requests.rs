//! One group on one node: what each request does and answers.

use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use protocol::body::{
    ConsumeFromWhere, ConsumeStats, ConsumeType, ConsumerConnection, ConsumerData, ConsumerList, GroupList,
    HeartbeatData, KvTable, LockRequest, LockResponse, MessageModel, MessageQueue, ProducerData, QueryConsumeQueueBody,
    ResetOffsetTable, SubscriptionData, TopicConfig, TopicStats,
};
use protocol::message::{BatchItem, OffsetMessageId, RecordView, encode_batch_item, iter_records};
use protocol::{LanguageCode, RemotingCommand, RequestCode, ResponseCode};

use crate::cluster::{BROKER, Client, Cluster, soon};

/// A request with ext fields.
pub(crate) fn request(code: RequestCode, fields: &[(&str, &str)]) -> RemotingCommand {
    let mut request = RemotingCommand::request(code);
    for (key, value) in fields {
        request.ext.push(key, value);
    }
    request
}

/// A message in the short form.
pub(crate) fn message(topic: &str, queue_id: i32, body: &str, properties: &str) -> RemotingCommand {
    let queue_id = queue_id.to_string();
    request(
        RequestCode::SEND_MESSAGE_V2,
        &[
            ("a", "p"),
            ("b", topic),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", &queue_id),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "5"),
            ("i", properties),
            ("j", "0"),
            ("k", "false"),
            ("m", "false"),
        ],
    )
    .with_body(body.to_owned())
}

pub(crate) fn pull(topic: &str, queue_id: i32, offset: i64, flags: i32, hold_ms: u64) -> RemotingCommand {
    request(RequestCode::PULL_MESSAGE, &[("consumerGroup", "g"), ("topic", topic), ("subscription", "*")])
        .with_ext("queueId", queue_id)
        .with_ext("queueOffset", offset)
        .with_ext("maxMsgNums", 32)
        .with_ext("sysFlag", flags)
        .with_ext("commitOffset", 0)
        .with_ext("suspendTimeoutMillis", hold_ms)
        .with_ext("subVersion", 0)
}

pub(crate) fn heartbeat(client_id: &str, group: &str, topic: &str) -> RemotingCommand {
    let subscription = |topic: &str| SubscriptionData::by_tags(topic, "*", 1);
    let beat = HeartbeatData {
        client_id: client_id.to_owned(),
        producers: vec![ProducerData { group: "p".to_owned() }],
        consumers: vec![ConsumerData {
            group: group.to_owned(),
            consume_type: ConsumeType::Passively,
            message_model: MessageModel::Clustering,
            consume_from_where: ConsumeFromWhere::LastOffset,
            subscriptions: vec![subscription(topic), subscription(&format!("%RETRY%{group}"))],
            unit_mode: false,
        }],
        fingerprint: 0,
        without_subscriptions: false,
    };
    RemotingCommand::request(RequestCode::HEART_BEAT).with_body(beat.encode())
}

pub(crate) fn offsets(code: RequestCode, group: &str, topic: &str, queue_id: i32) -> RemotingCommand {
    request(code, &[("consumerGroup", group), ("topic", topic)]).with_ext("queueId", queue_id)
}

#[track_caller]
pub(crate) fn check(answer: &RemotingCommand, code: i32, fields: &[(&str, &str)]) {
    assert_eq!(answer.code, code, "{answer:?}");
    for (key, value) in fields {
        assert_eq!(answer.ext.get(key), Some(*value), "{key} of {answer:?}");
    }
}

fn bodies(answer: &RemotingCommand) -> Vec<String> {
    let records = iter_records(&answer.body).map(Result::unwrap);
    records.map(|record| String::from_utf8(record.body().to_vec()).unwrap()).collect()
}

/// Waits until everything that was acknowledged can be read: the answer to this comes after that.
pub(crate) async fn settled(client: &Client) {
    let max = request(RequestCode::GET_MAX_OFFSET, &[("topic", "T"), ("queueId", "0")]);
    check(&client.call(max).await, 0, &[]);
}

/// Waits until a group that a heartbeat named exists.
pub(crate) async fn group_exists(client: &Client, group: &str) {
    let wait = async {
        loop {
            let config = client.call(request(RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG, &[("group", group)])).await;
            let retry = format!("%RETRY%{group}");
            let topic = client.call(request(RequestCode::GET_TOPIC_CONFIG, &[("topic", &retry)])).await;
            if config.is_success() && topic.is_success() {
                return;
            }
        }
    };
    soon("the group is created", wait).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_stored_once_and_read_back_as_it_was_sent() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    let sent = client.call(message("T", 2, "hello", "TAGS\u{1}A\u{2}KEYS\u{1}k1 k2\u{2}UNIQ_KEY\u{1}U1\u{2}")).await;
    check(
        &sent,
        0,
        &[
            ("queueId", "2"),
            ("queueOffset", "0"),
            ("transactionId", "U1"),
            ("MSG_REGION", "DefaultRegion"),
            ("TRACE_ON", "true"),
        ],
    );
    let id: OffsetMessageId = sent.ext.get("msgId").unwrap().parse().unwrap();
    assert_eq!(id.store_host, node.addr);

    settled(&client).await;
    let pulled = client.call(pull("T", 2, 0, 4, 0)).await;
    check(
        &pulled,
        0,
        &[
            ("suggestWhichBrokerId", "0"),
            ("nextBeginOffset", "1"),
            ("minOffset", "0"),
            ("maxOffset", "1"),
            ("topicSysFlag", "0"),
            ("groupSysFlag", "0"),
        ],
    );
    assert_eq!(pulled.remark.as_deref(), Some("FOUND"));
    let record = RecordView::parse(&pulled.body).unwrap();
    assert_eq!(record.topic(), "T");
    assert_eq!(record.queue_id(), 2);
    assert_eq!(record.flag(), 5);
    assert_eq!(record.queue_offset(), 0);
    assert_eq!(record.physical_offset(), id.physical_offset);
    assert_eq!(record.born_timestamp(), 1_700_000_000_000);
    assert_eq!(record.born_host().ip().to_string(), "127.0.0.1");
    assert_eq!(record.store_host(), node.addr);
    assert_eq!(record.body(), b"hello");
    assert!(record.body_crc_agrees());
    let properties = record.properties();
    for (name, value) in [
        ("TAGS", "A"),
        ("KEYS", "k1 k2"),
        ("UNIQ_KEY", "U1"),
        ("MSG_REGION", "DefaultRegion"),
        ("CLUSTER", "DefaultCluster"),
        ("TRACE_ON", "true"),
    ] {
        assert_eq!(properties.get(name), Some(value), "{name}");
    }

    let place = id.physical_offset.to_string();
    let viewed = client.call(request(RequestCode::VIEW_MESSAGE_BY_ID, &[("offset", &place)])).await;
    assert_eq!(viewed.body, pulled.body);
    let missed = client.call(request(RequestCode::VIEW_MESSAGE_BY_ID, &[("offset", "7")])).await;
    check(&missed, 1, &[]);
    for (key, unique, found) in [("k2", "false", true), ("U1", "true", true), ("k3", "false", false)] {
        let query = request(
            RequestCode::QUERY_MESSAGE,
            &[("topic", "T"), ("key", key), ("maxNum", "32"), ("beginTimestamp", "0"), ("_UNIQUE_KEY_QUERY", unique)],
        )
        .with_ext("endTimestamp", i64::MAX);
        let answer = client.call(query).await;
        check(&answer, if found { 0 } else { 22 }, &[]);
        assert!(answer.ext.get("indexLastUpdateTimestamp").is_some());
        assert!(answer.ext.get("indexLastUpdatePhyoffset").is_some());
        assert_eq!(answer.body == pulled.body, found, "{key}");
    }
    let entries =
        request(RequestCode::QUERY_CONSUME_QUEUE, &[("topic", "T"), ("queueId", "2"), ("index", "0"), ("count", "3")]);
    let entries = QueryConsumeQueueBody::decode(&client.call(entries).await.body).unwrap();
    assert_eq!((entries.min_queue_index, entries.max_queue_index), (0, 1));
    assert_eq!(entries.queue_data[0].physical_offset, id.physical_offset);
    assert_eq!(entries.queue_data[0].tags_code, 65);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_of_a_send_is_understood() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    // Without a key of its own a message gets one.
    let sent = client.call(message("T", -1, "", "")).await;
    check(&sent, 0, &[("queueOffset", "0")]);
    assert_eq!(sent.ext.get("transactionId").unwrap().len(), 32);

    let long = request(
        RequestCode::SEND_MESSAGE,
        &[
            ("producerGroup", "p"),
            ("topic", "T"),
            ("defaultTopic", "TBW102"),
            ("defaultTopicQueueNums", "4"),
            ("queueId", "0"),
            ("sysFlag", "0"),
            ("bornTimestamp", "1"),
            ("flag", "0"),
            ("properties", "UNIQ_KEY\u{1}L\u{2}"),
        ],
    );
    check(&client.call(long.with_body("long")).await, 0, &[("queueId", "0"), ("transactionId", "L")]);

    let mut items = BytesMut::new();
    for (body, properties) in [("one", "KEYS\u{1}1\u{2}"), ("two", "TAGS\u{1}x"), ("", "")] {
        encode_batch_item(&BatchItem { flag: 0, body: body.as_bytes(), properties }, &mut items).unwrap();
    }
    let items = items.freeze();
    let mut batch = message("B", 1, "", "WAIT\u{1}true");
    batch.code = RequestCode::SEND_BATCH_MESSAGE.0;
    let by_flag = message("B", 1, "", "").with_ext("m", "true");
    let mut deflater = ZlibEncoder::new(Vec::new(), Compression::fast());
    deflater.write_all(&items).unwrap();
    let deflated = Bytes::from(deflater.finish().unwrap());
    let compressed = message("B", 1, "", "").with_ext("m", "true").with_ext("f", "1");
    for (batch, items, first) in [(batch, &items, "0"), (by_flag, &items, "3"), (compressed, &deflated, "6")] {
        let sent = client.call(batch.with_body(items.clone())).await;
        check(&sent, 0, &[("queueOffset", first), ("queueId", "1")]);
        assert_eq!(sent.ext.get("msgId").unwrap().split(',').count(), 3);
        assert_eq!(sent.ext.get("transactionId"), None);
    }
    settled(&client).await;
    assert_eq!(bodies(&client.call(pull("B", 1, 0, 4, 0)).await), ["one", "two", ""].repeat(3));

    let illegal = message("B", 1, "", "").with_ext("m", "true").with_body(Bytes::from_static(b"\0\0\0\x09junk"));
    check(&client.call(illegal).await, 13, &[("MSG_REGION", "DefaultRegion"), ("TRACE_ON", "true")]);
    check(&client.call(message("T", 99, "x", "")).await, 29, &[("TRACE_ON", "true")]);
    let nowhere = message("nowhere", 0, "x", "").with_ext("c", "no_template");
    check(&client.call(nowhere).await, 17, &[]);
    check(&client.call(message("T", 0, "x", "TIMER_DELAY_SEC\u{1}soon\u{2}")).await, 13, &[]);
    check(&client.call(message("a/b", 0, "x", "")).await, 29, &[]);
    let no_fields = client.call(RemotingCommand::request(RequestCode::SEND_MESSAGE_V2)).await;
    check(&no_fields, 1, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_sql_expression_selects_by_properties() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    for number in 0..9 {
        let properties = format!("a\u{1}{number}\u{2}TAGS\u{1}tag{}\u{2}", number % 2);
        client.call(message("T", 0, &number.to_string(), &properties)).await;
    }
    settled(&client).await;
    let sql = |expression: &str| {
        pull("T", 0, 0, 4, 0).with_ext("expressionType", "SQL92").with_ext("subscription", expression)
    };
    let some = client.call(sql("a BETWEEN 3 AND 7 AND TAGS = 'tag1' OR a = 8")).await;
    check(&some, 0, &[("nextBeginOffset", "9")]);
    assert_eq!(bodies(&some), ["3", "5", "7", "8"]);
    check(&client.call(sql("b = 1")).await, 20, &[("nextBeginOffset", "9")]);
    // Java asks about its expression before it starts.
    let check_config = |expression: &str| {
        let body = format!(
            r#"{{"clientId":"c","group":"g","subscriptionData":{{"topic":"T","subString":"{expression}","expressionType":"SQL92"}}}}"#
        );
        request(RequestCode::CHECK_CLIENT_CONFIG, &[]).with_body(body)
    };
    check(&client.call(check_config("a = 1")).await, 0, &[]);
    check(&client.call(check_config("a = = 1")).await, 23, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_pull_wakes_for_its_tag_and_only_for_it() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    client.call(message("T", 0, "first", "")).await;
    settled(&client).await;
    // Tag A only, and it may wait.
    let waiting = pull("T", 0, 1, 6, 15_000).with_ext("subscription", "A");
    let consumer = client.clone();
    let held = tokio::spawn(async move { consumer.call(waiting).await });
    let wait = async {
        while node.group.held_pulls() == 0 {
            tokio::task::yield_now().await;
        }
    };
    soon("the pull is held", wait).await;
    client.call(message("T", 0, "for others", "TAGS\u{1}B\u{2}")).await;
    client.call(message("T", 1, "elsewhere", "TAGS\u{1}A\u{2}")).await;
    assert_eq!(node.group.held_pulls(), 1);
    client.call(message("T", 0, "for us", "TAGS\u{1}A\u{2}")).await;
    let answer = soon("the pull is woken", held).await.unwrap();
    check(&answer, 0, &[("nextBeginOffset", "3"), ("maxOffset", "3")]);
    assert_eq!(bodies(&answer), ["for us"]);

    // Without leave to wait, or when its time is over, a pull comes back with the same offset.
    for pull in [pull("T", 0, 3, 4, 15_000), pull("T", 0, 3, 6, 1)] {
        let answer = client.call(pull).await;
        check(&answer, 19, &[("nextBeginOffset", "3"), ("minOffset", "0"), ("maxOffset", "3")]);
        assert_eq!(answer.remark.as_deref(), Some("OFFSET_OVERFLOW_ONE"));
    }
    check(&client.call(pull("T", 3, 0, 4, 0)).await, 19, &[("nextBeginOffset", "0"), ("maxOffset", "0")]);
    check(&client.call(pull("T", 0, 9, 4, 0)).await, 21, &[("nextBeginOffset", "3")]);
    check(&client.call(pull("T", 0, -1, 4, 0)).await, 21, &[("nextBeginOffset", "0")]);
    check(&client.call(pull("T", 3, 1, 4, 0)).await, 21, &[("nextBeginOffset", "0")]);
    let unmatched = pull("T", 0, 0, 4, 0).with_ext("subscription", "Z");
    check(&client.call(unmatched).await, 20, &[("nextBeginOffset", "3")]);

    check(&client.call(pull("T", 77, 0, 4, 0)).await, 29, &[]);
    check(&client.call(pull("nowhere", 0, 0, 4, 0)).await, 17, &[]);
    check(&client.call(pull("T", 0, 0, 0, 0)).await, 24, &[]);
    client.call(heartbeat("c1", "g", "T")).await;
    check(&client.call(pull("T", 0, 0, 0, 0)).await, 0, &[]);
    check(&client.call(pull("T", 0, 0, 0, 0).with_ext("subVersion", 2)).await, 25, &[]);
    check(&client.call(pull("B", 0, 0, 0, 0)).await, 17, &[]);
    let sql = pull("T", 0, 0, 4, 0).with_ext("expressionType", "SQL92").with_ext("subscription", "a = ");
    let refused = client.call(sql).await;
    check(&refused, 23, &[]);
    let expected = "the expression is not understood at character 5: expected a property or a value, found the end";
    assert_eq!(refused.remark.as_deref(), Some(expected));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_held_pull_goes_with_its_connection() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    client.call(message("T", 0, "first", "")).await;
    settled(&client).await;
    let consumer = node.client();
    let other = consumer.clone();
    let held = tokio::spawn(async move {
        let request = pull("T", 0, 1, 6, 15_000);
        tokio::select! {
            _ = other.call(request) => panic!("nothing arrives"),
            () = std::future::pending() => {}
        }
    });
    let becomes = async |count| {
        while node.group.held_pulls() != count {
            tokio::task::yield_now().await;
        }
    };
    soon("the pull is held", becomes(1)).await;
    held.abort();
    consumer.close().await;
    soon("the pull is dropped", becomes(0)).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_are_stored_and_found() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let client = node.client();
    for index in 0..3 {
        client.call(message("T", 1, &format!("{index}"), "")).await;
    }
    client.call(heartbeat("c1", "g", "T")).await;
    group_exists(&client, "g").await;

    let query = |queue_id| offsets(RequestCode::QUERY_CONSUMER_OFFSET, "g", "T", queue_id);
    let update =
        |offset: i64| offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "T", 1).with_ext("commitOffset", offset);
    let none = client.call(query(0)).await;
    check(&none, 22, &[]);
    assert_eq!(none.remark.as_deref(), Some("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"));
    check(&client.call(query(1)).await, 0, &[("offset", "0")]);
    check(&client.call(query(1).with_ext("setZeroIfNotFound", "false")).await, 22, &[]);
    check(&client.call(update(2)).await, 0, &[]);
    check(&client.call(query(1)).await, 0, &[("offset", "2")]);
    // One-way commits and those on the way of a pull count as soon as anybody asks.
    client.send_oneway(update(3)).await;
    check(&client.call(query(1)).await, 0, &[("offset", "3")]);
    client.call(pull("T", 1, 0, 5, 0).with_ext("commitOffset", 1)).await;
    check(&client.call(query(1)).await, 0, &[("offset", "1")]);
    check(&client.call(update(4)).await, 1, &[]);
    check(&client.call(update(-5)).await, 0, &[]);
    check(&client.call(query(1)).await, 0, &[("offset", "0")]);

    let nowhere = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "nowhere", 0).with_ext("commitOffset", 1);
    check(&client.call(nowhere).await, 17, &[]);
    let nobody = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "nobody", "T", 0).with_ext("commitOffset", 0);
    check(&client.call(nobody).await, 26, &[]);
    // Whoever has just said that it is there may commit at once.
    client.call(heartbeat("c1", "young", "T")).await;
    let young = offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "young", "T", 1).with_ext("commitOffset", 2);
    check(&client.call(young).await, 0, &[]);

    let queue = |code, queue_id: i32| request(code, &[("topic", "T")]).with_ext("queueId", queue_id);
    check(&client.call(queue(RequestCode::GET_MAX_OFFSET, 1)).await, 0, &[("offset", "3")]);
    check(&client.call(queue(RequestCode::GET_MAX_OFFSET, 99)).await, 0, &[("offset", "0")]);
    check(&client.call(queue(RequestCode::GET_MIN_OFFSET, 1)).await, 0, &[("offset", "0")]);
    check(&client.call(queue(RequestCode::GET_EARLIEST_MSG_STORETIME, 0)).await, 0, &[("timestamp", "-1")]);
    let earliest = client.call(queue(RequestCode::GET_EARLIEST_MSG_STORETIME, 1)).await;
    assert!(earliest.ext.get("timestamp").unwrap().parse::<i64>().unwrap() > 1_700_000_000_000);
    let search = |time: i64| queue(RequestCode::SEARCH_OFFSET_BY_TIMESTAMP, 1).with_ext("timestamp", time);
    check(&client.call(search(0)).await, 0, &[("offset", "0")]);
    check(&client.call(search(i64::MAX)).await, 0, &[("offset", "3")]);
    check(&client.call(search(i64::MAX).with_ext("boundaryType", "UPPER")).await, 0, &[("offset", "2")]);
    check(&client.call(request(RequestCode::GET_MAX_OFFSET, &[])).await, 1, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_learn_of_each_other() {
    let cluster = Cluster::start(1).await;
    let node = cluster.leader().await;
    let (first, second) = (node.client(), node.client());
    let beat = first.call(heartbeat("c1", "g", "T")).await;
    check(&beat, 0, &[("IS_SUPPORT_HEART_BEAT_V2", "false"), ("IS_SUB_CHANGE", "true")]);
    assert!(beat.version >= 232, "Java consumers want to know that filters by SQL are understood");
    first.asked(RequestCode::NOTIFY_CONSUMER_IDS_CHANGED).await;
    second.call(heartbeat("c2", "g", "T")).await;
    let notice = first.asked(RequestCode::NOTIFY_CONSUMER_IDS_CHANGED).await;
    assert!(notice.is_oneway());
    assert_eq!(notice.ext.get("consumerGroup"), Some("g"));

    let list = async |group: &str| {
        let answer = first.call(request(RequestCode::GET_CONSUMER_LIST_BY_GROUP, &[("consumerGroup", group)])).await;
        (answer.code, ConsumerList::decode(&answer.body).map(|list| list.consumer_id_list).unwrap_or_default())
    };
    assert_eq!(list("g").await, (0, vec!["c1".to_owned(), "c2".to_owned()]));
    assert_eq!(list("nobody").await, (1, vec![]));
    let connections = request(RequestCode::GET_CONSUMER_CONNECTION_LIST, &[("consumerGroup", "g")]);
    let connections = ConsumerConnection::decode(&first.call(connections).await.body).unwrap();
    assert_eq!(connections.connection_set.len(), 2);
    assert_eq!(connections.subscription_table["T"].expression, "*");
    let offline = request(RequestCode::GET_CONSUMER_CONNECTION_LIST, &[("consumerGroup", "nobody")]);
    check(&first.call(offline).await, 206, &[]);

    // What tools ask a client passes through the broker.
    let running = |client_id| {
        let fields = [("consumerGroup", "g"), ("clientId", client_id), ("jstackEnable", "false")];
        request(RequestCode::GET_CONSUMER_RUNNING_INFO, &fields)
    };
    let answer = first.call(running("c2")).await;
    assert_eq!(answer.body, "answer to 307");
    assert_eq!(second.asked(RequestCode::GET_CONSUMER_RUNNING_INFO).await.ext.get("jstackEnable"), Some("false"));
    check(&first.call(running("c9")).await, 1, &[]);

    group_exists(&first, "g").await;
    second.close().await;
    // A young leader repeats its notices, so one of before may come first; the last one finds the new list.
    loop {
        first.asked(RequestCode::NOTIFY_CONSUMER_IDS_CHANGED).await;
        let (code, ids) = list("g").await;
        assert_eq!(code, 0);
        if ids == ["c1"] {
            break;
        }
        assert_eq!(ids, ["c1", "c2"]);
    }
    let leave =
        request(RequestCode::UNREGISTER_CLIENT, &[("clientID", "c1"), ("consumerGroup", "g"), ("producerGroup", "")]);
    check(&first.call(leave).await, 0, &[]);
    assert_eq!(list("g").await, (1, vec![]));
    cluster.stop().await;
}

/// The codes that RocketMQ answers in each of these states: a client's heartbeat may come after its pulls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_that_relies_on_a_heartbeat_is_refused_until_it_came() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    client.call(message("T", 0, "one", "")).await;
    settled(&client).await;
    let pull = |version: i64, flags: i32| pull("T", 0, 1, flags, 0).with_ext("subVersion", version);
    let beat = |version: i64| {
        let mut beat = HeartbeatData::decode(&heartbeat("c", "g", "T").body).unwrap();
        beat.consumers[0].subscriptions[0].version = version;
        RemotingCommand::request(RequestCode::HEART_BEAT).with_body(beat.encode())
    };
    check(&client.call(pull(100, 0)).await, 24, &[]);
    check(&client.call(beat(100)).await, 0, &[]);
    check(&client.call(pull(100, 0)).await, 19, &[("nextBeginOffset", "1")]);
    check(&client.call(pull(200, 0)).await, 25, &[]);
    check(&client.call(pull(50, 0)).await, 19, &[]);
    // With the subscription in the pull itself no heartbeat is asked for.
    check(&client.call(pull(200, 4)).await, 19, &[]);
    check(&client.call(beat(200)).await, 0, &[]);
    check(&client.call(pull(200, 0)).await, 19, &[]);
    // An older heartbeat that comes late takes nothing back.
    check(&client.call(beat(150)).await, 0, &[]);
    check(&client.call(pull(200, 0)).await, 19, &[]);
    let mut without = HeartbeatData::decode(&heartbeat("c", "g", "T").body).unwrap();
    without.consumers[0].subscriptions.clear();
    check(&client.call(RemotingCommand::request(RequestCode::HEART_BEAT).with_body(without.encode())).await, 0, &[]);
    check(&client.call(pull(200, 0)).await, 24, &[]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_gets_no_answer_rather_than_an_empty_member_list() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let mut question = request(RequestCode::GET_CONSUMER_LIST_BY_GROUP, &[("consumerGroup", "nobody")]);
    question.language = LanguageCode::Go;
    let other = client.clone();
    let unanswered = tokio::spawn(async move { other.call(question).await });
    // Requests of one connection are handled in order, so an answer would have come before this one.
    client.call(request(RequestCode::GET_BROKER_CONFIG, &[])).await;
    assert!(!unanswered.is_finished());
    unanswered.abort();
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_are_locked_for_one_client_at_a_time() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    client.call(message("T", 0, "x", "")).await;
    let queue = |queue_id| MessageQueue { broker_name: BROKER.to_owned(), queue_id, topic: "T".to_owned() };
    let body = |client_id: &str, queues: &[i32]| LockRequest {
        client_id: client_id.to_owned(),
        consumer_group: "g".to_owned(),
        mq_set: queues.iter().map(|queue_id| queue(*queue_id)).collect(),
        only_this_broker: false,
    };
    let lock = async |client_id: &str, queues: &[i32]| {
        let request = RemotingCommand::request(RequestCode::LOCK_BATCH_MQ).with_body(body(client_id, queues).encode());
        let answer = client.call(request).await;
        check(&answer, 0, &[]);
        let mut held: Vec<_> = LockResponse::decode(&answer.body).unwrap().locked.iter().map(|q| q.queue_id).collect();
        held.sort_unstable();
        held
    };
    assert_eq!(lock("c1", &[0, 1]).await, [0, 1]);
    assert_eq!(lock("c2", &[1, 2]).await, [2]);
    assert_eq!(lock("c1", &[0, 1, 2]).await, [0, 1]);
    let unlock = RemotingCommand::request(RequestCode::UNLOCK_BATCH_MQ).with_body(body("c1", &[1]).encode());
    check(&client.call(unlock).await, 0, &[]);
    assert_eq!(lock("c2", &[1]).await, [1]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_and_groups_are_administered() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let create = |topic: &str, perm: i32| {
        request(
            RequestCode::UPDATE_AND_CREATE_TOPIC,
            &[("topic", topic), ("defaultTopic", "TBW102"), ("order", "false")],
        )
        .with_ext("readQueueNums", 3)
        .with_ext("writeQueueNums", 2)
        .with_ext("perm", perm)
        .with_ext("topicFilterType", "SINGLE_TAG")
        .with_ext("topicSysFlag", 0)
        .with_ext("attributes", "+message.type=NORMAL")
    };
    check(&client.call(create("T", 6)).await, 0, &[]);
    let topic = |name: &str| request(RequestCode::GET_TOPIC_CONFIG, &[("topic", name)]);
    let config = TopicConfig::decode(&client.call(topic("T")).await.body).unwrap();
    assert_eq!((config.read_queue_nums, config.write_queue_nums, config.perm), (3, 2, 6));
    assert_eq!(config.attributes["message.type"], "NORMAL");
    check(&client.call(create("TBW102", 6)).await, 29, &[]);
    check(&client.call(create(BROKER, 6)).await, 29, &[]);
    check(&client.call(create("a b", 6)).await, 29, &[]);
    check(&client.call(topic("nowhere")).await, 17, &[]);
    let stats = request(RequestCode::GET_TOPIC_STATS_INFO, &[("topic", "T")]);
    let stats = TopicStats::decode(&client.call(stats).await.body).unwrap();
    assert_eq!(stats.offset_table.len(), 3, "a new topic shows its queues");

    client.call(create("T", 4)).await;
    check(&client.call(message("T", 0, "x", "")).await, 16, &[]);
    client.call(create("T", 6)).await;
    check(&client.call(message("T", 0, "x", "")).await, 0, &[]);
    let delete = |topic: &str| request(RequestCode::DELETE_TOPIC_IN_BROKER, &[("topic", topic)]);
    check(&client.call(delete("T")).await, 0, &[]);
    check(&client.call(topic("T")).await, 17, &[]);
    check(&client.call(delete("T")).await, 0, &[]);
    check(&client.call(delete("SELF_TEST_TOPIC")).await, 29, &[]);

    let put =
        |json: &'static str| RemotingCommand::request(RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP).with_body(json);
    check(&client.call(put(r#"{"groupName":"g","consumeEnable":false}"#)).await, 0, &[]);
    check(&client.call(put(r#"{"groupName":"a/b"}"#)).await, 29, &[]);
    client.call(message("T", 0, "x", "")).await;
    settled(&client).await;
    check(&client.call(pull("T", 0, 0, 4, 0)).await, 16, &[]);
    let remove = request(RequestCode::DELETE_SUBSCRIPTIONGROUP, &[("groupName", "g"), ("cleanOffset", "true")]);
    check(&client.call(remove).await, 0, &[]);
    check(&client.call(request(RequestCode::GET_SUBSCRIPTIONGROUP_CONFIG, &[("group", "g")])).await, 26, &[]);
    check(&client.call(pull("T", 0, 0, 4, 0)).await, 0, &[]);

    // The first is the field of tools of 4.9.
    for field in ["removeOffset", "cleanOffset"] {
        check(&client.call(put(r#"{"groupName":"h"}"#)).await, 0, &[]);
        let place = [("consumerGroup", "h"), ("topic", "T"), ("queueId", "0"), ("commitOffset", "1")];
        check(&client.call(request(RequestCode::UPDATE_CONSUMER_OFFSET, &place)).await, 0, &[]);
        let has_place = async || {
            let all = client.call(request(RequestCode::GET_ALL_CONSUMER_OFFSET, &[])).await;
            String::from_utf8(all.body.to_vec()).unwrap().contains("T@h")
        };
        assert!(has_place().await, "its place is stored");
        let remove = |value| request(RequestCode::DELETE_SUBSCRIPTIONGROUP, &[("groupName", "h"), (field, value)]);
        check(&client.call(remove("false")).await, 0, &[]);
        assert!(has_place().await, "its place may be wanted later");
        check(&client.call(remove("true")).await, 0, &[]);
        assert!(!has_place().await, "{field}");
    }

    let unknown = client.call(RemotingCommand::request(RequestCode(9_999))).await;
    check(&unknown, 3, &[]);
    assert_eq!(unknown.remark.as_deref(), Some(" request type 9999 not supported"));
    check(&client.call(request(RequestCode::UPDATE_BROKER_CONFIG, &[]).with_body("a=b")).await, 16, &[]);
    let runtime = client.call(request(RequestCode::GET_BROKER_RUNTIME_INFO, &[])).await;
    let table = KvTable::decode(&runtime.body).unwrap().table;
    assert_eq!(table["brokerActive"], "true");
    assert_eq!(table["commitLogDiskRatio"], "0.60");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_consumer_cannot_handle_comes_again_and_then_goes_to_the_dead_letters() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    client.call(heartbeat("c1", "g", "T")).await;
    group_exists(&client, "g").await;
    let sent = client.call(message("T", 0, "hard", "TAGS\u{1}A\u{2}")).await;
    let origin = sent.ext.get("msgId").unwrap().to_owned();
    let back = |id: &str, delay_level: i32| {
        let id: OffsetMessageId = id.parse().unwrap();
        request(RequestCode::CONSUMER_SEND_MSG_BACK, &[("group", "g"), ("originTopic", "T")])
            .with_ext("offset", id.physical_offset)
            .with_ext("delayLevel", delay_level)
            .with_ext("maxReconsumeTimes", 1)
    };
    let sent_back = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    check(&client.call(back(&origin, 0)).await, 0, &[]);
    let retried = client.call(pull("%RETRY%g", 0, 0, 6, 10_000)).await;
    let record = RecordView::parse(&retried.body).unwrap();
    assert!(record.store_timestamp() >= sent_back + 1_000, "level 3 makes it wait");
    assert_eq!(record.properties().get("DELAY"), Some("3"));
    assert_eq!((record.body(), record.reconsume_times()), (&b"hard"[..], 1));
    assert_eq!(record.properties().get("RETRY_TOPIC"), Some("T"));
    assert_eq!(record.properties().get("ORIGIN_MESSAGE_ID"), Some(origin.as_str()));
    let again = OffsetMessageId { store_host: record.store_host(), physical_offset: record.physical_offset() };
    check(&client.call(back(&again.to_string(), 0)).await, 0, &[]);
    settled(&client).await;
    let dead = client.call(pull("%DLQ%g", 0, 0, 4, 0)).await;
    let record = RecordView::parse(&dead.body).unwrap();
    assert_eq!(record.reconsume_times(), 2);
    assert_eq!(record.properties().get("ORIGIN_MESSAGE_ID"), Some(origin.as_str()));
    assert_eq!(record.properties().get("DLQ_ORIGIN_TOPIC"), Some("%RETRY%g"));

    let unknown = back(&origin, 0).with_ext("group", "nobody");
    check(&client.call(unknown).await, 26, &[]);
    check(&client.call(back(&origin, 0).with_ext("offset", 3)).await, 1, &[]);
    // The way around it: the client sends the message to the retry topic itself.
    let retry = message("%RETRY%g", 0, "by hand", "DELAY\u{1}3\u{2}").with_ext("j", 1).with_ext("l", 16);
    check(&client.call(retry).await, 0, &[("queueId", "0")]);
    let spent = message("%RETRY%g", 0, "by hand", "").with_ext("j", 17).with_ext("l", 16);
    check(&client.call(spent).await, 0, &[("queueOffset", "1")]);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_told_at_the_next_pull_and_commits_wait_for_it() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    for index in 0..4 {
        client.call(message("T", 0, &format!("{index}"), "")).await;
    }
    client.call(heartbeat("c1", "g", "T")).await;
    group_exists(&client, "g").await;
    let commit =
        |offset: i64| offsets(RequestCode::UPDATE_CONSUMER_OFFSET, "g", "T", 0).with_ext("commitOffset", offset);
    check(&client.call(commit(4)).await, 0, &[]);
    let reset = |group: &str, topic: &str, timestamp: i64| {
        request(RequestCode::INVOKE_BROKER_TO_RESET_OFFSET, &[("group", group), ("topic", topic), ("isForce", "true")])
            .with_ext("timestamp", timestamp)
    };
    check(&client.call(reset("nobody", "T", 0)).await, 26, &[]);
    check(&client.call(reset("g", "nowhere", 0)).await, 17, &[]);
    let answer = client.call(reset("g", "T", 0)).await;
    check(&answer, 0, &[]);
    assert_eq!(ResetOffsetTable::decode(&answer.body).unwrap().offset_table.len(), 4);
    let ignored = client.call(commit(4)).await;
    assert_eq!(ignored.remark.as_deref(), Some("Offset has been previously reset"));
    let told = client.call(pull("T", 0, 4, 0, 0)).await;
    check(&told, 21, &[("nextBeginOffset", "0")]);
    assert_eq!(told.remark.as_deref(), Some("OFFSET_RESET"));
    let wait = async {
        while client.call(commit(1)).await.remark.is_some() {
            tokio::task::yield_now().await;
        }
    };
    soon("commits count again", wait).await;

    let progress = request(RequestCode::GET_CONSUME_STATS, &[("consumerGroup", "g")]);
    let progress = ConsumeStats::decode(&client.call(progress).await.body).unwrap();
    let queue = MessageQueue { broker_name: BROKER.to_owned(), queue_id: 0, topic: "T".to_owned() };
    let of_queue = progress.offset_table[&queue];
    assert_eq!((of_queue.broker_offset, of_queue.consumer_offset), (4, 1));
    assert!(of_queue.last_timestamp > 0);
    let readers = client.call(request(RequestCode::QUERY_TOPIC_CONSUME_BY_WHO, &[("topic", "T")])).await;
    assert_eq!(GroupList::decode(&readers.body).unwrap().group_list, ["g"]);
    assert_eq!(client.call(RemotingCommand::request(RequestCode(45))).await.code, ResponseCode::SUCCESS.0);
    cluster.stop().await;
}
