//! Looks through a whole file and finds every mistake of it, each with its line.
//!
//! What a table may hold stands in [`Section`]; serde, which stops at its first complaint, reads a table only once it has
//! none of the mistakes that are looked for here. A table with a mistake counts as not there, so that the others are
//! checked all the same.

use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::reference::{Fallback, Key, Kind, Section};
use super::unit::{parse_bytes, parse_duration};
use super::{ConfigError, Mistake};

/// Mistakes listed of one file, at most.
const MISTAKES_MAX: usize = 100;

/// A file, and what was found wrong with it so far.
pub(super) struct Reader<'a> {
    text: &'a str,
    table: Spanned<DeTable<'a>>,
    mistakes: Vec<Mistake>,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// Every place where the text is no TOML: what a key means there is anybody's guess.
    pub(super) fn new(path: &Path, text: &'a str) -> Result<Self, ConfigError> {
        let (table, errors) = DeTable::parse_recoverable(text);
        let reader = Self { text, table, mistakes: Vec::new() };
        if errors.is_empty() {
            return Ok(reader);
        }
        let mistake = |error: &toml::de::Error| Mistake {
            line: error.span().map(|span| reader.line_at(span.start)),
            message: error.message().trim_end().to_owned(),
        };
        Err(ConfigError::new(path, errors.iter().map(mistake).collect()))
    }

    /// Adds a mistake at `place`: names of tables and keys with dots between, and the number, or the name, of one of many.
    pub(super) fn wrong(&mut self, place: &str, message: impl Into<String>) {
        let line = self.line_of(place);
        self.mistakes.push(Mistake { line, message: message.into() });
    }

    /// Adds what `checked` says is wrong.
    pub(super) fn note<T>(&mut self, place: &str, checked: Result<T, String>) -> Option<T> {
        checked.map_err(|message| self.wrong(place, message)).ok()
    }

    /// `value`, if nothing was wrong.
    ///
    /// # Errors
    /// All mistakes, in the order of their lines.
    pub(super) fn finish<T>(mut self, path: &Path, value: Option<T>) -> Result<T, ConfigError> {
        match value {
            Some(value) if self.mistakes.is_empty() => Ok(value),
            _ => {
                self.mistakes.sort_by_key(|mistake| mistake.line);
                let found = self.mistakes.len();
                self.mistakes.truncate(MISTAKES_MAX);
                if found > MISTAKES_MAX {
                    let message = format!("and {} more mistakes", found - MISTAKES_MAX);
                    self.mistakes.push(Mistake { line: None, message });
                }
                Err(ConfigError::new(path, self.mistakes))
            }
        }
    }

    /// Refuses tables that are none of `known`.
    pub(super) fn only_tables(&mut self, known: &[&str]) {
        let unknown: Vec<_> =
            self.table.get_ref().keys().filter(|key| !known.contains(&key.get_ref().as_ref())).cloned().collect();
        for key in unknown {
            let line = Some(self.line_at(key.span().start));
            self.mistakes.push(Mistake { line, message: unknown_key(key.get_ref(), known) });
        }
    }

    /// Reads the table of `section`, which may hold arrays of tables named `children` besides its keys. None if there is
    /// something wrong with it; what an empty one means if there is none.
    pub(super) fn section<T: DeserializeOwned>(&mut self, section: &Section, children: &[&str]) -> Option<T> {
        let required = section.keys.iter().any(|key| matches!(key.fallback, Fallback::Required(_)));
        match self.table.get_ref().get(section.name).cloned() {
            None if required => {
                self.wrong("", format!("there is no [{}]", section.name));
                None
            }
            None => T::deserialize(ValueDeserializer::from(Spanned::new(0..0, DeValue::Table(DeTable::new())))).ok(),
            Some(value) => self.table_of(section, children, value),
        }
    }

    /// Reads the whole file as one table.
    pub(super) fn whole<T: DeserializeOwned>(&mut self, section: &Section) -> Option<T> {
        let table = Spanned::new(self.table.span(), DeValue::Table(self.table.get_ref().clone()));
        self.table_of(section, &[], table)
    }

    /// Reads each table of an array at `place`, as [`Self::section`] does.
    pub(super) fn tables<T: DeserializeOwned>(
        &mut self,
        place: &str,
        section: &Section,
        children: &[&str],
    ) -> Vec<Option<T>> {
        let Some(value) = self.find(place).cloned() else { return Vec::new() };
        match value.get_ref() {
            DeValue::Array(array) => {
                let each = array.iter().cloned().collect::<Vec<_>>();
                each.into_iter().map(|value| self.table_of(section, children, value)).collect()
            }
            other => {
                let found = other.type_str();
                self.wrong(place, format!("`{}` is one {found}, expected [[{}]]", section.name, section.name));
                vec![None]
            }
        }
    }

    fn table_of<T: DeserializeOwned>(
        &mut self,
        section: &Section,
        children: &[&str],
        value: Spanned<DeValue<'a>>,
    ) -> Option<T> {
        let span = value.span();
        let line = Some(self.line_at(span.start));
        let DeValue::Table(mut table) = value.into_inner() else {
            let message = format!("`{}` is no table, expected [{}]", section.name, section.name);
            self.mistakes.push(Mistake { line, message });
            return None;
        };
        let before = self.mistakes.len();
        let names: Vec<&str> = section.keys.iter().map(|key| key.name).chain(children.iter().copied()).collect();
        for (name, value) in &table {
            let found = section.keys.iter().find(|key| key.name == name.get_ref().as_ref());
            let (at, wrong) = match found {
                Some(key) => (value.span(), check_kind(section, key, value.get_ref()).err()),
                None if children.contains(&name.get_ref().as_ref()) => continue,
                None => (name.span(), Some(unknown_key(name.get_ref(), &names))),
            };
            if let Some(message) = wrong {
                self.mistakes.push(Mistake { line: Some(self.line_at(at.start)), message });
            }
        }
        for key in section.keys {
            if let Fallback::Required(example) = key.fallback
                && !table.contains_key(key.name)
            {
                let meaning = key.meaning.replace('\n', " ");
                let message = format!("missing key `{}` in [{}], such as {example}: {meaning}", key.name, section.name);
                self.mistakes.push(Mistake { line, message });
            }
        }
        if self.mistakes.len() > before {
            return None;
        }
        for child in children {
            table.remove(*child);
        }
        match T::deserialize(ValueDeserializer::from(Spanned::new(span, DeValue::Table(table)))) {
            Ok(read) => Some(read),
            Err(error) => {
                let line = error.span().map(|span| self.line_at(span.start)).or(line);
                self.mistakes.push(Mistake { line, message: error.message().trim_end().to_owned() });
                None
            }
        }
    }

    fn find(&self, place: &str) -> Option<&Spanned<DeValue<'a>>> {
        find(self.table.get_ref(), place)
    }

    /// The line of what stands at `place`, or of the nearest table around it that is there.
    fn line_of(&self, place: &str) -> Option<usize> {
        let mut place = place;
        loop {
            if let Some(value) = self.find(place) {
                return Some(self.line_at(value.span().start));
            }
            place = place.rsplit_once('.')?.0;
        }
    }

    fn line_at(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|&byte| byte == b'\n').count()
    }
}

/// The line of what stands at `place` of a file with this text, if it is there.
pub fn line_of(text: &str, place: &str) -> Option<usize> {
    let (table, _) = DeTable::parse_recoverable(text);
    Reader { text, table, mistakes: Vec::new() }.line_of(place)
}

fn find<'t, 'a>(table: &'t DeTable<'a>, place: &str) -> Option<&'t Spanned<DeValue<'a>>> {
    let mut steps = place.split('.');
    let mut found = table.get(steps.next()?)?;
    for step in steps {
        found = match found.get_ref() {
            DeValue::Table(table) => table.get(step)?,
            DeValue::Array(array) => match step.parse::<usize>() {
                Ok(number) => array.get(number)?,
                Err(_) => array.iter().find(|value| {
                    let named = |key| value.get_ref().as_table().and_then(|table| table.get(key)?.get_ref().as_str());
                    named("name").or_else(|| named("node")) == Some(step)
                })?,
            },
            _ => return None,
        };
    }
    Some(found)
}

fn check_kind(section: &Section, key: &Key, value: &DeValue<'_>) -> Result<(), String> {
    let at = format!("{}.{}", section.name, key.name);
    let not = |expected: &str| Err(format!("{at} is of type {}, expected {expected}", value.type_str()));
    let number = |value: &DeValue<'_>, min: u64, max: u64| {
        let DeValue::Integer(number) = value else {
            return Err(format!("{at} is of type {}, expected a whole number", value.type_str()));
        };
        match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(number) if (min..=max).contains(&number) => Ok(()),
            _ if max == u64::MAX => Err(format!("{at} is {number}, allowed are {min} and more")),
            _ => Err(format!("{at} is {number}, allowed are {min} to {max}")),
        }
    };
    match key.kind {
        Kind::Text => {
            if value.is_str() {
                Ok(())
            } else {
                not("text in quotes")
            }
        }
        Kind::Bool => {
            if value.is_bool() {
                Ok(())
            } else {
                not("true or false")
            }
        }
        Kind::Bytes => match value.as_str() {
            Some(text) => parse_bytes(text).map(drop).map_err(|why| format!("{at}: {why}")),
            None => not("a size with its unit, such as \"4MiB\""),
        },
        Kind::Duration => match value.as_str() {
            Some(text) => parse_duration(text).map(drop).map_err(|why| format!("{at}: {why}")),
            None => not("a duration with its unit, such as \"200ms\""),
        },
        Kind::Number(min, max) => number(value, min, max),
        Kind::Fraction => {
            let text = match value {
                DeValue::Float(number) => number.as_str(),
                DeValue::Integer(number) => number.as_str(),
                _ => return not("a number from 0 to 1"),
            };
            match text.parse::<f64>() {
                Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(()),
                _ => Err(format!("{at} is {text}, allowed are 0 to 1")),
            }
        }
        Kind::Word(words) => match value.as_str() {
            Some(word) if words.contains(&word) => Ok(()),
            Some(word) => Err(format!("{at} is `{word}`{}", instead(word, words))),
            None => not("text in quotes"),
        },
        Kind::Texts => match value.as_array() {
            Some(array) if array.iter().all(|value| value.get_ref().is_str()) => Ok(()),
            _ => not("a list of texts in quotes"),
        },
        Kind::Numbers(min, max) => match value.as_array() {
            Some(array) => array.iter().try_for_each(|value| number(value.get_ref(), min, max)),
            None => not("a list of whole numbers"),
        },
    }
}

fn unknown_key(name: &str, known: &[&str]) -> String {
    format!("unknown key `{name}`{}", instead(name, known))
}

/// What may have been meant by a word that is none of those known.
fn instead(word: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|known| (strsim::damerau_levenshtein(word, known), known))
        .min()
        .filter(|(distance, known)| *distance <= 1 + known.len() / 3);
    match nearest {
        Some((_, known)) => format!("; did you mean `{known}`?"),
        None => {
            let all: Vec<_> = known.iter().map(|known| format!("`{known}`")).collect();
            format!(", expected one of {}", all.join(", "))
        }
    }
}

/// Reads a file that is one table, such as a name server's.
///
/// # Errors
/// [`ConfigError`] with every mistake.
pub fn read_whole<T: DeserializeOwned>(path: &Path, text: &str, section: &Section) -> Result<T, ConfigError> {
    let mut reader = Reader::new(path, text)?;
    let read = reader.whole(section);
    reader.finish(path, read)
}
