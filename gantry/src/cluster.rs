//! A cluster as a tool sees it: what the client knows how to ask for, with errors in a tool's words.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use client::{Admin, Client, ClientOptions, PullConsumer};
use protocol::body::{ClusterInfo, TopicRouteData};
use protocol::{GroupName, RemotingCommand, ResponseCode, TopicName};

use crate::exit_code::ExitCode;

const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// The group in whose name tools pull.
const TOOLS_GROUP: &str = "TOOLS_CONSUMER";

#[derive(Clone, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Name servers, separated by semicolons or commas
    #[arg(short, long, env = "GANTRY_NAMESRV", default_value = "127.0.0.1:9876", global = true)]
    namesrv: String,
}

impl ClusterArgs {
    /// The client's settings for this cluster.
    pub(crate) fn client_options(&self) -> Result<ClientOptions> {
        ClientOptions::new(&self.namesrv).context("the name servers")
    }

    pub(crate) fn connect(&self) -> Result<Cluster> {
        let client = Client::start(self.client_options()?.with_call_timeout(CALL_TIME_MAX));
        Ok(Cluster { admin: Admin::new(&client), client })
    }
}

/// Connections to a cluster, made when they are needed.
#[derive(Debug, Clone)]
pub(crate) struct Cluster {
    client: Client,
    admin: Admin,
}

impl Cluster {
    /// The name servers, as they were given.
    pub(crate) fn name_servers(&self) -> &[String] {
        self.client.name_servers()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn admin(&self) -> &Admin {
        &self.admin
    }

    /// Reads queues, without being a member of a group: in the name of `group`, or of tools.
    pub(crate) fn reader(&self, group: Option<GroupName>) -> PullConsumer {
        let group = group.unwrap_or_else(|| GroupName::parse(TOOLS_GROUP).expect("a valid name"));
        PullConsumer::new(&self.client, group)
    }

    /// Asks `addr`.
    pub(crate) async fn call(&self, addr: &str, request: RemotingCommand) -> Result<RemotingCommand> {
        self.client.call(addr, request, CALL_TIME_MAX).await.map_err(explain)
    }

    /// All brokers.
    pub(crate) async fn info(&self) -> Result<ClusterInfo> {
        self.admin.clusters().await.map_err(explain)
    }

    /// Where `topic` lives; none if it does not exist.
    pub(crate) async fn find_route(&self, topic: &TopicName) -> Result<Option<TopicRouteData>> {
        match self.admin.topic_route(topic).await {
            Ok(route) => Ok(Some(route)),
            Err(client::Error::NoRoute(_)) => Ok(None),
            Err(error) => Err(explain(error)),
        }
    }

    /// Where `topic` lives.
    ///
    /// # Errors
    /// [`ExitCode::NotFound`] in the chain if it does not exist.
    pub(crate) async fn route(&self, topic: &TopicName) -> Result<TopicRouteData> {
        self.admin.topic_route(topic).await.map_err(explain)
    }
}

/// Hangs the exit code on what went wrong with a call.
pub(crate) fn explain(error: client::Error) -> anyhow::Error {
    use client::Error;
    match error {
        Error::NoRoute(topic) => anyhow::anyhow!("there is no topic {topic}").context(ExitCode::NotFound),
        Error::NoNameServer | Error::NameServers(_) | Error::Transport(_) => {
            anyhow::Error::from(error).context(ExitCode::Unreachable)
        }
        _ => error.into(),
    }
}

/// The code with which a server refused a call, if that is what went wrong.
pub(crate) fn refusal(error: &anyhow::Error) -> Option<ResponseCode> {
    error.downcast_ref::<client::Error>().and_then(client::Error::code)
}
