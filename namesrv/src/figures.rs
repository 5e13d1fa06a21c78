//! What a name server counts.

use std::sync::atomic::{AtomicU64, Ordering};

use protocol::{RequestCode, ResponseCode};

/// What a name server knows and has done, for those who watch it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Broker names that can be reached.
    pub brokers: usize,
    /// Of these, how many have somebody to take messages: a leader that lives.
    pub led: usize,
    /// Replicas that live.
    pub replicas: usize,
    /// Topics that some broker has.
    pub topics: usize,
    /// Open connections.
    pub connections: usize,
    /// Routes asked for since the start.
    pub route_requests: u64,
    /// Of these, for topics that no broker has.
    pub routes_missing: u64,
    /// Registrations of brokers since the start.
    pub registrations: u64,
    /// Everything else asked since the start.
    pub other_requests: u64,
}

/// What the table of routes holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Held {
    pub(crate) brokers: usize,
    pub(crate) led: usize,
    pub(crate) replicas: usize,
    pub(crate) topics: usize,
}

/// Requests since the start.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    routes: AtomicU64,
    missing: AtomicU64,
    registrations: AtomicU64,
    others: AtomicU64,
}

impl Requests {
    /// Counts a request that was answered with `answer`.
    pub(crate) fn count(&self, request: RequestCode, answer: ResponseCode) {
        let counter = match request {
            RequestCode::GET_ROUTEINFO_BY_TOPIC => &self.routes,
            RequestCode::REGISTER_BROKER => &self.registrations,
            _ => &self.others,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if request == RequestCode::GET_ROUTEINFO_BY_TOPIC && answer != ResponseCode::SUCCESS {
            self.missing.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn figures(&self, held: Held, connections: usize) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            brokers: held.brokers,
            led: held.led,
            replicas: held.replicas,
            topics: held.topics,
            connections,
            route_requests: of(&self.routes),
            routes_missing: of(&self.missing),
            registrations: of(&self.registrations),
            other_requests: of(&self.others),
        }
    }
}
