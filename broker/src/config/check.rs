//! The rules of a file, those that span keys too. All are looked at, whatever else is wrong.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::reader::Reader;
use super::reference::{GROUP, MEMBER, SECTIONS, Section, TOKEN};
use super::{
    BrokerOptions, ClusterOptions, ConfigError, FlushOptions, GroupOptions, HttpOptions, LogFormat, LogOptions,
    MemberOptions, MetricsOptions, NodeOptions, Options, RaftOptions, RetentionOptions, StorageOptions, TracingOptions,
    file,
};
use crate::delay_levels::DelayLevels;
use crate::disk::DiskLimits;
use crate::http::{Role, TokenHash, Tokens, hash_token};
use crate::processor::TransactionSettings;

/// The longest that a message may wait for a time of its own.
pub(super) const TIMER_DELAY_MAX: Duration = Duration::from_secs(40 * 86_400);

/// Smallest segment: a segment must hold the largest record with room to spare.
const SEGMENT_BYTES_MIN: u64 = 16 << 20;
const SEGMENT_BYTES_MAX: u64 = 16 << 30;
const BALLAST_BYTES_MAX: u64 = 16 << 30;
const MESSAGE_BYTES_MAX: u64 = 8 << 20;
const RETENTION_TIME_MAX: Duration = Duration::from_secs(3_650 * 86_400);
const CATCH_UP_RATE_MIN: u64 = 1 << 20;
/// How long leaders may be spread unevenly before they move.
const BALANCE_AFTER: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
const MEMBERS_MAX: usize = 9;
const NAME_BYTES_MAX: usize = 64;

/// A token of 128 bits in hex has as many characters.
const TOKEN_CHARS_MIN: usize = 32;

pub(super) fn check(path: &Path, text: &str) -> Result<Options, ConfigError> {
    let mut reader = Reader::new(path, text)?;
    let mut tables: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
    tables.push("group");
    reader.only_tables(&tables);
    let options = options(&mut reader);
    reader.finish(path, options)
}

/// The table that a file has once under this name.
fn section(name: &str) -> &'static Section {
    SECTIONS.iter().find(|section| section.name == name).expect("every table is in the reference")
}

/// What the file says; none, or something that does not matter, if anything is wrong with it.
fn options(reader: &mut Reader<'_>) -> Option<Options> {
    let cluster = reader.section(section("cluster"), &[]).and_then(|cluster| check_cluster(reader, cluster));
    let node = reader.section(section("node"), &[]);
    let node = node.map(|node: file::Node| check_node(reader, node));
    let own_name = node.as_ref().map(|node| node.name.as_str());
    let groups: Vec<Option<file::Group>> = reader.tables("group", &GROUP, &["member"]);
    if groups.is_empty() {
        reader.wrong("", "there is no [[group]]; a node needs at least one");
    }
    let groups: Vec<_> = groups
        .into_iter()
        .enumerate()
        .map(|(at, group)| {
            let members = reader.tables(&format!("group.{at}.member"), &MEMBER, &[]);
            check_group(reader, at, group, members, own_name)
        })
        .collect();
    let http = check_http(reader);
    let watch_listen = http.as_ref().and_then(|http| http.watch_listen);
    check_between_groups(reader, &groups, node.as_ref(), watch_listen);
    let broker = reader.section(section("broker"), &[]);
    let message_bytes_max = broker.as_ref().map(|broker: &file::Broker| broker.message_bytes_max);
    let broker = broker.and_then(|broker| check_broker(reader, &broker));
    let storage: Option<file::Storage> = reader.section(section("storage"), &[]);
    let storage = storage.map(|storage| check_storage(reader, &storage, message_bytes_max.unwrap_or_default()));
    let retention = reader.section(section("retention"), &[]).map(|retention| check_retention(reader, retention));
    let raft = reader.section(section("raft"), &[]).map(|raft: file::Raft| check_raft(reader, &raft));
    if let (Some(node), Some(http)) = (&node, &http) {
        check_public(reader, node, http, &groups);
    }
    let metrics = reader.section(section("metrics"), &[]);
    let tracing = reader.section(section("tracing"), &[]).map(|tracing| check_tracing(reader, tracing));
    let log = reader.section(section("log"), &[]).map(|log| check_log(reader, log));
    Some(Options {
        cluster: cluster?,
        node: node?.finish()?,
        groups: groups.into_iter().map(|group| group.and_then(Group::finish)).collect::<Option<_>>()?,
        storage: storage?,
        retention: retention?,
        http: http?,
        raft: raft?,
        broker: broker?,
        metrics: metrics.map(|file::Metrics { names_max }| MetricsOptions { names_max })?,
        tracing: tracing?,
        log: log?,
    })
}

fn check_cluster(reader: &mut Reader<'_>, cluster: file::Cluster) -> Option<ClusterOptions> {
    let id = reader.note("cluster.id", parse_cluster_id(&cluster.id));
    reader.note("cluster.name", check_name("cluster.name", &cluster.name));
    Some(ClusterOptions { name: cluster.name, id: id? })
}

/// A `[node]` whose addresses may be wrong.
struct Node {
    name: String,
    raft_listen: Option<SocketAddr>,
    http_listen: Option<SocketAddr>,
    rest: file::Node,
}

impl Node {
    fn finish(self) -> Option<NodeOptions> {
        let file = self.rest;
        Some(NodeOptions {
            name: self.name,
            join_tokens: file.join_tokens.unwrap_or_else(|| file.data_dir.join("join-tokens")),
            data_dir: file.data_dir,
            raft_listen: self.raft_listen?,
            http_listen: self.http_listen?,
            namesrv: file.namesrv,
            insecure_public: file.insecure_public,
            stop_forward_time: file.stop_forward_time,
        })
    }
}

fn check_node(reader: &mut Reader<'_>, node: file::Node) -> Node {
    reader.note("node.name", check_name("node.name", &node.name));
    let raft_listen = reader.note("node.raft_listen", parse_addr("node.raft_listen", &node.raft_listen));
    let http_listen = reader.note("node.http_listen", parse_addr("node.http_listen", &node.http_listen));
    if node.namesrv.is_empty() {
        reader.wrong("node.namesrv", "node.namesrv is empty; without a name server no client finds this node");
    }
    for namesrv in &node.namesrv {
        reader.note("node.namesrv", check_host_port("node.namesrv", namesrv));
    }
    if let (Some(raft), Some(http)) = (raft_listen, http_listen)
        && raft == http
    {
        reader.wrong("node.http_listen", format!("node.http_listen and node.raft_listen are both {http}"));
    }
    Node { name: node.name.clone(), raft_listen, http_listen, rest: node }
}

/// A `[[group]]` whose values may be wrong.
struct Group {
    name: String,
    client_listen: Option<SocketAddr>,
    preferred_leader: Option<u64>,
    own_id: Option<u64>,
    /// In the order of the file; none in place of one that is wrong.
    members: Vec<Option<MemberOptions>>,
}

impl Group {
    fn finish(self) -> Option<GroupOptions> {
        let mut members = self.members.into_iter().collect::<Option<Vec<_>>>()?;
        members.sort_by_key(|member| member.id);
        Some(GroupOptions {
            name: self.name,
            client_listen: self.client_listen?,
            preferred_leader: self.preferred_leader,
            own_id: self.own_id?,
            members,
        })
    }
}

/// The group at this place of the file.
fn check_group(
    reader: &mut Reader<'_>,
    at: usize,
    group: Option<file::Group>,
    members: Vec<Option<file::Member>>,
    own_node: Option<&str>,
) -> Option<Group> {
    let place = |key: &str| format!("group.{at}.{key}");
    let count = members.len();
    let name = group.as_ref().map_or_else(|| format!("number {}", at + 1), |group| group.name.clone());
    if count > MEMBERS_MAX || count == 0 && group.is_some() {
        let message = format!("group `{name}` has {count} [[group.member]], allowed are 1 to {MEMBERS_MAX}");
        reader.wrong(&place("member"), message);
    }
    let members = check_members(reader, at, &name, members, own_node);
    let group = group?;
    reader.note(&place("name"), check_name("group.name", &name));
    let key = |key: &str| format!("group `{name}`: {key}");
    let client_listen = reader.note(&place("client_listen"), parse_addr(&key("client_listen"), &group.client_listen));
    let id_of = |node: &str| members.iter().flatten().find(|member| member.node == node).map(|member| member.id);
    // As long as an entry is wrong, it may be the one that is missed.
    let is_whole = count > 0 && members.iter().all(Option::is_some);
    let own_id = own_node.and_then(id_of);
    if let Some(own_node) = own_node.filter(|_| own_id.is_none() && is_whole) {
        let message = format!("group `{name}`: this node, `{own_node}`, is not among the members");
        reader.wrong(&place("member"), message);
    }
    if own_id == Some(0) && count == 1 {
        let message =
            format!("group `{name}`: a node that joins needs an entry of at least one member that it can ask");
        reader.wrong(&place("member"), message);
    }
    let preferred_leader = group.preferred_leader.as_deref().and_then(id_of);
    if let Some(node) = group.preferred_leader.filter(|_| preferred_leader.is_none() && is_whole) {
        let message = format!("group `{name}`: preferred_leader `{node}` is not among the members");
        reader.wrong(&place("preferred_leader"), message);
    }
    Some(Group { name, client_listen, preferred_leader, own_id, members })
}

fn check_members(
    reader: &mut Reader<'_>,
    at: usize,
    group: &str,
    members: Vec<Option<file::Member>>,
    own_node: Option<&str>,
) -> Vec<Option<MemberOptions>> {
    let (mut nodes, mut ids, mut raft_addrs) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut checked = Vec::with_capacity(members.len());
    for (number, member) in members.into_iter().enumerate() {
        let Some(file::Member { node, id, raft_addr, client_addr }) = member else {
            checked.push(None);
            continue;
        };
        let place = |key: &str| format!("group.{at}.member.{number}.{key}");
        let key = |key: &str| format!("group `{group}`: member.{key}");
        reader.note(&place("node"), check_name(&key("node"), &node));
        reader.note(&place("raft_addr"), check_host_port(&key("raft_addr"), &raft_addr));
        let client_addr = reader.note(&place("client_addr"), parse_addr(&key("client_addr"), &client_addr));
        if let Some(addr) = client_addr.filter(|addr| addr.ip().is_unspecified()) {
            let message = format!("group `{group}`: client_addr {addr} cannot be connected to; clients are told it");
            reader.wrong(&place("client_addr"), message);
        }
        if id == Some(0) {
            let message = format!("group `{group}`: member ids start at 1; 0 names the leader in routes");
            reader.wrong(&place("id"), message);
        }
        if id.is_none() && own_node.is_some_and(|own| own != node) {
            let message = format!(
                "group `{group}`: member `{node}` has no id; only this node's own entry may have none, on a node that joins"
            );
            reader.wrong(&place("id"), message);
        }
        if !nodes.insert(node.clone()) {
            reader.wrong(&place("node"), format!("group `{group}`: node `{node}` is listed twice"));
        }
        if let Some(id) = id.filter(|id| !ids.insert(*id)) {
            reader.wrong(&place("id"), format!("group `{group}`: member id {id} is used twice"));
        }
        if !raft_addrs.insert(raft_addr.clone()) {
            reader.wrong(&place("raft_addr"), format!("group `{group}`: raft_addr {raft_addr} is used twice"));
        }
        let id = id.unwrap_or(0);
        checked.push(client_addr.map(|client_addr| MemberOptions { node, id, raft_addr, client_addr }));
    }
    checked
}

/// What groups of one node must not have in common, and what they must.
fn check_between_groups(
    reader: &mut Reader<'_>,
    groups: &[Option<Group>],
    node: Option<&Node>,
    watch_listen: Option<SocketAddr>,
) {
    let mut names = HashSet::new();
    let mut listeners: HashSet<SocketAddr> =
        node.into_iter().flat_map(|node| [node.raft_listen, node.http_listen]).flatten().collect();
    if let Some(listen) = watch_listen.filter(|listen| listen.port() != 0 && !listeners.insert(*listen)) {
        reader.wrong("http.watch_listen", format!("http.watch_listen {listen} is used twice"));
    }
    let mut client_addrs = HashSet::new();
    let mut own_raft_addr = None;
    for (at, group) in groups.iter().enumerate() {
        let Some(group) = group else { continue };
        let place = |key: &str| format!("group.{at}.{key}");
        let name = &group.name;
        if !names.insert(name.as_str()) {
            reader.wrong(&place("name"), format!("two groups are named `{name}`"));
        }
        if let Some(listen) = group.client_listen.filter(|listen| listen.port() != 0 && !listeners.insert(*listen)) {
            let message = format!(
                "group `{name}`: client_listen {listen} is used twice; each group needs a port of its own, because many \
                 client requests do not say which group they mean"
            );
            reader.wrong(&place("client_listen"), message);
        }
        for (number, member) in group.members.iter().enumerate() {
            let Some(member) = member else { continue };
            let place = |key: &str| place(&format!("member.{number}.{key}"));
            if !client_addrs.insert(member.client_addr) {
                let message = format!("group `{name}`: client_addr {} is used twice", member.client_addr);
                reader.wrong(&place("client_addr"), message);
            }
            let Some(node) = node.filter(|node| node.name == member.node) else { continue };
            if *own_raft_addr.get_or_insert(&member.raft_addr) != &member.raft_addr {
                let message = format!(
                    "group `{name}`: node `{}` has raft_addr {} here and another one elsewhere; a node has one",
                    node.name, member.raft_addr
                );
                reader.wrong(&place("raft_addr"), message);
            }
        }
    }
}

/// What reaches further than this machine needs a word, or a token.
fn check_public(reader: &mut Reader<'_>, node: &Node, http: &HttpOptions, groups: &[Option<Group>]) {
    let is_public = |addr: &SocketAddr| !addr.ip().is_loopback();
    if let Some(listen) = node.http_listen.filter(is_public)
        && http.tokens.0.is_empty()
    {
        let message = format!(
            "node.http_listen is {listen}, which is not a loopback address, and there is no [[http.token]]: anyone who \
             reaches it could administer everything; `gantry token` makes one"
        );
        reader.wrong("node.http_listen", message);
    }
    if node.rest.insecure_public {
        return;
    }
    let of_groups = groups
        .iter()
        .enumerate()
        .filter_map(|(at, group)| Some((format!("group.{at}.client_listen"), group.as_ref()?.client_listen?)));
    let of_node = [
        ("node.raft_listen", node.raft_listen),
        ("node.http_listen", node.http_listen),
        ("http.watch_listen", http.watch_listen),
    ];
    let of_node = of_node.into_iter().filter_map(|(place, addr)| Some((place.to_owned(), addr?)));
    for (place, public) in of_node.chain(of_groups).filter(|(_, addr)| is_public(addr)) {
        let message = format!(
            "{public} is not a loopback address, and this version has neither authentication nor encryption: anyone who \
             reaches it can read, write and administer everything; if the network is trusted, set \
             node.insecure_public = true"
        );
        reader.wrong(&place, message);
    }
}

fn check_http(reader: &mut Reader<'_>) -> Option<HttpOptions> {
    let http: Option<file::Http> = reader.section(section("http"), &["token"]);
    let mut names = HashSet::new();
    let tokens: Vec<Option<file::Token>> = reader.tables("http.token", &TOKEN, &[]);
    let mut checked = Vec::with_capacity(tokens.len());
    for (at, token) in tokens.into_iter().enumerate() {
        let token = token.and_then(|token| {
            let place = format!("http.token.{at}.name");
            reader.note(&place, check_name("http.token.name", &token.name));
            if !names.insert(token.name.clone()) {
                reader.wrong(&place, format!("two [[http.token]] are named `{}`", token.name));
            }
            let sha256 = reader.note(&format!("http.token.{at}"), token_hash(&token))?;
            let role = match token.role {
                file::TokenRole::Read => Role::Read,
                file::TokenRole::Admin => Role::Admin,
            };
            Some(TokenHash { name: token.name, role, sha256 })
        });
        checked.push(token);
    }
    let tokens: Vec<_> = checked.into_iter().collect::<Option<_>>()?;
    let file::Http { requests_per_second, watch_listen } = http?;
    let place = "http.watch_listen";
    let watch_listen = match watch_listen {
        Some(listen) => Some(reader.note(place, parse_addr(place, &listen))?),
        None => None,
    };
    Some(HttpOptions { requests_per_second, watch_listen, tokens: Tokens(tokens.into()) })
}

fn token_hash(token: &file::Token) -> Result<[u8; 32], String> {
    let at = format!("http.token `{}`", token.name);
    match (&token.sha256, &token.file) {
        (Some(hex), None) => {
            parse_hex(hex).ok_or_else(|| format!("{at}: sha256 is not 64 hex digits; `gantry token` prints them"))
        }
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| format!("{at}: {} cannot be read: {error}", path.display()))?;
            let text = text.trim();
            if text.len() < TOKEN_CHARS_MIN {
                return Err(format!(
                    "{at}: {} holds less than {TOKEN_CHARS_MIN} characters, which can be guessed; `gantry token` makes a \
                     good one",
                    path.display()
                ));
            }
            Ok(hash_token(text))
        }
        _ => Err(format!("{at}: give either sha256 or file")),
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

fn check_storage(reader: &mut Reader<'_>, storage: &file::Storage, message_bytes_max: u64) -> StorageOptions {
    let bytes = storage.segment_bytes;
    let mut wrong = |key: &str, message: String| reader.wrong(&format!("storage.{key}"), message);
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) {
        wrong("segment_bytes", format!("storage.segment_bytes is {bytes} bytes, allowed are 16MiB to 16GiB"));
    } else if !bytes.is_multiple_of(4_096) {
        wrong("segment_bytes", format!("storage.segment_bytes is {bytes} bytes, not a multiple of 4KiB"));
    } else if bytes < message_bytes_max.saturating_mul(2) {
        let message = format!("storage.segment_bytes ({bytes}) must be at least twice broker.message_bytes_max");
        wrong("segment_bytes", message);
    }
    let flush = match storage.flush {
        file::Flush::Sync => FlushOptions::Sync,
        file::Flush::Async => FlushOptions::Async { interval: storage.flush_interval },
    };
    if !(Duration::from_millis(10)..=Duration::from_secs(1)).contains(&storage.flush_interval) {
        let message = format!("storage.flush_interval is {:?}, allowed are 10ms to 1s", storage.flush_interval);
        wrong("flush_interval", message);
    }
    if storage.ballast_bytes > BALLAST_BYTES_MAX {
        let message = format!("storage.ballast_bytes is {} bytes, allowed are 0 to 16GiB", storage.ballast_bytes);
        wrong("ballast_bytes", message);
    }
    let day = Duration::from_secs(24 * 3_600);
    if !(Duration::from_secs(60)..=7 * day).contains(&storage.scrub_interval) {
        let message = format!("storage.scrub_interval is {:?}, allowed are 1m to 7d", storage.scrub_interval);
        wrong("scrub_interval", message);
    }
    if (1..1 << 20).contains(&storage.scrub_rate) {
        let rate = storage.scrub_rate;
        let message = format!("storage.scrub_rate is {rate} bytes, allowed are 1MiB and more, or 0B to scrub nothing");
        wrong("scrub_rate", message);
    }
    StorageOptions {
        segment_bytes: bytes,
        flush,
        flush_interval: storage.flush_interval,
        allow_unproven_filesystem: storage.allow_unproven_filesystem,
        mount_identity: storage.mount_identity,
        disk: check_disk(reader, storage),
        ballast_bytes: storage.ballast_bytes,
        cold_read_rate: storage.cold_read_rate,
        runtime_dir: runtime_dir(storage.runtime_dir.clone()),
        scrub_rate: storage.scrub_rate,
        scrub_interval: storage.scrub_interval,
    }
}

/// What is configured, else what a service manager has made for this process.
fn runtime_dir(configured: Option<PathBuf>) -> Option<PathBuf> {
    configured.or_else(|| {
        let given = std::env::var("RUNTIME_DIRECTORY").ok()?;
        Some(PathBuf::from(given.split(':').next()?))
    })
}

fn check_disk(reader: &mut Reader<'_>, storage: &file::Storage) -> DiskLimits {
    let (early, forced, free) =
        (storage.disk_early_percent, storage.disk_forced_percent, storage.disk_free_percent_min);
    if early >= forced {
        let message =
            format!("storage.disk_early_percent ({early}) must be below storage.disk_forced_percent ({forced})");
        reader.wrong("storage.disk_early_percent", message);
    }
    if u32::from(forced) + u32::from(free) > 100 {
        let message = format!(
            "storage.disk_free_percent_min is {free}, allowed are at most {} with storage.disk_forced_percent = {forced}: \
             retention must make room before messages are refused",
            100_u8.saturating_sub(forced)
        );
        reader.wrong("storage.disk_free_percent_min", message);
    }
    DiskLimits {
        early_percent: early,
        forced_percent: forced,
        free_percent_min: free,
        segment_bytes: storage.segment_bytes,
    }
}

fn check_retention(reader: &mut Reader<'_>, retention: file::Retention) -> RetentionOptions {
    let file::Retention { time, delete_hours, check_interval } = retention;
    if !(Duration::from_secs(1)..=RETENTION_TIME_MAX).contains(&time) {
        reader.wrong("retention.time", format!("retention.time is {time:?}, allowed are 1s to 3650d"));
    }
    if !(Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&check_interval) {
        let message = format!("retention.check_interval is {check_interval:?}, allowed are 100ms to 1h");
        reader.wrong("retention.check_interval", message);
    }
    RetentionOptions { time, delete_hours, check_interval }
}

fn check_raft(reader: &mut Reader<'_>, raft: &file::Raft) -> RaftOptions {
    let (heartbeat, min, max) = (raft.heartbeat_interval, raft.election_timeout_min, raft.election_timeout_max);
    let mut wrong = |key: &str, message: String| reader.wrong(&format!("raft.{key}"), message);
    if !(Duration::from_millis(10)..=Duration::from_secs(10)).contains(&heartbeat) {
        let message = format!("raft.heartbeat_interval is {heartbeat:?}, allowed are 10ms to 10s");
        wrong("heartbeat_interval", message);
    } else if min < 2 * heartbeat {
        let message = format!(
            "raft.election_timeout_min ({min:?}) must be at least twice raft.heartbeat_interval ({heartbeat:?})"
        );
        wrong("election_timeout_min", message);
    }
    if max <= min || max > Duration::from_secs(60) {
        let message = format!(
            "raft.election_timeout_max ({max:?}) must be longer than raft.election_timeout_min ({min:?}), and at most 60s"
        );
        wrong("election_timeout_max", message);
    }
    let rate = raft.catch_up_rate;
    if rate != 0 && rate < CATCH_UP_RATE_MIN {
        let message = format!("raft.catch_up_rate is {rate} bytes, allowed are 1MiB and more, or 0B for no limit");
        wrong("catch_up_rate", message);
    }
    let balance_after = raft.balance_after;
    if !balance_after.is_zero() && !BALANCE_AFTER.contains(&balance_after) {
        let message = format!("raft.balance_after is {balance_after:?}, allowed are 1s to 1d, or 0s for never");
        wrong("balance_after", message);
    }
    RaftOptions {
        heartbeat_interval: heartbeat,
        election_timeout_min: min,
        election_timeout_max: max,
        catch_up_rate: (rate != 0).then_some(rate),
        balance_after: (!balance_after.is_zero()).then_some(balance_after),
    }
}

fn check_broker(reader: &mut Reader<'_>, broker: &file::Broker) -> Option<BrokerOptions> {
    if !(1_024..=MESSAGE_BYTES_MAX).contains(&broker.message_bytes_max) {
        let message = format!(
            "broker.message_bytes_max is {} bytes, allowed are 1KiB to {}MiB",
            broker.message_bytes_max,
            MESSAGE_BYTES_MAX >> 20
        );
        reader.wrong("broker.message_bytes_max", message);
    }
    let delay_levels = DelayLevels::parse(&broker.delay_levels).map_err(|why| format!("broker.delay_levels: {why}"));
    let delay_levels = reader.note("broker.delay_levels", delay_levels);
    let timer_delay_max = broker.timer_delay_max;
    if !(Duration::from_secs(1)..=TIMER_DELAY_MAX).contains(&timer_delay_max) {
        let message = format!("broker.timer_delay_max is {timer_delay_max:?}, allowed are 1s to 40d");
        reader.wrong("broker.timer_delay_max", message);
    }
    let transactions = check_transactions(reader, broker);
    Some(BrokerOptions {
        auto_create_topics: broker.auto_create_topics,
        auto_create_groups: broker.auto_create_groups,
        auto_create_queues: broker.auto_create_queues,
        message_bytes_max: usize::try_from(broker.message_bytes_max).ok()?,
        delay_levels: delay_levels?,
        timer_delay_max,
        transactions,
    })
}

fn check_transactions(reader: &mut Reader<'_>, broker: &file::Broker) -> TransactionSettings {
    let file::Broker { transaction_timeout: timeout, transaction_check_interval: check_interval, .. } = *broker;
    for (key, value) in [("timeout", timeout), ("check_interval", check_interval)] {
        if !(Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&value) {
            let message = format!("broker.transaction_{key} is {value:?}, allowed are 100ms to 1h");
            reader.wrong(&format!("broker.transaction_{key}"), message);
        }
    }
    TransactionSettings { timeout, check_interval, check_max: broker.transaction_check_max }
}

fn check_tracing(reader: &mut Reader<'_>, tracing: file::Tracing) -> TracingOptions {
    let file::Tracing { endpoint, sample_ratio, service_name } = tracing;
    if service_name.trim().is_empty() {
        reader.wrong("tracing.service_name", "tracing.service_name is empty");
    }
    if let Some(endpoint) = &endpoint {
        let uri: Option<axum::http::Uri> = endpoint.parse().ok();
        let is_plain = |uri: &axum::http::Uri| uri.scheme_str() == Some("http") && uri.authority().is_some();
        if !uri.as_ref().is_some_and(is_plain) {
            let message = format!("tracing.endpoint is `{endpoint}`, and should be like http://127.0.0.1:4318");
            reader.wrong("tracing.endpoint", message);
        } else if !cfg!(feature = "otel") {
            let message = "tracing.endpoint is set, and this program was built without the feature `otel`";
            reader.wrong("tracing.endpoint", message);
        }
    }
    TracingOptions { endpoint, sample_ratio, service_name }
}

fn check_log(reader: &mut Reader<'_>, log: file::Log) -> LogOptions {
    if log.filter.trim().is_empty() {
        reader.wrong("log.filter", "log.filter is empty; write `off` to log nothing");
    }
    let format = match log.format {
        file::LogFormat::Text => LogFormat::Text,
        file::LogFormat::Json => LogFormat::Json,
    };
    LogOptions { filter: log.filter, format }
}

fn parse_cluster_id(text: &str) -> Result<[u8; 16], String> {
    let wrong = || format!("cluster.id is `{text}`, expected 32 hex digits; `gantry cluster-id` prints a new one");
    if text.len() != 32 || !text.is_ascii() {
        return Err(wrong());
    }
    let mut id = [0; 16];
    for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
    }
    if id == [0; 16] {
        return Err("cluster.id is all zeros; `gantry cluster-id` prints a new one".to_owned());
    }
    Ok(id)
}

/// Names become directories and text on the wire, so they admit letters, digits, `_` and `-` only.
fn check_name(key: &str, name: &str) -> Result<(), String> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
        return Err(format!("{key} is `{name}`, allowed are 1 to {NAME_BYTES_MAX} letters, digits, `_` and `-`"));
    }
    Ok(())
}

fn parse_addr(key: &str, text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| format!("{key} is `{text}`, expected an address and a port such as 127.0.0.1:10911"))
}

fn check_host_port(key: &str, text: &str) -> Result<(), String> {
    let valid = text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(char::is_whitespace) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if valid { Ok(()) } else { Err(format!("{key} is `{text}`, expected host:port")) }
}
