//! The notifier: a thread that calls functions that may take their time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicPtr, Ordering};

use causeway_recover::SignalMask;
use parking_lot::{Condvar, Mutex};

/// Name of the thread.
const THREAD: &str = "causeway-done";

type Call = Box<dyn FnOnce() + Send>;

/// Functions to be called.
struct Notifier {
    lineage: u32,
    inner: Mutex<Inner>,
    more: Condvar,
}

#[derive(Default)]
struct Inner {
    calls: VecDeque<Call>,
    thread: bool,
}

/// As the engine's: one for each process, never freed.
static CURRENT: AtomicPtr<Notifier> = AtomicPtr::new(std::ptr::null_mut());

fn current() -> &'static Notifier {
    let lineage = crate::lineage::number();
    loop {
        let current = CURRENT.load(Ordering::Acquire);
        // SAFETY: what is stored there is never freed.
        if let Some(notifier) = unsafe { current.as_ref() }
            && notifier.lineage == lineage
        {
            return notifier;
        }
        let fresh = Box::into_raw(Box::new(Notifier {
            lineage,
            inner: Mutex::default(),
            more: Condvar::new(),
        }));
        let swapped = CURRENT.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
        if swapped.is_err() {
            // SAFETY: made above, and seen by nobody else.
            drop(unsafe { Box::from_raw(fresh) });
        }
    }
}

/// Has a function called, after those before it.
pub(crate) fn call(function: Call) {
    let notifier = current();
    let mut inner = notifier.inner.lock();
    inner.calls.push_back(function);
    // Without a thread the call waits for the next that can have one.
    let _ = notifier.start(&mut inner);
    drop(inner);
    notifier.more.notify_one();
}

/// Sees to it that there is a thread for [`Completion::Callback`](crate::Completion::Callback): to
/// be called before a transfer is posted with one. Returns false if the system has no thread now.
#[must_use]
pub fn can_call() -> bool {
    let notifier = current();
    notifier.start(&mut notifier.inner.lock())
}

impl Notifier {
    /// Whether there is a thread, now at least.
    fn start(&'static self, inner: &mut Inner) -> bool {
        if !inner.thread {
            let thread = std::thread::Builder::new().name(THREAD.into());
            let spawned = causeway_recover::spawn(thread, move |mask| run(self, mask));
            inner.thread = spawned.is_ok();
        }
        inner.thread
    }
}

/// `program` is what the functions are to block.
fn run(notifier: &'static Notifier, program: SignalMask) {
    let mut inner = notifier.inner.lock();
    loop {
        match inner.calls.pop_front() {
            Some(function) => {
                drop(inner);
                program.during(function);
                inner = notifier.inner.lock();
            }
            None => notifier.more.wait(&mut inner),
        }
    }
}
