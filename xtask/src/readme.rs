//! The command blocks of a Markdown page as one shell script, so that what a page tells a reader to type is run by CI.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// Prints every block fenced as `sh` of `page`, in order.
///
/// # Errors
/// When the page cannot be read, holds no such block or leaves one open.
pub(crate) fn print_script(page: &Path) -> Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let blocks = shell_blocks(&text)?;
    if blocks.is_empty() {
        bail!("{} holds no block fenced as `sh`", page.display());
    }
    let mut out = std::io::stdout().lock();
    for block in blocks {
        out.write_all(block.as_bytes())?;
    }
    Ok(())
}

fn shell_blocks(text: &str) -> Result<Vec<String>> {
    let mut blocks = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        match (&mut open, line.trim_end()) {
            (None, "```sh") => open = Some(String::new()),
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(block), line) => {
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    if open.is_some() {
        bail!("a block fenced as `sh` is not closed");
    }
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::shell_blocks;

    #[test]
    fn only_shell_blocks_are_taken_in_order() {
        let page = "a\n```sh\none\ntwo\n```\n```text\nout\n```\n```sh\nthree\n```\n";
        assert_eq!(shell_blocks(page).unwrap(), ["one\ntwo\n", "three\n"]);
    }

    #[test]
    fn an_open_block_is_an_error() {
        assert!(shell_blocks("```sh\none\n").is_err());
    }
}
