//! `gantry member`: who belongs to a group, and changes of that.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result};
use broker::http::{AddOrder, FORCE_WORD, JoinerOrder, MemberAnswer, MemberDetail, MembersStatus, Plan};
use clap::{Args, Subcommand, ValueEnum};

use super::cluster::change;
use super::operation;
use crate::http_get::NodesArgs;
use crate::output::{self, Format};

const LOOK_TIME_MAX: Duration = Duration::from_secs(5);
/// One entry of the log, or one change of the membership.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Subcommand)]
pub(crate) enum MemberCommand {
    /// Show the members of a group
    List {
        /// The group
        group: String,
        #[command(flatten)]
        nodes: NodesArgs,
    },
    /// Add nodes to a group: they become voters together, once each holds the log
    Add {
        /// The group
        group: String,
        /// A node that comes, `NODE,RAFT_ADDR,CLIENT_ADDR`; give it once for each
        #[arg(long = "node", required = true, value_name = "NODE,RAFT_ADDR,CLIENT_ADDR")]
        joiners: Vec<Joiner>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Remove a node from a group
    Remove {
        /// The group
        group: String,
        /// The node
        node: String,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Put another node, with an empty disk, in the place of one
    Replace {
        /// The group
        group: String,
        /// The node that leaves
        node: String,
        /// The node that comes, `NODE,RAFT_ADDR,CLIENT_ADDR`
        #[arg(long, value_name = "NODE,RAFT_ADDR,CLIENT_ADDR")]
        by: Joiner,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// End a change that is stuck in the middle, when no operation goes on with it
    Settle {
        /// The group
        group: String,
        /// `finish`: with the members of after; `turn-back`: with those of before
        to: To,
        /// Say what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        nodes: NodesArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    #[command(flatten)]
    nodes: NodesArgs,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Allow less safety than before; the word is `reduced-redundancy`
    #[arg(long, value_parser = [FORCE_WORD])]
    force: Option<String>,
    /// Append the join tokens to this file, which nobody else can read. It is what `node.join_tokens` of the new node names
    #[arg(long)]
    tokens_to: Option<PathBuf>,
    /// Show how far it is, until it has ended
    #[arg(long)]
    watch: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum To {
    Finish,
    TurnBack,
}

/// A node that comes.
#[derive(Clone, Debug)]
pub(crate) struct Joiner(JoinerOrder);

impl FromStr for Joiner {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(',').collect();
        let [node, raft_addr, client_addr] = parts.as_slice() else {
            return Err("expected NODE,RAFT_ADDR,CLIENT_ADDR, such as n4,10.0.0.4:11001,10.0.0.4:10911".to_owned());
        };
        let [node, raft_addr, client_addr] = [node, raft_addr, client_addr].map(ToString::to_string);
        Ok(Self(JoinerOrder { node, raft_addr, client_addr }))
    }
}

pub(crate) async fn run(command: MemberCommand, format: Format) -> Result<()> {
    match command {
        MemberCommand::List { group, nodes } => {
            let status: MembersStatus = nodes.call("GET", &path(&group, ""), None, LOOK_TIME_MAX).await?;
            if format == Format::Json { output::json(&status) } else { output::line(&members_text(&status)) }
        }
        MemberCommand::Settle { group, to, dry_run, nodes } => {
            let word = match to {
                To::Finish => "finish",
                To::TurnBack => "turn-back",
            };
            let path = format!("/v1/groups/{group}/settle-members?to={word}&dry_run={dry_run}");
            change::<MembersStatus>(&nodes, &path, dry_run, format, members_text).await.map(drop)
        }
        MemberCommand::Add { group, joiners, change } => {
            let order = AddOrder { nodes: joiners.into_iter().map(|joiner| joiner.0).collect() };
            let body = serde_json::to_value(&order).context("encoding the order")?;
            begin("POST", &group, "", Some(body), change, format).await
        }
        MemberCommand::Remove { group, node, change } => {
            begin("DELETE", &group, &format!("/{node}"), None, change, format).await
        }
        MemberCommand::Replace { group, node, by, change } => {
            let body = serde_json::to_value(&by.0).context("encoding the order")?;
            begin("POST", &group, &format!("/{node}/replace"), Some(body), change, format).await
        }
    }
}

async fn begin(
    method: &str,
    group: &str,
    rest: &str,
    body: Option<serde_json::Value>,
    change: ChangeArgs,
    format: Format,
) -> Result<()> {
    let force = change.force.as_ref().map_or_else(String::new, |word| format!("&force={word}"));
    let query = format!("?dry_run={}&started_by={}{force}", change.dry_run, whoami());
    let path = path(group, &format!("{rest}{query}"));
    if change.dry_run {
        let plan: Plan = change.nodes.call(method, &path, body.as_ref(), CHANGE_TIME_MAX).await?;
        return match format {
            Format::Json => output::json(&plan),
            Format::Table => output::line(&format!("{}\nNothing was done.", numbered(&plan.steps))),
        };
    }
    let answer: MemberAnswer = change.nodes.call(method, &path, body.as_ref(), CHANGE_TIME_MAX).await?;
    if let Some(file) = change.tokens_to.as_deref().filter(|_| !answer.join_tokens.is_empty()) {
        keep_tokens(file, &answer)?;
    }
    if format == Format::Json {
        output::json(&answer)?;
    } else {
        output::line(&to_text(&answer, change.tokens_to.as_deref()))?;
    }
    if change.watch { operation::watch(&answer.operation.id, &change.nodes, format).await } else { Ok(()) }
}

fn path(group: &str, rest: &str) -> String {
    format!("/v1/groups/{group}/members{rest}")
}

/// Who types this, as far as the environment says, in characters that a URL may have.
fn whoami() -> String {
    let name = std::env::var("USER").unwrap_or_default();
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(32).collect();
    if plain.is_empty() { "gantry".to_owned() } else { plain }
}

fn keep_tokens(file: &Path, answer: &MemberAnswer) -> Result<()> {
    let mut options = std::fs::File::options();
    let failed = || format!("writing join tokens to {}", file.display());
    let mut file = options.append(true).create(true).mode(0o600).open(file).with_context(failed)?;
    for token in &answer.join_tokens {
        writeln!(file, "{}", token.line).with_context(failed)?;
    }
    file.sync_all().with_context(failed)
}

fn numbered(steps: &[String]) -> String {
    let lines = steps.iter().enumerate().map(|(at, step)| format!("{}. {step}", at + 1));
    lines.collect::<Vec<_>>().join("\n")
}

fn to_text(answer: &MemberAnswer, kept_in: Option<&Path>) -> String {
    let operation = &answer.operation;
    let mut text = format!("operation {}: {}\n{}", operation.id, operation.what, numbered(&answer.steps));
    match kept_in {
        Some(file) if !answer.join_tokens.is_empty() => {
            text += &format!("\nThe join tokens are in {}, and good for an hour.", file.display());
        }
        _ => {
            for token in &answer.join_tokens {
                text +=
                    &format!("\nfor the join-tokens file of node {}, good for an hour:\n{}", token.node, token.line);
            }
        }
    }
    text
}

fn members_text(status: &MembersStatus) -> String {
    let rows = status.members.iter().map(|member| row(member, status.leader.as_deref()));
    let head = ["node", "identity", "role", "peers", "clients", "lacks", "answers"];
    let mut text = output::table(&head, rows);
    if let Some((before, after)) = &status.joint {
        text += &format!(
            "\n\nin the middle of a change: from {} to {}; `gantry member settle` ends it if no operation does",
            before.join(", "),
            after.join(", ")
        );
    }
    if let Some(operation) = &status.operation {
        text += &format!("\n\n{}", operation::in_one_line(operation));
    }
    text
}

fn row(member: &MemberDetail, leader: Option<&str>) -> [String; 7] {
    let role = match member.voter {
        true if leader == Some(member.node.as_str()) => "leader",
        true => "voter",
        false => "learner",
    };
    let answers = match member.heard {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    };
    [
        member.node.clone(),
        member.id.to_string(),
        role.to_owned(),
        member.raft_addr.clone(),
        member.client_addr.clone(),
        member.lag_entries.map_or_else(|| "-".to_owned(), |lag| format!("{lag} entries")),
        answers.to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_three_words_between_commas() {
        let Joiner(order) = "n4,h:1,10.0.0.4:2".parse().unwrap();
        assert_eq!(
            (order.node.as_str(), order.raft_addr.as_str(), order.client_addr.as_str()),
            ("n4", "h:1", "10.0.0.4:2")
        );
        for wrong in ["", "n4", "n4,h:1", "n4,h:1,h:2,h:3"] {
            assert!(wrong.parse::<Joiner>().is_err(), "{wrong}");
        }
    }
}
