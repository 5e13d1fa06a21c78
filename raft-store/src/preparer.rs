//! Makes the next segment before it is needed, so that going on in it costs no append anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::options::{Layout, Preparation};
use crate::region::{Files, Region};
use crate::segment;

enum Slot {
    Idle,
    Running,
    Ready(LogPosition, Arc<dyn Region>),
    /// It could not be made, for instance because the disk was full.
    Failed(Instant),
}

/// How long a failed attempt keeps from the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Owns at most one segment that is not in use yet.
pub(crate) struct Preparer {
    files: Arc<dyn Files>,
    layout: Layout,
    preparation: Preparation,
    slot: Arc<(Mutex<Slot>, Condvar)>,
    /// Whether the last attempt found no room.
    short: Arc<watch::Sender<bool>>,
}

impl Preparer {
    pub(crate) fn new(files: Arc<dyn Files>, layout: Layout, preparation: Preparation) -> Self {
        let slot = Arc::new((Mutex::new(Slot::Idle), Condvar::new()));
        Self { files, layout, preparation, slot, short: Arc::new(watch::Sender::new(false)) }
    }

    /// Whether there was no room for the next segment when it was last tried to make it.
    pub(crate) fn short(&self) -> Arc<watch::Sender<bool>> {
        Arc::clone(&self.short)
    }

    /// Takes a segment that was prepared by an earlier run.
    pub(crate) fn adopt(&self, base: LogPosition, region: Arc<dyn Region>) {
        *self.slot.0.lock() = Slot::Ready(base, region);
    }

    /// Starts to make the segment at `base`, if none is made or being made.
    pub(crate) fn prepare(&self, base: LogPosition) {
        let mut slot = self.slot.0.lock();
        match *slot {
            Slot::Idle => {}
            Slot::Failed(at) if at.elapsed() >= RETRY_INTERVAL => {}
            Slot::Running | Slot::Ready(..) | Slot::Failed(_) => return,
        }
        *slot = Slot::Running;
        drop(slot);
        let (files, layout, preparation) = (Arc::clone(&self.files), self.layout, self.preparation);
        let (shared, short) = (Arc::clone(&self.slot), Arc::clone(&self.short));
        let made = move || {
            let result = create(&*files, &layout, base, preparation);
            let next = match result {
                Ok(region) => {
                    short.send_if_modified(|short| std::mem::replace(short, false));
                    Slot::Ready(base, region)
                }
                Err(error) => {
                    let is_short = matches!(error, Error::NoSpace { .. });
                    short.send_if_modified(|short| !std::mem::replace(short, is_short) && is_short);
                    tracing::warn!(%error, "the next segment cannot be prepared yet");
                    Slot::Failed(Instant::now())
                }
            };
            *shared.0.lock() = next;
            shared.1.notify_all();
        };
        if std::thread::Builder::new().name("log-prepare".into()).spawn(made).is_err() {
            *self.slot.0.lock() = Slot::Idle;
        }
    }

    /// The segment at `base`: the prepared one, or one made now.
    pub(crate) fn take(&self, base: LogPosition) -> Result<Arc<dyn Region>> {
        match self.settled() {
            Slot::Ready(ready, region) if ready == base => Ok(region),
            Slot::Ready(other, _) => {
                self.files.remove(&[segment::file_name(other)])?;
                create(&*self.files, &self.layout, base, self.preparation)
            }
            Slot::Idle | Slot::Running | Slot::Failed(_) => create(&*self.files, &self.layout, base, self.preparation),
        }
    }

    /// Removes a prepared segment.
    pub(crate) fn discard(&self) {
        if let Slot::Ready(base, _) = self.settled()
            && let Err(error) = self.files.remove(&[segment::file_name(base)])
        {
            tracing::warn!(%error, "a prepared segment could not be removed");
        }
    }

    /// Waits for what is being made and leaves it for the next run.
    pub(crate) fn finish(&self) {
        if let Slot::Ready(base, region) = self.settled() {
            self.adopt(base, region);
        }
    }

    fn settled(&self) -> Slot {
        let mut slot = self.slot.0.lock();
        while matches!(*slot, Slot::Running) {
            self.slot.1.wait(&mut slot);
        }
        std::mem::replace(&mut *slot, Slot::Idle)
    }
}

impl Drop for Preparer {
    fn drop(&mut self) {
        // Nobody may touch the directory once the store has let go of it.
        self.finish();
    }
}

fn create(files: &dyn Files, layout: &Layout, base: LogPosition, preparation: Preparation) -> Result<Arc<dyn Region>> {
    let head = segment::encode_head(&layout.cluster_id, base, layout.segment_bytes);
    files.create(&segment::file_name(base), layout.segment_bytes, &head, preparation)
}
