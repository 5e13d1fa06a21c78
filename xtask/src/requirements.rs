//! Whether the page of requirements names code and tests that are there.
//!
//! A row of its tables is `| id | rule | code | tests |`. Code is files, tests are functions, each in backticks; a row
//! without a test says in words what stands for one.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

/// The page, from the root of the workspace.
pub(crate) const PAGE: &str = "docs/storage-requirements.md";

/// Families of ids, and how many of each there must be.
const FAMILIES: &[(&str, usize)] = &[("H", 13), ("ST-", 37), ("LI-0", 6)];

/// Checks the page against the files in `root`, and the sources, of which each is a text.
pub(crate) fn check(root: &Path, sources: &[String]) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join(PAGE)).with_context(|| format!("reading {PAGE}"))?;
    Ok(findings(&text, |file| root.join(file).exists(), &functions(sources)))
}

/// The names of all functions.
fn functions(sources: &[String]) -> BTreeSet<&str> {
    let lines = sources.iter().flat_map(|source| source.lines());
    lines.filter_map(|line| line.split_once("fn ")?.1.split(['(', '<']).next()).collect()
}

fn findings(text: &str, is_file: impl Fn(&str) -> bool, functions: &BTreeSet<&str>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut ids = BTreeSet::new();
    for (number, line) in text.lines().enumerate() {
        let place = format!("{PAGE}:{}", number + 1);
        let cells: Vec<&str> = line.split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
        let [id, _, code, tests] = cells[..] else { continue };
        if id == "Id" || id.starts_with("--") {
            continue;
        }
        if !ids.insert(id) {
            findings.push(format!("{place}: {id} has a row already"));
        }
        for file in quoted(code).filter(|file| !is_file(file)) {
            findings.push(format!("{place}: {id} names {file}, which is not there"));
        }
        for test in quoted(tests).filter(|test| !functions.contains(test)) {
            findings.push(format!("{place}: {id} names the test {test}, which is not there"));
        }
        if tests.is_empty() {
            findings.push(format!("{place}: {id} names no test"));
        }
    }
    for (family, count) in FAMILIES {
        for number in 1..=*count {
            let id = if *family == "ST-" { format!("ST-{number:02}") } else { format!("{family}{number}") };
            if !ids.contains(id.as_str()) {
                findings.push(format!("{PAGE}: {id} has no row"));
            }
        }
    }
    findings
}

/// What stands in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked_against_files_and_functions() {
        let sources = ["    fn a_log_is_whole() {}\nasync fn it_ends() {\n".to_owned()];
        let names = functions(&sources);
        let page = "| Id | Rule | Code | Tests |\n| --- | --- | --- | --- |\n\
                    | H1 | r | `here.rs`, `gone.rs` | `a_log_is_whole`, `it_ends`, `nowhere` |\n| H1 | r | `here.rs` | |\n";
        let found = findings(page, |file| file == "here.rs", &names);
        let of_rows: Vec<&str> =
            found.iter().map(String::as_str).filter(|line| !line.ends_with("has no row")).collect();
        assert_eq!(
            of_rows,
            [
                "docs/storage-requirements.md:3: H1 names gone.rs, which is not there",
                "docs/storage-requirements.md:3: H1 names the test nowhere, which is not there",
                "docs/storage-requirements.md:4: H1 has a row already",
                "docs/storage-requirements.md:4: H1 names no test",
            ]
        );
        assert_eq!(found.len(), 4 + 12 + 37 + 6);
    }
}
