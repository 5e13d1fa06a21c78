//! How long it takes to read and to judge a history of a million operations, on one core.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and fails loudly")]

use std::time::{Duration, Instant};

use jepsen::checker::{Outcome, judge};
use jepsen::history::{read_from, write_to};
use jepsen::model::{Size, legal_history};
use jepsen::seed::Seed;

/// What is asked for: everything together within this, for a million operations.
const LIMIT: Duration = Duration::from_secs(20);
const OPERATIONS: usize = 1_000_000;

fn main() {
    let size = Size {
        lasts: Duration::from_secs(480),
        think_max: Duration::from_millis(16),
        producers: 10,
        readers: 4,
        queues: 32,
    };
    let begun = Instant::now();
    let history = legal_history(Seed(1), &size);
    println!("made      {:>9} operations in {:.2?}", history.ops.len(), begun.elapsed());
    let mut file = Vec::new();
    write_to(&history, &mut file).unwrap();
    drop(history);

    let begun = Instant::now();
    let history = read_from(file.as_slice()).unwrap();
    let read = begun.elapsed();
    println!("read      {:>9} MiB in {read:.2?}", file.len() >> 20);

    let begun = Instant::now();
    let verdict = judge(&history);
    let judged = begun.elapsed();
    assert_eq!(verdict.outcome, Outcome::Pass, "{:?}", verdict.findings().next());
    let compared: u64 = verdict.reports.iter().map(|report| report.checked).sum();
    println!("judged    {:>9} operations in {judged:.2?}, {compared} comparisons", history.ops.len());

    let operations = history.ops.len();
    let scaled = (read + judged).mul_f64(OPERATIONS as f64 / operations as f64);
    println!("for a million operations: {scaled:.2?}, limit {LIMIT:?}");
    assert!(operations >= OPERATIONS * 9 / 10, "the model made too few operations to tell");
    assert!(scaled <= LIMIT, "too slow");
}
