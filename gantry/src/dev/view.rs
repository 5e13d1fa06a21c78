//! What a development cluster looks like right now: processes by the parent's knowledge, leaders by the nodes' answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use broker::http::{NodeStatus, ReplicaRole};
use serde::{Deserialize, Serialize};

use crate::http_get::get_json;
use crate::output;

/// A node that does not answer in this time is shown as silent.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(400);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct View {
    pub(super) data_dir: String,
    /// The line to paste into a client.
    pub(super) namesrv: String,
    pub(super) processes: Vec<ProcessView>,
    pub(super) groups: Vec<GroupView>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProcessView {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) state: State,
    pub(super) pid: Option<u32>,
    /// Where clients connect: one port, or for a broker one by group.
    pub(super) client_ports: Vec<u16>,
    pub(super) http: Option<SocketAddr>,
    pub(super) leads: Vec<String>,
    pub(super) log: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Namesrv,
    Broker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Ready,
    Running,
    Silent,
    Paused,
    Stopped,
    Dead,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct GroupView {
    pub(super) name: String,
    pub(super) leader: Option<String>,
    pub(super) leader_addr: Option<String>,
    pub(super) term: u64,
    /// Replicas that follow the leader.
    pub(super) followers: usize,
}

impl View {
    /// Every group has a leader that answers.
    pub(super) fn all_led(&self) -> bool {
        self.groups.iter().all(|group| group.leader.is_some())
    }

    pub(super) fn to_text(&self) -> String {
        let processes = self.processes.iter().map(|process| {
            let ports = process.client_ports.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
            [
                process.name.clone(),
                word(&process.kind),
                word(&process.state),
                process.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
                ports,
                process.http.map_or_else(|| "-".to_owned(), |addr| addr.port().to_string()),
                if process.leads.is_empty() { "-".to_owned() } else { process.leads.join(" ") },
            ]
        });
        let groups = self.groups.iter().map(|group| {
            [
                group.name.clone(),
                group.leader.clone().unwrap_or_else(|| "(electing)".to_owned()),
                group.leader_addr.clone().unwrap_or_else(|| "-".to_owned()),
                group.term.to_string(),
                group.followers.to_string(),
            ]
        });
        format!(
            "{}\n\n{}",
            output::table(&["name", "process", "state", "pid", "client ports", "http", "leads"], processes),
            output::table(&["group", "leader", "address", "term", "followers"], groups)
        )
    }
}

/// The name that serde gives a plain enum value.
fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "?".to_owned(),
    }
}

/// Asks every address at once; a node that does not answer is absent.
pub(super) async fn ask_nodes(nodes: Vec<(String, SocketAddr)>) -> BTreeMap<String, NodeStatus> {
    let mut asked = tokio::task::JoinSet::new();
    for (name, addr) in nodes {
        asked.spawn(async move { (name, get_json::<NodeStatus>(addr, "/v1/status", ANSWER_TIME_MAX).await) });
    }
    let mut answers = BTreeMap::new();
    while let Some(answer) = asked.join_next().await {
        if let Ok((name, Ok(status))) = answer {
            answers.insert(name, status);
        }
    }
    answers
}

/// Who leads each group, by the answer with the highest term; a leader that is not ready to answer does not count.
pub(super) fn group_views(names: &[String], statuses: &BTreeMap<String, NodeStatus>) -> Vec<GroupView> {
    names
        .iter()
        .map(|name| {
            let mut view = GroupView { name: name.clone(), leader: None, leader_addr: None, term: 0, followers: 0 };
            let replicas: Vec<_> = statuses
                .iter()
                .flat_map(|(node, status)| status.groups.iter().map(move |group| (node, group)))
                .filter(|(_, group)| group.name == *name)
                .collect();
            for (node, group) in &replicas {
                if group.role == ReplicaRole::Leader && group.gates_open && group.term >= view.term {
                    view.leader = Some((*node).clone());
                    view.leader_addr = Some(group.client_addr.to_string());
                }
                view.term = view.term.max(group.term);
            }
            view.followers = replicas
                .iter()
                .filter(|(_, group)| {
                    group.role == ReplicaRole::Follower
                        && group.term == view.term
                        && group.leader.as_ref().map(|leader| &leader.node) == view.leader.as_ref()
                })
                .count();
            view
        })
        .collect()
}
