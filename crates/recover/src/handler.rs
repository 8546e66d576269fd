//! The handler of SIGSEGV and SIGBUS, in front of the program's own.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t, ucontext_t};

use crate::levels::Levels;
use crate::masks::{bit, bits, block, blocked, synchronous};
use crate::routines::{self, BEGIN, END};

/// The signals of a fault: `signal(7)`.
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];
/// How often this handler gets in front of one that the program has installed since.
const LEVELS: usize = 8;
/// `BUS_MCEERR_AO` of sigaction(2): memory has failed somewhere, not under this instruction.
const NOT_UNDER_THIS_INSTRUCTION: c_int = 5;

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// The handlers, one for each level. They differ, so that a handler of the program's that passes
/// a signal on to what was there before it does not come round to itself.
const HANDLERS: [Handler; LEVELS] = [
    on_fault::<0>,
    on_fault::<1>,
    on_fault::<2>,
    on_fault::<3>,
    on_fault::<4>,
    on_fault::<5>,
    on_fault::<6>,
    on_fault::<7>,
];

/// What a signal did before a level was put in front of it (`struct sigaction`).
struct Before {
    handler: AtomicUsize,
    flags: AtomicI32,
    mask: AtomicU64,
}

impl Before {
    const fn new() -> Before {
        Before {
            handler: AtomicUsize::new(libc::SIG_DFL),
            flags: AtomicI32::new(0),
            mask: AtomicU64::new(0),
        }
    }

    fn set(&self, action: &libc::sigaction) {
        self.flags.store(action.sa_flags, Ordering::Relaxed);
        self.mask
            .store(bits(&raw const action.sa_mask), Ordering::Relaxed);
        self.handler.store(action.sa_sigaction, Ordering::Release);
    }

    /// As sigaction(2) would tell it.
    fn get(&self) -> libc::sigaction {
        // SAFETY: all-zero bytes are an action; a set begins with the kernel's part.
        unsafe {
            let mut action: libc::sigaction = mem::zeroed();
            action.sa_sigaction = self.handler.load(Ordering::Acquire);
            action.sa_flags = self.flags.load(Ordering::Relaxed);
            let mask = (&raw mut action.sa_mask).cast::<u64>();
            mask.write(self.mask.load(Ordering::Relaxed));
            action
        }
    }
}

/// Whether exactly those signals are blocked that are in this handler: another library's copy of
/// it has called this one.
fn waits() -> bool {
    let blocked = blocked();
    // The kernel and the C library let nobody block these: signal(7), nptl(7).
    let never = bit(libc::SIGKILL) | bit(libc::SIGSTOP) | bit(32) | bit(33);
    blocked | never == !synchronous() | never
}

static BEFORE: [[Before; LEVELS]; 2] = [const { [const { Before::new() }; LEVELS] }; 2];
/// How many levels are in use, for each signal.
static USED: Levels = Levels::new();

/// A fault of an instruction that is not one of this crate's, as a [`Server`] sees it.
#[derive(Debug)]
pub struct Trap {
    addr: usize,
    context: *mut ucontext_t,
}

impl Trap {
    /// The address of the access, as the processor tells it: `si_addr` of sigaction(2).
    #[must_use]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The thread's registers, with which it goes on: sigaction(2). Of the structure there is what
    /// the kernel fills, which is less than its whole length.
    #[must_use]
    pub fn context(&self) -> *mut ucontext_t {
        self.context
    }
}

/// Serves a fault and returns true, or leaves it to the program's handler. It runs in the signal's
/// handler, in a thread that was interrupted anywhere. Signals other than those of faults are
/// blocked, unless a handler of the program's has passed the fault on.
pub type Server = fn(&Trap) -> bool;

/// The [`Server`], or null.
static SERVER: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Lets `server` see each SIGSEGV of a load or store, before the program's handler does; another
/// call names another one. Faults in this crate's routines are not shown to it: their copy fails.
/// Thread-safe. [`install`] installs the handler.
pub fn serve_by(server: Server) {
    SERVER.store(server as *mut (), Ordering::Release);
}

fn served(info: *mut siginfo_t, context: *mut c_void) -> bool {
    let server = SERVER.load(Ordering::Acquire);
    if server.is_null() {
        return false;
    }
    // SAFETY: nothing else is stored there than a `Server`; faults have an address.
    let (server, addr) = unsafe { (mem::transmute::<*mut (), Server>(server), (*info).si_addr()) };
    server(&Trap {
        addr: addr.addr(),
        context: context.cast(),
    })
}

/// Sees to it that faults in this crate's routines are recovered from: installs the handler of
/// SIGSEGV and SIGBUS in front of the program's own, unless it is there. To be called now and then
/// (two cheap system calls), since the program may install another at any time, which gets all
/// other faults as before. Thread-safe.
pub fn install() {
    let mut used = USED.lock();
    if used.get() == [0; 2] {
        routines::find_features();
    }
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        let level = used.get()[index];
        let Some(current) = action_of(signal) else {
            continue;
        };
        let ours = |handler: &Handler| *handler as usize == current.sa_sigaction;
        if level == LEVELS || HANDLERS.iter().any(ours) {
            continue;
        }
        BEFORE[index][level].set(&current);
        let action = in_front_of(&current, HANDLERS[level]);
        if let Some(before) = replace(signal, &action) {
            BEFORE[index][level].set(&before);
            used.set(index, level + 1);
        }
    }
}

/// What sigaction(2) does, for a program that is not to know of this handler, and whose own is not
/// to get in front of it: `new` becomes what gets other faults than this crate's. Returns what did
/// so far, as the program had asked for it. `None`, and nothing is done, where this handler is not
/// the one that the kernel calls, or was installed by a process that this one is a child of: then
/// sigaction(2) itself is right.
///
/// May be called in handlers, and by a child of vfork(2). Thread-safe.
pub fn exchange(signal: c_int, new: Option<&libc::sigaction>) -> Option<libc::sigaction> {
    let index = SIGNALS.iter().position(|one| *one == signal)?;
    let used = USED.lock_own()?;
    let level = used.get()[index].checked_sub(1)?;
    if !is_front(signal, HANDLERS[level]) {
        return None;
    }
    let before = &BEFORE[index][level];
    let old = before.get();
    if let Some(new) = new {
        before.set(new);
        replace(signal, &in_front_of(new, HANDLERS[level]))?;
    }
    Some(old)
}

/// The action of a level in front of what a signal did so far: the kernel itself sees to the stack
/// and the system calls that go on, as the program has asked for its own handler. All signals wait
/// but those of faults, so that no handler of the program's comes between, whose faults would need
/// as much of the stack again; and a fault in a server does not end the process. The program's own
/// handler finds those signals blocked that it asked for.
fn in_front_of(current: &libc::sigaction, handler: Handler) -> libc::sigaction {
    let kept = match current.sa_sigaction {
        // Threads may have small stacks.
        libc::SIG_DFL => libc::SA_ONSTACK,
        // What is ignored interrupts no system call.
        libc::SIG_IGN => libc::SA_ONSTACK | libc::SA_RESTART,
        _ => current.sa_flags & (libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART),
    };
    let mut action = libc::sigaction {
        sa_sigaction: handler as usize,
        sa_flags: libc::SA_SIGINFO | libc::SA_NODEFER | kept,
        ..*current
    };
    let mask = &raw mut action.sa_mask;
    // SAFETY: a set begins with the kernel's part.
    unsafe { mask.cast::<u64>().write(!synchronous()) };
    action
}

fn action_of(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: the structure is plain memory, filled if the call succeeds.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        (libc::sigaction(signal, ptr::null(), &raw mut action) == 0).then_some(action)
    }
}

/// Has the kernel take an action; returns the one before.
fn replace(signal: c_int, action: &libc::sigaction) -> Option<libc::sigaction> {
    // SAFETY: both structures are plain memory; the handlers call only what one may.
    unsafe {
        let mut before: libc::sigaction = mem::zeroed();
        (libc::sigaction(signal, action, &raw mut before) == 0).then_some(before)
    }
}

extern "C" fn on_fault<const LEVEL: usize>(
    signal: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel shows a handler with SA_SIGINFO both structures.
    let code = unsafe { (*info).si_code };
    let synchronous = code > 0 && !(signal == libc::SIGBUS && code == NOT_UNDER_THIS_INSTRUCTION);
    if synchronous {
        // SAFETY: as above; nobody else uses the context meanwhile.
        let interrupted = unsafe { &mut *context.cast::<ucontext_t>() };
        let at = routines::instruction(interrupted);
        if ((&raw const BEGIN).addr()..(&raw const END).addr()).contains(&at) {
            // SAFETY: faults have an address.
            let addr = unsafe { (*info).si_addr() };
            routines::fail(interrupted, addr.addr());
            return;
        }
        if signal == libc::SIGSEGV && served(info, context) {
            return;
        }
    }
    let index = usize::from(signal != libc::SIGSEGV);
    let before = &BEFORE[index][LEVEL];
    let handler = handler_of(before, signal, HANDLERS[LEVEL]);
    if handler == libc::SIG_IGN && !synchronous {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        end(signal, synchronous, info);
        return;
    }
    if is_front(signal, HANDLERS[LEVEL]) || waits() {
        let asked = before.mask.load(Ordering::Relaxed);
        let own = if before.flags.load(Ordering::Relaxed) & libc::SA_NODEFER == 0 {
            bit(signal)
        } else {
            0
        };
        // SAFETY: as above; the kernel's part of the set is there.
        let interrupted = bits(unsafe { &raw const (*context.cast::<ucontext_t>()).uc_sigmask });
        block(interrupted | asked | own);
    }
    // The kernel passes all three to handlers without SA_SIGINFO, too.
    // SAFETY: the address of a handler of the program's.
    let handler = unsafe { mem::transmute::<usize, Handler>(handler) };
    handler(signal, info, context);
}

/// The handler that a level is in front of, or SIG_DFL, SIG_IGN. One with SA_RESETHAND has its turn
/// once, where it is the kernel that calls it: one that another handler of the program calls stays.
fn handler_of(before: &Before, signal: c_int, level: Handler) -> usize {
    if before.flags.load(Ordering::Relaxed) & libc::SA_RESETHAND != 0 && is_front(signal, level) {
        return before.handler.swap(libc::SIG_DFL, Ordering::AcqRel);
    }
    before.handler.load(Ordering::Acquire)
}

/// Whether it is a level that the kernel calls.
fn is_front(signal: c_int, level: Handler) -> bool {
    action_of(signal).is_some_and(|action| action.sa_sigaction == level as usize)
}

/// What the signal does by default: it ends the process where the handler returns to, and tells a
/// debugger or a core file what it told the handler.
fn end(signal: c_int, synchronous: bool, info: *mut siginfo_t) {
    // SAFETY: system calls that are allowed in a handler, and all-zero bytes for an action: the
    // default.
    unsafe {
        replace(signal, &mem::zeroed());
        // Of a fault the instruction runs again.
        if !synchronous {
            // Another one does when the handler has returned.
            block(!0);
            // The C library has a function for the second only from 2.30 on.
            let (own, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
            let again = libc::SYS_rt_tgsigqueueinfo;
            if libc::syscall(again, own, thread, signal, info) != 0 {
                libc::raise(signal);
            }
        }
    }
}
