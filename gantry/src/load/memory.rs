//! Resident memory of other processes, from `/proc`.

use std::fs;

use anyhow::{Context, Result};

/// Resident bytes of the largest among `pids`.
///
/// # Errors
/// When a process is gone or its record cannot be read.
pub(crate) fn largest_resident(pids: &[u32]) -> Result<u64> {
    let mut largest = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        largest = largest.max(resident(&text).with_context(|| format!("{path} has an unknown form"))?);
    }
    Ok(largest)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    1234 kB\nRssAnon:\t 7 kB\n"), Some(1234 * 1024));
        assert_eq!(resident("Name:\tx\n"), None);
    }
}
