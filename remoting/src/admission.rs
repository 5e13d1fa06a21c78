//! Who may connect, and how many bytes all connections together may hold.
//!
//! One `Admission` is shared by the servers of a process, so that its limits hold for the process.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::Options;

/// The limits that hold for all connections of a process, and what is used of them.
#[derive(Debug)]
pub struct Admission {
    connections_max: usize,
    per_address_max: usize,
    new_per_second_max: usize,
    in_flight_bytes_max: usize,
    outbound_bytes_max: usize,
    table: Mutex<Table>,
    in_flight_bytes: AtomicUsize,
    outbound_bytes: AtomicUsize,
    waiting: AtomicUsize,
    room: Notify,
}

#[derive(Debug, Default)]
struct Table {
    connections: usize,
    addresses: HashMap<IpAddr, Address>,
}

#[derive(Debug)]
struct Address {
    connections: usize,
    second_began: Instant,
    new_in_second: usize,
}

/// Why a connection is refused; the text names the cause in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) &'static str);

impl Admission {
    /// Nothing admitted yet.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let s = &options.settings;
        Self {
            connections_max: s.connections_max,
            per_address_max: s.connections_per_address_max,
            new_per_second_max: s.new_connections_per_address_per_second_max,
            in_flight_bytes_max: s.in_flight_bytes_total_max,
            outbound_bytes_max: s.outbound_bytes_total_max,
            table: Mutex::new(Table::default()),
            in_flight_bytes: AtomicUsize::new(0),
            outbound_bytes: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            room: Notify::new(),
        }
    }

    /// Connections admitted and not yet left.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.lock().connections
    }

    /// Bytes of requests that are not yet answered.
    #[must_use]
    pub fn in_flight_bytes(&self) -> usize {
        self.in_flight_bytes.load(Ordering::Relaxed)
    }

    /// Bytes queued and not yet written.
    #[must_use]
    pub fn outbound_bytes(&self) -> usize {
        self.outbound_bytes.load(Ordering::Relaxed)
    }

    /// Counts a connection from `address`, which [`Self::leave`] takes back.
    pub(crate) fn enter(&self, address: IpAddr, now: Instant) -> Result<(), Refused> {
        let mut table = self.table.lock();
        if table.connections >= self.connections_max {
            return Err(Refused("too many connections"));
        }
        let entry =
            table.addresses.entry(address).or_insert(Address { connections: 0, second_began: now, new_in_second: 0 });
        if entry.connections >= self.per_address_max {
            return Err(Refused("too many connections from this address"));
        }
        if now.duration_since(entry.second_began) >= Duration::from_secs(1) {
            entry.second_began = now;
            entry.new_in_second = 0;
        }
        if entry.new_in_second >= self.new_per_second_max {
            return Err(Refused("too many new connections from this address"));
        }
        entry.new_in_second += 1;
        entry.connections += 1;
        table.connections += 1;
        Ok(())
    }

    pub(crate) fn leave(&self, address: IpAddr, now: Instant) {
        let mut table = self.table.lock();
        assert!(table.connections > 0, "a connection leaves that never entered");
        table.connections -= 1;
        if let Some(entry) = table.addresses.get_mut(&address) {
            entry.connections -= 1;
            // The rate of new connections must survive the close of the last one, but not for ever.
            if entry.connections == 0 && now.duration_since(entry.second_began) >= Duration::from_secs(1) {
                table.addresses.remove(&address);
            }
        }
    }

    /// Forgets addresses without connections whose rate no longer matters.
    pub(crate) fn sweep(&self, now: Instant) {
        self.table.lock().addresses.retain(|_, entry| {
            entry.connections > 0 || now.duration_since(entry.second_began) < Duration::from_secs(1)
        });
    }

    pub(crate) fn add_in_flight(&self, bytes: usize) {
        self.in_flight_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub_in_flight(&self, bytes: usize) {
        self.in_flight_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell_waiting();
    }

    pub(crate) fn add_outbound(&self, bytes: usize) {
        self.outbound_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub_outbound(&self, bytes: usize) {
        self.outbound_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.tell_waiting();
    }

    /// Whether connections may read on.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight_bytes() < self.in_flight_bytes_max && self.outbound_bytes() < self.outbound_bytes_max
    }

    /// Waits until [`Self::has_room`].
    pub(crate) async fn wait_for_room(&self) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _left = Left(&self.waiting);
            if self.has_room() {
                return;
            }
            room.await;
        }
    }

    fn tell_waiting(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 && self.has_room() {
            self.room.notify_waiters();
        }
    }
}

struct Left<'a>(&'a AtomicUsize);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::Settings;

    fn admission(total: usize, per_address: usize, per_second: usize) -> Admission {
        let settings = Settings {
            connections_max: total,
            connections_per_address_max: per_address,
            new_connections_per_address_per_second_max: per_second,
            ..Settings::default()
        };
        Admission::new(&Options::new(settings).unwrap())
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }

    #[tokio::test(start_paused = true)]
    async fn counts_hold_in_total_and_by_address() {
        let admission = admission(3, 2, 100);
        let now = Instant::now();
        assert!(admission.enter(address(1), now).is_ok());
        assert!(admission.enter(address(1), now).is_ok());
        assert!(admission.enter(address(1), now).is_err());
        assert!(admission.enter(address(2), now).is_ok());
        assert!(admission.enter(address(3), now).is_err());
        admission.leave(address(1), now);
        assert!(admission.enter(address(3), now).is_ok());
        assert_eq!(admission.connections(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn rate_outlives_the_connections_and_ends_with_the_second() {
        let admission = admission(100, 100, 2);
        let now = Instant::now();
        for _ in 0..2 {
            assert!(admission.enter(address(1), now).is_ok());
            admission.leave(address(1), now);
        }
        assert!(admission.enter(address(1), now).is_err());
        let later = now + Duration::from_secs(1);
        assert!(admission.enter(address(1), later).is_ok());
        admission.leave(address(1), later);
        admission.sweep(later + Duration::from_secs(1));
        assert!(admission.table.lock().addresses.is_empty());
    }
}
