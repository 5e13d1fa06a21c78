//! Tables for people, JSON for programs.

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use comfy_table::{Cell, ContentArrangement, Table, presets};
use serde::Serialize;

/// How a command prints its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
}

/// Whoever read the output wants no more of it, such as `head`: no error to speak of.
#[derive(Debug, thiserror::Error)]
#[error("the reader of standard output is gone")]
pub(crate) struct ReaderGone;

/// Prints `text` and a line end to standard output.
///
/// # Errors
/// [`ReaderGone`], or the output cannot be written.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        result => result.context("writing to standard output"),
    }
}

/// Prints `value` as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string(value).context("encoding the result")?)
}

/// Rows under headings, columns as wide as needed.
pub(crate) fn table<R: IntoIterator<Item = String>>(head: &[&str], rows: impl IntoIterator<Item = R>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(head.iter().map(|text| Cell::new(text.to_uppercase())));
    for row in rows {
        table.add_row(row);
    }
    let columns = table.column_iter_mut();
    for column in columns {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_headings_and_no_trailing_blanks() {
        let rows = [["n1".to_owned(), "running".to_owned()], ["n22".to_owned(), "ok".to_owned()]];
        assert_eq!(table(&["node", "state"], rows), "NODE  STATE\nn1    running\nn22   ok");
    }
}
