//! The values of a file, and where each came from.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::reference::{Fallback, GROUP, MEMBER, SECTIONS, Section, TOKEN};
use super::{ConfigError, Options};

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// This line of the file.
    Line(usize),
    /// This variable of the environment.
    Environment(String),
    /// This flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Environment(name) => write!(f, "${name}"),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Its key, with everything before it: `storage.flush`, `group.broker-a.member.n1.id`.
    pub key: String,
    /// As TOML has it; none if there is none.
    pub value: Option<String>,
    /// Who said so.
    pub origin: Origin,
    /// The name under which it is changed while the cluster runs; what is in force then stands above the file.
    pub live: Option<&'static str>,
}

impl Options {
    /// All values that the file at `path` with this text gives, defaults included, in the order of the reference.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn show(path: &Path, text: &str) -> Result<Vec<Shown>, ConfigError> {
        Self::parse(path, text)?;
        let table = DeTable::parse(text).map_err(|error| ConfigError::one(path, None, error.message()))?;
        let file = File { text, table: table.get_ref() };
        let mut shown = Vec::new();
        for section in SECTIONS {
            let table = file.table.get(section.name).and_then(|value| value.get_ref().as_table());
            file.section(section, section.name, table, &mut shown);
        }
        if let Some(http) = file.table.get("http").and_then(|value| value.get_ref().as_table()) {
            for token in file.tables(http, "token") {
                let prefix = format!("http.token.{}", name_of(token, "name"));
                file.section(&TOKEN, &prefix, Some(token), &mut shown);
            }
        }
        for group in file.tables(file.table, "group") {
            let prefix = format!("group.{}", name_of(group, "name"));
            file.section(&GROUP, &prefix, Some(group), &mut shown);
            for member in file.tables(group, "member") {
                let prefix = format!("{prefix}.member.{}", name_of(member, "node"));
                file.section(&MEMBER, &prefix, Some(member), &mut shown);
            }
        }
        Ok(shown)
    }
}

struct File<'a> {
    text: &'a str,
    table: &'a DeTable<'a>,
}

impl<'a> File<'a> {
    fn section(&self, section: &Section, prefix: &str, table: Option<&DeTable<'_>>, shown: &mut Vec<Shown>) {
        for key in section.keys {
            let said = table.and_then(|table| table.get(key.name));
            let (value, origin) = match (said, key.fallback) {
                (Some(value), _) => (Some(self.raw(value)), self.line(value)),
                (None, Fallback::Value(text)) => (Some(text.to_owned()), Origin::Default),
                (None, Fallback::None(_)) => unsaid(&format!("{prefix}.{}", key.name)),
                (None, Fallback::Required(_)) => (None, Origin::Default),
            };
            shown.push(Shown { key: format!("{prefix}.{}", key.name), value, origin, live: key.live });
        }
    }

    /// The value as it stands there.
    fn raw(&self, value: &Spanned<DeValue<'_>>) -> String {
        self.text.get(value.span()).unwrap_or_default().to_owned()
    }

    fn line(&self, value: &Spanned<DeValue<'_>>) -> Origin {
        let before = self.text.get(..value.span().start).unwrap_or_default();
        Origin::Line(1 + before.bytes().filter(|&byte| byte == b'\n').count())
    }

    /// The tables of an array of tables.
    fn tables(&self, table: &'a DeTable<'a>, name: &str) -> Vec<&'a DeTable<'a>> {
        let array = table.get(name).and_then(|value| value.get_ref().as_array());
        array.into_iter().flat_map(|array| array.iter()).filter_map(|value| value.get_ref().as_table()).collect()
    }
}

/// A value that nobody wrote and that has no default of its own.
fn unsaid(key: &str) -> (Option<String>, Origin) {
    if key == "storage.runtime_dir"
        && let Ok(dir) = std::env::var("RUNTIME_DIRECTORY")
    {
        return (Some(format!("{dir:?}")), Origin::Environment("RUNTIME_DIRECTORY".to_owned()));
    }
    (None, Origin::Default)
}

fn name_of(table: &DeTable<'_>, key: &str) -> String {
    table.get(key).and_then(|value| value.get_ref().as_str()).unwrap_or("?").to_owned()
}
