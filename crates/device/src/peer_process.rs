//! A peer's process, whose memory this one may read where it is (`process_vm_readv(2)`).
//!
//! Memory that is in no segment takes a message to the peer, whose thread has to wake. Inside a
//! trust boundary the kernel lets one process read the other's memory, so a READ of it is made so.
//! Nothing is written in this way: a process that is stopped in the middle of a write would store
//! into memory that its owner has given up long since.
//!
//! The kernel finds the process by a number, which may be another process's by now, and the process
//! may have executed another program. So each call also reads the words by which the endpoint's
//! process can be told ([`Proof`]).

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use causeway_proto::Bytes;
use causeway_shm::Proof;

/// Turns reading of other processes' memory off: `off`.
const VARIABLE: &str = "CAUSEWAY_CMA";
/// Most bytes that one call of the system reads, by way of the stack.
const PIECE: usize = 8 << 10;
/// Bytes up to which a READ is made twice: the kernel may copy a word in pieces, and what it copied
/// while the owner wrote differs from what is there a moment later.
const TWICE: usize = 64;
/// How often what differed is read again.
const TRIES: usize = 4;

/// Whether the setting allows it.
fn is_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    let is_off = || causeway_fabric::setting(VARIABLE).is_some_and(|value| value == "off");
    *ALLOWED.get_or_init(|| !is_off())
}

/// Words of this process, by which peers tell it from another of the same number.
#[derive(Debug)]
pub(crate) struct Identity(Box<[u64; 2]>);

impl Identity {
    /// None where peers are not to read this process's memory, or the kernel has no random numbers.
    pub fn new() -> Option<Identity> {
        let mut words = [0; 2];
        let bytes = 16;
        // SAFETY: the words are 16 bytes, and are there for the length of the call.
        let got = unsafe { libc::getrandom(words.as_mut_ptr().cast(), bytes, 0) };
        (is_allowed() && usize::try_from(got) == Ok(bytes)).then(|| Identity(Box::new(words)))
    }

    /// Where they are.
    pub fn proof(&self) -> Proof {
        let words: &[u64; 2] = &self.0;
        Proof {
            at: words.as_ptr().expose_provenance() as u64,
            words: *words,
        }
    }
}

impl Drop for Identity {
    /// Peers that look for them later find others.
    fn drop(&mut self) {
        for word in self.0.iter_mut() {
            // SAFETY: a word of the box.
            unsafe { std::ptr::from_mut(word).write_volatile(0) };
        }
    }
}

/// A peer's process.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    /// Its number in this process's PID namespace.
    pid: libc::pid_t,
    proof: Proof,
    /// The kernel does not let this process read that one's memory, it has ended, or has executed
    /// another program.
    refused: AtomicBool,
}

impl PeerProcess {
    /// The process that a descriptor names and that has these words in its memory. None if this
    /// process cannot name it, or is not to read its memory.
    pub fn of(pidfd: OwnedFd, proof: Proof) -> Option<PeerProcess> {
        let info = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
        let pid = pid_in(&fs::read_to_string(info).ok()?)?;
        is_allowed().then_some(PeerProcess {
            pid,
            proof,
            refused: AtomicBool::new(false),
        })
    }

    /// Whether its memory can be read, as far as is known.
    pub fn is_readable(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Reads `len` bytes at an address of the process, and hands them out piece by piece, with the
    /// offset of each. `None` if they cannot be read.
    pub fn read<E>(
        &self,
        addr: u64,
        len: usize,
        mut take: impl FnMut(usize, Bytes<'_>) -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let mut room = [MaybeUninit::<u8>::uninit(); PIECE];
        let mut offset = 0;
        while offset < len {
            let piece = &mut room[..PIECE.min(len - offset)];
            self.read_piece(addr.checked_add(offset as u64)?, piece)?;
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
    fn read_piece(&self, addr: u64, piece: &mut [MaybeUninit<u8>]) -> Option<()> {
        if piece.len() > TWICE {
            return self.read_ranges(addr, &mut [piece]);
        }
        let mut room = [MaybeUninit::<u8>::uninit(); TWICE];
        let again = &mut room[..piece.len()];
        for _ in 0..TRIES {
            self.read_ranges(addr, &mut [piece, again])?;
            // SAFETY: all of both has just been written.
            if unsafe { written(piece) == written(again) } {
                return Some(());
            }
        }
        None
    }

    /// Fills each of up to two pieces of memory from the same address.
    fn read_ranges(&self, addr: u64, pieces: &mut [&mut [MaybeUninit<u8>]]) -> Option<()> {
        let mut words = [0_u64; 2];
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
        into[count] = range(words.as_mut_ptr().cast(), size_of_val(&words));
        from[count] = range(at(self.proof.at), size_of_val(&words));
        let all: usize = into.iter().map(|range| range.iov_len).sum();
        let ranges = count as libc::c_ulong + 1;
        // SAFETY: the kernel writes to the pieces and the words, which are there for the length of
        // the call and which nobody else refers to. The addresses of the other process it checks.
        let got = unsafe {
            libc::process_vm_readv(self.pid, into.as_ptr(), ranges, from.as_ptr(), ranges, 0)
        };
        let why = (got < 0).then(|| io::Error::last_os_error().raw_os_error());
        let is_refused = matches!(why, Some(Some(libc::EPERM | libc::ESRCH | libc::ENOSYS)));
        let got = usize::try_from(got).unwrap_or(0);
        // The bytes are there, and the words are not: it is another process.
        let is_other = got + size_of_val(&words) >= all && words != self.proof.words;
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
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

    use super::*;

    fn process(pid: Pid, proof: Proof) -> PeerProcess {
        PeerProcess::of(pidfd_open(pid, PidfdFlags::empty()).unwrap(), proof).unwrap()
    }

    /// What is read of so many bytes at an address.
    fn read(process: &PeerProcess, addr: usize, len: usize) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        let read = process.read(addr as u64, len, |offset, bytes| {
            assert_eq!(offset, found.len());
            found.extend(bytes.to_vec());
            Ok::<(), ()>(())
        });
        read.map(|_| found)
    }

    #[test]
    fn memory_is_read_in_pieces_of_any_length() {
        let identity = Identity::new().unwrap();
        let process = process(getpid(), identity.proof());
        let bytes: Vec<u8> = (0..3 * PIECE).map(|at| (at % 251) as u8).collect();
        for len in [0, 1, TWICE, TWICE + 1, PIECE, PIECE + 1, 3 * PIECE] {
            let found = read(&process, bytes.as_ptr().addr(), len);
            assert_eq!(found.as_deref(), Some(&bytes[..len]));
        }
    }

    #[test]
    fn nothing_is_read_where_nothing_is() {
        let identity = Identity::new().unwrap();
        let process = process(getpid(), identity.proof());
        assert_eq!(read(&process, 8, 8), None);
        assert_eq!(read(&process, usize::MAX - 3, 8), None);
        assert!(process.is_readable(), "it may be elsewhere");
    }

    #[test]
    fn nothing_is_read_of_a_process_that_is_not_the_one_meant() {
        let identity = Identity::new().unwrap();
        let word = 7_u64;
        let addr = std::ptr::from_ref(&word).addr();
        let own = process(getpid(), identity.proof());
        assert!(read(&own, addr, 8).is_some());
        let mut other = Proof {
            words: [1, 2],
            ..identity.proof()
        };
        assert_eq!(read(&process(getpid(), other), addr, 8), None);
        other.at = 8;
        assert_eq!(read(&process(getpid(), other), addr, 8), None);
        // One that has executed another program.
        let program = Command::new("cat").stdin(Stdio::piped()).spawn();
        let mut program = program.unwrap();
        let executed = process(Pid::from_child(&program), identity.proof());
        assert_eq!(read(&executed, addr, 8), None);
        drop(program.stdin.take());
        program.wait().unwrap();
        assert_eq!(read(&executed, addr, 8), None);
        assert!(!executed.is_readable());
        // An endpoint that has ended.
        drop(identity);
        assert_eq!(read(&own, addr, 8), None);
    }

    #[test]
    fn a_process_that_cannot_be_named_is_none() {
        let info = |pid: i32| format!("pos:\t0\nflags:\t02\nPid:\t{pid}\nNSpid:\t{pid}\n");
        assert_eq!(pid_in(&info(4711)), Some(4711));
        assert_eq!((pid_in(&info(0)), pid_in(&info(-1))), (None, None));
        assert_eq!(pid_in("pos:\t0\n"), None);
    }
}
