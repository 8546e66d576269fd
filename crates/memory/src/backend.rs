//! Back ends that move pages, one for each kind of store: userfaultfd for memfds, a guest's driver
//! for segments of its window.

use crate::asker::Asker;
use crate::engine::Engine;
use crate::error::Unmovable;
use crate::extents::Freed;
use crate::guest::Guest;
use crate::shared::View;
use crate::span::Span;
use crate::store::Store;
use crate::vma::Vma;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// How a backend is made, once it is needed.
#[derive(Debug)]
pub(crate) enum Start {
    /// Of userfaultfd; from a device where this process may not make one itself.
    Userfaultfd {
        device: Option<OwnedFd>,
        /// The features that may be used.
        usable: u64,
        /// Leads to a process that may ask about pages that others map.
        remote: Option<OwnedFd>,
        /// Whether this one may, if it can.
        privileged: bool,
    },
    Guest,
}

impl Start {
    pub fn start(&mut self) -> Result<Backend, Unmovable> {
        match self {
            Start::Userfaultfd {
                device,
                usable,
                remote,
                privileged,
            } => {
                let asker = Asker::start(remote.take(), *privileged)?;
                Engine::start(device.as_ref(), *usable, asker).map(Backend::Engine)
            }
            Start::Guest => Guest::start().map(Backend::Guest),
        }
    }
}

/// What moves pages. One caller at a time.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "in a box it could itself be in memory that is being moved"
)]
pub(crate) enum Backend {
    Engine(Engine),
    Guest(Guest),
}

impl Backend {
    pub fn view(&self) -> &View {
        match self {
            Backend::Engine(engine) => &engine.shared,
            Backend::Guest(guest) => guest.view(),
        }
    }

    /// See [`Engine::abandon`].
    pub fn abandon(self) {
        match self {
            Backend::Engine(engine) => engine.abandon(),
            Backend::Guest(guest) => std::mem::forget(guest),
        }
    }

    /// The memory that must not be moved.
    pub fn memory(&self) -> [Span; 2] {
        match self {
            Backend::Engine(engine) => engine.memory(),
            // It waits for nobody while it moves memory.
            Backend::Guest(_) => [Span::default(); 2],
        }
    }

    /// What is asked about references; in a guest the driver looks itself.
    pub fn asker(&mut self) -> Option<&mut Asker> {
        match self {
            Backend::Engine(engine) => Some(&mut engine.asker),
            Backend::Guest(_) => None,
        }
    }

    /// See [`Engine::sees_locks`].
    pub fn sees_locks(&self) -> bool {
        match self {
            Backend::Engine(engine) => engine.sees_locks(),
            Backend::Guest(_) => true,
        }
    }

    /// See [`Engine::move_run`].
    pub fn move_run(&self, store: &Store, span: Span) -> (Option<Freed>, Result<(), Unmovable>) {
        match self {
            Backend::Engine(engine) => engine.move_run(store, span),
            Backend::Guest(guest) => guest.move_run(store, span),
        }
    }

    /// See [`Engine::return_run`].
    pub fn return_run(
        &self,
        store: &Store,
        vma: &Vma,
        emptied: usize,
    ) -> (Vec<Freed>, Option<Errno>) {
        match self {
            Backend::Engine(engine) => engine.return_run(store, vma, emptied),
            Backend::Guest(guest) => guest.return_run(store, vma, emptied),
        }
    }
}
