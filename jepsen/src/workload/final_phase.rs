//! The end of a run: fresh clients write one more message to every queue and read everything, on the leader and, after
//! leadership was moved there, on every other replica.

use std::time::Duration;

use anyhow::Result;
use client::{PullOptions, Queue};
use tokio::time::Instant;

use super::{Agent, RETRY_INTERVAL, Stage};
use crate::cluster::{Cluster, group_name, post};
use crate::generator::Draft;
use crate::history::{Process, SendMode};

/// How long one queue may refuse to be read or written before it is given up.
const QUEUE_TIME_MAX: Duration = Duration::from_secs(20);
const TRANSFER_TIME_MAX: Duration = Duration::from_secs(10);
const PULL_MAX: i32 = 256;

pub(super) async fn run(stage: &Stage, cluster: &Cluster) -> Result<()> {
    let agent = Agent::new(stage, Process { client: 50, worker: 0 })?;
    for (nth, queue) in stage.queues.iter().enumerate() {
        write_one(&agent, queue, u32::try_from(nth)? * 1_000).await?;
    }
    read(&agent, stage).await?;
    agent.leave().await;
    for number in 1..=cluster.layout.shape.brokers {
        for group in 0..cluster.layout.shape.groups {
            lead(cluster, &group_name(group), number).await;
        }
        let agent = Agent::new(stage, Process { client: 50 + number, worker: 0 })?;
        read(&agent, stage).await?;
        agent.leave().await;
    }
    Ok(())
}

async fn write_one(agent: &Agent, queue: &Queue, first: u32) -> Result<()> {
    let until = Instant::now() + QUEUE_TIME_MAX;
    let mut sequence = first;
    loop {
        let draft = Draft { queue: 0, sequence, mode: SendMode::Sync, tag: None, key: None, body_bytes: 16 };
        if agent.send(queue, draft).await? || Instant::now() > until {
            return Ok(());
        }
        sequence += 1;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn read(agent: &Agent, stage: &Stage) -> Result<()> {
    let options = PullOptions { messages_max: PULL_MAX, hold: Duration::ZERO, expression: "*".into() };
    for queue in stage.queues.iter() {
        let until = Instant::now() + QUEUE_TIME_MAX;
        let mut from = 0;
        while Instant::now() < until {
            match agent.final_read(queue, from, &options).await? {
                Some(next) if next.is_end => break,
                Some(next) if next.queue_offset > from => from = next.queue_offset,
                // An answer that leads nowhere, or none.
                _ => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
        agent.max_offset(queue).await?;
        if queue.queue_id == 0 {
            agent.query_offset(queue).await?;
        }
    }
    Ok(())
}

/// Moves leadership of `group` to a broker. If that does not work the reads after it show the same leader once more.
async fn lead(cluster: &Cluster, group: &str, number: u16) {
    let layout = &cluster.layout;
    let until = Instant::now() + TRANSFER_TIME_MAX;
    while layout.leader_of(group).await != Some(number) && Instant::now() < until {
        let leader = layout.leader_of(group).await.unwrap_or(number);
        let path = format!("/v1/groups/{group}/transfer-leader?to=n{number}");
        // Asked again until it leads.
        let _ = post(layout.http_addr(leader), &path, Duration::from_secs(2)).await;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
