//! Developer commands: `cargo xtask ci|tidy|fix|fuzz|bench`.
//!
//! `ci` is the whole gate of the Rust code and never edits a file; `fix` is the one that edits.

mod readme;
mod requirements;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  ci              format, lints, tests, documentation, tidy, dependencies; edits nothing
  tidy            crate arrows, module docs, ASCII sources, leftovers
  fix             format and apply what clippy can fix by itself
  fuzz [SECONDS]  run every fuzz target for SECONDS (default 60); needs cargo-fuzz and a nightly toolchain
  bench           the benchmarks of the crates
  readme FILE     print the shell blocks of FILE, in order, as one bash script";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let root = root();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["ci"] => ci(&root),
        ["tidy"] => tidy::check(&root),
        ["fix"] => fix(&root),
        ["fuzz"] => fuzz(&root, 60),
        ["fuzz", seconds] => fuzz(&root, seconds.parse().context("SECONDS is a whole number")?),
        ["bench"] => cargo(&root, &["bench", "--workspace", "--locked"]),
        ["readme", file] => readme::print_script(&root.join(file)),
        _ => bail!("{USAGE}"),
    }
}

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the workspace").to_path_buf()
}

fn ci(root: &Path) -> Result<()> {
    cargo(root, &["fmt", "--all", "--check"])?;
    cargo(root, &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    cargo(root, &["test", "--workspace", "--locked"])?;
    // As it is released. The tests are built with the feature `otel`.
    cargo(root, &["clippy", "-p", "gantry", "--locked", "--", "-D", "warnings"])?;
    run(Command::new(env!("CARGO")).current_dir(root).env("RUSTDOCFLAGS", "-D warnings").args([
        "doc",
        "--workspace",
        "--no-deps",
        "--document-private-items",
        "--locked",
    ]))?;
    tidy::check(root)?;
    if has_subcommand("deny") {
        cargo(root, &["deny", "--locked", "check", "licenses", "bans", "sources"])?;
    } else {
        eprintln!("skipped: cargo deny is not installed (cargo install --locked cargo-deny)");
    }
    Ok(())
}

fn fix(root: &Path) -> Result<()> {
    cargo(root, &["clippy", "--fix", "--workspace", "--all-targets", "--allow-dirty", "--allow-staged"])?;
    cargo(root, &["fmt", "--all"])
}

fn fuzz(root: &Path, seconds: u64) -> Result<()> {
    if !has_subcommand("fuzz") {
        bail!("cargo-fuzz is not installed: cargo install --locked cargo-fuzz");
    }
    let listed = Command::new(env!("CARGO"))
        .current_dir(root)
        .args(["fuzz", "list"])
        .output()
        .context("listing the fuzz targets")?;
    for target in String::from_utf8_lossy(&listed.stdout).lines() {
        let limit = format!("-max_total_time={seconds}");
        cargo(root, &["+nightly", "fuzz", "run", target, "--", &limit])?;
    }
    Ok(())
}

fn has_subcommand(name: &str) -> bool {
    Command::new(env!("CARGO")).args([name, "--version"]).output().is_ok_and(|output| output.status.success())
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let program = if arguments.first().is_some_and(|a| a.starts_with('+')) { "cargo" } else { env!("CARGO") };
    run(Command::new(program).current_dir(root).args(arguments))
}

fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {command:?}");
    let status = command.status().with_context(|| format!("starting {command:?}"))?;
    if !status.success() {
        bail!("failed: {command:?}");
    }
    Ok(())
}
