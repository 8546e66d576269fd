//! A peer's process, whose memory this one may read where it is (`process_vm_readv(2)`).
//!
//! Memory that is in no segment takes a message to the peer, whose thread has to wake. Inside a
//! trust boundary the kernel lets one process read the other's memory, so a READ of it is made so.
//! Nothing is written in this way: a process that is stopped in the middle of a write would store
//! into memory that its owner has given up long since.
//!
//! The kernel finds the process by a number, which may be another process's by now, and the process
//! may have executed another program. So each call also reads a word that is found in the peer's
//! process alone ([`Proof`]).

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_proto::Bytes;
use causeway_shm::ring::Proof;

/// Turns reading of other processes' memory off: `off`.
const VARIABLE: &str = "CAUSEWAY_CMA";
/// Most bytes that one call of the system reads, by way of the stack.
const PIECE: usize = 8 << 10;
/// No word of 8 bytes lies in two pieces.
const ALIGNMENT: u64 = 8;
/// Bytes up to which a READ is made twice: the kernel may copy a word in pieces, and what it copied
/// while the owner wrote differs from what is there a moment later.
const TWICE: usize = 64;
/// How often what differed is read again.
const TRIES: usize = 4;

/// Whether the setting allows it.
pub(crate) fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    let is_off = || causeway_fabric::setting(VARIABLE).is_some_and(|value| value == "off");
    *ALLOWED.get_or_init(|| !is_off())
}

/// A peer's process.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    /// Its number in this process's PID namespace.
    pid: libc::pid_t,
    /// The kernel does not let this process read that one's memory, it has ended, or has executed
    /// another program.
    refused: AtomicBool,
}

impl PeerProcess {
    /// The process that a descriptor names. None if this process cannot name it.
    pub fn of(pidfd: &OwnedFd) -> Option<PeerProcess> {
        let info = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
        Some(PeerProcess {
            pid: pid_in(&fs::read_to_string(info).ok()?)?,
            refused: AtomicBool::new(false),
        })
    }

    /// Whether its memory can be read, as far as is known.
    pub fn is_readable(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Reads `len` bytes at an address of the process, and hands them out piece by piece, with the
    /// offset of each. `prove` is asked for each call what only that process has. `None` if the
    /// bytes cannot be read.
    pub fn read<E>(
        &self,
        addr: u64,
        len: usize,
        prove: impl Fn() -> Option<Proof>,
        mut take: impl FnMut(usize, Bytes<'_>) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let mut room = [MaybeUninit::<u8>::uninit(); PIECE];
        let mut offset = 0;
        while offset < len {
            let from = addr.checked_add(offset as u64)?;
            let most = PIECE - (from % ALIGNMENT) as usize;
            let piece = &mut room[..most.min(len - offset)];
            self.read_piece(from, piece, &prove)?;
            // SAFETY: all of the piece has just been written, and is written no more while this
            // is there.
            let bytes = unsafe { Bytes::from_raw(piece.as_ptr().cast(), piece.len()) };
            if let Err(why) = take(offset, bytes) {
                return Some(Err(why));
            }
            offset += piece.len();
        }
        Some(Ok(()))
    }

    /// Fills a piece of memory from an address of the process. `None` if that cannot be done, or
    /// the process is not the one meant.
    fn read_piece(
        &self,
        addr: u64,
        piece: &mut [MaybeUninit<u8>],
        prove: &impl Fn() -> Option<Proof>,
    ) -> Option<()> {
        if piece.len() > TWICE {
            return self.read_ranges(addr, &mut [piece], prove()?);
        }
        let mut room = [MaybeUninit::<u8>::uninit(); TWICE];
        let again = &mut room[..piece.len()];
        for _ in 0..TRIES {
            self.read_ranges(addr, &mut [piece, again], prove()?)?;
            // SAFETY: all of both has just been written.
            if unsafe { written(piece) == written(again) } {
                return Some(());
            }
        }
        None
    }

    /// Fills each of up to two pieces of memory from the same address.
    fn read_ranges(
        &self,
        addr: u64,
        pieces: &mut [&mut [MaybeUninit<u8>]],
        proof: Proof,
    ) -> Option<()> {
        let mut word = 0_u64;
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let (mut into, mut from) = ([nothing; 3], [nothing; 3]);
        let at = |addr: u64| std::ptr::without_provenance_mut(addr as usize);
        let range = |iov_base, iov_len| libc::iovec { iov_base, iov_len };
        let count = pieces.len();
        for (index, piece) in pieces.iter_mut().enumerate() {
            into[index] = range(piece.as_mut_ptr().cast(), piece.len());
            from[index] = range(at(addr), piece.len());
        }
        into[count] = range((&raw mut word).cast(), size_of_val(&word));
        from[count] = range(at(proof.at), size_of_val(&word));
        let all: usize = into.iter().map(|range| range.iov_len).sum();
        let ranges = count as libc::c_ulong + 1;
        // SAFETY: the kernel writes to the pieces and the word, which are there for the length of
        // the call and which nobody else refers to. The addresses of the other process it checks.
        let got = unsafe {
            libc::process_vm_readv(self.pid, into.as_ptr(), ranges, from.as_ptr(), ranges, 0)
        };
        let why = (got < 0).then(|| io::Error::last_os_error().raw_os_error());
        let is_refused = matches!(why, Some(Some(libc::EPERM | libc::ESRCH | libc::ENOSYS)));
        let got = usize::try_from(got).unwrap_or(0);
        // The bytes are there, and the word is not: it is another process.
        let is_other = got + size_of_val(&word) >= all && word != proof.word;
        if is_refused || is_other {
            self.refused.store(true, Ordering::Relaxed);
        }
        (got == all && !is_other).then_some(())
    }
}

/// # Safety
/// All of the memory has been written.
unsafe fn written(memory: &[MaybeUninit<u8>]) -> &[u8] {
    // SAFETY: initialized, as the caller says.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().cast(), memory.len()) }
}

/// The number of a process, as what the kernel says of a pidfd has it (`proc_pid_fdinfo(5)`). It is
/// 0 for a process of another PID namespace, and -1 for one that has ended.
fn pid_in(info: &str) -> Option<libc::pid_t> {
    let number = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    number.trim().parse().ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

    use super::*;

    fn process(pid: Pid) -> PeerProcess {
        PeerProcess::of(&pidfd_open(pid, PidfdFlags::empty()).unwrap()).unwrap()
    }

    /// A word of this process that is another one at each call, as those of a ring are.
    struct Proving(Cell<u64>);

    impl Proving {
        fn next(&self) -> Option<Proof> {
            self.0.set(self.0.get() + 1);
            let at = self.0.as_ptr().expose_provenance() as u64;
            let word = self.0.get();
            Some(Proof { at, word })
        }
    }

    /// What is read of so many bytes at an address.
    fn read(
        process: &PeerProcess,
        addr: usize,
        len: usize,
        prove: impl Fn() -> Option<Proof>,
    ) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        let read = process.read(addr as u64, len, prove, |offset, bytes| {
            assert_eq!(offset, found.len());
            found.extend(bytes.to_vec());
            Ok::<(), ()>(())
        });
        read.map(|_| found)
    }

    #[test]
    fn memory_is_read_in_pieces_of_any_length() {
        let (process, proving) = (process(getpid()), Proving(Cell::new(6)));
        let bytes: Vec<u8> = (0..4 * PIECE).map(|at| (at % 251) as u8).collect();
        for len in [0, 1, TWICE, TWICE + 1, PIECE, PIECE + 1, 3 * PIECE] {
            for from in [0, 1, 9] {
                let found = read(&process, bytes[from..].as_ptr().addr(), len, || {
                    proving.next()
                });
                assert_eq!(found.as_deref(), Some(&bytes[from..from + len]));
            }
        }
    }

    #[test]
    fn nothing_is_read_where_nothing_is_or_nothing_can_be_proved() {
        let (process, proving) = (process(getpid()), Proving(Cell::new(6)));
        assert_eq!(read(&process, 8, 8, || proving.next()), None);
        assert_eq!(read(&process, usize::MAX - 3, 8, || proving.next()), None);
        let word = 7_u64;
        let addr = std::ptr::from_ref(&word).addr();
        assert_eq!(read(&process, addr, 8, || None), None);
        assert!(process.is_readable(), "it may be elsewhere");
    }

    #[test]
    fn nothing_is_read_of_a_process_that_is_not_the_one_meant() {
        let (own, proving) = (process(getpid()), Proving(Cell::new(6)));
        let word = 7_u64;
        let addr = std::ptr::from_ref(&word).addr();
        assert!(read(&own, addr, 8, || proving.next()).is_some());
        // What was there for the call before, as a copy would have it.
        let copied = || {
            let before = proving.next()?;
            proving.next()?;
            Some(before)
        };
        assert_eq!(read(&process(getpid()), addr, 8, copied), None);
        let elsewhere = || {
            Some(Proof {
                at: 8,
                ..proving.next()?
            })
        };
        assert_eq!(read(&process(getpid()), addr, 8, elsewhere), None);
        // A child has the memory, and not what is stored after it was made.
        // SAFETY: the child does nothing but pause, which it may after fork(2).
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: has no preconditions.
                unsafe { libc::pause() };
            }
        }
        let forked = process(Pid::from_raw(child).unwrap());
        assert_eq!(read(&forked, addr, 8, || proving.next()), None);
        assert!(!forked.is_readable(), "it has another word");
        // SAFETY: a child of this process's, which nobody else waits for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
        let mut program = Command::new("cat");
        let mut program = program.stdin(Stdio::piped()).spawn().unwrap();
        let executed = process(Pid::from_child(&program));
        assert_eq!(read(&executed, addr, 8, || proving.next()), None);
        drop(program.stdin.take());
        program.wait().unwrap();
        assert_eq!(read(&executed, addr, 8, || proving.next()), None);
        assert!(!executed.is_readable(), "it has ended");
    }

    #[test]
    fn a_process_that_cannot_be_named_is_none() {
        let info = |pid: i32| format!("pos:\t0\nflags:\t02\nPid:\t{pid}\nNSpid:\t{pid}\n");
        assert_eq!(pid_in(&info(4711)), Some(4711));
        assert_eq!((pid_in(&info(0)), pid_in(&info(-1))), (None, None));
        assert_eq!(pid_in("pos:\t0\n"), None);
    }
}
