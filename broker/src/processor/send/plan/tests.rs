//! Tables of sends and what becomes of them.

use std::collections::HashMap;

use protocol::{RemotingCommand, RequestCode};

use super::*;

#[derive(Default)]
struct Names {
    topics: HashMap<String, Arc<TopicConfig>>,
    groups: HashMap<String, Arc<GroupConfig>>,
    locking: Vec<String>,
}

impl Lookup for Names {
    fn topic(&self, topic: &str) -> Option<Arc<TopicConfig>> {
        self.topics.get(topic).cloned()
    }

    fn group(&self, group: &str) -> Option<Arc<GroupConfig>> {
        self.groups.get(group).cloned()
    }

    fn holds_queue(&self, group: &GroupName) -> bool {
        self.locking.iter().any(|locking| *group == locking.as_str())
    }
}

fn names() -> Names {
    let mut names = Names::default();
    let topics = [
        ("T", 4, PERM_READ | PERM_WRITE),
        ("TBW102", 8, PERM_READ | PERM_WRITE | PERM_INHERIT),
        ("sealed", 8, PERM_READ),
        ("SELF_TEST_TOPIC", 1, PERM_READ | PERM_WRITE),
        ("%RETRY%g", 1, PERM_READ | PERM_WRITE),
    ];
    for (name, queues, perm) in topics {
        let config = TopicConfig::new(TopicName::parse(name).unwrap(), queues, perm);
        names.topics.insert(name.to_owned(), Arc::new(config));
    }
    for group in ["g", "orderly"] {
        let config = GroupConfig::new(GroupName::parse(group).unwrap());
        names.groups.insert(group.to_owned(), Arc::new(config));
    }
    names.locking.push("orderly".to_owned());
    names
}

/// A send to `topic`, changed by `fields` (letters of the short form), and the plan for it as text.
fn check(topic: &str, fields: &[(&str, &str)], body_bytes: usize, expected: &str) {
    let mut command = RemotingCommand::request(RequestCode::SEND_MESSAGE_V2);
    let defaults =
        [("a", "p"), ("b", topic), ("c", "TBW102"), ("d", "4"), ("e", "0"), ("f", "0"), ("g", "1"), ("h", "0")];
    for (key, value) in defaults.iter().chain(fields) {
        command.ext.push(key, value);
    }
    let request = SendRequest::decode(&command).unwrap();
    let scan = Scan::of(request.properties);
    let sent = Sent {
        request: &request,
        properties: &scan,
        body_bytes,
        client_version: 479,
        producer_ip: [10, 0, 0, 9].into(),
        now_ms: 1_000_000,
    };
    let rules = SendRules {
        broker_name: "b",
        auto_create_topics: true,
        auto_create_queues: 8,
        message_bytes_max: 4 << 20,
        permission: PERM_READ | PERM_WRITE,
        delay_levels: &DelayLevels::default(),
        timer_delay_max: Duration::from_secs(40 * 86_400),
    };
    let found = match plan(&sent, &rules, &names(), |queues| queues - 1) {
        Ok(Plan::Store(target)) => {
            let dead = if target.dead_letter { " dead" } else { "" };
            let wait = target.delay_level.map(|level| format!(" after level {level}")).unwrap_or_default();
            let half = if target.half { " half" } else { "" };
            let due = target.due_ms.map(|due_ms| format!(" at {due_ms}")).unwrap_or_default();
            format!("store {} {}{dead}{half}{wait}{due}", target.topic, target.queue_id)
        }
        Ok(Plan::Create(config)) => format!("create {} {} {}", config.name, config.write_queues, config.perm),
        Err(Failure::Refused(code, _)) => format!("refuse {}", code.0),
        Err(other) => format!("{other:?}"),
    };
    assert_eq!(found, expected, "{topic} {fields:?}");
}

#[test]
fn queues_are_checked_and_minus_one_lets_the_broker_choose() {
    check("T", &[("e", "3")], 10, "store T 3");
    check("T", &[("e", "-1")], 10, "store T 3");
    check("T", &[("e", "4")], 10, "refuse 29");
    check("T", &[("e", "-2")], 10, "refuse 29");
}

#[test]
fn topics_are_created_after_their_template() {
    check("new", &[], 0, "create new 4 6");
    check("new", &[("d", "100")], 0, "create new 8 6");
    check("new", &[("d", "0")], 0, "create new 1 6");
    check("new", &[("c", "T")], 0, "refuse 17");
    check("new", &[("c", "nowhere")], 0, "refuse 17");
    check("new", &[("e", "4")], 0, "refuse 29");
    check("new", &[], 5 << 20, "refuse 13");
    check("%DLQ%g", &[], 0, "refuse 17");
}

#[test]
fn permissions_are_kept() {
    check("SELF_TEST_TOPIC", &[], 0, "refuse 16");
    check("rmq_sys_wheel_timer", &[], 0, "refuse 16");
    check("sealed", &[], 0, "refuse 16");
}

#[test]
fn sizes_are_limited_and_nothing_is_a_message_too() {
    check("T", &[], 0, "store T 0");
    check("T", &[], 4 << 20, "store T 0");
    check("T", &[], (4 << 20) + 1, "refuse 13");
    check("T", &[("i", &"x".repeat(32_767))], 1, "store T 0");
    check("T", &[("i", &"x".repeat(32_768))], 1, "refuse 13");
}

#[test]
fn retries_go_to_the_dead_letters_when_spent() {
    check("%RETRY%g", &[("j", "16"), ("l", "16")], 1, "store %RETRY%g 0");
    check("%RETRY%g", &[("j", "17"), ("l", "16")], 1, "create %DLQ%g 1 6");
    check("%RETRY%g", &[("j", "16")], 1, "store %RETRY%g 0");
    check("%RETRY%g", &[("j", "17")], 1, "create %DLQ%g 1 6");
    check("%RETRY%g", &[("j", "3"), ("l", "-1")], 1, "store %RETRY%g 0");
    check("%RETRY%g", &[("i", "DELAY\u{1}3\u{2}TRAN_MSG\u{1}true\u{2}")], 1, "store %RETRY%g 0 after level 3");
    check("%RETRY%g", &[("m", "true")], 1, "refuse 13");
    check("%RETRY%orderly", &[], 1, "create %RETRY%orderly 1 6");
    check("%RETRY%unknown", &[], 1, "refuse 26");
}

#[test]
fn delayed_messages_wait_on_a_level_that_exists() {
    check("T", &[("i", "DELAY\u{1}3\u{2}"), ("e", "2")], 1, "store T 2 after level 3");
    check("T", &[("i", "DELAY\u{1}99\u{2}")], 1, "store T 0 after level 18");
    check("T", &[("i", "DELAY\u{1}0\u{2}")], 1, "store T 0");
    check("T", &[("i", "DELAY\u{1}soon\u{2}")], 1, "store T 0");
    check("T", &[("i", "DELAY\u{1}3\u{2}"), ("m", "true")], 1, "refuse 13");
    check("new", &[("i", "DELAY\u{1}3\u{2}")], 1, "create new 4 6");
}

#[test]
fn a_half_message_names_who_ends_it() {
    let half = "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}p\u{2}";
    let with = |more: &str| format!("{half}{more}");
    check("T", &[("i", half), ("e", "2")], 1, "store T 2 half");
    check("new", &[("i", half)], 1, "create new 4 6");
    check("T", &[("i", "TRAN_MSG\u{1}false\u{2}PGROUP\u{1}p\u{2}")], 1, "store T 0");
    check("T", &[("i", "TRAN_MSG\u{1}true\u{2}")], 1, "refuse 13");
    check("T", &[("i", "TRAN_MSG\u{1}true\u{2}PGROUP\u{1}a/b\u{2}")], 1, "refuse 13");
    check("T", &[("i", &with("DELAY\u{1}1\u{2}"))], 1, "refuse 13");
    check("T", &[("i", &with("TIMER_DELAY_SEC\u{1}1\u{2}"))], 1, "refuse 13");
    check("T", &[("i", half), ("m", "true")], 1, "refuse 13");
    check("T", &[("i", half), ("e", "9")], 1, "refuse 29");
}

#[test]
fn a_timer_waits_for_the_time_that_it_names() {
    let timer = |properties: &[(&str, &str)], expected: &str| {
        let text: String = properties.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect();
        check("T", &[("i", &text)], 1, expected);
    };
    timer(&[("TIMER_DELAY_SEC", "3")], "store T 0 at 1003000");
    timer(&[("TIMER_DELAY_MS", "2501")], "store T 0 at 1002501");
    timer(&[("TIMER_DELIVER_MS", "1000001")], "store T 0 at 1000001");
    // What is not in the future is delivered at once.
    timer(&[("TIMER_DELIVER_MS", "1000000")], "store T 0");
    timer(&[("TIMER_DELIVER_MS", "-5")], "store T 0");
    timer(&[("TIMER_DELAY_MS", "0")], "store T 0");
    timer(&[("TIMER_DELAY_SEC", "-9223372036854775808")], "store T 0");
    // Forty days and no more.
    timer(&[("TIMER_DELAY_SEC", "3456000")], "store T 0 at 3457000000");
    timer(&[("TIMER_DELAY_MS", "3456000001")], "refuse 13");
    timer(&[("TIMER_DELAY_SEC", "9223372036854775807")], "refuse 13");
    timer(&[("TIMER_DELIVER_MS", "9223372036854775807")], "refuse 13");
    timer(&[("TIMER_DELAY_SEC", "soon")], "refuse 13");
    timer(&[("TIMER_DEL_UNIQKEY", "T+U")], "refuse 13");
    // A level goes first, then seconds, then milliseconds.
    timer(&[("TIMER_DELAY_SEC", "3"), ("DELAY", "2")], "store T 0 after level 2");
    timer(
        &[("TIMER_DELIVER_MS", "9999999"), ("TIMER_DELAY_MS", "2"), ("TIMER_DELAY_SEC", "1")],
        "store T 0 at 1001000",
    );
    timer(&[("TIMER_DELIVER_MS", "9999999"), ("TIMER_DELAY_MS", "2")], "store T 0 at 1000002");
    let with = |field: (&'static str, &'static str)| [("i", "TIMER_DELAY_SEC\u{1}3\u{2}"), field];
    check("T", &with(("m", "true")), 1, "refuse 13");
    check("T", &with(("e", "2")), 1, "store T 2 at 1003000");
    check("new", &with(("e", "0")), 1, "create new 4 6");
    check("%RETRY%g", &with(("j", "17")), 1, "create %DLQ%g 1 6");
}

#[test]
fn properties_are_completed() {
    fn check(text: &str, unique_key: Option<&str>, real: Option<(&str, u32)>, expected: &[(&str, &str)]) {
        let mut out = String::new();
        let additions =
            Additions { cluster_name: "C", region: "R", unique_key, real, transaction_id: None, due_ms: None };
        complete_properties(text, &Scan::of(text), additions, &mut out);
        let found: Vec<_> = Properties::new(&out).iter().collect();
        assert_eq!(found, expected, "{text:?}");
    }
    check("", Some("U"), None, &[("MSG_REGION", "R"), ("UNIQ_KEY", "U"), ("CLUSTER", "C"), ("TRACE_ON", "true")]);
    check(
        "WAIT\u{1}true",
        None,
        None,
        &[("WAIT", "true"), ("MSG_REGION", "R"), ("CLUSTER", "C"), ("TRACE_ON", "true")],
    );
    check(
        "CLUSTER\u{1}old\u{2}KEYS\u{1}k\u{2}POP_CK\u{1}x\u{2}MSG_REGION\u{1}old\u{2}",
        None,
        None,
        &[("KEYS", "k"), ("MSG_REGION", "R"), ("CLUSTER", "C"), ("TRACE_ON", "true")],
    );
    let added = [("MSG_REGION", "R"), ("CLUSTER", "C"), ("TRACE_ON", "true"), ("REAL_TOPIC", "T"), ("REAL_QID", "2")];
    check("", None, Some(("T", 2)), &added);
    check("REAL_TOPIC\u{1}old\u{2}REAL_QID\u{1}9\u{2}", None, Some(("T", 2)), &added);
}
