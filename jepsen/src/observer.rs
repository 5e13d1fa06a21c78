//! Watches the cluster over its management addresses, which no fault touches, and asks every name server for the route.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use client::{Admin, Client, ClientOptions};
use protocol::TopicName;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::cluster::{Cluster, Layout, group_name};
use crate::history::{Note, Observation, Route};
use crate::recorder::Recorder;

const REPLICA_INTERVAL: Duration = Duration::from_millis(200);
const ROUTE_INTERVAL: Duration = Duration::from_millis(500);

/// Starts to watch every broker and name server, until the returned set is dropped.
///
/// # Errors
/// A client of a name server cannot be made.
pub fn start(cluster: &Cluster, topic: &TopicName, recorder: &Recorder) -> Result<JoinSet<Result<()>>> {
    let mut tasks = JoinSet::new();
    for number in 1..=cluster.layout.shape.brokers {
        let name = format!("n{number}");
        let life = cluster.nodes.iter().find(|node| node.name == name).map(|node| node.life.clone());
        let life = life.with_context(|| format!("there is no {name}"))?;
        tasks.spawn(watch_broker(cluster.layout.clone(), number, life, recorder.clone()));
    }
    for (number, addr) in cluster.layout.name_servers().into_iter().enumerate() {
        let options = ClientOptions::new(&addr.to_string())?.with_instance(format!("observer-{number}"));
        let admin = Admin::new(&Client::start(options.with_call_timeout(ROUTE_INTERVAL)));
        let namesrv = format!("ns{}", number + 1);
        tasks.spawn(watch_routes(cluster.layout.clone(), namesrv, admin, topic.clone(), recorder.clone()));
    }
    Ok(tasks)
}

async fn watch_broker(layout: Layout, number: u16, life: Arc<AtomicU32>, recorder: Recorder) -> Result<()> {
    let mut ticks = tokio::time::interval(REPLICA_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let before = life.load(Ordering::SeqCst);
        // A node that is down or paused says nothing; that is no failure of ours.
        let Ok(status) = layout.status(number).await else { continue };
        // Which process answered is known only if there was just one.
        if life.load(Ordering::SeqCst) != before {
            continue;
        }
        for group in status["groups"].as_array().into_iter().flatten() {
            if let Some(seen) = observation(&format!("n{number}"), before, group) {
                recorder.note(Note::Obs(seen))?;
            }
        }
    }
}

/// What a replica says about itself, once it runs.
fn observation(node: &str, life: u32, group: &Value) -> Option<Observation> {
    let role = group["role"].as_str()?;
    let leader = match role {
        "leader" => Some(node),
        "follower" | "electing" => group["leader"]["node"].as_str().filter(|leader| *leader != node),
        _ => return None,
    };
    let mark = |name: &str| group[name].as_u64().unwrap_or_default();
    Some(Observation {
        node: node.into(),
        group: group["name"].as_str()?.into(),
        life,
        identity: mark("id"),
        term: group["term"].as_u64()?,
        leader: leader.map(Into::into),
        last: mark("last"),
        committed: mark("committed"),
        applied: mark("applied"),
        flushed: mark("flushed"),
        ..Observation::default()
    })
}

async fn watch_routes(
    layout: Layout,
    namesrv: String,
    admin: Admin,
    topic: TopicName,
    recorder: Recorder,
) -> Result<()> {
    let mut ticks = tokio::time::interval(ROUTE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Ok(route) = admin.topic_route(&topic).await else { continue };
        for broker in &route.broker_datas {
            let masters = broker.broker_addrs.iter().filter(|(id, _)| **id == 0);
            let masters = masters.map(|(_, addr)| node_at(&layout, &broker.broker_name, addr).into()).collect();
            let (namesrv, group) = (namesrv.as_str().into(), broker.broker_name.as_str().into());
            // A route names no term, so only who is named can be judged.
            recorder.note(Note::Route(Route { namesrv, group, masters, term: 0 }))?;
        }
    }
}

/// The node whose replica of `group` has this client address; the address itself if nobody's.
fn node_at(layout: &Layout, group: &str, addr: &str) -> String {
    let groups = (0..layout.shape.groups).filter(|number| group_name(*number) == group);
    for group in groups {
        for number in 1..=layout.shape.brokers {
            if layout.client_addr(number, group).to_string() == addr {
                return format!("n{number}");
            }
        }
    }
    addr.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::observation;

    #[test]
    fn a_replica_that_recovers_says_nothing_yet() {
        let leader = json!({"id": 2, "node": "n2"});
        let seen = |role: &str| {
            observation("n1", 1, &json!({"name": "broker-a", "id": 1, "role": role, "term": 4, "leader": leader}))
        };
        assert!(seen("recovering").is_none());
        assert_eq!(seen("follower").unwrap().leader.as_deref(), Some("n2"));
        assert_eq!(seen("leader").unwrap().leader.as_deref(), Some("n1"));
    }
}
