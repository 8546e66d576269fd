//! Which offsets of a store are in use, and how often they are registered. Pure bookkeeping.
//!
//! What is registered no more, and lies in the store all the same, is *idle*: its count is 0.

use crate::span::Span;
use std::collections::BTreeMap;

/// A stretch of offsets with one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    end: usize,
    count: u32,
    /// Where the hollow mapping is that its pages came from: address minus offset, wrapping.
    emptied: usize,
}

/// Offsets that no registration covers any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freed {
    pub span: Span,
    /// Where the hollow mapping begins that these pages came from.
    pub emptied: usize,
}

/// The registered extents of one store.
#[derive(Debug, Default)]
pub(crate) struct Extents(BTreeMap<usize, Extent>);

impl Extents {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every stretch.
    #[cfg(test)]
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.0
            .iter()
            .map(|(start, extent)| Span::new(*start, extent.end))
    }

    /// Where the hollow mappings are.
    #[cfg(test)]
    pub fn emptied(&self) -> impl Iterator<Item = Span> {
        self.0.iter().map(|(start, extent)| {
            Span::new(*start, extent.end).at(extent.emptied.wrapping_add(*start))
        })
    }

    /// All of it, as if it were released.
    pub fn into_freed(self) -> impl Iterator<Item = Freed> {
        self.0.into_iter().map(|(start, extent)| Freed {
            span: Span::new(start, extent.end),
            emptied: extent.emptied.wrapping_add(start),
        })
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

    /// Registers `span`, which is not registered anywhere, once; its emptied mapping begins at
    /// `emptied`.
    pub fn insert(&mut self, span: Span, emptied: usize) {
        debug_assert_eq!(self.gaps(span), [span]);
        let extent = Extent {
            end: span.end,
            count: 1,
            emptied: emptied.wrapping_sub(span.start),
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
            extent.count = extent.count.saturating_sub(1);
            if extent.count == 0 {
                let span = Span::new(*start, extent.end);
                let emptied = extent.emptied.wrapping_add(*start);
                freed.push(Freed { span, emptied });
            }
        }
        for gone in &freed {
            self.0.remove(&gone.span.start);
        }
        self.join(span);
        freed
    }

    /// As [`Extents::release`], but what no registration covers now becomes idle.
    pub fn rest(&mut self, span: Span) {
        self.split(span);
        for (_, extent) in self.0.range_mut(span.start..span.end) {
            extent.count = extent.count.saturating_sub(1);
        }
        self.join(span);
    }

    /// The idle parts of `span`, in order.
    pub fn idle(&self, span: Span) -> Vec<Span> {
        let count = |at: usize| self.0.range(..=at).next_back().map(|(_, e)| e.count);
        let idle = |part: &Span| count(part.start) == Some(0);
        self.within(span).filter(idle).collect()
    }

    /// Takes out the idle parts of `span`.
    pub fn take_idle(&mut self, span: Span) -> Vec<Freed> {
        self.split(span);
        let range = self.0.range(span.start..span.end);
        let idle = range.filter(|(_, extent)| extent.count == 0);
        let idle: Vec<Freed> = idle
            .map(|(start, extent)| Freed {
                span: Span::new(*start, extent.end),
                emptied: extent.emptied.wrapping_add(*start),
            })
            .collect();
        for gone in &idle {
            self.0.remove(&gone.span.start);
        }
        self.join(span);
        idle
    }

    /// Enters idle pages.
    pub fn insert_idle(&mut self, freed: Freed) {
        self.insert(freed.span, freed.emptied);
        self.rest(freed.span);
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
            if a.end == start && (a.count, a.emptied) == (b.count, b.emptied) {
                self.0.remove(&start);
                self.0.insert(left, Extent { end: b.end, ..a });
            } else {
                left = start;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 40;

    #[derive(Debug, Clone)]
    enum Step {
        Register(usize, usize),
        Release(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..SIZE, 1..12usize).prop_map(|(start, len)| Step::Register(start, len)),
            any::<prop::sample::Index>().prop_map(Step::Release),
        ]
    }

    proptest! {
        /// The extents count as an array of counters does, and free what reaches zero, with the
        /// emptied mapping it was inserted with.
        #[test]
        fn extents_count(steps in prop::collection::vec(step(), 1..60)) {
            let mut extents = Extents::default();
            let mut counts = [0u32; SIZE + 12];
            let mut emptied_all = [0usize; SIZE + 12];
            let mut live = Vec::new();
            for (round, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Register(start, len) => {
                        let span = Span::new(start, start + len);
                        let gaps = extents.gaps(span);
                        let free = (start..span.end).filter(|at| counts[*at] == 0);
                        prop_assert!(gaps.iter().flat_map(|gap| gap.start..gap.end).eq(free));
                        extents.hold(span);
                        for gap in gaps {
                            let emptied = 1000 * (round + 1) + gap.start;
                            extents.insert(gap, emptied);
                            let there = emptied_all[gap.start..gap.end].iter_mut();
                            there.zip(emptied..).for_each(|(to, emptied)| *to = emptied);
                        }
                        (start..span.end).for_each(|at| counts[at] += 1);
                        live.push(span);
                    }
                    Step::Release(_) if live.is_empty() => {}
                    Step::Release(index) => {
                        let span = live.swap_remove(index.index(live.len()));
                        let freed = extents.release(span);
                        (span.start..span.end).for_each(|at| counts[at] -= 1);
                        for part in &freed {
                            let there = &emptied_all[part.span.start..part.span.end];
                            let expected = (part.emptied..).take(there.len());
                            prop_assert!(there.iter().copied().eq(expected));
                        }
                        let freed = freed.iter().flat_map(|part| part.span.start..part.span.end);
                        let zero = (span.start..span.end).filter(|at| counts[*at] == 0);
                        prop_assert!(freed.eq(zero));
                    }
                }
                let held = extents.spans().flat_map(|span| span.start..span.end);
                prop_assert!(held.eq((0..counts.len()).filter(|at| counts[*at] > 0)));
            }
            live.into_iter().for_each(|span| drop(extents.release(span)));
            prop_assert!(extents.is_empty());
        }
    }

    #[test]
    fn equal_neighbours_join() {
        let mut extents = Extents::default();
        extents.insert(Span::new(0, 4), 100);
        extents.insert(Span::new(4, 8), 104);
        extents.hold(Span::new(2, 6));
        extents.release(Span::new(2, 6));
        assert_eq!(extents.spans().collect::<Vec<_>>(), [Span::new(0, 8)]);
    }
}
