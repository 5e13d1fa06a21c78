//! `gantry status`: who leads, and what flows.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use protocol::{RemotingCommand, RequestCode};
use serde::Serialize;

use crate::cluster::ClusterArgs;
use crate::exit_code::ExitCode;
use crate::output::{self, Format};

#[derive(Serialize)]
struct StatusView {
    name_servers: BTreeMap<String, bool>,
    replicas: Vec<ReplicaLine>,
}

#[derive(Serialize)]
struct ReplicaLine {
    cluster: String,
    broker: String,
    /// 0 is the leader.
    id: i64,
    addr: String,
    answers: bool,
    version: Option<String>,
    messages_in: Option<String>,
    messages_out: Option<String>,
    /// Position of the first record of its log.
    log_start: Option<String>,
    /// Position of its end.
    log_end: Option<String>,
    /// Milliseconds since 1970; -1 if there is no message.
    earliest_message: Option<String>,
    /// How much of its disk is used, from 0 to 1.
    disk_used: Option<String>,
}

pub(crate) async fn run(cluster: &ClusterArgs, format: Format) -> Result<()> {
    let cluster = cluster.connect()?;
    let info = cluster.info().await?;
    let mut view = StatusView { name_servers: BTreeMap::new(), replicas: Vec::new() };
    for addr in cluster.name_servers() {
        let answers = cluster.call(addr, RemotingCommand::request(RequestCode::GET_BROKER_CLUSTER_INFO)).await.is_ok();
        view.name_servers.insert(addr.clone(), answers);
    }
    for broker in info.broker_addr_table.values() {
        for (&id, addr) in &broker.broker_addrs {
            let runtime = cluster.admin().runtime_info(addr).await.ok();
            let value = |key: &str| runtime.as_ref().and_then(|info| info.get(key)).cloned();
            // The first of three averages: over the last ten seconds.
            let rate = |key: &str| value(key).and_then(|text| text.split_whitespace().next().map(ToOwned::to_owned));
            view.replicas.push(ReplicaLine {
                cluster: broker.cluster.clone(),
                broker: broker.broker_name.clone(),
                id,
                addr: addr.clone(),
                answers: runtime.is_some(),
                version: value("brokerVersionDesc"),
                messages_in: rate("putTps"),
                messages_out: rate("getTransferredTps"),
                log_start: value("commitLogMinOffset"),
                log_end: value("commitLogMaxOffset"),
                earliest_message: value("earliestMessageTimeStamp"),
                disk_used: value("commitLogDiskRatio"),
            });
        }
    }
    if format == Format::Json {
        output::json(&view)?;
    } else {
        output::line(&view.to_text())?;
    }
    let led = |broker: &str| view.replicas.iter().any(|line| line.broker == broker && line.id == 0 && line.answers);
    if let Some(broker) = info.broker_addr_table.keys().find(|broker| !led(broker)) {
        return Err(anyhow::anyhow!("{broker} has no leader that answers").context(ExitCode::Unreachable));
    }
    if info.broker_addr_table.is_empty() {
        bail!("no broker has registered");
    }
    Ok(())
}

impl StatusView {
    fn to_text(&self) -> String {
        let name_servers = self
            .name_servers
            .iter()
            .map(|(addr, answers)| [addr.clone(), if *answers { "answers" } else { "silent" }.to_owned()]);
        let replicas = self.replicas.iter().map(|line| {
            let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            [
                line.cluster.clone(),
                line.broker.clone(),
                if line.id == 0 { "leader".to_owned() } else { format!("replica {}", line.id) },
                line.addr.clone(),
                if line.answers { "answers" } else { "silent" }.to_owned(),
                or_dash(&line.messages_in),
                or_dash(&line.messages_out),
                or_dash(&line.log_start),
                or_dash(&line.log_end),
                or_dash(&line.disk_used),
                or_dash(&line.version),
            ]
        });
        format!(
            "{}\n\n{}",
            output::table(&["name server", "state"], name_servers),
            output::table(
                &[
                    "cluster", "broker", "role", "address", "state", "in/s", "out/s", "log from", "log to", "disk",
                    "version"
                ],
                replicas
            )
        )
    }
}
