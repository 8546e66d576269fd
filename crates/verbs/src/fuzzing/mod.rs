//! A program that calls the library as a script says, misuse included: objects of every kind, made,
//! changed and destroyed in any order and twice, requests of every kind, memory that goes away.
//!
//! What a script does not do: use an object that is gone otherwise than to destroy it again.

mod domains;
mod ledger;
mod memory;
mod objects;
mod posts;
mod queues;
#[path = "../../../../fuzz/harness/script.rs"]
mod script;

use core::ffi::c_int;
use core::ptr;
use std::collections::BTreeSet;
use std::sync::OnceLock;

use crate::abi::{IbvAsyncEvent, IbvContext};
use crate::{device, errno, live};
use ledger::Ledger;
use memory::Memory;
use objects::Objects;
use script::Script;

/// Steps of one input.
const STEPS_MAX: usize = 150;
/// Descriptors that the process may have: what is leaked shows.
const DESCRIPTORS_MAX: usize = 150;
/// Inputs between two looks at the descriptors.
const LOOK_EVERY: usize = 32;

/// What one input works with.
struct Bench {
    context: *mut IbvContext,
    objects: Objects,
    ledger: Ledger,
    memory: Memory,
    /// Asynchronous events that were taken and not acknowledged yet.
    events: Vec<IbvAsyncEvent>,
    /// Addresses of what was destroyed, by what it was.
    gone: BTreeSet<(objects::Kind, usize)>,
}

/// `data` is a script: each step is a byte that says what happens, and its operands.
pub fn run(data: &[u8]) {
    let mut script = Script { rest: data };
    keep_open();
    let before = live::count();
    let context = open();
    let mut bench = Bench {
        context,
        objects: Objects::default(),
        ledger: Ledger::default(),
        memory: Memory::map(),
        events: Vec::new(),
        gone: BTreeSet::new(),
    };
    for _ in 0..STEPS_MAX {
        let Some(step) = script.byte() else { break };
        bench.step(step, &mut script);
    }
    bench.end();
    assert_eq!(live::count(), before, "objects are left");
    look_at_descriptors();
}

/// An open device.
fn open() -> *mut IbvContext {
    // SAFETY: the list has the one device.
    unsafe {
        let list = device::get_device_list(ptr::null_mut());
        let context = device::open_device(*list);
        device::free_device_list(list);
        assert!(!context.is_null(), "the device opens");
        let flags = libc::fcntl((*context).async_fd, libc::F_GETFL);
        libc::fcntl((*context).async_fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        context
    }
}

/// The endpoint stays attached from one input to the next.
fn keep_open() {
    static CONTEXT: OnceLock<usize> = OnceLock::new();
    CONTEXT.get_or_init(|| open().addr());
}

fn look_at_descriptors() {
    static INPUTS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let number = INPUTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    if number.is_multiple_of(LOOK_EVERY) {
        let open = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        assert!(open < DESCRIPTORS_MAX, "{open} descriptors are open");
    }
}

/// The outcome of a call that returns 0 or an `errno` value.
fn outcome(returned: c_int) -> Result<(), c_int> {
    match returned {
        0 => Ok(()),
        code => {
            assert!(is_documented(code), "{code} is returned");
            Err(code)
        }
    }
}

/// The outcome of a call that returns a pointer, or null with `errno` set.
fn pointer<T>(call: impl FnOnce() -> *mut T) -> Option<*mut T> {
    errno::set(0);
    let returned = call();
    if returned.is_null() {
        // SAFETY: glibc returns the address of the calling thread's errno.
        let code = unsafe { *libc::__errno_location() };
        assert!(is_documented(code), "null with errno {code}");
        return None;
    }
    Some(returned)
}

/// Whether the manual pages, or the kernel's providers, have this error.
fn is_documented(code: c_int) -> bool {
    [
        libc::EINVAL,
        libc::EBUSY,
        libc::ENOMEM,
        libc::EOPNOTSUPP,
        libc::EPERM,
        libc::EFAULT,
        libc::ENOENT,
        libc::ENODEV,
        libc::EAGAIN,
        libc::EACCES,
    ]
    .contains(&code)
}

impl Bench {
    fn step(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 64 {
            0..2 => self.alloc_pd(script),
            2..4 => self.create_cq(script),
            4 => self.create_channel(),
            5..7 => self.create_qp(script),
            7 => self.create_srq(script),
            8..11 => self.register(script),
            11 => self.register_again(script),
            12 => self.alloc_mw(script),
            13 => self.create_ah(script),
            14..18 => self.connect(script),
            18 => self.modify(script),
            19 => self.query(script),
            20..28 => self.post_send(script),
            28..32 => self.post_recv(script),
            32 => self.post_srq_recv(script),
            33..36 => self.post_batch(script),
            36 => self.bind(script),
            37..44 => self.poll(script),
            44 => self.req_notify(script),
            45 => self.take_cq_event(script),
            46 => self.take_async_event(),
            47 => self.resize_cq(script),
            48 => self.modify_srq(script),
            49 => self.multicast(script),
            50 => self.memory.change(script),
            51..56 => self.destroy(script),
            56..58 => self.destroy_again(script),
            58 => self.poll_all(),
            59 => self.alloc_parent(script),
            60 => self.alloc_td(script),
            61 => self.close_with_children(script),
            62 => self.set_up(script),
            _ => self.move_to(script),
        }
    }

    /// Ends all that there is: each request that was posted has completed once.
    fn end(&mut self) {
        self.acknowledge();
        self.flush();
        self.destroy_all();
        // SAFETY: opened by `run`.
        unsafe {
            assert_eq!(device::close_device(self.context), 0);
            assert_eq!(device::close_device(self.context), -1, "closed twice");
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/harness/corpus.rs"]
mod corpus;
#[cfg(test)]
mod replay;
