//! The tools of an operator: one file a noun.

pub(crate) mod bench;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod flush;
pub(crate) mod group;
pub(crate) mod health;
pub(crate) mod log_level;
pub(crate) mod member;
pub(crate) mod mqadmin;
pub(crate) mod msg;
pub(crate) mod operation;
pub(crate) mod recover;
pub(crate) mod send;
pub(crate) mod status;
pub(crate) mod store;
pub(crate) mod tail;
pub(crate) mod topic;
pub(crate) mod wake;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

/// Which names a list shows.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only names that hold this text
    filter: Option<String>,
    /// The system's own ones too
    #[arg(short, long)]
    all: bool,
}

impl ListArgs {
    /// Whether a name is shown that may be the system's own.
    fn shows(&self, name: &str, is_system: bool) -> bool {
        (self.all || !is_system) && self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// How long ago `timestamp_ms` was, in a few letters.
pub(crate) fn ago(timestamp_ms: i64) -> String {
    if timestamp_ms <= 0 {
        return "-".to_owned();
    }
    let seconds = now_ms().saturating_sub(timestamp_ms).max(0) / 1_000;
    match seconds {
        0..120 => format!("{seconds}s ago"),
        120..7_200 => format!("{}m ago", seconds / 60),
        7_200..172_800 => format!("{}h ago", seconds / 3_600),
        _ => format!("{}d ago", seconds / 86_400),
    }
}

/// A bar on standard error, shown only to people and only if the work takes longer than a second.
pub(crate) fn progress_bar(total: u64) -> indicatif::ProgressBar {
    use std::io::IsTerminal;
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len}  {per_sec}  {eta}")
        .unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
    let target = indicatif::ProgressDrawTarget::hidden();
    let bar = indicatif::ProgressBar::with_draw_target(Some(total), target).with_style(style);
    let shown = bar.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if !shown.is_finished() {
            shown.set_draw_target(indicatif::ProgressDrawTarget::stderr_with_hz(4));
        }
    });
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        assert_eq!(ago(0), "-");
        assert_eq!(ago(now_ms()), "0s ago");
        assert_eq!(ago(now_ms() - 10 * 60_000), "10m ago");
        assert_eq!(ago(now_ms() - 3 * 3_600_000), "3h ago");
        assert_eq!(ago(now_ms() - 3 * 86_400_000), "3d ago");
        assert_eq!(ago(now_ms() + 5_000), "0s ago");
    }
}
