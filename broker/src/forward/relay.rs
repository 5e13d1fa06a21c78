//! A way to the leader for a node whose own replica does not run yet.
//!
//! After a crash the process is back, and accepts clients, long before it has read its log. Meanwhile what only the
//! leader may answer is passed on to the other members, as a running follower would. Nothing is known here of who leads,
//! so the members are asked in turn, and one that does not lead says who does. What nobody has taken when the replica
//! runs is served by that: it may be the leader.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::{RemotingCommand, RequestCode};
use remoting::{Handler, Responder};
use tokio::time::Instant;

use super::{NOT_LEADING, Patience, RETRY_PAUSE, Repeat, SEND_PATIENCE};
use crate::peer::{ForwardError, PeerAddress, PeerHub, RelayLink};
use crate::processor::answer::{not_proposed, unknown_outcome};

/// The other members of one group. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Relay(Arc<Shared>);

struct Shared {
    members: Vec<(String, RelayLink)>,
    /// Who led when last heard of, or is asked next.
    next: AtomicUsize,
}

impl Relay {
    /// A way to `members` of `group`, none of which is this node; `None` if there are none.
    pub(crate) fn new(hub: &PeerHub, group: &str, members: Vec<PeerAddress>) -> Option<Self> {
        let members: Vec<_> =
            members.into_iter().map(|member| (member.node.clone(), hub.relay_link(group, member))).collect();
        (!members.is_empty()).then(|| Self(Arc::new(Shared { members, next: AtomicUsize::new(0) })))
    }

    /// How long a request may take that is passed on; `None` for one that waits for the replica here.
    pub(crate) fn patience(request: &RemotingCommand) -> Option<Patience> {
        match request.request_code() {
            // Nobody waits for it, and the client sends a newer one soon.
            _ if request.is_oneway() => None,
            RequestCode::SEND_MESSAGE | RequestCode::SEND_MESSAGE_V2 | RequestCode::SEND_BATCH_MESSAGE => {
                Some(SEND_PATIENCE)
            }
            code => Patience::of(code, request.language),
        }
    }

    /// Passes a request on, on a task of its own, and answers it. `own` is the handler of the replica here, once it runs.
    pub(crate) fn pass(
        &self,
        request: RemotingCommand,
        responder: Responder,
        patience: Patience,
        own: impl Fn() -> Option<Arc<dyn Handler>> + Send + Sync + 'static,
    ) {
        let relay = self.clone();
        tokio::spawn(async move {
            let origin = responder.peer_addr();
            match relay.at_leader(&request, origin, patience, || own().is_some()).await {
                Some(answer) => responder.send(answer),
                None => match own() {
                    Some(own) => own.handle(request, responder),
                    None => responder.send(not_proposed(&request, "the replica has stopped")),
                },
            }
        });
    }

    /// The leader's answer, or why there is none; `None` if nobody has done anything and the replica here runs.
    async fn at_leader(
        &self,
        request: &RemotingCommand,
        origin: SocketAddr,
        patience: Patience,
        own_runs: impl Fn() -> bool,
    ) -> Option<RemotingCommand> {
        let started = Instant::now();
        let mut reason = "no leader is known".to_owned();
        let mut may_be_done = false;
        while started.elapsed() < patience.hold {
            if own_runs() {
                // Whoever serves it again cannot know that it may have been done.
                return may_be_done.then(|| unknown_outcome(request, &reason));
            }
            let asked = self.0.next.load(Ordering::Relaxed) % self.0.members.len();
            let (_, link) = &self.0.members[asked];
            let named = match link.forward(origin, request, patience.total.saturating_sub(started.elapsed())).await {
                Ok(answer) if answer.response_code() != NOT_LEADING => return Some(answer),
                Ok(not_leading) => {
                    let leader = not_leading.ext.get(LEADER);
                    reason = not_leading.remark.unwrap_or_default();
                    leader.and_then(|leader| self.0.members.iter().position(|(node, _)| node == leader))
                }
                Err(ForwardError::Unknown { reason: why }) if patience.repeat == Repeat::Shows => {
                    return Some(unknown_outcome(request, &why));
                }
                Err(ForwardError::Unknown { reason: why }) => {
                    (reason, may_be_done) = (why, true);
                    None
                }
                Err(ForwardError::NotSent { reason: why }) => {
                    reason = why;
                    None
                }
            };
            let next = named.filter(|named| *named != asked).unwrap_or(asked + 1);
            // Another request may have found out meanwhile.
            let _ = self.0.next.compare_exchange(asked, next, Ordering::Relaxed, Ordering::Relaxed);
            if named.is_none() {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
        Some(if may_be_done { unknown_outcome(request, &reason) } else { not_proposed(request, &reason) })
    }
}

/// Names the node that leads, in the answer of a replica that does not.
pub(super) const LEADER: &str = "leader";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::mpsc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use protocol::ResponseCode;
    use tokio::net::TcpListener;

    use super::*;
    use crate::peer::{ForwardHandler, ForwardReply, Forwarder};
    use crate::processor::answer::refusal;
    use crate::raft::tests::cluster::{GROUP, hub, identity, soon};

    const PATIENCE: Patience = Patience { hold: Duration::from_secs(30), ..SEND_PATIENCE };

    /// What a replica does with what is passed on to it.
    #[derive(Clone, Copy)]
    enum Does {
        Answers,
        NamesLeader(&'static str),
        Dies,
    }

    struct Replica {
        does: Does,
        seen: Mutex<Vec<(SocketAddr, Forwarder)>>,
    }

    impl ForwardHandler for Replica {
        fn forwarded(&self, origin: SocketAddr, request: RemotingCommand, from: Forwarder, reply: ForwardReply) {
            self.seen.lock().push((origin, from));
            match self.does {
                Does::Answers => reply.send(&RemotingCommand::response_to(&request, ResponseCode::SUCCESS)),
                Does::NamesLeader(node) => {
                    let mut answer = refusal(&request, NOT_LEADING, "another one leads");
                    answer.ext.push(LEADER, node);
                    reply.send(&answer);
                }
                Does::Dies => drop(reply),
            }
        }
    }

    struct Cluster {
        /// The last one is the node that starts: no replica runs there.
        hubs: Vec<PeerHub>,
        replicas: Vec<Arc<Replica>>,
        relay: Relay,
    }

    impl Cluster {
        async fn new(does: [Does; 2]) -> Self {
            let mut listeners = Vec::new();
            for _ in 0..3 {
                listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
            }
            let members: BTreeMap<u64, PeerAddress> = (1..)
                .zip(&listeners)
                .map(|(id, listener)| {
                    let raft_addr = listener.local_addr().unwrap().to_string();
                    (id, PeerAddress { node: format!("n{id}"), raft_addr })
                })
                .collect();
            let mut hubs = Vec::new();
            for (id, listener) in (1..).zip(listeners) {
                hubs.push(hub(id, listener).await);
            }
            let replicas: Vec<_> =
                does.into_iter().map(|does| Arc::new(Replica { does, seen: Mutex::default() })).collect();
            for ((id, hub), replica) in (1..).zip(&hubs).zip(&replicas) {
                hub.add_group(identity(id, 1), members.clone());
                hub.set_forward_handler(GROUP, Arc::clone(replica) as _);
            }
            let others = members.into_values().take(2).collect();
            let relay = Relay::new(&hubs[2], GROUP, others).unwrap();
            Self { hubs, replicas, relay }
        }

        /// The answer to a send that has come in at the node that starts.
        async fn send(&self, own: Option<Arc<dyn Handler>>) -> RemotingCommand {
            let request = RemotingCommand::request(RequestCode::SEND_MESSAGE_V2);
            let (answer, answered) = tokio::sync::oneshot::channel();
            let responder = Responder::detached(&request, origin(), move |sent| drop(answer.send(sent)));
            self.relay.pass(request, responder, PATIENCE, move || own.clone());
            soon("the answer", answered).await.unwrap()
        }

        fn seen(&self) -> [usize; 2] {
            [0, 1].map(|replica| self.replicas[replica].seen.lock().len())
        }

        async fn stop(self) {
            for hub in self.hubs {
                hub.shutdown().await;
            }
        }
    }

    fn origin() -> SocketAddr {
        "10.1.2.3:4567".parse().unwrap()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_member_that_does_not_lead_says_who_does_and_that_one_is_asked_from_then_on() {
        let cluster = Cluster::new([Does::NamesLeader("n2"), Does::Answers]).await;
        for _ in 0..3 {
            assert!(cluster.send(None).await.is_success());
        }
        assert_eq!(cluster.seen(), [1, 3]);
        assert_eq!(cluster.replicas[1].seen.lock()[0], (origin(), Forwarder::Starting));
        cluster.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_send_that_may_have_been_stored_is_not_passed_on_again() {
        let cluster = Cluster::new([Does::Dies, Does::Answers]).await;
        let answer = cluster.send(None).await;
        assert_eq!(answer.response_code(), ResponseCode::SERVICE_NOT_AVAILABLE);
        assert!(answer.remark.as_deref().unwrap().starts_with("outcome unknown"), "{answer:?}");
        assert_eq!(cluster.seen(), [1, 0]);
        cluster.stop().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_nobody_has_taken_is_the_own_replicas_once_that_runs() {
        struct Own(mpsc::Sender<RequestCode>);
        impl Handler for Own {
            fn handle(&self, request: RemotingCommand, responder: Responder) {
                self.0.send(request.request_code()).unwrap();
                responder.send(RemotingCommand::response_to(&request, ResponseCode::SUCCESS));
            }
        }
        // Each names the node that starts: it was elected meanwhile.
        let cluster = Cluster::new([Does::NamesLeader("n3"); 2]).await;
        let (sender, handled) = mpsc::channel();
        assert!(cluster.send(Some(Arc::new(Own(sender)))).await.is_success());
        assert_eq!(handled.try_iter().collect::<Vec<_>>(), [RequestCode::SEND_MESSAGE_V2]);
        cluster.stop().await;
    }

    #[test]
    fn what_concerns_the_connection_waits_for_the_own_replica() {
        let patience = |code| Relay::patience(&RemotingCommand::request(code));
        for code in [RequestCode::HEART_BEAT, RequestCode::PULL_MESSAGE, RequestCode::GET_CONSUMER_LIST_BY_GROUP] {
            assert_eq!(patience(code), None, "{code}");
        }
        assert_eq!(patience(RequestCode::SEND_BATCH_MESSAGE), Some(SEND_PATIENCE));
        assert!(patience(RequestCode::QUERY_CONSUMER_OFFSET).is_some());
        assert_eq!(Relay::patience(&RemotingCommand::oneway(RequestCode::SEND_MESSAGE)), None);
    }
}
