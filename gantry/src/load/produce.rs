//! Generates sends.
//!
//! Open loop: message `i` is due at `start + i / rate` whatever happened to the ones before it, and its latency counts
//! from that moment, so a stall shows in every message that it delayed. Closed loop: a fixed number is in flight, and
//! the next goes out when one is answered; its latency says what one call takes, not what a user would have felt.
//!
//! No task is made for a message: answers are handled where they are read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use protocol::header::SendRequest;
use protocol::{RemotingCommand, RequestCode, TopicName};
use remoting::Channel;
use tokio::sync::Notify;

/// How often the open loop looks what is due.
const TICK: Duration = Duration::from_micros(500);
/// Rest after a call that failed, so that a broker that is away is not hammered.
const FAILURE_PAUSE: Duration = Duration::from_millis(20);
/// How often a lost connection is dialled.
const CONNECT_INTERVAL: Duration = Duration::from_millis(100);
/// The longest latency that is told apart; longer ones count as this.
const LATENCY_MICROS_MAX: u64 = 120_000_000;

/// One queue of one broker group, by one connection.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its place in [`Plan::channels`].
    pub(crate) channel: usize,
    pub(crate) topic: TopicName,
    pub(crate) broker_name: Arc<str>,
    pub(crate) queue_id: i32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Loop {
    Open { per_second: f64, in_flight_max: u64 },
    Closed { in_flight: u64 },
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) channels: Vec<Channel>,
    /// Used in turn.
    pub(crate) targets: Vec<Target>,
    pub(crate) body: Bytes,
    pub(crate) mode: Loop,
    /// Messages to send at most.
    pub(crate) count: u64,
    /// Time to send in at most.
    pub(crate) time: Duration,
    /// A call without an answer for so long has failed.
    pub(crate) call_time_max: Duration,
}

/// What came of a plan.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) acked: u64,
    /// By what happened.
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) elapsed: Duration,
    /// In microseconds; acknowledged messages only.
    pub(crate) latency: Histogram<u64>,
}

/// A plan being carried out.
pub(crate) struct Run {
    plan: Plan,
    run_id: u32,
    stop: AtomicBool,
    issued: AtomicU64,
    finished: AtomicU64,
    acked: AtomicU64,
    /// Wakes whoever waits for `finished` to move.
    moved: Notify,
    /// One for each channel: the answers of a channel come on one task, so nobody waits for the lock.
    latencies: Vec<Mutex<Histogram<u64>>>,
    failed: Mutex<BTreeMap<String, u64>>,
}

impl Run {
    pub(crate) fn new(plan: Plan) -> Result<Arc<Self>> {
        anyhow::ensure!(!plan.targets.is_empty(), "no queue to send to");
        let histogram = || Histogram::new_with_max(LATENCY_MICROS_MAX, 3).context("making a histogram");
        let latencies = plan.channels.iter().map(|_| histogram().map(Mutex::new)).collect::<Result<_>>()?;
        Ok(Arc::new(Self {
            plan,
            run_id: rand::random(),
            stop: AtomicBool::new(false),
            issued: AtomicU64::new(0),
            finished: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            moved: Notify::new(),
            latencies,
            failed: Mutex::default(),
        }))
    }

    /// Messages acknowledged so far.
    pub(crate) fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    /// Carries the plan out, and waits for what is in flight at the end of it.
    pub(crate) async fn carry_out(self: &Arc<Self>) -> Result<Outcome> {
        for channel in &self.plan.channels {
            channel.connect(self.plan.call_time_max).await.context("connecting to a broker")?;
        }
        let mut keepers = tokio::task::JoinSet::new();
        for channel in &self.plan.channels {
            keepers.spawn(keep_connected(channel.clone()));
        }
        let (started, cut_off) = (Instant::now(), tokio::time::sleep(self.plan.time));
        match self.plan.mode {
            Loop::Open { per_second, in_flight_max } => {
                tokio::select! {
                    () = self.open_loop(started, per_second, in_flight_max) => {}
                    () = cut_off => {}
                }
            }
            Loop::Closed { in_flight } => {
                for slot in 0..in_flight {
                    self.next_of_slot(slot);
                }
                tokio::select! {
                    () = self.all_finished() => {}
                    () = cut_off => {}
                }
            }
        }
        self.stop.store(true, Ordering::SeqCst);
        self.all_finished().await;
        keepers.shutdown().await;
        let elapsed = started.elapsed();
        let mut latency = Histogram::new_with_max(LATENCY_MICROS_MAX, 3).context("making a histogram")?;
        for one in &self.latencies {
            latency.add(&*one.lock()).context("adding histograms")?;
        }
        Ok(Outcome { acked: self.acked(), failed: self.failed.lock().clone(), elapsed, latency })
    }

    async fn open_loop(self: &Arc<Self>, started: Instant, per_second: f64, in_flight_max: u64) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let mut next = 0_u64;
        while next < self.plan.count {
            tick.tick().await;
            remoting::cork(|| {
                while next < self.plan.count {
                    let due = started + Duration::from_secs_f64(next as f64 / per_second);
                    let in_flight = next - self.finished.load(Ordering::Relaxed);
                    if due > Instant::now() || in_flight >= in_flight_max || !self.try_send(next, due, None) {
                        break;
                    }
                    next += 1;
                }
            });
        }
        self.all_finished().await;
    }

    /// Sends the next message of a slot of the closed loop.
    fn next_of_slot(self: &Arc<Self>, slot: u64) {
        if self.stop.load(Ordering::SeqCst) {
            return;
        }
        let taken = self.issued.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |issued| {
            (issued < self.plan.count).then_some(issued + 1)
        });
        let Ok(turn) = taken else { return };
        if !self.try_send(turn, Instant::now(), Some(slot)) {
            self.finish(Err("no connection"), Some(slot));
        }
    }

    /// Sends one message to the target that `turn` chooses. False: it could not be sent now, and nothing happened.
    fn try_send(self: &Arc<Self>, turn: u64, since: Instant, slot: Option<u64>) -> bool {
        let index = usize::try_from(turn % self.plan.targets.len() as u64).expect("below the number of targets");
        let target = &self.plan.targets[index];
        let request = self.request(target, turn);
        let channel = &self.plan.channels[target.channel];
        if channel.connected().is_none() {
            return false;
        }
        if slot.is_none() {
            self.issued.fetch_add(1, Ordering::SeqCst);
        }
        let (run, lane) = (Arc::clone(self), target.channel);
        channel.call_with(request, self.plan.call_time_max, move |answer| match answer {
            Ok(answer) if answer.is_success() => {
                let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
                run.latencies[lane].lock().saturating_record(micros);
                run.finish(Ok(()), slot);
            }
            Ok(answer) => run.finish(Err(&format!("code {}", answer.code)), slot),
            Err(error) => run.finish(Err(kind_of(&error)), slot),
        });
        true
    }

    fn request(&self, target: &Target, number: u64) -> RemotingCommand {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
        // As real clients do: the key is stored and indexed with the message.
        let properties = format!("UNIQ_KEY\u{1}{:08X}{number:016X}\u{2}WAIT\u{1}true", self.run_id);
        let send = SendRequest {
            producer_group: "gantry_bench",
            topic: target.topic.clone(),
            default_topic: TopicName::AUTO_CREATE,
            default_topic_queue_nums: 4,
            queue_id: target.queue_id,
            sys_flag: 0,
            born_timestamp: i64::try_from(now).unwrap_or(0),
            flag: 0,
            properties: &properties,
            reconsume_times: 0,
            unit_mode: false,
            batch: false,
            max_reconsume_times: None,
            broker_name: Some(&target.broker_name),
        };
        let mut request = RemotingCommand::request(RequestCode::SEND_MESSAGE_V2).with_body(self.plan.body.clone());
        send.encode_into(RequestCode::SEND_MESSAGE_V2, &mut request.ext);
        request
    }

    /// Notes the end of one call; in the closed loop the slot goes on, after a rest if the call failed.
    fn finish(self: &Arc<Self>, result: Result<(), &str>, slot: Option<u64>) {
        match result {
            Ok(()) => {
                self.acked.fetch_add(1, Ordering::Relaxed);
            }
            Err(what) => {
                let mut failed = self.failed.lock();
                match failed.get_mut(what) {
                    Some(count) => *count += 1,
                    None => {
                        failed.insert(what.to_owned(), 1);
                    }
                }
            }
        }
        if let Some(slot) = slot {
            if result.is_ok() {
                self.next_of_slot(slot);
            } else {
                let run = Arc::clone(self);
                tokio::spawn(async move {
                    tokio::time::sleep(FAILURE_PAUSE).await;
                    run.next_of_slot(slot);
                    run.moved.notify_waiters();
                });
            }
        }
        let finished = self.finished.fetch_add(1, Ordering::SeqCst) + 1;
        // Seldom true before the end, so that a message costs no wake-up.
        if finished >= self.issued.load(Ordering::SeqCst) {
            self.moved.notify_waiters();
        }
    }

    /// Resolves when nothing is in flight and nothing more will be sent.
    async fn all_finished(&self) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let over = self.stop.load(Ordering::SeqCst) || self.issued.load(Ordering::SeqCst) >= self.plan.count;
            if over && self.finished.load(Ordering::SeqCst) >= self.issued.load(Ordering::SeqCst) {
                return;
            }
            moved.await;
        }
    }
}

/// Dials again when the connection was lost.
async fn keep_connected(channel: Channel) {
    loop {
        // What goes wrong shows in the calls.
        let _ = channel.connect(CONNECT_INTERVAL).await;
        tokio::time::sleep(CONNECT_INTERVAL).await;
    }
}

fn kind_of(error: &remoting::Error) -> &'static str {
    match error {
        remoting::Error::Timeout { .. } => "no answer in time",
        remoting::Error::Lost { .. } => "connection lost",
        remoting::Error::Closed { .. } => "connection closed",
        _ => "could not be sent",
    }
}
