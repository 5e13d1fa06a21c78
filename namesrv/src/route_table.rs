//! Who serves which topic: brokers, clusters, topics. Pure; every call takes the time.
//!
//! Two kinds of brokers register under a broker name. **Members of a Raft group** all register, each with its number,
//! the latest term it knows and who leads in it. The highest term wins, whoever tells it; a registration never removes
//! another member, so a late or partial one does no harm. Members that live are shown, the leader as id 0:
//!
//! ```text
//! leader of the highest term lives        -> it is id 0
//! it does not, or none is known           -> one live member stands in as id 0 (it forwards or holds requests)
//! no member lives, for less than 30 s     -> the last id 0 stays, alone: most likely only we lost sight of it
//! no member lives, for longer             -> the group is gone
//! ```
//!
//! **Plain RocketMQ brokers** register with a fixed id, and what they say is shown as they say it.
//!
//! The topics of a group come from its leader and only move forward, by (term, counter of the table).

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::collections::HashMap;
use std::collections::HashSet;
use std::time::Duration;
use std::time::Instant;

use crate::figures::Held;

/// Names the connection over which a broker registered.
pub(crate) type Link = u64;

/// How long a group of which nobody lives keeps its last address.
pub(crate) const UNREACHABLE_MAX: Duration = Duration::from_secs(30);

const PERM_WRITE: u32 = 2;
const PERM_READ_WRITE: u32 = 6;

/// The queues of one topic at one broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Topic {
    pub(crate) read_queue_nums: u32,
    pub(crate) write_queue_nums: u32,
    pub(crate) perm: u32,
    pub(crate) topic_sys_flag: u32,
}

/// The version of a broker's topic table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Version {
    pub(crate) state_version: i64,
    pub(crate) timestamp: i64,
    pub(crate) counter: i64,
}

/// The topics in a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) version: Version,
    pub(crate) topics: Vec<(String, Topic)>,
    /// The topics are those that changed since the table with this counter. Only members of a Raft group say so.
    pub(crate) base: Option<i64>,
    /// Topics deleted since then.
    pub(crate) gone: Vec<String>,
}

/// Who registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rank {
    /// Member `number` of a Raft group knows that `leader` leads in `term`.
    Member { number: u64, term: u64, leader: Option<u64> },
    /// A RocketMQ broker with this id.
    Plain { id: u64, acting_master: bool },
}

/// One registration.
#[derive(Debug, Clone)]
pub(crate) struct Registration {
    pub(crate) cluster: String,
    pub(crate) broker_name: String,
    pub(crate) address: String,
    pub(crate) ha_address: Option<String>,
    pub(crate) rank: Rank,
    pub(crate) table: Option<Table>,
    pub(crate) silent_max: Duration,
    pub(crate) connection: Option<Link>,
}

/// What became of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Registered {
    Accepted {
        /// Address and HA address of id 0.
        master: Option<(String, Option<String>)>,
        /// The increment did not fit: the whole table is wanted.
        whole_table_wanted: bool,
    },
    Refused(&'static str),
}

/// Addresses of one broker name by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Broker {
    pub(crate) cluster: String,
    pub(crate) broker_name: String,
    pub(crate) addresses: BTreeMap<u64, String>,
}

/// The route of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) queues: Vec<(String, Topic)>,
    pub(crate) brokers: Vec<Broker>,
}

/// Everything that brokers told us.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    /// By broker name.
    groups: BTreeMap<String, Group>,
}

#[derive(Debug)]
struct Group {
    cluster: String,
    kind: Kind,
    /// Live ones: by member number, or by broker id for plain brokers.
    members: BTreeMap<u64, Member>,
    topics: HashMap<String, Topic>,
    /// Term and version of `topics`.
    version: Option<(u64, Version)>,
}

#[derive(Debug)]
enum Kind {
    Plain,
    Raft {
        /// The highest term in which a leader is known, and that leader.
        leadership: Option<(u64, u64)>,
        /// Shown as id 0 while the leader is not there.
        stand_in: Option<u64>,
        /// Since when no member lives, and the address that was id 0 then.
        unreachable: Option<(Instant, String)>,
    },
}

#[derive(Debug)]
struct Member {
    address: String,
    ha_address: Option<String>,
    state_version: i64,
    seen_at: Instant,
    silent_max: Duration,
    connection: Option<Link>,
}

impl RouteTable {
    /// Takes a registration in.
    pub(crate) fn register(&mut self, registration: Registration, now: Instant) -> Registered {
        let is_raft = matches!(registration.rank, Rank::Member { .. });
        if let Some(group) = self.groups.get(&registration.broker_name) {
            let was_raft = matches!(group.kind, Kind::Raft { .. });
            if was_raft && !is_raft && !group.members.is_empty() {
                return Registered::Refused("a raft group has this broker name");
            }
            if was_raft != is_raft || group.is_gone(now) {
                self.groups.remove(&registration.broker_name);
            }
        }
        let group = self.groups.entry(registration.broker_name.clone()).or_insert_with(|| Group {
            cluster: registration.cluster.clone(),
            kind: if is_raft {
                Kind::Raft { leadership: None, stand_in: None, unreachable: None }
            } else {
                Kind::Plain
            },
            members: BTreeMap::new(),
            topics: HashMap::new(),
            version: None,
        });
        match registration.rank {
            Rank::Member { number, term, leader } => group.register_member(registration, number, term, leader, now),
            Rank::Plain { id, acting_master } => group.register_plain(registration, id, acting_master, now),
        }
    }

    /// A broker says that it leaves.
    pub(crate) fn unregister(&mut self, broker_name: &str, address: &str, now: Instant) {
        self.remove_members(now, |name, member| name == broker_name && member.address == address);
    }

    /// A broker gave a sign of life without registering.
    pub(crate) fn seen(&mut self, broker_name: &str, address: &str, now: Instant) {
        let Some(group) = self.groups.get_mut(broker_name) else { return };
        for member in group.members.values_mut().filter(|member| member.address == address) {
            member.seen_at = now;
        }
    }

    /// The connection over which brokers registered is gone, and so, for all we know, are they.
    pub(crate) fn connection_closed(&mut self, connection: Link, now: Instant) {
        self.remove_members(now, |_, member| member.connection == Some(connection));
    }

    /// Removes brokers that were silent for too long, and groups of which nobody has lived for too long.
    pub(crate) fn scan(&mut self, now: Instant) {
        self.remove_members(now, |_, member| now.duration_since(member.seen_at) > member.silent_max);
    }

    fn remove_members(&mut self, now: Instant, goes: impl Fn(&str, &Member) -> bool) {
        self.groups.retain(|name, group| {
            let zero = group.zero();
            let zero_address = zero.and_then(|zero| group.members.get(&zero)).map(|member| member.address.clone());
            let before = group.members.len();
            group.members.retain(|id, member| {
                let goes = goes(name, member);
                if goes {
                    tracing::info!(broker = %name, member = id, address = %member.address, "broker is gone");
                }
                !goes
            });
            if group.members.len() < before {
                group.settle(zero_address, now);
            }
            !group.is_gone(now)
        });
    }

    /// How much it holds.
    pub(crate) fn held(&self, now: Instant) -> Held {
        let mut held = Held::default();
        let mut topics = HashSet::new();
        for (_, group) in self.reachable(now) {
            held.brokers += 1;
            held.led += usize::from(group.has_leader());
            held.replicas += group.members.len();
            topics.extend(group.topics.keys());
        }
        held.topics = topics.len();
        held
    }

    /// The route of `topic`, if any broker that can be reached has it.
    pub(crate) fn route(&self, topic: &str, now: Instant) -> Option<Route> {
        let mut route = Route { queues: Vec::new(), brokers: Vec::new() };
        for (name, group) in self.reachable(now) {
            if let Some(queues) = group.topics.get(topic) {
                route.queues.push((name.clone(), queues.clone()));
                route.brokers.push(group.broker(name));
            }
        }
        (!route.brokers.is_empty()).then_some(route)
    }

    /// All brokers that can be reached.
    pub(crate) fn brokers(&self, now: Instant) -> Vec<Broker> {
        self.reachable(now).map(|(name, group)| group.broker(name)).collect()
    }

    /// The brokers that share `broker_name`.
    pub(crate) fn broker(&self, broker_name: &str, now: Instant) -> Option<Broker> {
        let group = self.groups.get(broker_name).filter(|group| !group.is_gone(now))?;
        Some(group.broker(broker_name))
    }

    /// Names of the topics that `wanted` accepts, of the brokers of `cluster` or of all.
    pub(crate) fn topics(
        &self,
        cluster: Option<&str>,
        now: Instant,
        wanted: impl Fn(&Topic) -> bool,
    ) -> BTreeSet<String> {
        self.reachable(now)
            .filter(|(_, group)| cluster.is_none_or(|cluster| group.cluster == cluster))
            .flat_map(|(_, group)| &group.topics)
            .filter(|(_, topic)| wanted(topic))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Forgets `topic`, in one cluster or everywhere.
    pub(crate) fn delete_topic(&mut self, topic: &str, cluster: Option<&str>) {
        for group in self.groups.values_mut().filter(|group| cluster.is_none_or(|cluster| group.cluster == cluster)) {
            group.topics.remove(topic);
        }
    }

    /// Adds or replaces one topic of a broker that is known.
    pub(crate) fn put_topic(&mut self, broker_name: &str, name: &str, topic: Topic) {
        if let Some(group) = self.groups.get_mut(broker_name) {
            group.topics.insert(name.to_owned(), topic);
        }
    }

    /// Takes the right to write from all topics of a broker name; returns how many. It lasts until the table changes.
    pub(crate) fn wipe_write_perm(&mut self, broker_name: &str) -> usize {
        self.change_perm(broker_name, |perm| perm & !PERM_WRITE)
    }

    /// Gives all topics of a broker name the right to read and write; returns how many.
    pub(crate) fn add_write_perm(&mut self, broker_name: &str) -> usize {
        self.change_perm(broker_name, |_| PERM_READ_WRITE)
    }

    fn change_perm(&mut self, broker_name: &str, change: impl Fn(u32) -> u32) -> usize {
        let Some(group) = self.groups.get_mut(broker_name) else { return 0 };
        for topic in group.topics.values_mut() {
            topic.perm = change(topic.perm);
        }
        group.topics.len()
    }

    /// The version of the topic table that is known of a broker name.
    pub(crate) fn version(&self, broker_name: &str) -> Option<Version> {
        self.groups.get(broker_name)?.version.map(|(_, version)| version)
    }

    fn reachable(&self, now: Instant) -> impl Iterator<Item = (&String, &Group)> {
        self.groups.iter().filter(move |(_, group)| !group.is_gone(now))
    }
}

impl Group {
    fn register_member(
        &mut self,
        registration: Registration,
        number: u64,
        term: u64,
        leader: Option<u64>,
        now: Instant,
    ) -> Registered {
        let zero_before = self.zero();
        // A member that came back under a new number has the address of its old one.
        self.members.retain(|other, member| *other == number || member.address != registration.address);
        let member = registration.member(now);
        self.members.insert(number, member);
        let Kind::Raft { leadership, unreachable, .. } = &mut self.kind else {
            unreachable!("plain groups were replaced before")
        };
        *unreachable = None;
        if let Some(leader) = leader {
            match *leadership {
                Some((known, _)) if term < known => {}
                Some((known, other)) if term == known && leader != other => {
                    tracing::error!(
                        broker = %registration.broker_name, term, leader, other,
                        "two members are named leader of one term: keeping the first"
                    );
                }
                _ => *leadership = Some((term, leader)),
            }
        }
        let is_leader = *leadership == Some((term, number)) && leader == Some(number);
        self.settle(None, now);
        let zero = self.zero();
        if zero != zero_before {
            tracing::info!(broker = %registration.broker_name, term, zero, "id 0 is another member now");
        }
        let mut whole_table_wanted = false;
        if let Some(table) = registration.table
            && (is_leader || self.version.is_none())
        {
            // What a follower says may be old: anything a leader says replaces it.
            let term = if is_leader { term } else { 0 };
            whole_table_wanted = !self.take_table(term, table);
        }
        Registered::Accepted { master: self.master(), whole_table_wanted }
    }

    /// Moves the topics forward; false when the table is an increment that does not fit.
    ///
    /// Versions with the same counter and time are the same table, whoever led when it was told.
    fn take_table(&mut self, term: u64, table: Table) -> bool {
        let told = table.version;
        match (table.base, self.version) {
            // Late: it was overtaken.
            (_, Some((known_term, known))) if (term, told.counter) < (known_term, known.counter) => return true,
            (None, Some((known_term, known))) if (term, told.counter) == (known_term, known.counter) => return true,
            (None, _) => self.topics = table.topics.into_iter().collect(),
            (Some(_), None) => return false,
            (Some(base), Some((_, known))) => {
                let is_known = (told.counter, told.timestamp) == (known.counter, known.timestamp);
                if !is_known && (base != known.counter || told.counter == base) {
                    return false;
                }
                if !is_known {
                    for topic in &table.gone {
                        self.topics.remove(topic);
                    }
                    self.topics.extend(table.topics);
                }
            }
        }
        self.version = Some((term, told));
        true
    }

    fn register_plain(&mut self, registration: Registration, id: u64, acting_master: bool, now: Instant) -> Registered {
        let state_version = registration.table.as_ref().map_or(0, |table| table.version.state_version);
        if let Some(held) = self.members.get(&id)
            && held.address != registration.address
            && held.state_version > state_version
        {
            return Registered::Refused("another broker holds this id with a newer state version");
        }
        let is_first = self.members.get(&id).is_none_or(|held| held.address != registration.address);
        self.members.retain(|other, member| *other == id || member.address != registration.address);
        self.members.insert(id, registration.member(now));
        let speaks_for_all = id == 0 || (acting_master && self.members.keys().next() == Some(&id));
        if let Some(table) = registration.table
            && speaks_for_all
            && (is_first || self.version.is_none_or(|(_, version)| version != table.version))
        {
            // A plain broker does not say whether this is all it has, so nothing is removed.
            self.topics.extend(table.topics);
            self.version = Some((0, table.version));
        }
        Registered::Accepted { master: self.master(), whole_table_wanted: false }
    }

    /// Restores what must hold after members came or went.
    fn settle(&mut self, last_zero: Option<String>, now: Instant) {
        let Kind::Raft { leadership, stand_in, unreachable } = &mut self.kind else { return };
        if self.members.is_empty() {
            *stand_in = None;
            if let Some(address) = last_zero {
                *unreachable = Some((now, address));
            }
            return;
        }
        if leadership.is_some_and(|(_, leader)| self.members.contains_key(&leader)) {
            *stand_in = None;
        } else if stand_in.is_none_or(|number| !self.members.contains_key(&number)) {
            *stand_in = self.members.keys().next().copied();
        }
    }

    /// The live member that is shown as id 0.
    fn zero(&self) -> Option<u64> {
        match &self.kind {
            Kind::Plain => self.members.contains_key(&0).then_some(0),
            Kind::Raft { leadership, stand_in, .. } => {
                leadership.map(|(_, leader)| leader).filter(|leader| self.members.contains_key(leader)).or(*stand_in)
            }
        }
    }

    /// Whether somebody lives who takes messages.
    fn has_leader(&self) -> bool {
        match &self.kind {
            Kind::Plain => self.members.contains_key(&0),
            Kind::Raft { leadership, .. } => leadership.is_some_and(|(_, leader)| self.members.contains_key(&leader)),
        }
    }

    fn master(&self) -> Option<(String, Option<String>)> {
        let member = self.members.get(&self.zero()?)?;
        Some((member.address.clone(), member.ha_address.clone()))
    }

    fn is_gone(&self, now: Instant) -> bool {
        self.members.is_empty()
            && match &self.kind {
                Kind::Raft { unreachable: Some((since, _)), .. } => now.duration_since(*since) > UNREACHABLE_MAX,
                _ => true,
            }
    }

    fn broker(&self, name: &str) -> Broker {
        let zero = self.zero();
        let mut addresses: BTreeMap<u64, String> = self
            .members
            .iter()
            .map(|(number, member)| {
                let id = if zero == Some(*number) { 0 } else { *number };
                (id, member.address.clone())
            })
            .collect();
        if let Kind::Raft { unreachable: Some((_, address)), .. } = &self.kind {
            addresses.insert(0, address.clone());
        }
        Broker { cluster: self.cluster.clone(), broker_name: name.to_owned(), addresses }
    }
}

impl Registration {
    fn member(&self, now: Instant) -> Member {
        Member {
            address: self.address.clone(),
            ha_address: self.ha_address.clone(),
            state_version: self.table.as_ref().map_or(0, |table| table.version.state_version),
            seen_at: now,
            silent_max: self.silent_max,
            connection: self.connection,
        }
    }
}

#[cfg(test)]
mod tests;
