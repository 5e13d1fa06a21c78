//! The note that a failed write leaves for the next start.
//!
//! The directory of the store is what has just failed, so the note also goes to a directory in memory, if there is one:
//! either of them tells the next start. In memory it is named after the store, since the directory there is everybody's.

use std::fs;
use std::path::PathBuf;

use crate::durable;
use crate::error::Result;
use crate::ids::LogId;
use crate::options::Options;
use crate::region::Files;

/// Its name in the store's own directory.
pub(crate) const NAME: &str = "latched";

/// What the next start wants to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LatchNote {
    /// The first failure.
    pub(crate) reason: String,
    pub(crate) last: Option<LogId>,
    pub(crate) committed: Option<LogId>,
}

impl LatchNote {
    fn encode(&self) -> String {
        let id = |id: Option<LogId>| id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        let reason = self.reason.replace('\n', " ");
        format!("reason: {reason}\nlast: {}\ncommitted: {}\n", id(self.last), id(self.committed))
    }

    /// Writes the note wherever it can be written. Without any, the next start finds a log that was killed.
    pub(crate) fn leave(&self, files: &dyn Files, options: &Options, store_uuid: &[u8; 16]) {
        let text = self.encode();
        // The one in memory first: the other may never come back.
        let there =
            runtime_path(options, store_uuid).map_or(Ok(()), |path| durable::write_file(&path, text.as_bytes()));
        let here = files.write_note(NAME, text.as_bytes());
        for error in [there, here].into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "the note about the latch cannot be written");
        }
    }
}

/// The notes that an earlier run left.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct LatchNotes {
    here: Option<String>,
    there: Option<(PathBuf, String)>,
}

impl LatchNotes {
    /// Looks for them. One that cannot be read counts as one that says nothing.
    pub(crate) fn find(files: &dyn Files, is_here: bool, options: &Options, store_uuid: &[u8; 16]) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let here = is_here.then(|| files.read_note(NAME).map_or_else(|_| String::new(), text));
        let there = runtime_path(options, store_uuid)
            .filter(|path| path.exists())
            .map(|path| (path.clone(), fs::read(&path).map_or_else(|_| String::new(), text)));
        Self { here, there }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.here.is_some() || self.there.is_some()
    }

    /// Whether the log ends where it ended when it latched, if a note says where that was.
    pub(crate) fn is_reached(&self, last: Option<LogId>) -> bool {
        let reached = last.map_or_else(|| "none".to_owned(), |last| last.to_string());
        let notes = [self.there.as_ref().map(|(_, text)| text), self.here.as_ref()];
        let lines = notes.into_iter().flatten().flat_map(|note| note.lines());
        let mut noted = lines.filter_map(|line| line.strip_prefix("last: ")).peekable();
        // Without a note it was a sync at this start that failed, and the log is what it was.
        !self.is_any() || (noted.peek().is_some() && noted.all(|noted| noted == reached))
    }

    /// Takes them away, once the log is what it should be.
    pub(crate) fn remove(&self, files: &dyn Files) -> Result<()> {
        if self.here.is_some() {
            files.remove(&[NAME.to_owned()])?;
        }
        match &self.there {
            Some((path, _)) => durable::remove_files([path.as_path()]),
            None => Ok(()),
        }
    }
}

fn runtime_path(options: &Options, store_uuid: &[u8; 16]) -> Option<PathBuf> {
    let name: String = store_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    options.runtime_dir.as_ref().map(|dir| dir.join(format!("{name}-{NAME}")))
}
