//! What an operator orders and is told about the members of a group.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use raft_store::Member;

use super::group::{NodeGroup, Running};
use super::members::{self, CatchUp, DEAD_AFTER};
use crate::http::{
    AdminError, Changed, FORCE_WORD, JoinerOrder, MemberAnswer, MemberDetail, MemberOrder, MemberQuery, MembersStatus,
    NodeToken, OperationState, OperationStatus, ProgressStatus, Settle,
};
use crate::peer::JoinToken;
use crate::raft::{GroupMetrics, Role};
use crate::state_machine::members::{Change, JOINERS_MAX, Joiner, MemberChange, MemberStep};

/// How long one change of the membership may take.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(10);
const MEMBERS_MAX: usize = 9;
const NAME_BYTES_MAX: usize = 64;
const ADDR_BYTES_MAX: usize = 255;
const STARTED_BY_CHARS_MAX: usize = 64;

/// What is known of the members when an order is judged.
struct Present {
    members: BTreeMap<u64, Member>,
    voters: BTreeSet<u64>,
    alive: BTreeSet<u64>,
    own_id: u64,
}

/// The members, as this node knows them.
pub(super) fn status(group: &NodeGroup) -> Result<MembersStatus, AdminError> {
    let running = running(group)?;
    let metrics = running.raft.metrics();
    let role = running.raft.role().borrow().clone();
    let leader = match &role {
        Role::Leader { .. } => Some(group.options().own_member().node.clone()),
        Role::Follower { leader, .. } => leader.as_ref().map(|(_, member)| member.node.clone()),
    };
    let alive = role.is_leader().then(|| alive(&running, &metrics));
    let votes = |id: &u64| metrics.voters.iter().any(|voters| voters.contains(id));
    let last = metrics.last.unwrap_or(0);
    let members = metrics.members.iter().map(|(id, member)| {
        let matched = if *id == metrics.node_id { metrics.last } else { metrics.matched.get(id).copied().flatten() };
        let known = role.is_leader() || *id == metrics.node_id;
        MemberDetail {
            id: *id,
            node: member.node.clone(),
            raft_addr: member.raft_addr.clone(),
            client_addr: member.client_addr.clone(),
            voter: votes(id),
            heard: alive.as_ref().map(|alive| alive.contains(id)),
            matched: matched.filter(|_| known),
            lag_entries: known.then(|| matched.map_or(last, |matched| last.saturating_sub(matched))),
        }
    });
    let joint = match metrics.voters.as_slice() {
        [before, .., after] => Some((names(&metrics, before), names(&metrics, after))),
        _ => None,
    };
    Ok(MembersStatus {
        group: group.name().to_owned(),
        leader,
        members: members.collect(),
        joint,
        operation: running.state.running_change().map(|change| operation_status(group, &change)),
    })
}

fn names(metrics: &GroupMetrics, ids: &BTreeSet<u64>) -> Vec<String> {
    let name = |id: &u64| metrics.members.get(id).map_or_else(|| id.to_string(), |member| member.node.clone());
    ids.iter().map(name).collect()
}

fn running(group: &NodeGroup) -> Result<std::sync::Arc<Running>, AdminError> {
    if let Some(reason) = group.outside() {
        return Err(AdminError::Conflict(format!("group {}: {reason}", group.name())));
    }
    let starting = || AdminError::Unavailable(format!("group {} does not run here yet", group.name()));
    group.running().ok_or_else(starting)
}

/// The replica here if it leads.
fn leading(group: &NodeGroup) -> Result<std::sync::Arc<Running>, AdminError> {
    let running = running(group)?;
    let role = running.raft.role().borrow().clone();
    match role {
        Role::Leader { ready: true, .. } => Ok(running),
        Role::Follower { leader: Some((_, member)), .. } => {
            Err(AdminError::Conflict(format!("node {} leads group {}: ask it", member.node, group.name())))
        }
        Role::Leader { .. } | Role::Follower { .. } => {
            Err(AdminError::Unavailable(format!("group {} has no leader just now", group.name())))
        }
    }
}

/// Begins what is ordered, or says what would be done.
pub(super) async fn change(
    group: &NodeGroup,
    order: MemberOrder,
    query: MemberQuery,
    dry_run: bool,
) -> Result<Changed<MemberAnswer>, AdminError> {
    let MemberQuery { force, started_by } = query;
    let started_by = started_by.unwrap_or_else(|| "unknown".to_owned());
    if started_by.chars().count() > STARTED_BY_CHARS_MAX || started_by.chars().any(char::is_control) {
        let text = format!("started_by is longer than {STARTED_BY_CHARS_MAX} characters, or not plain text");
        return Err(AdminError::Invalid(text));
    }
    let force = match force.as_deref() {
        None => false,
        Some(FORCE_WORD) => true,
        Some(other) => return Err(AdminError::Invalid(format!("force is `{other}`; the word is {FORCE_WORD}"))),
    };
    check_form(&order)?;
    let running = leading(group)?;
    let metrics = running.raft.metrics();
    if let Some(change) = running.state.running_change() {
        let under_way = operation_status(group, &change);
        return Err(AdminError::Conflict(format!(
            "operation {} is under way: {}; wait for it, or POST /v1/operations/{}/cancel",
            under_way.id, under_way.what, under_way.id
        )));
    }
    let [voters] = metrics.voters.as_slice() else {
        return Err(AdminError::Conflict(format!(
            "the members of group {} are in the middle of another change: POST /v1/groups/{}/settle-members ends it",
            group.name(),
            group.name()
        )));
    };
    let present = Present {
        voters: voters.clone(),
        alive: alive(&running, &metrics),
        own_id: metrics.node_id,
        members: metrics.members,
    };
    let steps = plan(group.name(), &present, &order, force)?;
    if dry_run {
        return Ok(Changed::would_step_by_step(steps));
    }
    let (change, tokens) = to_change(order);
    let begin = MemberStep::Begin { change, started_by };
    let (_, id) = members::propose(&running, begin).await.map_err(|reason| match running.state.running_change() {
        Some(change) => AdminError::Conflict(format!("{reason}: operation {}", operation_id(group, change.id))),
        None => AdminError::Unavailable(reason),
    })?;
    let begun = running.state.change(id).ok_or_else(|| AdminError::Unavailable("it has ended already".to_owned()))?;
    let tokens = tokens
        .into_iter()
        .map(|(node, token)| NodeToken { node, line: format!("{} {}", group.name(), token.to_text()) });
    let operation = operation_status(group, &begun);
    Ok(Changed::Done(MemberAnswer { operation, steps, join_tokens: tokens.collect() }))
}

fn to_change(order: MemberOrder) -> (MemberChange, Vec<(String, JoinToken)>) {
    let mut tokens = Vec::new();
    let mut to_joiner = |order: JoinerOrder| {
        let token = JoinToken::random();
        tokens.push((order.node.clone(), token));
        let JoinerOrder { node, raft_addr, client_addr } = order;
        Joiner { node, raft_addr, client_addr, token_hash: token.hash(), admitted: None }
    };
    let change = match order {
        MemberOrder::Add(nodes) => MemberChange::Add { joiners: nodes.into_iter().map(to_joiner).collect() },
        MemberOrder::Remove(node) => MemberChange::Remove { node },
        MemberOrder::Replace(node, joiner) => MemberChange::Replace { node, joiner: to_joiner(joiner) },
    };
    (change, tokens)
}

fn alive(running: &Running, metrics: &GroupMetrics) -> BTreeSet<u64> {
    let heard = running.raft.others(DEAD_AFTER).into_iter().filter(|other| other.healthy).map(|other| other.node_id);
    heard.chain([metrics.node_id]).collect()
}

fn check_form(order: &MemberOrder) -> Result<(), AdminError> {
    let invalid = |text: String| Err(AdminError::Invalid(text));
    let (joiners, leaver) = match order {
        MemberOrder::Add(joiners) => (joiners.as_slice(), None),
        MemberOrder::Remove(node) => (&[][..], Some(node)),
        MemberOrder::Replace(node, joiner) => (std::slice::from_ref(joiner), Some(node)),
    };
    if matches!(order, MemberOrder::Add(_)) && !(1..=JOINERS_MAX).contains(&joiners.len()) {
        return invalid(format!("nodes has {} entries, allowed are 1 to {JOINERS_MAX}", joiners.len()));
    }
    for name in joiners.iter().map(|joiner| &joiner.node).chain(leaver) {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(allowed) {
            let shown: String = name.chars().take(NAME_BYTES_MAX).collect();
            return invalid(format!(
                "node is `{shown}`, allowed are 1 to {NAME_BYTES_MAX} letters, digits, `_` and `-`"
            ));
        }
    }
    for (at, joiner) in joiners.iter().enumerate() {
        let others = joiners.iter().take(at);
        if others.clone().any(|other| other.node == joiner.node) {
            return invalid(format!("node {} is named twice", joiner.node));
        }
        if others.clone().any(|other| other.raft_addr == joiner.raft_addr || other.client_addr == joiner.client_addr) {
            return invalid(format!("node {} has an address of another one", joiner.node));
        }
        let has_port = joiner.raft_addr.rsplit_once(':').is_some_and(|(host, port)| {
            let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
            !host.is_empty() && host.chars().all(is_host) && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        if !has_port || joiner.raft_addr.len() > ADDR_BYTES_MAX {
            return invalid(format!("raft_addr of node {} is not host:port", joiner.node));
        }
        let client: Option<SocketAddr> = joiner.client_addr.parse().ok();
        // Its form is compared with what the node itself says.
        let is_plain = |addr: &SocketAddr| addr.to_string() == joiner.client_addr;
        if !client.is_some_and(|addr| !addr.ip().is_unspecified() && addr.port() != 0 && is_plain(&addr)) {
            return invalid(format!(
                "client_addr of node {} is not an address and a port such as 10.0.0.4:10911",
                joiner.node
            ));
        }
    }
    Ok(())
}

/// What is done for an order, or why it must not be.
fn plan(group: &str, present: &Present, order: &MemberOrder, force: bool) -> Result<Vec<String>, AdminError> {
    let conflict = |text: String| Err(AdminError::Conflict(text));
    let ids_of = |node: &str| -> BTreeSet<u64> {
        present.members.iter().filter(|(_, member)| member.node == node).map(|(id, _)| *id).collect()
    };
    let (joiners, leaver) = match order {
        MemberOrder::Add(joiners) => (joiners.as_slice(), None),
        MemberOrder::Remove(node) => (&[][..], Some(node.as_str())),
        MemberOrder::Replace(node, joiner) => (std::slice::from_ref(joiner), Some(node.as_str())),
    };
    let leaving = leaver.map(ids_of).unwrap_or_default();
    if let Some(node) = leaver.filter(|_| leaving.is_empty()) {
        let all: Vec<&str> = present.members.values().map(|member| member.node.as_str()).collect();
        return Err(AdminError::NotFound(format!(
            "node {node} is no member of group {group}; its members are {}",
            all.join(", ")
        )));
    }
    for joiner in joiners {
        if leaver != Some(&joiner.node) && !ids_of(&joiner.node).is_empty() {
            return conflict(format!("node {} is a member of group {group} already", joiner.node));
        }
        if leaver == Some(&joiner.node) && leaving.iter().any(|id| present.alive.contains(id)) {
            return conflict(format!(
                "node {} answers: stop it before another disk takes its place under its own name",
                joiner.node
            ));
        }
        let others = present.members.iter().filter(|(id, _)| !leaving.contains(id));
        for (_, member) in others {
            if member.raft_addr == joiner.raft_addr || member.client_addr == joiner.client_addr {
                return conflict(format!("node {} has an address of member {}", joiner.node, member.node));
            }
        }
    }
    let staying: BTreeSet<u64> = present.voters.difference(&leaving).copied().collect();
    if staying.len() + joiners.len() > MEMBERS_MAX {
        return conflict(format!("group {group} would have more than {MEMBERS_MAX} voters"));
    }
    let (alive, majority) = (present.voters.intersection(&present.alive).count(), present.voters.len() / 2 + 1);
    if alive < majority {
        return Err(AdminError::Unavailable(format!(
            "only {alive} of {} voters of group {group} answer, and {majority} are needed to change anything",
            present.voters.len()
        )));
    }
    if let Some(node) = leaver {
        check_leaving(group, present, node, &leaving, &staying, joiners.len(), force)?;
    }
    Ok(steps(group, present, joiners, leaver, &leaving, &staying))
}

/// Refuses what takes from the safety of a group, unless the word was given.
fn check_leaving(
    group: &str,
    present: &Present,
    node: &str,
    leaving: &BTreeSet<u64>,
    staying: &BTreeSet<u64>,
    joining: usize,
    force: bool,
) -> Result<(), AdminError> {
    let conflict = |text: String| Err(AdminError::Conflict(text));
    let lives = leaving.iter().any(|id| present.alive.contains(id));
    if joining > 0 {
        // Those that come hold everything before the one leaves.
        return Ok(());
    }
    if staying.is_empty() {
        return conflict(format!(
            "node {node} is the only voter of group {group}: add another one first, or replace it"
        ));
    }
    let spare = |voters: &BTreeSet<u64>| {
        let alive = voters.intersection(&present.alive).count();
        i64::try_from(alive).unwrap_or(i64::MAX) - i64::try_from(voters.len() / 2 + 1).unwrap_or(i64::MAX)
    };
    let (before, after) = (spare(&present.voters), spare(staying));
    if after < 0 {
        return conflict(format!(
            "without node {node} too few of the voters of group {group} that are left answer: it would stop"
        ));
    }
    if after == 0 && (lives || after < before) && !force {
        return conflict(format!(
            "without node {node} group {group} has {} voters and stops when one more fails: replace it instead, or say \
             force={FORCE_WORD}",
            staying.len()
        ));
    }
    Ok(())
}

fn steps(
    group: &str,
    present: &Present,
    joiners: &[JoinerOrder],
    leaver: Option<&str>,
    leaving: &BTreeSet<u64>,
    staying: &BTreeSet<u64>,
) -> Vec<String> {
    let mut steps = Vec::new();
    let coming: Vec<&str> = joiners.iter().map(|joiner| joiner.node.as_str()).collect();
    let coming_text = coming.join(", ");
    if !coming.is_empty() {
        steps.push(format!("node {coming_text} comes within an hour and shows its join token"));
        steps.push(format!("node {coming_text} becomes a learner of group {group} and is sent its log"));
    }
    if leaving.contains(&present.own_id) && !staying.is_empty() {
        steps.push(format!("node {} hands its leadership over", leaver.unwrap_or_default()));
    }
    let stay = staying.iter().filter_map(|id| Some(present.members.get(id)?.node.as_str()));
    let after: Vec<&str> = stay.chain(coming.iter().copied()).collect();
    let now: Vec<&str> = present.voters.iter().filter_map(|id| Some(present.members.get(id)?.node.as_str())).collect();
    if after != now || !coming.is_empty() {
        steps.push(format!("one change of membership: from {} to {}", now.join(", "), after.join(", ")));
    }
    if let Some(node) = leaver {
        steps.push(format!("node {node} stops its replica of group {group} once it hears of it"));
    }
    steps
}

/// Ends a change that stands in the middle.
pub(super) async fn settle(group: &NodeGroup, to: Settle, dry_run: bool) -> Result<Changed<MembersStatus>, AdminError> {
    let running = leading(group)?;
    if let Some(change) = running.state.running_change() {
        let id = operation_id(group, change.id);
        return Err(AdminError::Conflict(format!(
            "operation {id} goes on by itself, or is turned back by POST /v1/operations/{id}/cancel"
        )));
    }
    let metrics = running.raft.metrics();
    let [before, .., after] = metrics.voters.as_slice() else {
        return Err(AdminError::Conflict(format!("no change of the members of group {} is stuck", group.name())));
    };
    let voters = match to {
        Settle::Finish => after.clone(),
        Settle::TurnBack => before.clone(),
    };
    if dry_run {
        let would = format!("the voters of group {} would be {}", group.name(), names(&metrics, &voters).join(", "));
        return Ok(Changed::would(would));
    }
    let change = running.raft.change_voters_if(metrics.membership_at, voters);
    match tokio::time::timeout(SETTLE_TIME_MAX, change).await {
        Ok(Ok(())) => status(group).map(Changed::Done),
        Ok(Err(error)) => Err(AdminError::Unavailable(error.to_string())),
        Err(_) => Err(AdminError::Unavailable("not finished in time, and may still be".to_owned())),
    }
}

/// Turns an operation back.
pub(super) async fn cancel(group: &NodeGroup, id: u64, dry_run: bool) -> Result<Changed<OperationStatus>, AdminError> {
    let running = leading(group)?;
    let change = find(&running, group, id)?;
    if change.ended.is_some() {
        return Err(AdminError::Conflict(format!("operation {} has ended", operation_id(group, id))));
    }
    if dry_run {
        let would = format!("operation {} would be turned back", operation_id(group, id));
        return Ok(Changed::would(would));
    }
    let step = MemberStep::TurnBack { change: id, reason: "cancelled".to_owned() };
    members::propose(&running, step).await.map_err(AdminError::Conflict)?;
    find(&running, group, id).map(|change| Changed::Done(operation_status(group, &change)))
}

/// One operation.
pub(super) fn operation(group: &NodeGroup, id: u64) -> Result<OperationStatus, AdminError> {
    find(&*running(group)?, group, id).map(|change| operation_status(group, &change))
}

fn find(running: &Running, group: &NodeGroup, id: u64) -> Result<Change, AdminError> {
    let unknown = || AdminError::NotFound(format!("there is no operation {}", operation_id(group, id)));
    running.state.change(id).ok_or_else(unknown)
}

/// All operations of a group that are remembered, oldest first.
pub(super) fn operations(group: &NodeGroup) -> Vec<OperationStatus> {
    let changes = group.running().map(|running| running.state.changes()).unwrap_or_default();
    changes.iter().map(|change| operation_status(group, change)).collect()
}

/// Splits what [`operation_id`] makes.
pub(super) fn split_id(id: &str) -> Option<(&str, u64)> {
    let (group, number) = id.rsplit_once('-')?;
    Some((group, number.parse().ok().filter(|_| number.bytes().all(|b| b.is_ascii_digit()))?))
}

fn operation_id(group: &NodeGroup, change: u64) -> String {
    format!("{}-{change}", group.name())
}

fn operation_status(group: &NodeGroup, change: &Change) -> OperationStatus {
    let joiners: Vec<&str> = change.change.joiners().iter().map(|joiner| joiner.node.as_str()).collect();
    let what = match &change.change {
        MemberChange::Add { .. } => format!("add {} to group {}", joiners.join(", "), group.name()),
        MemberChange::Remove { node } => format!("remove {node} from group {}", group.name()),
        MemberChange::Replace { node, joiner } => {
            format!("replace {node} of group {} by {}", group.name(), joiner.node)
        }
    };
    let state = match (&change.ended, &change.turned_back) {
        (None, None) => OperationState::Running,
        (None, Some(_)) => OperationState::Returning,
        (Some(ended), _) if ended.done => OperationState::Done,
        (Some(_), _) => OperationState::Undone,
    };
    let result = match state {
        OperationState::Running => None,
        OperationState::Done => Some("done".to_owned()),
        OperationState::Returning | OperationState::Undone => change.turned_back.clone(),
    };
    let is_running = change.ended.is_none();
    OperationStatus {
        id: operation_id(group, change.id),
        group: group.name().to_owned(),
        what,
        state,
        waits_for: group.change_waits().filter(|_| is_running),
        progress: group.catch_up().filter(|at| is_running && at.change == change.id).map(|at| progress(&at)),
        started_by: change.started_by.clone(),
        started_ms: change.started_ms,
        ended_ms: change.ended.as_ref().map(|ended| ended.at_ms),
        result,
    }
}

fn progress(at: &CatchUp) -> ProgressStatus {
    ProgressStatus {
        done_bytes: at.total.saturating_sub(at.left),
        total_bytes: at.total,
        bytes_per_second: at.rate(),
        left_ms: at.time_left().map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(voters: u64, dead: &[u64]) -> Present {
        let member = |id: u64| Member {
            node: format!("n{id}"),
            raft_addr: format!("n{id}:1"),
            client_addr: format!("127.0.0.1:{id}"),
        };
        Present {
            members: (1..=voters).map(|id| (id, member(id))).collect(),
            voters: (1..=voters).collect(),
            alive: (1..=voters).filter(|id| !dead.contains(id)).collect(),
            own_id: 1,
        }
    }

    fn joiner(id: u64) -> JoinerOrder {
        JoinerOrder { node: format!("n{id}"), raft_addr: format!("n{id}:1"), client_addr: format!("127.0.0.1:{id}") }
    }

    #[track_caller]
    fn check(voters: u64, dead: &[u64], order: &MemberOrder, force: bool, expected: Result<&str, &str>) {
        let planned = check_form(order).and_then(|()| plan("g", &present(voters, dead), order, force));
        match (planned, expected) {
            (Ok(steps), Ok(text)) => assert!(steps.join("; ").contains(text), "{steps:?}"),
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (planned, expected) => panic!("{planned:?} is not {expected:?}"),
        }
    }

    #[test]
    fn what_takes_from_the_safety_of_a_group_needs_the_word() {
        let remove = |id: u64| MemberOrder::Remove(format!("n{id}"));
        check(5, &[], &remove(2), false, Ok("from n1, n2, n3, n4, n5 to n1, n3, n4, n5"));
        check(4, &[], &remove(4), false, Ok("to n1, n2, n3"));
        check(3, &[], &remove(3), false, Err("stops when one more fails"));
        check(3, &[], &remove(3), true, Ok("to n1, n2"));
        check(3, &[], &remove(1), true, Ok("node n1 hands its leadership over"));
        check(2, &[], &remove(2), false, Err("force=reduced-redundancy"));
        check(1, &[], &remove(1), true, Err("the only voter"));
        // A dead one helps nobody.
        check(3, &[2], &remove(2), false, Ok("to n1, n3"));
        check(5, &[2, 3], &remove(2), false, Ok("to n1, n3, n4, n5"));
        // Those that are left must be able to go on, whatever is said.
        check(3, &[2], &remove(3), true, Err("it would stop"));
        check(3, &[2, 3], &remove(3), true, Err("only 1 of 3 voters"));
        check(3, &[], &remove(9), true, Err("its members are n1, n2, n3"));
    }

    #[test]
    fn nodes_that_come_are_new_and_have_addresses_of_their_own() {
        let add = |nodes: Vec<JoinerOrder>| MemberOrder::Add(nodes);
        check(1, &[], &add(vec![joiner(4), joiner(5)]), false, Ok("from n1 to n1, n4, n5"));
        check(3, &[3], &add(vec![joiner(4)]), false, Ok("to n1, n2, n3, n4"));
        check(3, &[], &MemberOrder::Replace("n3".to_owned(), joiner(4)), false, Ok("to n1, n2, n4"));
        check(3, &[3], &MemberOrder::Replace("n3".to_owned(), joiner(3)), false, Ok("to n1, n2, n3"));
        check(3, &[], &MemberOrder::Replace("n3".to_owned(), joiner(3)), false, Err("node n3 answers: stop it"));
        check(3, &[], &MemberOrder::Replace("n3".to_owned(), joiner(2)), false, Err("is a member of group g already"));
        check(3, &[], &add(vec![joiner(2)]), false, Err("is a member of group g already"));
        check(
            3,
            &[],
            &add(vec![JoinerOrder { raft_addr: "n2:1".to_owned(), ..joiner(4) }]),
            false,
            Err("of member n2"),
        );
        check(3, &[], &add(vec![joiner(4), joiner(4)]), false, Err("named twice"));
        check(3, &[], &add(vec![]), false, Err("nodes has 0 entries"));
        check(3, &[], &add((4..13).map(joiner).collect()), false, Err("nodes has 9 entries"));
        check(5, &[], &add((6..12).map(joiner).collect()), false, Err("more than 9 voters"));
        for (wrong, why) in [
            (JoinerOrder { node: "n 4".to_owned(), ..joiner(4) }, "node is `n 4`"),
            (JoinerOrder { node: "x".repeat(65), ..joiner(4) }, "allowed are 1 to 64"),
            (JoinerOrder { raft_addr: "n4".to_owned(), ..joiner(4) }, "is not host:port"),
            (JoinerOrder { raft_addr: "n4:0".to_owned(), ..joiner(4) }, "is not host:port"),
            (JoinerOrder { client_addr: "n4:1".to_owned(), ..joiner(4) }, "is not an address and a port"),
            (JoinerOrder { client_addr: "0.0.0.0:1".to_owned(), ..joiner(4) }, "is not an address and a port"),
        ] {
            check(3, &[], &add(vec![wrong]), false, Err(why));
        }
    }

    #[test]
    fn an_operation_is_named_by_its_group_and_entry() {
        assert_eq!(split_id("broker-a-812"), Some(("broker-a", 812)));
        for wrong in ["", "812", "broker-a-", "broker-a-+1", "broker-a-x"] {
            assert_eq!(split_id(wrong), None, "{wrong}");
        }
    }
}
