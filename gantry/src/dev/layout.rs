//! What a development cluster looks like: its nodes, groups and ports, kept in `dev.json` of its data directory.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::setting::{self, Setting};

/// RocketMQ's port for name servers, and the default base.
pub(super) const BASE_PORT: u16 = 9876;
pub(super) const GROUPS_MAX: u16 = 9;
const NAME_SERVERS: u16 = 3;

/// When an acknowledged message is on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Flush {
    /// Before the answer, on a majority
    #[default]
    Sync,
    /// Within 200 ms
    Async,
}

impl Flush {
    fn name(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Async => "async",
        }
    }
}

/// The shape of the cluster. Written once, when the data directory is new.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Layout {
    pub(super) cluster_id: String,
    pub(super) nodes: u16,
    pub(super) groups: u16,
    pub(super) base_port: u16,
    #[serde(default)]
    pub(super) flush: Flush,
    /// Every group has had a leader once, so an empty node directory is a lost disk and no new cluster.
    pub(super) bootstrapped: bool,
}

/// What the command line asked for; `None` is "as it is, or the default".
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) nodes: Option<u16>,
    pub(super) groups: Option<u16>,
    pub(super) base_port: Option<u16>,
    pub(super) flush: Option<Flush>,
}

impl Layout {
    /// The layout in `dir`, or a new one as `wanted`; one that is there and differs from `wanted` is refused.
    pub(super) fn open(dir: &Path, wanted: Wanted) -> Result<Self> {
        let path = dir.join("dev.json");
        match fs::read(&path) {
            Ok(text) => {
                let mut layout: Self =
                    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))?;
                for (name, wanted, found) in
                    [("--nodes", wanted.nodes, layout.nodes), ("--groups", wanted.groups, layout.groups)]
                {
                    if wanted.is_some_and(|wanted| wanted != found) {
                        bail!(
                            "the cluster in {} was made with {name} {found}; `gantry dev reset` removes it and its data",
                            dir.display()
                        );
                    }
                }
                if let Some(flush) = wanted.flush.filter(|&flush| flush != layout.flush) {
                    bail!(
                        "the cluster in {} was made with --flush {}, not {}; `gantry dev reset` removes it and its data",
                        dir.display(),
                        layout.flush.name(),
                        flush.name()
                    );
                }
                if let Some(base_port) = wanted.base_port.filter(|&port| port != layout.base_port) {
                    // Members keep their addresses in the log, so a move of ports is a new cluster.
                    bail!(
                        "the cluster in {} uses --base-port {}, not {base_port}; `gantry dev reset` removes it and its data",
                        dir.display(),
                        layout.base_port
                    );
                }
                layout.check()?;
                layout.cluster_id.make_ascii_lowercase();
                Ok(layout)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let nodes = wanted.nodes.unwrap_or(3);
                let layout = Self {
                    cluster_id: crate::new_cluster_id(),
                    nodes,
                    groups: wanted.groups.unwrap_or(nodes),
                    base_port: wanted.base_port.unwrap_or(BASE_PORT),
                    flush: wanted.flush.unwrap_or_default(),
                    bootstrapped: false,
                };
                layout.check()?;
                layout.save(dir)?;
                Ok(layout)
            }
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    pub(super) fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join("dev.json");
        let text = serde_json::to_vec_pretty(self).context("encoding the layout")?;
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    fn check(&self) -> Result<()> {
        ensure!([1, 3, 5].contains(&self.nodes), "--nodes is {}, allowed are 1, 3 and 5", self.nodes);
        ensure!((1..=GROUPS_MAX).contains(&self.groups), "--groups is {}, allowed are 1 to {GROUPS_MAX}", self.groups);
        let last = u32::from(self.base_port) + 1_035 + 100 * u32::from(self.nodes);
        ensure!(
            self.base_port >= 1_024 && last <= 65_535,
            "--base-port is {}, allowed are 1024 to 64000",
            self.base_port
        );
        Ok(())
    }

    pub(super) fn namesrv_addrs(&self) -> Vec<SocketAddr> {
        (0..NAME_SERVERS).map(|number| self.port(number)).collect()
    }

    /// The line to paste into a client.
    pub(super) fn namesrv_line(&self) -> String {
        self.namesrv_addrs().iter().map(ToString::to_string).collect::<Vec<_>>().join(";")
    }

    pub(super) fn node_name(number: u16) -> String {
        format!("n{number}")
    }

    /// `broker-a`, `broker-b` ...; groups count from 0.
    pub(super) fn group_name(number: u16) -> String {
        let letter = char::from(b'a' + u8::try_from(number).expect("at most nine groups"));
        format!("broker-{letter}")
    }

    pub(super) fn http_addr(&self, node: u16) -> SocketAddr {
        self.port(24 + node)
    }

    fn raft_addr(&self, node: u16) -> SocketAddr {
        self.port(34 + node)
    }

    /// With the default base: 10911, 10921, 10931 on the first node, 11011 ... on the second.
    pub(super) fn client_addr(&self, node: u16, group: u16) -> SocketAddr {
        self.port(1_035 + 100 * (node - 1) + 10 * group)
    }

    fn port(&self, distance: u16) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.base_port + distance))
    }

    /// Every port of the cluster, to find out before the start who else uses one.
    pub(super) fn listeners(&self) -> Vec<SocketAddr> {
        let mut all = self.namesrv_addrs();
        for node in 1..=self.nodes {
            all.extend([self.http_addr(node), self.raft_addr(node)]);
            all.extend((0..self.groups).map(|group| self.client_addr(node, group)));
        }
        all
    }

    /// Where a node keeps its configuration and data.
    pub(super) fn node_dir(dir: &Path, node: u16) -> PathBuf {
        dir.join(Self::node_name(node))
    }

    /// Writes the configuration of every node, always anew, so that a newer version's needs are met.
    pub(super) fn write_configs(&self, dir: &Path, stop_forward: Duration, settings: &[Setting]) -> Result<()> {
        for node in 1..=self.nodes {
            let node_dir = Self::node_dir(dir, node);
            fs::create_dir_all(&node_dir).with_context(|| format!("creating {}", node_dir.display()))?;
            let path = node_dir.join("broker.toml");
            let text = setting::apply(&self.config(&node_dir, node, stop_forward), settings)?;
            fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
            if !settings.is_empty() {
                broker::config::Options::load(&path).context("a key given with --set")?;
            }
        }
        Ok(())
    }

    fn config(&self, node_dir: &Path, node: u16, stop_forward: Duration) -> String {
        let namesrv = self.namesrv_addrs().iter().map(|addr| format!("\"{addr}\"")).collect::<Vec<_>>().join(", ");
        let data_dir = toml::Value::String(node_dir.join("data").display().to_string());
        let mut text = format!(
            "# Written by `gantry dev` at every start; changes are lost.\n\n\
             [cluster]\nid = \"{}\"\n\n\
             [node]\nname = \"{}\"\ndata_dir = {data_dir}\nraft_listen = \"{}\"\nhttp_listen = \"{}\"\n\
             namesrv = [{namesrv}]\nstop_forward_time = \"{}s\"\n\n\
             [storage]\nsegment_bytes = \"64MiB\"\nflush = \"{}\"\nallow_unproven_filesystem = true\n\
             disk_early_percent = 90\ndisk_forced_percent = 95\ndisk_free_percent_min = 2\nballast_bytes = \"0B\"\n\n\
             [broker]\nauto_create_topics = true\n",
            self.cluster_id,
            Self::node_name(node),
            self.raft_addr(node),
            self.http_addr(node),
            stop_forward.as_secs(),
            self.flush.name(),
        );
        for group in 0..self.groups {
            let _ = write!(
                text,
                "\n[[group]]\nname = \"{}\"\nclient_listen = \"{}\"\npreferred_leader = \"{}\"\n",
                Self::group_name(group),
                self.client_addr(node, group),
                Self::node_name(1 + group % self.nodes),
            );
            for member in 1..=self.nodes {
                let _ = write!(
                    text,
                    "\n[[group.member]]\nnode = \"{}\"\nid = {member}\nraft_addr = \"{}\"\nclient_addr = \"{}\"\n",
                    Self::node_name(member),
                    self.raft_addr(member),
                    self.client_addr(member, group),
                );
            }
        }
        text
    }
}

/// Whether a name in the data directory is one that `gantry dev` gave.
pub(super) fn is_ours(name: &str) -> bool {
    let node = name.strip_prefix('n').is_some_and(|number| number.parse::<u16>().is_ok());
    node || ["dev.json", "dev.lock", "control.sock", "log"].contains(&name)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_default_ports_are_the_well_known_ones() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path(), Wanted::default()).unwrap();
        assert_eq!(layout.namesrv_line(), "127.0.0.1:9876;127.0.0.1:9877;127.0.0.1:9878");
        assert_eq!(layout.client_addr(1, 0).port(), 10_911);
        assert_eq!(layout.client_addr(2, 2).port(), 11_031);
    }

    #[test]
    fn no_port_is_used_twice_and_every_config_is_valid() {
        for nodes in [1, 3, 5] {
            let dir = tempfile::tempdir().unwrap();
            let wanted = Wanted {
                nodes: Some(nodes),
                groups: Some(GROUPS_MAX),
                base_port: Some(20_000),
                flush: Some(Flush::Async),
            };
            let layout = Layout::open(dir.path(), wanted).unwrap();
            let ports = layout.listeners();
            assert_eq!(ports.iter().collect::<HashSet<_>>().len(), ports.len());
            let settings = ["retention.time=30s".parse().unwrap()];
            layout.write_configs(dir.path(), Duration::from_secs(2), &settings).unwrap();
            for node in 1..=nodes {
                let path = Layout::node_dir(dir.path(), node).join("broker.toml");
                let options = broker::config::Options::load(&path).unwrap();
                assert_eq!(options.groups.len(), usize::from(GROUPS_MAX));
                assert_eq!(options.retention.time, Duration::from_secs(30));
                assert!(matches!(options.storage.flush, broker::config::FlushOptions::Async { .. }));
            }
        }
    }

    #[test]
    fn a_second_run_resumes_and_another_shape_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = Layout::open(dir.path(), Wanted { nodes: Some(1), ..Wanted::default() }).unwrap();
        assert_eq!(first.groups, 1);
        assert_eq!(Layout::open(dir.path(), Wanted::default()).unwrap(), first);
        for wanted in [
            Wanted { nodes: Some(3), ..Wanted::default() },
            Wanted { groups: Some(2), ..Wanted::default() },
            Wanted { base_port: Some(10_000), ..Wanted::default() },
            Wanted { flush: Some(Flush::Async), ..Wanted::default() },
        ] {
            let error = Layout::open(dir.path(), wanted).unwrap_err().to_string();
            assert!(error.contains("gantry dev reset"), "{error}");
        }
        let other = tempfile::tempdir().unwrap();
        assert!(Layout::open(other.path(), Wanted { nodes: Some(2), ..Wanted::default() }).is_err());
    }
}
