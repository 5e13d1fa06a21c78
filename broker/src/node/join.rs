//! A replica without an identity, on a node that was never a member, asks to be let in.
//!
//! It has a token for that, in the file that `node.join_tokens` names: one line for each group, `GROUP TOKEN`. The file is
//! read at each try, so a token can be brought while the node runs. Once it has an identity the leader does the rest: the
//! replica becomes a learner, is sent the log, and then votes.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use raft_store::Member;

use super::group::{Context, NodeGroup};
use crate::peer::PeerAddress;
use crate::peer::join::{JoinRequest, JoinToken, Joined};

/// Pause before everybody is asked again.
const ROUND_PAUSE: Duration = Duration::from_millis(500);
/// A leader writes one entry.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(6);
const TOKENS_BYTES_MAX: u64 = 64 << 10;

/// What a leader has given out.
pub(super) struct Place {
    pub(super) node_id: u64,
    pub(super) generation: u64,
    pub(super) members: BTreeMap<u64, Member>,
}

/// Asks until a leader has let this node in.
pub(super) async fn ask(group: &NodeGroup, context: &Context, store_uuid: [u8; 16]) -> Place {
    loop {
        match round(group, context, store_uuid).await {
            Ok(place) => {
                tracing::info!(group = group.name(), node_id = place.node_id, "let in");
                group.set_outside(None);
                return place;
            }
            Err(reason) => {
                let reason = format!("waits to be let in: {reason}");
                if group.set_outside(Some(reason.clone())) {
                    tracing::warn!(group = group.name(), reason, "no member yet");
                }
            }
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
}

/// Asks everybody once.
async fn round(group: &NodeGroup, context: &Context, store_uuid: [u8; 16]) -> Result<Place, String> {
    let (path, name) = (context.node.join_tokens.clone(), group.name().to_owned());
    let token = tokio::task::spawn_blocking(move || read_token(&path, &name)).await;
    let token = token.unwrap_or_else(|error| Err(error.to_string()))?;
    let own = group.options().own_member();
    let request =
        JoinRequest { token, store_uuid, raft_addr: own.raft_addr.clone(), client_addr: own.client_addr.to_string() };
    let mut to_ask: Vec<PeerAddress> = group.known_members().others(&own.node);
    let mut said = Vec::new();
    while let Some(address) = to_ask.pop() {
        match context.hub.ask_to_join(&address, group.name(), &request, ANSWER_TIME_MAX).await {
            Ok(Joined::Admitted { node_id, generation, members }) => {
                return Ok(Place { node_id, generation, members: members.into_iter().collect() });
            }
            Ok(Joined::NotLeader { node }) => {
                said.push(format!("{}: does not lead", address.node));
                // Whoever is said to lead is asked next.
                to_ask.sort_by_key(|address| address.node == node);
            }
            Err(error) => said.push(format!("{}: {error}", address.node)),
        }
    }
    Err(if said.is_empty() { "there is nobody to ask".to_owned() } else { said.join("; ") })
}

/// The token for `group` in the file at `path`.
fn read_token(path: &Path, group: &str) -> Result<JoinToken, String> {
    use std::io::Read as _;
    use std::os::unix::fs::MetadataExt as _;
    let shown = path.display();
    let no_file = |error| format!("no join token: {shown}: {error}; `gantry member add` writes one");
    let file = std::fs::File::open(path).map_err(no_file)?;
    let mode = file.metadata().map_err(no_file)?.mode();
    if mode & 0o077 != 0 {
        return Err(format!("{shown} holds tokens and may be read by others: chmod 600 it"));
    }
    let mut text = String::new();
    file.take(TOKENS_BYTES_MAX).read_to_string(&mut text).map_err(no_file)?;
    let mut lines =
        text.lines().map(str::split_whitespace).filter_map(|mut words| Some((words.next()?, words.next()?)));
    // Tokens are used once: of several for a group the last one is the newest.
    let token = lines.rfind(|(of, _)| *of == group).map(|(_, token)| token);
    let token = token.ok_or_else(|| format!("no join token: {shown} has no line for group {group}"))?;
    JoinToken::parse(token).ok_or_else(|| format!("{shown}: the token of group {group} is not 64 hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_newest_token_of_a_group_is_taken_from_a_file_that_others_cannot_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("join-tokens");
        let why = |group: &str| read_token(&path, group).err().unwrap();
        assert!(why("a").contains("gantry member add"), "{}", why("a"));
        let (old, new) = (JoinToken::random(), JoinToken::random());
        std::fs::write(&path, format!("a {}\n\nb x\n  a\t{}\n", old.to_text(), new.to_text())).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(why("a").contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_token(&path, "a"), Ok(new));
        assert!(why("b").contains("64 hexadecimal digits"));
        assert!(why("c").contains("no line for group c"));
    }
}
