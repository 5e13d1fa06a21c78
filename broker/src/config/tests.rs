//! What a file may say, and what it is told when it is wrong.

use std::path::Path;

use super::reference::{Fallback, GROUP, Kind, MEMBER, SECTIONS, Section, TOKEN, commented_file, schema};
use super::*;

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
    check_refused("id = 2", "id = \"two\"", &["broker.toml:18", "invalid type"]);
    check_refused("[cluster]\nid = \"00112233445566778899aabbccddeeff\"", "[cluster]", &["missing field `id`"]);
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
        ("role = \"owner\"\nsha256 = \"\"", "unknown variant `owner`"),
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
    check_refused("id = 2", "id = 0", &["member ids start at 1"]);
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
    assert!(parse(&twice).unwrap_err().message.contains("port of its own"));
    assert!(parse(&format!("{GOOD}\n[[group]]{second}")).is_ok());
    let same_name = second.replace("broker-b", "broker-a");
    assert!(parse(&format!("{GOOD}\n[[group]]{same_name}")).unwrap_err().message.contains("two groups"));
}

#[test]
fn retention_and_catch_up_have_limits() {
    let section = |text: &str| format!("{text}\n[[group]]");
    for (text, says) in [
        ("[retention]\ntime = \"500ms\"", "retention.time is 500ms, allowed are 1s to 3650d"),
        ("[retention]\ntime = \"4000d\"", "allowed are 1s to 3650d"),
        ("[retention]\ntime = 72", "a duration with its unit"),
        ("[retention]\ndelete_hours = [4, 24]", "retention.delete_hours has 24, allowed are the hours 0 to 23 (UTC)"),
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

/// What the types of the file take in one of its tables: serde names them all when it refuses one.
fn accepted(table: &str) -> Vec<String> {
    let text = match table {
        "group" => GOOD.replacen("client_listen", "zzz = 1\nclient_listen", 1),
        "http.token" => {
            let token = "[[http.token]]\nzzz = 1\nname = \"a\"\nrole = \"read\"\n[[group]]";
            GOOD.replacen("[[group]]", token, 1)
        }
        "group.member" => GOOD.replacen("id = 2", "zzz = 1\nid = 2", 1),
        table if GOOD.contains(&format!("[{table}]")) => {
            GOOD.replacen(&format!("[{table}]"), &format!("[{table}]\nzzz = 1"), 1)
        }
        table => GOOD.replacen("[[group]]", &format!("[{table}]\nzzz = 1\n[[group]]"), 1),
    };
    let error = parse(&text).unwrap_err().message;
    let (found, expected) = error.split_once(", expected ").unwrap_or_else(|| panic!("{table}: {error}"));
    assert_eq!(found, "unknown key `zzz`");
    let mut names: Vec<_> = expected.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn the_reference_has_every_key_and_no_other() {
    let tables: Vec<&str> = SECTIONS.iter().map(|section| section.name).chain(["group", "http"]).collect();
    let error = parse(&GOOD.replacen("[node]", "[zzz]\n[node]", 1)).unwrap_err().message;
    let accepted_tables: Vec<_> = error.split('`').skip(3).step_by(2).collect();
    assert_eq!(sorted(tables), sorted(accepted_tables));
    for section in SECTIONS.iter().chain([&GROUP, &MEMBER, &TOKEN]) {
        let mut names: Vec<_> = section.keys.iter().map(|key| key.name).collect();
        if section.name == "group" {
            names.push("member");
        }
        assert_eq!(sorted(names), accepted(section.name), "[{}]", section.name);
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
}
