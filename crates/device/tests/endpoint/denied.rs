//! Threads to which the kernel answers some system calls with an error, as where something has run
//! out.

/// Runs something in a thread to which these system calls answer so.
pub fn denied<T: Send>(calls: &[i64], errno: i32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            deny(calls, errno);
            run()
        });
        thread.join().unwrap()
    })
}

/// The calling thread has no other answer from now on, nor has what it starts.
fn deny(calls: &[i64], errno: i32) {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let line = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    // The number of the call is the first word of what the filter sees.
    let mut filter = vec![line(load, 0, 0)];
    for call in calls {
        filter.push(line(equal, 1, *call as u32));
        filter.push(line(answer, 0, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    filter.push(line(answer, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: both calls concern this thread alone; the program outlives the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ) == 0
    };
    assert!(done, "seccomp: {}", std::io::Error::last_os_error());
}
