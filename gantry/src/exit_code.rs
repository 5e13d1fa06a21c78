//! What the process tells its caller.
//!
//! | Code | Meaning |
//! | --- | --- |
//! | 0 | done |
//! | 1 | failed, the message says why |
//! | 2 | the command line is wrong |
//! | 3 | a configuration file is wrong |
//! | 4 | no name server, broker or node answered |
//! | 5 | what was asked for does not exist |
//! | 6 | `verify`: an acknowledged message is missing |
//! | 7 | `verify`: nothing is missing, but messages are out of order |
//! | 8 | `store check`: the directory is damaged |
//! | 9 | `health`: the node is not ready, or with `--live` not alive |
//! | 74 | a broker's disk failed; its other groups were handed over |

use std::fmt;

/// An exit code other than 0, 1 and 2, to hang on an error with [`anyhow::Error::context`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    BadConfig,
    Unreachable,
    NotFound,
    Lost,
    OutOfOrder,
    Damaged,
    NotHealthy,
    StorageFailed,
}

impl ExitCode {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::BadConfig => 3,
            Self::Unreachable => 4,
            Self::NotFound => 5,
            Self::Lost => 6,
            Self::OutOfOrder => 7,
            Self::Damaged => 8,
            Self::NotHealthy => 9,
            Self::StorageFailed => 74,
        }
    }

    /// The code that `error` carries anywhere in its chain; 1 otherwise.
    pub(crate) fn of(error: &anyhow::Error) -> u8 {
        error.downcast_ref::<Self>().map_or(1, |code| code.number())
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BadConfig => "the configuration was refused",
            Self::Unreachable => "the cluster cannot be reached",
            Self::NotFound => "not found",
            Self::Lost => "acknowledged messages are missing",
            Self::OutOfOrder => "messages are out of order",
            Self::Damaged => "the store is damaged",
            Self::NotHealthy => "not ready",
            Self::StorageFailed => "storage failed",
        })
    }
}

impl std::error::Error for ExitCode {}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn the_page_for_operators_has_the_table_above() {
        let rows = |text: &str, prefix: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
            lines
                .filter(|line| line.starts_with("| ") && line.as_bytes()[2].is_ascii_digit())
                .map(str::to_owned)
                .collect()
        };
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operations.md");
        let page = std::fs::read_to_string(page).unwrap();
        let section = page.split_once("## Exit codes\n").unwrap().1.split_once("\n## ").unwrap().0;
        let own = rows(include_str!("exit_code.rs"), "//! ");
        assert_eq!(own, rows(section, ""));
        assert_eq!(own.len(), 11);
    }
}
