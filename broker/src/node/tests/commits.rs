//! Consumer offsets that a replica has accepted as the leader, and not yet put into the log when it leads no longer.

use std::sync::Arc;

use protocol::header::{QueryConsumerOffsetRequest, QueueOffsetResponse, UpdateConsumerOffsetRequest};
use protocol::{GroupName, RemotingCommand, RequestCode, ResponseCode};
use remoting::Responder;
use tokio::sync::{MutexGuard, oneshot};

use super::retire::{Cluster, send, soon};
use crate::node::group::Running;
use crate::processor::GroupHandler;
use crate::state_machine::command::PutMode;
use crate::state_machine::testing::topic;
use crate::state_machine::{Command, GroupConfig};

const MESSAGES: u64 = 6;

fn group() -> GroupName {
    GroupName::parse("readers").unwrap()
}

/// A cluster with a group of consumers and a queue of [`MESSAGES`] messages.
async fn cluster() -> (Cluster, Arc<Running>) {
    let cluster = Cluster::start("async").await;
    let leader = cluster.leader().await;
    let groups = vec![GroupConfig::new(group())];
    let put = Command::PutGroups { groups, mode: PutMode::CreateOnly, stamped_ms: 1 };
    leader.raft.propose_command(&put).await.unwrap();
    for id in 0..MESSAGES {
        assert_eq!(send(&leader, id).await, Some(id));
    }
    (cluster, leader)
}

/// Hands a request to a replica as a client would. The answer comes if the replica gives one.
fn ask(replica: &Running, request: RemotingCommand) -> oneshot::Receiver<RemotingCommand> {
    let (answer, answered) = oneshot::channel();
    let responder = Responder::detached(&request, ([127, 0, 0, 1], 1).into(), move |got| drop(answer.send(got)));
    remoting::Handler::handle(&GroupHandler::new(replica.group.clone()), request, responder);
    answered
}

fn commit(queue_offset: i64) -> RemotingCommand {
    let mut request = RemotingCommand::request(RequestCode::UPDATE_CONSUMER_OFFSET);
    let header =
        UpdateConsumerOffsetRequest { group: group(), topic: topic("A"), queue_id: 0, commit_offset: queue_offset };
    header.encode_into(&mut request.ext);
    request
}

fn commit_oneway(replica: &Running, queue_offset: i64) {
    let mut request = commit(queue_offset);
    request.mark_oneway();
    drop(ask(replica, request));
}

/// The answer to a request of somebody who asks until there is one: a busy machine may take longer than a client waits.
async fn answer(replica: &Running, request: RemotingCommand) -> RemotingCommand {
    let asking = async {
        loop {
            let answer = ask(replica, request.clone()).await.unwrap();
            if answer.response_code() != ResponseCode::SERVICE_NOT_AVAILABLE {
                return answer;
            }
        }
    };
    soon("an answer", asking).await
}

async fn committed(replica: &Running, queue_offset: i64) {
    let answer = answer(replica, commit(queue_offset)).await;
    assert_eq!(answer.response_code(), ResponseCode::SUCCESS, "{:?}", answer.remark);
}

async fn stored(replica: &Running) -> i64 {
    let mut request = RemotingCommand::request(RequestCode::QUERY_CONSUMER_OFFSET);
    QueryConsumerOffsetRequest { group: group(), topic: topic("A"), queue_id: 0, set_zero_if_not_found: None }
        .encode_into(&mut request.ext);
    QueueOffsetResponse::decode(&answer(replica, request).await).unwrap().queue_offset
}

/// Keeps a replica from putting offsets into the log, as a pause would.
async fn hold(replica: &Running) -> MutexGuard<'_, ()> {
    replica.group.0.flushing.lock().await
}

/// Lets a replica go on, and waits until it has done everything that it does with what it held.
async fn go_on(replica: &Running, held: MutexGuard<'_, ()>) {
    drop(held);
    replica.group.flush_offsets().await;
    // Somebody else may have taken the last of it.
    drop(hold(replica).await);
}

/// Moves leadership away from `from`, without the farewell of a node that stops.
async fn depose(cluster: &Cluster, from: &Running) -> Arc<Running> {
    let to = (1..=3).find(|id| *id != from.node_id()).unwrap();
    from.raft.transfer_leader(Some(to)).await.unwrap();
    let leader = cluster.leader().await;
    assert_eq!(leader.node_id(), to);
    leader
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_deposed_drops_what_it_had_accepted() {
    let (cluster, first) = cluster().await;
    let held = hold(&first).await;
    commit_oneway(&first, 5);
    assert!(!first.group.0.offsets.is_empty());
    let second = depose(&cluster, &first).await;
    // Set back on purpose, and answered.
    committed(&second, 2).await;
    go_on(&first, held).await;
    // Ends once all tasks have.
    first.group.shutdown().await;
    assert_eq!(stored(&second).await, 2);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_leads_again_drops_what_it_had_accepted_before() {
    let (cluster, first) = cluster().await;
    let held = hold(&first).await;
    commit_oneway(&first, 5);
    let second = depose(&cluster, &first).await;
    committed(&second, 2).await;
    second.raft.transfer_leader(Some(first.node_id())).await.unwrap();
    cluster.leader().await;
    go_on(&first, held).await;
    assert_eq!(stored(&first).await, 2);
    // What it accepts now is of its new term.
    committed(&first, 3).await;
    assert_eq!(stored(&first).await, 3);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_wants_an_answer_gets_the_new_leaders() {
    let (cluster, first) = cluster().await;
    let held = hold(&first).await;
    let answer = ask(&first, commit(5));
    soon("the commit is accepted", async {
        while first.group.0.offsets.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let second = depose(&cluster, &first).await;
    go_on(&first, held).await;
    let answer = soon("an answer", answer).await.unwrap();
    // A machine under load may take longer over the change than such a commit is held.
    match answer.response_code() {
        ResponseCode::SUCCESS => assert_eq!(stored(&second).await, 5),
        code => {
            assert_eq!(code, ResponseCode::SERVICE_NOT_AVAILABLE);
            assert!(answer.remark.unwrap().starts_with("not proposed: "));
            first.group.shutdown().await;
            assert_eq!(stored(&second).await, 0);
        }
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_unknown_outcome_is_not_tried_again() {
    let (cluster, first) = cluster().await;
    let follower = (1..=3).find_map(|at| cluster.group(at).running().filter(|it| it.node_id() != first.node_id()));
    let held = hold(&first).await;
    let answer = ask(&follower.unwrap(), commit(5));
    soon("the commit is accepted", async {
        while first.group.0.offsets.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // The leader goes away with it.
    first.raft.shutdown().await;
    go_on(&first, held).await;
    let answer = soon("an answer", answer).await.unwrap();
    assert_eq!(answer.response_code(), ResponseCode::SERVICE_NOT_AVAILABLE);
    let remark = answer.remark.unwrap();
    assert!(remark.starts_with("outcome unknown: "), "{remark}");
    cluster.stop().await;
}
