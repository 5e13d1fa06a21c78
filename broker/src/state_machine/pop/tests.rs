//! What is under way, against a model that keeps one state for each message.

use proptest::prelude::*;

use super::*;

fn key(queue_id: u32) -> GroupQueue {
    GroupQueue { group: GroupName::parse("g").unwrap(), topic: TopicName::parse("T").unwrap(), queue_id }
}

/// A take of `fresh` and `again` at `popped_ms` for 10 ms, from a queue that stands at `seen`.
fn take(seen: Seen, next: u64, fresh: &[u64], again: &[u64], popped_ms: i64) -> Take {
    Take {
        seen,
        next,
        floor: 0,
        fresh: fresh.to_vec(),
        again: again.to_vec(),
        popped_ms,
        invisible_ms: 10,
        order: None,
    }
}

fn ordered(take: Take, attempt: &str) -> Take {
    Take { order: Some(Order { attempt: Some(attempt.to_owned()) }), ..take }
}

/// One queue of 100 messages.
struct Bench {
    pops: Pops,
    committed: Option<u64>,
}

impl Bench {
    fn new() -> Self {
        Self { pops: Pops::default(), committed: None }
    }

    fn step(&mut self, action: PopAction) -> PopOutcome {
        let outcome = self.pops.step(PopStep { queue: key(0), action }, Some(100), self.committed);
        self.committed = self.pops.committed(&key(0)).or(self.committed);
        outcome
    }

    fn take(&mut self, take: Take) -> PopOutcome {
        self.step(PopAction::Take(take))
    }

    fn acknowledge(&mut self, popped_ms: i64, queue_offsets: &[u64]) -> PopOutcome {
        self.step(PopAction::Acknowledge { popped_ms, queue_offsets: queue_offsets.to_vec() })
    }

    fn hide(&mut self, queue_offset: u64, popped_ms: i64, hidden_ms: i64, invisible_ms: i64) -> PopOutcome {
        self.step(PopAction::Hide { queue_offset, popped_ms, hidden_ms, invisible_ms })
    }

    fn due(&self, now_ms: i64) -> Vec<(u64, u32)> {
        let queue = self.pops.queue("g", "T", 0).unwrap();
        queue.due(now_ms, 100).into_iter().map(|(offset, taken)| (offset, taken.times)).collect()
    }
}

const MOVED: PopOutcome = PopOutcome::Refused(PopRefused::Moved);
const INVALID: PopOutcome = PopOutcome::Refused(PopRefused::Invalid);

#[test]
fn a_message_comes_back_when_its_time_is_over_and_counts() {
    let mut bench = Bench::new();
    assert_eq!(bench.take(take(Seen::Committed(None), 2, &[0, 1], &[], 1_000)), PopOutcome::Done);
    assert_eq!(bench.due(1_009), []);
    assert_eq!(bench.due(1_010), [(0, 0), (1, 0)]);
    assert_eq!(bench.take(take(Seen::Next(2), 2, &[], &[0], 1_009)), MOVED);
    assert_eq!(bench.take(take(Seen::Next(2), 2, &[], &[0], 1_010)), PopOutcome::Done);
    assert_eq!(bench.due(1_020), [(0, 1), (1, 0)]);
    assert_eq!(bench.committed, Some(0));
}

#[test]
fn an_acknowledgement_belongs_to_one_giving() {
    let mut bench = Bench::new();
    bench.take(take(Seen::Committed(None), 3, &[0, 2], &[], 1_000));
    assert_eq!(bench.acknowledge(999, &[0]), PopOutcome::Stale { count: 1 });
    assert_eq!(bench.acknowledge(1_000, &[0]), PopOutcome::Done);
    assert_eq!(bench.acknowledge(1_000, &[0]), PopOutcome::Done, "once more");
    assert_eq!(bench.acknowledge(1_000, &[1]), PopOutcome::Done, "one that was left out is consumed");
    assert_eq!(bench.acknowledge(1_000, &[3]), PopOutcome::Stale { count: 1 }, "one that was never given");
    assert_eq!(bench.committed, Some(2));
    bench.take(take(Seen::Next(3), 3, &[], &[2], 2_000));
    assert_eq!(bench.acknowledge(1_000, &[2]), PopOutcome::Stale { count: 1 }, "it was given again");
    assert_eq!(bench.acknowledge(2_000, &[2]), PopOutcome::Done);
    assert_eq!(bench.committed, Some(3));
    assert_eq!(bench.pops.taken_count(), 0);
}

#[test]
fn a_hidden_message_comes_back_later_under_another_name() {
    let mut bench = Bench::new();
    bench.take(take(Seen::Committed(None), 1, &[0], &[], 1_000));
    assert_eq!(bench.hide(0, 1_000, 1_005, 100), PopOutcome::Done);
    assert_eq!(bench.hide(0, 1_000, 1_006, 100), PopOutcome::Stale { count: 1 });
    assert_eq!(bench.due(1_104), []);
    assert_eq!(bench.due(1_105), [(0, 0)]);
    assert_eq!(bench.acknowledge(1_000, &[0]), PopOutcome::Stale { count: 1 });
    assert_eq!(bench.acknowledge(1_005, &[0]), PopOutcome::Done);
}

#[test]
fn a_take_is_refused_unless_the_queue_stands_where_it_was_seen() {
    let mut bench = Bench::new();
    assert_eq!(bench.take(take(Seen::Committed(Some(5)), 6, &[5], &[], 1_000)), MOVED);
    assert_eq!(bench.take(take(Seen::Next(0), 1, &[0], &[], 1_000)), MOVED);
    bench.committed = Some(5);
    assert_eq!(bench.take(take(Seen::Committed(Some(5)), 6, &[5], &[], 1_000)), PopOutcome::Done);
    assert_eq!(bench.take(take(Seen::Committed(Some(5)), 6, &[5], &[], 1_000)), MOVED);
    assert_eq!(bench.take(take(Seen::Next(5), 7, &[6], &[], 1_000)), MOVED);
    assert_eq!(bench.take(take(Seen::Next(6), 101, &[6], &[], 1_000)), PopOutcome::Refused(PopRefused::NoQueue));
    assert_eq!(bench.take(take(Seen::Next(6), 8, &[7, 6], &[], 1_000)), INVALID);
    assert_eq!(bench.take(take(Seen::Next(6), 8, &[5], &[], 1_000)), INVALID);
    assert_eq!(bench.take(take(Seen::Next(6), 8, &[8], &[], 1_000)), INVALID);
    assert_eq!(bench.take(take(Seen::Next(6), 5, &[], &[], 1_000)), INVALID);
    bench.pops.forget_queue(&key(0).group, &key(0).topic, 0);
    assert_eq!(bench.take(take(Seen::Next(6), 7, &[6], &[], 1_000)), MOVED);
    assert_eq!(bench.pops, Pops::default());
}

#[test]
fn in_order_nothing_is_given_while_an_earlier_message_is_under_way() {
    let mut bench = Bench::new();
    bench.take(ordered(take(Seen::Committed(None), 2, &[0, 1], &[], 1_000), "a"));
    assert_eq!(bench.take(ordered(take(Seen::Next(2), 3, &[2], &[], 1_005), "b")), MOVED);
    assert_eq!(bench.take(ordered(take(Seen::Next(2), 3, &[2], &[0, 1], 1_010), "b")), MOVED);
    bench.hide(0, 1_000, 1_000, 50);
    assert_eq!(bench.take(ordered(take(Seen::Next(2), 2, &[], &[1], 1_010), "b")), MOVED);
    assert_eq!(bench.take(ordered(take(Seen::Next(2), 2, &[], &[0, 1], 1_050), "b")), PopOutcome::Done);
    assert_eq!(bench.due(2_000), [(0, 1), (1, 1)]);
    // The same attempt gets the same again at once, and that does not count.
    assert_eq!(bench.take(ordered(take(Seen::Next(2), 2, &[], &[0, 1], 1_051), "b")), PopOutcome::Done);
    assert_eq!(bench.due(2_000), [(0, 1), (1, 1)]);
    bench.acknowledge(1_051, &[0]);
    assert_eq!(bench.take(ordered(take(Seen::Next(2), 3, &[2], &[], 1_052), "c")), MOVED);
    bench.acknowledge(1_051, &[1]);
    assert_eq!(bench.take(ordered(take(Seen::Next(2), 3, &[2], &[], 1_052), "c")), PopOutcome::Done);
}

#[test]
fn what_is_under_way_is_bounded() {
    let mut pops = Pops::default();
    let end = Some(u64::MAX);
    let fresh: Vec<u64> = (0..TAKEN_PER_QUEUE_MAX as u64).collect();
    let step = |action| PopStep { queue: key(0), action };
    let full = PopOutcome::Refused(PopRefused::Full);
    let first = take(Seen::Committed(None), fresh.len() as u64, &fresh, &[], 1);
    assert_eq!(pops.step(step(PopAction::Take(first)), end, None), PopOutcome::Done);
    let next = fresh.len() as u64;
    let more = PopAction::Take(take(Seen::Next(next), next + 1, &[next], &[], 1));
    assert_eq!(pops.step(step(more.clone()), end, None), full);
    // What is due is given again all the same, and an acknowledgement makes room.
    let again = PopAction::Take(take(Seen::Next(next), next, &[], &[0], 11));
    assert_eq!(pops.step(step(again), end, None), PopOutcome::Done);
    pops.step(step(PopAction::Acknowledge { popped_ms: 1, queue_offsets: vec![7] }), end, None);
    assert_eq!(pops.step(step(more), end, None), PopOutcome::Done);
    for queue_id in 1..50 {
        let action = PopAction::Take(take(Seen::Committed(None), next, &fresh, &[], 1));
        assert_eq!(pops.step(PopStep { queue: key(queue_id), action }, end, None), PopOutcome::Done);
    }
    let last = PopAction::Take(take(Seen::Committed(None), 1, &[0], &[], 1));
    assert_eq!(pops.step(PopStep { queue: key(50), action: last }, end, None), full);
    assert_eq!(pops.taken_count(), TAKEN_MAX);
}

#[test]
fn messages_that_left_the_log_are_not_under_way() {
    let mut bench = Bench::new();
    bench.take(take(Seen::Committed(None), 4, &[0, 1, 2, 3], &[], 1_000));
    bench.take(Take { floor: 2, ..take(Seen::Next(4), 4, &[], &[1, 3], 1_010) });
    assert_eq!(bench.due(2_000), [(2, 0), (3, 1)]);
    assert_eq!(bench.committed, Some(2));
    assert_eq!(bench.pops.taken_count(), 2);
}

/// Where a message of the model is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Waiting,
    Under(Taken),
    Gone,
}

#[derive(Clone, Debug)]
enum Operation {
    /// Gives up to so many that are due, then so many new ones of which each third is left out.
    Pop {
        again: usize,
        fresh: usize,
        invisible_ms: i64,
    },
    /// Acknowledges the `number`th of those under way.
    Acknowledge {
        number: usize,
        stale: bool,
    },
    Hide {
        number: usize,
        invisible_ms: i64,
    },
    Bury {
        number: usize,
    },
    Reset {
        queue_offset: u64,
    },
    Wait {
        ms: i64,
    },
    Checkpoint,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..4_usize, 0..6_usize, 1..30_i64)
            .prop_map(|(again, fresh, invisible_ms)| Operation::Pop { again, fresh, invisible_ms }),
        5 => (0..8_usize, prop::bool::weighted(0.2)).prop_map(|(number, stale)| Operation::Acknowledge { number, stale }),
        2 => (0..8_usize, 1..30_i64).prop_map(|(number, invisible_ms)| Operation::Hide { number, invisible_ms }),
        1 => (0..8_usize).prop_map(|number| Operation::Bury { number }),
        1 => (0..40_u64).prop_map(|queue_offset| Operation::Reset { queue_offset }),
        4 => (1..20_i64).prop_map(|ms| Operation::Wait { ms }),
        1 => Just(Operation::Checkpoint),
    ]
}

/// The model: every message of a queue for itself.
struct Model {
    places: Vec<Place>,
    now_ms: i64,
}

impl Model {
    fn under(&self) -> Vec<(u64, Taken)> {
        let taken = |(offset, place): (usize, &Place)| match place {
            Place::Under(taken) => Some((offset as u64, *taken)),
            Place::Waiting | Place::Gone => None,
        };
        self.places.iter().enumerate().filter_map(taken).collect()
    }

    fn next(&self) -> u64 {
        self.places.iter().position(|place| *place == Place::Waiting).unwrap_or(self.places.len()) as u64
    }

    fn committed(&self) -> u64 {
        self.places.iter().position(|place| *place != Place::Gone).unwrap_or(self.places.len()) as u64
    }
}

proptest! {
    #[test]
    fn it_agrees_with_a_model_of_single_messages(operations in prop::collection::vec(operation(), 1..120)) {
        let mut bench = Bench::new();
        let mut model = Model { places: vec![Place::Waiting; 100], now_ms: 1_000 };
        // Whether the group has popped since its offset was set.
        let mut is_known = false;
        for operation in operations {
            let nth = |number: usize| {
                let under = model.under();
                (!under.is_empty()).then(|| under[number % under.len()])
            };
            match operation {
                Operation::Pop { again, fresh, invisible_ms } => {
                    let now_ms = model.now_ms;
                    let due = model.under().into_iter().filter(|(_, taken)| taken.until_ms <= now_ms);
                    let again: Vec<(u64, Taken)> = due.take(again).collect();
                    let seen = if is_known { Seen::Next(model.next()) } else { Seen::Committed(bench.committed) };
                    let start = model.next();
                    let next = (start + fresh as u64).min(100);
                    let fresh: Vec<u64> = (start..next).filter(|offset| offset % 3 != 0).collect();
                    let offsets: Vec<u64> = again.iter().map(|(offset, _)| *offset).collect();
                    if is_known {
                        let found = bench.pops.queue("g", "T", 0).unwrap().due(now_ms, offsets.len());
                        prop_assert_eq!(&found, &again);
                    }
                    let wanted = Take { invisible_ms, ..take(seen, next, &fresh, &offsets, now_ms) };
                    prop_assert_eq!(bench.take(wanted), PopOutcome::Done);
                    is_known = true;
                    let until_ms = now_ms + invisible_ms;
                    for offset in start..next {
                        let taken = Taken { popped_ms: now_ms, until_ms, times: 0 };
                        model.places[offset as usize] =
                            if offset % 3 == 0 { Place::Gone } else { Place::Under(taken) };
                    }
                    for (offset, taken) in again {
                        model.places[offset as usize] =
                            Place::Under(Taken { popped_ms: now_ms, until_ms, times: taken.times + 1 });
                    }
                    model.now_ms += 1;
                }
                Operation::Acknowledge { number, stale } => if let Some((offset, taken)) = nth(number) {
                    let outcome = bench.acknowledge(taken.popped_ms - i64::from(stale), &[offset]);
                    if stale {
                        prop_assert_eq!(outcome, PopOutcome::Stale { count: 1 });
                    } else {
                        prop_assert_eq!(outcome, PopOutcome::Done);
                        model.places[offset as usize] = Place::Gone;
                    }
                },
                Operation::Hide { number, invisible_ms } => if let Some((offset, taken)) = nth(number) {
                    let now_ms = model.now_ms;
                    prop_assert_eq!(bench.hide(offset, taken.popped_ms, now_ms, invisible_ms), PopOutcome::Done);
                    let until_ms = now_ms + invisible_ms;
                    model.places[offset as usize] = Place::Under(Taken { popped_ms: now_ms, until_ms, ..taken });
                    model.now_ms += 1;
                },
                Operation::Bury { number } => if let Some((offset, taken)) = nth(number) {
                    let is_due = taken.until_ms <= model.now_ms;
                    prop_assert_eq!(bench.pops.are_due(&key(0), &[offset], model.now_ms), is_due);
                    if is_due {
                        bench.pops.remove(&key(0), &[offset]);
                        bench.committed = bench.pops.committed(&key(0));
                        model.places[offset as usize] = Place::Gone;
                    }
                },
                Operation::Reset { queue_offset } => {
                    bench.pops.forget_queue(&key(0).group, &key(0).topic, 0);
                    bench.committed = Some(queue_offset);
                    is_known = false;
                    for (offset, place) in model.places.iter_mut().enumerate() {
                        *place = if (offset as u64) < queue_offset { Place::Gone } else { Place::Waiting };
                    }
                }
                Operation::Wait { ms } => model.now_ms += ms,
                Operation::Checkpoint => {
                    let image = PopsImage::of(&bench.pops);
                    let restored = image.to_pops();
                    prop_assert_eq!(&restored, &bench.pops);
                    bench.pops = restored;
                }
            }
            prop_assert_eq!(bench.pops.taken_count(), model.under().len());
            prop_assert_eq!(bench.committed.unwrap_or(0), model.committed());
            if is_known {
                let queue = bench.pops.queue("g", "T", 0).unwrap();
                prop_assert_eq!(queue.next, model.next());
                prop_assert_eq!(queue.taken.iter().map(|(offset, taken)| (*offset, *taken)).collect::<Vec<_>>(), model.under());
                let first_due = model.under().iter().map(|(_, taken)| taken.until_ms).min();
                prop_assert_eq!(queue.next_due_ms(), first_due);
            }
        }
    }
}
