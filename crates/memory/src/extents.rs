//! Which offsets of a store are registered, and how often. Pure bookkeeping.

use crate::span::Span;
use std::collections::BTreeMap;

/// A stretch of offsets with one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    end: usize,
    count: u32,
    /// Where the hollow mapping is that its pages came from: address minus offset, wrapping.
    husk: usize,
}

/// Offsets that no registration covers any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freed {
    pub span: Span,
    /// Where the hollow mapping begins that these pages came from.
    pub husk: usize,
}

/// The registered extents of one store.
#[derive(Debug, Default)]
pub(crate) struct Extents(BTreeMap<usize, Extent>);

impl Extents {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every stretch.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.0
            .iter()
            .map(|(start, extent)| Span::new(*start, extent.end))
    }

    /// The parts of `span` that are not registered, in order.
    pub fn gaps(&self, span: Span) -> Vec<Span> {
        let mut gaps = Vec::new();
        let mut start = span.start;
        for covered in self.within(span) {
            if start < covered.start {
                gaps.push(Span::new(start, covered.start));
            }
            start = covered.end;
        }
        if start < span.end {
            gaps.push(Span::new(start, span.end));
        }
        gaps
    }

    /// The parts of `span` that are registered, in order.
    pub fn within(&self, span: Span) -> impl Iterator<Item = Span> {
        let first = self
            .0
            .range(..=span.start)
            .next_back()
            .map_or(span.start, |(start, _)| *start);
        let upto = span.end.max(first);
        let parts = self.0.range(first..upto);
        let parts = parts.map(move |(start, extent)| Span::new(*start, extent.end).and(span));
        parts.filter(|part| !part.is_empty())
    }

    /// Registers `span`, which is not registered anywhere, once; its husk begins at `husk`.
    pub fn insert(&mut self, span: Span, husk: usize) {
        debug_assert_eq!(self.gaps(span), [span]);
        let extent = Extent {
            end: span.end,
            count: 1,
            husk: husk.wrapping_sub(span.start),
        };
        self.0.insert(span.start, extent);
        self.join(span);
    }

    /// Registers once more those parts of `span` that are registered.
    pub fn hold(&mut self, span: Span) {
        self.split(span);
        for (_, extent) in self.0.range_mut(span.start..span.end) {
            extent.count += 1;
        }
        self.join(span);
    }

    /// Takes one registration from every registered part of `span`; returns what none covers now,
    /// which is forgotten.
    pub fn release(&mut self, span: Span) -> Vec<Freed> {
        self.split(span);
        let mut freed = Vec::new();
        for (start, extent) in self.0.range_mut(span.start..span.end) {
            extent.count -= 1;
            if extent.count == 0 {
                let span = Span::new(*start, extent.end);
                let husk = extent.husk.wrapping_add(*start);
                freed.push(Freed { span, husk });
            }
        }
        for gone in &freed {
            self.0.remove(&gone.span.start);
        }
        self.join(span);
        freed
    }

    /// Makes both ends of `span` ends of extents.
    fn split(&mut self, span: Span) {
        for at in [span.start, span.end] {
            let Some((_, extent)) = self.0.range_mut(..at).next_back() else {
                continue;
            };
            if extent.end > at {
                let tail = *extent;
                extent.end = at;
                self.0.insert(at, tail);
            }
        }
    }

    /// Joins equal neighbours in and around `span`.
    fn join(&mut self, span: Span) {
        let first = self
            .0
            .range(..span.start)
            .next_back()
            .map_or(span.start, |(start, _)| *start);
        let mut starts = self.0.range(first..=span.end).map(|(start, _)| *start);
        let Some(mut left) = starts.next() else {
            return;
        };
        let rest: Vec<usize> = starts.collect();
        for start in rest {
            let (a, b) = (self.0[&left], self.0[&start]);
            if a.end == start && (a.count, a.husk) == (b.count, b.husk) {
                self.0.remove(&start);
                self.0.insert(left, Extent { end: b.end, ..a });
            } else {
                left = start;
            }
        }
    }
}
