//! CPU time of other processes, from `/proc`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// User and system time that the living processes among `pids` have used so far.
///
/// # Errors
/// When a process is gone or its record cannot be read.
pub(crate) fn cpu_time(pids: &[u32]) -> Result<Duration> {
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let mut ticks = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        ticks += ticks_of(&text).with_context(|| format!("{path} has an unknown form"))?;
    }
    Ok(Duration::from_micros(ticks.saturating_mul(1_000_000) / ticks_per_second))
}

/// Fields 14 and 15; the second field is a name in parentheses that may hold anything.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 0 0 7 5 0 0 20 0 3 0 100";
        assert_eq!(ticks_of(stat), Some(12));
        assert_eq!(ticks_of("nonsense"), None);
    }

    #[test]
    fn this_process_has_used_time() {
        assert!(cpu_time(&[std::process::id()]).is_ok());
        assert!(cpu_time(&[u32::MAX]).is_err());
    }
}
