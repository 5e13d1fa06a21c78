//! Removes brokers that have been silent for too long.

use std::sync::Arc;
use std::time::Duration;

use crate::processor::Processor;

/// Looks for silent brokers until it is dropped.
pub(crate) async fn scan(processor: Arc<Processor>, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        processor.scan(tokio::time::Instant::now().into_std());
    }
}
