//! What a poll holds and has seen before it takes anything. It fits into registers, in which the
//! pieces of `ibv_poll_cq(3)` hand it on.

use std::ptr::NonNull;

use causeway_biased_lock::HurriedOf;

use crate::clock::Now;
use crate::engines::Engine;
use crate::hot::Hot;

/// What a poll does first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glance {
    /// A record has come ([`crate::Cq::take_message`]).
    Record(GlancedRing),
    /// As that, and it is likely to be a message of 8 bytes and no more.
    Word(GlancedRing),
    /// An acknowledgment has, or peers are to be told first ([`crate::Cq::take_ack`]).
    Ack(GlancedRing),
    /// Nothing: the other places are to be looked at ([`crate::Cq::look`]).
    Nothing,
    /// All places are to be looked at, by [`crate::Cq::look`] too.
    All,
}

/// The ring that a glance has looked at: who takes from it need not find it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlancedRing(NonNull<Hot>);

impl GlancedRing {
    /// Of one in an engine's list.
    #[inline(always)]
    pub(crate) fn of(hot: &mut Hot) -> Self {
        GlancedRing(NonNull::from(hot))
    }

    /// That one.
    ///
    /// # Safety
    /// It has neither moved nor gone since, and nothing else refers to it.
    #[inline(always)]
    pub(crate) unsafe fn get<'a>(mut self) -> &'a mut Hot {
        // SAFETY: the caller's promise.
        unsafe { self.0.as_mut() }
    }
}

/// An engine's lock ([`crate::Cq::hurry`]). It has two words: those are handed on in registers,
/// and three would be in memory.
pub struct Held<'a>(pub(crate) HurriedOf<'a, Engine>);

impl<'a> Held<'a> {
    /// Gives the lock back. Returns where it is.
    #[inline(always)]
    pub fn release(self) -> Place<'a> {
        Place(self.0.owner())
    }
}

/// Where an engine is ([`Held::release`]).
#[derive(Clone, Copy)]
pub struct Place<'a>(&'a Engine);

impl Place<'_> {
    /// A poll has found something, by a way that looks at nothing else.
    #[inline(always)]
    pub fn note_call(self) {
        self.0.note_call();
    }

    /// As [`Place::note_call`], but for the time: whether [`Place::note_time`] is to note that.
    #[inline(always)]
    #[must_use]
    pub fn count_call(&self) -> bool {
        self.0.count_reading_call()
    }

    /// See [`Place::count_call`].
    pub fn note_time(self) {
        self.0.note_time(&Now::default());
    }
}
