//! The checkers accept every legal history: a model broker makes them, with all kinds of operations and unknowns.

use jepsen::checker::judge;
use jepsen::history::{read_from, write_to};
use jepsen::model::{Size, legal_history};
use jepsen::seed::Seed;

/// Histories of an ordinary test run; `SLOW_TESTS=1` makes it ten thousand.
const HISTORIES: u64 = 500;

#[test]
fn legal_histories_have_no_finding() {
    let slow = std::env::var_os("SLOW_TESTS").is_some();
    let histories = if slow { 10_000 } else { HISTORIES };
    let mut operations = 0;
    for seed in 0..histories {
        let size = Size { queues: 2 + u32::try_from(seed % 3).unwrap(), ..Size::SMALL };
        let history = legal_history(Seed(seed), &size);
        operations += history.ops.len();
        let verdict = judge(&history);
        let findings: Vec<String> = verdict
            .findings()
            .map(|finding| format!("{}: {} {:?}", finding.anomaly, finding.what, finding.ops))
            .collect();
        assert!(findings.is_empty(), "seed {seed}: {findings:#?}");
        let unknown: Vec<&String> = verdict.unknown().collect();
        assert!(unknown.is_empty(), "seed {seed}: {unknown:#?}");
    }
    println!("{histories} histories, {operations} operations");
}

#[test]
fn a_history_reads_back_from_its_file() {
    let history = legal_history(Seed(1), &Size::SMALL);
    let mut file = Vec::new();
    write_to(&history, &mut file).unwrap();
    let mut read = read_from(file.as_slice()).unwrap();
    // Operations that begin in one moment may change places; nothing depends on it.
    let mut written = history;
    for history in [&mut read, &mut written] {
        history.ops.sort_by_key(|op| op.op);
    }
    assert_eq!(read, written);
}

#[test]
fn the_same_seed_makes_the_same_history() {
    assert_eq!(legal_history(Seed(9), &Size::SMALL), legal_history(Seed(9), &Size::SMALL));
    assert_ne!(legal_history(Seed(9), &Size::SMALL), legal_history(Seed(10), &Size::SMALL));
}
