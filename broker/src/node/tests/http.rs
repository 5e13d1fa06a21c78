//! Calls over HTTP: wherever they come in, whatever is wrong with them.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::retire::{self, Cluster, leads, soon};
use super::*;
use crate::http::{Role, TokenHash, Tokens, hash_token};
use crate::state_machine::command::PutMode;
use crate::state_machine::testing::topic;
use crate::state_machine::topic::{PERM_READ, PERM_WRITE};
use crate::state_machine::{Command, TopicConfig};

/// One answer.
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {} {}", self.head, self.body))
    }
}

/// Sends `head`, a method and a path and any headers, with a body.
pub(super) async fn ask(addr: SocketAddr, head: &str, body: &str) -> Answer {
    let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
    let headers: String = headers.lines().map(|header| format!("{header}\r\n")).collect();
    let length = body.len();
    let text = format!(
        "{line} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    let exchange = async {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = soon("an answer", exchange).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { code, head: head.to_owned(), body: body.to_owned() }
}

/// The call is refused with this status and code, in words.
async fn refused(addr: SocketAddr, head: &str, body: &str, code: u16, word: &str) {
    let answer = ask(addr, head, body).await;
    assert_eq!(answer.code, code, "{head}: {}", answer.body);
    let found = answer.json();
    assert_eq!(found["code"], word, "{head}: {found}");
    for part in ["message", "advice"] {
        assert!(found[part].as_str().is_some_and(|text| !text.is_empty()), "{head}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_says_in_json_what_is_wrong_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let addr = options.node.http_listen;
    let node = start(options, true).await.unwrap();
    node.shared.groups[0].led().await;
    let transfer = "/v1/groups/broker-a/transfer-leader";
    for (head, code, word) in [
        ("GET /no/such/path", 404, "no_such_path"),
        ("POST /v1/status", 405, "method_not_allowed"),
        (&format!("GET {transfer}"), 405, "method_not_allowed"),
        ("TRACE /v1/status?node=n9", 405, "method_not_allowed"),
        ("PUT /v1/status?node=n9", 405, "method_not_allowed"),
        ("POST /v1/groups/broker-z/topics/t", 405, "method_not_allowed"),
        ("PATCH /v1/nodes/n9/drain", 405, "method_not_allowed"),
        ("PATCH /v1/groups/broker-z/topics/t", 405, "method_not_allowed"),
        ("GET /v1/status?nodes=n1", 400, "invalid"),
        ("GET /v1/status?node=n9", 404, "not_found"),
        ("GET /v1/status?node=n1&node=n1", 400, "invalid"),
        (&format!("POST {transfer}?to=n1&to=n1"), 400, "invalid"),
        (&format!("POST {transfer}?too=n1"), 400, "invalid"),
        (&format!("POST {transfer}?dry_run=maybe"), 400, "invalid"),
        (&format!("POST {transfer}?to=n9"), 404, "not_found"),
        (&format!("POST {transfer}"), 409, "conflict"),
        ("POST /v1/groups/%ff/transfer-leader", 400, "invalid"),
        ("POST /v1/groups/broker-z/transfer-leader", 404, "not_found"),
        // Only with the word, and only while it waits.
        ("POST /v1/nodes/n1/begin", 400, "invalid"),
        ("POST /v1/nodes/n1/begin?confirm=yes", 400, "invalid"),
        ("POST /v1/nodes/n1/begin?confirm=every-node-is-empty&dry_run=true", 409, "conflict"),
        ("POST /v1/nodes/n1/begin?confirm=every-node-is-empty", 409, "conflict"),
        ("POST /v1/groups/broker-a/flush", 400, "invalid"),
        ("POST /v1/groups/broker-a/flush?mode=later", 400, "invalid"),
        ("POST /v1/groups/broker-a/recover?accept_loss=true", 400, "invalid"),
        (
            "POST /v1/groups/broker-a/recover?accept_loss=true&last_term=-1&last_index=1&term=1&generation=1",
            400,
            "invalid",
        ),
        (&format!("POST {transfer}\nIdempotency-Key: two words"), 400, "invalid_key"),
        (&format!("POST {transfer}\nIdempotency-Key: {}", "x".repeat(129)), 400, "invalid_key"),
    ] {
        refused(addr, head, "", code, word).await;
    }
    // It has been held back by one of the checks, or it would have been carried out.
    let long = "x".repeat((1 << 20) + 1);
    refused(addr, &format!("POST {transfer}\nIdempotency-Key: k"), &long, 413, "too_large").await;
    let twice = async || ask(addr, "POST /v1/groups/broker-a/flush?mode=sync\nIdempotency-Key: k", "").await;
    let (first, second) = (twice().await, twice().await);
    assert_eq!((first.code, &first.body), (200, &second.body));
    assert!(!first.head.contains("idempotency-replayed") && second.head.contains("idempotency-replayed: true"));
    let other = "POST /v1/groups/broker-a/flush?mode=async\nIdempotency-Key: k";
    refused(addr, other, "", 422, "key_reused").await;
    let planned = ask(addr, "POST /v1/groups/broker-a/flush?mode=async&dry_run=true\nIdempotency-Key: k", "").await;
    assert_eq!(planned.json()["dry_run"], true);
    let status = node.shared.status();
    assert_eq!(status.groups[0].flush, Some(crate::http::FlushMode::Sync), "a dry run has changed something");
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_tokens_serves_nobody_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    let token = |name: &str, role| TokenHash { name: name.to_owned(), role, sha256: hash_token(name) };
    options.http.tokens = Tokens([token("reader", Role::Read), token("admin", Role::Admin)].into());
    let addr = options.node.http_listen;
    let node = start(options, true).await.unwrap();
    let accept = "POST /v1/retention/accept-clock";
    refused(addr, "GET /v1/status", "", 401, "no_token").await;
    refused(addr, "GET /no/such/path", "", 401, "no_token").await;
    refused(addr, "GET /metrics\nAuthorization: Bearer readers", "", 401, "wrong_token").await;
    refused(addr, &format!("{accept}\nAuthorization: Bearer reader"), "", 403, "read_only").await;
    assert_eq!(ask(addr, "GET /v1/status\nAuthorization: Bearer reader", "").await.code, 200);
    assert_eq!(ask(addr, &format!("{accept}\nAuthorization: Bearer admin"), "").await.code, 200);
    for open in ["/", "/docs/page.js", "/docs/page.css", "/v1/openapi.json", "/health/live"] {
        assert_eq!(ask(addr, &format!("GET {open}"), "").await.code, 200, "{open}");
    }
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_calls_are_counted_once_where_they_came_in() {
    let cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    let asked = at % 3 + 1;
    drop(leader);
    let counted = async |at: usize| -> Vec<String> {
        let text = ask(cluster.http(at), "GET /metrics", "").await.body;
        let lines = text.lines().filter_map(|line| line.strip_prefix("gantry_http_refused_calls_total"));
        lines.filter(|line| !line.ends_with(" 0")).map(str::to_owned).collect()
    };
    assert_eq!(counted(asked).await, Vec::<String>::new());
    let addr = cluster.http(asked);
    // What the leader refuses is counted where it came in, and so is what nobody was asked for.
    refused(addr, "POST /v1/groups/broker-a/transfer-leader?to=n9", "", 404, "not_found").await;
    refused(addr, "GET /v1/groups/broker-a/topics/none", "", 404, "not_found").await;
    refused(addr, "GET /no/such/path", "", 404, "no_such_path").await;
    refused(addr, "GET /v1/status?node=n1&node=n1", "", 400, "invalid").await;
    assert_eq!(ask(addr, "GET /v1/cluster", "").await.code, 200);
    // No name server knows it: that is no refusal.
    assert_eq!(ask(addr, "GET /health/ready", "").await.code, 503);
    assert_eq!(ask(addr, "POST /health/ready", "").await.code, 405);
    let expected = [
        "{kind=\"watch\",status=\"405\"} 1",
        "{kind=\"look\",status=\"400\"} 1",
        "{kind=\"look\",status=\"404\"} 2",
        "{kind=\"change\",status=\"404\"} 1",
    ];
    assert_eq!(counted(asked).await, expected);
    assert_eq!(counted(at).await, Vec::<String>::new());
    cluster.stop().await;
}

/// Far more often than within the time that a share takes to be whole again.
const TOO_OFTEN: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_too_often_is_told_to_wait_and_locks_out_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    let token = |name: &str, role| TokenHash { name: name.to_owned(), role, sha256: hash_token(name) };
    options.http.tokens = Tokens([token("reader", Role::Read), token("admin", Role::Admin)].into());
    options.http.requests_per_second = 1;
    let addr = options.node.http_listen;
    let node = start(options, true).await.unwrap();
    let bearer = |name: &str| format!("Authorization: Bearer {name}");
    let until_refused = async |head: &str| {
        for _ in 0..TOO_OFTEN {
            let answer = ask(addr, head, "").await;
            if answer.code == 429 {
                assert_eq!(answer.json()["code"], "too_many_requests");
                assert!(answer.head.to_lowercase().contains("\r\nretry-after: 1"), "{}", answer.head);
                return;
            }
        }
        panic!("{head} is never refused");
    };
    // Whoever has no token, or a wrong one, keeps nobody out who has one.
    until_refused("GET /v1/status").await;
    until_refused(&format!("GET /v1/status\n{}", bearer("guessed"))).await;
    let reader = format!("GET /v1/status\n{}", bearer("reader"));
    assert_eq!(ask(addr, &reader, "").await.code, 200);
    until_refused(&reader).await;
    assert_eq!(ask(addr, &format!("GET /v1/status\n{}", bearer("admin")), "").await.code, 200);
    // What is asked again and again is counted apart.
    assert_eq!(ask(addr, &format!("GET /metrics\n{}", bearer("reader")), "").await.code, 200);
    assert_ne!(ask(addr, "GET /health/live", "").await.code, 429);
    until_refused("GET /health/live").await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_have_a_listener_that_shows_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    let watch = free_addr();
    options.http.watch_listen = Some(watch);
    let token = TokenHash { name: "reader".to_owned(), role: Role::Read, sha256: hash_token("reader") };
    options.http.tokens = Tokens([token].into());
    let addr = options.node.http_listen;
    let node = start(options, true).await.unwrap();
    let leader = soon("it leads", leads(Arc::clone(&node.shared.groups[0]))).await;
    let topics = vec![TopicConfig::new(topic("secret-topic"), 1, 6)];
    let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
    leader.raft.propose_command(&put).await.unwrap();
    drop(leader);
    let with_token = "GET /metrics\nAuthorization: Bearer reader";
    let named = async {
        while !ask(addr, with_token, "").await.body.contains("secret-topic") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("the topic has metrics", named).await;
    let shown = ask(watch, "GET /metrics", "").await;
    assert_eq!(shown.code, 200);
    assert!(shown.body.contains("gantry_raft_is_leader{group=\"broker-a\"} 1"), "{}", shown.body);
    assert!(!shown.body.contains("secret-topic"), "{}", shown.body);
    assert_eq!(ask(watch, "GET /health/live", "").await.code, 200);
    for (head, code) in [
        ("GET /v1/status", 404),
        ("GET /v1/cluster", 404),
        ("GET /", 404),
        ("POST /v1/groups/broker-a/transfer-leader", 404),
        ("POST /metrics", 405),
    ] {
        let answer = ask(watch, head, "").await;
        assert_eq!(answer.code, code, "{head}: {}", answer.body);
        assert!(answer.json()["advice"].as_str().is_some_and(|text| !text.is_empty()), "{head}");
    }
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_takes_every_call() {
    let mut cluster = Cluster::start("sync").await;
    let addrs = [cluster.http(1), cluster.http(2), cluster.http(3)];
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    drop(leader);
    // About a node, asked at another one.
    for (asked, addr) in addrs.iter().enumerate() {
        for named in 1..=3 {
            let answer = ask(*addr, &format!("GET /v1/status?node=n{named}"), "").await;
            assert_eq!(answer.json()["node"], format!("n{named}"), "at n{}", asked + 1);
            assert_eq!(answer.head.contains("gantry-answered-by"), asked + 1 != named);
        }
        let recovery = ask(*addr, "GET /v1/groups/broker-a/recovery?node=n2", "").await.json();
        assert_eq!(recovery["node"], "n2");
    }
    // What only the leader can do, asked at a follower; by key, once, wherever it is asked again.
    let (one, other) = (at % 3, (at + 1) % 3);
    let flush = "POST /v1/groups/broker-a/flush?mode=sync\nIdempotency-Key: k";
    let first = ask(addrs[one], flush, "").await;
    assert_eq!((first.code, &first.json()["waiting_for"]), (200, &json!([])), "{}", first.body);
    assert_eq!(ask(addrs[other], flush, "").await.body, first.body);
    assert_ne!(ask(addrs[other], "POST /v1/groups/broker-a/flush?mode=sync", "").await.body, first.body);
    let to = format!("POST /v1/groups/broker-a/transfer-leader?to=n{}", other + 1);
    let plan = ask(addrs[one], &format!("{to}&dry_run=true"), "").await.json();
    assert_eq!(plan, json!({ "dry_run": true, "would": format!("node n{} would lead broker-a", other + 1) }));
    assert_eq!(usize::try_from(cluster.leader().await.node_id()).unwrap(), at, "a dry run has changed something");
    let moved = ask(addrs[one], &to, "").await;
    assert_eq!((moved.code, &moved.json()["node"]), (200, &json!(format!("n{}", other + 1))), "{}", moved.body);
    // What is wrong with a call is said before it is passed on, and not dropped on the way.
    for key in ["two words", "", "a\nIdempotency-Key: b"] {
        let head = format!("POST /v1/groups/broker-a/flush?mode=sync\nIdempotency-Key: {key}");
        refused(addrs[one], &head, "", 400, "invalid_key").await;
    }
    refused(addrs[one], "POST /v1/groups/broker-z/flush?mode=sync", "", 404, "not_found").await;
    refused(addrs[one], "GET /v1/status?node=n4", "", 404, "not_found").await;

    // One node alone elects nobody: it says so, soon, and does nothing.
    let alone = one + 1;
    for node in [1, 2, 3].into_iter().filter(|node| *node != alone) {
        cluster.stop_node(node).await;
    }
    refused(addrs[one], "POST /v1/groups/broker-a/flush?mode=async", "", 503, "no_leader").await;
    refused(addrs[one], &format!("GET /v1/status?node=n{}", other + 1), "", 503, "unavailable").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_passed_on_needs_the_token_there_too() {
    let mut cluster = Cluster::start("sync").await;
    let tokens =
        |name: &str| Tokens([TokenHash { name: name.to_owned(), role: Role::Admin, sha256: hash_token(name) }].into());
    for (at, name) in [(1, "ours"), (2, "ours"), (3, "theirs")] {
        cluster.stop_node(at).await;
        cluster.set_tokens(at, tokens(name));
        cluster.start_node(at, false).await;
    }
    let addr = cluster.http(1);
    let status = |node: &str| format!("GET /v1/status?node={node}\nAuthorization: Bearer ours");
    cluster.leader().await;
    assert_eq!(ask(addr, &status("n2"), "").await.code, 200);
    refused(addr, &status("n3"), "", 401, "wrong_token").await;
    // A node that asks all others for somebody asks with that token.
    let nodes = ask(addr, "GET /v1/cluster\nAuthorization: Bearer ours", "").await.json()["nodes"].clone();
    assert_eq!([&nodes[0]["error"], &nodes[1]["error"]], [&Value::Null, &Value::Null], "{nodes}");
    assert_eq!(nodes[2]["error"], "it answers 401: the token is none of this node's");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cluster_and_its_elections_are_seen_from_every_node() {
    let mut cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    drop(leader);
    for asked in 1..=3 {
        let seen = ask(cluster.http(asked), "GET /v1/cluster", "").await.json();
        assert_eq!(seen["seen_by"], format!("n{asked}"));
        let group = &seen["groups"][0];
        assert_eq!((&group["name"], &group["leader"]), (&json!("broker-a"), &json!(format!("n{at}"))), "{seen}");
        for member in 0..3 {
            let found = &group["members"][member];
            assert_eq!((&found["node"], &found["voter"]), (&json!(format!("n{}", member + 1)), &json!(true)), "{seen}");
            for figure in ["last", "committed", "applied", "flushed", "lag_entries", "lag_bytes"] {
                assert!(found[figure].is_u64(), "{figure}: {found}");
            }
            assert!(found["sync"]["count"].as_u64().is_some_and(|count| count > 0), "{found}");
            let node = &seen["nodes"][member];
            assert!(node["disk"]["free_bytes"].is_u64() && node["version"].is_string(), "{node}");
        }
        assert!(seen["health"].as_str().unwrap().contains("no name server"), "{seen}");
    }
    // One goes: the others elect and say so. How long there was nobody is told if there was such a moment to be seen.
    cluster.stop_node(at).await;
    let term = cluster.leader().await.raft.role().borrow().term();
    let asked = at % 3 + 1;
    let elected = async {
        loop {
            let events = ask(cluster.http(asked), "GET /v1/events", "").await.json();
            let all = events["events"].as_array().unwrap().clone();
            let of = |kind: &str| all.iter().filter(|event| event["kind"] == kind).cloned().collect::<Vec<_>>();
            let news: Vec<_> = of("elected").into_iter().filter(|event| event["term"] == term).collect();
            if !news.is_empty() {
                assert_eq!(news.len(), 1, "told once: {news:?}");
                assert!(news[0]["gap_ms"].is_u64() || news[0]["gap_ms"].is_null(), "{news:?}");
                assert_eq!(news[0]["seen_by"], news[0]["node"], "{news:?}");
                assert_eq!(events["missing"].as_array().unwrap().len(), 1, "{events}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("an election", elected).await;
    let seen = ask(cluster.http(asked), "GET /v1/cluster", "").await.json();
    assert_eq!(
        (&seen["healthy"], &seen["health"]),
        (&json!(false), &json!(format!("1 of 3 nodes do not answer: n{at}")))
    );
    for bad in ["limit=0", "limit=1001", "limit=many", "since_ms=now", "before=1"] {
        refused(cluster.http(asked), &format!("GET /v1/events?{bad}"), "", 400, "invalid").await;
    }
    refused(cluster.http(asked), "GET /v1/nodes/n9/events", "", 404, "not_found").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_node_leads_nothing_until_it_is_undrained() {
    let mut cluster = Cluster::start("sync").await;
    let at = usize::try_from(cluster.leader().await.node_id()).unwrap();
    let asked = cluster.http(at % 3 + 1);
    let drained = format!("POST /v1/nodes/n{at}/drain");
    let plan = ask(asked, &format!("{drained}?dry_run=true"), "").await.json();
    let expected = format!("n{at} would give away what it leads (broker-a) and be given nothing");
    assert_eq!(plan["would"], expected);
    let answer = ask(asked, &drained, "").await.json();
    assert_eq!(answer, json!({ "node": format!("n{at}"), "drained": true, "still_leads": [] }));
    assert_ne!(usize::try_from(cluster.leader().await.node_id()).unwrap(), at);
    let home = format!("POST /v1/groups/broker-a/transfer-leader?to=n{at}");
    refused(asked, &home, "", 409, "conflict").await;

    // Over a restart too.
    cluster.stop_node(at).await;
    cluster.start_node(at, false).await;
    cluster.leader().await;
    soon("it follows", cluster.group(at).led()).await;
    let seen = ask(asked, "GET /v1/cluster", "").await.json();
    assert_eq!(seen["nodes"][at - 1]["drained"], true, "{seen}");
    refused(asked, &home, "", 409, "conflict").await;

    let undrained = format!("POST /v1/nodes/n{at}/undrain");
    let answer = ask(asked, &undrained, "").await.json();
    assert_eq!(answer["drained"], false);
    let moved = async {
        // It must have heard of the leader as a follower does before it is handed anything.
        while ask(asked, &home, "").await.code != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("it is given leadership", moved).await;
    // Its predecessor may not know yet.
    soon("it leads again", leads(Arc::clone(cluster.group(at)))).await;
    let plan = ask(asked, "POST /v1/cluster/balance?dry_run=true", "").await.json();
    assert_eq!(plan["would"], "leadership would move: nothing: all is balanced");
    refused(asked, &format!("POST /v1/nodes/n{at}/drained"), "", 404, "no_such_path").await;
    refused(asked, "POST /v1/nodes/n9/drain", "", 404, "not_found").await;
    cluster.stop().await;
}

/// 20,000 topics over two groups, some in both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_topics_of_the_cluster_are_listed_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let addr = options.node.http_listen;
    let node = start(options, true).await.unwrap();
    let name = |number: usize| format!("topic-{number:05}");
    for (group, numbers) in node.shared.groups.iter().zip([0..12_000, 10_000..20_000]) {
        let leader = leads(Arc::clone(group)).await;
        let numbers: Vec<usize> = numbers.collect();
        for numbers in numbers.chunks(1_000) {
            let config = |number: &usize| TopicConfig::new(topic(&name(*number)), 2, PERM_READ | PERM_WRITE);
            let topics = numbers.iter().map(config).collect();
            let put = Command::PutTopics { topics, mode: PutMode::CreateOnly, stamped_ms: 1 };
            leader.raft.propose_command(&put).await.unwrap();
        }
    }
    let page = async |query: &str| {
        let answer = ask(addr, &format!("GET /v1/topics?{query}"), "").await;
        assert_eq!(answer.code, 200, "{}", answer.body);
        serde_json::from_str::<crate::http::ClusterTopics>(&answer.body).unwrap()
    };
    let (mut after, mut seen, mut pages) = (String::new(), Vec::new(), 0);
    loop {
        let page = page(&format!("limit=1000{after}")).await;
        assert_eq!((page.total, page.missing), (20_000, Vec::new()));
        pages += 1;
        seen.extend(page.items);
        match page.next {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    assert_eq!(pages, 20);
    let names: Vec<_> = seen.iter().map(|topic| topic.topic.clone()).collect();
    assert_eq!(names, (0..20_000).map(name).collect::<Vec<_>>());
    let groups = |number: usize| seen[number].groups.iter().map(|place| place.group.as_str()).collect::<Vec<_>>();
    assert_eq!((groups(9_999), groups(12_000)), (vec!["broker-a"], vec!["broker-b"]));
    assert_eq!(groups(10_000), ["broker-a", "broker-b"]);
    assert_eq!((seen[9_999].read_queues, seen[10_000].read_queues), (2, 4));
    let found = page("search=PIC-1099&limit=3").await;
    assert_eq!((found.items.len(), found.total, found.next.as_deref()), (3, 10, Some("topic-10992")));
    let found = page("search=PIC-1099&after=topic-10998").await;
    assert_eq!((found.items.len(), found.total, found.next), (1, 10, None));
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_and_consumer_groups_are_made_changed_read_and_removed_from_any_node() {
    let cluster = Cluster::start("sync").await;
    let leader = cluster.leader().await;
    let at = usize::try_from(leader.node_id()).unwrap();
    let addr = cluster.http(at % 3 + 1);
    let json = "\nContent-Type: application/json";
    let topics = "/v1/groups/broker-a/topics";
    let put = async |name: &str, body: &str| ask(addr, &format!("PUT {topics}/{name}{json}"), body).await;
    let orders = put("orders", r#"{"read_queues":2,"write_queues":2,"attributes":{"message.type":"NORMAL"}}"#).await;
    assert_eq!(orders.code, 200, "{}", orders.body);
    let config = orders.json()["config"].clone();
    assert_eq!((&config["perm"], &config["attributes"]["message.type"]), (&json!("read_write"), &json!("NORMAL")));
    let changed = put("orders", r#"{"read_queues":3,"write_queues":2,"perm":"read"}"#).await.json();
    let config = &changed["config"];
    assert_eq!((&config["read_queues"], &config["perm"]), (&json!(3), &json!("read")));
    assert_eq!(config["attributes"]["message.type"], "NORMAL", "what is not named stays");
    assert_eq!(changed["queues"].as_array().unwrap().len(), 3);
    for name in ["a1", "a2", "a3"] {
        assert_eq!(put(name, r#"{"read_queues":1,"write_queues":1}"#).await.code, 200);
    }
    let page = async |query: &str| {
        let page = ask(addr, &format!("GET {topics}?{query}"), "").await.json();
        let names: Vec<_> = page["items"].as_array().unwrap().iter().map(|item| item["topic"].clone()).collect();
        (json!(names), page["total"].clone(), page["next"].clone())
    };
    assert_eq!(page("limit=2").await, (json!(["A", "a1"]), json!(5), json!("a1")));
    assert_eq!(page("limit=2&after=a2").await, (json!(["a3", "orders"]), json!(5), json!(null)));
    assert_eq!(page("search=RDER").await, (json!(["orders"]), json!(1), json!(null)));
    assert!(page("system=true").await.1.as_u64().unwrap() > 5);
    // The list of the whole cluster has it from the leader too.
    let all = ask(addr, "GET /v1/topics?limit=1&after=a3&search=R", "").await.json();
    let place = json!({ "group": "broker-a", "read_queues": 3, "write_queues": 2, "perm": "read", "order": false });
    let orders = json!({ "topic": "orders", "read_queues": 3, "write_queues": 2, "system": false, "groups": [place] });
    assert_eq!(all, json!({ "items": [orders], "total": 1, "next": null, "missing": [] }));
    let plan = ask(addr, &format!("DELETE {topics}/a3?dry_run=true"), "").await.json();
    assert_eq!(plan["would"], "topic a3 of broker-a would go, with 0 messages");
    assert_eq!(ask(addr, &format!("DELETE {topics}/a3"), "").await.json(), json!({ "deleted": "a3" }));
    refused(addr, &format!("DELETE {topics}/a3"), "", 404, "not_found").await;
    for (name, body, code) in [
        ("orders", "", 400),
        ("orders", "{", 400),
        ("orders", "{}", 422),
        ("orders", r#"{"read_queues":1}"#, 422),
        ("orders", r#"{"read_queues":-1,"write_queues":1}"#, 422),
        ("orders", r#"{"read_queues":"1","write_queues":1}"#, 422),
        ("orders", r#"{"read_queues":1,"write_queues":1,"queues":1}"#, 422),
        ("orders", r#"{"read_queues":8193,"write_queues":1}"#, 400),
        ("orders", r#"{"read_queues":1,"write_queues":1,"attributes":{"reserve.time":"soon"}}"#, 400),
        ("..%2F..%2Fx", r#"{"read_queues":1,"write_queues":1}"#, 400),
        ("TBW102", r#"{"read_queues":1,"write_queues":1}"#, 400),
    ] {
        refused(addr, &format!("PUT {topics}/{name}{json}"), body, code, "invalid").await;
    }
    refused(addr, &format!("PUT {topics}/orders"), r#"{"read_queues":1,"write_queues":1}"#, 415, "not_json").await;
    for query in ["limit=0", "limit=1001", "limit=x", "page=1", &format!("search={}", "x".repeat(129))] {
        refused(addr, &format!("GET {topics}?{query}"), "", 400, "invalid").await;
        refused(addr, &format!("GET /v1/topics?{query}"), "", 400, "invalid").await;
    }

    // Consumer groups, how far they are, and a reset that is planned first.
    let readers = "/v1/groups/broker-a/consumer-groups/readers";
    refused(addr, &format!("GET {readers}"), "", 404, "not_found").await;
    let made = ask(addr, &format!("PUT {readers}{json}"), r#"{"retry_max_times":3}"#).await.json();
    assert_eq!((&made["config"]["retry_max_times"], &made["queues"]), (&json!(3), &json!([])));
    for _ in 0..3 {
        retire::send(&leader, 0).await.unwrap();
    }
    let last = leader.raft.metrics().last.unwrap();
    leader.store.wait_dispatched(last).await.unwrap();
    let end = leader.store.max_offset("A", 0);
    let reset = async |query: &str, body: &str| {
        let answer = ask(addr, &format!("POST {readers}/reset{query}{json}"), body).await;
        assert_eq!(answer.code, 200, "{}", answer.body);
        answer.json()
    };
    let lag = async || ask(addr, &format!("GET {readers}"), "").await.json()["config"]["lag"].clone();
    reset("", r#"{"topic":"A","to":"earliest"}"#).await;
    assert_eq!(lag().await, end);
    let plan = reset("?dry_run=true", r#"{"topic":"A","to":"latest"}"#).await;
    let queue = json!({ "queue_id": 0, "from": 0, "to": end, "again": 0, "skipped": end });
    assert_eq!((&plan["dry_run"], &plan["queues"][0]), (&json!(true), &queue));
    let would = format!("readers would move in 1 queues of A: it gets 0 messages again and {end} never");
    assert_eq!(plan["would"], would);
    assert_eq!(lag().await, end, "a plan has changed something");
    let done = reset("", &plan["apply"].to_string()).await;
    assert_eq!((&done["dry_run"], &done["queues"]), (&json!(false), &plan["queues"]));
    assert_eq!(done.get("would"), None);
    assert_eq!(lag().await, 0);
    let listed = ask(addr, "GET /v1/groups/broker-a/consumer-groups?search=READ", "").await.json();
    assert_eq!((&listed["total"], &listed["items"][0]["group"]), (&json!(1), &json!("readers")));
    for (body, code, word) in [
        (r#"{"topic":"A","to":"middle"}"#, 422, "invalid"),
        (r#"{"topic":"A","to":{"offsets":[{"queue_id":9,"offset":0}]}}"#, 400, "invalid"),
        (r#"{"topic":"A","to":{"offsets":[{"queue_id":0,"offset":99999}]}}"#, 409, "conflict"),
        (r#"{"topic":"A","to":{"offsets":[{"queue_id":0,"offset":0},{"queue_id":0,"offset":1}]}}"#, 400, "invalid"),
        (r#"{"topic":"A","to":{"time_ms":-1}}"#, 400, "invalid"),
        (r#"{"topic":"none","to":"latest"}"#, 404, "not_found"),
    ] {
        refused(addr, &format!("POST {readers}/reset{json}"), body, code, word).await;
    }
    assert_eq!(lag().await, 0, "a refusal has changed something");
    assert_eq!(ask(addr, &format!("DELETE {readers}"), "").await.code, 200);
    refused(addr, &format!("DELETE {readers}"), "", 404, "not_found").await;
    drop(leader);
    cluster.stop().await;
}
