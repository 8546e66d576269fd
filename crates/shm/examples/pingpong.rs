//! Ping-pong between two processes: a bare cache line, and ring records of several sizes.
//!
//! `cargo run --release -p causeway-shm --example pingpong [ROUNDS [ITERATIONS]]` prints, for each
//! round, medians of one-way times in nanoseconds. The bare figure of the same round is the limit
//! to compare with: on virtual machines the distance of two processors changes under one's feet.

#[cfg(not(any(loom, shuttle)))]
fn main() {
    let mut args = std::env::args()
        .skip(1)
        .map(|a| a.parse::<usize>().expect("a number"));
    let rounds = args.next().unwrap_or(3);
    let iterations = args.next().unwrap_or(20_000);
    bench::run(rounds, iterations);
}

#[cfg(any(loom, shuttle))]
fn main() {}

#[cfg(not(any(loom, shuttle)))]
mod bench {
    use causeway_shm::{Attention, Doorbell, Inbox, Ring, Segment, Side, layout, notify};
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Instant;

    /// Bodies: a DDP header of 18 bytes with payloads of 8, 22 (the last in one line), 1024, 4096.
    const SIZES: [usize; 4] = [26, 40, 1042, 4114];
    const WARM_UP: usize = 1000;

    /// Descriptors made before the processes part; neither mapping survives the fork.
    struct Descriptors {
        line: OwnedFd,
        ring: OwnedFd,
        inbox: OwnedFd,
        bell: OwnedFd,
    }

    /// One process's view.
    struct Player {
        line: Arc<Segment>,
        ring: Ring,
        inbox: Inbox,
        bell: Doorbell,
        first: bool,
    }

    impl Player {
        fn new(fds: &Descriptors, first: bool) -> Player {
            let map = |fd: &OwnedFd, len| {
                let fd = fd.as_fd().try_clone_to_owned().expect("a descriptor");
                Arc::new(Segment::map(fd, len).expect("a mapping"))
            };
            let side = if first { Side::A } else { Side::B };
            let ring = map(&fds.ring, layout::ring_len(layout::RING_CAPACITY));
            Player {
                line: map(&fds.line, layout::PAGE),
                ring: Ring::attach(ring, side).expect("a ring"),
                inbox: Inbox::open(map(&fds.inbox, layout::INBOX_LEN)).expect("an inbox"),
                bell: Doorbell::from_fd(fds.bell.as_fd().try_clone_to_owned().expect("a doorbell")),
                first,
            }
        }

        /// The limit: two words, each on a line of its own, each written by one process.
        fn bare(&mut self, iterations: usize) -> Vec<u64> {
            let line = Arc::clone(&self.line);
            let (own, peer) = if self.first { (0, 256) } else { (256, 0) };
            // SAFETY: the words are aligned, in the mapping that `line` holds, and atomic.
            let word = |at: usize| unsafe { AtomicU64::from_ptr(line.as_ptr().add(at).cast()) };
            let base = word(own).load(Ordering::Relaxed);
            play(self.first, iterations, |i, sends| {
                if sends {
                    word(own).store(base + i, Ordering::Release);
                } else {
                    while word(peer).load(Ordering::Acquire) != base + i {
                        std::hint::spin_loop();
                    }
                }
            })
        }

        /// Records of `len` bytes through the ring, with the notification of a peer that polls.
        fn ring(&mut self, len: usize, iterations: usize) -> Vec<u64> {
            let out = vec![0x5A; len];
            let mut body = vec![0; len];
            let Player {
                ring, inbox, bell, ..
            } = self;
            play(self.first, iterations, |i, sends| {
                if sends {
                    let slot = ring.tx.reserve(len, len).expect("an honest peer");
                    let mut slot = slot.expect("room");
                    slot.write(0, &out);
                    slot.commit(1, 0, i, len);
                    ring.tx.publish();
                    notify(ring, Attention::DATA, inbox, bell, 0).expect("a doorbell");
                    return;
                }
                loop {
                    if let Some(record) = ring.rx.peek().expect("an honest peer") {
                        assert_eq!(record.len(), len);
                        record.read(0, &mut body);
                        break;
                    }
                    std::hint::spin_loop();
                }
                ring.rx.consume();
                ring.set_req_ack(i);
            })
        }
    }

    /// Sends and waits by turns; times of whole rounds in nanoseconds.
    fn play(first: bool, iterations: usize, mut turn: impl FnMut(u64, bool)) -> Vec<u64> {
        let mut times = Vec::with_capacity(iterations);
        for i in 1..=(WARM_UP + iterations) as u64 {
            let start = Instant::now();
            turn(i, first);
            turn(i, !first);
            if i > WARM_UP as u64 {
                times.push(start.elapsed().as_nanos() as u64);
            }
        }
        times
    }

    /// One-way time: half the median round.
    fn median(mut times: Vec<u64>) -> u64 {
        times.sort_unstable();
        times[times.len() / 2] / 2
    }

    fn pin(cpu: usize) {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        if let Err(e) = rustix::thread::sched_setaffinity(None, &set) {
            eprintln!("not pinned to CPU {cpu}: {e}");
        }
    }

    fn games(player: &mut Player, rounds: usize, iterations: usize) {
        for round in 1..=rounds {
            let bare = median(player.bare(iterations));
            let sizes = SIZES.map(|len| (len, median(player.ring(len, iterations))));
            if player.first {
                let sizes: Vec<_> = sizes.iter().map(|(l, t)| format!("{l} B {t}")).collect();
                println!(
                    "round {round}: bare {bare} ns; ring {} ns",
                    sizes.join(", ")
                );
            }
        }
    }

    pub fn run(rounds: usize, iterations: usize) {
        let own = |segment: &Segment| segment.fd().try_clone_to_owned().expect("a descriptor");
        let fds = Descriptors {
            line: own(&Segment::create("pingpong", layout::PAGE).expect("a segment")),
            ring: own(&Ring::create().expect("a ring")),
            inbox: own(&Inbox::create().expect("an inbox")),
            bell: Doorbell::create()
                .and_then(|b| b.fd().try_clone_to_owned())
                .expect("a doorbell"),
        };
        // SAFETY: there is no other thread yet.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork");
        pin(usize::from(child == 0));
        games(&mut Player::new(&fds, child != 0), rounds, iterations);
        if child != 0 {
            // SAFETY: waits for the child forked above.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
    }
}
