//! A damaged segment gives way to a new file, between two rounds of the writer.

use std::sync::Arc;

use super::Writer;
use crate::error::{Error, Result};
use crate::ids::LogPosition;
use crate::repair::Replacement;
use crate::segment::{self, Segment};

impl Writer {
    /// Puts `new` in the place of the segment it was made for, with what has been written since.
    ///
    /// On an error the old file is still there, and the new one is gone. Only a file that cannot be opened again after
    /// it has taken its name closes the log.
    pub(super) fn replace(&mut self, new: Replacement) -> Result<()> {
        self.flush.sync()?;
        let (base, name) = (new.base, new.name.clone());
        let complete = self.complete(&new).and_then(|old| {
            self.log.files.rename(&name, &segment::file_name(base))?;
            Ok(old)
        });
        let old = match complete {
            Ok(old) => old,
            Err(error) => {
                if let Err(error) = self.log.files.remove(&[name]) {
                    tracing::warn!(%error, "an unfinished repair is left over until the next start");
                }
                return Err(error);
            }
        };
        self.guarded(|this| {
            let region = this.log.files.open(&segment::file_name(base))?;
            let hot = old.region.is_warm();
            if hot || base == this.segment.base {
                region.warm().map_err(|e| Error::io("mapping", region.path(), e))?;
            }
            let segment = Arc::new(Segment::empty(&this.log.layout, base, region));
            segment.set_content(old.content().clone());
            // The new file has its footer.
            this.flush.forget_footers(|closed| closed == base);
            this.log.replace_segment(&segment);
            if this.segment.base == base {
                assert!(this.stage.is_empty());
                this.segment = segment;
            }
            Ok(())
        })
    }

    /// Brings the new file up to what the segment holds now.
    fn complete(&self, new: &Replacement) -> Result<Arc<Segment>> {
        const BLOCK_BYTES: u64 = 1 << 20;
        let old = {
            let state = self.log.state();
            let found = state.segments.binary_search_by_key(&new.base, |segment| segment.base);
            found.ok().and_then(|at| state.segments.get(at)).cloned()
        };
        let gone = || Error::NotStored { position: new.base, bytes: 0 };
        let old = old.ok_or_else(gone)?;
        let (content, made) = (old.content().clone(), &new.content);
        // Cut below what was copied, and perhaps written again: start over.
        if content.opening != made.opening || content.end < made.end {
            return Err(gone());
        }
        let path = new.region.path();
        let mut at = made.end;
        while at < content.end {
            let bytes = BLOCK_BYTES.min(content.end.since(at));
            let mut block = vec![0; usize::try_from(bytes).expect("a block fits memory")];
            let offset = at.since(new.base);
            old.region.read(offset, &mut block).map_err(|e| old.read_failed(offset, e))?;
            new.region.write(offset, &block).map_err(|e| Error::io("writing", path, e))?;
            at = LogPosition::new(at.get() + bytes);
        }
        if made.sealed != content.sealed {
            let copy = Segment::empty(&self.log.layout, new.base, Arc::clone(&new.region));
            copy.set_content(content);
            copy.write_footer(&self.log.layout).map_err(|e| Error::io("writing", path, e))?;
        }
        new.region.sync().map_err(|e| Error::io("syncing", path, e))?;
        Ok(old)
    }
}
