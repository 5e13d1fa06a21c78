//! openraft's own suite against this store.

#![expect(clippy::unwrap_used, reason = "tests")]

mod support;

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use raft_store::{FlushMode, LogStorage, Opened};
use support::{Config, Machine, options};

struct Builder(FlushMode);

impl StoreBuilder<Config, LogStorage<Config>, Machine, tempfile::TempDir> for Builder {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStorage<Config>, Machine), StorageError<Config>> {
        let dir = tempfile::tempdir().unwrap();
        let Opened { storage, .. } = raft_store::open(options(dir.path(), self.0)).unwrap();
        Ok((dir, storage, Machine::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_with_synchronous_flush() {
    Suite::test_all(Builder(FlushMode::Sync)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_with_asynchronous_flush() {
    Suite::test_all(Builder(FlushMode::ASYNC)).await.unwrap();
}
