//! A table of clients as one node gives it to another that has just started.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use protocol::body::{ConsumeFromWhere, ConsumeType, MessageModel};
use protocol::{GroupName, TopicName};
use serde::{Deserialize, Serialize};

use super::{Changed, Client, ClientTable, ConsumerBeat, Now, Role, Subscription};
use crate::processor::filter;

/// A whole table, as one node gives it to another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableCopy {
    consumers: Vec<ConsumerGroupCopy>,
    producers: Vec<ProducerGroupCopy>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ConsumerGroupCopy {
    group: String,
    consume_type: ConsumeType,
    message_model: MessageModel,
    consume_from_where: ConsumeFromWhere,
    subscriptions: Vec<SubscriptionCopy>,
    members: Vec<ClientCopy>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SubscriptionCopy {
    topic: String,
    expression: String,
    expression_type: String,
    version: i64,
}

impl SubscriptionCopy {
    fn parse(self) -> Option<Subscription> {
        let topic = TopicName::parse(&self.topic).ok()?;
        let filter = filter::parse(&self.expression, Some(&self.expression_type)).ok();
        Some(Subscription {
            topic,
            expression: self.expression,
            expression_type: self.expression_type,
            version: self.version,
            filter,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ProducerGroupCopy {
    group: String,
    members: Vec<ClientCopy>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ClientCopy {
    client_id: String,
    remote: SocketAddr,
    language: String,
    version: i32,
    last_heartbeat_ms: i64,
    age_ms: u64,
}

impl ClientCopy {
    /// `None` when the client has been silent for too long already.
    fn into_client<C>(self, now: Now, expiry: Duration) -> Option<Client<C>> {
        let age = Duration::from_millis(self.age_ms);
        if age > expiry {
            return None;
        }
        Some(Client {
            link: None,
            remote: self.remote,
            language: self.language,
            version: self.version,
            last_heartbeat: now.instant.checked_sub(age).unwrap_or(now.instant),
            last_heartbeat_ms: self.last_heartbeat_ms,
        })
    }
}

impl<C: Clone> ClientTable<C> {
    /// The whole table, for a peer that starts; `None` while it may be partial.
    pub fn export(&self, now: Instant) -> Option<TableCopy> {
        let inner = self.inner.lock();
        if !self.is_complete(&inner, now) {
            return None;
        }
        let age = |client: &Client<C>| {
            u64::try_from(now.saturating_duration_since(client.last_heartbeat).as_millis()).unwrap_or(u64::MAX)
        };
        let copy_of = |id: &String, client: &Client<C>| ClientCopy {
            client_id: id.clone(),
            remote: client.remote,
            language: client.language.clone(),
            version: client.version,
            last_heartbeat_ms: client.last_heartbeat_ms,
            age_ms: age(client),
        };
        Some(TableCopy {
            consumers: inner
                .consumers
                .iter()
                .map(|(group, consumers)| ConsumerGroupCopy {
                    group: group.as_str().to_owned(),
                    consume_type: consumers.consume_type,
                    message_model: consumers.message_model,
                    consume_from_where: consumers.consume_from_where,
                    subscriptions: consumers
                        .subscriptions
                        .values()
                        .map(|subscription| SubscriptionCopy {
                            topic: subscription.topic.as_str().to_owned(),
                            expression: subscription.expression.clone(),
                            expression_type: subscription.expression_type.clone(),
                            version: subscription.version,
                        })
                        .collect(),
                    members: consumers.members.iter().map(|(id, client)| copy_of(id, client)).collect(),
                })
                .collect(),
            producers: inner
                .producers
                .iter()
                .map(|(group, members)| ProducerGroupCopy {
                    group: group.as_str().to_owned(),
                    members: members.iter().map(|(id, client)| copy_of(id, client)).collect(),
                })
                .collect(),
        })
    }

    /// Takes in the table of a peer: adds what is unknown here, drops copied entries that the peer no longer has, and
    /// leaves alone everyone who spoke to this node. Afterwards the table counts as complete.
    ///
    /// Names that do not parse are left out: the peer is trusted, but its table once came from clients.
    pub fn import(&self, copy: TableCopy, now: Now) -> Changed {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut changed = Changed::new();
        let mut listed: HashSet<(Role, GroupName, String)> = HashSet::new();
        for copied in copy.consumers {
            let Ok(group) = GroupName::parse(&copied.group) else { continue };
            let parsed = copied.subscriptions.into_iter().filter_map(SubscriptionCopy::parse);
            let subscriptions: Vec<Subscription> = parsed.take(self.limits.subscriptions_max).collect();
            let mut grew = false;
            for member in copied.members {
                listed.insert((Role::Consumer, group.clone(), member.client_id.clone()));
                let known = inner.connection_of(Role::Consumer, &group, &member.client_id).is_some();
                if known || !inner.has_room(&self.limits, Role::Consumer, &group, &member.client_id) {
                    continue;
                }
                let beat = ConsumerBeat {
                    group: group.clone(),
                    consume_type: copied.consume_type,
                    message_model: copied.message_model,
                    consume_from_where: copied.consume_from_where,
                    subscriptions: subscriptions.clone(),
                };
                let client_id = member.client_id.clone();
                if let Some(client) = member.into_client(now, self.limits.expiry) {
                    grew |= inner.consumer_heartbeat(beat, &client_id, client);
                }
            }
            if grew {
                inner.remember_change(now.instant, &group);
                changed.push(group);
            }
        }
        for copied in copy.producers {
            let Ok(group) = GroupName::parse(&copied.group) else { continue };
            for member in copied.members {
                listed.insert((Role::Producer, group.clone(), member.client_id.clone()));
                let known = inner.connection_of(Role::Producer, &group, &member.client_id).is_some();
                if known || !inner.has_room(&self.limits, Role::Producer, &group, &member.client_id) {
                    continue;
                }
                let client_id = member.client_id.clone();
                if let Some(client) = member.into_client(now, self.limits.expiry) {
                    inner.put_producer(group.clone(), &client_id, client);
                }
            }
        }
        let mut gone = inner.copied_entries();
        gone.retain(|entry| !listed.contains(entry));
        changed.extend(inner.remove_all(gone, now.instant));
        inner.copied = true;
        changed.sort();
        changed.dedup();
        changed
    }
}
