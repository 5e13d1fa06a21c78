//! Half messages as a function of the log.

use super::super::command::Command;
use super::super::testing::{Group, Message, message};
use super::super::{CommandRefused, CommandReply, MessageOutcome};
use super::*;

const P: &str = "PGROUP\u{1}p\u{2}";

async fn group() -> Group {
    let group = Group::new();
    for topic in [HALF_TOPIC, GIVEN_UP_TOPIC, "A"] {
        group.put_topic(topic, 1).await;
    }
    group
}

fn half(body: &str) -> Message<'_> {
    message(HALF_TOPIC, 0, body).properties(P)
}

/// Stores a half message.
async fn store(group: &Group, message: Message<'_>) -> HalfPlace {
    let appended = group.send(message).await;
    HalfPlace { queue_offset: appended.queue_offset, physical_offset: appended.physical_offset }
}

async fn end(group: &Group, halves: &[HalfPlace], end: HalfEnd, messages: &[Message<'_>]) -> CommandReply {
    let command = Command::EndHalves { halves: halves.to_vec(), end, stamped_ms: 1 };
    group.command_with(command, messages).await.0
}

fn not_pending(place: HalfPlace) -> CommandReply {
    CommandReply::Refused(CommandRefused::NotPending { queue_offset: place.queue_offset })
}

fn pending(group: &Group) -> Vec<u64> {
    group.state().halves_from(0, 100).into_iter().map(|(number, _)| number).collect()
}

#[tokio::test]
async fn a_half_message_is_pending_with_what_it_says() {
    let group = group().await;
    group.send(message("A", 0, "no half")).await;
    let plain = store(&group, half("1")).await;
    let properties = format!("{P}CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}60\u{2}");
    let immune = store(&group, half("2").properties(&properties).stored_at(77)).await;
    // Nobody could ever end it.
    store(&group, half("3").properties("")).await;
    let expected = Half {
        physical_offset: plain.physical_offset,
        group: GroupName::parse("p").unwrap(),
        stored_ms: 1_700_000_000_000,
        immunity_ms: None,
        checks: 0,
    };
    assert_eq!(group.state().half(0), Some(expected.clone()));
    let second = Half { physical_offset: immune.physical_offset, stored_ms: 77, immunity_ms: Some(60_000), ..expected };
    assert_eq!(group.state().half(1), Some(second));
    assert_eq!(pending(&group), [0, 1]);
    assert_eq!(group.state().half_count(), 2);
}

#[tokio::test]
async fn a_transaction_and_its_message_end_together_and_once() {
    let group = group().await;
    let first = store(&group, half("1")).await;
    let second = store(&group, half("2")).await;
    assert_eq!(end(&group, &[first], HalfEnd::Commit, &[message("A", 0, "1")]).await, CommandReply::Done);
    for again in [HalfEnd::Commit, HalfEnd::Rollback] {
        let follows = [message("A", 0, "1")];
        let follows = if again == HalfEnd::Commit { &follows[..] } else { &[] };
        assert_eq!(end(&group, &[first], again, follows).await, not_pending(first));
    }
    assert_eq!(end(&group, &[second], HalfEnd::Rollback, &[]).await, CommandReply::Done);
    assert_eq!(end(&group, &[second], HalfEnd::Commit, &[message("A", 0, "2")]).await, not_pending(second));
    assert!(pending(&group).is_empty());
    assert_eq!(group.end_of("A", 0).await, 1);
}

#[tokio::test]
async fn an_end_that_does_not_fit_changes_nothing() {
    let group = group().await;
    let place = store(&group, half("1")).await;
    let elsewhere = HalfPlace { physical_offset: place.physical_offset + 1, ..place };
    let unknown = HalfPlace { queue_offset: 9, ..place };
    let message = message("A", 0, "1");
    let no_queue = CommandReply::Refused(CommandRefused::NoQueue);
    let unfit = "what follows does not fit the end of the half messages";
    let unfit = CommandReply::Refused(CommandRefused::Invalid(unfit));
    let lost = Message { topic: "gone", ..message };
    for (halves, how, messages, expected) in [
        (vec![elsewhere], HalfEnd::Commit, vec![message], not_pending(elsewhere)),
        (vec![unknown], HalfEnd::Commit, vec![message], not_pending(unknown)),
        (vec![place, unknown], HalfEnd::Commit, vec![message, message], not_pending(unknown)),
        (vec![place, place], HalfEnd::Commit, vec![message, message], not_pending(place)),
        (vec![place], HalfEnd::Commit, vec![lost], no_queue),
        (vec![place], HalfEnd::Commit, vec![], unfit.clone()),
        (vec![place], HalfEnd::Commit, vec![half("1")], unfit.clone()),
        (vec![place], HalfEnd::Rollback, vec![message], unfit.clone()),
        (vec![place], HalfEnd::GiveUp, vec![message], unfit),
    ] {
        assert_eq!(end(&group, &halves, how, &messages).await, expected, "{halves:?} {how:?}");
        assert_eq!(pending(&group), [0]);
    }
    assert_eq!(group.end_of("A", 0).await, 0);
}

#[tokio::test]
async fn checks_are_counted_while_it_is_pending() {
    let group = group().await;
    let first = store(&group, half("1")).await;
    let second = store(&group, half("2")).await;
    let count = |halves: Vec<HalfPlace>| Command::CountChecks { halves, stamped_ms: 1 };
    group.command(count(vec![first, second])).await;
    end(&group, &[first], HalfEnd::Rollback, &[]).await;
    let elsewhere = HalfPlace { physical_offset: 1, ..second };
    group.command(count(vec![first, second, elsewhere])).await;
    assert_eq!(group.state().half(0), None);
    assert_eq!(group.state().half(1).unwrap().checks, 2);
}

#[tokio::test]
async fn what_was_given_up_is_resumed_once() {
    let group = group().await;
    let place = store(&group, half("1")).await;
    let halves = vec![place];
    let command = Command::EndHalves { halves, end: HalfEnd::GiveUp, stamped_ms: 1 };
    let (_, copies) = group.command_with(command, &[message(GIVEN_UP_TOPIC, 0, "1").properties(P)]).await;
    let [MessageOutcome::Appended(copy)] = copies.outcomes[..] else { panic!("{copies:?}") };
    assert!(pending(&group).is_empty());
    assert!(group.state().is_given_up(copy.physical_offset));

    let resume = |given_up| Command::ResumeHalf { given_up, stamped_ms: 1 };
    let not_given_up = CommandReply::Refused(CommandRefused::NotGivenUp);
    assert_eq!(group.command_with(resume(copy.physical_offset + 1), &[half("1")]).await.0, not_given_up);
    let unfit = CommandReply::Refused(CommandRefused::Invalid("one half message must follow"));
    assert_eq!(group.command_with(resume(copy.physical_offset), &[message("A", 0, "1")]).await.0, unfit);
    assert_eq!(group.command_with(resume(copy.physical_offset), &[half("1")]).await.0, CommandReply::Done);
    assert_eq!(group.command_with(resume(copy.physical_offset), &[half("1")]).await.0, not_given_up);
    assert_eq!(pending(&group), [1]);
    assert!(!group.state().is_given_up(copy.physical_offset));
}

#[tokio::test]
async fn a_half_message_that_moves_keeps_all_but_its_place() {
    let group = group().await;
    let properties = format!("{P}CHECK_IMMUNITY_TIME_IN_SECONDS\u{1}60\u{2}");
    let first = store(&group, half("1").properties(&properties).stored_at(5)).await;
    let second = store(&group, half("2")).await;
    group.command(Command::CountChecks { halves: vec![first], stamped_ms: 1 }).await;
    let before = group.state().half(0).unwrap();
    let carry = Command::CarryHalves { halves: vec![first, second], stamped_ms: 1 };
    let copies = [half("1").stored_at(9), half("2")];
    let (reply, moved) = group.command_with(carry.clone(), &copies).await;
    assert_eq!(reply, CommandReply::Done);
    assert_eq!(pending(&group), [2, 3]);
    let [MessageOutcome::Appended(moved), _] = moved.outcomes[..] else { panic!("{moved:?}") };
    assert_eq!(group.state().half(2), Some(Half { physical_offset: moved.physical_offset, ..before }));
    assert_eq!(group.command_with(carry, &copies).await.0, not_pending(first));
    // Who knows its old place only is told no, and its message does not come.
    assert_eq!(end(&group, &[first], HalfEnd::Commit, &[message("A", 0, "1")]).await, not_pending(first));
    let now = HalfPlace { queue_offset: 2, physical_offset: moved.physical_offset };
    assert_eq!(end(&group, &[now], HalfEnd::Commit, &[message("A", 0, "1")]).await, CommandReply::Done);
}

#[tokio::test]
async fn transactions_outlive_a_kill_and_are_in_the_checkpoint() {
    let mut group = group().await;
    for number in 0..40 {
        let place = store(&group, half(&"x".repeat(300))).await;
        match number % 4 {
            0 => {
                end(&group, &[place], HalfEnd::Commit, &[message("A", 0, "message")]).await;
            }
            1 => {
                let copy = message(GIVEN_UP_TOPIC, 0, "copy").properties(P);
                end(&group, &[place], HalfEnd::GiveUp, &[copy]).await;
            }
            _ => {}
        }
    }
    assert_eq!(group.state().half_count(), 20);
    let before = group.digest().await;
    group.kill();
    group.start().await;
    assert_eq!(group.digest().await, before);
    group.checkpoint().await;
    group.stop().await;
    group.start().await;
    assert_eq!(group.digest().await, before);
    assert_eq!(group.state().half_count(), 20);
}
