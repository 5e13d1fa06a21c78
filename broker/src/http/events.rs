//! What happened in the last hour.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::relay::Relay;
use super::{Admin, AdminError};

/// What several nodes saw within this time of each other is told once.
const SAME_MS: i64 = 10_000;
const LIMIT_MAX: usize = 1_000;
const LIMIT_DEFAULT: usize = 200;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A node's process started.
    Started,
    /// A group has a leader that answers.
    Elected,
    /// A group has no leader any more.
    LeaderLost,
    /// A node cannot be reached.
    NodeLost,
    /// A node can be reached again.
    NodeBack,
    /// A member came to a group or left it, or votes now.
    MemberChanged,
    /// A replica works no more.
    ReplicaFailed,
    /// A part of a log is damaged.
    Damaged,
    /// A damaged log is whole again.
    Repaired,
    /// A replica gave up its identity.
    IdentityLost,
    /// It votes under another.
    IdentityBack,
    /// A disk became fuller, or less full.
    Disk,
    /// A node is drained, or no more.
    Drained,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// When, in milliseconds since 1970, by the clock of the node that saw it.
    pub at_ms: i64,
    /// The node that saw it.
    pub seen_by: String,
    /// What kind of thing.
    pub kind: EventKind,
    /// The group it concerns, if it concerns one.
    pub group: Option<String>,
    /// The node it concerns.
    pub node: Option<String>,
    /// The term of an election.
    pub term: Option<u64>,
    /// For how long the group had no leader that answers, as the new leader saw it.
    pub gap_ms: Option<u64>,
    /// One sentence.
    pub text: String,
}

/// Events, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Events {
    /// What was seen.
    pub events: Vec<Event>,
    /// Nodes that could not be asked, and why.
    pub missing: Vec<String>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    /// Only what happened at this time or later, in milliseconds since 1970.
    since_ms: Option<i64>,
    /// The newest so many; 200 if nothing is said.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

impl EventsQuery {
    fn limit(&self) -> Result<usize, AdminError> {
        let limit = self.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(AdminError::Invalid(format!("limit is {limit}, allowed are 1 to {LIMIT_MAX}")));
        }
        Ok(limit)
    }

    /// Drops what was not asked for.
    fn cut(&self, events: &mut Vec<Event>) -> Result<(), AdminError> {
        let limit = self.limit()?;
        events.retain(|event| event.at_ms >= self.since_ms.unwrap_or(i64::MIN));
        events.drain(..events.len().saturating_sub(limit));
        Ok(())
    }
}

pub(super) fn routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Answered by the node in the path.
pub(super) fn named_node_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(node_events))
}

/// What one node saw in the last hour.
#[utoipa::path(get, path = "/v1/nodes/{node}/events", tag = "nodes",
    params(("node" = String, Path, description = "The node"), EventsQuery),
    responses((status = 200, body = Events)))]
async fn node_events(
    State(admin): State<Arc<dyn Admin>>,
    Path(_): Path<String>,
    Query(query): Query<EventsQuery>,
) -> Result<Json<Events>, AdminError> {
    let mut events = admin.events();
    query.cut(&mut events)?;
    Ok(Json(Events { events, missing: Vec::new() }))
}

/// What happened in the cluster in the last hour: elections with their gaps, nodes that went and came, faults.
#[utoipa::path(get, path = "/v1/events", tag = "cluster", params(EventsQuery),
    responses((status = 200, body = Events)))]
async fn events(
    State(admin): State<Arc<dyn Admin>>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Json<Events>, AdminError> {
    query.limit()?;
    let target = |node: &str| format!("/v1/nodes/{node}/events?limit={LIMIT_MAX}");
    let mut all = admin.events();
    let mut missing = Vec::new();
    for (node, answer) in Relay::new(&*admin, &headers).get_of_others::<Events>(target).await {
        match answer {
            Ok(theirs) => all.extend(theirs.events),
            Err(error) => missing.push(format!("{node}: {error}")),
        }
    }
    let mut events = told_once(all);
    query.cut(&mut events)?;
    Ok(Json(Events { events, missing }))
}

/// In order of time, and what several nodes saw only as the one saw it that knows best.
fn told_once(mut all: Vec<Event>) -> Vec<Event> {
    all.sort_by_key(|event| event.at_ms);
    let mut kept: Vec<Event> = Vec::new();
    for event in all {
        let same = kept.iter_mut().rev().take_while(|before| event.at_ms - before.at_ms < SAME_MS).find(|before| {
            before.seen_by != event.seen_by
                && (before.kind, &before.group, &before.node, before.term)
                    == (event.kind, &event.group, &event.node, event.term)
        });
        match same {
            // The new leader knows how long there was none.
            Some(before) if event.node.as_ref() == Some(&event.seen_by) => *before = event,
            Some(_) => {}
            None => kept.push(event),
        }
    }
    kept.sort_by_key(|event| event.at_ms);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elected(at_ms: i64, seen_by: &str, leader: &str, term: u64) -> Event {
        Event {
            at_ms,
            seen_by: seen_by.to_owned(),
            kind: EventKind::Elected,
            group: Some("a".to_owned()),
            node: Some(leader.to_owned()),
            term: Some(term),
            gap_ms: None,
            text: String::new(),
        }
    }

    #[test]
    fn what_several_saw_is_told_once_by_the_one_that_knows_best() {
        let all = vec![
            elected(5, "n1", "n2", 3),
            elected(4, "n3", "n2", 3),
            elected(6, "n2", "n2", 3),
            elected(9_000, "n1", "n3", 4),
            elected(20_000, "n3", "n2", 5),
            elected(40_000, "n1", "n2", 5),
        ];
        let found: Vec<_> = told_once(all).into_iter().map(|event| (event.at_ms, event.seen_by)).collect();
        let expected = [(6, "n2"), (9_000, "n1"), (20_000, "n3"), (40_000, "n1")];
        assert_eq!(found, expected.map(|(at, node)| (at, node.to_owned())));
    }

    #[test]
    fn the_newest_are_kept() {
        let all: Vec<Event> = (0..9).map(|at| elected(at, "n1", "n1", 1)).collect();
        let cut = |since_ms, limit| {
            let mut events = all.clone();
            let result = EventsQuery { since_ms, limit }.cut(&mut events);
            result.map(|()| events.iter().map(|event| event.at_ms).collect::<Vec<_>>())
        };
        assert_eq!(cut(Some(6), None), Ok(vec![6, 7, 8]));
        assert_eq!(cut(None, Some(2)), Ok(vec![7, 8]));
        assert!(cut(None, Some(0)).is_err() && cut(None, Some(1_001)).is_err());
    }
}
