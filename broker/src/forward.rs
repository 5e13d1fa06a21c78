//! Where a request that only the leader may answer is served, and what happens until somebody leads.
//!
//! Clients send to the address they know, which may be that of a follower for half a minute after a failover. So a
//! follower passes such requests on, and while nobody leads they are held: an election takes less time than a client
//! waits. A request is passed on at most once; the replica it reaches holds it for a moment if it is just taking over,
//! and otherwise says that it does not lead, upon which the first replica looks again.
//!
//! A request whose outcome is unknown is not tried again unless doing it twice is the same as doing it once, however late
//! the second time is. If it is tried again to no avail, its outcome stays unknown.

mod relay;

use std::net::SocketAddr;
use std::time::Duration;

use protocol::{LanguageCode, RemotingCommand, RequestCode, ResponseCode};
use remoting::Responder;
use tokio::time::Instant;

use crate::peer::ForwardError;
use crate::processor::Group;
use crate::processor::answer::{Failure, not_proposed, refusal, unknown_outcome};
use crate::raft::Role;

pub(crate) use self::relay::Relay;

/// Where leader's work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On this replica.
    Here {
        /// The term it leads.
        term: u64,
    },
    /// On another one.
    There {
        /// Its identity.
        node_id: u64,
    },
    /// Nowhere that this replica knows of.
    Nowhere,
}

impl Place {
    /// What a role means for leader's work. A leader whose group has no names yet has nothing to work on.
    pub(crate) fn of(role: &Role, is_named: bool) -> Self {
        match role {
            Role::Leader { term, ready: true } if is_named => Self::Here { term: *term },
            Role::Leader { .. } => Self::Nowhere,
            Role::Follower { leader: Some((node_id, _)), .. } => Self::There { node_id: *node_id },
            Role::Follower { leader: None, .. } => Self::Nowhere,
        }
    }
}

/// Who handed a request to this replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The client itself.
    Client,
    /// A replica that took it for the leader.
    Replica,
    /// A node that is starting and does not know who leads.
    Starting,
}

impl Source {
    /// Whether another node has it from the client. It is not passed on once more.
    pub(crate) fn is_node(self) -> bool {
        self != Self::Client
    }
}

/// Whether a request may be done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// A second time changes nothing.
    Harmless,
    /// A second time may show.
    Shows,
}

/// How long a request may take, by what its client does when it gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// It is held so long for somebody to lead.
    pub(crate) hold: Duration,
    /// It is answered within this time. Java closes the connection of a call that times out, so this is below the time
    /// that clients wait.
    pub(crate) total: Duration,
    /// Whether it may be done twice.
    pub(crate) repeat: Repeat,
}

/// Sends wait 3 s at the client.
pub(crate) const SEND_PATIENCE: Patience =
    Patience { hold: Duration::from_secs(2), total: Duration::from_millis(2_800), repeat: Repeat::Shows };

/// Pulls wait long, but one that the leader has to decide is not worth it.
pub(crate) const PULL_PATIENCE: Patience =
    Patience { hold: Duration::from_secs(1), total: Duration::from_secs(2), repeat: Repeat::Harmless };

/// Go waits 3 s. An attempt that is still on its way could undo what the client commits after it was answered.
pub(crate) const COMMIT_PATIENCE: Patience =
    Patience { hold: Duration::from_secs(2), total: Duration::from_millis(2_700), repeat: Repeat::Shows };

/// The time that a replica which is taken for the leader waits to become it.
const TAKEOVER_WAIT: Duration = Duration::from_millis(500);

/// How soon a failed attempt is repeated when nothing else happens.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The code by which a replica tells another that it does not lead; never sent to a client.
const NOT_LEADING: ResponseCode = ResponseCode(-14);

impl Patience {
    /// The patience for a request that only the leader may answer; `None` for one that every replica answers, and for
    /// those that have a path of their own.
    pub(crate) fn of(code: RequestCode, language: LanguageCode) -> Option<Self> {
        let patience = |hold, total, repeat| {
            Some(Self { hold: Duration::from_millis(hold), total: Duration::from_millis(total), repeat })
        };
        match code {
            RequestCode::CONSUMER_SEND_MSG_BACK
            | RequestCode::SEND_REPLY_MESSAGE
            | RequestCode::SEND_REPLY_MESSAGE_V2 => Some(SEND_PATIENCE),
            // Java waits 3 s. What is acknowledged twice is consumed once; a message that was hidden has another name.
            RequestCode::ACK_MESSAGE | RequestCode::BATCH_ACK_MESSAGE => patience(2_000, 2_800, Repeat::Harmless),
            RequestCode::CHANGE_MESSAGE_INVISIBLETIME => patience(2_000, 2_800, Repeat::Shows),
            RequestCode::PEEK_MESSAGE | RequestCode::POLLING_INFO => patience(2_000, 2_700, Repeat::Harmless),
            // Clients wait 3 s. A transaction ends once, and so does a timer.
            RequestCode::END_TRANSACTION | RequestCode::RECALL_MESSAGE => patience(2_000, 2_800, Repeat::Harmless),
            // Go waits 3 s, the others 5 s.
            RequestCode::QUERY_CONSUMER_OFFSET if language == LanguageCode::Go => {
                patience(2_500, 2_700, Repeat::Harmless)
            }
            RequestCode::QUERY_CONSUMER_OFFSET => patience(4_000, 4_500, Repeat::Harmless),
            RequestCode::SEARCH_OFFSET_BY_TIMESTAMP
            | RequestCode::GET_MAX_OFFSET
            | RequestCode::GET_MIN_OFFSET
            | RequestCode::GET_EARLIEST_MSG_STORETIME
            | RequestCode::QUERY_MESSAGE
            | RequestCode::VIEW_MESSAGE_BY_ID
            | RequestCode::QUERY_CONSUME_QUEUE => patience(2_000, 2_700, Repeat::Harmless),
            // Clients wait 1 s for a lock.
            RequestCode::LOCK_BATCH_MQ | RequestCode::UNLOCK_BATCH_MQ => patience(700, 900, Repeat::Harmless),
            // Tools wait 5 s.
            RequestCode::UPDATE_AND_CREATE_TOPIC
            | RequestCode::UPDATE_AND_CREATE_TOPIC_LIST
            | RequestCode::DELETE_TOPIC_IN_BROKER
            | RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            | RequestCode::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
            | RequestCode::DELETE_SUBSCRIPTIONGROUP
            | RequestCode::INVOKE_BROKER_TO_RESET_OFFSET
            | RequestCode::RESUME_CHECK_HALF_MESSAGE
            | RequestCode::UPDATE_BROKER_CONFIG
            | RequestCode::SET_MESSAGE_REQUEST_MODE
            | RequestCode::CLONE_GROUP_OFFSET => patience(2_000, 4_500, Repeat::Harmless),
            _ => None,
        }
    }
}

impl Group {
    /// Where leader's work is done now.
    pub(crate) fn place(&self) -> Place {
        *self.0.place.borrow()
    }

    /// Serves a request on whoever leads, on a task of its own.
    pub(crate) fn serve_at_leader(
        &self,
        request: RemotingCommand,
        responder: Responder,
        source: Source,
        patience: Patience,
    ) {
        let group = self.clone();
        self.0.tasks.spawn(async move {
            let origin = responder.peer_addr();
            let answer = Box::pin(group.at_leader(&request, origin, source, patience)).await;
            match answer.map(|answer| group.fall_back(&request, answer)) {
                Some(answer) => responder.send(answer),
                None => responder.forget(),
            }
        });
    }

    /// The answer of whoever leads; `None` when there is to be none.
    pub(crate) async fn at_leader(
        &self,
        request: &RemotingCommand,
        origin: SocketAddr,
        source: Source,
        patience: Patience,
    ) -> Option<RemotingCommand> {
        let started = Instant::now();
        let answer_until = started + patience.total;
        let mut places = self.0.place.subscribe();
        let hold = match source {
            Source::Client => patience.hold,
            Source::Replica | Source::Starting => patience.hold.min(TAKEOVER_WAIT),
        };
        let mut reason = "no leader is known".to_owned();
        let mut may_be_done = false;
        loop {
            let place = *places.borrow_and_update();
            let attempt = match place {
                Place::Here { .. } => {
                    match tokio::time::timeout_at(answer_until, self.perform(request, origin)).await {
                        Ok(outcome) => self.judge(request, outcome),
                        Err(_) => Attempt::Unknown("the group took too long".to_owned()),
                    }
                }
                Place::There { node_id } if source == Source::Client => {
                    self.pass_on(request, origin, node_id, answer_until).await
                }
                Place::There { node_id } if source == Source::Starting => {
                    return (!may_be_done).then(|| self.name_leader(request, node_id));
                }
                Place::There { .. } | Place::Nowhere => Attempt::Nowhere(reason.clone()),
            };
            match attempt {
                Attempt::Done(answer) => return answer,
                Attempt::Unknown(why) if patience.repeat == Repeat::Shows => {
                    return Some(unknown_outcome(request, &why));
                }
                Attempt::Nowhere(why) => reason = why,
                Attempt::Unknown(why) => (reason, may_be_done) = (why, true),
            }
            let hold_until = started + hold;
            if Instant::now() >= hold_until {
                return give_up(request, source, reason, may_be_done);
            }
            let pause = match place {
                Place::Nowhere => hold_until,
                Place::There { .. } if source.is_node() => hold_until,
                Place::Here { .. } | Place::There { .. } => hold_until.min(Instant::now() + RETRY_PAUSE),
            };
            // Whichever comes first: a new role, or the time to try again or to give up.
            let _ = tokio::time::timeout_at(pause, places.changed()).await;
        }
    }

    /// Tells a node that does not know it who leads.
    fn name_leader(&self, request: &RemotingCommand, node_id: u64) -> RemotingCommand {
        let members = self.0.raft.metrics().members;
        let node = members.get(&node_id).map(|member| member.node.clone()).unwrap_or_default();
        let mut answer = refusal(request, NOT_LEADING, format!("node {node} leads"));
        answer.ext.push(relay::LEADER, &node);
        answer
    }

    fn judge(&self, request: &RemotingCommand, outcome: Result<RemotingCommand, Failure>) -> Attempt {
        match outcome {
            Err(Failure::NotLeading(reason)) => Attempt::Nowhere(reason),
            Err(Failure::Unknown(reason)) => Attempt::Unknown(reason),
            outcome => Attempt::Done(self.answer_of(request, outcome)),
        }
    }

    async fn pass_on(
        &self,
        request: &RemotingCommand,
        origin: SocketAddr,
        node_id: u64,
        answer_until: Instant,
    ) -> Attempt {
        let timeout = answer_until.saturating_duration_since(Instant::now());
        let group = &self.0.settings.broker_name;
        match self.0.peers.forward(group, node_id, origin, request, timeout).await {
            Ok(answer) => settle(answer),
            Err(ForwardError::NotSent { reason }) => Attempt::Nowhere(reason),
            Err(ForwardError::Unknown { reason }) => Attempt::Unknown(reason),
        }
    }
}

/// The last answer to a request that nobody served in time. A replica that gets none takes the outcome for unknown.
fn give_up(request: &RemotingCommand, source: Source, reason: String, may_be_done: bool) -> Option<RemotingCommand> {
    match (source, may_be_done) {
        (Source::Client, true) => Some(unknown_outcome(request, &reason)),
        (Source::Client, false) => Some(not_proposed(request, &reason)),
        (Source::Replica | Source::Starting, true) => None,
        (Source::Replica | Source::Starting, false) => Some(refusal(request, NOT_LEADING, reason)),
    }
}

/// How one attempt to serve a request ended.
enum Attempt {
    /// With this answer, or with silence.
    Done(Option<RemotingCommand>),
    /// Nobody did anything.
    Nowhere(String),
    /// Somebody may have done it.
    Unknown(String),
}

fn settle(answer: RemotingCommand) -> Attempt {
    if answer.response_code() == NOT_LEADING {
        Attempt::Nowhere(answer.remark.unwrap_or_default())
    } else {
        Attempt::Done(Some(answer))
    }
}

#[cfg(test)]
mod tests {
    use raft_store::Member;

    use super::*;

    #[test]
    fn only_a_ready_leader_of_a_named_group_works() {
        let leader = |ready| Role::Leader { term: 3, ready };
        let follower = |leader| Role::Follower { term: 3, leader };
        assert_eq!(Place::of(&leader(true), true), Place::Here { term: 3 });
        assert_eq!(Place::of(&leader(true), false), Place::Nowhere);
        assert_eq!(Place::of(&leader(false), true), Place::Nowhere);
        assert_eq!(Place::of(&follower(Some((2, Member::default()))), true), Place::There { node_id: 2 });
        assert_eq!(Place::of(&follower(None), true), Place::Nowhere);
    }

    #[test]
    fn what_may_have_been_done_is_never_said_not_to_be() {
        let request = RemotingCommand::request(RequestCode::END_TRANSACTION);
        let remark = |source, may_be_done| {
            give_up(&request, source, "why".to_owned(), may_be_done).map(|answer| answer.remark.unwrap().to_string())
        };
        assert_eq!(remark(Source::Client, false).unwrap(), "not proposed: why");
        assert_eq!(remark(Source::Client, true).unwrap(), "outcome unknown: why");
        assert_eq!(give_up(&request, Source::Replica, String::new(), false).unwrap().response_code(), NOT_LEADING);
        assert_eq!(remark(Source::Replica, true), None);
    }

    #[test]
    fn every_request_is_answered_before_its_client_gives_up() {
        let within = |code, language, client_waits_ms| {
            let patience = Patience::of(code, language).unwrap();
            assert!(patience.hold <= patience.total);
            assert!(patience.total < Duration::from_millis(client_waits_ms), "{code}");
        };
        within(RequestCode::QUERY_CONSUMER_OFFSET, LanguageCode::Java, 5_000);
        within(RequestCode::QUERY_CONSUMER_OFFSET, LanguageCode::Go, 3_000);
        within(RequestCode::CONSUMER_SEND_MSG_BACK, LanguageCode::Java, 3_000);
        within(RequestCode::END_TRANSACTION, LanguageCode::Go, 3_000);
        within(RequestCode::ACK_MESSAGE, LanguageCode::Java, 3_000);
        within(RequestCode::CHANGE_MESSAGE_INVISIBLETIME, LanguageCode::Java, 3_000);
        within(RequestCode::SEND_REPLY_MESSAGE, LanguageCode::Go, 3_000);
        within(RequestCode::GET_MAX_OFFSET, LanguageCode::Java, 3_000);
        within(RequestCode::LOCK_BATCH_MQ, LanguageCode::Java, 1_000);
        within(RequestCode::UPDATE_AND_CREATE_TOPIC, LanguageCode::Java, 5_000);
        assert!(SEND_PATIENCE.total < Duration::from_secs(3));
        assert_eq!(SEND_PATIENCE.repeat, Repeat::Shows);
        assert_eq!(Patience::of(RequestCode::HEART_BEAT, LanguageCode::Java), None);
        assert_eq!(Patience::of(RequestCode::GET_CONSUMER_LIST_BY_GROUP, LanguageCode::Java), None);
    }
}
