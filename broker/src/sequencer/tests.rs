//! Packing, order and bounds over a log that does what the test says, and over a real cluster.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::*;
use crate::raft::tests::cluster::{Cluster, soon};
use crate::raft::tests::stores::record;
use crate::state_machine::{Appended, PackReply};

type Landing = Box<dyn FnOnce(Result<(ApplyReply, LogId), ProposeError>) + Send>;

/// A pack that was proposed and waits for its fate.
struct Proposal {
    payload: Bytes,
    term: u64,
    land: Landing,
}

struct FakeLog(mpsc::Sender<Proposal>);

impl Log for FakeLog {
    async fn propose(
        &self,
        payload: Bytes,
        term: u64,
        done: impl FnOnce(Result<(ApplyReply, LogId), ProposeError>) + Send + 'static,
    ) {
        let _ = self.0.send(Proposal { payload, term, land: Box::new(done) }).await;
    }
}

struct Bench {
    sequencer: Sequencer,
    role: watch::Sender<Role>,
    proposals: mpsc::Receiver<Proposal>,
    answers: mpsc::Receiver<(u64, Result<Vec<MessageOutcome>, AppendError>)>,
    answer: mpsc::Sender<(u64, Result<Vec<MessageOutcome>, AppendError>)>,
}

const READY: Role = Role::Leader { term: 3, ready: true };

impl Bench {
    fn new(options: SequencerOptions, role: Role) -> Self {
        let (role, watched) = watch::channel(role);
        let (proposed, proposals) = mpsc::channel(1000);
        let (answer, answers) = mpsc::channel(1000);
        let sequencer = Sequencer::start_with(options, watched, FakeLog(proposed));
        Self { sequencer, role, proposals, answers, answer }
    }

    fn append(&self, id: u64, bytes: usize, count: u32) {
        let answer = self.answer.clone();
        self.sequencer.append(Bytes::from(vec![id as u8; bytes]), count, move |result| {
            let result = result.map(<[MessageOutcome]>::to_vec);
            answer.try_send((id, result)).unwrap();
        });
    }

    async fn proposal(&mut self) -> Proposal {
        soon("a proposal", self.proposals.recv()).await.unwrap()
    }

    async fn answer(&mut self) -> (u64, Result<Vec<MessageOutcome>, AppendError>) {
        soon("an answer", self.answers.recv()).await.unwrap()
    }
}

fn outcomes(from: u64, count: u64) -> Vec<MessageOutcome> {
    (from..from + count)
        .map(|queue_offset| MessageOutcome::Appended(Appended { queue_offset, physical_offset: queue_offset }))
        .collect()
}

fn land(proposal: Proposal, outcomes: Vec<MessageOutcome>) {
    let log_id = LogId::new(raft_store::Term::new(3), raft_store::LogIndex::new(1));
    (proposal.land)(Ok((ApplyReply::Pack(PackReply { outcomes }), log_id)));
}

#[tokio::test]
async fn what_waits_shares_a_pack_and_each_sender_gets_its_part() {
    let mut bench = Bench::new(SequencerOptions::default(), READY);
    for (id, count) in [(1, 1), (2, 3), (3, 1)] {
        bench.append(id, 100, count);
    }
    let pack = bench.proposal().await;
    assert_eq!((pack.payload.len(), pack.term), (300, 3));
    assert_eq!(pack.payload, [[1; 100], [2; 100], [3; 100]].concat());
    assert_eq!(bench.sequencer.bytes_in_flight(), 300);
    land(pack, outcomes(7, 5));
    assert_eq!(bench.answer().await, (1, Ok(outcomes(7, 1))));
    assert_eq!(bench.answer().await, (2, Ok(outcomes(8, 3))));
    assert_eq!(bench.answer().await, (3, Ok(outcomes(11, 1))));
    assert_eq!(bench.sequencer.bytes_in_flight(), 0);
}

#[tokio::test]
async fn packs_keep_the_order_of_the_calls_and_a_large_message_travels_alone() {
    let mut bench = Bench::new(SequencerOptions::default(), READY);
    for (id, bytes) in [(1, 40 << 10), (2, 30 << 10), (3, 10 << 10), (4, 100 << 10), (5, 10), (6, 10)] {
        bench.append(id, bytes, 1);
    }
    let mut packs = Vec::new();
    for _ in 0..4 {
        let pack = bench.proposal().await;
        let mut ids = pack.payload.to_vec();
        ids.dedup();
        packs.push(ids);
    }
    assert_eq!(packs, [vec![1], vec![2, 3], vec![4], vec![5, 6]]);
}

#[tokio::test]
async fn no_more_packs_are_in_flight_than_allowed() {
    let options = SequencerOptions { packs_in_flight_max: 2, pack_bytes_max: 100, ..SequencerOptions::default() };
    let mut bench = Bench::new(options, READY);
    for id in 1..=4 {
        bench.append(id, 100, 1);
    }
    let first = bench.proposal().await;
    let _second = bench.proposal().await;
    tokio::task::yield_now().await;
    assert!(bench.proposals.try_recv().is_err());
    land(first, outcomes(0, 1));
    assert_eq!(bench.proposal().await.payload[0], 3);
}

#[tokio::test]
async fn bytes_in_flight_are_bounded_and_the_refusal_says_not_proposed() {
    let options = SequencerOptions { bytes_in_flight_max: 250, ..SequencerOptions::default() };
    let mut bench = Bench::new(options, READY);
    for id in 1..=3 {
        bench.append(id, 100, 1);
    }
    let (id, refused) = bench.answer().await;
    assert_eq!(id, 3);
    assert!(refused.unwrap_err().is_not_proposed());
    let pack = bench.proposal().await;
    land(pack, outcomes(0, 2));
    bench.append(4, 1000, 1);
    assert_eq!(bench.proposal().await.payload.len(), 1000, "a message above the bound may travel alone");
}

#[tokio::test]
async fn follower_refuses_and_names_the_leader() {
    let member = raft_store::Member { node: "n2".to_owned(), ..raft_store::Member::default() };
    let mut bench =
        Bench::new(SequencerOptions::default(), Role::Follower { term: 3, leader: Some((2, member.clone())) });
    bench.append(1, 100, 1);
    let (_, refused) = bench.answer().await;
    let Err(ProposeError::NotProposed { leader, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(leader, Some((2, member)));
    bench.role.send_replace(Role::Leader { term: 4, ready: false });
    bench.append(2, 100, 1);
    assert!(bench.answer().await.1.unwrap_err().is_not_proposed());
    bench.role.send_replace(Role::Leader { term: 4, ready: true });
    bench.append(3, 100, 1);
    assert_eq!(bench.proposal().await.term, 4);
    assert_eq!(bench.sequencer.bytes_in_flight(), 100);
}

#[tokio::test]
async fn refused_and_unknown_packs_are_told_apart() {
    let mut bench = Bench::new(SequencerOptions::default(), READY);
    bench.append(1, 100, 1);
    let pack = bench.proposal().await;
    (pack.land)(Err(ProposeError::not_proposed("leadership moved")));
    assert!(bench.answer().await.1.unwrap_err().is_not_proposed());
    bench.append(2, 100, 1);
    let pack = bench.proposal().await;
    (pack.land)(Err(ProposeError::unknown("discarded")));
    assert!(!bench.answer().await.1.unwrap_err().is_not_proposed());
    bench.append(3, 100, 2);
    let pack = bench.proposal().await;
    land(pack, outcomes(0, 1));
    assert!(!bench.answer().await.1.unwrap_err().is_not_proposed(), "a reply that is too short proves nothing");
}

#[tokio::test(start_paused = true)]
async fn pack_without_a_fate_is_unknown_after_its_time() {
    let mut bench = Bench::new(SequencerOptions::default(), READY);
    bench.append(1, 100, 1);
    let pack = bench.proposal().await;
    bench.append(2, 100, 1);
    let later = bench.proposal().await;
    land(later, outcomes(5, 1));
    assert_eq!(bench.answer().await, (2, Ok(outcomes(5, 1))));
    let (id, unknown) = bench.answer().await;
    assert_eq!(id, 1);
    assert!(!unknown.unwrap_err().is_not_proposed());
    assert_eq!(bench.sequencer.bytes_in_flight(), 100, "Raft still holds it");
    land(pack, outcomes(0, 1));
    assert_eq!(bench.sequencer.bytes_in_flight(), 0);
    assert!(bench.answers.try_recv().is_err(), "answered once");
}

#[tokio::test]
async fn stopping_answers_everybody() {
    let options = SequencerOptions { packs_in_flight_max: 1, ..SequencerOptions::default() };
    let mut bench = Bench::new(options, READY);
    bench.append(1, 100, 1);
    let _pack = bench.proposal().await;
    bench.append(2, 100, 1);
    bench.sequencer.shutdown().await;
    bench.append(3, 100, 1);
    let mut answers: Vec<(u64, bool)> = Vec::new();
    for _ in 0..3 {
        let (id, result) = bench.answer().await;
        answers.push((id, result.unwrap_err().is_not_proposed()));
    }
    answers.sort_unstable();
    assert_eq!(answers, [(1, false), (2, true), (3, true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_many_senders_enter_the_log_in_their_order() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let sequencer = Sequencer::start(SequencerOptions::default(), cluster.raft(leader).clone());
    let (senders, each) = (8_u64, 500_u64);
    let (answer, mut answers) = mpsc::channel((senders * each) as usize);
    let tasks: Vec<_> = (0..senders)
        .map(|sender| {
            let (sequencer, answer) = (sequencer.clone(), answer.clone());
            tokio::spawn(async move {
                for number in 0..each {
                    let id = sender << 32 | number;
                    let answer = answer.clone();
                    sequencer.append(record(id, 600), 1, move |result| {
                        let Ok([MessageOutcome::Appended(appended)]) = result else { panic!("{result:?}") };
                        answer.try_send((id, *appended)).unwrap();
                    });
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for _ in 0..senders * each {
        let (id, appended) = soon("an answer", answers.recv()).await.unwrap();
        assert_eq!(appended.physical_offset, id, "each sender gets its own part");
    }
    let records = cluster.running[&leader].state.records();
    assert_eq!(records.len() as u64, senders * each);
    for sender in 0..senders {
        let mine: Vec<u64> = records.iter().copied().filter(|id| id >> 32 == sender).collect();
        assert!(mine.is_sorted(), "order of sender {sender}");
    }
    let entries = cluster.logs[&leader].entries().len() as u64;
    assert!(entries < senders * each / 4, "packed into {entries} entries");
    sequencer.shutdown().await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_send_is_answered_across_a_leader_change() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let sequencer = Sequencer::start(SequencerOptions::default(), cluster.raft(leader).clone());
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let (answered, mut answers) = mpsc::channel(10_000);
    let raft = cluster.raft(leader).clone();
    let moving = tokio::spawn(async move { raft.transfer_leader(None).await });
    let mut sent = 0;
    while !moving.is_finished() || sent < 1000 {
        let (acknowledged, answered) = (Arc::clone(&acknowledged), answered.clone());
        let id = sent;
        sequencer.append(record(id, 200), 1, move |result| {
            if result.is_ok() {
                acknowledged.lock().push(id);
            }
            answered.try_send(()).unwrap();
        });
        sent += 1;
        tokio::task::yield_now().await;
        if sent % 100 == 0 {
            soon("answers", async {
                for _ in 0..100 {
                    answers.recv().await.unwrap();
                }
            })
            .await;
        }
        if sent >= 5_000 {
            break;
        }
    }
    moving.await.unwrap().unwrap();
    for _ in 0..sent % 100 {
        soon("the last answers", answers.recv()).await.unwrap();
    }
    let next = cluster.leader().await;
    assert_ne!(next, leader);
    cluster.raft(next).read_index().await.unwrap();
    let stored = cluster.running[&next].state.records();
    let acknowledged = acknowledged.lock().clone();
    assert!(acknowledged.iter().all(|id| stored.contains(id)));
    assert!(stored.is_sorted(), "nothing is reordered");
    sequencer.shutdown().await;
    cluster.stop().await;
}
