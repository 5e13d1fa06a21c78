//! Timers as a function of the log.

use proptest::prelude::*;

use super::super::command::Command;
use super::super::testing::{Group, Message, message};
use super::super::{CommandRefused, CommandReply};
use super::*;

async fn group() -> Group {
    let group = Group::new();
    for topic in [TIMER_TOPIC, "A"] {
        group.put_topic(topic, 1).await;
    }
    group
}

fn due(due_ms: i64) -> String {
    format!("TIMER_OUT_MS\u{1}{due_ms}\u{2}")
}

/// Stores a timer message.
async fn store(group: &Group, body: &str, due_ms: i64) -> Timer {
    let appended = group.send(message(TIMER_TOPIC, 0, body).properties(&due(due_ms))).await;
    Timer { due_ms, physical_offset: appended.physical_offset }
}

async fn fire(group: &Group, timers: &[Timer], messages: &[Message<'_>]) -> CommandReply {
    group.command_with(Command::FireTimers { timers: timers.to_vec(), stamped_ms: 1 }, messages).await.0
}

fn not_pending(Timer { due_ms, physical_offset }: Timer) -> CommandReply {
    CommandReply::Refused(CommandRefused::TimerNotPending { due_ms, physical_offset })
}

fn pending(group: &Group) -> Vec<Timer> {
    group.state().timers_due(i64::MAX, 100)
}

#[tokio::test]
async fn timers_are_pending_in_the_order_in_which_they_are_due() {
    let group = group().await;
    let last = store(&group, "1", 500).await;
    let first = store(&group, "2", 20).await;
    let second = store(&group, "3", 20).await;
    // It does not say when, so it never is.
    group.send(message(TIMER_TOPIC, 0, "4").properties("TIMER_OUT_MS\u{1}soon\u{2}")).await;
    group.send(message("A", 0, "5").properties(&due(7))).await;
    assert_eq!(pending(&group), [first, second, last]);
    assert_eq!(group.state().timers_due(20, 1), [first]);
    assert_eq!(group.state().timers_due(499, 9), [first, second]);
    assert!(group.state().timers_due(19, 9).is_empty());
    assert_eq!(group.state().next_timer_ms(), Some(20));
    assert_eq!(group.state().timer_places(2), [last.physical_offset, first.physical_offset]);
    assert_eq!(group.state().timer_count(), 3);
}

#[tokio::test]
async fn a_timer_and_its_message_go_together_and_once() {
    let group = group().await;
    let first = store(&group, "1", 5).await;
    let second = store(&group, "2", 5).await;
    assert_eq!(fire(&group, &[first], &[message("A", 0, "1")]).await, CommandReply::Done);
    assert_eq!(fire(&group, &[first], &[message("A", 0, "1")]).await, not_pending(first));
    // Recalled: it is not delivered, and cannot be any more.
    assert_eq!(fire(&group, &[second], &[]).await, CommandReply::Done);
    assert_eq!(fire(&group, &[second], &[message("A", 0, "2")]).await, not_pending(second));
    assert!(pending(&group).is_empty());
    assert_eq!(group.end_of("A", 0).await, 1);
}

#[tokio::test]
async fn what_does_not_fit_changes_nothing() {
    let group = group().await;
    let timer = store(&group, "1", 5).await;
    let later = Timer { due_ms: 6, ..timer };
    let elsewhere = Timer { physical_offset: timer.physical_offset + 1, ..timer };
    let message = message("A", 0, "1");
    let waits = due(9);
    let unfit = "at most one message may follow for each timer, and none that waits";
    let unfit = CommandReply::Refused(CommandRefused::Invalid(unfit));
    let no_queue = CommandReply::Refused(CommandRefused::NoQueue);
    for (timers, messages, expected) in [
        (vec![later], vec![message], not_pending(later)),
        (vec![elsewhere], vec![message], not_pending(elsewhere)),
        (vec![timer, timer], vec![message, message], not_pending(timer)),
        (vec![timer, later], vec![message], not_pending(later)),
        (vec![timer], vec![message, message], unfit.clone()),
        (vec![timer], vec![Message { topic: TIMER_TOPIC, properties: &waits, ..message }], unfit),
        (vec![timer], vec![Message { topic: "gone", ..message }], no_queue.clone()),
        (vec![timer], vec![Message { queue_id: 1, ..message }], no_queue),
    ] {
        assert_eq!(fire(&group, &timers, &messages).await, expected, "{timers:?}");
        assert_eq!(pending(&group), [timer]);
    }
    assert_eq!(group.end_of("A", 0).await, 0);
}

#[tokio::test]
async fn a_timer_that_moves_is_due_when_it_was() {
    let group = group().await;
    let first = store(&group, "1", 5).await;
    let second = store(&group, "2", 9).await;
    let carry = async |copies: &[Message<'_>]| {
        let command = Command::CarryTimers { timers: vec![second, first], stamped_ms: 1 };
        group.command_with(command, copies).await.0
    };
    let (at_5, at_9) = (due(5), due(9));
    let copies = [("2", &at_9), ("1", &at_5)].map(|(body, due)| message(TIMER_TOPIC, 0, body).properties(due));
    let unfit = "one timer must follow for each that moves, due at the same time";
    let unfit = CommandReply::Refused(CommandRefused::Invalid(unfit));
    let swapped = [copies[1], copies[0]];
    for wrong in [&copies[..1], &swapped, &[copies[0], message("A", 0, "1")]] {
        assert_eq!(carry(wrong).await, unfit);
    }
    assert_eq!(pending(&group), [first, second]);
    assert_eq!(carry(&copies).await, CommandReply::Done);
    let moved = pending(&group);
    assert_eq!(moved.iter().map(|timer| timer.due_ms).collect::<Vec<_>>(), [5, 9]);
    assert!(moved.iter().all(|timer| timer.physical_offset > second.physical_offset), "{moved:?}");
    assert_eq!(carry(&copies).await, not_pending(second));
    assert_eq!(fire(&group, &[first], &[message("A", 0, "1")]).await, not_pending(first));
    assert_eq!(fire(&group, &moved, &[message("A", 0, "1"), message("A", 0, "2")]).await, CommandReply::Done);
}

#[tokio::test]
async fn timers_outlive_a_kill_and_are_in_the_checkpoint() {
    let mut group = group().await;
    for number in 0..40 {
        let timer = store(&group, &"x".repeat(300), 1_800_000_000_000 - number * 100_000).await;
        if number % 4 == 0 {
            fire(&group, &[timer], &[message("A", 0, "message")]).await;
        }
    }
    let timers = pending(&group);
    assert_eq!(timers.len(), 30);
    let before = group.digest().await;
    group.kill();
    group.start().await;
    assert_eq!(group.digest().await, before);
    group.checkpoint().await;
    group.stop().await;
    group.start().await;
    assert_eq!(group.digest().await, before);
    assert_eq!(pending(&group), timers);
}

#[test]
fn packed_timers_are_unpacked_or_refused() {
    let mut timers = Timers::default();
    for (due_ms, physical_offset) in [(0, 0), (0, 5), (127, 128), (1_800_000_000_000, 1 << 40), (i64::MAX, u64::MAX)] {
        timers.stored(Timer { due_ms, physical_offset });
    }
    let packed = timers.pack();
    assert_eq!(Timers::unpack(&packed), Some(timers));
    for end in 1..packed.len() {
        assert_ne!(Timers::unpack(&packed[..end]).map(|timers| timers.len()), Some(5));
    }
    let refused: [&[u8]; 5] = [
        &[1],
        // The same place twice.
        &[1, 7, 1, 7],
        // Places of one time in the wrong order.
        &[1, 7, 0, 6],
        // Beyond any number, and beyond any time.
        &[1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0],
    ];
    for bytes in refused {
        assert_eq!(Timers::unpack(bytes), None, "{bytes:?}");
    }
}

/// What happens to the set of pending timers.
#[derive(Clone, Debug)]
enum Operation {
    Stored {
        due_ms: i64,
    },
    /// Timers are named to end, by their numbers among all that were ever stored.
    Ended {
        numbers: Vec<prop::sample::Index>,
    },
    Repacked,
}

fn operation() -> impl Strategy<Value = Operation> {
    let number = any::<prop::sample::Index>();
    prop_oneof![
        // Few times, so that many timers share one.
        6 => (0..20_i64).prop_map(|due_ms| Operation::Stored { due_ms }),
        4 => prop::collection::vec(number, 1..4).prop_map(|numbers| Operation::Ended { numbers }),
        1 => Just(Operation::Repacked),
    ]
}

proptest! {
    #[test]
    fn the_pending_set_agrees_with_a_model(operations in prop::collection::vec(operation(), 1..150)) {
        let mut timers = Timers::default();
        let mut stored: Vec<Timer> = Vec::new();
        let mut pending: Vec<Timer> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Stored { due_ms } => {
                    let timer = Timer { due_ms, physical_offset: stored.len() as u64 * 100 };
                    timers.stored(timer);
                    stored.push(timer);
                    pending.push(timer);
                }
                Operation::Ended { numbers } if !stored.is_empty() => {
                    let named: Vec<Timer> = numbers.iter().map(|number| stored[number.index(stored.len())]).collect();
                    let is_wrong = |at: usize| !pending.contains(&named[at]) || named[..at].contains(&named[at]);
                    let wrong = (0..named.len()).find(|at| is_wrong(*at)).map(|at| named[at]);
                    prop_assert_eq!(timers.not_pending(&named), wrong);
                    if wrong.is_none() {
                        timers.remove(&named);
                        pending.retain(|timer| !named.contains(timer));
                    }
                }
                Operation::Ended { .. } => {}
                Operation::Repacked => timers = Timers::unpack(&timers.pack()).unwrap(),
            }
            let mut by_time = pending.clone();
            by_time.sort_by_key(|timer| (timer.due_ms, timer.physical_offset));
            prop_assert_eq!(timers.iter().collect::<Vec<_>>(), by_time);
            // They were stored in the order of the log.
            prop_assert!(timers.places().eq(pending.iter().map(|timer| timer.physical_offset)));
            prop_assert_eq!(timers.len(), pending.len());
        }
    }
}
