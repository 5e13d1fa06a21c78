//! Membership as a function of heartbeats, connections and time.

use super::*;
use crate::processor::filter;

struct Bench {
    table: ClientTable<&'static str>,
    start: Instant,
}

fn group(name: &str) -> GroupName {
    GroupName::parse(name).unwrap()
}

fn subscription(topic: &str, version: i64) -> Subscription {
    Subscription {
        topic: TopicName::parse(topic).unwrap(),
        expression: "*".to_owned(),
        expression_type: "TAG".to_owned(),
        version,
        filter: filter::parse_tags("*").ok(),
    }
}

impl Bench {
    fn new() -> Self {
        let start = Instant::now();
        let limits = TableLimits { memberships_max: 4, subscriptions_max: 2, ..TableLimits::default() };
        Self { table: ClientTable::new(limits, start), start }
    }

    fn now(&self, seconds: u64) -> Now {
        Now { instant: self.start + Duration::from_secs(seconds), wall_ms: 0 }
    }

    fn link(connection: u64) -> Link<&'static str> {
        let remote = SocketAddr::from(([127, 0, 0, 1], 40_000));
        Link { connection, handle: "handle", remote, language: "JAVA".to_owned(), version: 479 }
    }

    fn consumer(&self, at: u64, id: &str, connection: u64, topics: &[(&str, i64)]) -> Result<Changed, TableFull> {
        let beat = ConsumerBeat {
            group: group("g"),
            consume_type: ConsumeType::Passively,
            message_model: MessageModel::Clustering,
            consume_from_where: ConsumeFromWhere::LastOffset,
            subscriptions: topics.iter().map(|(topic, version)| subscription(topic, *version)).collect(),
        };
        let beat = Heartbeat { client_id: id.to_owned(), producers: Vec::new(), consumers: vec![beat] };
        self.table.heartbeat(beat, &Self::link(connection), self.now(at))
    }

    fn producer(&self, at: u64, id: &str, connection: u64) -> Result<Changed, TableFull> {
        let beat = Heartbeat { client_id: id.to_owned(), producers: vec![group("p")], consumers: Vec::new() };
        self.table.heartbeat(beat, &Self::link(connection), self.now(at))
    }

    fn members(&self, at: u64) -> Members {
        self.table.members(&group("g"), self.now(at).instant)
    }
}

fn known(ids: &[&str]) -> Members {
    Members::Known(ids.iter().map(|id| (*id).to_owned()).collect())
}

#[test]
fn a_young_table_does_not_claim_to_know() {
    let bench = Bench::new();
    bench.consumer(1, "b", 1, &[("T", 1)]).unwrap();
    assert_eq!(bench.members(29), Members::Unknown);
    assert_eq!(bench.members(30), known(&["b"]));
    assert_eq!(bench.table.members(&group("other"), bench.now(30).instant), Members::Nobody);
}

#[test]
fn joining_leaving_and_topics_are_changes_and_refreshing_is_not() {
    let bench = Bench::new();
    let changed = vec![group("g")];
    assert_eq!(bench.consumer(0, "b", 1, &[("T", 1)]), Ok(changed.clone()));
    assert_eq!(bench.consumer(1, "b", 1, &[("T", 1)]), Ok(vec![]));
    assert_eq!(bench.consumer(2, "b", 1, &[("T", 2)]), Ok(vec![]), "a changed expression alone is none");
    assert_eq!(bench.consumer(3, "a", 2, &[("T", 2)]), Ok(changed.clone()));
    assert_eq!(bench.consumer(4, "a", 2, &[("T", 2), ("U", 2)]), Ok(changed.clone()));
    assert_eq!(bench.consumer(5, "a", 2, &[("T", 2)]), Ok(changed.clone()));
    assert_eq!(bench.members(40), known(&["a", "b"]));
    assert_eq!(bench.table.unregister("b", None, Some(&group("g")), bench.now(41)), changed);
    assert_eq!(bench.table.unregister("b", None, Some(&group("g")), bench.now(41)), Changed::new());
    assert_eq!(bench.members(42), known(&["a"]));
}

#[test]
fn a_closed_connection_takes_out_its_clients_but_not_those_that_came_back() {
    let bench = Bench::new();
    bench.consumer(0, "a", 1, &[("T", 1)]).unwrap();
    bench.consumer(0, "b", 2, &[("T", 1)]).unwrap();
    bench.producer(0, "b", 2).unwrap();
    bench.consumer(1, "a", 3, &[("T", 1)]).unwrap();
    assert_eq!(bench.table.closed(1, bench.now(2)), Changed::new());
    assert_eq!(bench.table.closed(2, bench.now(2)), vec![group("g")]);
    assert_eq!(bench.members(30), known(&["a"]));
    assert_eq!(bench.table.counts(), (0, 1));
    assert_eq!(bench.table.closed(3, bench.now(31)), vec![group("g")]);
    assert_eq!(bench.members(31), Members::Nobody);
    assert_eq!(bench.table.counts(), (0, 0));
}

#[test]
fn silent_clients_expire() {
    let bench = Bench::new();
    bench.consumer(0, "a", 1, &[("T", 1)]).unwrap();
    bench.consumer(100, "b", 2, &[("T", 1)]).unwrap();
    bench.producer(0, "p", 1).unwrap();
    assert_eq!(bench.table.expire(bench.now(120)), Changed::new());
    assert_eq!(bench.table.expire(bench.now(121)), vec![group("g")]);
    assert_eq!(bench.members(121), known(&["b"]));
    assert_eq!(bench.table.counts(), (0, 1));
}

#[test]
fn the_newest_subscription_wins() {
    let bench = Bench::new();
    bench.consumer(0, "a", 1, &[("T", 5)]).unwrap();
    bench.consumer(0, "b", 2, &[("T", 3)]).unwrap();
    let topic = TopicName::parse("T").unwrap();
    let SubscriptionLookup::Found(_, found) = bench.table.subscription(&group("g"), &topic) else { panic!() };
    assert_eq!(found.version, 5);
    let unread = TopicName::parse("U").unwrap();
    assert!(matches!(bench.table.subscription(&group("g"), &unread), SubscriptionLookup::NoTopic(_)));
    assert!(matches!(bench.table.subscription(&group("h"), &topic), SubscriptionLookup::NoGroup));
    assert_eq!(bench.table.readers_of(&topic), [group("g")]);
}

#[test]
fn a_full_table_refuses_new_entries_and_refreshes_old_ones() {
    let bench = Bench::new();
    for (id, connection) in [("a", 1), ("b", 2), ("c", 3)] {
        bench.consumer(0, id, connection, &[("T", 1)]).unwrap();
    }
    bench.producer(0, "p", 4).unwrap();
    assert_eq!(bench.consumer(0, "d", 5, &[("T", 1)]), Err(TableFull));
    assert_eq!(bench.producer(0, "q", 5), Err(TableFull));
    assert_eq!(bench.consumer(1, "a", 1, &[("T", 1)]), Ok(vec![]));
    assert_eq!(bench.consumer(1, "a", 1, &[("T", 1), ("U", 1), ("V", 1)]), Err(TableFull));
}

#[test]
fn a_copied_table_counts_at_once_and_follows_its_source_until_confirmed() {
    let source = Bench::new();
    source.consumer(0, "a", 1, &[("T", 1)]).unwrap();
    source.consumer(0, "b", 2, &[("T", 1)]).unwrap();
    source.producer(0, "p", 3).unwrap();
    assert_eq!(source.table.export(source.now(10).instant), None, "a partial table is not given away");

    let target = Bench::new();
    let copy = source.table.export(source.now(30).instant).unwrap();
    assert_eq!(target.table.import(copy, target.now(1)), vec![group("g")]);
    assert_eq!(target.members(1), known(&["a", "b"]));
    assert!(target.table.handles(&group("g")).unwrap().1.is_empty());
    assert!(target.table.has_copied_entries());
    assert_eq!(target.table.producer_group(&group("p")).len(), 1);

    assert_eq!(target.consumer(2, "a", 9, &[("T", 1)]), Ok(vec![]), "its own heartbeat confirms, it does not join");
    source.table.closed(1, source.now(31));
    source.table.closed(2, source.now(31));
    source.consumer(31, "c", 4, &[("T", 1)]).unwrap();
    let copy = source.table.export(source.now(32).instant).unwrap();
    assert_eq!(target.table.import(copy, target.now(3)), vec![group("g")]);
    assert_eq!(target.members(3), known(&["a", "c"]), "who spoke to this node stays, who the peer lost goes");
}

#[test]
fn copied_entries_keep_their_age() {
    let source = Bench::new();
    source.consumer(0, "a", 1, &[("T", 1)]).unwrap();
    let copy = source.table.export(source.now(100).instant).unwrap();
    let target = Bench::new();
    let start = target.start + Duration::from_secs(1_000);
    target.table.import(copy, Now { instant: start, wall_ms: 0 });
    let later = Now { instant: start + Duration::from_secs(19), wall_ms: 0 };
    assert_eq!(target.table.expire(later), Changed::new());
    let later = Now { instant: start + Duration::from_secs(21), wall_ms: 0 };
    assert_eq!(target.table.expire(later), vec![group("g")]);
}

#[test]
fn recent_changes_are_kept_for_a_leader_that_takes_over() {
    let bench = Bench::new();
    bench.consumer(5, "a", 1, &[("T", 1)]).unwrap();
    assert_eq!(bench.table.changed_since(bench.now(5).instant), [group("g")]);
    assert!(bench.table.changed_since(bench.now(6).instant).is_empty());
}
