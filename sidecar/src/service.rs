//! The sidecar as a whole: its ports and tasks.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use protocol::{RemotingCommand, ResponseCode};
use remoting::{Connection, ConnectionId, Handler, Responder, Server, ServerHandle};
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::{Broker, Cluster};
use crate::figures::{Counters, Figures};
use crate::names::{Names, NamesHandler, Ports};
use crate::session::{Context, Session};
use crate::{Error, Options, Result};

/// Ports above the first one for brokers.
const BROKER_PORTS_MIN: u16 = 1_000;

/// A running sidecar. Dropping it closes everything at once; [`Self::shutdown`] drains.
pub struct SidecarHandle {
    names: ServerHandle,
    shared: Arc<Shared>,
    tasks: Vec<AbortOnDropHandle<()>>,
}

struct Shared {
    options: Options,
    cluster: Arc<Cluster>,
    counters: Arc<Counters>,
    ports: Arc<Ports>,
    brokers: Mutex<HashMap<String, ServerHandle>>,
}

/// Starts a sidecar, inside a tokio runtime. Brokers get their ports as soon as a name server names them.
///
/// # Errors
/// [`Error`] names the option, or the address that cannot be listened on.
pub fn start(options: Options) -> Result<SidecarHandle> {
    if options.name_servers.is_empty() {
        return Err(Error::NoNameServer);
    }
    let room = u16::MAX - options.first_broker_port;
    if room < BROKER_PORTS_MIN {
        return Err(Error::BrokerPorts { first: options.first_broker_port, room });
    }
    let failed = |source| Error::Listen { address: options.listen, source };
    let listener = remoting::bind(options.listen).map_err(failed)?;
    let cluster = Arc::new(Cluster::new(&options.name_servers, options.poll_interval, options.probe_timeout));
    let counters = Arc::new(Counters::default());
    let ports = Arc::new(Ports::default());
    let names = Names::new(Arc::clone(&cluster), Arc::clone(&counters), Arc::clone(&ports));
    let names = Server::new(remoting::Options::default(), Arc::new(NamesHandler(Arc::new(names))))
        .start(listener)
        .map_err(failed)?;
    let shared = Arc::new(Shared { options, cluster, counters, ports, brokers: Mutex::default() });
    let looking = Arc::clone(&shared.cluster);
    let opening = Arc::clone(&shared);
    let tasks = vec![
        AbortOnDropHandle::new(tokio::spawn(async move { looking.keep_looking().await })),
        AbortOnDropHandle::new(tokio::spawn(async move { opening.open_ports().await })),
    ];
    Ok(SidecarHandle { names, shared, tasks })
}

impl SidecarHandle {
    /// Where it answers as a name server.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.names.local_addr()
    }

    /// How it fares.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let Shared { cluster, counters, brokers, .. } = &*self.shared;
        let known = cluster.watch();
        let known = known.borrow();
        Figures {
            brokers: known.len(),
            reachable: known.values().filter(|broker| broker.is_reachable()).count(),
            sessions: brokers.lock().values().map(|server| server.connections().len()).sum(),
            relayed: counters.relayed.get(),
            repeated: counters.repeated.get(),
            failed: counters.failed.get(),
            dropped: counters.dropped.get(),
            pushed: counters.pushed.get(),
            replayed: counters.replayed.get(),
            stalled: counters.stalled.get(),
            routes: counters.routes.get(),
            routes_remembered: counters.routes_remembered.get(),
        }
    }

    /// Accepts and reads no more, answers what is in flight for at most `within`, and closes everything.
    pub async fn shutdown(self, within: Duration) {
        drop(self.tasks);
        let servers: Vec<_> = self.shared.brokers.lock().drain().map(|(_, server)| server).collect();
        let all = servers.into_iter().chain([self.names]);
        join_all(all.map(|server| server.shutdown(within))).await;
    }
}

impl Shared {
    /// Gives each broker that becomes known its port.
    async fn open_ports(&self) {
        let mut known = self.cluster.watch();
        loop {
            let brokers: Vec<_> = known.borrow_and_update().values().cloned().collect();
            for broker in brokers {
                if self.ports.get(&broker.name).is_none() {
                    self.open_port(broker);
                }
            }
            if known.changed().await.is_err() {
                return;
            }
        }
    }

    fn open_port(&self, broker: Arc<Broker>) {
        let name = broker.name.clone();
        let taken = u16::try_from(self.brokers.lock().len()).unwrap_or(u16::MAX);
        let wanted = self.options.first_broker_port.saturating_add(taken);
        for port in wanted..=u16::MAX {
            let address = SocketAddr::new(self.options.listen.ip(), port);
            let context = Context {
                broker: Arc::clone(&broker),
                counters: Arc::clone(&self.counters),
                quiet_max: self.options.quiet_max,
                probe_timeout: self.options.probe_timeout,
            };
            let handler = Relay { context: Arc::new(context), sessions: Mutex::default() };
            let server = remoting::bind(address)
                .and_then(|listener| Server::new(remoting::Options::default(), Arc::new(handler)).start(listener));
            match server {
                Ok(server) => {
                    tracing::info!(broker = %name, %address, "relays");
                    self.brokers.lock().insert(name.clone(), server);
                    self.ports.set(&name, port);
                    return;
                }
                Err(error) => {
                    tracing::warn!(broker = %name, %address, %error, "this port is not free; another one is taken");
                }
            }
        }
        tracing::error!(broker = %name, "there is no free port for this broker, so no route names it");
    }
}

/// The server of one broker's port.
struct Relay {
    context: Arc<Context>,
    sessions: Mutex<HashMap<ConnectionId, Arc<Session>>>,
}

impl Handler for Relay {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let name = &self.context.broker.name;
        // Clients that have a route of before a restart may take this port for another broker's.
        if let Some(meant) =
            request.ext.get_non_empty("bname").or_else(|| request.ext.get_non_empty("n")).filter(|meant| meant != name)
        {
            let why = format!("this is the port of broker {name}, not of {meant}; ask for the route again");
            let answer = RemotingCommand::response_to(&request, ResponseCode::SERVICE_NOT_AVAILABLE);
            return responder.send(answer.with_remark(why));
        }
        let Some(id) = responder.connection().map(Connection::id) else { return };
        let session = self.sessions.lock().get(&id).cloned();
        match session {
            Some(session) => session.take(request, responder),
            None => responder.forget(),
        }
    }

    fn opened(&self, connection: &Connection) {
        let session = Session::start(Arc::clone(&self.context), connection.clone());
        self.sessions.lock().insert(connection.id(), session);
    }

    fn closed(&self, connection: &Connection) {
        if let Some(session) = self.sessions.lock().remove(&connection.id()) {
            session.end();
        }
    }
}
