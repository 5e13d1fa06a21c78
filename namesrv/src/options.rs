//! Settings of a name server, checked once.

use std::time::Duration;

use crate::Error;
use crate::Result;

/// The settings as an operator writes them. [`Options::new`] checks them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Limits of connections and frames.
    pub remoting: remoting::Options,
    /// A broker that does not say otherwise may be silent for so long.
    pub broker_silent_max: Duration,
    /// How often silent brokers are looked for.
    pub scan_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            remoting: remoting::Options::default(),
            broker_silent_max: Duration::from_secs(120),
            scan_interval: Duration::from_secs(10),
        }
    }
}

/// Settings that have been checked.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) settings: Settings,
}

impl Options {
    /// Checks `settings`.
    ///
    /// # Errors
    /// [`Error::Option`] names the first setting that makes no sense.
    pub fn new(settings: Settings) -> Result<Self> {
        if settings.scan_interval < Duration::from_millis(1) {
            return Err(Error::Option { name: "scan_interval", reason: "must be at least 1 ms" });
        }
        if settings.broker_silent_max <= settings.scan_interval {
            return Err(Error::Option { name: "broker_silent_max", reason: "must be longer than scan_interval" });
        }
        Ok(Self { settings })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new(Settings::default()).expect("the defaults pass their own check")
    }
}
