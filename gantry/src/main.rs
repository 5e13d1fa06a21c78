//! The one binary: broker nodes, name servers, a development cluster, and the tools of an operator.

mod broker_command;
mod closer;
mod cluster;
mod command;
mod dev;
mod exit_code;
mod http_get;
mod inherited;
mod load;
mod logging;
mod message_view;
mod namesrv_command;
mod namesrv_http;
mod output;
mod plain_http;
mod sidecar_command;
mod stop_signal;
mod supervise;
mod verify;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode as ProcessExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand};
use rand::Rng;

use crate::cluster::ClusterArgs;
use crate::exit_code::ExitCode;
use crate::http_get::TokenArgs;
use crate::output::Format;

/// Exit codes: 0 done, 1 failed, 2 wrong command line, 3 wrong configuration, 4 cluster not reachable, 5 not found,
/// 6 verify found acknowledged messages missing, 7 verify found messages out of order, 8 store check found damage,
/// 9 health says no, 74 a broker's storage failed.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, about = "A message broker whose CommitLog is a Raft log", propagate_version = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong command line, 3 wrong configuration, 4 cluster not \
                        reachable, 5 not found, 6 verify: acknowledged messages missing, 7 verify: messages out of \
                        order, 8 store check: damage found, 9 health: not ready, 74 a broker's storage failed.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    token: TokenArgs,
    /// How to print the result
    #[arg(long, value_enum, default_value_t, global = true)]
    output: Format,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one broker node
    Broker(broker_command::BrokerArgs),
    /// Run one name server
    Namesrv(namesrv_command::NamesrvArgs),
    /// Run a process beside an application, which hides the loss of a machine from its clients
    Sidecar(sidecar_command::SidecarArgs),
    /// Run a whole cluster on this machine, every part a real process
    Dev(dev::DevArgs),
    /// Show name servers, brokers and who leads
    Status,
    /// The cluster as its nodes see it, and who leads what
    #[command(subcommand)]
    Cluster(command::cluster::ClusterCommand),
    /// Topics
    #[command(subcommand)]
    Topic(command::topic::TopicCommand),
    /// Consumer groups
    #[command(subcommand)]
    Group(command::group::GroupCommand),
    /// Send messages
    Send(command::send::SendArgs),
    /// Print messages as they come
    Tail(command::tail::TailArgs),
    /// Single messages
    #[command(subcommand)]
    Msg(command::msg::MsgCommand),
    /// Measure
    #[command(subcommand)]
    Bench(command::bench::BenchCommand),
    /// Send numbered messages, read all queues back, and tell whether any acknowledged one is missing
    Verify(verify::VerifyArgs),
    /// Look into the directory of a stopped node
    #[command(subcommand)]
    Store(command::store::StoreCommand),
    /// Go on with a group whose majority is gone for good, from the longest log that is left
    Recover(command::recover::RecoverArgs),
    /// Members of a group: add, remove and replace nodes
    #[command(subcommand)]
    Member(command::member::MemberCommand),
    /// Long work that was begun by other commands
    #[command(subcommand)]
    Operation(command::operation::OperationCommand),
    /// Change when messages of a group count as acknowledged
    Flush(command::flush::FlushArgs),
    /// The most used commands of RocketMQ's mqadmin, with their names and flags
    #[command(subcommand)]
    Mqadmin(command::mqadmin::MqadminCommand),
    /// Check, show and explain configuration files
    #[command(subcommand)]
    Config(command::config::ConfigCommand),
    /// Ask a node whether it is ready for clients
    Health(command::health::HealthArgs),
    /// Show or change what brokers and name servers log, while they run
    LogLevel(command::log_level::LogLevelArgs),
    /// Print a new random cluster id for configuration files
    ClusterId,
    /// Print a new random bearer token for the HTTP addresses, and the entry of configuration files that lets it in
    Token {
        /// Whose it is: stands in the nodes' logs beside what was changed
        #[arg(default_value = "ops")]
        name: String,
        /// Only to look
        #[arg(long)]
        read: bool,
    },
    /// Write the man pages of all commands into a directory
    Man {
        /// The directory
        dir: PathBuf,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> ProcessExitCode {
    let started = Instant::now();
    let cli = Cli::parse();
    match run(cli, started) {
        Ok(()) => ProcessExitCode::SUCCESS,
        Err(error) if error.is::<output::ReaderGone>() => ProcessExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gantry: {error:#}");
            ProcessExitCode::from(ExitCode::of(&error))
        }
    }
}

fn run(cli: Cli, started: Instant) -> Result<()> {
    cli.token.apply()?;
    let (cluster, format) = (&cli.cluster, cli.output);
    match cli.command {
        Command::Broker(args) => broker_command::run(args, started),
        Command::Namesrv(args) => namesrv_command::run(args),
        Command::Sidecar(args) => sidecar_command::run(args, cluster),
        Command::Dev(args) => dev::run(args, format),
        Command::Status => runtime()?.block_on(command::status::run(cluster, format)),
        Command::Cluster(command) => runtime()?.block_on(command::cluster::run(command, format)),
        Command::Topic(command) => runtime()?.block_on(command::topic::run(command, cluster, format)),
        Command::Group(command) => runtime()?.block_on(command::group::run(command, cluster, format)),
        Command::Send(args) => runtime()?.block_on(command::send::run(args, cluster, format)),
        Command::Tail(args) => runtime()?.block_on(command::tail::run(args, cluster, format)),
        Command::Msg(command) => runtime()?.block_on(command::msg::run(command, cluster, format)),
        Command::Bench(command) => runtime()?.block_on(command::bench::run(command, cluster, format)),
        Command::Verify(args) => runtime()?.block_on(verify::run(args, cluster, format)),
        Command::Store(command) => {
            let runtime = runtime()?;
            let _entered = runtime.enter();
            command::store::run(command, format)
        }
        Command::Recover(args) => runtime()?.block_on(command::recover::run(args, format)),
        Command::Member(command) => runtime()?.block_on(command::member::run(command, format)),
        Command::Operation(command) => runtime()?.block_on(command::operation::run(command, format)),
        Command::Flush(args) => runtime()?.block_on(command::flush::run(args, format)),
        Command::Mqadmin(command) => runtime()?.block_on(command::mqadmin::run(command, cluster, format)),
        Command::Config(command) => command::config::run(command, format),
        Command::Health(args) => runtime()?.block_on(command::health::run(args, format)),
        Command::LogLevel(args) => runtime()?.block_on(command::log_level::run(args, format)),
        Command::ClusterId => output::line(&new_cluster_id()),
        Command::Token { name, read } => new_token(&name, read, format),
        Command::Man { dir } => man(&dir),
        Command::Completions { shell } => completions(shell),
    }
}

/// One page for each command, `gantry-topic-create.1` and so on.
fn man(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("creating {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir).with_context(|| format!("writing man pages into {}", dir.display()))
}

fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gantry", &mut text);
    output::line(String::from_utf8(text).context("completions are text")?.trim_end())
}

/// 128 random bits in hex.
fn new_cluster_id() -> String {
    hex(&rand::rng().random::<[u8; 16]>())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// 256 random bits, and what nodes need to know of them.
fn new_token(name: &str, read: bool, format: Format) -> Result<()> {
    #[derive(serde::Serialize)]
    struct NewToken<'a> {
        name: &'a str,
        role: &'a str,
        token: String,
        sha256: String,
    }
    let token = hex(&rand::rng().random::<[u8; 32]>());
    let sha256 = hex(&broker::http::hash_token(&token));
    let new = NewToken { name, role: if read { "read" } else { "admin" }, token, sha256 };
    if format == Format::Json {
        return output::json(&new);
    }
    let NewToken { name, role, token, sha256 } = new;
    output::line(&format!(
        "{token}\n\n# in the configuration of every node\n[[http.token]]\nname = \"{name}\"\nrole = \"{role}\"\nsha256 = \"{sha256}\""
    ))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_a_man_page_and_completions() {
        let dir = tempfile::tempdir().unwrap();
        man(dir.path()).unwrap();
        let mut waiting = vec![("gantry".to_owned(), Cli::command())];
        let mut pages = 0;
        while let Some((name, command)) = waiting.pop() {
            let page = std::fs::read_to_string(dir.path().join(format!("{name}.1")));
            let page = page.unwrap_or_else(|error| panic!("{name}.1: {error}"));
            assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH NAME"), "{name}");
            pages += 1;
            let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set());
            waiting.extend(subcommands.map(|command| (format!("{name}-{}", command.get_name()), command.clone())));
        }
        assert!(pages > 40, "{pages}");
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "gantry", &mut text);
            let text = String::from_utf8(text).unwrap();
            for word in ["mqadmin", "updateTopic", "log-level", "health"] {
                assert!(text.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn commands_of_runbooks_are_understood() {
        for line in [
            "updateTopic -n 127.0.0.1:9876 -c DefaultCluster -t orders -r 8 -w 8 -p 6",
            "updateTopic -b 127.0.0.1:10911 -t orders -o true -a +reserve.time=12",
            "deleteTopic -n a:1;b:2 -c DefaultCluster -t orders",
            "topicList -c",
            "topicRoute -t orders",
            "topicStatus -t orders",
            "updateSubGroup -c DefaultCluster -g readers -s true -r 16 -i 2",
            "deleteSubGroup -c DefaultCluster -g readers -r",
            "consumerProgress -g readers",
            "consumerProgress",
            "consumerConnection -g readers",
            "producerConnection -g writers -t orders",
            "clusterList -m",
            "brokerStatus -b 127.0.0.1:10911",
            "getBrokerConfig -c DefaultCluster",
            "updateBrokerConfig -c DefaultCluster -k maxMessageSize -v 1048576",
            "queryMsgById -i 7F00000100002A9F0000000000000000",
            "queryMsgByKey -t orders -k k1",
            "queryMsgByUniqueKey -t orders -i 7F0000010000",
            "resetOffsetByTime -g readers -t orders -s now",
            "sendMessage -t orders -p hello -k k1 -c tag",
        ] {
            let words = ["gantry", "mqadmin"].into_iter().chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        for wrong in
            ["updateTopic -t orders", "updateTopic -b a -c b -t orders", "brokerStatus", "sendMessage -t orders"]
        {
            let words = ["gantry", "mqadmin"].into_iter().chain(wrong.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cluster_ids_are_32_hex_digits_and_differ() {
        let (a, b) = (new_cluster_id(), new_cluster_id());
        assert!(a.len() == 32 && a.bytes().all(|b| b.is_ascii_hexdigit()));
        assert_ne!(a, b);
    }
}
