//! Settings of a client.

use std::time::Duration;

use protocol::HeaderForm;

use crate::Error;
use crate::Result;

/// How a [`Client`](crate::Client) behaves.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    pub(crate) name_servers: Vec<String>,
    pub(crate) instance: String,
    pub(crate) call_timeout: Duration,
    pub(crate) route_poll_interval: Duration,
    pub(crate) heartbeat_interval: Duration,
    pub(crate) form: HeaderForm,
}

impl ClientOptions {
    /// A client of the cluster that these name servers know: `host:port`, several separated by `;` or `,`.
    ///
    /// # Errors
    /// [`Error::NoNameServer`] if there is no address in the text.
    pub fn new(name_servers: &str) -> Result<Self> {
        let name_servers: Vec<String> =
            name_servers.split([';', ',']).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect();
        if name_servers.is_empty() {
            return Err(Error::NoNameServer);
        }
        Ok(Self {
            name_servers,
            instance: String::new(),
            call_timeout: Duration::from_secs(3),
            route_poll_interval: Duration::from_secs(30),
            heartbeat_interval: Duration::from_secs(30),
            form: HeaderForm::Json,
        })
    }

    /// The name servers.
    #[must_use]
    pub fn name_servers(&self) -> &[String] {
        &self.name_servers
    }

    /// Tells clients of one process apart. Without it every client gets a name of its own.
    #[must_use]
    pub fn with_instance(mut self, instance: impl Into<String>) -> Self {
        self.instance = instance.into();
        self
    }

    /// How long a call that has no time-out of its own may take.
    #[must_use]
    pub fn with_call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// How often routes are fetched again when nothing fails.
    #[must_use]
    pub fn with_route_poll_interval(mut self, interval: Duration) -> Self {
        self.route_poll_interval = interval;
        self
    }

    /// How often brokers are told of this client.
    #[must_use]
    pub fn with_heartbeat_interval(mut self, interval: Duration) -> Self {
        self.heartbeat_interval = interval;
        self
    }

    /// How headers are written. The binary form costs both ends less; every server reads both.
    #[must_use]
    pub fn with_header_form(mut self, form: HeaderForm) -> Self {
        self.form = form;
        self
    }
}
