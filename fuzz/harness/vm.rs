//! A guest that does anything with its virtqueues, a broker that talks to it and hangs up, and a
//! QEMU that may end at any moment.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use causeway_broker::vm::device::Device;
use causeway_broker::vm::guest::Admit;
use causeway_broker::vm::ring::Ring;
use causeway_broker::vm::window::WINDOW_BYTES;
use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::limits::MESSAGE_FDS_MAX;
use causeway_fabric::remoting::{Header, Kind, Received, receive, send};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vhost::vhost_user::Backend;
use vhost_user_backend::{VhostUserBackend, VringT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;

/// Entries of a queue.
const ENTRIES: u16 = 64;
/// The queues' places, each with a table of descriptors, rings of what is offered and used.
const QUEUES: [u64; 2] = [0x1000, 0x4000];
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
/// Where requests, answers and events lie.
const REQUEST: u64 = 0x8000;
const ANSWER: u64 = 0x1_0000;
const EVENTS: u64 = 0x1_1000;
const EVENT_BYTES: u32 = 32_880;
/// Bytes of the guest's memory, and a little more behind a hole.
const MEMORY: usize = 0x4_0000;
const BEYOND: u64 = 0x10_0000;
const BEYOND_BYTES: usize = 0x1000;
/// Event number of sessions and doorbells.
const SOURCES: u16 = 3;
const WRITE: u16 = 2;
const NEXT: u16 = 1;
const BEGIN: u16 = 8;
/// Operations with a message.
const SEND: u8 = 3;
const SLEEP: u8 = 13;
const PUNCH: u8 = 15;
/// One more than the last operation.
const OPERATIONS: u8 = 17;
/// Steps of one input; more show nothing new.
const STEPS_MAX: usize = 400;
/// Of a vhost-user message's header.
const HEADER: usize = 12;
const SHMEM_MAP: u32 = 9;
const SHMEM_UNMAP: u32 = 10;

type Sockets = Arc<Mutex<Vec<OwnedFd>>>;

/// The broker's ends of sessions.
struct Broker(Sockets);

impl Admit for Broker {
    fn admit(&self, socket: OwnedFd, _: u32) -> Result<(), Errno> {
        self.0.lock().expect("one thread").push(socket);
        Ok(())
    }

    fn vm(&self) -> u64 {
        1 << 63
    }

    fn fenced(&self) {}
}

/// A word that a process sleeps on, in what a segment has or a little beyond it. Memory that nobody
/// has written is 0, so that some sleep.
fn word(input: &mut Input) -> Vec<u8> {
    let (offset, expected) = (input.number(2) * 4, input.number(1) & 1);
    [offset.to_le_bytes(), expected.to_le_bytes()].concat()
}

/// Takes the input apart.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |all, at| {
            all | u64::from(self.byte().unwrap_or(0)) << (8 * at)
        })
    }

    fn bytes(&mut self) -> Vec<u8> {
        let count = self.number(1) as usize;
        (0..count).map_while(|_| self.byte()).collect()
    }
}

/// QEMU's end: what it was told to show. It does not answer, and is not waited for.
struct Qemu {
    socket: UnixStream,
    shown: BTreeMap<u64, u64>,
    dead: bool,
}

impl Qemu {
    fn new(device: &Arc<Device<Broker>>) -> Qemu {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        let backend = Backend::from_stream(theirs);
        backend.set_shmem_flag(true);
        backend.set_shared_object_flag(true);
        device.set_backend_req_fd(backend);
        Qemu {
            socket: ours,
            shown: BTreeMap::new(),
            dead: false,
        }
    }

    /// It ends, and its connection with it; the device has not been told yet.
    fn kill(&mut self) {
        self.dead = true;
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Takes what the device asks for: ranges of the window that do not overlap.
    fn obey(&mut self) {
        let mut header = [0; HEADER];
        loop {
            match self.socket.read(&mut header) {
                Ok(HEADER) => {}
                Ok(0) if self.dead => return,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                other => panic!("{other:?}"),
            }
            let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4"));
            let mut body = vec![0; word(8) as usize];
            self.socket.read_exact(&mut body).expect("a body");
            let long = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8"));
            match word(0) {
                SHMEM_MAP => self.show(long(16), long(24)),
                SHMEM_UNMAP => {
                    let shown = self.shown.remove(&long(16));
                    assert_eq!(shown, Some(long(24)), "not shown");
                }
                _ => {}
            }
        }
    }

    fn show(&mut self, offset: u64, length: u64) {
        let end = offset.checked_add(length).expect("no wrap");
        assert!(length > 0 && end <= WINDOW_BYTES, "outside the window");
        let clear = |(&at, &bytes): (&u64, &u64)| end <= at || at + bytes <= offset;
        assert!(self.shown.iter().all(clear), "ranges overlap");
        self.shown.insert(offset, length);
    }
}

struct World {
    memory: GuestMemoryMmap,
    device: Arc<Device<Broker>>,
    queues: [Ring; 2],
    /// What the guest says it has offered.
    offered: [u16; 2],
    sockets: Sockets,
    qemu: Qemu,
}

impl World {
    fn new() -> World {
        let ranges = [
            (GuestAddress(0), MEMORY),
            (GuestAddress(BEYOND), BEYOND_BYTES),
        ];
        let memory = GuestMemoryMmap::from_ranges(&ranges).expect("memory");
        let shared = GuestMemoryAtomic::new(memory.clone());
        let sockets = Sockets::default();
        let device =
            Device::new(shared.clone(), Broker(Arc::clone(&sockets))).expect("descriptors");
        let queue = || Ring::new(shared.clone(), ENTRIES).expect("a queue");
        let qemu = Qemu::new(&device);
        let mut world = World {
            memory,
            device,
            queues: [queue(), queue()],
            offered: [0; 2],
            sockets,
            qemu,
        };
        (0..2).for_each(|q| world.begin(q));
        world
    }

    /// The guest writes; not all of its addresses are memory.
    fn write(&self, at: u64, bytes: &[u8]) {
        let _ = self.memory.write_slice(bytes, GuestAddress(at));
    }

    /// A driver sets a queue up.
    fn begin(&mut self, q: usize) {
        self.write(QUEUES[q] + AVAILABLE, &[0; 4]);
        self.write(QUEUES[q] + USED, &[0; 4]);
        self.offered[q] = 0;
        let queue = &self.queues[q];
        let at = QUEUES[q];
        queue.set_queue_size(ENTRIES);
        queue
            .set_queue_info(at, at + AVAILABLE, at + USED)
            .expect("aligned");
        queue.set_queue_next_avail(0);
        queue.set_queue_next_used(0);
        queue.set_queue_ready(true);
        queue.set_enabled(true);
    }

    fn stop(&self, q: usize) {
        self.queues[q].set_queue_ready(false);
        self.device.stop_vring(q as u32).expect("it stops");
    }

    fn describe(&self, q: usize, index: u16, at: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&at.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&next.to_le_bytes());
        self.write(QUEUES[q] + 16 * u64::from(index), &bytes);
    }

    fn offer(&mut self, q: usize, head: u16) {
        let slot = u64::from(self.offered[q] % ENTRIES);
        let ring = QUEUES[q] + AVAILABLE;
        self.write(ring + 4 + 2 * slot, &head.to_le_bytes());
        self.offered[q] = self.offered[q].wrapping_add(1);
        self.write(ring + 2, &self.offered[q].to_le_bytes());
    }

    fn kick(&mut self, event: u16) {
        let outcome = self
            .device
            .handle_event(event, EventSet::IN, &self.queues, 0);
        assert!(outcome.is_ok(), "the device's thread would end");
        self.qemu.obey();
    }

    /// A request as a driver makes it, of a header and a message.
    fn ask(&mut self, header: &[u8; 48], message: &[u8]) {
        self.write(REQUEST, header);
        self.write(REQUEST + 48, message);
        self.write(ANSWER, &[0xff; 24]);
        self.describe(0, 0, REQUEST, 48 + message.len() as u32, NEXT, 1);
        self.describe(0, 1, ANSWER, 24, WRITE, 0);
        self.offer(0, 0);
        self.kick(0);
    }

    /// The broker sends a session a message, with descriptors, or without room for them.
    fn tell(&self, input: &mut Input) {
        let (which, kinds, body) = (input.number(1) as usize, input.number(1), input.bytes());
        let fds: Vec<OwnedFd> = (0..kinds & 3)
            .map(|at| match kinds >> (2 + 2 * at) & 3 {
                0 => eventfd(0, EventfdFlags::NONBLOCK).expect("descriptors"),
                1 => sealed_memfd("fuzz", 4096).expect("a segment"),
                2 => sealed_memfd("fuzz", 5).expect("a segment"),
                _ => UnixStream::pair().expect("sockets").0.into(),
            })
            .collect();
        let sockets = self.sockets.lock().expect("one thread");
        if sockets.is_empty() {
            return;
        }
        let header = Header {
            kind: if kinds & 0x80 == 0 {
                Kind::Event
            } else {
                Kind::Reply
            },
            service: 1,
            method: 1,
            request: 1,
            status: 0,
            fds: fds.len() as u8,
        };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        // A guest that does not read has no room.
        let _ = send(&sockets[which % sockets.len()], &header.encode(&body), &fds);
    }

    fn step(&mut self, what: u8, input: &mut Input) {
        let q = usize::from(what >> 7);
        match what & 15 {
            0 => self.write(input.number(3), &input.bytes()),
            1 => {
                let (index, at) = (input.number(1) as u16 % ENTRIES, input.number(4));
                let (length, flags) = (input.number(4) as u32, input.number(1) as u16);
                self.describe(q, index, at, length, flags, input.number(2) as u16);
            }
            2 => self.offer(q, input.number(2) as u16),
            3 => {
                self.offered[q] = input.number(2) as u16;
                let at = QUEUES[q] + AVAILABLE + 2;
                self.write(at, &self.offered[q].to_le_bytes());
            }
            4 => self.kick(q as u16),
            5 => self.kick(SOURCES),
            6..=8 => self.ask_for(input),
            9 => self.tell(input),
            10 => drop(self.sockets.lock().expect("one thread").pop()),
            11 => self.stop(q),
            12 => {
                self.queues[q].set_queue_ready(true);
                self.kick(q as u16);
            }
            13 => self.misplace(q, input),
            14 => {
                self.describe(1, q as u16, EVENTS, EVENT_BYTES, WRITE, 0);
                self.offer(1, q as u16);
                self.kick(1);
            }
            _ => self.qemu.kill(),
        }
    }

    /// A request whose words are small enough to meet each other.
    fn ask_for(&mut self, input: &mut Input) {
        let mut header = [0; 48];
        header[0] = input.number(1) as u8 % OPERATIONS;
        header[4] = input.number(1) as u8 % 6;
        header[8] = input.number(1) as u8 % 16;
        header[16..24].copy_from_slice(&(input.number(2) * 2048).to_le_bytes());
        header[24] = input.number(1) as u8 % 6;
        for handle in 0..4 {
            header[28 + 4 * handle] = input.number(1) as u8 % 16;
        }
        let message = match header[0] {
            SEND => {
                // More than a message can have are tried by the request's own count.
                let fds = header[24].min(MESSAGE_FDS_MAX as u8);
                let header = Header {
                    kind: Kind::Request,
                    service: 1,
                    method: 1,
                    request: 1,
                    status: 0,
                    fds,
                };
                header.encode(&input.bytes())
            }
            SLEEP => (0..header[24]).flat_map(|_| word(input)).collect(),
            PUNCH => {
                header[24] = 0;
                (input.number(2) * 2048).to_le_bytes().to_vec()
            }
            _ => Vec::new(),
        };
        header[12..16].copy_from_slice(&(message.len() as u32).to_le_bytes());
        self.ask(&header, &message);
    }

    /// A queue somewhere, of some length.
    fn misplace(&self, q: usize, input: &mut Input) {
        let queue = &self.queues[q];
        let mut place = || input.number(4);
        // Odd addresses are refused.
        let _ = queue.set_queue_info(place(), place(), place());
        queue.set_queue_size(input.number(2) as u16);
        queue.set_queue_next_avail(input.number(2) as u16);
    }

    /// Whatever there was: a driver that begins finds a device that answers and shows nothing, and
    /// all sessions have ended.
    fn finish(mut self) {
        for q in 0..2 {
            self.stop(q);
            self.begin(q);
        }
        let mut header = [0; 48];
        header[0..2].copy_from_slice(&BEGIN.to_le_bytes());
        self.ask(&header, &[]);
        let mut status = [0; 4];
        self.memory
            .read_slice(&mut status, GuestAddress(ANSWER))
            .expect("memory");
        assert_eq!(status, [0; 4], "it does not answer a driver that begins");
        assert!(self.qemu.dead || self.qemu.shown.is_empty(), "shown");
        self.device.end();
        for socket in self.sockets.lock().expect("one thread").drain(..) {
            while let Ok(Received::Message(..)) = receive(&socket) {}
            let after = receive(&socket);
            assert!(!matches!(after, Err(Errno::AGAIN)), "a session is left");
        }
    }
}

/// Carries out what `data` says, step by step.
pub fn run(data: &[u8]) {
    let mut world = World::new();
    let mut input = Input(data);
    for _ in 0..STEPS_MAX {
        let Some(what) = input.byte() else { break };
        world.step(what, &mut input);
    }
    world.finish();
}
