//! What lies in `deploy/`, read by parsers that are not ours and compared with what the programs say and take.
#![expect(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use broker::config::{Options, parse_duration};
use promql_parser::parser::{self, Expr, LabelModifier};
use serde_yaml_ng::Value as Yaml;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Yaml {
    let mut value: Yaml = serde_yaml_ng::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    // What is merged in may merge something itself.
    for _ in 0..2 {
        value.apply_merge().unwrap();
    }
    value
}

/// Labels of what is exported, and those that Prometheus adds.
const LABELS: [&str; 21] = [
    "group",
    "member",
    "kind",
    "address",
    "le",
    "cluster",
    "node_type",
    "node_id",
    "topic",
    "consumer_group",
    "message_type",
    "is_retry",
    "is_system",
    "broker",
    "node",
    "status",
    "language",
    "version",
    "consume_mode",
    "instance",
    "job",
];

/// What is not on the dashboard, and why. A name that ends with `_` stands for all that begin like it.
const NOT_ON_DASHBOARD: [(&str, &[&str]); 4] = [
    (
        "for dashboards that were made for the exporter of RocketMQ 4",
        &[
            "rocketmq_broker_qps",
            "rocketmq_broker_tps",
            "rocketmq_brokeruntime_",
            "rocketmq_consumer_message_size",
            "rocketmq_consumer_offset",
            "rocketmq_consumer_tps",
            "rocketmq_group_",
            "rocketmq_message_accumulation",
            "rocketmq_producer_message_size",
            "rocketmq_producer_offset",
            "rocketmq_producer_tps",
            "rocketmq_topic_dlq_offset",
            "rocketmq_topic_retry_offset",
        ],
    ),
    (
        "a metric of ours on it says the same",
        &[
            "rocketmq_half_messages",
            "rocketmq_storage_message_reserve_time",
            "rocketmq_storage_size",
            "rocketmq_timing_messages",
        ],
    ),
    (
        "a place in the log, for whoever looks for an entry",
        &["gantry_log_end_bytes", "gantry_log_first_index", "gantry_log_start_bytes", "gantry_raft_snapshot_index"],
    ),
    ("the uptime on it says the same", &["process_start_time_seconds"]),
];

/// Metrics by name, with their kind, as docs/metrics.md lists them; tests of the programs keep that page true.
fn exported() -> BTreeMap<String, String> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let exported: BTreeMap<_, _> = rows
        .map(|row| {
            let mut cells = row.split(" | ");
            let name = cells.next().unwrap().trim_end_matches('`');
            (name.to_owned(), cells.next().unwrap().to_owned())
        })
        // The page also lists names of RocketMQ that are not there.
        .filter(|(_, kind)| ["counter", "gauge", "histogram"].contains(&kind.as_str()))
        .collect();
    assert!(exported.len() > 50, "{exported:?}");
    exported
}

/// Compares what a query asks for with what there is.
struct Checker {
    exported: BTreeMap<String, String>,
    asked: BTreeSet<String>,
}

impl Checker {
    fn new() -> Self {
        Self { exported: exported(), asked: BTreeSet::new() }
    }

    fn query(&mut self, whose: &str, query: &str) {
        let query = query.replace("$__rate_interval", "5m").replace("$group", ".*");
        let expr = parser::parse(&query).unwrap_or_else(|error| panic!("{whose}: {query}: {error}"));
        self.expr(whose, &expr, false);
    }

    fn expr(&mut self, whose: &str, expr: &Expr, counts: bool) {
        match expr {
            Expr::Aggregate(aggregate) => {
                if let Some(LabelModifier::Include(labels) | LabelModifier::Exclude(labels)) = &aggregate.modifier {
                    labels.labels.iter().for_each(|label| Self::label(whose, label));
                }
                self.expr(whose, &aggregate.expr, false);
            }
            Expr::Unary(unary) => self.expr(whose, &unary.expr, false),
            Expr::Binary(binary) => {
                self.expr(whose, &binary.lhs, false);
                self.expr(whose, &binary.rhs, false);
            }
            Expr::Paren(paren) => self.expr(whose, &paren.expr, counts),
            Expr::Subquery(query) => self.expr(whose, &query.expr, counts),
            Expr::NumberLiteral(_) | Expr::StringLiteral(_) => {}
            Expr::VectorSelector(selector) => self.selector(whose, selector, counts),
            Expr::MatrixSelector(matrix) => self.selector(whose, &matrix.vs, counts),
            Expr::Call(call) => {
                let counts = ["rate", "increase", "irate"].contains(&call.func.name);
                call.args.args.iter().for_each(|arg| self.expr(whose, arg, counts));
            }
            Expr::Extension(_) => panic!("{whose}: an extension"),
        }
    }

    fn selector(&mut self, whose: &str, selector: &parser::VectorSelector, counts: bool) {
        selector.matchers.matchers.iter().for_each(|matcher| Self::label(whose, &matcher.name));
        let name = selector.name.as_deref().unwrap_or_else(|| panic!("{whose}: a query without a name"));
        if name == "up" {
            return;
        }
        let histogram = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        let histogram = histogram.filter(|base| self.exported.get(*base).is_some_and(|kind| kind == "histogram"));
        let base = histogram.unwrap_or(name);
        let kind = self.exported.get(base).unwrap_or_else(|| panic!("{whose}: nothing exports {name}"));
        assert_eq!(kind == "histogram", histogram.is_some(), "{whose}: {name} is a {kind}");
        if counts {
            assert_ne!(kind, "gauge", "{whose}: a rate of {name}, which may fall");
        }
        self.asked.insert(base.to_owned());
    }

    fn label(whose: &str, label: &str) {
        assert!(LABELS.contains(&label), "{whose}: nothing has a label {label}");
    }
}

/// Headings of a page.
fn headings(page: &str) -> HashSet<String> {
    read(page).lines().filter_map(|line| Some(line.strip_prefix("## ")?.to_owned())).collect()
}

#[test]
fn alerts_ask_for_what_is_exported_and_say_where_to_read_on() {
    let rules = yaml("deploy/prometheus/alerts.yml");
    let headings = headings("docs/operations.md");
    let mut checker = Checker::new();
    let mut names = HashSet::new();
    for group in rules["groups"].as_sequence().unwrap() {
        for rule in group["rules"].as_sequence().unwrap() {
            let name = rule["alert"].as_str().unwrap();
            assert!(names.insert(name.to_owned()), "{name} twice");
            checker.query(name, rule["expr"].as_str().unwrap());
            assert!(["page", "ticket"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
            let see = rule["annotations"]["see"].as_str().unwrap();
            assert!(headings.contains(see), "{name}: docs/operations.md has no heading {see:?}");
            let summary = rule["annotations"]["summary"].as_str().unwrap();
            for label in summary.split("$labels.").skip(1) {
                let label = label.split([' ', '}']).next().unwrap();
                assert!(LABELS.contains(&label), "{name}: nothing has a label {label}");
            }
            if let Some(wait) = rule.get("for") {
                parse_duration(wait.as_str().unwrap()).unwrap();
            }
        }
    }
    assert!(names.len() >= 20, "{names:?}");
    let scraped = yaml("deploy/prometheus/prometheus.yml");
    assert_eq!(scraped["rule_files"][0], "alerts.yml");
    let jobs: Vec<_> =
        scraped["scrape_configs"].as_sequence().unwrap().iter().map(|job| job["job_name"].as_str().unwrap()).collect();
    assert_eq!(jobs, ["gantry-broker", "gantry-namesrv"]);
}

#[test]
fn the_dashboard_asks_for_what_is_exported() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("deploy/grafana/gantry.json")).unwrap();
    let mut checker = Checker::new();
    let (mut ids, mut places) = (HashSet::new(), HashSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is used twice");
        let place = &panel["gridPos"];
        assert!(places.insert((place["x"].as_u64(), place["y"].as_u64())), "{title}: lies on another");
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap().is_empty(), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            checker.query(title, query);
            for label in target["legendFormat"].as_str().unwrap().split("{{").skip(1) {
                let label = label.split("}}").next().unwrap();
                Checker::label(title, label);
                // A sum keeps only what it is grouped by.
                if let Some((_, by)) = query.split_once(" by (") {
                    let by = by.split(')').next().unwrap();
                    assert!(by.split(", ").any(|kept| kept == label), "{title}: {label} is summed away in {query}");
                }
            }
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let inner = query.strip_prefix("label_values(").and_then(|query| query.strip_suffix(')')).unwrap();
            let (metric, label) = inner.split_once(", ").unwrap();
            checker.query("a variable", metric);
            Checker::label("a variable", label);
        }
    }
    // The five things that take time are on it.
    for wanted in ["send", "commit", "log_sync", "apply", "pull"].map(|what| format!("gantry_{what}_seconds")) {
        assert!(checker.asked.contains(&wanted), "{wanted} is not on the dashboard");
    }
    let (asked, exported) = (&checker.asked, &checker.exported);
    let stands_for =
        |left_out: &str, name: &str| left_out == name || left_out.ends_with('_') && name.starts_with(left_out);
    let left_out: Vec<&str> = NOT_ON_DASHBOARD.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    for name in exported.keys().filter(|name| !asked.contains(*name)) {
        let has_reason = left_out.iter().any(|left_out| stands_for(left_out, name));
        assert!(has_reason, "{name} is not on the dashboard, and nothing says why");
    }
    for left_out in left_out {
        let mut those = exported.keys().filter(|name| stands_for(left_out, name)).peekable();
        assert!(those.peek().is_some(), "nothing exports {left_out}");
        assert!(those.all(|name| !asked.contains(name)), "{left_out} is on the dashboard");
    }
}

#[test]
#[should_panic(expected = "nothing exports gantry_no_such_thing")]
fn a_query_for_what_nobody_exports_is_found() {
    Checker::new().query("a test", "sum by (group) (rate(gantry_no_such_thing[5m]))");
}

#[test]
#[should_panic(expected = "a rate of gantry_raft_term, which may fall")]
fn a_rate_of_a_gauge_is_found() {
    Checker::new().query("a test", "rate(gantry_raft_term[5m])");
}

fn strings(value: &Yaml) -> Vec<&str> {
    value.as_sequence().map(|all| all.iter().map(|one| one.as_str().unwrap()).collect()).unwrap_or_default()
}

#[test]
fn the_compose_file_fits_the_configurations_and_the_image() {
    let compose = yaml("deploy/docker/compose.yaml");
    let services = compose["services"].as_mapping().unwrap();
    let address = |name: &str| -> Option<IpAddr> {
        compose["services"][name]["networks"]["gantry"]["ipv4_address"].as_str()?.parse().ok()
    };
    let mut nodes = 0;
    let mut ids = HashSet::new();
    for (name, service) in services {
        let name = name.as_str().unwrap();
        let command = strings(&service["command"]);
        assert_eq!((&service["image"], &service["read_only"]), (&"gantry".into(), &true.into()), "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        // The image has no shell, so checks are commands of the program.
        let test = strings(&service["healthcheck"]["test"]);
        assert_eq!(test[..4], ["CMD", "/gantry", "health", "--live"], "{name}");
        let checked: SocketAddr = test[4].parse().unwrap();
        let grace = parse_duration(service["stop_grace_period"].as_str().unwrap()).unwrap();
        match command[0] {
            "broker" => {
                nodes += 1;
                let mounts = strings(&service["volumes"]);
                let file = mounts[0].strip_suffix(":/etc/gantry/broker.toml:ro").unwrap();
                let path = root().join("deploy/docker").join(file);
                let options = Options::load(&path).unwrap();
                assert_eq!(options.node.name, name);
                ids.insert(options.cluster.id);
                let data = format!("data-{name}:{}", options.node.data_dir.display());
                assert_eq!(mounts[1], data);
                assert!(compose["volumes"].get(format!("data-{name}")).is_some(), "{name}: no volume");
                assert!(!options.storage.mount_identity, "{name}: a container is mounted anew at each start");
                assert!(grace > options.node.stop_forward_time + Duration::from_secs(30), "{name}: killed too soon");
                assert_eq!(checked.port(), options.node.http_listen.port(), "{name}");
                for group in &options.groups {
                    assert_eq!(group.members.len(), 3);
                    for member in &group.members {
                        let node = address(&member.node).unwrap_or_else(|| panic!("no service {}", member.node));
                        assert_eq!(member.client_addr.ip(), node, "{name}: {}", group.name);
                        assert!(member.raft_addr.starts_with(&format!("{node}:")), "{name}: {}", group.name);
                    }
                }
                for namesrv in &options.node.namesrv {
                    let addr: SocketAddr = namesrv.parse().unwrap();
                    let there = |service: &str| address(service) == Some(addr.ip());
                    assert!(["n1", "n2", "n3"].into_iter().any(there), "{name}: nobody is {namesrv}");
                }
            }
            "namesrv" => {
                let node = service["network_mode"].as_str().unwrap().strip_prefix("service:").unwrap();
                assert!(address(node).is_some(), "{name}: no node {node}");
                let http = command.iter().position(|word| *word == "--http").unwrap();
                assert!(command[http + 1].ends_with(&format!(":{}", checked.port())), "{name}");
            }
            "sidecar" => {
                assert_eq!(strings(&service["profiles"]), ["sidecar"], "it belongs to an application");
                let after = |flag| command[command.iter().position(|word| *word == flag).unwrap() + 1];
                let servers: Vec<_> = after("--namesrv").split(';').map(|addr| addr.parse::<SocketAddr>()).collect();
                let nodes = ["n1", "n2", "n3"].map(|name| address(name).unwrap());
                assert!(servers.len() == 3 && servers.iter().flatten().all(|addr| nodes.contains(&addr.ip())));
                assert_eq!(after("--http"), checked.to_string());
            }
            other => panic!("{name} runs {other}"),
        }
    }
    assert_eq!((nodes, ids.len(), services.len()), (3, 1, 7));
}

#[test]
fn the_image_holds_one_binary_and_runs_it_as_nobody() {
    let file = read("deploy/docker/Dockerfile").replace("\\\n", " ");
    let lines: Vec<_> = file.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let last = lines.iter().rposition(|line| line.starts_with("FROM ")).unwrap();
    assert_eq!(lines[last], "FROM scratch");
    let image = &lines[last + 1..];
    let copied: Vec<_> = image.iter().filter(|line| line.starts_with("COPY ")).collect();
    assert!(copied.len() == 2 && copied.iter().all(|line| line.starts_with("COPY --from=build ")), "{copied:?}");
    assert!(!image.iter().any(|line| line.starts_with("RUN ")), "there is no shell to run anything with");
    let user = image.iter().find_map(|line| line.strip_prefix("USER ")).unwrap();
    assert!(user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0)), "{user}");
    let entry = image.iter().find_map(|line| line.strip_prefix("ENTRYPOINT ")).unwrap();
    assert_eq!(serde_json::from_str::<Vec<String>>(entry).unwrap(), ["/gantry"]);
    let build = lines[..last].join("\n");
    assert!(build.contains("--locked") && build.contains("--target x86_64-unknown-linux-musl"), "{build}");
    let base = lines[0].strip_prefix("FROM rust:").unwrap().split('-').next().unwrap();
    let manifest = read("Cargo.toml");
    assert!(manifest.contains(&format!("rust-version = \"{base}\"")), "the image builds with Rust {base}");
}
