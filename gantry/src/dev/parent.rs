//! The parent of a development cluster: starts the processes, obeys second terminals, stops everything in order.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::child::{Activity, Child};
use super::control::{self, Action, Answer, Call, Request, Target};
use super::layout::Layout;
use super::setting::Setting;
use super::view::{self, Kind, ProcessView, State, View};
use crate::output;

/// The table is printed at the latest this long after the start, with whatever is known by then.
const TABLE_TIME_MAX: Duration = Duration::from_millis(2_700);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// After it has forwarded, a node has its data to flush; after this it is killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);
const ALL_STOP_TIME_MAX: Duration = Duration::from_secs(10);

pub(super) struct Options {
    pub(super) dir: PathBuf,
    pub(super) layout: Layout,
    pub(super) json: bool,
    /// What the nodes' configurations say besides.
    pub(super) settings: Vec<Setting>,
    /// How long a stopped node forwards requests before it ends.
    pub(super) stop_forward: Duration,
    /// Commands in a second terminal must name the directory.
    pub(super) named_dir: bool,
}

/// Runs the cluster until a signal ends it.
pub(super) async fn run(options: Options) -> Result<()> {
    let started = Instant::now();
    // Handlers first, so that a Ctrl-C from now on stops cleanly.
    let mut interrupt = signal(SignalKind::interrupt()).context("handling SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("handling SIGTERM")?;
    let mut hangup = signal(SignalKind::hangup()).context("handling SIGHUP")?;
    for addr in options.layout.listeners() {
        TcpListener::bind(addr).with_context(|| {
            format!("port {} is in use; end its owner, or choose other ports with --base-port", addr.port())
        })?;
    }
    let (calls, mut call) = mpsc::channel(control::REQUESTS_MAX);
    let control = control::listen(&options.dir, calls)?;
    let mut cluster = Cluster::new(options)?;

    let result = match cluster.start_all() {
        Ok(()) => {
            let mut announced = false;
            loop {
                tokio::select! {
                    _ = interrupt.recv() => break Ok(()),
                    _ = terminate.recv() => break Ok(()),
                    _ = hangup.recv() => break Ok(()),
                    Some(Call { request, answer }) = call.recv() => {
                        let _ = answer.send(cluster.obey(request).await);
                    }
                    () = cluster.any_end() => cluster.report_ends(),
                    () = tokio::time::sleep(POLL_INTERVAL), if !announced || !cluster.options.layout.bootstrapped => {
                        let view = cluster.view().await;
                        if view.all_led() && !cluster.options.layout.bootstrapped {
                            cluster.options.layout.bootstrapped = true;
                            cluster.options.layout.save(&cluster.options.dir)?;
                        }
                        if !announced && (view.all_led() || started.elapsed() > TABLE_TIME_MAX) {
                            announced = true;
                            cluster.announce(&view, started.elapsed())?;
                        }
                    }
                }
            }
        }
        Err(error) => Err(error),
    };
    drop(call);
    eprintln!("stopping ...");
    let stopped = cluster.stop_all().await;
    let _ = control.await;
    result.and(stopped)?;
    eprintln!("stopped; the data is in {}", cluster.options.dir.display());
    Ok(())
}

struct Cluster {
    options: Options,
    /// Name servers first.
    children: Vec<Child>,
}

impl Cluster {
    fn new(options: Options) -> Result<Self> {
        options.layout.write_configs(&options.dir, options.stop_forward, &options.settings)?;
        let log = |name: &str| options.dir.join("log").join(format!("{name}.log"));
        let mut children = Vec::new();
        for (number, addr) in (1..).zip(options.layout.namesrv_addrs()) {
            let name = format!("ns{number}");
            let args = ["namesrv", "--listen", &addr.to_string(), "--stop-with-stdin"].map(ToOwned::to_owned);
            children.push(Child::new(name.clone(), args.to_vec(), log(&name)));
        }
        for node in 1..=options.layout.nodes {
            let name = Layout::node_name(node);
            let config = Layout::node_dir(&options.dir, node).join("broker.toml").display().to_string();
            let args = ["broker", "--supervise", "--config", &config, "--stop-with-stdin"].map(ToOwned::to_owned);
            children.push(Child::new(name.clone(), args.to_vec(), log(&name)));
        }
        Ok(Self { options, children })
    }

    fn start_all(&mut self) -> Result<()> {
        for index in 0..self.children.len() {
            self.start(index, &[])?;
        }
        Ok(())
    }

    fn start(&mut self, index: usize, extra: &[&str]) -> Result<()> {
        let extra = match self.kind(index) {
            Kind::Broker if !self.options.layout.bootstrapped => &["--bootstrap"],
            Kind::Broker => extra,
            Kind::Namesrv => &[],
        };
        self.children[index].start(extra)
    }

    fn kind(&self, index: usize) -> Kind {
        if index < self.options.layout.namesrv_addrs().len() { Kind::Namesrv } else { Kind::Broker }
    }

    /// The number of the node that the child with this index is.
    fn node_number(&self, index: usize) -> Option<u16> {
        let node = (index + 1).checked_sub(self.options.layout.namesrv_addrs().len())?;
        u16::try_from(node).ok().filter(|&node| node > 0)
    }

    async fn obey(&mut self, request: Request) -> Answer {
        match request {
            Request::Status => Answer::Status(self.view().await),
            Request::Act { action, target } => match self.act(action, target).await {
                Ok(text) => Answer::Done(text),
                Err(error) => Answer::Refused(format!("{error:#}")),
            },
        }
    }

    async fn act(&mut self, action: Action, target: Target) -> Result<String> {
        self.report_ends();
        let name = match target {
            Target::Process(name) => name,
            Target::LeaderOf(group) => {
                let view = self.view().await;
                let found = view.groups.into_iter().find(|view| view.name == group);
                let view = found.with_context(|| format!("there is no group {group}"))?;
                view.leader.with_context(|| format!("{group} has no leader at the moment"))?
            }
        };
        let Some(index) = self.children.iter().position(|child| child.name == name) else {
            let names: Vec<_> = self.children.iter().map(|child| child.name.as_str()).collect();
            bail!("there is no {name}; there are {}", names.join(", "));
        };
        let child = &mut self.children[index];
        let running = !matches!(child.activity(), Activity::Ended { .. });
        match action {
            Action::Start | Action::Rejoin => {
                self.start(index, if action == Action::Rejoin { &["--rejoin"] } else { &[] })?;
                return Ok(format!("started {name}"));
            }
            _ if !running => bail!("{name} does not run"),
            Action::Kill => child.kill().await?,
            Action::Crash => child.crash().await?,
            Action::Stop => child.stop(STOP_TIME_MAX + self.options.stop_forward).await?,
            Action::Pause => child.pause()?,
            Action::Resume => child.resume()?,
        }
        let did = match action {
            Action::Kill => "killed",
            Action::Crash => "crashed",
            Action::Stop => "stopped",
            Action::Start | Action::Rejoin => "started",
            Action::Pause => "paused",
            Action::Resume => "resumed",
        };
        Ok(format!("{did} {name}"))
    }

    async fn view(&self) -> View {
        let layout = &self.options.layout;
        let running = |index: usize| matches!(self.children[index].activity(), Activity::Running { .. });
        let nodes = (0..self.children.len())
            .filter(|&index| running(index))
            .filter_map(|index| self.node_number(index))
            .map(|node| (Layout::node_name(node), layout.http_addr(node)))
            .collect();
        let statuses = view::ask_nodes(nodes).await;
        let group_names: Vec<_> = (0..layout.groups).map(Layout::group_name).collect();
        let groups = view::group_views(&group_names, &statuses);
        let processes = self
            .children
            .iter()
            .enumerate()
            .map(|(index, child)| {
                let node = self.node_number(index);
                let answer = statuses.get(&child.name);
                let (state, pid) = match child.activity() {
                    Activity::Running { .. } => {
                        let state = match (node, answer) {
                            (None, _) => State::Running,
                            (Some(_), Some(status)) if status.ready => State::Ready,
                            (Some(_), Some(_)) => State::Running,
                            (Some(_), None) => State::Silent,
                        };
                        (state, child.worker())
                    }
                    Activity::Paused { .. } => (State::Paused, child.worker()),
                    Activity::Ended { wanted: true } => (State::Stopped, None),
                    Activity::Ended { wanted: false } => (State::Dead, None),
                };
                ProcessView {
                    name: child.name.clone(),
                    kind: self.kind(index),
                    state,
                    pid,
                    client_ports: match node {
                        Some(node) => (0..layout.groups).map(|group| layout.client_addr(node, group).port()).collect(),
                        None => layout.namesrv_addrs().get(index).map(|addr| addr.port()).into_iter().collect(),
                    },
                    http: node.map(|node| layout.http_addr(node)),
                    leads: groups
                        .iter()
                        .filter(|group| group.leader.as_ref() == Some(&child.name))
                        .map(|group| group.name.clone())
                        .collect(),
                    log: child.log().display().to_string(),
                }
            })
            .collect();
        View { data_dir: self.options.dir.display().to_string(), namesrv: layout.namesrv_line(), processes, groups }
    }

    fn announce(&self, view: &View, elapsed: Duration) -> Result<()> {
        if self.options.json {
            return output::json(view);
        }
        let first = self.options.layout.namesrv_addrs()[0];
        let namesrv = if first.port() == super::BASE_PORT { String::new() } else { format!(" -n {first}") };
        let data = if self.options.named_dir { data_option(&self.options.dir) } else { String::new() };
        let state = if view.all_led() { "ready" } else { "started; leaders are still being elected" };
        output::line(&format!(
            "{}\n\n{state} after {:.1} s; data and logs are in {}\n\nname servers, to paste into a client:\n\n    {}\n\n\
             in a second terminal:\n\n    \
             gantry status{namesrv}\n    \
             gantry send greetings \"hello\"{namesrv}\n    \
             gantry tail greetings --from earliest{namesrv}\n    \
             gantry verify --count 20000 --rate 2000{namesrv}   # and while it runs:\n    \
             gantry dev kill --leader broker-a{data}\n    \
             gantry dev status{data}\n\nCtrl-C stops everything cleanly.",
            view.to_text(),
            elapsed.as_secs_f64(),
            self.options.dir.display(),
            view.namesrv,
        ))
    }

    /// Resolves when a process that should run has ended.
    fn any_end(&self) -> impl Future<Output = ()> + use<> {
        let running = self.children.iter().filter(|child| matches!(child.activity(), Activity::Running { .. }));
        let ends: Vec<_> = running.map(|child| Box::pin(child.ended())).collect();
        async move {
            if ends.is_empty() {
                std::future::pending::<()>().await;
            }
            futures::future::select_all(ends).await;
        }
    }

    fn report_ends(&mut self) {
        for child in &mut self.children {
            if let Some(text) = child.reap() {
                eprintln!("{text}");
            }
        }
    }

    /// Brokers together, each told that nobody takes over; then the name servers.
    async fn stop_all(&mut self) -> Result<()> {
        self.report_ends();
        let name_servers = self.options.layout.namesrv_addrs().len();
        let mut result = Ok(());
        let (name_servers, brokers) = self.children.split_at_mut(name_servers);
        for children in [brokers, name_servers] {
            for child in &mut *children {
                let released = child.release();
                result = result.and(released);
            }
            for child in &mut *children {
                let ended = child.end_within(ALL_STOP_TIME_MAX).await;
                result = result.and(ended);
            }
        }
        result
    }
}

fn data_option(dir: &Path) -> String {
    format!(" --data {}", dir.display())
}
