//! What the broker tells of traces: queue pairs are given their taps, or lose them.
//!
//! The broker thread takes the event; and a thread that connects a queue pair looks too, since the
//! event has come before the answer to its call: what a program sends first is recorded as well.
//! Queue pairs that are connected later are given their taps with their links. What the connection
//! manager sends goes by no queue pair (`traces`): the thread that opens the device looks for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::shared::Shared;
use crate::tap::Trace;

impl Shared {
    /// Begins or ends to record, if the broker has told of a change. Called without any lock.
    pub fn heed_traces(&self) {
        let traces = &self.common.traces;
        let is_news = || self.control.trace_told() != traces.heeded.load(Ordering::Acquire);
        if !is_news() {
            return;
        }
        let _alone = traces.changing.lock();
        while is_news() && !self.stop.load(Ordering::Acquire) {
            let told = self.control.trace_told();
            let trace = if told == 0 {
                None
            } else {
                self.ask_for_trace()
            };
            tracing::info!(trace = trace.as_ref().map(|trace| trace.name), "tracing");
            traces.set(trace.map(Arc::new));
            self.set_taps();
            traces.heeded.store(told, Ordering::Release);
        }
    }

    /// The trace that the broker has for this endpoint. Without it the endpoint goes on untraced.
    fn ask_for_trace(&self) -> Option<Trace> {
        let ring = self.control.trace_ring().ok().flatten()?;
        Trace::open(ring)
            .inspect_err(|error| tracing::warn!(%error, "not traced"))
            .ok()
    }

    fn set_taps(&self) {
        // While it is held no queue pair goes from one engine to another.
        let _registry = self.growing.lock();
        let trace = self.common.traces.current();
        self.engines.each(|_, state| {
            state.qps.each(|entry| entry.set_trace(trace.as_ref()));
        });
    }
}
