//! A process beside an application, which makes the loss of a whole machine invisible to unmodified clients.
//!
//! The application's only change is the address of its name server. The sidecar answers as one: in every route it names
//! itself as the leader of each broker, one port a broker, and relays what comes there to the cluster.
//!
//! ```text
//! application --105--> names  --105--> name servers             asks for a route, gets the sidecar's ports
//! application --10---> session of that connection --10--> leader, or a replica that forwards
//!                       ^ pushes of brokers <------------------/
//! cluster: who leads, who does not answer; polled, and at once when somebody does not answer
//! ```
//!
//! It keeps no data. What was in flight when a replica went away is sent again exactly where the client itself would have
//! sent it again (`repeat`); everything else gets an honest error.
#![warn(missing_docs)]

mod cluster;
mod error;
mod figures;
mod names;
mod options;
mod repeat;
mod service;
mod session;

pub use error::Error;
pub use error::Result;
pub use figures::Figures;
pub use options::Options;
pub use service::SidecarHandle;
pub use service::start;
