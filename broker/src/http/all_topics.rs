//! The topics of all broker groups in one list. Each group's leader says what it has; who is asked puts it together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Json;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::cluster;
use super::relay::Relay;
use super::topics::{ListQuery, Page, Perm, TopicView};
use super::{Admin, AdminError};

/// A leader answers within this time, or its group is missing.
const LEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// A page of the topics of all broker groups, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterTopics {
    /// What is on it.
    pub items: Vec<ClusterTopic>,
    /// How many fit the search, on all pages.
    pub total: usize,
    /// What `after` of the next page is; none on the last one.
    pub next: Option<String>,
    /// Broker groups whose topics are not among them, and why.
    pub missing: Vec<String>,
}

/// One topic, wherever it lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterTopic {
    /// Its name.
    pub topic: String,
    /// Queues that may be read, in all groups together.
    pub read_queues: u32,
    /// Queues that may be written, in all groups together.
    pub write_queues: u32,
    /// Made by the broker for itself or for a consumer group.
    pub system: bool,
    /// Where it lies.
    pub groups: Vec<TopicPlace>,
}

/// A topic in one broker group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopicPlace {
    /// The broker group.
    pub group: String,
    /// Queues that may be read.
    pub read_queues: u32,
    /// Queues that may be written.
    pub write_queues: u32,
    /// What clients may do.
    pub perm: Perm,
    /// Meant for ordered messages.
    pub order: bool,
}

/// Names of topics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopicNames {
    /// All of them, in order.
    pub names: Vec<String>,
}

/// What a leader says: a page from where the wanted one begins, and the names that fit the search.
type Answer = Result<(Page<TopicView>, TopicNames), String>;

/// Answered where they come in.
pub(super) fn routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(all_topics))
}

/// Answered by the leader.
pub(super) fn leader_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new().routes(routes!(topic_names))
}

/// Topics of all broker groups, a page at a time.
#[utoipa::path(get, path = "/v1/topics", tag = "topics", params(ListQuery),
    responses((status = 200, body = ClusterTopics)))]
async fn all_topics(
    State(admin): State<Arc<dyn Admin>>,
    headers: HeaderMap,
    RawQuery(raw): RawQuery,
    Query(query): Query<ListQuery>,
) -> Result<Json<ClusterTopics>, AdminError> {
    query.check()?;
    let raw = raw.unwrap_or_default();
    let relay = Relay::new(&*admin, &headers);
    let groups = cluster::look(relay).await.groups;
    let (raw, asked_for) = (raw.as_str(), &query);
    let asked = groups.into_iter().map(|group| async move {
        let answer = match &group.leader {
            Some(leader) => ask(relay, &group.name, leader, asked_for, raw).await,
            None => Err("it has no leader that answers".to_owned()),
        };
        (group.name, answer)
    });
    Ok(Json(merge(join_all(asked).await, query.page_size())))
}

/// The names of all topics that fit a search.
#[utoipa::path(get, path = "/v1/groups/{group}/topic-names", tag = "topics",
    params(("group" = String, Path, description = "The broker group"), ListQuery),
    responses((status = 200, body = TopicNames)))]
async fn topic_names(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<TopicNames>, AdminError> {
    query.check()?;
    admin.topic_names(&group, &query).map(|names| Json(TopicNames { names }))
}

async fn ask(relay: Relay<'_>, group: &str, leader: &str, query: &ListQuery, raw: &str) -> Answer {
    let admin = relay.admin;
    if leader == admin.node() {
        let page = admin.topics(group, query).map_err(|error| error.to_string())?;
        let names = admin.topic_names(group, query).map_err(|error| error.to_string())?;
        return Ok((page, TopicNames { names }));
    }
    let (page, names) = futures::join!(
        relay.get(leader, format!("/v1/groups/{group}/topics?{raw}"), LEADER_TIME_MAX),
        relay.get(leader, format!("/v1/groups/{group}/topic-names?{raw}"), LEADER_TIME_MAX)
    );
    Ok((page?, names?))
}

/// Puts together what the leaders say. What is on the first page of all together is on the first page of its group.
fn merge(answers: Vec<(String, Answer)>, limit: usize) -> ClusterTopics {
    let mut topics: BTreeMap<String, ClusterTopic> = BTreeMap::new();
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut missing = Vec::new();
    let mut more = false;
    for (group, answer) in answers {
        let (page, all) = match answer {
            Ok(answer) => answer,
            Err(why) => {
                missing.push(format!("{group}: {why}"));
                continue;
            }
        };
        names.extend(all.names);
        more |= page.next.is_some();
        for view in page.items {
            let topic = topics.entry(view.topic.clone()).or_insert_with(|| ClusterTopic {
                topic: view.topic,
                read_queues: 0,
                write_queues: 0,
                system: view.system,
                groups: Vec::new(),
            });
            topic.read_queues += view.read_queues;
            topic.write_queues += view.write_queues;
            topic.groups.push(TopicPlace {
                group: group.clone(),
                read_queues: view.read_queues,
                write_queues: view.write_queues,
                perm: view.perm,
                order: view.order,
            });
        }
    }
    more |= topics.len() > limit;
    let items: Vec<ClusterTopic> = topics.into_values().take(limit).collect();
    let next = items.last().filter(|_| more).map(|last| last.topic.clone());
    ClusterTopics { items, total: names.len(), next, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(topic: &str, queues: u32) -> TopicView {
        TopicView {
            topic: topic.to_owned(),
            read_queues: queues,
            write_queues: queues,
            perm: Perm::ReadWrite,
            order: false,
            system: false,
            attributes: BTreeMap::new(),
        }
    }

    /// What the leader of a group with `topics`, which are in order, answers.
    fn answer(topics: &[TopicView], query: &ListQuery) -> Answer {
        let (items, total, next) = query.page(topics, |view| &view.topic);
        let page = Page { items: items.into_iter().cloned().collect(), total, next };
        let fits = |view: &&TopicView| query.search.as_ref().is_none_or(|search| view.topic.contains(search.as_str()));
        Ok((page, TopicNames { names: topics.iter().filter(fits).map(|view| view.topic.clone()).collect() }))
    }

    #[test]
    fn pages_together_are_the_topics_of_all_groups_each_once() {
        // 20,000 topics: each lies in one, two or three of the groups, or in none.
        let lies_in = |number: u32, group: u32| number.is_multiple_of(group + 2);
        let group = |group: u32| -> Vec<TopicView> {
            let numbers = (0..20_000).filter(|number| lies_in(*number, group));
            numbers.map(|number| view(&format!("topic-{number:05}"), group + 1)).collect()
        };
        let groups = [group(0), group(1), group(2)];
        for search in [None, Some("77"), Some("nothing")] {
            let mut query =
                ListQuery { search: search.map(str::to_owned), after: None, limit: Some(700), system: false };
            let expected: Vec<String> = (0..20_000)
                .filter(|number| (0..3).any(|group| lies_in(*number, group)))
                .map(|number| format!("topic-{number:05}"))
                .filter(|name| search.is_none_or(|search| name.contains(search)))
                .collect();
            let mut seen = Vec::new();
            loop {
                let answers = ('a'..).zip(&groups).map(|(name, topics)| (name.to_string(), answer(topics, &query)));
                let page = merge(answers.collect(), 700);
                assert_eq!(page.total, expected.len());
                assert!(page.items.len() == 700 || page.next.is_none());
                for topic in &page.items {
                    let number: u32 = topic.topic[6..].parse().unwrap();
                    let places: Vec<u32> = (0..3).filter(|group| lies_in(number, *group)).collect();
                    assert_eq!(topic.groups.len(), places.len(), "{topic:?}");
                    assert_eq!(topic.read_queues, places.iter().map(|group| group + 1).sum::<u32>());
                }
                seen.extend(page.items.into_iter().map(|topic| topic.topic));
                match page.next {
                    Some(next) => query.after = Some(next),
                    None => break,
                }
            }
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_group_that_does_not_answer_is_named() {
        let query = ListQuery { search: None, after: None, limit: None, system: false };
        let answers = vec![
            ("a".to_owned(), answer(&[view("x", 4)], &query)),
            ("b".to_owned(), Err("it has no leader that answers".to_owned())),
        ];
        let page = merge(answers, 100);
        assert_eq!((page.items.len(), page.total, page.next), (1, 1, None));
        assert_eq!(page.missing, ["b: it has no leader that answers"]);
    }
}
