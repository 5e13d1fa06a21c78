//! Messages whose properties leave no room for what a broker adds to a copy.

use protocol::header::TransactionEnd;
use protocol::message::{Properties, RecordView, iter_records, property};
use protocol::{RemotingCommand, RequestCode};

use crate::cluster::{Client, Cluster, TRANSACTIONS};
use crate::pop::{pop, popped, put_group};
use crate::requests::{check, group_exists, heartbeat, message, pull, request, settled};
use crate::transaction::{Place, all, end, half, producer};

/// Sends the message that `made` makes of a property's value, with the longest value that is taken.
async fn send_longest(client: &Client, made: impl Fn(&str) -> RemotingCommand) -> RemotingCommand {
    let mut bytes = Properties::BYTES_MAX;
    loop {
        let answer = client.call(made(&"x".repeat(bytes))).await;
        if answer.code == 0 {
            return answer;
        }
        check(&answer, 13, &[]);
        bytes -= 1;
    }
}

fn long(body: &'static str) -> impl Fn(&str) -> RemotingCommand {
    move |value| message("T", 0, body, &format!("UNIQ_KEY\u{1}{body}\u{2}own\u{1}{value}\u{2}"))
}

/// The only message of `topic`, which must hold all that its producer gave it.
async fn only_copy(client: &Client, topic: &str) {
    settled(client).await;
    let pulled = client.call(pull(topic, 0, 0, 6, 10_000)).await;
    check(&pulled, 0, &[("maxOffset", "1")]);
    let copy = RecordView::parse(&pulled.body).unwrap();
    assert_eq!(copy.body(), b"long");
    assert_eq!(copy.properties().get("UNIQ_KEY"), Some("long"));
    assert!(copy.properties().get("own").unwrap().len() > 32_000);
    assert!(copy.properties().as_str().len() <= Properties::BYTES_MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_popped_one_goes_to_the_dead_letters_and_is_in_nobodys_way() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    put_group(&client, 0).await;
    send_longest(&client, long("long")).await;
    assert_eq!(popped(&client.call(pop("T", 32, 1, 10_000)).await).len(), 1);
    check(&client.call(message("T", 0, "next", "")).await, 0, &[]);
    let next = client.call(pop("T", 32, 60_000, 10_000)).await;
    assert_eq!(popped(&next).len(), 1);
    assert_eq!(iter_records(&next.body).next().unwrap().unwrap().body(), b"next");
    only_copy(&client, "%DLQ%g").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_sent_back_goes_to_the_dead_letters() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    client.call(heartbeat("c1", "g", "T")).await;
    group_exists(&client, "g").await;
    let sent = send_longest(&client, long("long")).await;
    let back = request(RequestCode::CONSUMER_SEND_MSG_BACK, &[("group", "g"), ("originTopic", "T")])
        .with_ext("offset", Place::of_answer(&sent).physical_offset)
        .with_ext("delayLevel", 1);
    check(&client.call(back).await, 0, &[]);
    only_copy(&client, "%DLQ%g").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_one_is_asked_for_committed_and_given_up_like_any_other() {
    let cluster = Cluster::start(1).await;
    let client = cluster.leader().await.client();
    let long_half = |body: &'static str| move |value: &str| half("p", body, &format!("own\u{1}{value}\u{2}"));
    let committed = Place::of_answer(&send_longest(&client, long_half("committed")).await);
    let forgotten = Place::of_answer(&send_longest(&client, long_half("forgotten")).await);
    let ordinary = Place::of_answer(&client.call(half("p", "ordinary", "")).await);
    check(&client.call(producer("c", "p")).await, 0, &[]);
    let mut left = vec![committed, forgotten, ordinary];
    while !left.is_empty() {
        let asked = client.asked(RequestCode::CHECK_TRANSACTION_STATE).await;
        let record = RecordView::parse(&asked.body).unwrap();
        assert!(record.properties().get(property::TRANSACTION_CHECK_TIMES).is_some());
        left.retain(|place| *place != Place::of_check(&asked));
    }
    check(&client.call(end("p", committed, TransactionEnd::COMMIT)).await, 0, &[]);
    assert_eq!(all(&client, "T", 2, 1).await, ["committed"]);
    // The other two are asked about again, and then given up.
    const { assert!(TRANSACTIONS.check_max > 1) };
    let mut given_up = all(&client, "TRANS_CHECK_MAX_TIME_TOPIC", 0, 2).await;
    given_up.sort_unstable();
    assert_eq!(given_up, ["forgotten", "ordinary"]);
    cluster.stop().await;
}
