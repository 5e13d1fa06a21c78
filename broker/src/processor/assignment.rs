//! Who consumes which queue, as the broker says: codes 400, 401, 402.
//!
//! A client that leaves this to the broker asks one broker for the queues of all. So the broker asks a name server for
//! the route, takes the members of the group from their heartbeats, and shares the queues out as the clients would. In
//! POP mode members share queues: the answer names each broker once, with any queue, or so many queues that each is
//! shared by as many members as was set.

use std::collections::BTreeSet;

use protocol::body::{
    Assignment, AssignmentRequest, Assignments, MessageModel, MessageQueue, MessageRequestMode, RequestModeSetting,
    RequestModes, TopicRouteData,
};
use protocol::header::{ANY_QUEUE, Perm};
use protocol::{GroupName, RemotingCommand, ResponseCode, TopicName, allocate_average, allocate_by_circle};
use remoting::Responder;

use super::answer::{Failure, Outcome, success};
use super::{Group, now};
use crate::client_table::Members;
use crate::state_machine::Command;
use crate::state_machine::pop::RequestMode;

impl Group {
    /// Serves code 400.
    pub(super) fn serve_assignment(&self, request: RemotingCommand, responder: Responder) {
        let group = self.clone();
        self.0.tasks.spawn(async move {
            let outcome = group.assignment(&request).await;
            group.reply(&request, responder, outcome);
        });
    }

    async fn assignment(&self, request: &RemotingCommand) -> Outcome {
        let body = AssignmentRequest::decode(&request.body)?;
        let (group, topic) = (GroupName::parse(&body.consumer_group)?, TopicName::parse(&body.topic)?);
        let route = self.0.registrar.route(&topic).await;
        // A client that gets an error keeps what it has.
        let route =
            route.ok_or_else(|| Failure::error(format!("no name server knows a route of topic {topic} now")))?;
        let queues = readable_queues(&topic, &route);
        // Retry topics are read by their group alone, queue by queue.
        let mode = self.0.state.pops().mode(&group, &topic).unwrap_or(RequestMode::Pull);
        let queues = match body.message_model {
            MessageModel::Broadcasting => queues,
            MessageModel::Clustering => {
                let members = match self.0.clients.members(&group, now().instant) {
                    Members::Known(members) => members,
                    Members::Nobody | Members::Unknown => Vec::new(),
                };
                share(&queues, members, &body.client_id, &body.strategy_name, mode)?
            }
        };
        let mode = match mode {
            RequestMode::Pull => MessageRequestMode::Pull,
            RequestMode::Pop { .. } => MessageRequestMode::Pop,
        };
        let assignments = queues.into_iter().map(|message_queue| Assignment { message_queue, mode });
        Ok(success(request).with_body(Assignments { message_queue_assignments: assignments.collect() }.encode()))
    }

    /// Sets how members of a group get the messages of a topic: code 401.
    pub(super) async fn set_request_mode(&self, request: &RemotingCommand) -> Outcome {
        let body = RequestModeSetting::decode(&request.body)?;
        let (group, topic) = (GroupName::parse(&body.consumer_group)?, TopicName::parse(&body.topic)?);
        if topic.is_retry() {
            let remark = "the mode of a retry topic cannot be set: it is pulled";
            return Err(Failure::refused(ResponseCode::NO_PERMISSION, remark));
        }
        self.0.state.topic(&topic).ok_or_else(|| Failure::no_topic(&topic))?;
        self.0.state.group(&group).ok_or_else(|| Failure::no_group(&group))?;
        let mode = match body.mode {
            MessageRequestMode::Pull => RequestMode::Pull,
            MessageRequestMode::Pop => RequestMode::Pop { share_queues: body.pop_share_queue_num },
        };
        self.propose(Command::PutRequestMode { group, topic, mode, stamped_ms: self.stamp_ms() }).await?;
        Ok(success(request))
    }

    /// Every mode that was set: code 402.
    pub(super) fn all_request_modes(&self, request: &RemotingCommand) -> Outcome {
        let mut body = RequestModes::default();
        for (group, topic, mode) in self.0.state.pops().modes() {
            let (mode, pop_share_queue_num) = match mode {
                RequestMode::Pull => (MessageRequestMode::Pull, 0),
                RequestMode::Pop { share_queues } => (MessageRequestMode::Pop, share_queues),
            };
            let setting = RequestModeSetting {
                topic: topic.as_str().to_owned(),
                consumer_group: group.as_str().to_owned(),
                mode,
                pop_share_queue_num,
            };
            let groups = body.message_request_mode_map.entry(topic.as_str().to_owned()).or_default();
            groups.insert(group.as_str().to_owned(), setting);
        }
        Ok(success(request).with_body(body.encode()))
    }
}

/// The queues of a topic that can be read, in the order in which clients sort them.
fn readable_queues(topic: &TopicName, route: &TopicRouteData) -> Vec<MessageQueue> {
    let readable = route.queue_datas.iter().filter(|data| data.perm & Perm::READ != 0);
    let queues = readable.flat_map(|data| {
        (0..data.read_queue_nums).map(|queue_id| MessageQueue {
            broker_name: data.broker_name.clone(),
            queue_id,
            topic: topic.as_str().to_owned(),
        })
    });
    let mut queues: Vec<MessageQueue> = queues.collect();
    queues.sort_unstable();
    queues
}

/// The queues that one of several members reads.
fn share(
    queues: &[MessageQueue],
    mut members: Vec<String>,
    member: &str,
    strategy: &str,
    mode: RequestMode,
) -> Result<Vec<MessageQueue>, Failure> {
    members.sort_unstable();
    // An empty answer would take away what it has.
    let Some(index) = members.iter().position(|other| other == member) else {
        return Err(Failure::error(format!("client {member} has sent no heartbeat for this group yet")));
    };
    let of = |member: &str| match strategy {
        "AVG" => Ok(allocate_average(queues, &members, member).to_vec()),
        "AVG_BY_CIRCLE" => Ok(allocate_by_circle(queues, &members, member)),
        other => Err(Failure::error(format!("the broker shares queues out by AVG and AVG_BY_CIRCLE, not by {other}"))),
    };
    let others = match mode {
        RequestMode::Pull => return of(member),
        RequestMode::Pop { share_queues } => usize::try_from(share_queues).unwrap_or(0),
    };
    if others == 0 || others + 1 >= members.len() {
        let any = |queue: &MessageQueue| MessageQueue { queue_id: ANY_QUEUE, ..queue.clone() };
        let all: BTreeSet<MessageQueue> = queues.iter().map(any).collect();
        return Ok(all.into_iter().collect());
    }
    if members.len() > queues.len() {
        return Ok(queues.get(index % queues.len().max(1)).cloned().into_iter().collect());
    }
    let mut all = BTreeSet::new();
    for step in 0..=others {
        all.extend(of(&members[(index + step) % members.len()])?);
    }
    Ok(all.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(queues: i32, members: usize, member: &str, strategy: &str, mode: RequestMode, expected: &str) {
        let queues: Vec<MessageQueue> = (0..queues)
            .map(|number| MessageQueue {
                broker_name: ["a", "b"][usize::try_from(number % 2).unwrap()].to_owned(),
                queue_id: number / 2,
                topic: "T".to_owned(),
            })
            .collect();
        let mut sorted = queues;
        sorted.sort_unstable();
        // As they come from a table without an order.
        let members = (0..members).rev().map(|number| format!("m{number}")).collect();
        let shared = match share(&sorted, members, member, strategy, mode) {
            Ok(shared) => shared
                .iter()
                .map(|queue| format!("{}{}", queue.broker_name, queue.queue_id))
                .collect::<Vec<_>>()
                .join(" "),
            Err(Failure::Refused(_, remark)) => remark,
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(shared, expected, "{member} of {mode:?}");
    }

    #[test]
    fn pulled_queues_belong_to_one_member() {
        check(6, 2, "m0", "AVG", RequestMode::Pull, "a0 a1 a2");
        check(6, 2, "m1", "AVG", RequestMode::Pull, "b0 b1 b2");
        check(6, 2, "m1", "AVG_BY_CIRCLE", RequestMode::Pull, "a1 b0 b2");
        check(1, 2, "m1", "AVG", RequestMode::Pull, "");
        check(6, 2, "m7", "AVG", RequestMode::Pull, "client m7 has sent no heartbeat for this group yet");
        let unknown = "the broker shares queues out by AVG and AVG_BY_CIRCLE, not by CONSISTENT_HASH";
        check(6, 2, "m1", "CONSISTENT_HASH", RequestMode::Pull, unknown);
    }

    #[test]
    fn popped_queues_are_shared() {
        let pop = |share_queues| RequestMode::Pop { share_queues };
        for share_queues in [-1, 0, 2, 8] {
            check(6, 3, "m1", "AVG", pop(share_queues), "a-1 b-1");
        }
        check(6, 3, "m0", "AVG", pop(1), "a0 a1 a2 b0");
        check(6, 3, "m2", "AVG", pop(1), "a0 a1 b1 b2");
        check(2, 4, "m3", "AVG", pop(1), "b0");
    }
}
