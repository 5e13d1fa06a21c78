//! Calls over HTTP: wherever they come in, whatever is wrong with them.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::retire::{Cluster, soon};
use super::*;
use crate::http::{Role, TokenHash, Tokens, hash_token};

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
    cluster.stop().await;
}
