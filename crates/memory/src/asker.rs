//! Asks the kernel, through `causeway-pins`, whether pages may be copied elsewhere, while accesses
//! to them are trapped.

use crate::error::Unmovable;
use crate::span::Span;
use crate::store::Handle;
use causeway_pins::remote::Remote;
use causeway_pins::{Answer, Holes, Pagemap, Reach, ask, self_test};
use std::os::fd::{AsFd, OwnedFd};

/// How often one that may only seem to be held is asked about before threads that wait for it go
/// on: other work of the kernel refers to pages for a moment.
const TRIES: usize = 3;

/// What is needed to ask. Not on the heap, and allocates nothing.
#[derive(Debug)]
pub(crate) struct Asker {
    pagemap: Pagemap,
    /// For pages that others map, too.
    all: bool,
    /// Asks where this process may not.
    remote: Option<Remote>,
}

impl Asker {
    /// Tries whether this kernel tells the truth. `remote` leads to a process that may ask about
    /// pages that others map.
    ///
    /// # Errors
    /// [`Unmovable::Blind`] if it does not.
    pub fn start(remote: Option<OwnedFd>, privileged: bool) -> Result<Asker, Unmovable> {
        let pagemap = Pagemap::open()?;
        if !self_test(&pagemap, Reach::Own) {
            return Err(Unmovable::Blind);
        }
        let all = privileged && self_test(&pagemap, Reach::All);
        Ok(Asker {
            pagemap,
            all,
            remote: remote.map(Remote::new),
        })
    }

    /// Another process to ask, where that of before is gone.
    pub fn lend(&mut self, remote: OwnedFd) {
        self.remote = Some(Remote::new(remote));
    }

    /// Whether the answers hold for pages that hostile processes map.
    pub fn reaches_all(&self) -> bool {
        self.all || self.remote.as_ref().is_some_and(|remote| !remote.is_lost())
    }

    /// Whether nobody refers to private pages, which nobody can reach meanwhile.
    pub fn is_private_free(&self, span: Span) -> bool {
        let ask = || {
            ask(
                &self.pagemap,
                span.start,
                span.len(),
                Reach::Own,
                Holes::Allowed,
            )
        };
        free_at_last(ask)
    }

    /// Whether nobody but the processes that map them refers to the pages of a store that `stage`,
    /// a mapping of its own, shows from an offset on.
    pub fn is_stored_free(&self, store: &Handle<'_>, offset: usize, stage: Span) -> bool {
        let own = |reach| {
            ask(
                &self.pagemap,
                stage.start,
                stage.len(),
                reach,
                Holes::Filled,
            )
        };
        let remote = self.remote.as_ref().filter(|remote| !remote.is_lost());
        match remote {
            _ if self.all => free_at_last(|| own(Reach::All)),
            Some(remote) => {
                // It fills no holes.
                own(Reach::Own);
                // A broker that does not answer is not waited for again while threads wait for this
                // one.
                (0..TRIES)
                    .map(|_| remote.ask(store.as_fd(), offset, stage.len()))
                    .take_while(|answer| *answer != Answer::Unknown)
                    .any(|answer| answer == Answer::Free)
            }
            None => free_at_last(|| own(Reach::Own)),
        }
    }
}

fn free_at_last(ask: impl Fn() -> Answer) -> bool {
    (0..TRIES).any(|_| ask() == Answer::Free)
}
