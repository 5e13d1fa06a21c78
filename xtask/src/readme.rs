//! The command blocks of a Markdown page as one shell script, so that what a page tells a reader to type is run by CI.
//!
//! A block fenced as `sh` runs in order; one fenced as `sh background` is a second terminal: it is started, the script
//! waits until its cluster answers, and it is interrupted when the script ends.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// What stands before the blocks: stop at the first failure, and end what was started.
const PROLOGUE: &str = r#"set -euo pipefail
started=()
finish() {
    for pid in "${started[@]}"; do kill -INT "$pid" 2>/dev/null || true; wait "$pid" || true; done
}
trap finish EXIT
"#;

/// Waits for the cluster that the block before it started; bounded, so that a start that fails is an error.
const AWAIT_CLUSTER: &str = r#"for attempt in $(seq 600); do
    if ./target/release/gantry status >/dev/null 2>&1; then break; fi
    kill -0 "${started[-1]}" || { echo "the background block ended early" >&2; exit 1; }
    [ "$attempt" -lt 600 ] || { echo "no cluster after 10 minutes" >&2; exit 1; }
    sleep 1
done
"#;

/// Prints every block of `page` that is fenced as `sh` or `sh background`, in order, as one bash script.
///
/// # Errors
/// When the page cannot be read, holds no such block or leaves one open.
pub(crate) fn print_script(page: &Path) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let script = script(&text).with_context(|| page.display().to_string())?;
    std::io::stdout().lock().write_all(script.as_bytes()).context("writing the script")
}

fn script(text: &str) -> Result<String> {
    let mut script = String::from(PROLOGUE);
    let mut blocks = 0;
    let mut open = None;
    let mut body = String::new();
    for line in text.lines() {
        match (open, line.trim_end()) {
            (None, "```sh") => open = Some(false),
            (None, "```sh background") => open = Some(true),
            (None, _) => {}
            (Some(background), "```") => {
                if background {
                    script.push_str(&format!("(\n{body}) &\nstarted+=($!)\n{AWAIT_CLUSTER}"));
                } else {
                    script.push_str(&body);
                }
                blocks += 1;
                body.clear();
                open = None;
            }
            (Some(_), line) => {
                body.push_str(line);
                body.push('\n');
            }
        }
    }
    if open.is_some() {
        bail!("a block fenced as `sh` is not closed");
    }
    if blocks == 0 {
        bail!("no block is fenced as `sh`");
    }
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::{PROLOGUE, script};

    #[test]
    fn only_shell_blocks_are_taken_in_order() {
        let page = "a\n```sh\none\ntwo\n```\n```text\nout\n```\n```sh\nthree\n```\n";
        assert_eq!(script(page).unwrap().strip_prefix(PROLOGUE).unwrap(), "one\ntwo\nthree\n");
    }

    #[test]
    fn a_background_block_is_started_and_awaited() {
        let made = script("```sh background\nserve\n```\n```sh\nuse\n```\n").unwrap();
        let started = made.find("(\nserve\n) &").unwrap();
        let awaited = made.find("gantry status").unwrap();
        let used = made.find("\nuse\n").unwrap();
        assert!(started < awaited && awaited < used);
    }

    #[test]
    fn an_open_block_and_a_page_without_blocks_are_errors() {
        assert!(script("```sh\none\n").is_err());
        assert!(script("text\n").is_err());
    }
}
