//! A cluster as a tool sees it: name servers that are asked in turn, brokers that are asked by address.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use parking_lot::Mutex;
use protocol::body::{ClusterInfo, TopicList, TopicRouteData};
use protocol::header::RouteRequest;
use protocol::{RemotingCommand, RequestCode, ResponseCode};
use remoting::{Channel, ChannelOptions, Ignore};

use crate::exit_code::ExitCode;

const CALL_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Name servers, separated by semicolons or commas
    #[arg(short, long, env = "GANTRY_NAMESRV", default_value = "127.0.0.1:9876", global = true)]
    namesrv: String,
}

impl ClusterArgs {
    pub(crate) fn name_servers(&self) -> Vec<String> {
        let addrs = self.namesrv.split([';', ',']).map(str::trim).filter(|addr| !addr.is_empty());
        addrs.map(ToOwned::to_owned).collect()
    }

    pub(crate) fn connect(&self) -> Cluster {
        Cluster { name_servers: self.name_servers(), channels: Mutex::default() }
    }
}

/// Connections to a cluster, made when they are needed.
pub(crate) struct Cluster {
    name_servers: Vec<String>,
    channels: Mutex<HashMap<String, Channel>>,
}

/// A broker or name server answered with an error.
#[derive(Debug, thiserror::Error)]
#[error("{addr} answered {code} to request {request}: {remark}")]
pub(crate) struct Refusal {
    addr: String,
    request: i32,
    pub(crate) code: ResponseCode,
    remark: String,
}

impl Cluster {
    /// The name servers, as they were given.
    pub(crate) fn name_servers(&self) -> &[String] {
        &self.name_servers
    }

    /// The channel to `addr`.
    pub(crate) fn channel(&self, addr: &str) -> Channel {
        let mut channels = self.channels.lock();
        channels
            .entry(addr.to_owned())
            .or_insert_with(|| Channel::new(addr, ChannelOptions::default(), Arc::new(Ignore)))
            .clone()
    }

    /// Asks `addr`.
    ///
    /// # Errors
    /// No answer, or a [`Refusal`].
    pub(crate) async fn call(&self, addr: &str, request: RemotingCommand) -> Result<RemotingCommand> {
        let code = request.code;
        let answer = self
            .channel(addr)
            .call(request, CALL_TIME_MAX)
            .await
            .with_context(|| format!("asking {addr}"))
            .context(ExitCode::Unreachable)?;
        if answer.is_success() {
            return Ok(answer);
        }
        let remark = answer.remark.clone().unwrap_or_default();
        Err(Refusal { addr: addr.to_owned(), request: code, code: answer.response_code(), remark }.into())
    }

    /// Asks the name servers in turn, until one answers.
    pub(crate) async fn ask_name_server(&self, request: &RemotingCommand) -> Result<RemotingCommand> {
        let mut last = anyhow!("no name server is given").context(ExitCode::Unreachable);
        for addr in &self.name_servers {
            match self.call(addr, request.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is::<Refusal>() => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// All brokers.
    pub(crate) async fn info(&self) -> Result<ClusterInfo> {
        let answer = self.ask_name_server(&RemotingCommand::request(RequestCode::GET_BROKER_CLUSTER_INFO)).await?;
        ClusterInfo::decode(&answer.body).context("reading the cluster")
    }

    /// All topics, the system's own ones included.
    pub(crate) async fn topics(&self) -> Result<TopicList> {
        let request = RemotingCommand::request(RequestCode::GET_ALL_TOPIC_LIST_FROM_NAMESERVER);
        TopicList::decode(&self.ask_name_server(&request).await?.body).context("reading the list of topics")
    }

    /// Where `topic` lives; none if it does not exist.
    pub(crate) async fn find_route(&self, topic: &str) -> Result<Option<TopicRouteData>> {
        let mut request = RemotingCommand::request(RequestCode::GET_ROUTEINFO_BY_TOPIC);
        RouteRequest { topic: topic.to_owned(), accept_standard_json_only: true }.encode_into(&mut request.ext);
        match self.ask_name_server(&request).await {
            Ok(answer) => Ok(Some(TopicRouteData::decode(&answer.body).context("reading a route")?)),
            Err(error) => match error.downcast_ref::<Refusal>() {
                Some(refusal) if refusal.code == ResponseCode::TOPIC_NOT_EXIST => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Where `topic` lives.
    ///
    /// # Errors
    /// [`ExitCode::NotFound`] in the chain if it does not exist.
    pub(crate) async fn route(&self, topic: &str) -> Result<TopicRouteData> {
        let route = self.find_route(topic).await?;
        route.with_context(|| format!("there is no topic {topic}")).context(ExitCode::NotFound)
    }
}
