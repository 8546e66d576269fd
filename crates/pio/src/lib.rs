//! Software windows: remote memory that the program loads from and stores to, reached only by
//! READ and WRITE.
//!
//! A [`Window`] is a range of addresses that the program may not access. Its loads and stores raise
//! SIGSEGV, and the handler of the crate `recover` shows them to this one, which serves each in one
//! of these ways:
//!
//! - A **trap** carries out a move between the range and a register, or a comparison: exactly the
//!   bytes of a store are posted as one WRITE, in the program's order; a load is a READ of its
//!   bytes.
//! - From a store whose instruction was trapped before, the handler goes on through the **loop**
//!   that it seems to be in: it interprets what follows as long as that stores to the window. Many
//!   stores of a page are posted together.
//! - A **string** instruction (`rep movs`, `rep stos`) is carried out as a whole in one trap.
//! - Anything else **opens** its page: the page is read, a twin is kept, and the program may access
//!   it. At the next sync point ([`sync`]), or after 1 ms ([`close_due`]), the page is closed, and
//!   the bytes are sent that differ from the twin. So is a page with many trapped stores
//!   ([`limits::STORES`]).
//! - A page of which many words are loaded ([`limits::LOADS`]), or the same ones again and again
//!   ([`limits::POLLS`]), becomes **readable** for the same time.
//!
//! Stores have to be caught one by one because a program may store the value that is there already:
//! the writer of a mailbox sets a flag which the reader has reset *in its own memory*. A page that
//! is only compared with what it was does not show that.
//!
//! # What does not hold
//! - Of an *open* page, a byte that its owner has changed since it was read, and that the program
//!   stores again with its old value before a sync point, is not sent. A store to a word that was
//!   stored to already in this interval keeps its page from being opened by number, so this needs
//!   more than 32 stores in between, or a read-modify-write.
//! - Stores of a loop that are posted together arrive in no order: who needs one calls [`sync`] in
//!   between.
//! - The differences of an open page are sent by ascending address, not in the order in which they
//!   were stored, and a word may be sent in parts: who needs order calls [`sync`] in between, as on
//!   hardware that combines writes.
//! - Read-modify-write is not atomic to others, as it is not over a bus.
//! - System calls find what the program would, or EFAULT where the page is closed.
//! - A thread that blocks SIGSEGV cannot touch a window: the kernel ends the process.
//! - Processors other than x86-64 have no traps: each access opens its page.
//!
//! # Signals and locks
//! The handler takes one lock, its window's. All who take it block the thread's signals first
//! ([`Blocked`]), so no handler of the program's runs in a thread that has it, and they touch no
//! window meanwhile: a copy from or to the program's memory goes through `recover`, whose faults
//! make the copy fail and are not served. No thread has two of these locks. Nothing is allocated in
//! the handler, which uses no stdio; `errno` and all registers stay as they were.
//!
//! # Fork
//! A child made by fork(2) has the windows at their addresses, but they are lost to it: its stores
//! vanish and its loads give ones. The parent's go on.

mod backing;
mod clock;
mod copies;
mod core;
#[cfg(target_arch = "x86_64")]
mod decode;
mod difference;
mod elements;
mod forks;
mod handler;
#[cfg(target_arch = "x86_64")]
mod interpret;
pub mod limits;
#[cfg(target_arch = "x86_64")]
mod loads;
#[cfg(target_arch = "x86_64")]
mod loops;
mod memory;
mod pages;
#[cfg(target_arch = "x86_64")]
mod registers;
mod remote;
mod signals;
#[cfg(target_arch = "x86_64")]
mod strings;
mod table;
#[cfg(target_arch = "x86_64")]
mod trap;
mod window;

pub use clock::set_bell;
pub use copies::{copy, exist, fill, is_inside};
pub use remote::{Lost, Remote};
pub use signals::Blocked;
pub use window::{Options, Window, close_due, deadline, install, sync};
