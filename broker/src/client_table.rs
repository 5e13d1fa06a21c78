//! Who is connected: producers and consumers by group, learnt from heartbeats.
//!
//! Every replica keeps a table of its own, because consumers send their heartbeat to every replica in the route. It is
//! not in the log. All consumers of a group compute their share of the queues from the member list they are given, so a
//! list must never be partial: a replica that has just started copies the table of a peer, and before that, or one
//! heartbeat interval, it says that it does not know.
//!
//! A copied entry has no connection. It stands until the client's own heartbeat replaces it, until the peer it came from
//! no longer has it, or until it expires like any other.

mod copy;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use protocol::body::{ConsumeFromWhere, ConsumeType, MessageModel};
use protocol::{GroupName, TopicName};

pub use self::copy::TableCopy;
use crate::processor::filter::MessageFilter;

/// One topic a consumer group reads, and what of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// The topic.
    pub topic: TopicName,
    /// The expression as the client wrote it.
    pub expression: String,
    /// The kind of the expression; `TAG` when the client left it out.
    pub expression_type: String,
    /// Grows when the client changes the subscription; some clients count milliseconds, some nanoseconds.
    pub version: i64,
    /// What the expression means; `None` when this broker cannot evaluate it.
    pub filter: Option<MessageFilter>,
}

/// What a heartbeat says about one consumer group of the client.
#[derive(Debug, Clone)]
pub struct ConsumerBeat {
    /// The group.
    pub group: GroupName,
    /// How it consumes.
    pub consume_type: ConsumeType,
    /// Shared or broadcast.
    pub message_model: MessageModel,
    /// Where a new group starts.
    pub consume_from_where: ConsumeFromWhere,
    /// All topics it reads; topics missing here are no longer read.
    pub subscriptions: Vec<Subscription>,
}

/// One heartbeat.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The client's own id.
    pub client_id: String,
    /// Producer groups.
    pub producers: Vec<GroupName>,
    /// Consumer groups.
    pub consumers: Vec<ConsumerBeat>,
}

/// The connection a heartbeat came in on.
#[derive(Debug, Clone)]
pub struct Link<C> {
    /// Tells connections of this process apart.
    pub connection: u64,
    /// To send to the client.
    pub handle: C,
    /// Where the client connects from.
    pub remote: SocketAddr,
    /// The client's language, as an answer prints it.
    pub language: String,
    /// The client's version ordinal.
    pub version: i32,
}

/// The time, on both clocks: the steady one decides, the other is shown.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For deadlines.
    pub instant: Instant,
    /// Milliseconds since 1970.
    pub wall_ms: i64,
}

/// How large the table may grow, and how long a silent client stays in it.
#[derive(Debug, Clone, Copy)]
pub struct TableLimits {
    /// Groups, producers and consumers together.
    pub groups_max: usize,
    /// Memberships: a client counts once in every group.
    pub memberships_max: usize,
    /// Topics one group reads.
    pub subscriptions_max: usize,
    /// A client that sent no heartbeat for so long is gone.
    pub expiry: Duration,
    /// How often every client sends a heartbeat; a table of that age is complete.
    pub heartbeat_interval: Duration,
}

impl Default for TableLimits {
    fn default() -> Self {
        Self {
            groups_max: 50_000,
            memberships_max: 100_000,
            subscriptions_max: 64,
            expiry: Duration::from_secs(120),
            heartbeat_interval: Duration::from_secs(30),
        }
    }
}

/// One client in one group, as answers show it.
#[derive(Debug, Clone)]
pub struct ClientView<C> {
    /// The client's own id.
    pub client_id: String,
    /// To send to it; `None` for an entry that came from a peer.
    pub handle: Option<C>,
    /// Where it connects from; for a copied entry as the peer saw it.
    pub remote: SocketAddr,
    /// Its language.
    pub language: String,
    /// Its version ordinal.
    pub version: i32,
    /// Wall time of its last heartbeat.
    pub last_heartbeat_ms: i64,
}

/// A consumer group with at least one member.
#[derive(Debug, Clone)]
pub struct ConsumerGroupView<C> {
    /// Members in the order of their ids.
    pub members: Vec<ClientView<C>>,
    /// Subscriptions by topic.
    pub subscriptions: Vec<Arc<Subscription>>,
    /// How it consumes.
    pub consume_type: ConsumeType,
    /// Shared or broadcast.
    pub message_model: MessageModel,
    /// Where a new group starts.
    pub consume_from_where: ConsumeFromWhere,
}

/// The answer to "who is in this group?".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Members {
    /// All of them, sorted; never empty.
    Known(Vec<String>),
    /// None, and this table would know.
    Nobody,
    /// This table is younger than a heartbeat interval and was not copied from a peer.
    Unknown,
}

/// What a group wants of a topic.
#[derive(Debug, Clone)]
pub enum SubscriptionLookup {
    /// No live member.
    NoGroup,
    /// Members, none of which reads this topic.
    NoTopic(MessageModel),
    /// The newest subscription.
    Found(MessageModel, Arc<Subscription>),
}

/// Consumer groups whose members, or the topics they read, have changed: their members must share out queues anew.
pub type Changed = Vec<GroupName>;

/// The table is as large as it may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the table of clients is full")]
pub struct TableFull;

#[derive(Debug, Clone)]
struct Client<C> {
    link: Option<(u64, C)>,
    remote: SocketAddr,
    language: String,
    version: i32,
    last_heartbeat: Instant,
    last_heartbeat_ms: i64,
}

#[derive(Debug)]
struct ConsumerGroup<C> {
    members: BTreeMap<String, Client<C>>,
    subscriptions: BTreeMap<TopicName, Arc<Subscription>>,
    consume_type: ConsumeType,
    message_model: MessageModel,
    consume_from_where: ConsumeFromWhere,
}

#[derive(Debug)]
struct Inner<C> {
    consumers: HashMap<GroupName, ConsumerGroup<C>>,
    producers: HashMap<GroupName, BTreeMap<String, Client<C>>>,
    /// The producer groups of each client in `producers`, to find a client of which only the id is known.
    producer_groups_of: HashMap<String, BTreeSet<GroupName>>,
    /// The groups and client ids of each connection, so that closing one does not look at all groups.
    by_connection: HashMap<u64, HashSet<(Role, GroupName, String)>>,
    memberships: usize,
    copied: bool,
    /// Groups that changed, with the time, for a leader that takes over.
    recently_changed: Vec<(Instant, GroupName)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Producer,
    Consumer,
}

/// How many changed groups are remembered for a leader that takes over.
const RECENT_CHANGES_MAX: usize = 4_096;

/// The clients of one broker group on this node.
#[derive(Debug)]
pub struct ClientTable<C> {
    limits: TableLimits,
    started: Instant,
    inner: Mutex<Inner<C>>,
}

impl<C: Clone> ClientTable<C> {
    /// An empty table that starts to fill at `now`.
    pub fn new(limits: TableLimits, now: Instant) -> Self {
        Self {
            limits,
            started: now,
            inner: Mutex::new(Inner {
                consumers: HashMap::new(),
                producers: HashMap::new(),
                producer_groups_of: HashMap::new(),
                by_connection: HashMap::new(),
                memberships: 0,
                copied: false,
                recently_changed: Vec::new(),
            }),
        }
    }

    /// Takes in a heartbeat: registers or refreshes the client in each of its groups.
    ///
    /// # Errors
    /// [`TableFull`] when a limit forbids a new entry; entries before it are in.
    pub fn heartbeat(&self, beat: Heartbeat, link: &Link<C>, now: Now) -> Result<Changed, TableFull> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut changed = Changed::new();
        let client = Client {
            link: Some((link.connection, link.handle.clone())),
            remote: link.remote,
            language: link.language.clone(),
            version: link.version,
            last_heartbeat: now.instant,
            last_heartbeat_ms: now.wall_ms,
        };
        for group in beat.producers {
            if !inner.has_room(&self.limits, Role::Producer, &group, &beat.client_id) {
                return Err(TableFull);
            }
            inner.link(link.connection, Role::Producer, &group, &beat.client_id);
            inner.put_producer(group, &beat.client_id, client.clone());
        }
        for consumer in beat.consumers {
            if !inner.has_room(&self.limits, Role::Consumer, &consumer.group, &beat.client_id)
                || consumer.subscriptions.len() > self.limits.subscriptions_max
            {
                return Err(TableFull);
            }
            inner.link(link.connection, Role::Consumer, &consumer.group, &beat.client_id);
            let group = consumer.group.clone();
            if inner.consumer_heartbeat(consumer, &beat.client_id, client.clone()) {
                inner.remember_change(now.instant, &group);
                changed.push(group);
            }
        }
        Ok(changed)
    }

    /// Takes a client out of a producer group, a consumer group or both.
    pub fn unregister(
        &self,
        client_id: &str,
        producer: Option<&GroupName>,
        consumer: Option<&GroupName>,
        now: Now,
    ) -> Changed {
        let mut inner = self.inner.lock();
        if let Some(group) = producer {
            inner.remove_producer(group, client_id);
        }
        match consumer {
            Some(group) if inner.remove_consumer(group, client_id) => {
                inner.remember_change(now.instant, group);
                vec![group.clone()]
            }
            _ => Changed::new(),
        }
    }

    /// Takes out every client that was last heard on a connection that has closed.
    pub fn closed(&self, connection: u64, now: Now) -> Changed {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut gone = inner.by_connection.remove(&connection).unwrap_or_default();
        gone.retain(|(role, group, client_id)| inner.connection_of(*role, group, client_id) == Some(connection));
        inner.remove_all(gone, now.instant)
    }

    /// Takes out every client that was silent for longer than the limit.
    pub fn expire(&self, now: Now) -> Changed {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let expiry = self.limits.expiry;
        let silent = |client: &Client<C>| now.instant.saturating_duration_since(client.last_heartbeat) > expiry;
        let mut gone: Vec<(Role, GroupName, String)> = Vec::new();
        for (group, members) in &inner.producers {
            let silent = members.iter().filter(|(_, client)| silent(client));
            gone.extend(silent.map(|(id, _)| (Role::Producer, group.clone(), id.clone())));
        }
        for (group, consumers) in &inner.consumers {
            let silent = consumers.members.iter().filter(|(_, client)| silent(client));
            gone.extend(silent.map(|(id, _)| (Role::Consumer, group.clone(), id.clone())));
        }
        inner.remove_all(gone, now.instant)
    }

    /// Whether every live client has had the time to be heard here, or was told of by a peer.
    fn is_complete(&self, inner: &Inner<C>, now: Instant) -> bool {
        inner.copied || now.saturating_duration_since(self.started) >= self.limits.heartbeat_interval
    }

    /// Who is in a consumer group.
    pub fn members(&self, group: &GroupName, now: Instant) -> Members {
        let inner = self.inner.lock();
        if !self.is_complete(&inner, now) {
            return Members::Unknown;
        }
        match inner.consumers.get(group) {
            Some(consumers) => Members::Known(consumers.members.keys().cloned().collect()),
            None => Members::Nobody,
        }
    }

    /// What a group wants of a topic.
    pub fn subscription(&self, group: &GroupName, topic: &TopicName) -> SubscriptionLookup {
        let inner = self.inner.lock();
        let Some(consumers) = inner.consumers.get(group) else { return SubscriptionLookup::NoGroup };
        match consumers.subscriptions.get(topic) {
            Some(subscription) => SubscriptionLookup::Found(consumers.message_model, Arc::clone(subscription)),
            None => SubscriptionLookup::NoTopic(consumers.message_model),
        }
    }

    /// Whether a group has a member.
    pub fn is_online(&self, group: &GroupName) -> bool {
        self.inner.lock().consumers.contains_key(group)
    }

    /// A consumer group with its members, if it has any.
    pub fn consumer_group(&self, group: &GroupName) -> Option<ConsumerGroupView<C>> {
        let inner = self.inner.lock();
        let consumers = inner.consumers.get(group)?;
        Some(ConsumerGroupView {
            members: consumers.members.iter().map(|(id, client)| client.view(id)).collect(),
            subscriptions: consumers.subscriptions.values().cloned().collect(),
            consume_type: consumers.consume_type,
            message_model: consumers.message_model,
            consume_from_where: consumers.consume_from_where,
        })
    }

    /// One member of a consumer group.
    pub fn consumer(&self, group: &GroupName, client_id: &str) -> Option<ClientView<C>> {
        let inner = self.inner.lock();
        let client = inner.consumers.get(group)?.members.get(client_id)?;
        Some(client.view(client_id))
    }

    /// The names of all consumer groups with a member.
    pub fn consumer_groups(&self) -> Vec<GroupName> {
        self.inner.lock().consumers.keys().cloned().collect()
    }

    /// The consumer groups that read a topic now.
    pub fn readers_of(&self, topic: &TopicName) -> Vec<GroupName> {
        let inner = self.inner.lock();
        let readers = inner.consumers.iter().filter(|(_, consumers)| consumers.subscriptions.contains_key(topic));
        readers.map(|(group, _)| group.clone()).collect()
    }

    /// The members of a producer group.
    pub fn producer_group(&self, group: &GroupName) -> Vec<ClientView<C>> {
        let inner = self.inner.lock();
        let members = inner.producers.get(group);
        members.into_iter().flatten().map(|(id, client)| client.view(id)).collect()
    }

    /// All producer groups with their members.
    pub fn producer_groups(&self) -> Vec<(GroupName, Vec<ClientView<C>>)> {
        let inner = self.inner.lock();
        let groups = inner.producers.iter();
        groups.map(|(group, members)| (group.clone(), members.iter().map(|(id, c)| c.view(id)).collect())).collect()
    }

    /// The connections of a producer group's members that are connected here.
    pub fn producer_handles(&self, group: &GroupName) -> Vec<C> {
        let inner = self.inner.lock();
        let members = inner.producers.get(group).into_iter().flatten();
        members.filter_map(|(_, client)| client.link.as_ref().map(|(_, handle)| handle.clone())).collect()
    }

    /// The connection of the producer with this id, if it is connected here. The newest, if it has several.
    pub fn producer_by_id(&self, client_id: &str) -> Option<C> {
        let inner = self.inner.lock();
        let groups = inner.producer_groups_of.get(client_id)?.iter();
        let clients = groups.filter_map(|group| inner.producers.get(group)?.get(client_id));
        let connected = clients.filter_map(|client| Some((client.last_heartbeat, &client.link.as_ref()?.1)));
        connected.max_by_key(|(heard, _)| *heard).map(|(_, handle)| handle.clone())
    }

    /// The connections of a consumer group's members, and its model.
    pub fn handles(&self, group: &GroupName) -> Option<(MessageModel, Vec<C>)> {
        let inner = self.inner.lock();
        let consumers = inner.consumers.get(group)?;
        let handles = consumers.members.values().filter_map(|client| client.link.as_ref().map(|(_, c)| c.clone()));
        Some((consumers.message_model, handles.collect()))
    }

    /// Consumer groups that changed after `since`; a leader that takes over tells their members.
    pub fn changed_since(&self, since: Instant) -> Changed {
        let inner = self.inner.lock();
        let recent = inner.recently_changed.iter().filter(|(at, _)| *at >= since);
        let mut groups: Changed = recent.map(|(_, group)| group.clone()).collect();
        groups.sort();
        groups.dedup();
        groups
    }

    /// Marks the table complete although no peer was asked: there is none.
    pub fn assume_complete(&self) {
        self.inner.lock().copied = true;
    }

    /// Whether entries copied from a peer are still unconfirmed by a heartbeat of their own.
    pub fn has_copied_entries(&self) -> bool {
        !self.inner.lock().copied_entries().is_empty()
    }

    /// Every member of a consumer group: the group, how it consumes, the member's language and version.
    pub fn consumer_clients(&self) -> Vec<(GroupName, ConsumeType, String, i32)> {
        let inner = self.inner.lock();
        let groups = inner.consumers.iter();
        groups
            .flat_map(|(group, consumers)| {
                let member = |member: &Client<C>| {
                    (group.clone(), consumers.consume_type, member.language.clone(), member.version)
                };
                consumers.members.values().map(member).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Language and version of every producer, once in each of its groups.
    pub fn producer_clients(&self) -> Vec<(String, i32)> {
        let inner = self.inner.lock();
        let clients = inner.producers.values().flat_map(BTreeMap::values);
        clients.map(|client| (client.language.clone(), client.version)).collect()
    }

    /// How many members each consumer group has.
    pub fn consumer_counts(&self) -> Vec<(GroupName, usize)> {
        let inner = self.inner.lock();
        inner.consumers.iter().map(|(group, consumers)| (group.clone(), consumers.members.len())).collect()
    }

    /// How many memberships the table holds: producers, consumers.
    pub fn counts(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        let producers = inner.producers.values().map(BTreeMap::len).sum();
        let consumers = inner.consumers.values().map(|consumers| consumers.members.len()).sum();
        (producers, consumers)
    }
}

impl<C: Clone> Client<C> {
    fn view(&self, client_id: &str) -> ClientView<C> {
        ClientView {
            client_id: client_id.to_owned(),
            handle: self.link.as_ref().map(|(_, handle)| handle.clone()),
            remote: self.remote,
            language: self.language.clone(),
            version: self.version,
            last_heartbeat_ms: self.last_heartbeat_ms,
        }
    }
}

impl<C: Clone> Inner<C> {
    fn has_room(&self, limits: &TableLimits, role: Role, group: &GroupName, client_id: &str) -> bool {
        let (known_group, known_member) = match role {
            Role::Producer => {
                let members = self.producers.get(group);
                (members.is_some(), members.is_some_and(|members| members.contains_key(client_id)))
            }
            Role::Consumer => {
                let consumers = self.consumers.get(group);
                (consumers.is_some(), consumers.is_some_and(|group| group.members.contains_key(client_id)))
            }
        };
        let groups = self.producers.len() + self.consumers.len();
        (known_member || self.memberships < limits.memberships_max) && (known_group || groups < limits.groups_max)
    }

    fn link(&mut self, connection: u64, role: Role, group: &GroupName, client_id: &str) {
        let entry = (role, group.clone(), client_id.to_owned());
        self.by_connection.entry(connection).or_default().insert(entry);
    }

    fn unlink(&mut self, connection: u64, role: Role, group: &GroupName, client_id: &str) {
        if let Some(entries) = self.by_connection.get_mut(&connection) {
            entries.remove(&(role, group.clone(), client_id.to_owned()));
            if entries.is_empty() {
                self.by_connection.remove(&connection);
            }
        }
    }

    fn connection_of(&self, role: Role, group: &GroupName, client_id: &str) -> Option<u64> {
        let client = match role {
            Role::Producer => self.producers.get(group)?.get(client_id)?,
            Role::Consumer => self.consumers.get(group)?.members.get(client_id)?,
        };
        client.link.as_ref().map(|(connection, _)| *connection)
    }

    fn copied_entries(&self) -> Vec<(Role, GroupName, String)> {
        let mut entries = Vec::new();
        for (group, members) in &self.producers {
            let copied = members.iter().filter(|(_, client)| client.link.is_none());
            entries.extend(copied.map(|(id, _)| (Role::Producer, group.clone(), id.clone())));
        }
        for (group, consumers) in &self.consumers {
            let copied = consumers.members.iter().filter(|(_, client)| client.link.is_none());
            entries.extend(copied.map(|(id, _)| (Role::Consumer, group.clone(), id.clone())));
        }
        entries
    }

    /// Registers or refreshes one member; true when the members or the topics read have changed.
    fn consumer_heartbeat(&mut self, beat: ConsumerBeat, client_id: &str, client: Client<C>) -> bool {
        let consumers = self.consumers.entry(beat.group).or_insert_with(|| ConsumerGroup {
            members: BTreeMap::new(),
            subscriptions: BTreeMap::new(),
            consume_type: beat.consume_type,
            message_model: beat.message_model,
            consume_from_where: beat.consume_from_where,
        });
        consumers.consume_type = beat.consume_type;
        consumers.message_model = beat.message_model;
        consumers.consume_from_where = beat.consume_from_where;
        let mut changed = false;
        if consumers.members.insert(client_id.to_owned(), client).is_none() {
            self.memberships += 1;
            changed = true;
        }
        let listed: HashSet<TopicName> = beat.subscriptions.iter().map(|s| s.topic.clone()).collect();
        for subscription in beat.subscriptions {
            match consumers.subscriptions.get_mut(&subscription.topic) {
                Some(known) if subscription.version > known.version => *known = Arc::new(subscription),
                Some(_) => {}
                None => {
                    consumers.subscriptions.insert(subscription.topic.clone(), Arc::new(subscription));
                    changed = true;
                }
            }
        }
        let before = consumers.subscriptions.len();
        consumers.subscriptions.retain(|topic, _| listed.contains(topic));
        changed || consumers.subscriptions.len() != before
    }

    /// Takes members out. Returns the consumer groups among theirs, each once.
    fn remove_all(&mut self, members: impl IntoIterator<Item = (Role, GroupName, String)>, now: Instant) -> Changed {
        let mut changed = BTreeSet::new();
        for (role, group, client_id) in members {
            match role {
                Role::Producer => self.remove_producer(&group, &client_id),
                Role::Consumer => {
                    if self.remove_consumer(&group, &client_id) {
                        changed.insert(group);
                    }
                }
            }
        }
        for group in &changed {
            self.remember_change(now, group);
        }
        changed.into_iter().collect()
    }

    fn put_producer(&mut self, group: GroupName, client_id: &str, client: Client<C>) {
        let groups = self.producer_groups_of.entry(client_id.to_owned()).or_default();
        groups.insert(group.clone());
        if self.producers.entry(group).or_default().insert(client_id.to_owned(), client).is_none() {
            self.memberships += 1;
        }
    }

    fn remove_producer(&mut self, group: &GroupName, client_id: &str) {
        let Some(members) = self.producers.get_mut(group) else { return };
        let Some(client) = members.remove(client_id) else { return };
        self.memberships -= 1;
        if members.is_empty() {
            self.producers.remove(group);
        }
        if let Some(groups) = self.producer_groups_of.get_mut(client_id) {
            groups.remove(group);
            if groups.is_empty() {
                self.producer_groups_of.remove(client_id);
            }
        }
        if let Some((connection, _)) = client.link {
            self.unlink(connection, Role::Producer, group, client_id);
        }
    }

    fn remove_consumer(&mut self, group: &GroupName, client_id: &str) -> bool {
        let Some(consumers) = self.consumers.get_mut(group) else { return false };
        let Some(client) = consumers.members.remove(client_id) else { return false };
        self.memberships -= 1;
        if consumers.members.is_empty() {
            self.consumers.remove(group);
        }
        if let Some((connection, _)) = client.link {
            self.unlink(connection, Role::Consumer, group, client_id);
        }
        true
    }

    fn remember_change(&mut self, now: Instant, group: &GroupName) {
        if self.recently_changed.len() >= RECENT_CHANGES_MAX {
            self.recently_changed.drain(..RECENT_CHANGES_MAX / 2);
        }
        self.recently_changed.push((now, group.clone()));
    }
}

#[cfg(test)]
mod tests;
