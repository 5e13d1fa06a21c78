//! `gantry dev --set`: keys of the nodes' configuration with values other than those that `gantry dev` gives.

use std::str::FromStr;

use anyhow::{Context, Result};
use toml::{Table, Value};

/// One `section.key=value`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Setting {
    section: String,
    key: String,
    value: Value,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').and_then(|(name, value)| {
            let (section, key) = name.trim().split_once('.')?;
            Some((section, key, value.trim()))
        });
        let (section, key, value) =
            parts.ok_or_else(|| "expected section.key=value, such as retention.time=30s".to_owned())?;
        // A number, a boolean or a list as it stands; anything else is text.
        let table: Option<Table> = format!("value = {value}").parse().ok();
        let value =
            table.and_then(|mut table| table.remove("value")).unwrap_or_else(|| Value::String(value.to_owned()));
        Ok(Self { section: section.to_owned(), key: key.to_owned(), value })
    }
}

/// The configuration `text` with `settings` in it.
///
/// # Errors
/// A section that is not a table. Unknown keys are found when the configuration is loaded.
pub(super) fn apply(text: &str, settings: &[Setting]) -> Result<String> {
    if settings.is_empty() {
        return Ok(text.to_owned());
    }
    let mut config: Table = text.parse().context("reading a configuration that was just written")?;
    for Setting { section, key, value } in settings {
        let section_table = config.entry(section.as_str()).or_insert_with(|| Value::Table(Table::new()));
        let table = section_table.as_table_mut();
        let table = table.with_context(|| format!("--set {section}.{key}: {section} has no keys to set"))?;
        table.insert(key.clone(), value.clone());
    }
    toml::to_string(&config).context("writing a configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_replaces_or_adds_a_key() {
        let settings: Vec<Setting> =
            ["a.time=30s", "a.count = 3", "b.flag=true", "b.hours=[1, 2]"].map(|text| text.parse().unwrap()).to_vec();
        let text = apply("[a]\ntime = \"1h\"\nother = 1\n[[c]]\nx = 1\n", &settings).unwrap();
        let found: Table = text.parse().unwrap();
        let expected =
            "a = { time = \"30s\", other = 1, count = 3 }\nb = { flag = true, hours = [1, 2] }\nc = [{ x = 1 }]";
        assert_eq!(found, expected.parse::<Table>().unwrap());
        assert!(apply("[[c]]\nx = 1\n", &["c.x=2".parse().unwrap()]).is_err());
        for bad in ["time=3", "a.b", "", "=1"] {
            assert!(bad.parse::<Setting>().is_err(), "{bad}");
        }
    }
}
