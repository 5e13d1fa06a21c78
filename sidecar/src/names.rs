//! The port that clients take for a name server.
//!
//! Routes are those of the cluster's name servers, with the sidecar's own port as the one address of each broker. Every
//! other request is passed on, and its answer passed back, as it is. A route that was given once is given again while no
//! name server answers.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::body::TopicRouteData;
use protocol::header::RouteRequest;
use protocol::{RemotingCommand, RequestCode, ResponseCode};
use remoting::{Handler, Responder};

use crate::cluster::Cluster;
use crate::figures::Counters;

/// Routes remembered; an application has far fewer topics.
const ROUTES_MAX: usize = 20_000;

/// Answers as a name server.
pub(crate) struct Names {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) ports: Arc<Ports>,
    remembered: Mutex<HashMap<String, TopicRouteData>>,
}

/// The port of each broker.
#[derive(Default)]
pub(crate) struct Ports(Mutex<BTreeMap<String, u16>>);

impl Ports {
    pub(crate) fn get(&self, broker: &str) -> Option<u16> {
        self.0.lock().get(broker).copied()
    }

    pub(crate) fn set(&self, broker: &str, port: u16) {
        self.0.lock().insert(broker.to_owned(), port);
    }
}

impl Names {
    pub(crate) fn new(cluster: Arc<Cluster>, counters: Arc<Counters>, ports: Arc<Ports>) -> Self {
        Self { cluster, counters, ports, remembered: Mutex::default() }
    }

    async fn route(&self, request: &RemotingCommand, own: IpAddr) -> RemotingCommand {
        let topic = match RouteRequest::decode(request) {
            Ok(route) => route.topic,
            Err(error) => {
                return RemotingCommand::response_to(request, ResponseCode::SYSTEM_ERROR)
                    .with_remark(error.to_string());
            }
        };
        let asked = self.cluster.ask(request).await;
        let mut route = match asked {
            Ok(answer) if answer.is_success() => match TopicRouteData::decode(&answer.body) {
                Ok(route) => {
                    let mut remembered = self.remembered.lock();
                    if remembered.len() < ROUTES_MAX || remembered.contains_key(&topic) {
                        remembered.insert(topic, route.clone());
                    }
                    route
                }
                Err(error) => {
                    return RemotingCommand::response_to(request, ResponseCode::SYSTEM_ERROR)
                        .with_remark(format!("the name server's route cannot be read: {error}"));
                }
            },
            Ok(answer) => {
                if answer.response_code() == ResponseCode::TOPIC_NOT_EXIST {
                    self.remembered.lock().remove(&topic);
                }
                return answer;
            }
            Err(error) => match self.remembered.lock().get(&topic) {
                Some(route) => {
                    self.counters.routes_remembered.add();
                    route.clone()
                }
                None => return unanswered(request, &error),
            },
        };
        self.counters.routes.add();
        for broker in &mut route.broker_datas {
            // Known from here on, if it was not.
            drop(self.cluster.broker(&broker.broker_name));
            broker.broker_addrs = match self.ports.get(&broker.broker_name) {
                Some(port) if !broker.broker_addrs.is_empty() => {
                    BTreeMap::from([(0, SocketAddr::new(own, port).to_string())])
                }
                _ => BTreeMap::new(),
            };
        }
        // A new broker has its port a moment later, and the client asks again.
        route.broker_datas.retain(|broker| !broker.broker_addrs.is_empty());
        RemotingCommand::response_to(request, ResponseCode::SUCCESS).with_body(route.encode())
    }
}

fn unanswered(request: &RemotingCommand, error: &remoting::Error) -> RemotingCommand {
    RemotingCommand::response_to(request, ResponseCode::SYSTEM_ERROR)
        .with_remark(format!("no name server of the cluster answers; the last one tried: {error}"))
}

/// What a server takes for a handler.
pub(crate) struct NamesHandler(pub(crate) Arc<Names>);

impl Handler for NamesHandler {
    fn handle(&self, request: RemotingCommand, responder: Responder) {
        let names = Arc::clone(&self.0);
        tokio::spawn(async move {
            if request.is_oneway() {
                names.cluster.tell(request).await;
                return;
            }
            let own = responder.connection().map_or_else(|| IpAddr::from([127, 0, 0, 1]), |of| of.local_addr().ip());
            let answer = match request.request_code() {
                RequestCode::GET_ROUTEINFO_BY_TOPIC => names.route(&request, own).await,
                _ => match names.cluster.ask(&request).await {
                    Ok(answer) => answer,
                    Err(error) => unanswered(&request, &error),
                },
            };
            responder.send(answer);
        });
    }
}
