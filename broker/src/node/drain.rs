//! A drained node leads nothing as long as others can: leadership moves away from it, and it is given none.
//!
//! That it is drained stands in `DATA/drained`, so it stays so over restarts, until an operator says otherwise.

use std::path::{Path, PathBuf};

use raft_store::durable;
use tokio::sync::watch;

/// Whether the node is drained, and where that is written.
pub(super) struct Drain {
    file: PathBuf,
    on: watch::Sender<bool>,
}

impl Drain {
    /// As it was left in `data_dir`.
    pub(super) fn open(data_dir: &Path) -> Self {
        let file = data_dir.join("drained");
        let on = watch::Sender::new(file.exists());
        Self { file, on }
    }

    pub(super) fn is_on(&self) -> bool {
        *self.on.borrow()
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<bool> {
        self.on.subscribe()
    }

    /// Tells somebody, while nobody changes it.
    pub(super) fn tell(&self, told: impl FnOnce(bool)) {
        told(*self.on.borrow());
    }

    /// Writes it down, then lets it count.
    pub(super) async fn set(&self, on: bool) -> Result<(), String> {
        let file = self.file.clone();
        let written = tokio::task::spawn_blocking(move || match on {
            true => durable::write_file(&file, b"drained: `gantry cluster undrain` lets this node lead again\n"),
            false if file.exists() => durable::remove_files([file.as_path()]),
            false => Ok(()),
        });
        match written.await {
            Ok(Ok(())) => {
                self.on.send_replace(on);
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let drain = Drain::open(dir.path());
        assert!(!drain.is_on());
        drain.set(false).await.unwrap();
        drain.set(true).await.unwrap();
        assert!(drain.is_on() && Drain::open(dir.path()).is_on());
        drain.set(false).await.unwrap();
        assert!(!drain.is_on() && !Drain::open(dir.path()).is_on());
    }
}
