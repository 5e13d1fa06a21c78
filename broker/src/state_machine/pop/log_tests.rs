//! What is under way as a function of the log.

use super::super::command::{Command, OffsetCommit, OffsetsOfDeleted, ResetHold};
use super::super::testing::{Group, Message, message};
use super::super::{CommandRefused, CommandReply, MessageOutcome, PackReply};
use super::*;

const DLQ: &str = "%DLQ%g";

fn queue() -> GroupQueue {
    GroupQueue { group: GroupName::parse("g").unwrap(), topic: TopicName::parse("A").unwrap(), queue_id: 0 }
}

/// A group with ten messages.
async fn group() -> Group {
    let group = Group::new();
    for topic in ["A", DLQ] {
        group.put_topic(topic, 1).await;
    }
    for _ in 0..10 {
        group.send(message("A", 0, "body")).await;
    }
    group
}

async fn step(group: &Group, action: PopAction) -> PopOutcome {
    let steps = vec![PopStep { queue: queue(), action }];
    match group.command(Command::Pop { steps, stamped_ms: 1 }).await {
        CommandReply::Popped { outcomes } => outcomes[0],
        other => panic!("pops are answered as such, not by {other:?}"),
    }
}

/// Takes the messages from `from` to before `next` at 1,000 for 10 ms.
async fn take(group: &Group, seen: Seen, from: u64, next: u64) -> PopOutcome {
    let take = Take {
        seen,
        next,
        floor: 0,
        fresh: (from..next).collect(),
        again: Vec::new(),
        popped_ms: 1_000,
        invisible_ms: 10,
        order: None,
    };
    step(group, PopAction::Take(take)).await
}

fn taken(group: &Group) -> Vec<u64> {
    let pops = group.state().pops();
    pops.queue("g", "A", 0).map(|queue| queue.taken.keys().copied().collect()).unwrap_or_default()
}

fn committed(group: &Group) -> Option<u64> {
    group.state().consumer_offset("g", "A", 0)
}

async fn bury(group: &Group, offsets: &[u64], stamped_ms: i64, letters: &[Message<'_>]) -> (CommandReply, PackReply) {
    let command = Command::BuryPopped { queue: queue(), queue_offsets: offsets.to_vec(), stamped_ms };
    group.command_with(command, letters).await
}

#[tokio::test]
async fn the_stored_offset_is_that_of_the_first_message_not_acknowledged() {
    let group = group().await;
    assert_eq!(take(&group, Seen::Committed(None), 0, 4).await, PopOutcome::Done);
    assert_eq!(committed(&group), Some(0));
    step(&group, PopAction::Acknowledge { popped_ms: 1_000, queue_offsets: vec![0, 2] }).await;
    assert_eq!((committed(&group), taken(&group)), (Some(1), vec![1, 3]));
    step(&group, PopAction::Acknowledge { popped_ms: 1_000, queue_offsets: vec![1, 3] }).await;
    assert_eq!((committed(&group), taken(&group)), (Some(4), vec![]));
    assert_eq!(take(&group, Seen::Next(4), 4, 11).await, PopOutcome::Refused(PopRefused::NoQueue));
}

#[tokio::test]
async fn a_dead_letter_and_its_message_change_places_together() {
    let group = group().await;
    take(&group, Seen::Committed(None), 0, 2).await;
    let letter = message(DLQ, 0, "dead");
    let refused = |why| CommandReply::Refused(why);
    assert_eq!(bury(&group, &[0], 1_009, &[letter]).await.0, refused(CommandRefused::NotDue), "before its time");
    assert_eq!(bury(&group, &[2], 1_010, &[letter]).await.0, refused(CommandRefused::NotDue), "never given");
    let elsewhere = message("nowhere", 0, "dead");
    assert_eq!(bury(&group, &[0], 1_010, &[elsewhere]).await.0, refused(CommandRefused::NoQueue));
    assert!(matches!(bury(&group, &[0], 1_010, &[]).await.0, CommandReply::Refused(CommandRefused::Invalid(_))));
    assert_eq!((committed(&group), taken(&group)), (Some(0), vec![0, 1]));

    let (reply, letters) = bury(&group, &[0], 1_010, &[letter]).await;
    assert_eq!(reply, CommandReply::Done);
    assert!(matches!(letters.outcomes[..], [MessageOutcome::Appended(_)]), "{letters:?}");
    assert_eq!((committed(&group), taken(&group)), (Some(1), vec![1]));
    let (reply, letters) = bury(&group, &[0], 1_010, &[letter]).await;
    assert_eq!(reply, refused(CommandRefused::NotDue), "once");
    assert!(matches!(letters.outcomes[..], [MessageOutcome::Refused(_)]), "{letters:?}");
}

#[tokio::test]
async fn what_sets_an_offset_ends_what_is_under_way() {
    let group = group().await;
    let GroupQueue { group: name, topic, queue_id } = queue();
    let commit = OffsetCommit { group: name.clone(), topic: topic.clone(), queue_id, queue_offset: 3 };
    let reset = |hold| Command::ResetOffsets {
        group: name.clone(),
        topic: topic.clone(),
        offsets: vec![(0, 5)],
        hold,
        stamped_ms: 1,
    };
    let cases = [
        (Command::CommitOffsets { commits: vec![commit], stamped_ms: 1 }, Some(3)),
        (reset(ResetHold::None), Some(5)),
        (reset(ResetHold::UntilReleased), Some(5)),
        (Command::ClearOffsets { group: name.clone(), topic: Some(topic.clone()) }, None),
        (Command::ClearOffsets { group: name.clone(), topic: None }, None),
        (Command::DeleteGroup { group: name.clone(), offsets: OffsetsOfDeleted::Delete, stamped_ms: 1 }, None),
        (Command::DeleteTopic { topic: topic.clone(), stamped_ms: 1 }, None),
    ];
    let mode = RequestMode::Pop { share_queues: 1 };
    group.command(Command::PutRequestMode { group: name.clone(), topic: topic.clone(), mode, stamped_ms: 1 }).await;
    for (command, expected) in cases {
        let before = committed(&group);
        let from = before.unwrap_or(0);
        assert_eq!(take(&group, Seen::Committed(before), from, from + 2).await, PopOutcome::Done, "{command:?}");
        assert_eq!(group.state().held_reset("g", "A", 0), None, "a consumer that pops need not be told");
        group.command(command.clone()).await;
        assert_eq!((committed(&group), taken(&group)), (expected, vec![]), "{command:?}");
        assert_eq!(group.state().pops().taken_count(), 0, "{command:?}");
    }
    assert_eq!(group.state().pops().mode("g", "A"), None);
}

#[tokio::test]
async fn a_start_knows_what_is_under_way() {
    let mut group = group().await;
    let GroupQueue { group: name, topic, .. } = queue();
    let mode = RequestMode::Pop { share_queues: 8 };
    group.command(Command::PutRequestMode { group: name, topic, mode, stamped_ms: 1 }).await;
    take(&group, Seen::Committed(None), 0, 4).await;
    group.checkpoint().await;
    step(&group, PopAction::Acknowledge { popped_ms: 1_000, queue_offsets: vec![1] }).await;
    let before = group.digest().await;
    group.kill();
    group.start().await;
    assert_eq!(group.digest().await, before);
    assert_eq!((committed(&group), taken(&group)), (Some(0), vec![0, 2, 3]));
    assert_eq!(group.state().pops().mode("g", "A"), Some(mode));
    assert_eq!(group.state().pops().queue("g", "A", 0).unwrap().next_due_ms(), Some(1_010));
}
