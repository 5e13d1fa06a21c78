//! A network of the run's own: each process in a network namespace, all on one bridge, without a way out.
//!
//! ```text
//!  namespace of the harness and its clients        10.77.0.100  10.78.0.100
//!  ---------------------------- bridge ----------------------------
//!    n1              n2              n3              ns1           ns2
//!  10.77.0.1       10.77.0.2       10.77.0.3       10.77.0.11    10.77.0.12   what faults touch
//!  10.78.0.1       10.78.0.2       10.78.0.3                                  management: no fault does
//! ```
//!
//! The harness runs in a namespace of its own to begin with, made by [`enter`], for which an ordinary user is enough
//! where the system lets users make namespaces. Everything in it goes when the last process does: there is nothing to
//! clean up, and runs beside each other never meet.
//!
//! A fault concerns a link, which has a direction. All of them are installed where the link begins or ends, with tools
//! that every distribution has:
//!
//! | Effect | Made of |
//! | --- | --- |
//! | cut | the sender's neighbour entry names a hardware address that nobody has, so its packets vanish silently |
//! | slow | an `htb` class for one destination at the sender, with a short queue |
//! | lossy | an `nft` rule of the receiver that drops at random |
//! | reset | an `nft` rule of the receiver that answers each segment with a reset, as a firewall does |
//!
//! Whether a link is as it should be is asked of datagrams that are sent over it, by sockets that stand in the
//! namespaces of both ends, or of a connection that is made over it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket as StdUdpSocket};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::UdpSocket;
use tokio::time::Instant;

/// Where namespaces have their names: on a file system that only the processes of the run see.
const NAMES: &str = "/run/netns";
const BRIDGE: &str = "lab";
const HARNESS: u8 = 100;
const PROBE_PORT: u16 = 4900;
/// Where brokers listen for each other.
pub(super) const RAFT_PORT: u16 = 10_900;
/// How long a connection may take to be made or refused.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(1);
/// How long a slow link is watched.
const RATE_TIME_MAX: Duration = Duration::from_secs(2);
/// The queue of each host, above one for each slow link, which has the number of the host that the link leads to.
const ROOT_QUEUE: &str = "e000";
/// The last byte of a hardware address that nobody has.
const NOBODY: u8 = 0xff;

/// Which end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A broker's node, by number from 1.
    Broker(u16),
    /// A name server, by number from 1.
    NameServer(u16),
    /// The harness, with all clients.
    Clients,
}

/// From one host to another; the way back is another link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    pub from: Host,
    pub to: Host,
}

/// What is wrong with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing arrives.
    Cut,
    /// It carries so many thousand bits a second.
    Slow(u32),
    /// So many percent are lost.
    Lossy(u32),
    /// Connections are reset and refused.
    Reset,
}

/// The network, once it stands.
pub struct Lab {
    sockets: BTreeMap<Host, UdpSocket>,
    nonce: u64,
}

impl Host {
    fn number(self) -> u8 {
        let small = |number: u16| u8::try_from(number).unwrap_or(u8::MAX);
        match self {
            Self::Broker(number) => small(number),
            Self::NameServer(number) => 10 + small(number),
            Self::Clients => HARNESS,
        }
    }

    /// The name of its namespace; the harness is where it is.
    fn namespace(self) -> Option<String> {
        match self {
            Self::Broker(number) => Some(format!("n{number}")),
            Self::NameServer(number) => Some(format!("ns{number}")),
            Self::Clients => None,
        }
    }

    /// What to put before a command so that it runs on this host.
    pub fn entrance(self) -> Vec<String> {
        let entrance = |name| vec!["nsenter".to_owned(), format!("--net={NAMES}/{name}"), "--".to_owned()];
        self.namespace().map(entrance).unwrap_or_default()
    }

    /// The address that faults touch.
    pub fn addr(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, 0, self.number())
    }

    /// The address that no fault touches.
    pub fn management_addr(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, 0, self.number())
    }

    fn hardware(self) -> String {
        hardware(self.number())
    }

    fn device(self) -> &'static str {
        if self == Self::Clients { BRIDGE } else { "eth0" }
    }
}

fn hardware(number: u8) -> String {
    // Administered locally.
    format!("02:6a:70:00:00:{number:02x}")
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |host: Host| host.namespace().unwrap_or_else(|| "clients".to_owned());
        write!(f, "{}->{}", name(self.from), name(self.to))
    }
}

/// Replaces this process by itself with `args`, in a network namespace of its own. Returns only if that cannot be done.
pub fn enter(args: &[String]) -> anyhow::Error {
    let mut flags = vec!["--net", "--mount"];
    if !rustix::process::geteuid().is_root() {
        flags.extend(["--user", "--map-root-user"]);
    }
    // Tried first, since a failure would look like the end of a run.
    if let Err(error) = run(Command::new("unshare").args(&flags).arg("true")) {
        return error.context("this system lets us make no network namespace, which faults of the network need");
    }
    match std::env::current_exe() {
        Ok(exe) => Command::new("unshare").args(&flags).arg("--").arg(exe).args(args).exec().into(),
        Err(error) => error.into(),
    }
}

impl Lab {
    /// Builds the network. To be called once, in a process that [`enter`] has started.
    ///
    /// # Errors
    /// A tool is missing or refuses.
    pub fn build(brokers: u16, name_servers: u16) -> Result<Self> {
        let hosts: Vec<Host> =
            (1..=brokers).map(Host::Broker).chain((1..=name_servers).map(Host::NameServer)).collect();
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]))?;
        ip(&format!(
            "link set lo up\nlink add {BRIDGE} address {} type bridge\nlink set {BRIDGE} up\n\
             addr add {}/24 dev {BRIDGE}\naddr add {}/24 dev {BRIDGE}\n",
            Host::Clients.hardware(),
            Host::Clients.addr(),
            Host::Clients.management_addr(),
        ))?;
        for host in &hosts {
            let name = host.namespace().context("a host without a namespace")?;
            run(Command::new("ip").args(["netns", "add", &name]))?;
            ip(&format!(
                "link add v{name} type veth peer name eth0 address {} netns {name}\n\
                 link set v{name} master {BRIDGE}\nlink set v{name} up\n",
                host.hardware()
            ))?;
            host.ip(&format!(
                "link set lo up\nlink set eth0 up\naddr add {}/24 dev eth0\naddr add {}/24 dev eth0\n",
                host.addr(),
                host.management_addr()
            ))?;
            host.tc(&format!("qdisc add dev eth0 root handle {ROOT_QUEUE}: htb"))?;
        }
        let mut sockets = BTreeMap::new();
        let all = || hosts.iter().copied().chain([Host::Clients]);
        for host in all() {
            // Who is where is not left to be asked for, so that a cut needs to change nothing but one entry.
            for other in all().filter(|other| *other != host) {
                host.neighbour(other, &other.hardware())?;
            }
            sockets.insert(host, host.socket()?);
        }
        Ok(Self { sockets, nonce: 0 })
    }

    /// Makes a link as bad as that.
    ///
    /// # Errors
    /// A tool refuses.
    pub fn apply(&self, link: Link, effect: Effect) -> Result<()> {
        let Link { from, to } = link;
        match effect {
            Effect::Cut => from.neighbour(to, &hardware(NOBODY)),
            Effect::Slow(kbit) => {
                let (number, addr) = (to.number(), to.addr());
                let class = format!("{ROOT_QUEUE}:{number}");
                from.tc(&format!("class replace dev eth0 parent {ROOT_QUEUE}: classid {class} htb rate {kbit}kbit"))?;
                from.tc(&format!("qdisc replace dev eth0 parent {class} handle {number}: pfifo limit 40"))?;
                from.tc(&format!(
                    "filter replace dev eth0 parent {ROOT_QUEUE}: protocol ip prio {number} u32 match ip dst {addr}/32 \
                     flowid {class}"
                ))
            }
            Effect::Lossy(percent) => to.filter(from, &format!("numgen random mod 100 < {percent} drop")),
            Effect::Reset => to.filter(from, "meta l4proto tcp reject with tcp reset"),
        }
    }

    /// Makes a link well again.
    ///
    /// # Errors
    /// A tool refuses.
    pub fn clear(&self, link: Link, effect: Effect) -> Result<()> {
        let Link { from, to } = link;
        match effect {
            Effect::Cut => from.neighbour(to, &to.hardware()),
            Effect::Slow(_) => {
                let number = to.number();
                from.tc(&format!("filter del dev eth0 parent {ROOT_QUEUE}: protocol ip prio {number}"))?;
                from.tc(&format!("class del dev eth0 classid {ROOT_QUEUE}:{number}"))
            }
            // Whatever else is filtered there is healed with it.
            Effect::Lossy(_) | Effect::Reset => to.nft("flush chain inet lab in\n"),
        }
    }

    /// Sends so many datagrams over each link, and says how many arrived. If some do not, it waits for them until
    /// `limit` after the last was sent.
    ///
    /// # Errors
    /// A socket fails.
    pub async fn arrivals(&mut self, links: &[Link], count: usize, limit: Duration) -> Result<Vec<usize>> {
        self.nonce += 1;
        let mut arrived = vec![0; links.len()];
        for _ in 0..count {
            for link in links {
                // A sender may be told that its packets go nowhere.
                let _ = self.send(*link, 16).await;
            }
            // The buffers of sockets are small.
            tokio::time::sleep(Duration::from_millis(1)).await;
            self.drain(links, &mut arrived)?;
        }
        let until = Instant::now() + limit;
        while Instant::now() < until && arrived.iter().any(|arrived| *arrived < count) {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.drain(links, &mut arrived)?;
        }
        Ok(arrived)
    }

    /// How many thousand bits a second a link carries, measured with more than it may carry at once.
    ///
    /// # Errors
    /// A socket fails, or hardly anything arrives.
    pub async fn rate(&mut self, link: Link) -> Result<u32> {
        const BYTES: usize = 1_000;
        const RATE_DATAGRAMS: usize = 30;
        self.nonce += 1;
        for _ in 0..RATE_DATAGRAMS {
            let _ = self.send(link, BYTES).await;
        }
        let (mut first, mut last, mut arrived) = (None, Instant::now(), vec![0]);
        let until = Instant::now() + RATE_TIME_MAX;
        while Instant::now() < until && arrived[0] < RATE_DATAGRAMS {
            let before = arrived[0];
            self.drain(&[link], &mut arrived)?;
            if arrived[0] > before {
                last = Instant::now();
                first.get_or_insert((last, arrived[0]));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (first, before) = first.with_context(|| format!("nothing arrives over {link}"))?;
        let bits = (arrived[0] - before) * BYTES * 8;
        let lasted = last.duration_since(first).as_secs_f64().max(0.001);
        ensure!(bits > 0 || arrived[0] > 20, "hardly anything arrives over {link}");
        Ok((bits as f64 / lasted / 1_000.0) as u32)
    }

    /// Whether the other broker's peer port refuses a connection over this link.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn is_refused(&self, link: Link) -> Result<bool> {
        let to = SocketAddr::from((link.to.addr(), RAFT_PORT));
        link.from.inside(|| match TcpStream::connect_timeout(&to, CONNECT_TIME_MAX) {
            Ok(_) => Ok(false),
            Err(error) => Ok(error.kind() == ErrorKind::ConnectionRefused),
        })
    }

    async fn send(&self, link: Link, bytes: usize) -> Result<()> {
        let mut datagram = self.nonce.to_be_bytes().to_vec();
        datagram.resize(bytes, 0);
        let to = SocketAddr::from((link.to.addr(), PROBE_PORT));
        let socket = self.sockets.get(&link.from).context("a link from nowhere")?;
        socket.send_to(&datagram, to).await.context("sending a datagram")?;
        Ok(())
    }

    /// Counts what has arrived of the last datagrams sent; older ones are thrown away.
    fn drain(&self, links: &[Link], arrived: &mut [usize]) -> Result<()> {
        let mut buffer = [0; 2_048];
        let mut receivers: Vec<Host> = links.iter().map(|link| link.to).collect();
        receivers.sort_unstable();
        receivers.dedup();
        for to in receivers {
            let socket = self.sockets.get(&to).context("a link to nowhere")?;
            while let Ok((bytes, from)) = socket.try_recv_from(&mut buffer) {
                if buffer[..bytes].get(..8) != Some(&self.nonce.to_be_bytes()[..]) {
                    continue;
                }
                let link = links.iter().position(|link| link.to == to && from.ip() == link.from.addr());
                if let Some(link) = link {
                    arrived[link] += 1;
                }
            }
        }
        Ok(())
    }
}

impl Host {
    fn run(self, command: &[&str]) -> Result<()> {
        self.command(command).and_then(|mut command| run(&mut command))
    }

    fn command(self, command: &[&str]) -> Result<Command> {
        let whole: Vec<String> = self.entrance().into_iter().chain(command.iter().map(ToString::to_string)).collect();
        let (program, args) = whole.split_first().context("an empty command")?;
        let mut command = Command::new(program);
        command.args(args);
        Ok(command)
    }

    fn ip(self, commands: &str) -> Result<()> {
        feed(self.command(&["ip", "-batch", "-"])?, commands)
    }

    fn nft(self, commands: &str) -> Result<()> {
        feed(self.command(&["nft", "-f", "-"])?, commands)
    }

    fn tc(self, command: &str) -> Result<()> {
        self.run(&["tc"].into_iter().chain(command.split(' ')).collect::<Vec<_>>())
    }

    /// Says at which hardware address another host is.
    fn neighbour(self, other: Self, hardware: &str) -> Result<()> {
        let (addr, device) = (other.addr(), self.device());
        self.ip(&format!("neigh replace {addr} lladdr {hardware} dev {device} nud permanent\n"))
    }

    /// Does something with packets that come from another host.
    fn filter(self, from: Self, verdict: &str) -> Result<()> {
        let addr = from.addr();
        self.nft(&format!(
            "add table inet lab\nadd chain inet lab in {{ type filter hook input priority 0; }}\n\
             add rule inet lab in ip saddr {addr} {verdict}\n"
        ))
    }

    /// A socket on this host.
    fn socket(self) -> Result<UdpSocket> {
        let opened = self.inside(|| Ok(StdUdpSocket::bind((self.addr(), PROBE_PORT))?))?;
        opened.set_nonblocking(true)?;
        UdpSocket::from_std(opened).context("making a socket asynchronous")
    }

    /// Does something in the namespace of this host. Sockets that are made there stay there.
    fn inside<T: Send>(self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            // A thread of its own: it never comes back from there.
            let acting = scope.spawn(|| {
                if let Some(name) = self.namespace() {
                    let path = PathBuf::from(NAMES).join(name);
                    let namespace =
                        std::fs::File::open(&path).with_context(|| format!("opening {}", path.display()))?;
                    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                        .with_context(|| format!("entering {}", path.display()))?;
                }
                act()
            });
            acting.join().map_err(|_| anyhow::anyhow!("a thread panicked in a namespace"))?
        })
    }
}

fn ip(commands: &str) -> Result<()> {
    Host::Clients.ip(commands)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    judge(command, &output)
}

/// Runs a command with something to read.
fn feed(mut command: Command, text: &str) -> Result<()> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let mut stdin = child.stdin.take().context("a child without input")?;
    stdin.write_all(text.as_bytes()).with_context(|| format!("feeding {command:?}"))?;
    drop(stdin);
    let output = child.wait_with_output().with_context(|| format!("waiting for {command:?}"))?;
    judge(&command, &output)
}

fn judge(command: &Command, output: &std::process::Output) -> Result<()> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {}", output.status, said.trim());
    }
    Ok(())
}
