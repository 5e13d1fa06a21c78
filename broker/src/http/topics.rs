//! Topics of a broker group, and its consumer groups with their offsets. The leader of the broker group answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::change::{Change, Changed};
use super::{Admin, AdminError, Nothing};

const LIMIT_MAX: usize = 1_000;
const LIMIT_DEFAULT: usize = 100;
/// Queues of a topic, at most.
const QUEUES_MAX: u32 = 8_192;
/// Longest text of a search.
const SEARCH_BYTES_MAX: usize = 128;
/// Longer than any name.
const NAME_BYTES_MAX: usize = 255;

/// One page of a list, in the order of names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// How many fit the search, on all pages.
    pub total: usize,
    /// What `after` of the next page is; none on the last one.
    pub next: Option<String>,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopicView {
    /// Its name.
    pub topic: String,
    /// Queues that may be read.
    pub read_queues: u32,
    /// Queues that may be written.
    pub write_queues: u32,
    /// What clients may do.
    pub perm: Perm,
    /// Meant for ordered messages.
    pub order: bool,
    /// Made by the broker for itself or for a consumer group.
    pub system: bool,
    /// Attributes, such as `message.type`.
    pub attributes: BTreeMap<String, String>,
}

/// What clients may do with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Perm {
    /// Nothing.
    None,
    /// Consume.
    Read,
    /// Send.
    Write,
    /// Both.
    ReadWrite,
}

/// One topic with its queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopicDetails {
    /// Its configuration.
    pub config: TopicView,
    /// All queues.
    pub queues: Vec<QueueView>,
    /// Consumer groups that have offsets in it.
    pub consumer_groups: Vec<String>,
}

/// One queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// Its number.
    pub queue_id: u32,
    /// Offset of the first message that is still there.
    pub min_offset: u64,
    /// Offset behind the last one.
    pub max_offset: u64,
}

/// How a topic is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TopicSpec {
    /// Queues that may be read.
    #[schema(minimum = 0, maximum = 8192)]
    pub read_queues: u32,
    /// Queues that may be written.
    #[schema(minimum = 0, maximum = 8192)]
    pub write_queues: u32,
    /// What clients may do; both if nothing is said.
    #[serde(default = "read_write")]
    pub perm: Perm,
    /// Meant for ordered messages.
    #[serde(default)]
    pub order: bool,
    /// All attributes it is to have; those it has, if nothing is said.
    pub attributes: Option<BTreeMap<String, String>>,
}

fn read_write() -> Perm {
    Perm::ReadWrite
}

/// What was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    /// Its name.
    pub deleted: String,
}

/// One consumer group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsumerGroupView {
    /// Its name.
    pub group: String,
    /// Connected members.
    pub members: usize,
    /// Messages that it has not consumed, over all topics it has offsets in.
    pub lag: u64,
    /// It may consume.
    pub consume_enable: bool,
    /// Its members may consume in broadcast mode.
    pub broadcast_enable: bool,
    /// Deliveries before a message goes to the dead letters.
    pub retry_max_times: i32,
    /// Queues of its retry topic.
    pub retry_queues: u32,
}

/// One consumer group, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsumerGroupDetails {
    /// Its configuration.
    pub config: ConsumerGroupView,
    /// Every queue of the topics it has offsets in.
    pub queues: Vec<ConsumedQueue>,
}

/// How far a consumer group is in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConsumedQueue {
    /// The topic.
    pub topic: String,
    /// The queue.
    pub queue_id: u32,
    /// Offset of the next message it consumes.
    pub consumed: u64,
    /// Offset behind the last message.
    pub max_offset: u64,
    /// The difference.
    pub lag: u64,
}

/// How a consumer group is to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsumerGroupSpec {
    /// It may consume.
    #[serde(default = "yes")]
    pub consume_enable: bool,
    /// Its members may consume in broadcast mode.
    #[serde(default = "yes")]
    pub broadcast_enable: bool,
    /// Deliveries before a message goes to the dead letters; -1: it never does.
    #[serde(default = "retries")]
    #[schema(minimum = -1, maximum = 1000)]
    pub retry_max_times: i32,
    /// Queues of its retry topic.
    #[serde(default = "one")]
    #[schema(minimum = 0, maximum = 8192)]
    pub retry_queues: u32,
}

fn yes() -> bool {
    true
}

fn retries() -> i32 {
    16
}

fn one() -> u32 {
    1
}

/// Where the offsets of a consumer group are to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetOrder {
    /// The topic.
    pub topic: String,
    /// Where to.
    pub to: ResetTo,
}

/// Where offsets are to go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResetTo {
    /// The first message that is still there.
    Earliest,
    /// Behind the last message.
    Latest,
    /// The first message stored at this time or later, in milliseconds since 1970.
    TimeMs(i64),
    /// Exactly these offsets, such as a plan names them; other queues stay as they are.
    Offsets(Vec<ResetOffset>),
}

/// One queue and where it is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResetOffset {
    /// The queue.
    pub queue_id: u32,
    /// The offset.
    pub offset: u64,
}

/// What a reset does to the offsets of a consumer group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResetPlan {
    /// True as long as nothing was changed.
    pub dry_run: bool,
    /// In a dry run, what would be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<String>,
    /// The consumer group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// Connected members: they go on at the new offsets with their next pull.
    pub members: usize,
    /// Every queue that moves.
    pub queues: Vec<ResetQueue>,
    /// The body that does exactly this.
    pub apply: ResetOrder,
}

/// What a reset does to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResetQueue {
    /// The queue.
    pub queue_id: u32,
    /// Where the group is; none if it has no offset there.
    pub from: Option<u64>,
    /// Where it goes.
    pub to: u64,
    /// Messages that it gets again.
    pub again: u64,
    /// Messages that it never gets.
    pub skipped: u64,
}

/// A page of a list of names.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Only names that hold this text, whatever the case.
    #[param(max_length = 128)]
    pub search: Option<String>,
    /// Only names behind this one.
    #[param(max_length = 255)]
    pub after: Option<String>,
    /// Most items on the page; 100 if nothing is said.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// Those that the broker has made for itself too.
    #[serde(default)]
    pub system: bool,
}

impl ListQuery {
    pub(super) fn page_size(&self) -> usize {
        self.limit.unwrap_or(LIMIT_DEFAULT)
    }

    pub(super) fn check(&self) -> Result<(), AdminError> {
        let limit = self.page_size();
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(AdminError::Invalid(format!("limit is {limit}, allowed are 1 to {LIMIT_MAX}")));
        }
        if self.search.as_ref().is_some_and(|search| search.len() > SEARCH_BYTES_MAX) {
            return Err(AdminError::Invalid(format!("search is longer than {SEARCH_BYTES_MAX} bytes")));
        }
        if self.after.as_ref().is_some_and(|after| after.len() > NAME_BYTES_MAX) {
            return Err(AdminError::Invalid(format!("after is longer than {NAME_BYTES_MAX} bytes, as no name is")));
        }
        Ok(())
    }

    /// Whether a name fits the search.
    pub(crate) fn fits(&self) -> impl Fn(&str) -> bool + use<> {
        let search = self.search.as_deref().unwrap_or_default().to_lowercase();
        move |name| search.is_empty() || name.to_lowercase().contains(&search)
    }

    /// The names on the page, how many there are on all, and what the next page begins behind. `names` are in order.
    pub(crate) fn page<'a, T>(&self, names: &'a [T], name: impl Fn(&T) -> &str) -> (Vec<&'a T>, usize, Option<String>) {
        let fits = self.fits();
        let fits = |item: &&T| fits(name(item));
        let total = names.iter().filter(fits).count();
        let behind = |item: &&T| self.after.as_deref().is_none_or(|after| name(item) > after);
        let limit = self.page_size();
        let mut items: Vec<&T> = names.iter().filter(behind).filter(fits).take(limit + 1).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|last| name(last).to_owned());
        (items, total, next)
    }
}

/// Answered by the leader.
pub(super) fn leader_routes() -> OpenApiRouter<Arc<dyn Admin>> {
    OpenApiRouter::new()
        .routes(routes!(topics))
        .routes(routes!(topic, put_topic, delete_topic))
        .routes(routes!(consumer_groups))
        .routes(routes!(consumer_group, put_consumer_group, delete_consumer_group))
        .routes(routes!(reset))
}

/// Topics, a page at a time.
#[utoipa::path(get, path = "/v1/groups/{group}/topics", tag = "topics",
    params(("group" = String, Path, description = "The broker group"), ListQuery),
    responses((status = 200, body = Page<TopicView>)))]
async fn topics(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<TopicView>>, AdminError> {
    query.check()?;
    admin.topics(&group, &query).map(Json)
}

/// A topic and its queues.
#[utoipa::path(get, path = "/v1/groups/{group}/topics/{topic}", tag = "topics",
    params(("group" = String, Path, description = "The broker group"), ("topic" = String, Path, description = "The topic")),
    responses((status = 200, body = TopicDetails)))]
async fn topic(
    State(admin): State<Arc<dyn Admin>>,
    Path((group, topic)): Path<(String, String)>,
    Query(_): Query<Nothing>,
) -> Result<Json<TopicDetails>, AdminError> {
    admin.topic(group, topic).await.map(Json)
}

/// Creates a topic, or changes it.
#[utoipa::path(put, path = "/v1/groups/{group}/topics/{topic}", tag = "topics", request_body = TopicSpec,
    params(("group" = String, Path, description = "The broker group"), ("topic" = String, Path, description = "The topic"),
        Change::<Nothing>),
    responses((status = 200, body = Changed<TopicDetails>)))]
async fn put_topic(
    State(admin): State<Arc<dyn Admin>>,
    Path((group, topic)): Path<(String, String)>,
    Change { dry_run, .. }: Change,
    Json(spec): Json<TopicSpec>,
) -> Result<Json<Changed<TopicDetails>>, AdminError> {
    if spec.read_queues > QUEUES_MAX || spec.write_queues > QUEUES_MAX {
        return Err(AdminError::Invalid(format!("a topic has at most {QUEUES_MAX} queues")));
    }
    if dry_run {
        let verb = match admin.topic(group.clone(), topic.clone()).await {
            Ok(_) => "change",
            Err(AdminError::NotFound(_)) => "be created",
            Err(error) => return Err(error),
        };
        let TopicSpec { read_queues, write_queues, .. } = spec;
        return Ok(Changed::planned(format!(
            "topic {topic} of {group} would {verb}: {read_queues} queues to read, {write_queues} to write"
        )));
    }
    admin.put_topic(group, topic, spec).await.map(Changed::done)
}

/// Deletes a topic with its messages.
#[utoipa::path(delete, path = "/v1/groups/{group}/topics/{topic}", tag = "topics",
    params(("group" = String, Path, description = "The broker group"), ("topic" = String, Path, description = "The topic"),
        Change::<Nothing>),
    responses((status = 200, body = Changed<Deleted>)))]
async fn delete_topic(
    State(admin): State<Arc<dyn Admin>>,
    Path((group, topic)): Path<(String, String)>,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<Deleted>>, AdminError> {
    let found = admin.topic(group.clone(), topic.clone()).await?;
    if dry_run {
        let messages: u64 = found.queues.iter().map(|queue| queue.max_offset - queue.min_offset).sum();
        return Ok(Changed::planned(format!("topic {topic} of {group} would go, with {messages} messages")));
    }
    admin.delete_topic(group, topic.clone()).await?;
    Ok(Changed::done(Deleted { deleted: topic }))
}

/// Consumer groups and their lag, a page at a time.
#[utoipa::path(get, path = "/v1/groups/{group}/consumer-groups", tag = "consumer groups",
    params(("group" = String, Path, description = "The broker group"), ListQuery),
    responses((status = 200, body = Page<ConsumerGroupView>)))]
async fn consumer_groups(
    State(admin): State<Arc<dyn Admin>>,
    Path(group): Path<String>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<ConsumerGroupView>>, AdminError> {
    query.check()?;
    admin.consumer_groups(&group, &query).map(Json)
}

/// A consumer group, and how far it is in every queue.
#[utoipa::path(get, path = "/v1/groups/{group}/consumer-groups/{consumer}", tag = "consumer groups",
    params(("group" = String, Path, description = "The broker group"),
        ("consumer" = String, Path, description = "The consumer group")),
    responses((status = 200, body = ConsumerGroupDetails)))]
async fn consumer_group(
    State(admin): State<Arc<dyn Admin>>,
    Path((group, consumer)): Path<(String, String)>,
    Query(_): Query<Nothing>,
) -> Result<Json<ConsumerGroupDetails>, AdminError> {
    admin.consumer_group(&group, &consumer).map(Json)
}

/// Creates a consumer group, or changes it.
#[utoipa::path(put, path = "/v1/groups/{group}/consumer-groups/{consumer}", tag = "consumer groups",
    request_body = ConsumerGroupSpec,
    params(("group" = String, Path, description = "The broker group"),
        ("consumer" = String, Path, description = "The consumer group"), Change::<Nothing>),
    responses((status = 200, body = Changed<ConsumerGroupDetails>)))]
async fn put_consumer_group(
    State(admin): State<Arc<dyn Admin>>,
    Path((group, consumer)): Path<(String, String)>,
    Change { dry_run, .. }: Change,
    Json(spec): Json<ConsumerGroupSpec>,
) -> Result<Json<Changed<ConsumerGroupDetails>>, AdminError> {
    if !(-1..=1_000).contains(&spec.retry_max_times) || spec.retry_queues > QUEUES_MAX {
        let text = format!("allowed are -1 to 1000 for retry_max_times and 0 to {QUEUES_MAX} for retry_queues");
        return Err(AdminError::Invalid(text));
    }
    if dry_run {
        let verb = match admin.consumer_group(&group, &consumer) {
            Ok(_) => "change",
            Err(AdminError::NotFound(_)) => "be created",
            Err(error) => return Err(error),
        };
        return Ok(Changed::planned(format!("consumer group {consumer} of {group} would {verb}")));
    }
    admin.put_consumer_group(group, consumer, spec).await.map(Changed::done)
}

/// Deletes a consumer group and its offsets.
#[utoipa::path(delete, path = "/v1/groups/{group}/consumer-groups/{consumer}", tag = "consumer groups",
    params(("group" = String, Path, description = "The broker group"),
        ("consumer" = String, Path, description = "The consumer group"), Change::<Nothing>),
    responses((status = 200, body = Changed<Deleted>)))]
async fn delete_consumer_group(
    State(admin): State<Arc<dyn Admin>>,
    Path((group, consumer)): Path<(String, String)>,
    Change { dry_run, .. }: Change,
) -> Result<Json<Changed<Deleted>>, AdminError> {
    let found = admin.consumer_group(&group, &consumer)?;
    if found.config.members > 0 {
        return Err(AdminError::Conflict(format!(
            "consumer group {consumer} has {} connected members: stop them first",
            found.config.members
        )));
    }
    if dry_run {
        return Ok(Changed::planned(format!(
            "consumer group {consumer} of {group} would go, with its offsets in {} queues",
            found.queues.len()
        )));
    }
    admin.delete_consumer_group(group, consumer.clone()).await?;
    Ok(Changed::done(Deleted { deleted: consumer }))
}

/// Moves the offsets of a consumer group. With `dry_run=true` it is a plan, whose `apply` is the body that carries it out.
#[utoipa::path(post, path = "/v1/groups/{group}/consumer-groups/{consumer}/reset", tag = "consumer groups",
    request_body = ResetOrder,
    params(("group" = String, Path, description = "The broker group"),
        ("consumer" = String, Path, description = "The consumer group"), Change::<Nothing>),
    responses((status = 200, body = ResetPlan)))]
async fn reset(
    State(admin): State<Arc<dyn Admin>>,
    Path((group, consumer)): Path<(String, String)>,
    Change { dry_run, .. }: Change,
    Json(order): Json<ResetOrder>,
) -> Result<Json<ResetPlan>, AdminError> {
    admin.reset(group, consumer, order, dry_run).await.map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(search: &str, after: &str, limit: usize) -> ListQuery {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        ListQuery { search: text(search), after: text(after), limit: Some(limit), system: false }
    }

    #[test]
    fn pages_together_are_the_list() {
        let names: Vec<String> = (0..20_000).map(|number| format!("topic-{number:05}")).collect();
        for search in ["", "TOPIC-00", "77", "nothing"] {
            let (mut seen, mut after) = (Vec::new(), String::new());
            loop {
                let (items, total, next) = query(search, &after, 300).page(&names, |name| name);
                assert!(items.len() <= 300 && (items.len() == 300 || next.is_none()));
                seen.extend(items.into_iter().cloned());
                assert_eq!(total, names.iter().filter(|name| name.contains(&search.to_lowercase())).count());
                match next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            let all: Vec<_> = names.iter().filter(|name| name.contains(&search.to_lowercase())).cloned().collect();
            assert_eq!(seen, all);
        }
    }

    #[test]
    fn a_full_last_page_has_no_next() {
        let names = ["a", "b", "c", "d"];
        let page = |after: &str| {
            let query = query("", after, 2);
            let (items, total, next) = query.page(&names, |name| name);
            (items.into_iter().copied().collect::<String>(), total, next)
        };
        assert_eq!(page(""), ("ab".to_owned(), 4, Some("b".to_owned())));
        assert_eq!(page("b"), ("cd".to_owned(), 4, None));
        assert_eq!(page("bb"), ("cd".to_owned(), 4, None));
        assert_eq!(page("d"), (String::new(), 4, None));
    }
}
