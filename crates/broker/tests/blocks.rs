//! Blocks and DMA as libcauseway has them, against a real broker.

mod common;

use std::os::fd::BorrowedFd;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use causeway::dma::{Buffer, Node, Piece, State};
use causeway::{Access, Block, Library, Mapping, Party, Pool, PoolOptions};
use common::{Host, PATIENCE};
use rustix::net::{Shutdown, SocketAddrUnix, getpeername, shutdown};

const BLOCK: u64 = 64 << 10;
const ROUNDS: u64 = 100;
/// A block that takes a while to be copied.
const LARGE: usize = 64 << 20;
const LARGE_ROUNDS: u32 = 5;
/// A part of that while. If it is too long, a test sees less.
const COPYING: Duration = Duration::from_millis(2);

fn enter(host: &Host) -> (Library, Pool) {
    let library = Library::open_at(Some(&host.address())).unwrap();
    let pool = library
        .create_pool(&PoolOptions::new("p", BLOCK, 4))
        .unwrap();
    (library, pool)
}

fn shared(pool: &Pool) -> (Block, Mapping) {
    let block = pool.allocate().unwrap();
    block.grant(Party::Everybody, Access::Write).unwrap();
    let mapping = block.map(Access::Write).unwrap();
    (block, mapping)
}

/// Waits until something is so.
fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so: {what}");
        std::thread::yield_now();
    }
}

fn word(mapping: &Mapping, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    mapping.read(offset, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

#[test]
fn two_threads_that_move_a_block_leave_all_on_one_memory() {
    let host = Host::with_broker("0");
    let ((_a, pool), (_b, b_pool)) = (enter(&host), enter(&host));
    let (block, own) = shared(&pool);
    let theirs = b_pool.open(block.handle(), Access::Write).unwrap();
    let theirs = theirs.map(Access::Write).unwrap();
    own.write(4096, &7u64.to_ne_bytes()).unwrap();
    for round in 1..=ROUNDS {
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    block.relocate().unwrap();
                });
            }
        });
        assert_eq!(word(&own, 4096), 7, "round {round}");
        own.write(0, &round.to_ne_bytes()).unwrap();
        await_that("the other has followed", || word(&theirs, 0) == round);
        assert_eq!(word(&theirs, 4096), 7);
    }
}

/// A thread opens a block again, another moves it, and the right to write to it is taken away. What
/// the broker answered to the first is worth nothing once the library has let go.
#[test]
fn a_block_that_is_opened_again_has_no_right_that_was_taken_back() {
    let host = Host::with_broker("0");
    let ((a, _), (b, _)) = (enter(&host), enter(&host));
    let options = PoolOptions::new("large", LARGE as u64, 1);
    let (pool, _b_pool) = (
        a.create_pool(&options).unwrap(),
        b.create_pool(&options).unwrap(),
    );
    let [own, other] = [&a, &b].map(|library| Party::Session(library.id().unwrap()));
    let block = pool.allocate().unwrap();
    let mapping = block.map(Access::Write).unwrap();
    for round in 0..LARGE_ROUNDS {
        mapping.write(0, &vec![1; LARGE]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| block.relocate().unwrap());
            std::thread::sleep(COPYING);
            // The library is to let go, once it has moved the block.
            block.grant(own, Access::Read).unwrap();
            block.grant(own, Access::Write).unwrap();
            scope.spawn(|| pool.open(block.handle(), Access::Write));
            std::thread::sleep(COPYING);
            block.grant(own, Access::Read).unwrap();
        });
        await_that("the library has said that it has let go", || {
            block.grant(other, Access::Exclusive).is_ok()
        });
        assert_eq!(block.access(), Access::Read, "round {round}");
        assert!(mapping.write(0, b"x").is_err());
        block.revoke(other).unwrap();
        block.grant(own, Access::Write).unwrap();
        pool.open(block.handle(), Access::Write).unwrap();
        let again = block.map(Access::Write).unwrap();
        assert_eq!(again.as_ptr(), mapping.as_ptr());
    }
}

/// Ends this process's connections to a broker behind the library's back.
fn cut(host: &Host) {
    let socket = host.dir.join(causeway_fabric::runtime::SOCKET_NAME);
    let mut count = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let name = entry.unwrap().file_name();
        let fd = name.to_str().and_then(|name| name.parse().ok()).unwrap();
        // SAFETY: used for two system calls, which say so if it has been closed meanwhile; nobody
        // else connects to this broker.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let peer = getpeername(fd).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddrUnix::try_from(peer).ok());
        let path = peer.as_ref().and_then(SocketAddrUnix::path_bytes);
        if path == Some(socket.as_os_str().as_encoded_bytes()) {
            shutdown(fd, Shutdown::Both).unwrap();
            count += 1;
        }
    }
    assert_eq!(count, 1);
}

fn transfer(node: &Node, source: &Buffer, target: &Buffer) -> causeway::Result<State> {
    let piece = Piece {
        source,
        from: 0,
        target,
        to: 0,
        len: 64,
    };
    node.wait(node.start(&[piece], None)?, Some(PATIENCE))
}

#[test]
fn a_node_that_was_taken_for_dead_goes_on_with_its_buffers() {
    let host = Host::with_broker("0");
    let library = Library::open_at(Some(&host.address())).unwrap();
    let node = Node::join(&library, "cluster", false).unwrap();
    let (first, before) = (node.allocate(BLOCK).unwrap(), node.id());
    cut(&host);
    await_that("it has another life", || {
        // A call connects anew.
        node.nodes().unwrap();
        node.id() != before
    });
    assert_eq!(
        (first.node(), node.id()),
        (node.id(), library.id().unwrap())
    );
    let found = node.find(first.id()).unwrap();
    let second = node.allocate(BLOCK).unwrap();
    for (source, target) in [(&first, &second), (&second, &first), (&found, &second)] {
        let state = transfer(&node, source, target);
        assert!(matches!(state, Ok(State::Done)), "{state:?}");
    }
}
