//! Limits of a server and its connections, checked once.

use std::time::Duration;

use protocol::FrameLimits;

use crate::Error;
use crate::Result;

/// The limits as an operator writes them. [`Options::new`] checks them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Limits of one frame.
    pub frame: FrameLimits,
    /// Connections of all servers that share an [`Admission`](crate::Admission).
    pub connections_max: usize,
    /// Connections from one IP address.
    pub connections_per_address_max: usize,
    /// New connections from one IP address in a second.
    pub new_connections_per_address_per_second_max: usize,
    /// Answers queued on one connection; at this many its reading stops.
    pub outbound_frames_max: usize,
    /// Bytes queued on one connection; at this many its reading stops.
    pub outbound_bytes_max: usize,
    /// Bytes queued on all connections; at this many all reading stops.
    pub outbound_bytes_total_max: usize,
    /// A connection whose queued bytes make no progress for so long is closed.
    pub write_stall_max: Duration,
    /// A connection that has not taken an answer so long after it was queued is closed: who reads a few bytes now and
    /// then must not hold what the answer is made of, such as segments that retention has removed.
    pub queued_max: Duration,
    /// Requests of one connection not yet answered; at this many its reading stops.
    pub in_flight_requests_max: usize,
    /// Bytes of requests of one connection not yet answered.
    pub in_flight_bytes_max: usize,
    /// Bytes of requests of all connections not yet answered.
    pub in_flight_bytes_total_max: usize,
    /// A TLS handshake, where there is one, takes at most this long.
    pub handshake_within: Duration,
    /// The first frame is complete within this time of the accept.
    pub first_frame_within: Duration,
    /// A frame that has begun is complete within this time.
    pub frame_within: Duration,
    /// Bytes a second that a frame that has begun must bring, after a grace of `first_frame_within`.
    pub frame_bytes_per_second_min: usize,
    /// A connection without a byte in either direction for so long is closed.
    pub idle_max: Duration,
    /// Rest of the accept loop when the process has no descriptor left.
    pub accept_pause: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            frame: FrameLimits::default(),
            connections_max: 20_000,
            connections_per_address_max: 1_000,
            new_connections_per_address_per_second_max: 200,
            outbound_frames_max: 1_024,
            outbound_bytes_max: 16 << 20,
            outbound_bytes_total_max: 512 << 20,
            write_stall_max: Duration::from_secs(30),
            queued_max: Duration::from_secs(60),
            in_flight_requests_max: 2_048,
            in_flight_bytes_max: 32 << 20,
            in_flight_bytes_total_max: 256 << 20,
            handshake_within: Duration::from_secs(10),
            first_frame_within: Duration::from_secs(10),
            frame_within: Duration::from_secs(30),
            frame_bytes_per_second_min: 1_024,
            idle_max: Duration::from_secs(120),
            accept_pause: Duration::from_millis(100),
        }
    }
}

/// Limits that have been checked.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) settings: Settings,
}

impl Options {
    /// Checks `settings`.
    ///
    /// # Errors
    /// [`Error::Option`] names the first field that makes no sense.
    pub fn new(settings: Settings) -> Result<Self> {
        let s = &settings;
        for (name, value, max) in [
            ("connections_max", s.connections_max, 1_000_000),
            ("connections_per_address_max", s.connections_per_address_max, 1_000_000),
            ("new_connections_per_address_per_second_max", s.new_connections_per_address_per_second_max, 1_000_000),
            ("outbound_frames_max", s.outbound_frames_max, 1 << 20),
            ("outbound_bytes_max", s.outbound_bytes_max, 1 << 30),
            ("outbound_bytes_total_max", s.outbound_bytes_total_max, 1 << 40),
            ("in_flight_requests_max", s.in_flight_requests_max, 1 << 20),
            ("in_flight_bytes_max", s.in_flight_bytes_max, 1 << 30),
            ("in_flight_bytes_total_max", s.in_flight_bytes_total_max, 1 << 40),
        ] {
            if value == 0 {
                return Err(Error::Option { name, reason: "must be at least 1" });
            }
            if value > max {
                return Err(Error::Option { name, reason: "is above its upper bound" });
            }
        }
        for (name, value) in [
            ("write_stall_max", s.write_stall_max),
            ("queued_max", s.queued_max),
            ("handshake_within", s.handshake_within),
            ("first_frame_within", s.first_frame_within),
            ("frame_within", s.frame_within),
            ("idle_max", s.idle_max),
            ("accept_pause", s.accept_pause),
        ] {
            if value < Duration::from_millis(1) {
                return Err(Error::Option { name, reason: "must be at least 1 ms" });
            }
            if value > Duration::from_secs(86_400) {
                return Err(Error::Option { name, reason: "must be at most a day" });
            }
        }
        if s.connections_per_address_max > s.connections_max {
            return Err(Error::Option { name: "connections_per_address_max", reason: "is above connections_max" });
        }
        if s.outbound_bytes_max > s.outbound_bytes_total_max {
            return Err(Error::Option { name: "outbound_bytes_max", reason: "is above outbound_bytes_total_max" });
        }
        if s.in_flight_bytes_max > s.in_flight_bytes_total_max {
            return Err(Error::Option { name: "in_flight_bytes_max", reason: "is above in_flight_bytes_total_max" });
        }
        Ok(Self { settings })
    }

    /// How often a server looks for connections that are too slow or too quiet.
    pub(crate) fn sweep_interval(&self) -> Duration {
        let s = &self.settings;
        let shortest = s.first_frame_within.min(s.frame_within).min(s.idle_max);
        (shortest / 8).clamp(Duration::from_millis(1), Duration::from_secs(1))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new(Settings::default()).expect("the defaults pass their own check")
    }
}
