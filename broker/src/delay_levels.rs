//! How long a message waits on each delay level.

use std::fmt;
use std::time::Duration;

use crate::config::parse_duration;

/// The topic of messages that wait on a delay level: queue n holds those of level n + 1.
pub(crate) const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";

/// The most levels: `SCHEDULE_TOPIC_XXXX` has so many queues.
pub const LEVELS_MAX: usize = 18;

/// The longest wait of a level. It must end well before retention takes the message away.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The levels when nothing else is configured: those of RocketMQ.
pub const DEFAULT_LEVELS: &str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h";

/// The name under which the replicated state keeps the progress of a level: the offset of its next message.
pub(crate) fn mark_of(level: u32) -> String {
    format!("delay/{level}")
}

/// The waits of the levels, level 1 first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels(Vec<Duration>);

impl DelayLevels {
    /// Parses waits separated by spaces, as in [`DEFAULT_LEVELS`].
    ///
    /// # Errors
    /// A sentence naming what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let levels = text.split_ascii_whitespace().map(parse_duration).collect::<Result<Vec<_>, _>>()?;
        if levels.is_empty() || levels.len() > LEVELS_MAX {
            return Err(format!("{} delay levels are given, allowed are 1 to {LEVELS_MAX}", levels.len()));
        }
        match levels.iter().find(|wait| **wait < Duration::from_secs(1) || **wait > WAIT_MAX) {
            Some(wait) => Err(format!("a delay level of {wait:?} is not allowed, the range is 1s to 24h")),
            None => Ok(Self(levels)),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        u32::try_from(self.0.len()).expect("18 at most")
    }

    /// The level that a message asking for `wanted` waits on: the last one if there is no such level, none if it does
    /// not ask for one.
    #[must_use]
    pub fn level(&self, wanted: i64) -> Option<u32> {
        (wanted > 0).then(|| u32::try_from(wanted).unwrap_or(u32::MAX).min(self.count()))
    }

    /// Milliseconds that a message waits on `level`, 0 if there is no such level.
    #[must_use]
    pub fn wait_ms(&self, level: u32) -> i64 {
        let wait = (level as usize).checked_sub(1).and_then(|at| self.0.get(at));
        wait.map_or(0, |wait| i64::try_from(wait.as_millis()).expect("a day at most"))
    }
}

impl fmt::Display for DelayLevels {
    /// As it is configured.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, wait) in self.0.iter().enumerate() {
            let space = if at == 0 { "" } else { " " };
            let seconds = wait.as_secs();
            match seconds {
                _ if wait.subsec_millis() > 0 => write!(f, "{space}{}ms", wait.as_millis())?,
                _ if seconds.is_multiple_of(3_600) => write!(f, "{space}{}h", seconds / 3_600)?,
                _ if seconds.is_multiple_of(60) => write!(f, "{space}{}m", seconds / 60)?,
                _ => write!(f, "{space}{seconds}s")?,
            }
        }
        Ok(())
    }
}

impl Default for DelayLevels {
    fn default() -> Self {
        Self::parse(DEFAULT_LEVELS).expect("the defaults are right")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_counted_from_one_and_clamped() {
        let levels = DelayLevels::default();
        assert_eq!(levels.count(), 18);
        assert_eq!(levels.to_string(), DEFAULT_LEVELS);
        assert_eq!([0, -3].map(|wanted| levels.level(wanted)), [None, None]);
        assert_eq!([1, 18, 19, i64::MAX].map(|wanted| levels.level(wanted).unwrap()), [1, 18, 18, 18]);
        assert_eq!([0, 1, 5, 18, 19].map(|level| levels.wait_ms(level)), [0, 1_000, 60_000, 7_200_000, 0]);
    }

    #[test]
    fn wrong_levels_are_named() {
        for (text, expected) in [
            ("", "0 delay levels are given, allowed are 1 to 18"),
            (&"1s ".repeat(19), "19 delay levels are given, allowed are 1 to 18"),
            ("1s 500ms", "a delay level of 500ms is not allowed, the range is 1s to 24h"),
            ("1s 2d", "a delay level of 172800s is not allowed, the range is 1s to 24h"),
            ("1s 2x", "unknown unit `x` in duration `2x`; known are us, ms, s, m, h, d"),
        ] {
            assert_eq!(DelayLevels::parse(text).unwrap_err(), expected, "{text}");
        }
    }
}
