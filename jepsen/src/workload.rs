//! What clients do during a run. Each process of a workload has a client of its own and one operation open at most.

mod agent;
mod final_phase;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use client::{Admin, Client, ClientOptions, NewTopic, PullConsumer, Queue};
use protocol::{GroupName, TopicName};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use agent::Agent;

use crate::cluster::Cluster;
use crate::recorder::Recorder;
use crate::seed::Seed;

const TOPIC: &str = "jepsen";
const GROUP: &str = "jepsen-registers";
/// Queues of the topic at each broker group.
const QUEUES: i32 = 4;
/// How long clients of RocketMQ wait.
const CALL_TIME_MAX: Duration = Duration::from_secs(3);
/// How long a client waits that is to notice when the cluster serves again.
const CALL_TIME_SHORT: Duration = Duration::from_secs(1);
const SETUP_TIME_MAX: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A workload, as named on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Single and batch sends, pull sessions, maximum offsets, and group offsets as registers
    Queue,
}

/// What every process of a workload shares.
#[derive(Clone)]
pub struct Stage {
    pub seed: Seed,
    pub recorder: Recorder,
    pub topic: TopicName,
    pub group: GroupName,
    pub queues: Arc<[Queue]>,
    name_servers: String,
}

impl Stage {
    /// Makes the topic and learns its queues.
    ///
    /// # Errors
    /// They are not there in time.
    pub async fn set(seed: Seed, cluster: &Cluster, recorder: &Recorder) -> Result<Self> {
        let topic = TopicName::parse(TOPIC).context("the topic's name")?;
        let group = GroupName::parse(GROUP).context("the group's name")?;
        let addrs: Vec<String> = cluster.layout.name_servers().iter().map(ToString::to_string).collect();
        let name_servers = addrs.join(";");
        let client = client(&name_servers, "stage", CALL_TIME_MAX)?;
        let setting = async {
            let groups = usize::from(cluster.layout.shape.groups);
            let wanted = groups * usize::try_from(QUEUES).unwrap_or_default();
            let (admin, reader) = (Admin::new(&client), PullConsumer::new(&client, group.clone()));
            loop {
                // Every name server must know every broker before it makes the topic everywhere.
                let made = admin.create_topic(None, &NewTopic::new(topic.clone(), QUEUES)).await;
                if let (Ok(()), Ok(queues)) = (made, reader.queues(&topic).await)
                    && queues.len() == wanted
                {
                    return queues;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        };
        let queues = tokio::time::timeout(SETUP_TIME_MAX, setting).await;
        let queues = queues.with_context(|| format!("the topic is not there after {SETUP_TIME_MAX:?}"))?.into();
        client.shutdown().await;
        Ok(Self { seed, recorder: recorder.clone(), topic, group, queues, name_servers })
    }

    fn client(&self, name: &str, patience: Duration) -> Result<Client> {
        client(&self.name_servers, name, patience)
    }
}

fn client(name_servers: &str, name: &str, patience: Duration) -> Result<Client> {
    let options = ClientOptions::new(name_servers).context("the name servers' addresses")?;
    Ok(Client::start(options.with_instance(name).with_call_timeout(patience)))
}

/// The running processes of a workload.
pub struct Running {
    stop: watch::Sender<bool>,
    processes: JoinSet<Result<()>>,
}

impl Workload {
    /// Starts every process.
    ///
    /// # Errors
    /// A client cannot be made.
    pub fn start(self, stage: &Stage) -> Result<Running> {
        let (stop, stopped) = watch::channel(false);
        let mut processes = JoinSet::new();
        match self {
            Self::Queue => queue::start(stage, &stopped, &mut processes)?,
        }
        Ok(Running { stop, processes })
    }
}

impl Running {
    /// Resolves when a process fails, which is a failure of the harness; never otherwise.
    ///
    /// # Errors
    /// Always: why it failed.
    pub async fn failed(&mut self) -> Result<()> {
        match self.processes.join_next().await {
            Some(ended) => ended.context("a client process panicked")?.context("a client process failed"),
            None => std::future::pending().await,
        }
    }

    /// Lets every process end its operation, and waits for that.
    ///
    /// # Errors
    /// A process failed.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.send_replace(true);
        while let Some(ended) = self.processes.join_next().await {
            ended.context("a client process panicked")?.context("a client process failed")?;
        }
        Ok(())
    }
}

/// Reads every queue with a fresh client, from each replica that can lead.
///
/// # Errors
/// The harness failed. That a queue cannot be read is no error; the verdict will say so.
pub async fn read_everything(stage: &Stage, cluster: &Cluster) -> Result<()> {
    final_phase::run(stage, cluster).await
}
