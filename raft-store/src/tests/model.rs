//! The store against a vector, on a simulated disk: power cuts are among the operations.

use super::crash::Numbers;
use super::*;

#[path = "../../tests/support/model.rs"]
mod vector;

struct Disk {
    disk: Arc<SimulatedDisk>,
    flush: FlushMode,
    boots: u32,
}

impl vector::Home for Disk {
    fn open(&mut self) -> Store {
        open_at(&self.disk, vector::small(options(self.flush)), &format!("boot {}", self.boots)).unwrap()
    }

    fn crash(&mut self, store: Store, power_cut: Option<u64>) -> bool {
        store.kill();
        match power_cut {
            None => self.disk = self.disk.after_kill(),
            Some(seed) => {
                let mut numbers = Numbers::new(seed);
                self.disk = self.disk.power_cut(|| numbers.below(2) == 0);
                self.boots += 1;
            }
        }
        power_cut.is_some()
    }
}

fn check(flush: FlushMode) {
    vector::check(flush, || Disk { disk: SimulatedDisk::new(), flush, boots: 0 });
}

#[test]
fn the_store_behaves_like_a_vector_through_power_cuts_in_synchronous_mode() {
    check(FlushMode::Sync);
}

#[test]
fn the_store_behaves_like_a_vector_through_power_cuts_in_asynchronous_mode() {
    check(FlushMode::ASYNC);
}
