//! A cluster of real processes: `gantry namesrv` and `gantry broker`, each with its own directory and log, on loopback or
//! each in a network namespace of a [`lab`].
//!
//! Everything lives below one directory that belongs to the run. Processes end with the harness: each holds a pipe
//! whose other end is ours.

mod http;
pub mod lab;
mod node;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
pub use http::{get_json, post};
use lab::Host;
pub use lab::Lab;
pub use node::{Node, NodeKind};
use serde_json::Value;

use crate::recorder::Recorder;

/// How long a new cluster may take until every group has a leader that answers.
const START_TIME_MAX: Duration = Duration::from_secs(40);
const POLL_INTERVAL: Duration = Duration::from_millis(100);
const HTTP_TIME_MAX: Duration = Duration::from_millis(900);

/// The shape of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub brokers: u16,
    pub name_servers: u16,
    pub groups: u16,
}

/// Where everything of a cluster listens, and what can be asked there. Clones are the same.
#[derive(Clone, Debug)]
pub struct Layout {
    pub shape: Shape,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// On loopback, at these ports.
    Loopback(Vec<u16>),
    /// Each process on a host of its own.
    Lab,
}

/// Real processes.
pub struct Cluster {
    pub layout: Layout,
    pub nodes: Vec<Node>,
    /// The network between them, if it is one that faults can touch.
    pub lab: Option<Lab>,
    dir: PathBuf,
}

impl Cluster {
    /// Starts a new cluster in `dir` and waits until it serves. With a lab its processes are put there.
    ///
    /// # Errors
    /// A process cannot be started, or the cluster does not serve in time.
    pub async fn start(gantry: &Path, dir: &Path, shape: Shape, lab: Option<Lab>, recorder: &Recorder) -> Result<Self> {
        ensure!(gantry.is_file(), "{} is no file; build it with `cargo build --release`", gantry.display());
        let place = if lab.is_some() { Place::Lab } else { Place::Loopback(free_ports(shape)?) };
        let layout = Layout { shape, place };
        let command = |host: Host, args: &[&str]| -> Vec<OsString> {
            let entrance = lab.as_ref().map(|_| host.entrance()).unwrap_or_default();
            let args = args.iter().map(OsString::from);
            entrance.into_iter().map(OsString::from).chain([gantry.into()]).chain(args).collect()
        };
        let mut nodes = Vec::new();
        for number in 1..=shape.name_servers {
            let listen = layout.namesrv_addr(number);
            let listens = listen.to_string();
            let public: &[&str] = if lab.is_some() { &["--insecure-public"] } else { &[] };
            let command = command(Host::NameServer(number), &[&["namesrv", "--listen", &listens], public].concat());
            let name = format!("ns{number}");
            let log = dir.join(format!("{name}.log"));
            nodes.push(Node::new(name, NodeKind::NameServer, command, log, listen, recorder));
        }
        let port = layout.namesrv_addr(1).port();
        let cluster_id = format!("{:032x}", (u128::from(std::process::id()) << 64) | u128::from(port));
        for number in 1..=shape.brokers {
            let node_dir = dir.join(format!("n{number}"));
            std::fs::create_dir_all(&node_dir).with_context(|| format!("creating {}", node_dir.display()))?;
            let token = node_dir.join("http-token");
            std::fs::write(&token, http::TOKEN).with_context(|| format!("writing {}", token.display()))?;
            let config = node_dir.join("broker.toml");
            std::fs::write(&config, layout.config(&cluster_id, &node_dir, number))
                .with_context(|| format!("writing {}", config.display()))?;
            let command = command(Host::Broker(number), &["broker", "--config", &config.display().to_string()]);
            let name = format!("n{number}");
            let log = dir.join(format!("{name}.log"));
            let probe = layout.raft_addr(number);
            nodes.push(Node::new(name, NodeKind::Broker, command, log, probe, recorder));
        }
        let mut cluster = Self { layout, nodes, lab, dir: dir.to_owned() };
        for node in &mut cluster.nodes {
            let first: &[&str] = if node.kind == NodeKind::Broker { &["--bootstrap"] } else { &[] };
            node.start(first)?;
        }
        cluster.layout.await_leaders(START_TIME_MAX).await.context("starting the cluster")?;
        Ok(cluster)
    }

    /// A process, by name: `n1`, `ns1` and so on.
    pub fn node(&mut self, name: &str) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.name == name)
    }

    /// Deletes a directory of derived files in each replica of a broker, which does not run.
    ///
    /// # Errors
    /// Some replica has none, or it cannot be deleted.
    pub fn delete_derived(&self, number: u16, what: &str) -> Result<()> {
        for group in 0..self.layout.shape.groups {
            let dir = self.data_dir(number).join(group_name(group)).join(what);
            std::fs::remove_dir_all(&dir).with_context(|| format!("deleting {}", dir.display()))?;
        }
        Ok(())
    }

    /// Deletes all that a broker has, which does not run.
    ///
    /// # Errors
    /// It cannot be deleted.
    pub fn delete_data(&self, number: u16) -> Result<()> {
        let dir = self.data_dir(number);
        std::fs::remove_dir_all(&dir).with_context(|| format!("deleting {}", dir.display()))
    }

    fn data_dir(&self, number: u16) -> PathBuf {
        self.dir.join(format!("n{number}")).join("data")
    }

    /// Ends every process, brokers first.
    pub async fn stop(&mut self) {
        for node in self.nodes.iter_mut().rev() {
            node.stop().await;
        }
    }
}

impl Layout {
    /// Waits until every group has a leader that answers clients.
    ///
    /// # Errors
    /// It has not after `limit`.
    pub async fn await_leaders(&self, limit: Duration) -> Result<()> {
        let reached = async {
            while !self.all_led().await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(limit, reached).await.is_err() {
            bail!("not every group has a leader after {limit:?}");
        }
        Ok(())
    }

    async fn all_led(&self) -> bool {
        for group in 0..self.shape.groups {
            if self.leader_of(&group_name(group)).await.is_none() {
                return false;
            }
        }
        true
    }

    /// The number of the broker that leads `group` and answers its clients.
    pub async fn leader_of(&self, group: &str) -> Option<u16> {
        for number in 1..=self.shape.brokers {
            let Ok(status) = self.status(number).await else { continue };
            let leads =
                |found: &Value| found["name"] == group && found["role"] == "leader" && found["gates_open"] == true;
            if status["groups"].as_array().is_some_and(|groups| groups.iter().any(leads)) {
                return Some(number);
            }
        }
        None
    }

    /// What a broker says about itself.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn status(&self, number: u16) -> Result<Value> {
        get_json(self.http_addr(number), "/v1/status", HTTP_TIME_MAX).await
    }

    /// The address that clients are given.
    pub fn name_servers(&self) -> Vec<SocketAddr> {
        (1..=self.shape.name_servers).map(|number| self.namesrv_addr(number)).collect()
    }

    fn namesrv_addr(&self, number: u16) -> SocketAddr {
        let nth = usize::from(number - 1);
        self.addr(nth, || (Host::NameServer(number).addr(), 9_876))
    }

    /// Of the management, which no fault touches.
    pub fn http_addr(&self, number: u16) -> SocketAddr {
        self.addr(self.first_of_broker(number), || (Host::Broker(number).management_addr(), 8_080))
    }

    pub fn raft_addr(&self, number: u16) -> SocketAddr {
        self.addr(self.first_of_broker(number) + 1, || (Host::Broker(number).addr(), lab::RAFT_PORT))
    }

    pub fn client_addr(&self, number: u16, group: u16) -> SocketAddr {
        let nth = self.first_of_broker(number) + 2 + usize::from(group);
        self.addr(nth, || (Host::Broker(number).addr(), 10_911 + group))
    }

    fn first_of_broker(&self, number: u16) -> usize {
        usize::from(self.shape.name_servers) + usize::from(number - 1) * (2 + usize::from(self.shape.groups))
    }

    /// The port of this number on loopback, or what it is in a lab.
    fn addr(&self, nth: usize, in_lab: impl FnOnce() -> (Ipv4Addr, u16)) -> SocketAddr {
        match &self.place {
            Place::Loopback(ports) => SocketAddr::from((Ipv4Addr::LOCALHOST, ports[nth])),
            Place::Lab => in_lab().into(),
        }
    }

    fn config(&self, cluster_id: &str, node_dir: &Path, number: u16) -> String {
        let data: PathBuf = node_dir.join("data");
        let namesrv: Vec<String> = self.name_servers().iter().map(|addr| format!("\"{addr}\"")).collect();
        let mut text = format!(
            "[cluster]\nid = \"{cluster_id}\"\n\n\
             [node]\nname = \"n{number}\"\ndata_dir = {data:?}\nraft_listen = \"{}\"\nhttp_listen = \"{}\"\n\
             namesrv = [{}]\nstop_forward_time = \"1s\"\ninsecure_public = {}\n\n\
             [storage]\nsegment_bytes = \"16MiB\"\nallow_unproven_filesystem = true\ndisk_early_percent = 90\n\
             disk_forced_percent = 95\ndisk_free_percent_min = 2\nballast_bytes = \"0B\"\n",
            self.raft_addr(number),
            self.http_addr(number),
            namesrv.join(", "),
            matches!(self.place, Place::Lab),
        );
        if matches!(self.place, Place::Lab) {
            let file = node_dir.join("http-token");
            // Writing to a string cannot fail.
            let _ = write!(text, "\n[[http.token]]\nname = \"harness\"\nrole = \"admin\"\nfile = {file:?}\n");
        }
        for group in 0..self.shape.groups {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n[[group]]\nname = \"{}\"\nclient_listen = \"{}\"\npreferred_leader = \"n{}\"\n",
                group_name(group),
                self.client_addr(number, group),
                1 + group % self.shape.brokers,
            );
            for member in 1..=self.shape.brokers {
                let _ = write!(
                    text,
                    "\n[[group.member]]\nnode = \"n{member}\"\nid = {member}\nraft_addr = \"{}\"\nclient_addr = \"{}\"\n",
                    self.raft_addr(member),
                    self.client_addr(member, group),
                );
            }
        }
        text
    }
}

/// `broker-a`, `broker-b` ...; groups count from 0.
pub fn group_name(number: u16) -> String {
    format!("broker-{}", char::from(b'a' + u8::try_from(number % 26).unwrap_or_default()))
}

/// As many ports as the shape needs, free at this moment.
fn free_ports(shape: Shape) -> Result<Vec<u16>> {
    let count = usize::from(shape.name_servers) + usize::from(shape.brokers) * (2 + usize::from(shape.groups));
    // All of them are held until the last one is found, so that none comes twice.
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("finding a free port"))
        .collect::<Result<_>>()?;
    held.iter().map(|listener| Ok(listener.local_addr().context("reading a port")?.port())).collect()
}
