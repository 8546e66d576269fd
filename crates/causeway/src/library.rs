//! A session with the broker, and the thread that hears from it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Once, Weak};
use std::thread::{JoinHandle, ThreadId};
use std::time::Instant;

use causeway_fabric::Address;
use causeway_fabric::pool::{Access, AllocateReply, OpenReply, Pages, PoolSession};
use causeway_owned::Owned;
use causeway_shm::lock::{Futex, Liveness, LockError, Locker};
use causeway_shm::{Life, LifeTable};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::events;
use crate::mapping::{Held, Registry};
use crate::pool::{Opens, Pool, PoolOptions};
use crate::waits::{Outcome, Waits};

/// How often this process is the child of one that had the library open.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of ours that does nothing but add to an atomic.
        // It fails only without memory; then children fault where they would be refused.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// A session with the broker of this host. Clones share it; it ends with the last of them and of
/// all pools, blocks and mappings.
#[derive(Clone, Debug)]
pub struct Library {
    handle: Arc<Handle>,
}

/// Ends the session when the last one lets go of it.
#[derive(Debug)]
pub(crate) struct Handle {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread shares.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) session: PoolSession,
    /// Locked while a block is taken hold of or let go of, so that the broker hears of one after
    /// the other.
    pub(crate) registry: Mutex<Registry>,
    /// Locked while a pool is opened or closed.
    opens: Mutex<Opens>,
    /// Threads that wait for what others do.
    pub(crate) waits: Waits,
    pub(crate) stop: Owned,
    forks: u32,
    /// The process as a locker: the last of `lockers`.
    locker: AtomicPtr<Locker>,
    /// All there ever were: a new one for each broker. Somebody may be using an old one.
    lockers: Mutex<Vec<Arc<Locker>>>,
}

impl Library {
    /// Opens a session with the broker that the environment names (`CAUSEWAY_SOCKET`,
    /// `CAUSEWAY_RUNTIME_DIR`), starting it if there is none.
    ///
    /// # Errors
    /// `EACCES` if this user is not admitted, `ENODEV` without a broker, `EMFILE`, `EDQUOT` if the
    /// broker or the tenant has no room.
    pub fn open() -> Result<Library> {
        Library::open_at(None)
    }

    /// Opens a session with the broker at an address.
    ///
    /// # Errors
    /// As [`Library::open`].
    pub fn open_at(broker: Option<&Address>) -> Result<Library> {
        watch_forks();
        let session = PoolSession::open(broker)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::of("eventfd", errno))?;
        let inner = Arc::new(Inner {
            session,
            registry: Mutex::default(),
            opens: Mutex::default(),
            waits: Waits::default(),
            stop: Owned::new(stop, "what ends the thread of libcauseway"),
            forks: FORKS.load(Ordering::Relaxed),
            locker: AtomicPtr::default(),
            lockers: Mutex::default(),
        });
        inner.renew_locker()?;
        let thread = events::start(Arc::clone(&inner))?;
        let handle = Handle {
            inner,
            thread: Some(thread),
        };
        Ok(Library {
            handle: Arc::new(handle),
        })
    }

    /// The name by which others grant this session rights ([`crate::Party::Session`]).
    ///
    /// # Errors
    /// `EPERM` in a forked child.
    pub fn id(&self) -> Result<u64> {
        Ok(self.handle.session().name()?)
    }

    /// Makes a pool, and opens it.
    ///
    /// # Errors
    /// `EINVAL` for a name or numbers outside their limits, `EEXIST`, `EDQUOT`, `EMFILE`, `EACCES`
    /// for one that exists and is another user's alone.
    pub fn create_pool(&self, options: &PoolOptions) -> Result<Pool> {
        let mut opens = self.handle.opens();
        let opened = self.handle.session().create_pool(options)?;
        Ok(Pool::opened(
            &self.handle,
            &mut opens,
            &options.name,
            opened,
        ))
    }

    /// Opens a pool.
    ///
    /// # Errors
    /// `ENOENT`, `EACCES` if it is another user's alone, `EMFILE`.
    pub fn open_pool(&self, name: &str) -> Result<Pool> {
        let mut opens = self.handle.opens();
        let opened = self.handle.session().open_pool(name)?;
        Ok(Pool::opened(&self.handle, &mut opens, name, opened))
    }

    /// Ends a pool that this user made: its blocks are freed, its name is free.
    ///
    /// # Errors
    /// `ENOENT`, `EPERM` if it is another user's, `EBUSY` while it has blocks of other sessions.
    pub fn destroy_pool(&self, name: &str) -> Result<()> {
        Ok(self.handle.session().destroy_pool(name)?)
    }
}

impl Library {
    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }
}

impl Handle {
    pub(crate) fn session(&self) -> &PoolSession {
        &self.inner.session
    }

    pub(crate) fn is_own_process(&self) -> bool {
        self.inner.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Whether this is the process that opened the library.
    ///
    /// # Errors
    /// `EPERM` in a forked child, which must not wait for locks that threads of its parent had.
    #[inline]
    pub(crate) fn check_process(&self, what: &'static str) -> Result<()> {
        match self.is_own_process() {
            true => Ok(()),
            false => Err(Error::of(what, Errno::PERM)),
        }
    }

    /// The process as one that locks.
    ///
    /// # Errors
    /// `EPERM` in a forked child.
    #[inline]
    pub(crate) fn locker(&self) -> Result<&Locker> {
        self.check_process("lock")?;
        // SAFETY: set before the library was handed out, to one that lives as long as `inner`, and
        // is never written to.
        Ok(unsafe { &*self.inner.locker.load(Ordering::Acquire) })
    }

    /// This process was taken for dead by the life `old`: it goes on by the next one, which it has
    /// or gets now.
    ///
    /// # Errors
    /// Without a broker there is no life; `ESTALE` if the broker knows of none but the old one.
    #[cold]
    pub(crate) fn renew_life(&self, old: Life) -> Result<()> {
        causeway_cancel::off(|| {
            // A connection that has ended is noticed by a call, and made again.
            self.session().confirm(old)?;
            if self.session().life()? == old {
                return Err(LockError::Fenced.into());
            }
            self.inner.renew_locker()
        })
    }

    pub(crate) fn life_table(&self) -> Result<LifeTable> {
        Ok(self.session().life_table()?)
    }

    pub(crate) fn opens(&self) -> MutexGuard<'_, Opens> {
        self.inner.opens.lock()
    }

    /// Asks the broker to tell of something, and sleeps until it does: true if it is worth while to
    /// look again, false when the time is over.
    pub(crate) fn await_told(
        &self,
        deadline: Option<Instant>,
        ask: impl Fn(&PoolSession, u64) -> causeway_fabric::Result<bool>,
    ) -> Result<bool> {
        let wait = self.inner.waits.begin();
        if ask(self.session(), wait.ticket)? {
            return Ok(true);
        }
        causeway_fault::point("block.waiting");
        let outcome = wait.wait(deadline);
        if outcome != Outcome::Told {
            // What the broker keeps of it costs little, and nothing once the session has ended.
            let _ = self.session().give_up(wait.ticket);
        }
        Ok(outcome != Outcome::Pending)
    }

    /// Takes hold of a block: of what the process has of it already, with the rights that `ask` got
    /// from the broker.
    pub(crate) fn hold(
        self: &Arc<Handle>,
        handle: u64,
        ask: impl FnOnce(&PoolSession) -> Result<(OpenReply, OwnedFd)>,
    ) -> Result<Arc<Held>> {
        self.check_process("open a block")?;
        let mut registry = self.inner.registry.lock();
        if let Some(held) = registry.get(&handle).and_then(Weak::upgrade) {
            // Not under the lock: it may be the last to hold it when this is over. Until then
            // nobody tells the broker that it is let go of.
            drop(registry);
            held.widen(ask)?;
            return Ok(held);
        }
        let (reply, fd) = ask(self.session())?;
        let held = Arc::new(Held::new(Arc::clone(self), handle, &reply, fd));
        registry.insert(handle, Arc::downgrade(&held));
        Ok(held)
    }

    /// Makes a block and takes hold of it, before another thread that has found it by its handle
    /// can: a process has a block once.
    pub(crate) fn hold_new(
        self: &Arc<Handle>,
        make: impl FnOnce(&PoolSession) -> Result<(AllocateReply, OwnedFd)>,
        advised: bool,
    ) -> Result<(Arc<Held>, u32)> {
        self.check_process("allocate a block")?;
        let mut registry = self.inner.registry.lock();
        let (made, fd) = make(self.session())?;
        let reply = OpenReply {
            access: Access::Write,
            bytes: made.bytes,
            moves: 0,
            pages: made.pages,
        };
        let held = Arc::new(Held::new(Arc::clone(self), made.handle, &reply, fd));
        held.advised
            .store(advised && made.pages == Pages::Ordinary, Ordering::Relaxed);
        registry.insert(made.handle, Arc::downgrade(&held));
        Ok((held, made.number))
    }

    /// The last user of what the process had of a block is gone.
    pub(crate) fn let_go(&self, handle: u64, tell: bool) {
        let mut registry = self.inner.registry.lock();
        // Somebody may have taken hold of it anew.
        if registry
            .get(&handle)
            .is_some_and(|held| held.strong_count() == 0)
        {
            registry.remove(&handle);
            if tell {
                // Without broker there is nobody to tell.
                let _ = self.session().release(handle);
            }
        }
    }
}

impl Inner {
    /// Locks from now on as what the broker knows this process for.
    pub(crate) fn renew_locker(self: &Arc<Inner>) -> Result<()> {
        let (life, table) = (self.session.life()?, self.session.life_table()?);
        let sleep = Arc::new(Futex::new(table.clone()));
        let knows = Arc::new(Knows {
            inner: Arc::downgrade(self),
            table,
        });
        let locker = Arc::new(Locker::new(life, knows, sleep));
        let mut lockers = self.lockers.lock();
        self.locker
            .store(Arc::as_ptr(&locker).cast_mut(), Ordering::Release);
        lockers.push(locker);
        Ok(())
    }

    pub(crate) fn held(&self, handle: u64) -> Option<Arc<Held>> {
        self.registry.lock().get(&handle).and_then(Weak::upgrade)
    }
}

/// Says what is alive: by the table, and in doubt by the broker.
struct Knows {
    inner: Weak<Inner>,
    table: LifeTable,
}

impl Liveness for Knows {
    fn is_alive(&self, life: Life) -> bool {
        self.table.is_alive(life)
    }

    fn deaths(&self) -> u32 {
        self.table.deaths()
    }

    fn confirm(&self, life: Life) -> bool {
        let asked = self
            .inner
            .upgrade()
            .map(|inner| causeway_cancel::off(|| inner.session.confirm(life)));
        match asked {
            Some(Ok(alive)) => alive,
            // Nobody knows better.
            _ => self.table.is_alive(life),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.is_own_process() {
            // The thread is the parent's, as is what it shares.
            std::mem::forget(self.thread.take());
            return;
        }
        // Fails only if the counter is full, and then it is readable anyway.
        let _ = self.inner.stop.signal();
        let own: ThreadId = std::thread::current().id();
        if let Some(thread) = self.thread.take_if(|thread| thread.thread().id() != own) {
            // A panic there is no reason for one here.
            let _ = thread.join();
        }
    }
}
