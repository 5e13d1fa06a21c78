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
#[derive(Debug, Default, Args)]
pub(crate) struct ListArgs {
    /// Only names that hold this text
    filter: Option<String>,
    /// The system's own ones too
    #[arg(short, long)]
    all: bool,
    /// Most names shown [default: all]
    #[arg(long)]
    limit: Option<usize>,
    /// Only names that come after this one
    #[arg(long)]
    after: Option<String>,
}

impl ListArgs {
    /// Whether a name is shown that may be the system's own.
    fn shows(&self, name: &str, is_system: bool) -> bool {
        (self.all || !is_system) && self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }

    /// What is shown of all that fit, which are in order.
    fn page<T>(&self, all: impl Iterator<Item = T>, name: impl Fn(&T) -> &str) -> Vec<T> {
        let behind = |item: &T| self.after.as_deref().is_none_or(|after| name(item) > after);
        all.filter(behind).take(self.limit.unwrap_or(usize::MAX)).collect()
    }
}

/// A table of a page of `total` things, with how many these are if they are not all.
fn page_text(table: &str, shown: usize, total: usize, things: &str) -> String {
    if shown < total { format!("{table}\n\n{shown} of {total} {things}") } else { table.to_owned() }
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
    fn a_page_begins_behind_a_name_and_ends_at_the_limit() {
        let page = |after: Option<&str>, limit| {
            let args = ListArgs { after: after.map(str::to_owned), limit, ..ListArgs::default() };
            args.page(["a", "b", "c"].into_iter(), |name| name).join(" ")
        };
        assert_eq!(page(None, None), "a b c");
        assert_eq!(page(None, Some(2)), "a b");
        assert_eq!(page(Some("a"), Some(1)), "b");
        assert_eq!(page(Some("aa"), None), "b c");
        assert_eq!(page(Some("c"), Some(1)), "");
        assert_eq!(page_text("t", 2, 3, "topics"), "t\n\n2 of 3 topics");
        assert_eq!(page_text("t", 3, 3, "topics"), "t");
    }

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
