//! What the compiler does not check: crate arrows, module docs, ASCII sources, leftovers, the page of requirements.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::requirements;

/// The arrows of ARCHITECTURE.md: a crate, and the crates of this workspace that it may use outside its tests.
const ARROWS: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("remoting", &["protocol"]),
    ("raft-store", &[]),
    ("namesrv", &["protocol", "remoting"]),
    ("sidecar", &["protocol", "remoting"]),
    ("client", &["protocol", "remoting"]),
    ("broker", &["protocol", "remoting", "raft-store"]),
    ("jepsen", &["client", "protocol"]),
    ("gantry", &["protocol", "remoting", "raft-store", "namesrv", "sidecar", "client", "broker"]),
    ("xtask", &[]),
];

/// Marks of unfinished work, split so that this file does not find itself.
const LEFTOVERS: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("XX", "X:"),
    concat!("dbg", "!("),
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("HA", "CK"),
    concat!("<<<<", "<<<"),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// Runs every check and reports all findings at once.
///
/// # Errors
/// When there is a finding, or the tree cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut findings = check_arrows(&metadata(root)?);
    let mut sources = Vec::new();
    for file in source_files(root)? {
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        findings.extend(check_source(&name, &text));
        sources.push(text);
    }
    findings.extend(requirements::check(root, &sources)?);
    if findings.is_empty() {
        return Ok(());
    }
    for finding in &findings {
        eprintln!("tidy: {finding}");
    }
    bail!("{} findings", findings.len())
}

fn metadata(root: &Path) -> Result<Metadata> {
    let output = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    serde_json::from_slice(&output.stdout).context("reading cargo metadata")
}

fn check_arrows(metadata: &Metadata) -> Vec<String> {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        ARROWS.iter().map(|(from, to)| (*from, to.iter().copied().collect())).collect();
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let Some(allowed) = allowed.get(package.name.as_str()) else {
            findings.push(format!("crate {} is not in the list of arrows", package.name));
            continue;
        };
        let inner = package.dependencies.iter().filter(|d| d.path.is_some() && d.kind.as_deref() != Some("dev"));
        for dependency in inner {
            if !allowed.contains(dependency.name.as_str()) {
                findings.push(format!("{} may not depend on {}", package.name, dependency.name));
            }
        }
    }
    findings
}

fn check_source(name: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    if !text.starts_with("//!") && !text.starts_with("#!") {
        findings.push(format!("{name}: does not start with a module doc"));
    }
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if !line.is_ascii() {
            findings.push(format!("{place}: not ASCII; escape it"));
        }
        if line.ends_with(' ') || line.contains('\t') {
            findings.push(format!("{place}: blank at the end of the line, or a tab"));
        }
        for leftover in LEFTOVERS {
            if line.contains(leftover) {
                findings.push(format!("{place}: leftover `{leftover}`"));
            }
        }
    }
    findings
}

fn source_files(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.rs"])
        .output()
        .context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8(output.stdout).context("file names are UTF-8")?;
    Ok(names.split('\0').filter(|n| !n.is_empty()).map(|n| root.join(n)).filter(|p| p.exists()).collect())
}

#[cfg(test)]
mod tests {
    use super::{Dependency, Metadata, Package, check_arrows, check_source};

    fn package(name: &str, to: &str, kind: Option<&str>) -> Metadata {
        let dependency = Dependency { name: to.into(), kind: kind.map(Into::into), path: Some("x".into()) };
        Metadata { packages: vec![Package { name: name.into(), dependencies: vec![dependency] }] }
    }

    #[test]
    fn a_forbidden_arrow_is_found_and_a_test_dependency_is_not() {
        assert_eq!(check_arrows(&package("protocol", "raft-store", None)), ["protocol may not depend on raft-store"]);
        assert!(check_arrows(&package("broker", "client", Some("dev"))).is_empty());
        assert!(check_arrows(&package("remoting", "protocol", None)).is_empty());
        assert_eq!(check_arrows(&package("new", "protocol", None)).len(), 1);
    }

    #[test]
    fn sources_are_checked_line_by_line() {
        assert!(check_source("a.rs", "//! Doc.\nfn a() {}\n").is_empty());
        let findings = check_source("a.rs", concat!("fn a() { to", "do!() }\nlet x = \"\u{e9}\"; \n"));
        assert_eq!(findings.len(), 4, "{findings:?}");
    }
}
