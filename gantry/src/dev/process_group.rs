//! Which processes belong together, as the kernel tells under `/proc`.

use std::fs;

use rustix::process::Pid;

/// The processes of a group that still run. Its leader has the group's number.
pub(super) fn members(group: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let processes = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    processes.filter(|process| running(*process).is_some_and(|of| of == group)).collect()
}

/// Whether a process still runs: one that has ended may wait for long until somebody asks how.
pub(super) fn is_alive(process: Pid) -> bool {
    running(process).is_some()
}

/// The group of a process that has not ended.
fn running(process: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // The name before the last bracket may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let (state, group, threads) = (fields.first()?, fields.get(2)?, fields.get(17)?);
    // A first thread that has ended while others have not still has the process's sockets.
    let has_ended = matches!(*state, "Z" | "X") && threads.parse::<u32>().is_ok_and(|threads| threads <= 1);
    if has_ended { None } else { group.parse().ok().and_then(Pid::from_raw) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_member_of_its_group_until_it_has_ended() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let group = running(pid).unwrap();
        assert!(members(group).contains(&pid));
        child.kill().unwrap();
        // Nobody asks yet how it has ended.
        while is_alive(pid) {}
        assert!(!members(group).contains(&pid));
        child.wait().unwrap();
    }
}
