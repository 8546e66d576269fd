//! The system calls, raw: libraries that hook the C library's functions must not see them, and libc
//! has none for memory policies.

use rustix::io::Errno;

/// The processes whose mappings may be in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Pages that only one page table has an entry for, once.
    Own,
    /// All (`CAP_SYS_NICE`).
    All,
}

/// `MPOL_DEFAULT` and `MPOL_LOCAL` of linux/mempolicy.h.
const MPOL_DEFAULT: libc::c_long = 0;
const MPOL_LOCAL: libc::c_long = 4;
/// Flags of mbind.
const MPOL_MF_STRICT: libc::c_long = 1 << 0;
const MPOL_MF_MOVE: libc::c_long = 1 << 1;
const MPOL_MF_MOVE_ALL: libc::c_long = 1 << 2;
/// Flag of get_mempolicy.
const MPOL_F_ADDR: libc::c_long = 1 << 1;
/// As many nodes as any kernel is built for (`CONFIG_NODES_SHIFT` is at most 10).
const NODES_MAX: usize = 1024;
const NODE_WORDS: usize = NODES_MAX / 64;

/// The C library's `syscall` takes whole words, and declares none: of an `int` among them the upper
/// half is whatever was in its place. With six of them the last goes through memory, where that is
/// not always zero.
const NONE: libc::c_ulong = 0;

pub fn check(ret: libc::c_long) -> Result<libc::c_long, Errno> {
    if ret >= 0 {
        return Ok(ret);
    }
    let os = std::io::Error::last_os_error().raw_os_error();
    Err(Errno::from_raw_os_error(os.unwrap_or(libc::EIO)))
}

/// The memory policy of a range, as the program has set it.
#[derive(Debug)]
pub struct Policy {
    mode: libc::c_int,
    nodes: [u64; NODE_WORDS],
}

impl Policy {
    /// That of the mapping at an address; the default where the kernel does not say.
    pub fn of(start: usize) -> Policy {
        let mut policy = Policy {
            mode: 0,
            nodes: [0; NODE_WORDS],
        };
        // SAFETY: writes a word and as many bits as are said.
        let got = unsafe {
            let (mode, nodes) = (&raw mut policy.mode, policy.nodes.as_mut_ptr());
            libc::syscall(
                libc::SYS_get_mempolicy,
                mode,
                nodes,
                NODES_MAX,
                start,
                MPOL_F_ADDR,
            )
        };
        if got < 0 {
            policy.mode = 0;
        }
        policy
    }

    /// Sets it again, moving no page.
    pub fn restore(&self, start: usize, len: usize) {
        let mode = libc::c_long::from(self.mode);
        let (nodes, max) = if mode == MPOL_DEFAULT {
            (std::ptr::null(), 0)
        } else {
            // The kernel takes one bit less than it is told of.
            (self.nodes.as_ptr(), NODES_MAX + 1)
        };
        // SAFETY: changes where later pages come from, no contents.
        let _ = unsafe { libc::syscall(libc::SYS_mbind, start, len, mode, nodes, max, NONE) };
    }
}

/// Has every page of a range migrated. EIO: some could not be.
pub fn migrate(start: usize, len: usize, reach: Reach) -> Result<(), Errno> {
    let how = match reach {
        Reach::Own => MPOL_MF_MOVE,
        Reach::All => MPOL_MF_MOVE_ALL,
    };
    let nodes = std::ptr::null::<u64>();
    // SAFETY: contents and addresses stay as they are.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            len,
            MPOL_LOCAL,
            nodes,
            NONE,
            how | MPOL_MF_STRICT,
        )
    };
    check(done).map(|_| ())
}

/// Has huge pages made small that the page table of a range has in parts, if nobody refers to them.
/// Before Linux 6.7, [`migrate`] takes the second part of such a page for one that cannot be moved.
/// The kernel also reckons the pages as not used lately.
pub fn split(start: usize, len: usize) -> Result<(), Errno> {
    let at: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: changes no contents.
    let done = unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_COLD) };
    check(done).map(drop)
}

/// Brings pages into memory and into the page table, as reading would.
pub fn populate(start: usize, len: usize) -> Result<(), Errno> {
    let at: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: changes no contents.
    let done = unsafe { libc::syscall(libc::SYS_madvise, at, len, libc::MADV_POPULATE_READ) };
    match check(done) {
        Err(Errno::INVAL) => touch(start, len),
        done => done.map(|_| ()),
    }
}

/// Linux before 5.14: has the kernel read one byte of each page, which reports what a load of ours
/// would die of.
fn touch(start: usize, len: usize) -> Result<(), Errno> {
    const ONE: libc::c_ulong = 1;
    // SAFETY: a plain system call.
    let own = unsafe { libc::getpid() };
    let mut byte = 0u8;
    for page in (start..start + len).step_by(crate::PAGE) {
        let to = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let from = libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(page),
            iov_len: 1,
        };
        // SAFETY: both vectors are valid; what is at `page` is only read.
        let read = unsafe {
            libc::syscall(
                libc::SYS_process_vm_readv,
                own,
                &raw const to,
                ONE,
                &raw const from,
                ONE,
                NONE,
            )
        };
        check(read)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    /// A page that exists, unmapped when dropped.
    struct Page(*mut libc::c_void);

    impl Page {
        fn new() -> Page {
            let rw = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping where the kernel likes it.
            let at = unsafe {
                mmap_anonymous(std::ptr::null_mut(), PAGE, rw, MapFlags::PRIVATE).expect("a page")
            };
            // SAFETY: the page just mapped.
            unsafe { at.cast::<u8>().write_volatile(1) };
            Page(at)
        }

        fn start(&self) -> usize {
            self.0.expose_provenance()
        }
    }

    impl Drop for Page {
        fn drop(&mut self) {
            // SAFETY: the test's own.
            let _ = unsafe { munmap(self.0, PAGE) };
        }
    }

    /// Leaves ones in memory where the next call has its arguments.
    #[inline(never)]
    fn soil_stack() {
        const WORDS: usize = 1024;
        let mut words = [0; WORDS];
        std::hint::black_box(&mut words).fill(u64::MAX);
        std::hint::black_box(&words);
    }

    #[test]
    fn a_page_is_read_as_kernels_before_5_14_need_it() {
        let page = Page::new();
        soil_stack();
        assert_eq!(touch(page.start(), PAGE), Ok(()));
    }

    #[test]
    fn a_memory_policy_comes_back() {
        let page = Page::new();
        let before = Policy::of(page.start());
        // The policy is set even if somebody refers to the page at this moment.
        let _ = migrate(page.start(), PAGE, Reach::Own);
        assert_ne!(Policy::of(page.start()).mode, before.mode);
        soil_stack();
        before.restore(page.start(), PAGE);
        let after = Policy::of(page.start());
        assert_eq!((after.mode, after.nodes), (before.mode, before.nodes));
    }
}
