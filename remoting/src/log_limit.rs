//! One log line per cause and address in a while: noise from the network must not fill a disk.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Causes and addresses remembered at a time; the table starts anew when it is full.
const ENTRIES_MAX: usize = 4_096;

/// Decides which lines may be logged.
#[derive(Debug)]
pub struct LogLimit {
    every: Duration,
    entries: Mutex<HashMap<(&'static str, IpAddr), Entry>>,
}

#[derive(Debug)]
struct Entry {
    logged_at: Instant,
    suppressed: u64,
}

impl LogLimit {
    /// One line for each cause and address per `every`.
    #[must_use]
    pub fn new(every: Duration) -> Self {
        Self { every, entries: Mutex::new(HashMap::new()) }
    }

    /// `Some(lines suppressed since the last one)` when a line about `cause` and `address` may be logged now.
    pub fn allows(&self, cause: &'static str, address: IpAddr) -> Option<u64> {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, entry| now.duration_since(entry.logged_at) < self.every);
            if entries.len() >= ENTRIES_MAX {
                entries.clear();
            }
        }
        match entries.get_mut(&(cause, address)) {
            Some(entry) if now.duration_since(entry.logged_at) < self.every => {
                entry.suppressed += 1;
                None
            }
            Some(entry) => {
                entry.logged_at = now;
                Some(std::mem::take(&mut entry.suppressed))
            }
            None => {
                entries.insert((cause, address), Entry { logged_at: now, suppressed: 0 });
                Some(0)
            }
        }
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_per_cause_and_address_in_a_period() {
        let limit = LogLimit::new(Duration::from_secs(10));
        let a = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        let b = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
        assert_eq!(limit.allows("malformed", a), Some(0));
        assert_eq!(limit.allows("malformed", a), None);
        assert_eq!(limit.allows("malformed", a), None);
        assert_eq!(limit.allows("slow", a), Some(0));
        assert_eq!(limit.allows("malformed", b), Some(0));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(limit.allows("malformed", a), Some(2));
    }
}
