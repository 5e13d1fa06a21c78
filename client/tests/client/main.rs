//! The client against a fake broker that fails on demand, behind a real name server, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

mod fake;

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use client::ConsumeFrom;
use client::Error;
use client::Listener;
use client::Message;
use client::Mode;
use client::Order;
use client::Outcome;
use client::Producer;
use client::ProducerOptions;
use client::PullConsumer;
use client::PullOptions;
use client::PullStatus;
use client::PushConsumer;
use client::PushOptions;
use client::Queue;
use client::ReceivedMessage;
use protocol::RemotingCommand;
use protocol::RequestCode;
use protocol::ResponseCode;
use protocol::TopicName;
use protocol::body::ResetOffsetTable;
use tokio::sync::mpsc;

use crate::fake::Cluster;
use crate::fake::Fault;
use crate::fake::LONG;
use crate::fake::group;
use crate::fake::topic;

/// A producer for which no machine is too busy: an attempt that times out is repeated, and then stored twice.
fn producer(client: &client::Client) -> Producer {
    let (timeout, attempt_timeout) = (10 * LONG, 5 * LONG);
    Producer::new(client, group("pg"), ProducerOptions { timeout, attempt_timeout, ..ProducerOptions::default() })
}

fn message(body: impl Into<String>) -> Message {
    Message::new(topic("T"), body.into())
}

fn queue(broker: usize, queue_id: i32) -> Queue {
    Queue { topic: topic("T"), broker_name: format!("broker-{broker}").into(), queue_id }
}

#[tokio::test]
async fn sends_go_round_all_queues_and_say_where_they_ended() {
    let cluster = Cluster::start(2, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    let mut offsets = BTreeMap::new();
    for number in 0..8 {
        let receipt = producer.send(message(number.to_string())).await.unwrap();
        assert_eq!(receipt.attempts, 1);
        assert_eq!(receipt.message_id.len(), 32);
        let next = offsets.entry(receipt.queue).or_insert(0);
        assert_eq!(receipt.queue_offset, *next);
        *next += 1;
    }
    assert_eq!(offsets.into_values().collect::<Vec<_>>(), [2, 2, 2, 2]);
}

#[tokio::test]
async fn refusal_for_now_is_repeated_on_another_broker() {
    let cluster = Cluster::start(2, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    for broker in &cluster.brokers {
        broker.state.lock().faults.push(Fault::Refuse(ResponseCode::SERVICE_NOT_AVAILABLE, "not proposed: electing"));
    }
    let first = producer.send(message("a")).await.unwrap();
    assert_eq!(first.attempts, 3, "one refusal by each broker");
    assert_eq!(cluster.stored("T").concat(), ["a"]);
}

#[tokio::test]
async fn refusal_for_good_is_told_at_once() {
    let cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    cluster.brokers[0].state.lock().faults.push(Fault::Refuse(ResponseCode::MESSAGE_ILLEGAL, "too large"));
    let error = producer(&client).send(message("a")).await.unwrap_err();
    assert!(error.not_sent());
    assert_eq!(error.code(), Some(ResponseCode::MESSAGE_ILLEGAL));
    assert_eq!(cluster.brokers[0].state.lock().sends, 1);
}

#[tokio::test]
async fn unknown_outcome_is_repeated_and_the_receipt_says_so() {
    let cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    cluster.brokers[0].state.lock().faults.push(Fault::StoreAndHangUp);
    let receipt = producer.send(message("a")).await.unwrap();
    assert_eq!(receipt.attempts, 2);
    assert_eq!(cluster.stored("T").concat(), ["a", "a"], "nobody could know");
}

#[tokio::test]
async fn send_outlasts_a_restart_of_the_only_broker() {
    let mut cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    producer.send(message("a")).await.unwrap();
    cluster.brokers[0].stop().await;
    let send = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send(message("b")).await }
    });
    // Its first attempts are refused by the kernel.
    tokio::task::yield_now().await;
    assert!(!send.is_finished());
    cluster.brokers[0].start_again();
    let receipt = send.await.unwrap().unwrap();
    assert_eq!(
        receipt.queue_offset + 1,
        i64::try_from(cluster.stored("T").iter().map(Vec::len).max().unwrap()).unwrap()
    );
    assert_eq!(cluster.stored("T").concat().len(), 2);
}

#[tokio::test]
async fn send_gives_up_in_time_and_knows_that_nothing_is_stored() {
    let mut cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    let options = ProducerOptions { timeout: Duration::from_millis(300), ..ProducerOptions::default() };
    let producer = Producer::new(&client, group("pg"), options);
    cluster.brokers[0].stop().await;
    let error = producer.send(message("a")).await.unwrap_err();
    assert!(matches!(error, Error::GaveUp { may_be_stored: false, .. }), "{error:?}");
}

#[tokio::test]
async fn topic_that_does_not_exist_is_made_from_the_template_or_refused() {
    let cluster = Cluster::start(1, &[TopicName::AUTO_CREATE]).await;
    let client = cluster.client();
    assert_eq!(producer(&client).send(message("a")).await.unwrap().queue_offset, 0);
    let cluster = Cluster::start(1, &["other"]).await;
    let client = cluster.client();
    assert!(matches!(producer(&client).send(message("a")).await, Err(Error::NoRoute(_))));
}

#[tokio::test]
async fn chosen_queue_is_kept_whatever_fails() {
    let cluster = Cluster::start(2, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    let chosen = queue(1, 1);
    for number in 0..10 {
        if number % 3 == 0 {
            cluster.brokers[1].state.lock().faults.push(Fault::Refuse(ResponseCode::SYSTEM_BUSY, ""));
        }
        assert_eq!(producer.send_to(message(number.to_string()), &chosen).await.unwrap().queue, chosen);
    }
    let picked = producer.send_selected(message("last"), |queues| queues.iter().position(|q| **q == chosen).unwrap());
    assert_eq!(picked.await.unwrap().queue_offset, 10);
    assert_eq!(cluster.stored("T")[3], ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "last"]);
}

#[tokio::test]
async fn batch_ends_up_in_one_queue_in_order() {
    let cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    let batch = ["a", "b", "c"].map(message).to_vec();
    let receipt = producer.send_batch_to(batch, &queue(0, 1)).await.unwrap();
    assert_eq!(receipt.queue_offset, 0);
    assert_eq!(cluster.stored("T")[1], ["a", "b", "c"]);
    let mixed = vec![message("a"), Message::new(topic("U"), "b")];
    assert!(matches!(producer.send_batch(mixed).await, Err(Error::Message(_))));
    assert!(matches!(producer.send_batch(Vec::new()).await, Err(Error::Message(_))));
}

#[tokio::test]
async fn thousands_in_flight_call_back_once_each() {
    let cluster = Cluster::start(2, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    let (done, mut results) = mpsc::channel(3_000);
    for number in 0..3_000 {
        if number % 500 == 0 {
            cluster.brokers[0].state.lock().faults.push(Fault::Refuse(ResponseCode::SERVICE_NOT_AVAILABLE, ""));
        }
        let done = done.clone();
        producer.start_send(message(number.to_string()), move |result| done.try_send(result.unwrap()).unwrap());
    }
    for _ in 0..3_000 {
        results.recv().await.unwrap();
    }
    assert!(results.try_recv().is_err());
    let mut stored: Vec<u32> = cluster.stored("T").concat().iter().map(|body| body.parse().unwrap()).collect();
    stored.sort_unstable();
    assert_eq!(stored, (0..3_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn oneway_message_arrives() {
    let cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    producer(&client).send_oneway(message("quiet")).await.unwrap();
    while cluster.stored("T").concat() != ["quiet"] {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn large_body_is_compressed_on_the_way_if_wanted() {
    let cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    let options = ProducerOptions { compress_bytes_min: Some(1_000), ..ProducerOptions::default() };
    let producer = Producer::new(&client, group("pg"), options);
    let body = "abc".repeat(100_000);
    let receipt = producer.send(message(body.clone())).await.unwrap();
    let consumer = PullConsumer::new(&client, group("g"));
    let pulled = consumer.pull(&receipt.queue, 0, &PullOptions::default()).await.unwrap();
    assert!(pulled.messages[0].body == body);
    assert!(pulled.messages[0].store_bytes < 10_000);
}

#[tokio::test]
async fn pull_tells_messages_from_nothing_new_from_nothing_wanted_from_nowhere() {
    let cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    let target = queue(0, 0);
    for (body, tag) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let message = message(body).with_tag(tag).unwrap().with_keys("k1 k2").unwrap();
        producer.send_to(message, &target).await.unwrap();
    }
    let consumer = PullConsumer::new(&client, group("g"));
    assert_eq!(consumer.queues(&topic("T")).await.unwrap(), [queue(0, 0), queue(0, 1)]);
    let now = PullOptions { hold: Duration::ZERO, ..PullOptions::default() };
    let pulled = consumer.pull(&target, 0, &now).await.unwrap();
    let bodies: Vec<_> = pulled.messages.iter().map(|message| message.body.clone()).collect();
    assert_eq!((pulled.status, pulled.next_offset, pulled.max_offset), (PullStatus::Found, 3, 3));
    assert_eq!(bodies, ["a", "b", "c"]);
    assert_eq!(pulled.messages[1].queue_offset, 1);
    assert_eq!(pulled.messages[1].tag(), Some("y"));
    assert_eq!(pulled.messages[1].keys().collect::<Vec<_>>(), ["k1", "k2"]);

    let by_tag = |expression: &str| PullOptions { expression: expression.to_owned(), ..now.clone() };
    let pulled = consumer.pull(&target, 0, &by_tag("x || z")).await.unwrap();
    assert_eq!(pulled.messages.len(), 2);
    let pulled = consumer.pull(&target, 0, &by_tag("z")).await.unwrap();
    assert_eq!((pulled.status, pulled.next_offset), (PullStatus::NoMatchedMessage, 3));
    let pulled = consumer.pull(&target, 3, &now).await.unwrap();
    assert_eq!((pulled.status, pulled.next_offset), (PullStatus::NoNewMessage, 3));
    let pulled = consumer.pull(&target, 9, &now).await.unwrap();
    assert_eq!((pulled.status, pulled.next_offset), (PullStatus::OffsetIllegal, 3));

    assert_eq!(consumer.committed_offset(&target).await.unwrap(), None);
    consumer.commit(&target, 2).await.unwrap();
    assert_eq!(consumer.committed_offset(&target).await.unwrap(), Some(2));
    assert_eq!((consumer.min_offset(&target).await.unwrap(), consumer.max_offset(&target).await.unwrap()), (0, 3));
}

#[tokio::test]
async fn held_pull_is_answered_when_a_message_arrives() {
    let cluster = Cluster::start(1, &["T"]).await;
    let client = cluster.client();
    let consumer = PullConsumer::new(&client, group("g"));
    consumer.queues(&topic("T")).await.unwrap();
    let pull = tokio::spawn(async move { consumer.pull(&queue(0, 0), 0, &PullOptions::default()).await });
    tokio::task::yield_now().await;
    producer(&client).send_to(message("a"), &queue(0, 0)).await.unwrap();
    assert_eq!(pull.await.unwrap().unwrap().messages[0].body, "a");
}

type Received = mpsc::Receiver<ReceivedMessage>;

/// A listener that hands messages to the test and is done with each, except as `outcome` says.
fn listener(outcome: impl Fn(&ReceivedMessage) -> Outcome + Send + Sync + 'static) -> (Listener, Received) {
    let (sender, receiver) = mpsc::channel(10_000);
    let listener: Listener = Arc::new(move |messages: Vec<ReceivedMessage>| {
        let mut all = Outcome::Done;
        for message in messages {
            if outcome(&message) == Outcome::Later {
                all = Outcome::Later;
            }
            drop(sender.try_send(message));
        }
        Box::pin(async move { all })
    });
    (listener, receiver)
}

fn first() -> PushOptions {
    PushOptions { from: ConsumeFrom::First, ..PushOptions::default() }
}

async fn consume(client: &client::Client, options: PushOptions, listener: Listener) -> PushConsumer {
    PushConsumer::start(client, group("g"), [(topic("T"), "*".to_owned())], options, listener).await.unwrap()
}

async fn bodies(received: &mut Received, count: usize) -> Vec<String> {
    let mut all = Vec::new();
    while all.len() < count {
        let message = received.recv().await.unwrap();
        all.push(String::from_utf8(message.body.to_vec()).unwrap());
    }
    all.sort();
    all
}

fn numbers(range: std::ops::Range<i32>) -> Vec<String> {
    let mut all: Vec<_> = range.map(|number| format!("{number:04}")).collect();
    all.sort();
    all
}

async fn send_numbers(producer: &Producer, range: std::ops::Range<i32>) {
    for number in range {
        producer.send(message(format!("{number:04}"))).await.unwrap();
    }
}

#[tokio::test]
async fn group_shares_the_queues_and_goes_on_when_a_member_leaves() {
    let cluster = Cluster::start(2, &["T", "%RETRY%g"]).await;
    let (one, two) = (cluster.client(), cluster.client());
    let producer = producer(&one);
    send_numbers(&producer, 0..100).await;
    let (listener_one, mut received_one) = listener(|_| Outcome::Done);
    let first_member = consume(&one, first(), listener_one).await;
    assert_eq!(bodies(&mut received_one, 100).await, numbers(0..100));

    let (listener_two, mut received_two) = listener(|_| Outcome::Done);
    let second_member = consume(&two, first(), listener_two).await;
    let of_topic = |consumer: &PushConsumer| consumer.queues().iter().filter(|queue| queue.topic == "T").count();
    while (of_topic(&first_member), of_topic(&second_member)) != (2, 2) {
        tokio::task::yield_now().await;
    }
    send_numbers(&producer, 100..200).await;
    // What was not committed when a queue changed hands is delivered again; nothing may be left out.
    let mut missing: BTreeSet<String> = numbers(100..200).into_iter().collect();
    let mut shares = [0, 0];
    while !missing.is_empty() {
        let (member, message) = tokio::select! {
            message = received_one.recv() => (0, message),
            message = received_two.recv() => (1, message),
        };
        if missing.remove(std::str::from_utf8(&message.unwrap().body).unwrap()) {
            shares[member] += 1;
        }
    }
    assert_eq!(shares, [50, 50]);

    second_member.shutdown().await;
    send_numbers(&producer, 200..300).await;
    assert_eq!(bodies(&mut received_one, 100).await, numbers(200..300), "what was committed does not come again");
    first_member.shutdown().await;

    // A member that starts later goes on where the group stopped.
    send_numbers(&producer, 300..320).await;
    let three = cluster.client();
    let (listener_three, mut received_three) = listener(|_| Outcome::Done);
    let third_member = consume(&three, first(), listener_three).await;
    assert_eq!(bodies(&mut received_three, 20).await, numbers(300..320));
    third_member.shutdown().await;
    assert!(received_three.try_recv().is_err());
    three.shutdown().await;
}

#[tokio::test]
async fn message_that_fails_is_sent_back_and_delivered_again() {
    let mut cluster = Cluster::start(1, &["T"]).await;
    cluster.brokers[0].add_topic("%RETRY%g").await;
    let client = cluster.client();
    let (listener, mut received) = listener(|message| {
        let fails = message.body == "b" && message.reconsume_times < 2;
        if fails { Outcome::Later } else { Outcome::Done }
    });
    let consumer = consume(&client, first(), listener).await;
    let producer = producer(&client);
    for body in ["a", "b", "c"] {
        producer.send(message(body)).await.unwrap();
    }
    assert_eq!(bodies(&mut received, 5).await, ["a", "b", "b", "b", "c"]);
    assert_eq!(cluster.brokers[0].state.lock().sent_back, ["b", "b"]);
    consumer.shutdown().await;
    // All of it counts as consumed.
    let state = cluster.brokers[0].state.lock();
    let committed: i64 = state.offsets.values().sum();
    assert_eq!(committed, 3 + 2);
}

#[tokio::test]
async fn orderly_consumer_repeats_a_message_before_anything_else_of_its_queue() {
    let cluster = Cluster::start(1, &["T", "%RETRY%g"]).await;
    let client = cluster.client();
    let seen = parking_lot::Mutex::new(0);
    let (listener, mut received) = listener(move |message| {
        let mut seen = seen.lock();
        if message.body == "1" && *seen < 1 {
            *seen += 1;
            return Outcome::Later;
        }
        Outcome::Done
    });
    let producer = producer(&client);
    for body in ["0", "1", "2"] {
        producer.send_to(message(body), &queue(0, 0)).await.unwrap();
    }
    let options = PushOptions { order: Order::Orderly, ..first() };
    let consumer = consume(&client, options, listener).await;
    let mut order = Vec::new();
    while order.len() < 4 {
        order.push(received.recv().await.unwrap().body);
    }
    assert_eq!(order, ["0", "1", "1", "2"]);
    consumer.shutdown().await;
    assert!(cluster.brokers[0].state.lock().sent_back.is_empty());
}

#[tokio::test]
async fn every_member_of_a_broadcast_gets_everything_and_remembers_it_in_its_file() {
    let cluster = Cluster::start(1, &["T"]).await;
    let (one, two) = (cluster.client(), cluster.client());
    let producer = producer(&one);
    send_numbers(&producer, 0..10).await;
    let directory = std::env::temp_dir().join(format!("gantry-broadcast-{}", std::process::id()));
    let options = |name: &str| PushOptions { mode: Mode::Broadcast(Some(directory.join(name))), ..first() };
    let (listener_one, mut received_one) = listener(|_| Outcome::Done);
    let (listener_two, mut received_two) = listener(|_| Outcome::Done);
    let first_member = consume(&one, options("one"), listener_one.clone()).await;
    let second_member = consume(&two, options("two"), listener_two).await;
    assert_eq!(bodies(&mut received_one, 10).await, numbers(0..10));
    assert_eq!(bodies(&mut received_two, 10).await, numbers(0..10));
    first_member.shutdown().await;
    second_member.shutdown().await;
    send_numbers(&producer, 10..15).await;
    let again = consume(&one, options("one"), listener_one).await;
    assert_eq!(bodies(&mut received_one, 5).await, numbers(10..15));
    again.shutdown().await;
    assert!(cluster.brokers[0].state.lock().offsets.is_empty());
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn broker_moves_the_offset_of_a_running_consumer() {
    let cluster = Cluster::start(1, &["T", "%RETRY%g"]).await;
    let client = cluster.client();
    let producer = producer(&client);
    for body in ["0", "1", "2"] {
        producer.send_to(message(body), &queue(0, 0)).await.unwrap();
    }
    let (listener, mut received) = listener(|_| Outcome::Done);
    let consumer = consume(&client, first(), listener).await;
    assert_eq!(bodies(&mut received, 3).await, ["0", "1", "2"]);
    let member = cluster.brokers[0].state.lock().members["g"].values().next().unwrap().clone();
    let mut table = ResetOffsetTable::default();
    table.offset_table.insert(queue(0, 0).to_wire(), 1);
    let request = RemotingCommand::request(RequestCode::RESET_CONSUMER_CLIENT_OFFSET)
        .with_ext("topic", "T")
        .with_ext("group", "g")
        .with_ext("timestamp", 0)
        .with_ext("isForce", true)
        .with_body(table.encode());
    member.send_oneway(request).unwrap();
    assert_eq!(bodies(&mut received, 2).await, ["1", "2"]);
    consumer.shutdown().await;
}

#[tokio::test]
async fn consumer_says_how_it_is_doing() {
    let cluster = Cluster::start(1, &["T", "%RETRY%g"]).await;
    let client = cluster.client();
    let (listener, _received) = listener(|_| Outcome::Done);
    let consumer = consume(&client, first(), listener).await;
    let member = cluster.brokers[0].state.lock().members["g"].values().next().unwrap().clone();
    let ask = |group: &str| {
        let request = RemotingCommand::request(RequestCode::GET_CONSUMER_RUNNING_INFO)
            .with_ext("consumerGroup", group)
            .with_ext("clientId", client.client_id());
        member.call(request, LONG)
    };
    let info = protocol::body::ConsumerRunningInfo::decode(&ask("g").await.unwrap().body).unwrap();
    assert_eq!(info.mq_table.len(), 3);
    assert_eq!(info.subscription_set.len(), 2);
    assert_eq!(ask("other").await.unwrap().code, ResponseCode::SYSTEM_ERROR.0);
    consumer.shutdown().await;
}
