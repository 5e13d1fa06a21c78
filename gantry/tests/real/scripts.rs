//! `scripts/cluster` on one machine: what it prints, and a cluster that it runs and upgrades.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::cluster::gantry;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn script(args: &[&str]) -> Command {
    let mut command = Command::new(root().join("scripts/cluster"));
    command.args(args).current_dir(root()).env_remove("GANTRY_BOOTSTRAP").env_remove("GANTRY_LOG");
    command
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn a_dry_run_says_what_would_be_done_where() {
    let dry = |command: &str, nodes: &[&str]| {
        let output = script(&["-i", "scripts/inventory.sample", "--dry-run", command]).args(nodes).output().unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        text(&output)
    };
    let restart = dry("restart", &[]);
    let lines: Vec<_> = restart.lines().map(|line| line.split(" for i in").next().unwrap()).collect();
    assert_eq!(lines.len(), 9, "{restart}");
    assert_eq!(lines[0], "10.0.0.1: systemctl restart gantry-broker@n1");
    assert!(lines[1].starts_with("10.0.0.1: ") || lines[1] == "10.0.0.1:", "n1 is waited for before n2: {restart}");
    assert_eq!(lines[2], "10.0.0.2: systemctl restart gantry-broker@n2");
    assert_eq!(
        lines[6..],
        [
            "10.0.0.1: systemctl restart gantry-namesrv",
            "10.0.0.2: systemctl restart gantry-namesrv",
            "10.0.0.3: systemctl restart gantry-namesrv"
        ]
    );

    // Every node is asked first, all get the program, and only then is one stopped.
    let upgrade = dry("upgrade", &[]);
    let first = |what: &str| upgrade.lines().position(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}"));
    let last =
        |what: &str| upgrade.lines().count() - 1 - upgrade.lines().rev().position(|line| line.contains(what)).unwrap();
    assert!(last("so nothing was begun") < first("gantry.new"), "{upgrade}");
    assert!(last("gantry.new") < first("systemctl restart"), "{upgrade}");

    let bootstrap = dry("bootstrap", &["n2"]);
    assert!(bootstrap.lines().all(|line| line.starts_with("10.0.0.2: ")), "{bootstrap}");
    assert!(bootstrap.contains("GANTRY_BOOTSTRAP=true") && bootstrap.contains("rm -f /run/gantry-bootstrap.env"));
    let stop = dry("stop", &["n3"]);
    assert_eq!(stop, "10.0.0.3: systemctl stop gantry-broker@n3.socket\n10.0.0.3: systemctl stop gantry-namesrv\n");
    for (args, code) in [(&["dance"][..], 2), (&["start", "n9"], 2), (&[], 2)] {
        let output = script(&["-i", "scripts/inventory.sample", "--dry-run"]).args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {output:?}");
    }
}

/// Files and an inventory for three nodes on this machine.
struct Local {
    dir: tempfile::TempDir,
    namesrv: String,
    addrs: Vec<String>,
}

impl Local {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Vec::new();
        let mut free = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap().to_string();
            kept.push(listener);
            addr
        };
        let (namesrv, http) = (free(), free());
        let conf = dir.path().join("conf");
        std::fs::create_dir(&conf).unwrap();
        std::fs::write(conf.join("namesrv.toml"), format!("listen = \"{namesrv}\"\nhttp_listen = \"{http}\"\n"))
            .unwrap();
        let nodes: Vec<[String; 3]> = (0..3).map(|_| [free(), free(), free()]).collect();
        let mut inventory = "# name host roles health\n".to_owned();
        for (number, [raft, http, client]) in (1..).zip(&nodes) {
            let data = dir.path().join(format!("data-n{number}"));
            let mut file = format!(
                "[cluster]\nid = \"00112233445566778899aabbccddeeff\"\n[node]\nname = \"n{number}\"\ndata_dir = {data:?}\n\
                 raft_listen = \"{raft}\"\nhttp_listen = \"{http}\"\nnamesrv = [\"{namesrv}\"]\nstop_forward_time = \"1s\"\n\
                 [storage]\nsegment_bytes = \"16MiB\"\nallow_unproven_filesystem = true\nballast_bytes = \"0B\"\n\
                 [broker]\nauto_create_topics = true\n\
                 [[group]]\nname = \"broker-a\"\nclient_listen = \"{client}\"\n"
            );
            for (id, [raft, _, client]) in (1..).zip(&nodes) {
                file += &format!(
                    "[[group.member]]\nnode = \"n{id}\"\nid = {id}\nraft_addr = \"{raft}\"\nclient_addr = \"{client}\"\n"
                );
            }
            std::fs::write(conf.join(format!("n{number}.toml")), file).unwrap();
            let roles = if number == 1 { "namesrv,broker" } else { "broker" };
            inventory += &format!("n{number} somewhere {roles} {http}\n");
        }
        std::fs::write(dir.path().join("inventory"), inventory).unwrap();
        let addrs = nodes.into_iter().map(|[_, http, _]| http).collect();
        Self { dir, namesrv, addrs }
    }

    fn try_run(&self, command: &str) -> Output {
        let inventory = self.dir.path().join("inventory");
        let mut script = script(&["-i", inventory.to_str().unwrap(), "--local", command]);
        script.env("CONF_DIR", self.dir.path().join("conf")).env("LOCAL_DIR", self.dir.path().join("run"));
        script.env("GANTRY_BIN", env!("CARGO_BIN_EXE_gantry")).output().unwrap()
    }

    fn run(&self, command: &str) -> String {
        let output = self.try_run(command);
        assert!(output.status.success(), "{command}: {}", text(&output));
        text(&output)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Processes that a failed test has left: those whose numbers are written down.
        for entry in std::fs::read_dir(self.dir.path().join("run")).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|end| end == "pid")
                && let Ok(pid) = std::fs::read_to_string(entry.path()).unwrap_or_default().trim().parse::<i32>()
                && let Some(pid) = rustix::process::Pid::from_raw(pid)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
            }
        }
    }
}

#[test]
fn a_cluster_is_installed_started_upgraded_under_load_and_stopped() {
    let local = Local::new();
    local.run("install");
    local.run("bootstrap");
    let status = local.run("status");
    assert_eq!(status.lines().filter(|line| line.contains(" active")).count(), 4, "{status}");
    assert_eq!(status.matches("every group has a leader").count(), 3, "{status}");

    let verify = gantry()
        .args([
            "verify",
            "-n",
            &local.namesrv,
            "--topic",
            "checked",
            "--count",
            "900",
            "--rate",
            "50",
            "--output",
            "json",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    local.run("upgrade");
    let output = verify.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&verdict["acked"], &verdict["lost"]), (&900.into(), &0.into()), "{verdict}");

    let inspect = local.run("inspect");
    for node in ["== n1", "== n2", "== n3"] {
        assert!(inspect.contains(node), "{inspect}");
    }
    assert_eq!(inspect.matches("\ngantry 0.").count() + usize::from(inspect.starts_with("gantry 0.")), 3, "{inspect}");

    // A node that is down keeps an upgrade from beginning.
    let log =
        |node: &str| std::fs::read_to_string(local.dir.path().join(format!("run/gantry-broker@{node}.log"))).unwrap();
    let starts = |node: &str| log(node).matches("every replica runs").count();
    let before = starts("n1");
    let pid = std::fs::read_to_string(local.dir.path().join("run/gantry-broker@n3.pid")).unwrap();
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    crate::cluster::poll(std::time::Duration::from_secs(40), "n3 ends", || {
        (std::net::TcpStream::connect(&local.addrs[2]).is_err()).then_some(())
    });
    let refused = local.try_run("upgrade");
    assert!(!refused.status.success());
    assert!(text(&refused).contains("n3 is not ready, so nothing was begun"), "{}", text(&refused));
    assert_eq!(starts("n1"), before, "n1 was restarted");

    local.run("stop");
    let status = local.run("status");
    assert_eq!(status.lines().filter(|line| line.contains("inactive")).count(), 4, "{status}");
}
