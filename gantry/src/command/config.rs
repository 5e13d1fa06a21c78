//! `gantry config`: files read without starting anything.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use broker::config::reference::{commented_file, schema};
use broker::config::rocketmq::{self, Verdict};
use broker::config::{ConfigError, Options, Origin, Shown};
use clap::{Args, Subcommand};
use serde::Serialize;

use crate::exit_code::ExitCode;
use crate::logging::{self, LogArgs, LogFormat};
use crate::namesrv_command;
use crate::output::{self, Format};

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Read files as a broker or name server would, and say what is wrong; of a RocketMQ broker.conf, what its lines become
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
    /// The files
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
    error: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<rocketmq::Line>,
}

fn check(args: &CheckArgs, format: Format) -> Result<()> {
    let mut all = Vec::new();
    for path in &args.files {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
        let text = text.context(ExitCode::BadConfig)?;
        all.push(check_one(path, &text));
    }
    if format == Format::Json {
        output::json(&all)?;
    } else {
        for checked in &all {
            output::line(&checked.to_text())?;
        }
    }
    let wrong: Vec<_> = all.iter().filter(|checked| checked.error.is_some()).collect();
    match wrong.first() {
        None => Ok(()),
        Some(first) if format == Format::Json => {
            Err(anyhow!("{}", first.error.as_deref().unwrap_or_default()).context(ExitCode::BadConfig))
        }
        Some(_) => Err(anyhow!("{} of {} files", wrong.len(), all.len()).context(ExitCode::BadConfig)),
    }
}

fn check_one(path: &Path, text: &str) -> Checked {
    let file = path.display().to_string();
    let kind = Kind::of(text);
    let checked = |error: Option<String>, lines| Checked { file: file.clone(), kind, error, lines };
    match kind {
        Kind::RocketMq => match rocketmq::read(text) {
            Ok(lines) => checked(None, lines),
            Err((line, what)) => {
                checked(Some(format!("{file}:{line}: `{what}` is neither key=value nor a comment")), vec![])
            }
        },
        Kind::NameServer => checked(namesrv_command::check(path, text).err().map(|error| error.to_string()), vec![]),
        Kind::Broker => {
            let read = Options::parse(path, text);
            let error = read.and_then(|options| {
                let wrong = |message| ConfigError { path: path.to_owned(), line: None, message };
                logging::parse_filter(&options.log.filter).map_err(|why| wrong(format!("log.filter: {why}")))
            });
            checked(error.err().map(|error| error.to_string()), vec![])
        }
    }
}

impl Checked {
    fn to_text(&self) -> String {
        if let Some(error) = &self.error {
            return error.clone();
        }
        if self.kind != Kind::RocketMq {
            let whose = if self.kind == Kind::Broker { "broker" } else { "name server" };
            return format!("{}: a good file of a {whose}", self.file);
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
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("reading {}", args.file.display()));
    let text = text.context(ExitCode::BadConfig)?;
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
