//! `gantry config`: files read without starting anything.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use broker::config::across::{self, NodeFile};
use broker::config::reference::{commented_file, schema};
use broker::config::rocketmq::{self, Verdict};
use broker::config::{ConfigError, Mistake, Options, Origin, Shown, line_of};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::exit_code::ExitCode;
use crate::logging::{self, LogArgs, LogFormat};
use crate::namesrv_command;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read files as a broker or name server would, and say everything that is wrong; of several brokers' files also what
    /// is wrong between them; of a RocketMQ broker.conf, what its lines become. Exit code 3 if anything is wrong
    Check(CheckArgs),
    /// Show every value of a broker's file, defaults included, and where each came from
    Show(ShowArgs),
    /// Print the JSON schema of a broker's file
    Schema,
    /// Print a broker's file with every key, its default and its meaning
    Reference,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The files; those of all nodes of a cluster together
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The file
    file: PathBuf,
    /// Only values that somebody has set
    #[arg(long)]
    set: bool,
    #[command(flatten)]
    log: LogArgs,
}

pub(crate) fn run(command: ConfigCommand, format: Format) -> Result<()> {
    match command {
        ConfigCommand::Check(args) => check(&args, format),
        ConfigCommand::Show(args) => show(&args, format),
        ConfigCommand::Schema => output::line(&serde_json::to_string_pretty(&schema()).context("encoding the schema")?),
        ConfigCommand::Reference => output::line(commented_file().trim_end()),
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Broker,
    NameServer,
    RocketMq,
}

impl Kind {
    /// By what is in it. A file that is neither is taken for a broker's, whose errors say most.
    fn of(text: &str) -> Self {
        if rocketmq::looks_like_one(text) {
            return Self::RocketMq;
        }
        let mut words = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let has_tables = words.clone().any(|line| line.starts_with('['));
        let listens = words
            .any(|line| ["listen", "http_listen", "insecure_public", "log"].iter().any(|key| line.starts_with(key)));
        if listens && !has_tables { Self::NameServer } else { Self::Broker }
    }
}

#[derive(Serialize)]
struct Checked {
    file: String,
    kind: Kind,
    /// Whoever reads the file does not start, or not with the others.
    mistakes: Vec<Mistake>,
    /// What may be meant so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<Mistake>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<rocketmq::Line>,
    #[serde(skip)]
    options: Option<Options>,
}

fn check(args: &CheckArgs, format: Format) -> Result<()> {
    let mut all = Vec::new();
    let mut texts = Vec::new();
    for path in &args.files {
        let read = ConfigError::read(path);
        all.push(match &read {
            Ok(text) => check_one(path, text),
            Err(error) => Checked::new(path, Kind::Broker, error.mistakes.clone()),
        });
        texts.push(read.unwrap_or_default());
    }
    compare(&args.files, &texts, &mut all);
    if format == Format::Json {
        output::json(&all)?;
    } else {
        for checked in &all {
            output::line(&checked.to_text())?;
        }
    }
    match all.iter().filter(|checked| !checked.mistakes.is_empty()).count() {
        0 => Ok(()),
        wrong => Err(anyhow!("{wrong} of {} files", all.len()).context(ExitCode::BadConfig)),
    }
}

/// Compares the files of brokers that are good by themselves.
fn compare(paths: &[PathBuf], texts: &[String], all: &mut [Checked]) {
    let (numbers, files): (Vec<usize>, Vec<NodeFile<'_>>) = (0..)
        .zip(paths.iter().zip(texts))
        .zip(&*all)
        .filter_map(|((at, (path, text)), checked)| {
            Some((at, NodeFile { path, text, options: checked.options.as_ref()? }))
        })
        .unzip();
    if files.len() < 2 {
        return;
    }
    let found = across::check(&files);
    for (at, mistake) in found.mistakes {
        all[numbers[at]].mistakes.push(mistake);
    }
    for (at, note) in found.notes {
        all[numbers[at]].notes.push(note);
    }
    for checked in all {
        checked.mistakes.sort_by_key(|mistake| mistake.line);
        checked.notes.sort_by_key(|note| note.line);
    }
}

fn check_one(path: &Path, text: &str) -> Checked {
    let kind = Kind::of(text);
    match kind {
        Kind::RocketMq => match rocketmq::read(text) {
            Ok(lines) => Checked { lines, ..Checked::new(path, kind, vec![]) },
            Err((line, what)) => {
                let message = format!("`{what}` is neither key=value nor a comment");
                Checked::new(path, kind, vec![Mistake { line: Some(line), message }])
            }
        },
        Kind::NameServer => {
            let mistakes = namesrv_command::check(path, text).err().map(|error| error.mistakes);
            Checked::new(path, kind, mistakes.unwrap_or_default())
        }
        Kind::Broker => match Options::parse(path, text) {
            Err(error) => Checked::new(path, kind, error.mistakes),
            Ok(options) => match logging::parse_filter(&options.log.filter) {
                Ok(_) => Checked { options: Some(options), ..Checked::new(path, kind, vec![]) },
                Err(why) => {
                    let (line, message) = (line_of(text, "log.filter"), format!("log.filter: {why}"));
                    Checked::new(path, kind, vec![Mistake { line, message }])
                }
            },
        },
    }
}

impl Checked {
    fn new(path: &Path, kind: Kind, mistakes: Vec<Mistake>) -> Self {
        Self { file: path.display().to_string(), kind, mistakes, notes: vec![], lines: vec![], options: None }
    }

    fn to_text(&self) -> String {
        let at = |what: &str, mistake: &Mistake| match mistake.line {
            Some(line) => format!("{}:{line}: {what}{}", self.file, mistake.message),
            None => format!("{}: {what}{}", self.file, mistake.message),
        };
        let mut said: Vec<_> = self.mistakes.iter().map(|mistake| at("", mistake)).collect();
        if self.mistakes.is_empty() && self.kind != Kind::RocketMq {
            let whose = if self.kind == Kind::Broker { "broker" } else { "name server" };
            said.push(format!("{}: a good file of a {whose}", self.file));
        }
        said.extend(self.notes.iter().map(|note| at("note: ", note)));
        if !said.is_empty() {
            return said.join("\n");
        }
        let rows = self
            .lines
            .iter()
            .map(|line| [line.line.to_string(), line.key.clone(), line.was.clone(), line.verdict.to_string()]);
        let table = output::table(&["line", "rocketmq", "value", "here"], rows);
        let count = |is: fn(&Verdict) -> bool| self.lines.iter().filter(|line| is(&line.verdict)).count();
        let missing = count(|verdict| matches!(verdict, Verdict::Missing { .. }));
        let unknown = count(|verdict| matches!(verdict, Verdict::Unknown { .. }));
        let kept = count(|verdict| matches!(verdict, Verdict::Setting { .. } | Verdict::Elsewhere { .. }));
        format!(
            "{}: a file of RocketMQ\n\n{table}\n\n{} lines: {kept} are set here too, {} are not needed, {missing} have no \
             counterpart, {unknown} are unknown.\n`gantry config reference` prints a file to put the values into.",
            self.file,
            self.lines.len(),
            self.lines.len() - kept - missing - unknown,
        )
    }
}

fn show(args: &ShowArgs, format: Format) -> Result<()> {
    let text = ConfigError::read(&args.file).context(ExitCode::BadConfig)?;
    let mut shown = Options::show(&args.file, &text).context(ExitCode::BadConfig)?;
    overrule(
        &mut shown,
        "log.filter",
        args.log.log.as_ref().map(|filter| format!("{filter:?}")),
        "GANTRY_LOG",
        "--log",
    );
    let log_format = args.log.log_format.map(|format| match format {
        LogFormat::Text => "\"text\"".to_owned(),
        LogFormat::Json => "\"json\"".to_owned(),
    });
    overrule(&mut shown, "log.format", log_format, "GANTRY_LOG_FORMAT", "--log-format");
    if args.set {
        shown.retain(|value| value.origin != Origin::Default);
    }
    if format == Format::Json {
        return output::json(&shown);
    }
    let rows = shown.iter().map(|shown| {
        [
            shown.key.clone(),
            shown.value.clone().unwrap_or_else(|| "-".to_owned()),
            shown.origin.to_string(),
            shown.live.unwrap_or_default().to_owned(),
        ]
    });
    output::line(&output::table(&["key", "value", "from", "changed while running as"], rows))
}

/// Puts what the command line or the environment says in place of the file's.
fn overrule(shown: &mut [Shown], key: &str, value: Option<String>, variable: &str, flag: &str) {
    let Some(value) = value else { return };
    let is_flag = std::env::args().any(|arg| arg == flag || arg.starts_with(&format!("{flag}=")));
    for shown in shown.iter_mut().filter(|shown| shown.key == key) {
        shown.value = Some(value.clone());
        shown.origin = if is_flag { Origin::Flag(flag.to_owned()) } else { Origin::Environment(variable.to_owned()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_by_what_is_in_them() {
        assert_eq!(Kind::of(&commented_file()), Kind::Broker);
        assert_eq!(Kind::of("listen = \"127.0.0.1:9876\"\n"), Kind::NameServer);
        assert_eq!(Kind::of("brokerName=broker-a\nlistenPort=10911\n"), Kind::RocketMq);
        assert_eq!(Kind::of(""), Kind::Broker);
    }

    #[test]
    fn a_file_of_rocketmq_is_summed_up() {
        let text = "brokerName = broker-a\nbrokerId = 0\naclEnable = true\nbrokerColour = red\n";
        let shown = check_one(Path::new("broker.conf"), text).to_text();
        assert!(
            shown.contains("4 lines: 1 are set here too, 1 are not needed, 1 have no counterpart, 1 are unknown."),
            "{shown}"
        );
    }
}
