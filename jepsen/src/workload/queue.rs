//! The queue workload: producers, pull sessions, and processes that use group offsets as registers.

use std::time::Duration;

use anyhow::{Context, Result};
use client::{PullOptions, Queue};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Agent, CALL_TIME_MAX, CALL_TIME_SHORT, Stage};
use crate::generator::{Intent, Mix, Operations};
use crate::history::Process;
use crate::seed::Stream;

const PRODUCERS: u16 = 4;
/// Of these, so many give up early.
const HASTY_PRODUCERS: u16 = 2;
const READERS: u16 = 2;
const REGISTRARS: u16 = 2;
/// A process begins its operations so far apart, or as soon as the one before has ended. As long as answers come sooner
/// than that, the rate tells nothing of how busy the machine is with other things.
const INTERVAL_MS: (u64, u64) = (10, 50);
const PULL_MAX: i32 = 32;
const PULL_HOLD: Duration = Duration::from_millis(200);

pub(super) fn start(stage: &Stage, stop: &watch::Receiver<bool>, processes: &mut JoinSet<Result<()>>) -> Result<()> {
    for worker in 0..PRODUCERS {
        // If all of them waited for one leader that is gone, it would look as if nobody served.
        let patience = if worker < HASTY_PRODUCERS { CALL_TIME_SHORT } else { CALL_TIME_MAX };
        let agent = Agent::with_patience(stage, Process { client: 1, worker }, patience)?;
        processes.spawn(produce(agent, stage.clone(), stop.clone()));
    }
    for worker in 0..READERS {
        let agent = Agent::new(stage, Process { client: 2, worker })?;
        processes.spawn(read(agent, stage.clone(), stop.clone()));
    }
    for worker in 0..REGISTRARS {
        let agent = Agent::new(stage, Process { client: 3, worker })?;
        processes.spawn(register(agent, stage.clone(), stop.clone()));
    }
    Ok(())
}

async fn produce(agent: Agent, stage: Stage, stop: watch::Receiver<bool>) -> Result<()> {
    let queues = u32::try_from(stage.queues.len()).context("the number of queues")?;
    let mut operations = Operations::new(stage.seed, agent.process, Mix::queue(stage.seed, queues));
    let mut pauses = stage.seed.stream(&format!("pauses.{}", agent.process));
    let queue = |nth: u32| -> Result<&Queue> { stage.queues.get(nth as usize).context("a queue that is not there") };
    while !*stop.borrow() {
        let next = next_begin(&mut pauses);
        match operations.next() {
            Intent::Send(draft) => {
                agent.send(queue(draft.queue)?, draft).await?;
            }
            Intent::Batch(drafts) => {
                let first = drafts.first().context("an empty batch")?.queue;
                agent.send_batch(queue(first)?, &drafts).await?;
            }
            Intent::MaxOffset(nth) => {
                agent.max_offset(queue(nth)?).await?;
            }
            Intent::SendDelay(..) | Intent::SendHalf(..) => anyhow::bail!("the queue workload has no such operation"),
        }
        tokio::time::sleep_until(next).await;
    }
    agent.leave().await;
    Ok(())
}

/// One pull session on every queue, in turn.
async fn read(agent: Agent, stage: Stage, stop: watch::Receiver<bool>) -> Result<()> {
    let options = PullOptions { messages_max: PULL_MAX, hold: PULL_HOLD, expression: "*".into() };
    let mut next = vec![0_u64; stage.queues.len()];
    let mut pauses = stage.seed.stream(&format!("pauses.{}", agent.process));
    while !*stop.borrow() {
        let begin = next_begin(&mut pauses);
        for (nth, queue) in stage.queues.iter().enumerate() {
            let sess = u64::from(agent.process.worker) * 1_000 + nth as u64;
            if let Some(to) = agent.pull(queue, next[nth], sess, &options).await? {
                next[nth] = to.queue_offset;
            }
            if *stop.borrow() {
                break;
            }
        }
        tokio::time::sleep_until(begin).await;
    }
    agent.leave().await;
    Ok(())
}

/// Commits and reads the group's offset of the first queue of every broker, lower ones on purpose.
async fn register(agent: Agent, stage: Stage, stop: watch::Receiver<bool>) -> Result<()> {
    let firsts: Vec<&Queue> = stage.queues.iter().filter(|queue| queue.queue_id == 0).collect();
    let mut stream = stage.seed.stream(&format!("ops.{}", agent.process));
    let mut max = vec![0_u64; firsts.len()];
    // The first commit makes the group; before it there is nothing to ask for.
    for queue in &firsts {
        agent.commit(queue, 0).await?;
    }
    while !*stop.borrow() {
        let next = next_begin(&mut stream);
        let nth = usize::try_from(stream.below(firsts.len() as u64)).unwrap_or_default();
        match stream.below(10) {
            0 => max[nth] = agent.max_offset(firsts[nth]).await?.unwrap_or(max[nth]),
            1..=4 => {
                agent.commit(firsts[nth], stream.between(0, max[nth])).await?;
            }
            _ => {
                agent.query_offset(firsts[nth]).await?;
            }
        }
        tokio::time::sleep_until(next).await;
    }
    agent.leave().await;
    Ok(())
}

/// When the operation after the one that begins now may begin.
fn next_begin(stream: &mut Stream) -> Instant {
    Instant::now() + Duration::from_millis(stream.between(INTERVAL_MS.0, INTERVAL_MS.1))
}
