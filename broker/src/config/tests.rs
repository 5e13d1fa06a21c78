//! What a file may say, and what it is told when it is wrong.

use std::path::Path;

use super::reference::{Fallback, GROUP, Kind, MEMBER, SECTIONS, Section, TOKEN, commented_file, schema};
use super::*;
use crate::http::{Role, hash_token};

const GOOD: &str = r#"
[cluster]
id = "00112233445566778899aabbccddeeff"

[node]
name = "n1"
data_dir = "data"
raft_listen = "127.0.0.1:11001"
namesrv = ["127.0.0.1:9876"]

[[group]]
name = "broker-a"
client_listen = "127.0.0.1:10911"
preferred_leader = "n2"

[[group.member]]
node = "n2"
id = 2
raft_addr = "127.0.0.1:11002"
client_addr = "127.0.0.1:10921"

[[group.member]]
node = "n1"
id = 1
raft_addr = "127.0.0.1:11001"
client_addr = "127.0.0.1:10911"
"#;

fn parse(text: &str) -> Result<Options, ConfigError> {
    Options::parse(Path::new("broker.toml"), text)
}

/// Replaces `from` in the good file and expects a refusal that says all of `says`.
#[track_caller]
fn check_refused(from: &str, to: &str, says: &[&str]) {
    assert!(GOOD.contains(from), "{from:?} is in the file");
    let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
    for part in says {
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn a_good_file_is_read_with_defaults() {
    let options = parse(GOOD).unwrap();
    assert_eq!(options.cluster.name, "DefaultCluster");
    assert_eq!(options.cluster.id[..3], [0, 0x11, 0x22]);
    assert_eq!(options.node.stop_forward_time, Duration::from_secs(35));
    assert_eq!(options.storage.flush, FlushOptions::Sync);
    assert_eq!(options.storage.segment_bytes, 1 << 30);
    assert_eq!(options.retention.time, Duration::from_secs(72 * 3600));
    assert!(options.retention.delete_hours.is_empty());
    assert_eq!(options.raft.catch_up_rate, Some(32 << 20));
    let group = &options.groups[0];
    assert_eq!((group.own_id, group.preferred_leader), (1, Some(2)));
    assert_eq!(group.members.iter().map(|m| m.id).collect::<Vec<_>>(), [1, 2]);
    assert!(group.initializes());
    assert_eq!(group.own_member().node, "n1");
}

#[test]
fn a_node_that_joins_has_no_id_in_its_own_entry_and_somebody_to_ask() {
    let options = parse(&GOOD.replace("node = \"n1\"\nid = 1\n", "node = \"n1\"\n")).unwrap();
    let group = &options.groups[0];
    assert!(group.joins() && !group.initializes());
    assert_eq!((group.own_id, group.own_member().node.as_str()), (0, "n1"));
    assert!(options.node.join_tokens.ends_with("join-tokens"), "{:?}", options.node.join_tokens);
    check_refused("node = \"n2\"\nid = 2\n", "node = \"n2\"\n", &["member `n2` has no id"]);
}

#[test]
fn the_sample_file_is_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/broker.toml");
    let options = Options::load(&path).unwrap();
    assert_eq!(options.groups.len(), 3);
}

#[test]
fn unknown_keys_name_file_line_and_nearest() {
    check_refused(
        "raft_listen",
        "raft_lisen",
        &["broker.toml:8: ", "unknown key `raft_lisen`; did you mean `raft_listen`?"],
    );
    check_refused("client_addr", "zzz", &["unknown key `zzz`, expected one of"]);
    check_refused("[node]", "[nodes]", &["did you mean `node`?"]);
}

#[test]
fn missing_and_mistyped_values_name_the_line() {
    check_refused("id = 2", "id = \"two\"", &["broker.toml:18", "is of type string, expected a whole number"]);
    check_refused(
        "[cluster]\nid = \"00112233445566778899aabbccddeeff\"",
        "[cluster]",
        &["broker.toml:2: missing key `id` in [cluster]", "gantry cluster-id"],
    );
    check_refused("[node]", "[storage]\nsegment_bytes = 5\n[node]", &["broker.toml:6", "a size with its unit"]);
    check_refused("[node]", "[storage]\nsegment_bytes = \"5\"\n[node]", &["broker.toml:6", "no unit"]);
}

#[test]
fn public_addresses_need_the_word() {
    check_refused("127.0.0.1:10911\"", "10.0.0.1:10911\"", &["10.0.0.1:10911", "insecure_public = true"]);
    check_refused("\"127.0.0.1:11001\"", "\"0.0.0.0:11001\"", &["0.0.0.0:11001", "insecure_public"]);
    let public =
        GOOD.replacen("127.0.0.1:10911\"", "0.0.0.0:10911\"", 1).replace("[node]", "[node]\ninsecure_public = true");
    assert!(parse(&public).unwrap().node.insecure_public);
}

#[test]
fn a_public_http_address_needs_a_token_whatever_else_is_said() {
    let public = GOOD.replace("[node]", "[node]\ninsecure_public = true\nhttp_listen = \"0.0.0.0:8081\"");
    let refused = parse(&public).unwrap_err().to_string();
    assert!(refused.contains("http_listen is 0.0.0.0:8081") && refused.contains("[[http.token]]"), "{refused}");
    let token = |lines: &str| parse(&format!("{public}\n[[http.token]]\nname = \"ops\"\n{lines}"));
    let hash = format!("sha256 = \"{}\"", "0a".repeat(32));
    let tokens = token(&format!("role = \"read\"\n{hash}")).unwrap().http.tokens;
    assert_eq!((tokens.0[0].name.as_str(), tokens.0[0].role, tokens.0[0].sha256), ("ops", Role::Read, [10; 32]));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let in_file = format!("role = \"admin\"\nfile = {:?}", file.display().to_string());
    std::fs::write(&file, format!("{}\n", "t".repeat(32))).unwrap();
    assert_eq!(token(&in_file).unwrap().http.tokens.0[0].sha256, hash_token(&"t".repeat(32)));
    std::fs::write(&file, "short").unwrap();
    for (lines, text) in [
        (in_file.as_str(), "can be guessed"),
        ("role = \"admin\"", "either sha256 or file"),
        (&format!("{in_file}\n{hash}"), "either sha256 or file"),
        ("role = \"admin\"\nsha256 = \"0a\"", "64 hex digits"),
        ("role = \"admin\"\nfile = \"/no/such/file\"", "cannot be read"),
        ("role = \"owner\"\nsha256 = \"\"", "http.token.role is `owner`, expected one of `read`, `admin`"),
    ] {
        let refused = token(lines).unwrap_err().to_string();
        assert!(refused.contains(text), "{refused}");
    }
    let twice = format!("role = \"read\"\n{hash}\n[[http.token]]\nname = \"ops\"\nrole = \"read\"\n{hash}");
    assert!(token(&twice).unwrap_err().to_string().contains("two [[http.token]]"));
}

#[test]
fn contradictions_are_refused() {
    check_refused("node = \"n1\"", "node = \"n3\"", &["this node, `n1`, is not among the members"]);
    check_refused("preferred_leader = \"n2\"", "preferred_leader = \"n9\"", &["`n9` is not among"]);
    check_refused("id = 2", "id = 1", &["member id 1 is used twice"]);
    check_refused("id = 2", "id = 0", &["group.member.id is 0, allowed are 1 and more"]);
    check_refused("127.0.0.1:11002", "127.0.0.1:11001", &["raft_addr 127.0.0.1:11001 is used twice"]);
    check_refused("127.0.0.1:10921", "127.0.0.1:10911", &["client_addr 127.0.0.1:10911 is used twice"]);
    check_refused("127.0.0.1:10921", "0.0.0.0:10921", &["cannot be connected to"]);
    check_refused("[\"127.0.0.1:9876\"]", "[]", &["node.namesrv is empty"]);
    check_refused("00112233", "0011223", &["32 hex digits", "gantry cluster-id"]);
    check_refused("broker-a", "../broker-a", &["group.name", "letters, digits"]);
    check_refused("[node]", "[raft]\nheartbeat_interval = \"400ms\"\n[node]", &["at least twice"]);
    check_refused("[node]", "[storage]\nsegment_bytes = \"1MiB\"\n[node]", &["16MiB to 16GiB"]);
    let storage = |line: &str| format!("[storage]\n{line}\n[node]");
    check_refused("[node]", &storage("disk_early_percent = 85"), &["disk_early_percent (85) must be below"]);
    check_refused("[node]", &storage("disk_free_percent_min = 20"), &["at most 15", "retention must make room"]);
    check_refused("[node]", &storage("ballast_bytes = \"1000GiB\""), &["0 to 16GiB"]);
    check_refused("[node]", "[broker]\nmessage_bytes_max = \"1GiB\"\n[node]", &["message_bytes_max"]);
}

#[test]
fn two_groups_need_two_ports() {
    let second = GOOD.split_once("[[group]]").unwrap().1.replace("broker-a", "broker-b").replace(":109", ":209");
    let twice = format!("{GOOD}\n[[group]]{}", second.replacen("20911", "10911", 1));
    assert!(parse(&twice).unwrap_err().to_string().contains("port of its own"));
    assert!(parse(&format!("{GOOD}\n[[group]]{second}")).is_ok());
    let same_name = second.replace("broker-b", "broker-a");
    assert!(parse(&format!("{GOOD}\n[[group]]{same_name}")).unwrap_err().to_string().contains("two groups"));
}

#[test]
fn retention_and_catch_up_have_limits() {
    let section = |text: &str| format!("{text}\n[[group]]");
    for (text, says) in [
        ("[retention]\ntime = \"500ms\"", "retention.time is 500ms, allowed are 1s to 3650d"),
        ("[retention]\ntime = \"4000d\"", "allowed are 1s to 3650d"),
        ("[retention]\ntime = 72", "a duration with its unit"),
        ("[retention]\ndelete_hours = [4, 24]", "retention.delete_hours is 24, allowed are 0 to 23"),
        ("[retention]\ncheck_interval = \"2h\"", "retention.check_interval is 7200s, allowed are 100ms to 1h"),
        ("[retention]\ntimes = \"72h\"", "did you mean `time`?"),
        ("[raft]\ncatch_up_rate = \"1KiB\"", "raft.catch_up_rate is 1024 bytes, allowed are 1MiB and more, or 0B"),
    ] {
        check_refused("[[group]]", &section(text), &[says]);
    }
    let text = section("[retention]\ntime = \"3d\"\ndelete_hours = [4]\n[raft]\ncatch_up_rate = \"0B\"");
    let options = parse(&GOOD.replacen("[[group]]", &text, 1)).unwrap();
    assert_eq!((options.retention.delete_hours, options.raft.catch_up_rate), (vec![4], None));
}

/// What the type of one of the tables takes: serde names it all when it refuses a key.
fn accepted<T: serde::de::DeserializeOwned>() -> Vec<String> {
    let Err(error) = toml::from_str::<T>("zzz = 1") else { panic!("zzz is taken") };
    let Some((_, expected)) = error.message().split_once(", expected ") else { panic!("{error}") };
    sorted(expected.split('`').skip(1).step_by(2).map(str::to_owned).collect())
}

#[test]
fn the_reference_has_every_key_and_no_other() {
    let types = [
        ("cluster", accepted::<file::Cluster>()),
        ("node", accepted::<file::Node>()),
        ("storage", accepted::<file::Storage>()),
        ("retention", accepted::<file::Retention>()),
        ("http", accepted::<file::Http>()),
        ("raft", accepted::<file::Raft>()),
        ("broker", accepted::<file::Broker>()),
        ("metrics", accepted::<file::Metrics>()),
        ("tracing", accepted::<file::Tracing>()),
        ("log", accepted::<file::Log>()),
        ("group", accepted::<file::Group>()),
        ("group.member", accepted::<file::Member>()),
        ("http.token", accepted::<file::Token>()),
    ];
    for section in SECTIONS.iter().chain([&GROUP, &MEMBER, &TOKEN]) {
        let names: Vec<_> = section.keys.iter().map(|key| key.name).collect();
        let found = types.iter().find(|(name, _)| *name == section.name).map(|(_, keys)| keys);
        assert_eq!(Some(&sorted(names.into_iter().map(str::to_owned).collect())), found, "[{}]", section.name);
    }
}

fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all
}

#[test]
fn the_reference_shows_the_defaults_that_are_in_force() {
    // A file in which every default is written out means the same as one that leaves all of them out.
    let mut written = String::new();
    for section in SECTIONS {
        written += &format!("[{}]\n", section.name);
        for key in section.keys {
            match key.fallback {
                Fallback::Required(value) | Fallback::Value(value) => written += &format!("{} = {value}\n", key.name),
                Fallback::None(_) => {}
            }
        }
    }
    let groups = commented_file();
    let groups = &groups[groups.find("[[group]]").unwrap()..];
    let required = |section: &Section| {
        let keys = section.keys.iter().filter(|key| matches!(key.fallback, Fallback::Required(_)));
        let lines = keys.map(|key| match key.fallback {
            Fallback::Required(value) => format!("{} = {value}\n", key.name),
            _ => unreachable!("filtered above"),
        });
        format!("[{}]\n{}", section.name, lines.collect::<String>())
    };
    let left_out: String = SECTIONS.iter().filter(|s| ["cluster", "node"].contains(&s.name)).map(required).collect();
    let written = parse(&format!("{written}{groups}")).unwrap();
    let left_out = parse(&format!("{left_out}{groups}")).unwrap();
    assert_eq!(format!("{written:?}"), format!("{left_out:?}"));
}

/// `UPDATE_CONF=1` writes the file anew.
#[test]
fn the_sample_file_is_the_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conf/broker.toml");
    let text = commented_file();
    assert_eq!(Options::parse(&path, &text).unwrap().groups.len(), 3);
    if std::env::var_os("UPDATE_CONF").is_some() {
        raft_store::durable::write_file(&path, text.as_bytes()).unwrap();
    } else {
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "UPDATE_CONF=1 writes the file anew");
    }
}

#[test]
fn bounds_of_the_reference_are_those_of_the_check() {
    let refused = |table: &str, key: &str, value: &str| {
        let text = GOOD.replacen("[[group]]", &format!("[{table}]\n{key} = {value}\n[[group]]"), 1);
        parse(&text).is_err()
    };
    for section in SECTIONS.iter().filter(|section| !["cluster", "node"].contains(&section.name)) {
        for key in section.keys {
            let out_of_bounds: Vec<String> = match key.kind {
                Kind::Number(min, max) => {
                    [min.checked_sub(1), Some(max + 1)].into_iter().flatten().map(|n| n.to_string()).collect()
                }
                Kind::Numbers(_, max) => vec![format!("[{}]", max + 1)],
                Kind::Word(_) => vec!["\"zzz\"".to_owned()],
                Kind::Bool => vec!["1".to_owned()],
                Kind::Fraction => ["-0.1", "1.1", "nan", "\"1\""].map(str::to_owned).to_vec(),
                Kind::Bytes | Kind::Duration => vec!["5".to_owned(), "\"5\"".to_owned(), "\"5 parsec\"".to_owned()],
                Kind::Text | Kind::Texts => vec!["1".to_owned()],
            };
            for value in out_of_bounds {
                assert!(refused(section.name, key.name, &value), "{}.{} = {value}", section.name, key.name);
            }
        }
    }
}

#[test]
fn only_these_change_while_a_broker_runs() {
    let of_file = |section: &'static Section| section.keys.iter().filter_map(|key| Some((key.live?, key.name)));
    let live: Vec<_> = SECTIONS.iter().flat_map(of_file).collect();
    assert_eq!(
        live,
        [
            ("autoCreateTopicEnable", "auto_create_topics"),
            ("autoCreateSubscriptionGroup", "auto_create_groups"),
            ("defaultTopicQueueNums", "auto_create_queues"),
            ("maxMessageSize", "message_bytes_max"),
            ("transactionTimeOut", "transaction_timeout"),
            ("transactionCheckInterval", "transaction_check_interval"),
            ("transactionCheckMax", "transaction_check_max"),
        ]
    );
    // Two more stand in no file.
    let mut names: Vec<_> = live.iter().map(|(name, _)| *name).chain(["brokerPermission", "slaveReadEnable"]).collect();
    let mut allowed: Vec<_> = crate::processor::live_names().collect();
    names.sort_unstable();
    allowed.sort_unstable();
    assert_eq!(names, allowed);
}

#[test]
fn values_are_shown_with_where_they_came_from() {
    let text = GOOD.replacen("[[group]]", "[storage]\nsegment_bytes = \"64MiB\"\n[[group]]", 1);
    let shown = Options::show(Path::new("broker.toml"), &text).unwrap();
    let of = |key: &str| shown.iter().find(|shown| shown.key == key).unwrap_or_else(|| panic!("{key}"));
    let check = |key: &str, value: &str, origin: Origin| {
        assert_eq!((of(key).value.as_deref(), &of(key).origin), (Some(value), &origin), "{key}");
    };
    check("node.name", "\"n1\"", Origin::Line(6));
    check("node.http_listen", "\"127.0.0.1:8081\"", Origin::Default);
    check("storage.segment_bytes", "\"64MiB\"", Origin::Line(12));
    check("retention.delete_hours", "[]", Origin::Default);
    check("group.broker-a.preferred_leader", "\"n2\"", Origin::Line(16));
    check("group.broker-a.member.n2.id", "2", Origin::Line(20));
    assert_eq!(of("broker.message_bytes_max").live, Some("maxMessageSize"));
    assert!(Options::show(Path::new("broker.toml"), "[nodes]").is_err());
}

#[test]
fn the_schema_names_every_key() {
    let schema = schema();
    let properties = &schema["properties"];
    for section in SECTIONS {
        for key in section.keys {
            let found = &properties[section.name]["properties"][key.name];
            assert!(found["type"].is_string() && found["description"].is_string(), "{}.{}", section.name, key.name);
        }
    }
    assert_eq!(properties["storage"]["properties"]["disk_early_percent"]["default"], 75);
    assert_eq!(properties["node"]["required"], serde_json::json!(["name", "data_dir", "raft_listen", "namesrv"]));
    let member = &properties["group"]["items"]["properties"]["member"]["items"];
    assert_eq!(member["properties"]["id"]["minimum"], 1);
    assert_eq!(member["additionalProperties"], false);
    // A node that joins has none in its own entry.
    assert_eq!(member["required"], serde_json::json!(["node", "raft_addr", "client_addr"]));
}

#[test]
fn every_mistake_of_a_file_is_named_with_its_line() {
    let text = GOOD
        .replacen("[node]", "[nod]", 1)
        .replacen("00112233445566778899aabbccddeeff", "zz", 1)
        .replacen("id = 2", "id = 1", 1)
        .replacen("preferred_leader = \"n2\"", "preferred_leader = \"n9\"\ncolour = 7", 1)
        .replacen("client_addr = \"127.0.0.1:10921\"", "client_addr = \"localhost\"", 1)
        + "\n[storage]\nsegment_bytes = \"1MiB\"\nflush_interval = \"5s\"\nflsh = \"sync\"\n[raft]\n\
           heartbeat_interval = \"50s\"\nelection_timeout_max = \"100s\"\n[log]\nformat = \"jsn\"\n";
    let error = parse(&text).unwrap_err();
    let found: Vec<_> = error
        .mistakes
        .iter()
        .map(|mistake| (mistake.line.unwrap_or(0), mistake.message.split([':', ';', ',']).next().unwrap()))
        .collect();
    let expected = [
        (0, "there is no [node]"),
        (3, "cluster.id is `zz`"),
        (5, "unknown key `nod`"),
        (15, "unknown key `colour`"),
        (21, "group `number 1`"),
        (25, "group `number 1`"),
        (32, "unknown key `flsh`"),
        (34, "raft.heartbeat_interval is 50s"),
        (35, "raft.election_timeout_max (100s) must be longer than raft.election_timeout_min (300ms)"),
        (37, "log.format is `jsn`"),
    ];
    assert_eq!(found, expected, "{error}");
    // A table with a key that is none is not looked at further; without it the rest of it comes out.
    let text = text.replacen("flsh = \"sync\"", "", 1).replacen("colour = 7", "", 1);
    let error = parse(&text).unwrap_err().to_string();
    for part in ["broker.toml:30: storage.segment_bytes is 1048576", "broker.toml:31: storage.flush_interval is 5s"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn every_place_that_is_no_toml_is_named() {
    let text = GOOD.replacen("name = \"n1\"", "name = n1", 1).replacen("id = 2", "id 2", 1);
    let error = parse(&text).unwrap_err();
    let lines: Vec<_> = error.mistakes.iter().filter_map(|mistake| mistake.line).collect();
    assert!(lines.contains(&6) && lines.contains(&18), "{error}");
}

/// The good file as node `number` of three has it.
fn of_node(number: u64) -> String {
    let member = |id: u64| {
        format!(
            "\n[[group.member]]\nnode = \"n{id}\"\nid = {id}\nraft_addr = \"127.0.0.1:{}\"\nclient_addr = \"127.0.0.1:{}\"\n",
            11_000 + id,
            10_901 + 10 * id
        )
    };
    let head = GOOD.split_once("\n[[group.member]]").unwrap().0;
    let head = head
        .replacen("name = \"n1\"", &format!("name = \"n{number}\""), 1)
        .replacen(
            "data_dir = \"data\"",
            &format!("data_dir = \"data{number}\"\nhttp_listen = \"127.0.0.1:808{number}\""),
            1,
        )
        .replacen("127.0.0.1:11001", &format!("127.0.0.1:{}", 11_000 + number), 1)
        .replacen("127.0.0.1:10911", &format!("127.0.0.1:{}", 10_901 + 10 * number), 1);
    (1..=3).fold(head, |text, id| text + &member(id))
}

/// What is found between the files of three nodes when this is changed in that of one: mistakes, then notes.
fn between(number: u64, from: &str, to: &str) -> (Vec<String>, Vec<String>) {
    let texts: Vec<String> = (1..=3)
        .map(|id| {
            let text = of_node(id);
            assert!(id != number || text.contains(from), "{from:?} is in\n{text}");
            if id == number { text.replacen(from, to, 1) } else { text }
        })
        .collect();
    let paths: Vec<_> = (1..=3).map(|id| PathBuf::from(format!("n{id}.toml"))).collect();
    let options: Vec<_> = texts.iter().map(|text| parse(text).unwrap()).collect();
    let files: Vec<_> =
        (0..3).map(|at| across::NodeFile { path: &paths[at], text: &texts[at], options: &options[at] }).collect();
    let found = across::check(&files);
    let say = |(at, mistake): (usize, Mistake)| {
        format!("n{}.toml:{}: {}", at + 1, mistake.line.unwrap_or(0), mistake.message)
    };
    (found.mistakes.into_iter().map(say).collect(), found.notes.into_iter().map(say).collect())
}

#[test]
fn files_of_one_cluster_are_compared() {
    assert_eq!(between(1, "n1", "n1"), (vec![], vec![]));
    #[track_caller]
    fn check(number: u64, from: &str, to: &str, expected: &[&str]) {
        let (mistakes, notes) = between(number, from, to);
        assert_eq!(mistakes.len(), expected.len(), "{mistakes:#?}");
        for (mistake, expected) in mistakes.iter().zip(expected) {
            assert!(mistake.contains(expected), "{mistakes:#?}");
        }
        assert_eq!(notes, Vec::<String>::new());
    }
    check(2, "ddeeff\"", "ddee00\"", &["n2.toml:3: cluster.id is 00112233445566778899aabbccddee00, and 0011"]);
    check(
        3,
        "[cluster]",
        "[cluster]\nname = \"other\"",
        &["n3.toml:3: cluster.name is other, and DefaultCluster in n1.toml"],
    );
    check(
        3,
        "9876\"]",
        "9876\", \"127.0.0.1:9877\"]",
        &["n3.toml:10: node.namesrv is 127.0.0.1:9876, 127.0.0.1:9877, and"],
    );
    check(2, "808", "908", &[]);
    check(2, "8082", "8081", &["n2.toml:8: node.http_listen is 127.0.0.1:8081, which n1.toml listens on too"]);
    check(2, "data2", "data1", &["n2.toml:7: node.data_dir is data1, as in n1.toml"]);
    check(
        2,
        "leader = \"n2\"",
        "leader = \"n3\"",
        &["n2.toml:15: group `broker-a`: preferred_leader is n3, and n2 in n1.toml"],
    );
    check(2, "id = 3", "id = 4", &["n2.toml:31: group `broker-a`: id of member `n3` is 4, and 3 in n1.toml"]);
    check(3, "127.0.0.1:11002", "127.0.0.1:11009", &["n3.toml:26: group `broker-a`: raft_addr of member `n2` is"]);
    let third = of_node(2);
    let third = &third[third.rfind("\n[[group.member]]").unwrap()..];
    check(2, third, "", &["n2.toml:12: group `broker-a`: member `n3` is missing, which n1.toml has"]);
    check(1, third, "", &["n2.toml:29: group `broker-a`: member `n3` is missing in n1.toml", "n3.toml:"]);
    check(2, "[node]", "[storage]\nflush = \"async\"\n[node]", &["n2.toml:6: storage.flush is Async"]);
    // A node that joins may know less than the others, and nothing that is not so.
    check(3, "node = \"n3\"\nid = 3\n", "node = \"n3\"\n", &[]);
}

#[test]
fn what_may_be_meant_is_only_noted() {
    let (mistakes, notes) = between(2, "[node]", "[retention]\ntime = \"24h\"\n[node]");
    assert!(mistakes.is_empty(), "{mistakes:?}");
    assert_eq!(notes, ["n2.toml:6: retention.time is 86400s, and 259200s in n1.toml"]);
    let texts = [of_node(1), of_node(2)];
    let options = texts.each_ref().map(|text| parse(text).unwrap());
    let files = [0, 1].map(|at| across::NodeFile { path: Path::new("a"), text: &texts[at], options: &options[at] });
    let found = across::check(&files);
    assert!(found.mistakes.is_empty() && found.notes.len() == 1, "{found:?}");
    assert!(found.notes[0].1.message.contains("no file of its member `n3`"), "{found:?}");
}
