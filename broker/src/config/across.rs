//! What the files of several nodes of one cluster say of each other.
//!
//! Each file is good by itself. What all nodes must say alike is compared with the first file that says it; who is named as
//! a member is looked for among the files.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;

use super::{GroupOptions, MemberOptions, Mistake, Options, line_of};
use crate::http::Role;

/// The file of one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeFile<'a> {
    /// Where it is.
    pub path: &'a Path,
    /// What is written in it.
    pub text: &'a str,
    /// What that means.
    pub options: &'a Options,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// What the nodes would not get along with, by the number of the file that says it.
    pub mistakes: Vec<(usize, Mistake)>,
    /// What may be meant so.
    pub notes: Vec<(usize, Mistake)>,
}

/// Compares the files.
#[must_use]
pub fn check(files: &[NodeFile<'_>]) -> Findings {
    let mut found = Findings::default();
    alike(files, &mut found);
    apart(files, &mut found);
    let mut seen = BTreeSet::new();
    let names = files.iter().flat_map(|file| &file.options.groups).map(|group| group.name.as_str());
    for name in names.filter(|name| seen.insert(*name)) {
        group(files, name, &mut found);
    }
    found
}

impl NodeFile<'_> {
    fn mistake(&self, place: &str, message: String) -> Mistake {
        Mistake { line: line_of(self.text, place), message }
    }

    fn name(&self) -> &str {
        &self.options.node.name
    }
}

/// A value that is the same on all nodes.
struct Alike {
    place: &'static str,
    of: fn(&Options) -> String,
    /// Why it must be; none if it only should.
    must: Option<&'static str>,
}

const ALIKE: &[Alike] = &[
    Alike {
        place: "cluster.id",
        of: |options| options.cluster.id.iter().map(|byte| format!("{byte:02x}")).collect(),
        must: Some(": nodes of different clusters do not talk to each other"),
    },
    Alike { place: "cluster.name", of: |options| options.cluster.name.clone(), must: Some("") },
    Alike {
        place: "node.namesrv",
        of: |options| {
            let servers: BTreeSet<&str> = options.node.namesrv.iter().map(String::as_str).collect();
            servers.into_iter().collect::<Vec<_>>().join(", ")
        },
        must: Some(": clients that ask one that is not told would not find this node's groups"),
    },
    Alike {
        place: "storage.segment_bytes",
        of: |options| text(options.storage.segment_bytes),
        must: Some(": all nodes have segments alike"),
    },
    Alike {
        place: "storage.flush",
        of: |options| text(options.storage.flush),
        must: Some(": it is not clear how a new group begins"),
    },
    Alike {
        place: "broker.delay_levels",
        of: |options| text(&options.broker.delay_levels),
        must: Some(": how long a message waits would hang on who leads"),
    },
    Alike { place: "retention.time", of: |options| text(options.retention.time), must: None },
    Alike { place: "broker.message_bytes_max", of: |options| text(options.broker.message_bytes_max), must: None },
    Alike { place: "broker.timer_delay_max", of: |options| text(options.broker.timer_delay_max), must: None },
    Alike { place: "raft.heartbeat_interval", of: |options| text(options.raft.heartbeat_interval), must: None },
    Alike { place: "raft.election_timeout_min", of: |options| text(options.raft.election_timeout_min), must: None },
    Alike { place: "raft.election_timeout_max", of: |options| text(options.raft.election_timeout_max), must: None },
];

fn text(value: impl Debug) -> String {
    format!("{value:?}")
}

/// Compares what all nodes say alike with what the first one says.
fn alike(files: &[NodeFile<'_>], found: &mut Findings) {
    let Some((first, others)) = files.split_first() else { return };
    let first_path = first.path.display();
    for (at, file) in (1..).zip(others) {
        for Alike { place, of, must } in ALIKE {
            let (here, there) = (of(file.options), of(first.options));
            if here != there {
                let why = must.unwrap_or_default();
                let message = format!("{place} is {here}, and {there} in {first_path}{why}");
                let list = if must.is_some() { &mut found.mistakes } else { &mut found.notes };
                list.push((at, file.mistake(place, message)));
            }
        }
        let tokens = |options: &Options| {
            let tokens = options.http.tokens.0.iter();
            tokens.map(|token| (token.name.clone(), token.role == Role::Admin, token.sha256)).collect::<BTreeSet<_>>()
        };
        if tokens(file.options) != tokens(first.options) {
            let message = format!("the [[http.token]] are not those of {first_path}; any node may get any call");
            found.notes.push((at, file.mistake("http", message)));
        }
    }
}

/// What no two nodes may have.
fn apart(files: &[NodeFile<'_>], found: &mut Findings) {
    let (mut names, mut listeners, mut dirs) = (HashMap::new(), HashMap::new(), HashMap::new());
    for (at, file) in files.iter().enumerate() {
        let node = &file.options.node;
        let mut wrong = |place: &str, message: String| found.mistakes.push((at, file.mistake(place, message)));
        if let Some(other) = names.insert(file.name(), file.path) {
            let message =
                format!("node.name is `{}`, as in {}; each node has a name of its own", node.name, other.display());
            wrong("node.name", message);
        }
        // Wildcard addresses are those of different machines.
        let is_one = |addr: &SocketAddr| !addr.ip().is_unspecified() && addr.port() != 0;
        let of_node =
            [("node.raft_listen".to_owned(), node.raft_listen), ("node.http_listen".to_owned(), node.http_listen)];
        let of_groups = file
            .options
            .groups
            .iter()
            .map(|group| (format!("group.{}.client_listen", group.name), group.client_listen));
        let mut on_this_machine = false;
        for (place, addr) in of_node.into_iter().chain(of_groups).filter(|(_, addr)| is_one(addr)) {
            on_this_machine |= addr.ip().is_loopback();
            if let Some(other) = listeners.insert(addr, file.path).filter(|_| !on_other_machines(&addr, files)) {
                wrong(&place, format!("{place} is {addr}, which {} listens on too", other.display()));
            }
        }
        if let Some(other) = dirs.insert(&node.data_dir, file.path).filter(|_| on_this_machine) {
            let message = format!(
                "node.data_dir is {}, as in {}; nodes on one machine need a directory each",
                node.data_dir.display(),
                other.display()
            );
            wrong("node.data_dir", message);
        }
    }
}

/// Whether a loopback address may well be in use on several machines: peers reach the nodes at other addresses.
fn on_other_machines(addr: &SocketAddr, files: &[NodeFile<'_>]) -> bool {
    let of_peers = files.iter().flat_map(|file| &file.options.groups).flat_map(|group| &group.members);
    let hosts: BTreeSet<_> = of_peers.filter_map(|member| Some(member.raft_addr.rsplit_once(':')?.0)).collect();
    addr.ip().is_loopback() && hosts.len() > 1
}

/// One group, in all files that have it.
fn group(files: &[NodeFile<'_>], name: &str, found: &mut Findings) {
    let with: Vec<(usize, &NodeFile<'_>, &GroupOptions)> = files
        .iter()
        .enumerate()
        .filter_map(|(at, file)| Some((at, file, file.options.groups.iter().find(|group| group.name == name)?)))
        .collect();
    // A node that joins names whom it can ask, which need not be all.
    let settled: Vec<_> = with.iter().filter(|(_, _, group)| !group.joins()).collect();
    for &&(at, file, group) in settled.iter().skip(1) {
        let &&(_, first, of_first) = settled.first().expect("there is more than one");
        let first_path = first.path.display();
        let leader = |group: &GroupOptions| {
            let node = group.members.iter().find(|member| Some(member.id) == group.preferred_leader);
            node.map_or_else(|| "nobody".to_owned(), |member| member.node.clone())
        };
        let (here, there) = (leader(group), leader(of_first));
        if here != there {
            let message = format!("group `{name}`: preferred_leader is {here}, and {there} in {first_path}");
            found.mistakes.push((at, file.mistake(&format!("group.{name}.preferred_leader"), message)));
        }
        for missing in of_first.members.iter().filter(|member| member_of(group, &member.node).is_none()) {
            let message = format!("group `{name}`: member `{}` is missing, which {first_path} has", missing.node);
            found.mistakes.push((at, file.mistake(&format!("group.{name}"), message)));
        }
        for member in &group.members {
            let place = format!("group.{name}.member.{}", member.node);
            match member_of(of_first, &member.node) {
                None => {
                    let message = format!("group `{name}`: member `{}` is missing in {first_path}", member.node);
                    found.mistakes.push((at, file.mistake(&place, message)));
                }
                Some(other) => same_member(file, at, name, member, other, first, found),
            }
        }
    }
    for &(at, file, group) in with.iter().filter(|(_, _, group)| group.joins()) {
        for member in group.members.iter().filter(|member| member.id != 0) {
            let other = settled.iter().find_map(|(_, first, of)| Some((first, member_of(of, &member.node)?)));
            if let Some((first, other)) = other {
                same_member(file, at, name, member, other, first, found);
            }
        }
    }
    let mut absent = BTreeSet::new();
    for &(at, file, group) in &with {
        for member in &group.members {
            let place = format!("group.{name}.member.{}", member.node);
            let of_node = files.iter().find(|other| other.name() == member.node);
            let own = of_node.map(|other| (other, other.options.groups.iter().find(|group| group.name == name)));
            match own {
                None if absent.insert(&member.node) => {
                    let message = format!("group `{name}`: there is no file of its member `{}` here", member.node);
                    found.notes.push((at, file.mistake(&place, message)));
                }
                Some((other, None)) if absent.insert(&member.node) => {
                    let other = other.path.display();
                    let message =
                        format!("group `{name}`: `{}` is a member, and {other} has no such group", member.node);
                    found.mistakes.push((at, file.mistake(&place, message)));
                }
                None | Some(_) => {}
            }
        }
        listens_where_it_says(at, file, group, found);
    }
}

fn member_of<'a>(group: &'a GroupOptions, node: &str) -> Option<&'a MemberOptions> {
    group.members.iter().find(|member| member.node == node)
}

fn same_member(
    file: &NodeFile<'_>,
    at: usize,
    group: &str,
    member: &MemberOptions,
    other: &MemberOptions,
    first: &NodeFile<'_>,
    found: &mut Findings,
) {
    let node = &member.node;
    for (key, here, there) in [
        ("id", member.id.to_string(), other.id.to_string()),
        ("raft_addr", member.raft_addr.clone(), other.raft_addr.clone()),
        ("client_addr", member.client_addr.to_string(), other.client_addr.to_string()),
    ] {
        if here != there {
            let first = first.path.display();
            let message = format!("group `{group}`: {key} of member `{node}` is {here}, and {there} in {first}");
            found.mistakes.push((at, file.mistake(&format!("group.{group}.member.{node}.{key}"), message)));
        }
    }
}

/// A node whose listeners are elsewhere than its entry says may be behind a translation of addresses; mostly it is not.
fn listens_where_it_says(at: usize, file: &NodeFile<'_>, group: &GroupOptions, found: &mut Findings) {
    let own = group.own_member();
    let place = |key: &str| format!("group.{}.member.{}.{key}", group.name, own.node);
    let elsewhere = |listen: &SocketAddr, told: &str| {
        let told_port = told.rsplit_once(':').map(|(_, port)| port.to_owned());
        let ip_differs =
            told.parse().is_ok_and(|told: SocketAddr| !listen.ip().is_unspecified() && told.ip() != listen.ip());
        listen.port() != 0 && (ip_differs || told_port != Some(listen.port().to_string()))
    };
    let raft = file.options.node.raft_listen;
    if elsewhere(&raft, &own.raft_addr) {
        let message =
            format!("group `{}`: peers are told {}, and this node listens on {raft}", group.name, own.raft_addr);
        found.notes.push((at, file.mistake(&place("raft_addr"), message)));
    }
    let (client, told) = (group.client_listen, own.client_addr.to_string());
    if elsewhere(&client, &told) {
        let message = format!("group `{}`: clients are told {told}, and this node listens on {client}", group.name);
        found.notes.push((at, file.mistake(&place("client_addr"), message)));
    }
}
