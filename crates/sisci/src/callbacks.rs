//! The callback thread.
//!
//! One for each process that has callbacks, so that they come one after another: segment events and
//! ends of transfers as they are handed over ([`Callbacks::call`]), interrupts as their doorbells
//! ring ([`Callbacks::watch`]). A callback may call the library, and remove what it belongs to.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::ThreadId;

use causeway_owned::Owned;
use causeway_recover::SignalMask;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::error::{Error, Result};
use crate::uses::Watch;

/// Name of the thread.
const THREAD: &str = "causeway-call";
/// The thread's stack: what programs' own threads have, since their functions run on it.
const STACK_BYTES: usize = 8 << 20;
/// The number under which the thread's own descriptor is watched.
const KICK: u64 = 0;
/// Descriptors looked at after one wait.
const BATCH: usize = 32;

/// Something whose descriptor is watched.
pub trait Source: Send + Sync {
    /// The descriptor is readable. Calls the program back, and makes the descriptor unreadable.
    fn ready(&self);
}

type Call = Box<dyn FnOnce() + Send>;

/// Callbacks of a process, and the thread that makes them.
#[derive(Debug)]
pub struct Callbacks {
    epoll: Owned,
    kick: Owned,
    inner: Mutex<Inner>,
    /// A callback has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Inner {
    calls: VecDeque<(u64, Call)>,
    sources: HashMap<u64, (u64, Arc<dyn Source>)>,
    next_source: u64,
    /// The object whose callback is being made.
    running: Option<u64>,
    thread: Option<ThreadId>,
    stopped: bool,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Callbacks {
    /// None yet, and no thread.
    ///
    /// # Errors
    /// [`Error::SYSTEM`] if the system has no descriptors.
    pub fn new() -> Result<Callbacks> {
        let system = |_| Error::SYSTEM;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system)?;
        let data = epoll::EventData::new_u64(KICK);
        epoll::add(&epoll, &kick, data, epoll::EventFlags::IN).map_err(system)?;
        Ok(Callbacks {
            epoll: Owned::new(epoll, "what tells of the callbacks of SISCI"),
            kick: Owned::new(kick, "what wakes the callbacks of SISCI"),
            inner: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Sees to it that there is a thread: before anything is made that has a callback.
    ///
    /// # Errors
    /// [`Error::SYSTEM`] if the system has no thread now.
    pub fn begin(self: &Arc<Self>) -> Result<()> {
        self.start(&mut self.inner.lock())
    }

    /// Has a callback of `owner` made, after those before it, unless that is removed before: then
    /// [`Callbacks::forget`] has been called, or is about to be.
    pub fn call(self: &Arc<Self>, owner: u64, removed: Watch, call: Call) {
        // Asked when the owner is known to run: from then on `forget` waits.
        let call = move || {
            if !removed.is_closed() {
                call();
            }
        };
        let mut inner = self.inner.lock();
        inner.calls.push_back((owner, Box::new(call)));
        // There is one; else the next callback tries again.
        let _ = self.start(&mut inner);
        drop(inner);
        self.wake();
    }

    /// Has a source of `owner` called whenever its descriptor is readable.
    ///
    /// # Errors
    /// [`Error::SYSTEM`] if the descriptor can't be watched, or there is no thread.
    pub fn watch(
        self: &Arc<Self>,
        owner: u64,
        fd: BorrowedFd<'_>,
        source: Arc<dyn Source>,
    ) -> Result<u64> {
        let mut inner = self.inner.lock();
        self.start(&mut inner)?;
        inner.next_source += 1;
        let number = inner.next_source;
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).map_err(|_| Error::SYSTEM)?;
        inner.sources.insert(number, (owner, source));
        Ok(number)
    }

    /// Watches no more what [`Callbacks::watch`] numbered so.
    pub fn unwatch(&self, number: u64, fd: BorrowedFd<'_>) {
        self.inner.lock().sources.remove(&number);
        // Not watched any more is as good.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Whether a callback is what calls this.
    pub fn is_here(&self) -> bool {
        self.inner.lock().thread == Some(std::thread::current().id())
    }

    /// There will be no more callbacks of `owner`: those that wait are dropped, and the one that is
    /// being made has ended, unless it is itself what calls this.
    pub fn forget(&self, owner: u64) {
        let mut inner = self.inner.lock();
        inner.calls.retain(|(whose, _)| *whose != owner);
        inner.sources.retain(|_, (whose, _)| *whose != owner);
        if inner.thread == Some(std::thread::current().id()) {
            return;
        }
        while inner.running == Some(owner) {
            self.ended.wait(&mut inner);
        }
    }

    /// Ends the thread, after the callback under way.
    #[cfg(test)]
    pub fn stop(&self) {
        let mut inner = self.inner.lock();
        inner.stopped = true;
        inner.calls.clear();
        inner.sources.clear();
        drop(inner);
        self.wake();
    }

    fn start(self: &Arc<Self>, inner: &mut Inner) -> Result<()> {
        if inner.thread.is_some() || inner.stopped {
            return Ok(());
        }
        let callbacks = self.clone();
        let builder = std::thread::Builder::new().name(THREAD.into());
        let builder = builder.stack_size(STACK_BYTES);
        // Locked until the thread's id is known: it would not know itself else.
        let thread = causeway_recover::spawn(builder, move |mask| callbacks.run(mask));
        inner.thread = Some(thread.map_err(|_| Error::SYSTEM)?.thread().id());
        Ok(())
    }

    fn wake(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = self.kick.signal();
    }

    /// `program` is what callbacks are to block.
    fn run(&self, program: SignalMask) {
        let mut events = Vec::with_capacity(BATCH);
        loop {
            while let Some((owner, call)) = self.next_call() {
                self.make(owner, call, program);
            }
            if self.inner.lock().stopped {
                return;
            }
            events.clear();
            // A signal handler of the program may have run on this thread.
            let Ok(epoll) = self.epoll.check() else {
                return;
            };
            let _ = epoll::wait(epoll, rustix::buffer::spare_capacity(&mut events), None);
            for event in &events {
                match event.data.u64() {
                    KICK if self.kick.drain().is_err() => return,
                    KICK => {}
                    number => self.look(number, program),
                }
            }
        }
    }

    fn next_call(&self) -> Option<(u64, Call)> {
        let mut inner = self.inner.lock();
        let next = inner.calls.pop_front()?;
        inner.running = Some(next.0);
        Some(next)
    }

    fn look(&self, number: u64, program: SignalMask) {
        let mut inner = self.inner.lock();
        let Some((owner, source)) = inner.sources.get(&number).cloned() else {
            return;
        };
        inner.running = Some(owner);
        drop(inner);
        self.make(owner, Box::new(move || source.ready()), program);
    }

    fn make(&self, owner: u64, call: Call, program: SignalMask) {
        program.during(call);
        let mut inner = self.inner.lock();
        debug_assert_eq!(inner.running, Some(owner));
        inner.running = None;
        drop(inner);
        self.ended.notify_all();
    }
}

impl AsFd for Callbacks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uses::Uses;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn callbacks() -> Arc<Callbacks> {
        Arc::new(Callbacks::new().unwrap())
    }

    /// Of an object that is not removed.
    fn stays() -> Watch {
        Uses::default().watch()
    }

    #[test]
    fn what_is_removed_is_not_called_whenever_that_was_asked_for() {
        let callbacks = callbacks();
        let (tell, told) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let uses = Uses::default();
        let call = |owner, removed, name| {
            let tell = tell.clone();
            let call = move || tell.send(name).unwrap();
            callbacks.call(owner, removed, Box::new(call));
        };
        callbacks.call(1, stays(), Box::new(move || wait.recv().unwrap()));
        call(2, uses.watch(), "before");
        uses.close().unwrap();
        callbacks.forget(2);
        call(2, uses.watch(), "after");
        call(1, stays(), "another's");
        go.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), "another's");
        callbacks.stop();
    }

    #[test]
    fn callbacks_come_in_order() {
        let callbacks = callbacks();
        let (tell, told) = mpsc::channel();
        for i in 0..100 {
            let tell = tell.clone();
            callbacks.call(7, stays(), Box::new(move || tell.send(i).unwrap()));
        }
        let seen: Vec<i32> = told.iter().take(100).collect();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        callbacks.stop();
    }

    #[test]
    fn what_is_forgotten_is_not_called_and_not_running() {
        let callbacks = callbacks();
        let calls = Arc::new(AtomicUsize::new(0));
        let (started, running) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let count = calls.clone();
        callbacks.call(
            1,
            stays(),
            Box::new(move || {
                started.send(()).unwrap();
                wait.recv().unwrap();
                count.fetch_add(1, Ordering::SeqCst);
            }),
        );
        let count = calls.clone();
        callbacks.call(
            1,
            stays(),
            Box::new(move || {
                count.fetch_add(10, Ordering::SeqCst);
            }),
        );
        running.recv().unwrap();
        let all = callbacks.clone();
        let other = std::thread::spawn(move || {
            // Not before the one behind is forgotten.
            while !all.inner.lock().calls.is_empty() {
                std::thread::yield_now();
            }
            go.send(()).unwrap();
        });
        callbacks.forget(1);
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        other.join().unwrap();
        callbacks.stop();
    }

    #[test]
    fn a_callback_may_forget_its_own_owner() {
        let callbacks = callbacks();
        let (tell, told) = mpsc::channel();
        let inner = callbacks.clone();
        callbacks.call(
            1,
            stays(),
            Box::new(move || {
                inner.forget(1);
                tell.send(()).unwrap();
            }),
        );
        told.recv().unwrap();
        callbacks.forget(1);
        callbacks.stop();
    }

    struct Bell(OwnedFd, mpsc::Sender<()>);
    impl Source for Bell {
        fn ready(&self) {
            let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
            self.1.send(()).unwrap();
        }
    }

    #[test]
    fn a_rung_bell_is_heard_until_it_is_forgotten() {
        let callbacks = callbacks();
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (tell, told) = mpsc::channel();
        let bell = Arc::new(Bell(fd.try_clone().unwrap(), tell));
        let number = callbacks.watch(5, fd.as_fd(), bell).unwrap();
        for _ in 0..3 {
            rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
            told.recv().unwrap();
        }
        callbacks.unwatch(number, fd.as_fd());
        callbacks.forget(5);
        rustix::io::write(&fd, &1u64.to_ne_bytes()).unwrap();
        let (done, sync) = mpsc::channel();
        callbacks.call(6, stays(), Box::new(move || done.send(()).unwrap()));
        sync.recv().unwrap();
        assert!(told.try_recv().is_err());
        callbacks.stop();
    }
}
