//! Reads queues without being a member of a consumer group.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use protocol::body::TopicRouteData;
use protocol::header::{
    Boundary, GetMaxOffsetRequest, Perm, PullRequest, PullResponse, PullSysFlag, QueueOffsetResponse, QueueRequest,
    SearchOffsetRequest,
};
use protocol::{GroupName, RemotingCommand, RequestCode, ResponseCode, TopicName};

use crate::cluster::Cluster;
use crate::command::topic::leader_addr;

/// A pull that is held gets this much longer for its answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// One queue of one broker group.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) topic: TopicName,
    pub(crate) broker: String,
    pub(crate) id: i32,
    /// The leader, or a replica that passes on what only the leader may answer.
    pub(crate) addr: String,
}

/// What a pull brought.
#[derive(Debug)]
pub(crate) struct Pulled {
    /// Message records back to back.
    pub(crate) records: Bytes,
    pub(crate) next_offset: i64,
}

/// The readable queues of a topic.
pub(crate) fn queues_of(topic: &TopicName, route: &TopicRouteData) -> Result<Vec<Queue>> {
    let mut queues = Vec::new();
    for data in route.queue_datas.iter().filter(|data| Perm::is_readable(data.perm)) {
        let broker = route
            .broker_datas
            .iter()
            .find(|broker| broker.broker_name == data.broker_name)
            .with_context(|| format!("the route has queues on {} and no such broker", data.broker_name))?;
        let addr = leader_addr(broker)?;
        queues.extend((0..data.read_queue_nums).map(|id| Queue {
            topic: topic.clone(),
            broker: data.broker_name.clone(),
            id,
            addr: addr.to_owned(),
        }));
    }
    Ok(queues)
}

impl Queue {
    pub(crate) async fn min_offset(&self, cluster: &Cluster) -> Result<i64> {
        let mut request = RemotingCommand::request(RequestCode::GET_MIN_OFFSET);
        QueueRequest { topic: self.topic.clone(), queue_id: self.id }.encode_into(&mut request.ext);
        offset_in(&cluster.call(&self.addr, request).await?)
    }

    pub(crate) async fn max_offset(&self, cluster: &Cluster) -> Result<i64> {
        let mut request = RemotingCommand::request(RequestCode::GET_MAX_OFFSET);
        GetMaxOffsetRequest { topic: self.topic.clone(), queue_id: self.id, committed: true }
            .encode_into(&mut request.ext);
        offset_in(&cluster.call(&self.addr, request).await?)
    }

    /// The first offset stored at or after `timestamp_ms`.
    pub(crate) async fn offset_at(&self, cluster: &Cluster, timestamp_ms: i64) -> Result<i64> {
        let mut request = RemotingCommand::request(RequestCode::SEARCH_OFFSET_BY_TIMESTAMP);
        SearchOffsetRequest {
            topic: self.topic.clone(),
            queue_id: self.id,
            timestamp: timestamp_ms,
            boundary: Boundary::Lower,
        }
        .encode_into(&mut request.ext);
        offset_in(&cluster.call(&self.addr, request).await?)
    }

    /// The messages from `offset` on; when there are none yet, the broker waits for some for `hold`.
    pub(crate) async fn pull(&self, cluster: &Cluster, offset: i64, count: i32, hold: Duration) -> Result<Pulled> {
        let request = self.pull_request(offset, count, hold);
        let answer = cluster
            .channel(&self.addr)
            .call(request, hold + ANSWER_TIME_MAX)
            .await
            .with_context(|| format!("pulling from {}", self.addr))?;
        match answer.response_code() {
            ResponseCode::SUCCESS
            | ResponseCode::PULL_NOT_FOUND
            | ResponseCode::PULL_RETRY_IMMEDIATELY
            | ResponseCode::PULL_OFFSET_MOVED => {}
            code => bail!("{} answered {code} to a pull: {}", self.addr, answer.remark.unwrap_or_default()),
        }
        let header = PullResponse::decode(&answer).context("reading the answer of a pull")?;
        let found = answer.is_success();
        Ok(Pulled { records: if found { answer.body } else { Bytes::new() }, next_offset: header.next_begin_offset })
    }

    pub(crate) fn pull_request(&self, offset: i64, count: i32, hold: Duration) -> RemotingCommand {
        let suspend = if hold.is_zero() { 0 } else { PullSysFlag::SUSPEND };
        let mut request = RemotingCommand::request(RequestCode::PULL_MESSAGE);
        PullRequest {
            group: GroupName::parse("TOOLS_CONSUMER").expect("a valid name"),
            topic: self.topic.clone(),
            queue_id: self.id,
            queue_offset: offset,
            max_msg_nums: count,
            sys_flag: PullSysFlag::SUBSCRIPTION | suspend,
            commit_offset: 0,
            suspend_timeout_millis: i64::try_from(hold.as_millis()).unwrap_or(i64::MAX),
            subscription: Some("*".to_owned()),
            sub_version: 0,
            expression_type: Some("TAG".to_owned()),
            max_msg_bytes: None,
            broker_name: Some(self.broker.clone()),
        }
        .encode_into(&mut request.ext);
        request
    }
}

fn offset_in(answer: &RemotingCommand) -> Result<i64> {
    Ok(QueueOffsetResponse::decode(answer).context("reading an offset")?.queue_offset)
}
