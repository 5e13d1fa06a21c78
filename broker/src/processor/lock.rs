//! Queue locks of orderly consumers: codes 41 and 42.
//!
//! A lease is replicated state, so a failover hands it over with everything else. The leader stamps the time into the
//! entry, by a clock of its own ([`LeaseClock`](crate::queue_lock::LeaseClock)); a lease that has ended by that time is
//! free. Clients renew every 20 s and count on a lock for 30 s.

use protocol::body::{LockRequest, LockResponse, MessageQueue};
use protocol::{GroupName, RemotingCommand};

use super::Group;
use super::answer::{Failure, Outcome, success};
use crate::queue_lock::{LEASE, wanted};
use crate::state_machine::{Command, CommandReply};

impl Group {
    pub(super) async fn lock_queues(&self, request: &RemotingCommand) -> Outcome {
        let body = LockRequest::decode(&request.body)?;
        let group = GroupName::parse(&body.consumer_group)?;
        let (asked, queues) = wanted(body.mq_set, &self.0.settings.broker_name);
        let mut locked: Vec<MessageQueue> = Vec::new();
        if !queues.is_empty() {
            let command = Command::LockQueues {
                group,
                client_id: body.client_id,
                queues,
                stamped_ms: self.lease_ms(),
                lease_ms: i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX),
            };
            match self.propose(command).await? {
                CommandReply::Locked { held } => {
                    locked = asked.into_iter().zip(held).filter(|(_, held)| *held).map(|(queue, _)| queue).collect();
                }
                other => return Err(Failure::error(format!("a lock was answered with {other:?}"))),
            }
        }
        Ok(success(request).with_body(LockResponse { locked }.encode()))
    }

    pub(super) async fn unlock_queues(&self, request: &RemotingCommand) -> Outcome {
        let body = LockRequest::decode(&request.body)?;
        let group = GroupName::parse(&body.consumer_group)?;
        let (_, queues) = wanted(body.mq_set, &self.0.settings.broker_name);
        if !queues.is_empty() {
            let stamped_ms = self.lease_ms();
            self.propose(Command::UnlockQueues { group, client_id: body.client_id, queues, stamped_ms }).await?;
        }
        Ok(success(request))
    }
}
