//! A limit on the size of files, which holds for segments too (`setrlimit(2)`, RLIMIT_FSIZE).

use causeway_shm::segment::{Segment, SegmentError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: u64 = 65536;

/// Makes a process of its own for what cannot be undone in this one; how it ended.
fn in_a_child(good: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the only test of this program has no other threads that hold locks, and the child
    // ends without unwinding.
    match unsafe { libc::fork() } {
        0 => {
            let failed = i32::from(!good());
            // SAFETY: it ends the child.
            unsafe { libc::_exit(failed) }
        }
        child => {
            let mut status = -1;
            // SAFETY: the child is ours, and the status a variable of ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn what_exceeds_it_is_refused_without_a_signal() {
    let ended = in_a_child(|| {
        let maximum = getrlimit(Resource::Fsize).maximum;
        let limit = Rlimit {
            current: Some(LIMIT),
            maximum,
        };
        let limited = setrlimit(Resource::Fsize, limit).is_ok();
        let made = Segment::create("small", LIMIT as usize);
        let refused = Segment::create("large", LIMIT as usize * 2);
        let too_large = |error: &std::io::Error| error.raw_os_error() == Some(libc::EFBIG);
        limited
            && made.is_ok()
            && matches!(refused, Err(SegmentError::Call { error, .. }) if too_large(&error))
    });
    assert_eq!(ended, 0, "killed by a signal, or not refused with EFBIG");
}
