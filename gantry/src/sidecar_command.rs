//! `gantry sidecar`: a process beside an application, which hides the loss of a machine from its clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use broker::config::{LogFormat, LogOptions};
use broker::http::{MetricsText, collect_process};
use clap::Args;
use sidecar::{Figures, Options, SidecarHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cluster::ClusterArgs;
use crate::logging::{self, LogArgs};
use crate::plain_http;
use crate::stop_signal::StopSignal;

/// Calls in flight at a stop are answered within this time.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(3);
/// It relays and waits; more threads would only take memory.
const THREADS: usize = 2;

#[derive(Debug, Args)]
pub(crate) struct SidecarArgs {
    /// Address that applications use as their name server; brokers get the ports after it
    #[arg(short, long, default_value = "127.0.0.1:9876")]
    listen: SocketAddr,
    /// First port for brokers, one for each in the order of their names [default: the port of --listen plus 1]
    #[arg(long)]
    broker_ports: Option<u16>,
    /// Address for health and metrics over HTTP [default: none]
    #[arg(long)]
    http: Option<SocketAddr>,
    /// Listen on an address that is not loopback, though nothing is authenticated
    #[arg(long)]
    insecure_public: bool,
    /// Stop when standard input, a pipe, ends
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(args: SidecarArgs, cluster: &ClusterArgs) -> Result<()> {
    logging::start(&args.log, &LogOptions { filter: "info".to_owned(), format: LogFormat::Text })?;
    for addr in [Some(args.listen), args.http].into_iter().flatten().filter(|addr| !addr.ip().is_loopback()) {
        if !args.insecure_public {
            bail!(
                "{addr} is not a loopback address, and a sidecar serves the application beside it; if others in a \
                 trusted network shall use it, say --insecure-public"
            );
        }
        tracing::warn!(%addr, "listening on a public address, as --insecure-public says");
    }
    if args.listen.ip().is_unspecified() {
        tracing::warn!("routes will name the address by which each client came");
    }
    let name_servers = cluster.client_options()?.name_servers().to_vec();
    if name_servers.iter().any(|server| *server == args.listen.to_string()) {
        bail!("--listen {} is one of the name servers themselves; name the cluster's with --namesrv", args.listen);
    }
    let mut options = Options::new(name_servers, args.listen);
    if let Some(first) = args.broker_ports {
        options.first_broker_port = first;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    runtime.context("starting the runtime")?.block_on(async {
        let mut stop = StopSignal::new(args.stop_with_stdin)?;
        let sidecar = Arc::new(sidecar::start(options).context("starting the sidecar")?);
        let http_stop = CancellationToken::new();
        let http = match args.http {
            Some(addr) => {
                let listener =
                    TcpListener::bind(addr).await.with_context(|| format!("listening on {addr} for HTTP"))?;
                tokio::spawn(serve_http(listener, Arc::clone(&sidecar), http_stop.clone()))
            }
            None => tokio::spawn(std::future::ready(Ok(()))),
        };
        tracing::info!(listen = %sidecar.local_addr(), "ready for applications");
        let why = stop.recv().await;
        tracing::info!(?why, "stopping");
        http_stop.cancel();
        drop(tokio::time::timeout(Duration::from_secs(1), http).await);
        if let Some(sidecar) = Arc::into_inner(sidecar) {
            sidecar.shutdown(DRAIN_TIME_MAX).await;
        }
        Ok(())
    })
}

async fn serve_http(
    listener: TcpListener,
    sidecar: Arc<SidecarHandle>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new().route("/health/ready", get(ready)).route("/metrics", get(metrics)).with_state(sidecar);
    plain_http::serve(listener, routes, stop).await
}

async fn ready(State(sidecar): State<Arc<SidecarHandle>>) -> Response {
    plain_http::readiness(problem(&sidecar.figures()), "every broker has a replica that answers")
}

/// Why applications do not get everything here that they need, in one sentence.
fn problem(figures: &Figures) -> Option<String> {
    if figures.brokers == 0 {
        return Some("no name server has named a broker".to_owned());
    }
    let without = figures.brokers - figures.reachable;
    (without > 0).then(|| format!("{without} of {} brokers have no replica that answers", figures.brokers))
}

async fn metrics(State(sidecar): State<Arc<SidecarHandle>>) -> Response {
    plain_http::metrics(|metrics| collect(&sidecar.figures(), metrics))
}

fn collect(figures: &Figures, metrics: &mut MetricsText) {
    plain_http::collect_build("sidecar", metrics);
    let mut gauge = |name: &str, help: &str, value: usize| {
        metrics.gauge(name, help).sample(&[], value);
    };
    gauge("gantry_sidecar_brokers", "Broker names that a name server has named.", figures.brokers);
    gauge("gantry_sidecar_brokers_reachable", "Of these, those with a replica that answers.", figures.reachable);
    gauge("gantry_sidecar_connections", "Connections of clients to brokers' ports.", figures.sessions);
    let mut requests = metrics.counter("gantry_sidecar_requests_total", "Requests of clients, by what was done.");
    for (done, count) in [
        ("relayed", figures.relayed),
        ("repeated", figures.repeated),
        ("failed", figures.failed),
        ("dropped", figures.dropped),
    ] {
        requests.sample(&[("done", done)], count);
    }
    let mut counter = |name: &str, help: &str, value: u64| {
        metrics.counter(name, help).sample(&[], value);
    };
    counter("gantry_sidecar_pushes_total", "Requests of brokers given to clients.", figures.pushed);
    counter("gantry_sidecar_heartbeats_replayed_total", "Heartbeats replayed to a new replica.", figures.replayed);
    counter("gantry_sidecar_stalls_total", "Times a replica was left that did not answer.", figures.stalled);
    counter("gantry_sidecar_routes_total", "Routes given to clients.", figures.routes);
    counter(
        "gantry_sidecar_routes_remembered_total",
        "Of these, those given while no name server answered.",
        figures.routes_remembered,
    );
    collect_process(metrics);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_once_every_broker_has_a_replica() {
        let figures = |brokers, reachable| Figures { brokers, reachable, ..Figures::default() };
        assert_eq!(problem(&figures(0, 0)).as_deref(), Some("no name server has named a broker"));
        assert_eq!(problem(&figures(3, 2)).as_deref(), Some("1 of 3 brokers have no replica that answers"));
        assert_eq!(problem(&figures(3, 3)), None);
    }

    /// `UPDATE_DOCS=1` writes the table anew.
    #[test]
    fn the_page_lists_what_is_exported() {
        plain_http::tests::check_page("sidecar", |metrics| collect(&Figures::default(), metrics));
    }
}
