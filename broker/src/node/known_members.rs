//! The members of a group as a node last knew them.
//!
//! Who the members are stands in the log. A node needs them before it has read its log, to find its peers, and a node that
//! was removed does not read it at all. So they are noted in `DATA/GROUP/members`, one file, replaced as a whole:
//!
//! ```json
//! {"version":1,"members":[{"id":1,"node":"n1","raft_addr":"...","client_addr":"..."}],"removed":null}
//! ```
//!
//! What is noted wins over the configuration. Losing the file costs no more than that: peers are then those configured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use raft_store::{Member, durable};
use serde::{Deserialize, Serialize};

use crate::config::GroupOptions;
use crate::peer::PeerAddress;

const VERSION: u32 = 1;

/// Who is known to be a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KnownMembers {
    pub(super) members: BTreeMap<u64, Member>,
    /// Whether the file was there and could not be read: there may be members that are not known here.
    pub(super) may_lack: bool,
    /// Why this node's replica is no member any more.
    pub(super) removed: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    members: Vec<Entry>,
    removed: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    id: u64,
    node: String,
    raft_addr: String,
    client_addr: String,
}

impl KnownMembers {
    /// What is noted in the directory of a group, else what is configured.
    pub(super) fn read(dir: &Path, options: &GroupOptions) -> Self {
        let path = path(dir);
        let configured = Self {
            members: options.members.iter().filter(|member| member.id != 0).map(to_entry).collect(),
            may_lack: false,
            removed: None,
        };
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return configured,
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "members are not known: those configured are asked");
                return Self { may_lack: true, ..configured };
            }
        };
        match serde_json::from_slice::<File>(&text) {
            Ok(file) if file.version == VERSION => {
                let members = file.members.into_iter().map(|entry| {
                    let Entry { id, node, raft_addr, client_addr } = entry;
                    (id, Member { node, raft_addr, client_addr })
                });
                Self { members: members.collect(), may_lack: false, removed: file.removed }
            }
            Ok(file) => {
                tracing::warn!(file = %path.display(), version = file.version, "unknown version: members are not known");
                Self { may_lack: true, ..configured }
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "members are not known: those configured are asked");
                Self { may_lack: true, ..configured }
            }
        }
    }

    /// Writes the note. Durable on return.
    fn write(&self, dir: &Path) -> raft_store::Result<()> {
        let members = self.members.iter().map(|(&id, member)| {
            let Member { node, raft_addr, client_addr } = member.clone();
            Entry { id, node, raft_addr, client_addr }
        });
        let file = File { version: VERSION, members: members.collect(), removed: self.removed.clone() };
        let text = serde_json::to_vec(&file).expect("names and numbers are valid JSON");
        durable::create_directory(dir)?;
        durable::write_file(&path(dir), &text)
    }

    /// Whether nobody but `own_node` is a member, for certain.
    pub(super) fn is_only(&self, own_node: &str) -> bool {
        !self.may_lack && !self.members.is_empty() && self.members.values().all(|member| member.node == own_node)
    }

    /// Where the members on other nodes are reached.
    pub(super) fn others(&self, own_node: &str) -> Vec<PeerAddress> {
        let others = self.members.values().filter(|member| member.node != own_node);
        others.map(|member| PeerAddress { node: member.node.clone(), raft_addr: member.raft_addr.clone() }).collect()
    }
}

/// The file of a group. It is written by one at a time, and what was asked for last is what stays: whoever asks may be
/// dropped while it is written, and somebody else ask at once.
pub(super) struct MembersFile {
    dir: PathBuf,
    asked: AtomicU64,
    /// Which of those that asked was the last to be written.
    written: Arc<Mutex<u64>>,
}

impl MembersFile {
    /// The file in the directory of a group.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir, asked: AtomicU64::new(0), written: Arc::default() }
    }

    /// Replaces the file. It may be replaced all the same if the future is dropped.
    pub(super) async fn write(&self, known: KnownMembers) -> raft_store::Result<()> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        let (dir, written) = (self.dir.clone(), Arc::clone(&self.written));
        let writing = tokio::task::spawn_blocking(move || {
            let mut last = written.lock();
            if *last < number {
                known.write(&dir)?;
                *last = number;
            }
            Ok(())
        });
        writing.await.unwrap_or(Err(raft_store::Error::Closed))
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("members")
}

fn to_entry(member: &crate::config::MemberOptions) -> (u64, Member) {
    (member.id, super::group::to_member(member))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MemberOptions;

    fn options() -> GroupOptions {
        let member = |node: &str, id| MemberOptions {
            node: node.to_owned(),
            id,
            raft_addr: format!("{node}:1"),
            client_addr: "127.0.0.1:2".parse().unwrap(),
        };
        GroupOptions {
            name: "g".to_owned(),
            client_listen: "127.0.0.1:2".parse().unwrap(),
            preferred_leader: None,
            own_id: 1,
            members: vec![member("n1", 1)],
        }
    }

    #[test]
    fn what_is_noted_wins_over_the_configuration_and_what_cannot_be_read_rules_nothing_out() {
        let dir = tempfile::tempdir().unwrap();
        let configured = KnownMembers::read(dir.path(), &options());
        assert!(configured.is_only("n1"));
        let other =
            Member { node: "n4".to_owned(), raft_addr: "n4:1".to_owned(), client_addr: "127.0.0.1:3".to_owned() };
        let mut noted = configured.clone();
        noted.members.insert(57, other);
        noted.removed = Some("removed: by operation g-9".to_owned());
        noted.write(dir.path()).unwrap();
        let found = KnownMembers::read(dir.path(), &options());
        assert_eq!(found, noted);
        assert!(!found.is_only("n1"));
        assert_eq!(found.others("n1"), [PeerAddress { node: "n4".to_owned(), raft_addr: "n4:1".to_owned() }]);
        for damaged in ["", "{", "{\"version\":2,\"members\":[],\"removed\":null}"] {
            std::fs::write(path(dir.path()), damaged).unwrap();
            let found = KnownMembers::read(dir.path(), &options());
            assert_eq!((found.members.len(), found.may_lack), (1, true), "{damaged}");
            assert!(!found.is_only("n1"), "a member may be missing: {damaged}");
        }
    }

    #[tokio::test]
    async fn what_is_noted_last_stays_though_others_that_noted_were_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let known = KnownMembers::read(dir.path(), &options());
        let file = MembersFile::new(dir.path().to_owned());
        for round in 0..200 {
            // Its write goes on, if it has not ended yet.
            let dropped = file.write(known.clone());
            drop(futures::poll!(std::pin::pin!(dropped)));
            let removed = KnownMembers { removed: Some(format!("removed: {round}")), ..known.clone() };
            file.write(removed.clone()).await.unwrap();
            assert_eq!(KnownMembers::read(dir.path(), &options()), removed);
            tokio::task::yield_now().await;
        }
        let last = KnownMembers::read(dir.path(), &options());
        // Whoever began before may still be at it; then nothing changes any more.
        drop(file.written.lock());
        assert_eq!(KnownMembers::read(dir.path(), &options()), last);
    }
}
