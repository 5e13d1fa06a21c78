//! What the operating system says about this process, under the names that Prometheus' own libraries use.

use super::MetricsText;

/// Adds memory, processor time, open files and start of this process. What cannot be read is left out.
pub fn collect_process(metrics: &mut MetricsText) {
    if let Ok(stat) = std::fs::read_to_string("/proc/self/stat")
        && let Some(stat) = Stat::parse(&stat)
    {
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        metrics
            .counter("process_cpu_seconds_total", "Processor time of this process.")
            .sample(&[], stat.cpu_ticks as f64 / ticks);
        let pages = rustix::param::page_size() as u64;
        metrics
            .gauge("process_resident_memory_bytes", "Memory of this process, mapped files it has touched included.")
            .sample(&[], stat.resident_pages * pages);
        metrics.gauge("process_threads", "Threads of this process.").sample(&[], stat.threads);
        if let Some(booted) = boot_time() {
            metrics
                .gauge("process_start_time_seconds", "When this process started, since 1970.")
                .sample(&[], booted as f64 + stat.started_ticks as f64 / ticks);
        }
    }
    if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
        // The one that reads the directory is not counted.
        metrics.gauge("process_open_fds", "Open descriptors.").sample(&[], open.count().saturating_sub(1));
    }
    if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        metrics.gauge("process_max_fds", "How many descriptors may be open.").sample(&[], limit);
    }
}

struct Stat {
    cpu_ticks: u64,
    threads: u64,
    started_ticks: u64,
    resident_pages: u64,
}

impl Stat {
    /// Reads `/proc/PID/stat`. The name of the process may hold anything, so fields count from its last parenthesis.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        // The first field there is the third of the file.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            started_ticks: field(22)?,
            resident_pages: field(24)?,
        })
    }
}

fn boot_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_moves_no_field() {
        let text = "7 (a) b) S 1 7 7 0 -1 4194560 10 0 0 0 3 4 0 0 20 0 5 0 900 1000 77 1844 1 1";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.cpu_ticks, stat.threads, stat.started_ticks, stat.resident_pages), (7, 5, 900, 77));
        assert!(Stat::parse("7 (a) S 1").is_none());
    }
}
