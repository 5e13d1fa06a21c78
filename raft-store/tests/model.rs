//! The store against a vector, in a real directory: stops and kills are among the operations.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "support/model.rs"]
mod model;
mod support;

use model::Home;
use raft_store::FlushMode;
use support::{Store, options};

struct Directory {
    dir: tempfile::TempDir,
    flush: FlushMode,
}

impl Home for Directory {
    fn open(&mut self) -> Store {
        Store::open(model::small(options(self.dir.path(), self.flush))).unwrap()
    }

    fn crash(&mut self, store: Store, _: Option<u64>) -> bool {
        store.kill();
        false
    }
}

fn check(flush: FlushMode) {
    model::check(flush, || Directory { dir: tempfile::tempdir().unwrap(), flush });
}

#[test]
fn the_store_behaves_like_a_vector_in_synchronous_mode() {
    check(FlushMode::Sync);
}

#[test]
fn the_store_behaves_like_a_vector_in_asynchronous_mode() {
    check(FlushMode::ASYNC);
}
