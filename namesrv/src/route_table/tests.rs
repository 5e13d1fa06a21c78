//! Scripts of registrations against what a client would see.
//!
//! `1@a t5 l1 v3 T:4 U:8` member 1 at address a knows that member 1 leads in term 5 and has table 3 with topics T, U.
//! `+v2` in front of the version makes it an increment on table 2, and `-T` behind it says that T is gone; `l-` is no
//! leader; no version is no table.
//! `@9` in front of the version is its time. `p0@a v3 T:4` is a plain broker with id 0, `s7` its state version. `#9` names the connection.

use std::fmt::Write;

use expect_test::Expect;
use expect_test::expect;

use super::*;

struct World {
    table: RouteTable,
    now: Instant,
    out: String,
}

impl World {
    fn show(&mut self) {
        let brokers = self.table.brokers(self.now);
        if brokers.is_empty() {
            self.out.push_str("nothing");
        }
        for broker in brokers {
            let addresses: Vec<_> = broker.addresses.iter().map(|(id, address)| format!("{id}={address}")).collect();
            write!(self.out, "{} {}", broker.broker_name, addresses.join(" ")).unwrap();
            for topic in self.table.topics(None, self.now, |_| true) {
                if let Some(route) = self.table.route(&topic, self.now) {
                    let queues: Vec<_> = route
                        .queues
                        .iter()
                        .map(|(_, topic)| format!("{}/{}", topic.write_queue_nums, topic.perm))
                        .collect();
                    write!(self.out, " {topic}:{}", queues.join("+")).unwrap();
                }
            }
        }
        self.out.push('\n');
    }

    fn register(&mut self, words: &[&str]) {
        let (who, address) = words[0].split_once('@').unwrap();
        let mut rank = match who.strip_prefix('p') {
            Some(id) => Rank::Plain { id: id.parse().unwrap(), acting_master: false },
            None => Rank::Member { number: who.parse().unwrap(), term: 0, leader: None },
        };
        let mut table: Option<Table> = None;
        let mut base = None;
        let (mut state_version, mut timestamp) = (0, 0);
        let mut connection = None;
        for word in &words[1..] {
            let (first, rest) = word.split_at(1);
            match (first, &mut rank) {
                ("t", Rank::Member { term, .. }) => *term = rest.parse().unwrap(),
                ("l", Rank::Member { leader, .. }) => *leader = rest.parse().ok(),
                ("#", _) => connection = Some(rest.parse().unwrap()),
                ("@", _) => timestamp = rest.parse().unwrap(),
                ("s", _) => state_version = rest.parse().unwrap(),
                ("+", _) => base = Some(rest[1..].parse().unwrap()),
                ("v", _) => {
                    let version = Version { counter: rest.parse().unwrap(), state_version, timestamp };
                    table = Some(Table { version, topics: Vec::new(), gone: Vec::new(), base });
                }
                ("-", _) => table.as_mut().unwrap().gone.push(rest.to_owned()),
                _ => {
                    let (name, queues) = word.split_once(':').unwrap();
                    let queues = queues.parse().unwrap();
                    let topic = Topic { read_queue_nums: queues, write_queue_nums: queues, perm: 6, topic_sys_flag: 0 };
                    table.as_mut().unwrap().topics.push((name.to_owned(), topic));
                }
            }
        }
        let registration = Registration {
            cluster: "c".into(),
            broker_name: "b".into(),
            address: address.into(),
            ha_address: None,
            rank,
            table,
            silent_max: Duration::from_secs(120),
            connection,
        };
        match self.table.register(registration, self.now) {
            Registered::Accepted { whole_table_wanted: false, .. } => {}
            Registered::Accepted { .. } => self.out.push_str("whole table wanted\n"),
            Registered::Refused(why) => writeln!(self.out, "refused: {why}").unwrap(),
        }
    }
}

fn check(script: &str, expected: Expect) {
    let mut world = World { table: RouteTable::default(), now: Instant::now(), out: String::new() };
    for step in script.split(';').map(str::trim) {
        let words: Vec<_> = step.split_whitespace().collect();
        match words[..] {
            ["show"] => world.show(),
            ["wait", seconds] => world.now += Duration::from_secs(seconds.parse().unwrap()),
            ["scan"] => world.table.scan(world.now),
            ["lost", link] => world.table.connection_closed(link.parse().unwrap(), world.now),
            ["leave", address] => world.table.unregister("b", address, world.now),
            ["seen", address] => world.table.seen("b", address, world.now),
            ["wipe"] => drop(world.table.wipe_write_perm("b")),
            ["add"] => drop(world.table.add_write_perm("b")),
            ["delete", topic] => world.table.delete_topic(topic, None),
            _ => world.register(&words),
        }
    }
    expected.assert_eq(&world.out);
}

#[test]
fn leader_is_id_0_and_the_others_keep_their_numbers() {
    check(
        "1@a t5 l2; 2@b t5 l2 v1 T:4; 3@c t5 l2; show; 3@c t6 l3 v1 T:4; show",
        expect![[r#"
            b 0=b 1=a 3=c T:4/6
            b 0=c 1=a 2=b T:4/6
        "#]],
    );
}

#[test]
fn highest_term_wins_whoever_tells_it_and_in_whatever_order() {
    // A follower tells the new term before the new leader registers; the old leader is late with the old term.
    check(
        "1@a t5 l1 v1 T:4; 2@b t5 l1; 3@c t5 l1; show; 2@b t6 l3; show; 1@a t5 l1 v1 T:4; show",
        expect![[r#"
            b 0=a 2=b 3=c T:4/6
            b 0=c 1=a 2=b T:4/6
            b 0=c 1=a 2=b T:4/6
        "#]],
    );
}

#[test]
fn member_that_knows_no_leader_changes_nothing_but_its_own_entry() {
    check(
        "1@a t5 l1 v1 T:4; 2@b t9 l-; show; 2@d t9 l-; show",
        expect![[r#"
            b 0=a 2=b T:4/6
            b 0=a 2=d T:4/6
        "#]],
    );
}

#[test]
fn second_leader_of_one_term_is_not_believed() {
    check(
        "1@a t5 l1; 2@b t5 l2; show",
        expect![[r#"
            b 0=a 2=b
        "#]],
    );
}

#[test]
fn another_live_member_stands_in_when_the_leaders_connection_drops() {
    check(
        "1@a t5 l1 #1 v1 T:4; 2@b t5 l1 #2; 3@c t5 l1 #3; lost 1; show; 3@c t6 l3 #3; show; 1@a t6 l3 #4; show",
        expect![[r#"
            b 0=b 3=c T:4/6
            b 0=c 2=b T:4/6
            b 0=c 1=a 2=b T:4/6
        "#]],
    );
}

#[test]
fn stand_in_stays_while_it_lives() {
    check(
        "2@b t5 l1 #2 v1 T:4; show; 3@c t5 l1 #3; show; lost 2; show; 2@b t5 l1 #4; show; 1@a t5 l1 #1; show",
        expect![[r#"
            b 0=b T:4/6
            b 0=b 3=c T:4/6
            b 0=c T:4/6
            b 0=c 2=b T:4/6
            b 0=a 2=b 3=c T:4/6
        "#]],
    );
}

#[test]
fn old_connection_takes_nothing_along_when_a_newer_one_registered() {
    check(
        "1@a t5 l1 #1; 1@a t5 l1 #2; lost 1; show",
        expect![[r#"
            b 0=a
        "#]],
    );
}

#[test]
fn last_address_stays_for_30_s_when_nobody_is_seen_any_more() {
    check(
        "1@a t5 l1 #1 v1 T:4; 2@b t5 l1 #2; lost 2; lost 1; show; wait 30; scan; show; wait 1; show; scan; show",
        expect![[r#"
            b 0=a T:4/6
            b 0=a T:4/6
            nothing
            nothing
        "#]],
    );
}

#[test]
fn group_that_comes_back_in_time_keeps_its_topics() {
    check(
        "1@a t5 l1 #1 v1 T:4; lost 1; wait 20; 2@b t5 l1 #2; show; wait 60; scan; show",
        expect![[r#"
            b 0=b T:4/6
            b 0=b T:4/6
        "#]],
    );
}

#[test]
fn group_that_comes_back_too_late_must_bring_its_topics() {
    check(
        "1@a t5 l1 #1 v1 T:4; lost 1; wait 31; 1@a t5 l1 #2; show; 1@a t5 l1 #2 +v1 v2 U:8; 1@a t5 l1 #2 v2 T:4 U:8; show",
        expect![[r#"
            b 0=a
            whole table wanted
            b 0=a T:4/6 U:8/6
        "#]],
    );
}

#[test]
fn silent_member_is_gone_after_120_s_and_a_heartbeat_keeps_it() {
    check(
        "1@a t5 l1; 2@b t5 l1; wait 100; seen a; wait 21; scan; show; wait 120; scan; show",
        expect![[r#"
            b 0=a
            b 0=a
        "#]],
    );
}

#[test]
fn leaving_member_is_gone_at_once() {
    check(
        "1@a t5 l1; 2@b t5 l1; leave a; show",
        expect![[r#"
            b 0=b
        "#]],
    );
}

#[test]
fn replaced_member_does_not_show_its_address_twice() {
    check(
        "1@a t5 l1; 2@b t5 l1; 4@b t5 l1; show",
        expect![[r#"
            b 0=a 4=b
        "#]],
    );
}

#[test]
fn topics_come_from_the_leader_and_only_move_forward() {
    check(
        "1@a t5 l1 v3 T:4 U:4; 2@b t5 l1 v9 X:1; show; 1@a t5 l1 v2 T:4; show; 1@a t5 l1 v4 T:8; show; 2@b t6 l2 v4 T:8; show",
        expect![[r#"
            b 0=a 2=b T:4/6 U:4/6
            b 0=a 2=b T:4/6 U:4/6
            b 0=a 2=b T:8/6
            b 0=b 1=a T:8/6
        "#]],
    );
}

#[test]
fn deposed_leader_cannot_bring_topics_back() {
    check(
        "1@a t5 l1 v3 T:4; 2@b t6 l2 v4; 1@a t5 l1 v9 T:4 U:4; show",
        expect![[r#"
            b 0=b 1=a
        "#]],
    );
}

#[test]
fn follower_lends_its_topics_until_a_leader_speaks() {
    check(
        "2@b t5 l1 v2 T:4; show; 1@a t5 l1 v1 U:4; show",
        expect![[r#"
            b 0=b T:4/6
            b 0=a 2=b U:4/6
        "#]],
    );
}

#[test]
fn increment_is_taken_only_on_the_table_it_was_made_for() {
    check(
        "1@a t5 l1 +v0 v1 T:4; 1@a t5 l1 v1 T:4; 1@a t5 l1 +v1 v2 U:8; show; 1@a t5 l1 +v3 v4 X:1; 1@a t5 l1 +v1 v2 U:8; show",
        expect![[r#"
            whole table wanted
            b 0=a T:4/6 U:8/6
            whole table wanted
            b 0=a T:4/6 U:8/6
        "#]],
    );
}

#[test]
fn increment_takes_topics_away() {
    check(
        "1@a t5 l1 v1 T:4 U:4; 1@a t5 l1 +v1 v3 -T -X V:2; show",
        expect![[r#"
            b 0=a U:4/6 V:2/6
        "#]],
    );
}

#[test]
fn table_that_did_not_change_is_not_sent_again_and_one_that_is_not_known_is_wanted() {
    // A sign of life; a new leader with the same table; one whose table is not known; one that lost a change.
    check(
        "1@a t5 l1 v3 T:4; 1@a t5 l1 +v3 v3; show; 2@b t6 l2 +v3 v3; show; 2@b t6 l2 +v5 v5; show; \
         1@a t7 l1 +v2 v2; 1@a t7 l1 v2 U:4; show; 1@a t7 l1 +v2 v2; 1@a t7 l1 +v1 v1; show",
        expect![[r#"
            b 0=a T:4/6
            b 0=b 1=a T:4/6
            whole table wanted
            b 0=b 1=a T:4/6
            whole table wanted
            b 0=a 2=b U:4/6
            b 0=a 2=b U:4/6
        "#]],
    );
}

#[test]
fn tables_with_one_counter_and_different_times_are_different() {
    check(
        "1@a t5 l1 v3 T:4; 2@b t6 l2 +v3 @9 v3; 2@b t6 l2 @9 v3 U:4; show",
        expect![[r#"
            whole table wanted
            b 0=b 1=a U:4/6
        "#]],
    );
}

#[test]
fn wiped_write_perm_lasts_until_the_table_changes() {
    check(
        "1@a t5 l1 v1 T:4; wipe; show; 1@a t5 l1 v1 T:4; show; add; show; wipe; 1@a t5 l1 v2 T:4; show",
        expect![[r#"
            b 0=a T:4/4
            b 0=a T:4/4
            b 0=a T:4/6
            b 0=a T:4/6
        "#]],
    );
}

#[test]
fn deleted_topic_stays_away_until_the_table_changes() {
    check(
        "1@a t5 l1 v1 T:4 U:4; delete T; show; 1@a t5 l1 v1 T:4 U:4; show",
        expect![[r#"
            b 0=a U:4/6
            b 0=a U:4/6
        "#]],
    );
}

#[test]
fn plain_brokers_are_shown_as_they_register() {
    check(
        "p0@a s1 v1 T:4 #1; p1@b s1 v1 X:1 #2; show; lost 1; show; p0@b s1 v1 T:4 #2; show; lost 2; show",
        expect![[r#"
            b 0=a 1=b T:4/6
            b 1=b T:4/6
            b 0=b T:4/6
            nothing
        "#]],
    );
}

#[test]
fn older_plain_broker_does_not_take_an_id() {
    check(
        "p0@a s2 v1 T:4; p0@b s1 v9 T:8; show; p0@b s3 v9 T:8; show",
        expect![[r#"
            refused: another broker holds this id with a newer state version
            b 0=a T:4/6
            b 0=b T:8/6
        "#]],
    );
}

#[test]
fn plain_broker_cannot_take_the_name_of_a_live_raft_group() {
    check(
        "1@a t5 l1 #1; p0@x s1 v1 T:1; show; lost 1; p0@x s1 v1 T:1; show; 1@a t6 l1; show",
        expect![[r#"
            refused: a raft group has this broker name
            b 0=a
            b 0=x T:1/6
            b 0=a
        "#]],
    );
}
