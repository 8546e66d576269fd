//! A machine that attaches as QEMU does, with a guest that writes to its virtqueues what it likes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use causeway_fabric::WirePref;
use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::remoting::{Header, Kind, encode_body};
use causeway_fabric::services::{AttachRequest, CreateSegmentRequest, METHODS, SERVICE};
use causeway_shm::layout::INBOX_LEN;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Host, PATIENCE, readable};

/// Entries of a queue.
pub const ENTRIES: u16 = 64;
/// Bytes of the guest's memory.
pub const MEMORY: usize = 0x4_0000;
/// The queues' places, each with a table of descriptors, rings of what is offered and used.
const QUEUES: [u64; 2] = [0x1000, 0x4000];
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const REQUEST: u64 = 0x8000;
const ANSWER: u64 = 0x1_0000;
const EVENT: u64 = 0x2_0000;
const EVENT_BYTES: u32 = 32_880;
const WRITE: u16 = 2;
const NEXT: u16 = 1;
/// Flag of a used ring: no doorbell for what is offered.
const NO_NOTIFY: u16 = 1;
/// Of a vhost-user message's header, and what it says of an answer.
const HEADER: usize = 12;
const IS_REPLY: u32 = 1 | 4;
const SHMEM_MAP: u32 = 9;
const SHMEM_UNMAP: u32 = 10;

/// Operations of the request queue (docs/VM.md).
pub const OPEN: u8 = 1;
const SEND: u8 = 3;
pub const CREATE: u8 = 4;
const DOORBELL: u8 = 5;
pub const RING: u8 = 7;
pub const BEGIN: u8 = 8;
pub const SHOW: u8 = 9;
pub const LEFT: u8 = 16;
/// Of an event: what the guest is shown ends.
pub const ENDING: u16 = 4;

/// What QEMU does about the window.
#[derive(Debug, Default)]
pub struct Window {
    /// Lengths by offset.
    pub shown: BTreeMap<u64, u64>,
    /// It does not answer for now, but for so many requests.
    pub mute: Option<usize>,
    /// Requests that have come.
    pub asked: usize,
}

/// The window, and what is told when it changes.
#[derive(Default)]
pub struct Qemu {
    window: Mutex<Window>,
    changed: Condvar,
}

impl Qemu {
    /// Changes what it does.
    pub fn change(&self, change: impl FnOnce(&mut Window)) {
        change(&mut self.window.lock().unwrap());
        self.changed.notify_all();
    }

    /// It does not answer any more, when it has answered `left` requests.
    pub fn mute_after(&self, left: usize) {
        self.change(|window| {
            window.mute = Some(left);
            window.asked = 0;
        });
    }

    /// It answers.
    pub fn unmute(&self) {
        self.change(|window| window.mute = None);
    }

    /// Waits until the window is so.
    pub fn wait_for(&self, what: impl Fn(&Window) -> bool) {
        let window = self.window.lock().unwrap();
        let (window, late) = self
            .changed
            .wait_timeout_while(window, PATIENCE, |window| !what(window))
            .unwrap();
        assert!(!late.timed_out(), "{window:?}");
    }

    /// Obeys what comes, until nothing comes any more.
    fn serve(&self, mut socket: UnixStream) {
        let mut header = [0; HEADER];
        while socket.read_exact(&mut header).is_ok() {
            let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
            let (request, bytes) = (word(0), word(8));
            let mut body = vec![0; bytes as usize];
            socket.read_exact(&mut body).unwrap();
            let long = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
            self.change(|window| window.asked += 1);
            let window = self.window.lock().unwrap();
            let mut window = self
                .changed
                .wait_while(window, |window| window.mute == Some(0))
                .unwrap();
            window.mute = window.mute.map(|left| left - 1);
            match request {
                SHMEM_MAP => assert!(window.shown.insert(long(16), long(24)).is_none()),
                SHMEM_UNMAP => assert_eq!(window.shown.remove(&long(16)), Some(long(24))),
                _ => {}
            }
            drop(window);
            self.changed.notify_all();
            let reply = [request, IS_REPLY, 8, 0, 0];
            let bytes: Vec<u8> = reply.iter().flat_map(|word| word.to_le_bytes()).collect();
            if socket.write_all(&bytes).is_err() {
                break;
            }
        }
    }
}

/// The guest's memory, which several of its processors may write at a time.
#[derive(Clone)]
pub struct Memory(pub GuestMemoryMmap);

impl Memory {
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    fn word(&self, at: u64) -> u16 {
        self.0.load(GuestAddress(at), Ordering::Acquire).unwrap()
    }

    fn describe(&self, q: usize, index: u16, at: u64, length: u32, flags: u16) {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&at.to_le_bytes());
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12..14].copy_from_slice(&flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&(index + 1).to_le_bytes());
        self.write(QUEUES[q] + 16 * u64::from(index), &bytes);
    }
}

/// A virtual machine with one device.
pub struct Machine {
    frontend: Frontend,
    pub memory: Memory,
    pub qemu: Arc<Qemu>,
    pub kicks: [EventFd; 2],
    calls: [EventFd; 2],
    offered: AtomicU16,
    events: AtomicU16,
}

impl Machine {
    /// One of the name `name`, whose guest's driver has begun.
    pub fn start(host: &Host, name: &str) -> Machine {
        let info = causeway_fabric::vm::attach(&host.address(), name, "").unwrap();
        let mut frontend = Frontend::connect(&info.socket, 2).unwrap();
        let memory = guest_memory();
        let qemu = negotiate(&mut frontend, &memory);
        let events = || [(); 2].map(|()| EventFd::new(EFD_NONBLOCK).unwrap());
        let mut machine = Machine {
            frontend,
            memory: Memory(memory),
            qemu,
            kicks: events(),
            calls: events(),
            offered: AtomicU16::new(0),
            events: AtomicU16::new(0),
        };
        machine.begin();
        machine
    }

    /// A driver sets the queues up from their beginning.
    pub fn begin(&mut self) {
        for at in QUEUES {
            self.memory.write(at + AVAILABLE, &[0; 4]);
            self.memory.write(at + USED, &[0; 4]);
        }
        self.offered.store(0, Ordering::Relaxed);
        self.events.store(0, Ordering::Relaxed);
        self.resume([0; 2]);
        assert_eq!(self.ask(BEGIN, 0, 0), 0);
    }

    /// QEMU stops the queues, as when it pauses the VM, and keeps where they stood.
    pub fn pause(&self) -> [u16; 2] {
        [0, 1].map(|q| self.frontend.get_vring_base(q).unwrap() as u16)
    }

    /// QEMU gives the queues to the device, with doorbells of their own.
    pub fn resume(&mut self, bases: [u16; 2]) {
        let region = self.memory.0.iter().next().unwrap();
        for (q, base) in bases.into_iter().enumerate() {
            let queue = region.as_ptr() as u64 + QUEUES[q];
            let place = VringConfigData {
                queue_max_size: ENTRIES,
                queue_size: ENTRIES,
                flags: 0,
                desc_table_addr: queue,
                used_ring_addr: queue + USED,
                avail_ring_addr: queue + AVAILABLE,
                log_addr: None,
            };
            self.kicks[q] = EventFd::new(EFD_NONBLOCK).unwrap();
            self.calls[q] = EventFd::new(EFD_NONBLOCK).unwrap();
            self.frontend.set_vring_num(q, ENTRIES).unwrap();
            self.frontend.set_vring_addr(q, &place).unwrap();
            self.frontend.set_vring_base(q, base).unwrap();
            self.frontend.set_vring_call(q, &self.calls[q]).unwrap();
            self.frontend.set_vring_kick(q, &self.kicks[q]).unwrap();
            self.frontend.set_vring_enable(q, true).unwrap();
        }
    }

    /// Puts a request into the queue, about a session or handle; returns when it is to be answered.
    pub fn post(&self, operation: u8, name: u32, size: u64) -> u16 {
        let mut header = [0; 48];
        header[0] = operation;
        header[4..8].copy_from_slice(&name.to_le_bytes());
        header[8..12].copy_from_slice(&name.to_le_bytes());
        header[16..24].copy_from_slice(&size.to_le_bytes());
        self.post_bytes(&header)
    }

    fn post_bytes(&self, request: &[u8]) -> u16 {
        self.memory.write(REQUEST, request);
        self.memory.write(ANSWER, &[0xff; 24]);
        self.memory
            .describe(0, 0, REQUEST, request.len() as u32, NEXT);
        self.memory.describe(0, 1, ANSWER, 24, WRITE);
        self.offer(0, self.offered.fetch_add(1, Ordering::Relaxed))
    }

    /// The first descriptor of a queue is the device's, for the `count`th time, and it hears of it.
    fn offer(&self, q: usize, count: u16) -> u16 {
        self.put(q, count);
        self.kicks[q].write(1).unwrap();
        count.wrapping_add(1)
    }

    fn put(&self, q: usize, count: u16) {
        let ring = QUEUES[q] + AVAILABLE;
        let slot = ring + 4 + 2 * u64::from(count % ENTRIES);
        self.memory.write(slot, &[0; 2]);
        let (offered, at) = (count.wrapping_add(1), GuestAddress(ring + 2));
        self.memory.0.store(offered, at, Ordering::Release).unwrap();
    }

    /// Gives the device a buffer for an event, and waits until there is one: its kind, and the
    /// handle of what is granted first.
    pub fn event(&self) -> (u16, u32) {
        self.memory.describe(1, 0, EVENT, EVENT_BYTES, WRITE);
        let count = self.offer(1, self.events.fetch_add(1, Ordering::Relaxed));
        let (kind, _) = self.wait_for_events(count);
        (kind, self.long_word(EVENT + 20))
    }

    /// A session sends the broker a message; the handle of what its reply grants.
    fn call(&self, session: u32, method: &str, handles: &[u32], body: &[u8]) -> u32 {
        let method = METHODS.iter().find(|m| m.name == method).unwrap();
        let message = Header {
            kind: Kind::Request,
            service: SERVICE,
            method: method.number,
            request: 1,
            status: 0,
            fds: handles.len() as u8,
        };
        let message = message.encode(body);
        let mut request = vec![0; 48];
        request[0] = SEND;
        request[4..8].copy_from_slice(&session.to_le_bytes());
        request[12..16].copy_from_slice(&(message.len() as u32).to_le_bytes());
        request[24..28].copy_from_slice(&(handles.len() as u32).to_le_bytes());
        for (at, handle) in handles.iter().enumerate() {
            request[28 + 4 * at..32 + 4 * at].copy_from_slice(&handle.to_le_bytes());
        }
        request.extend_from_slice(&message);
        assert_eq!(self.answer(self.post_bytes(&request)), 0);
        let (kind, granted) = self.event();
        assert_eq!(kind, 1, "a message");
        granted
    }

    /// A process becomes an endpoint, moves memory to a segment of its own, and is shown it.
    pub fn show_own(&self) {
        assert_eq!(self.ask(OPEN, 1, 0), 0);
        let inbox = self.create(INBOX_LEN as u64);
        let doorbell = self.doorbell();
        let endpoint = AttachRequest {
            wire: WirePref::Auto,
            comm: "guest".to_owned(),
            reserved: 0,
            pid_namespace: false,
        };
        self.call(1, "attach", &[inbox, doorbell], &encode_body(&endpoint));
        let segment = CreateSegmentRequest {
            pd: 1,
            writable: true,
            inside: false,
        };
        let segment = self.call(1, "create_segment", &[], &encode_body(&segment));
        assert_eq!(self.ask(SHOW, segment, 0), 0);
    }

    /// Waits for the answer to the request that was the `count`th; its status.
    pub fn answer(&self, count: u16) -> u32 {
        while self.used() != count {
            // A file of ours is readable once the device has said so.
            assert!(readable(fd(&self.calls[0]), PATIENCE), "no answer");
            let _ = self.calls[0].read();
        }
        self.answered(0)
    }

    /// A word of the answer.
    fn answered(&self, at: u64) -> u32 {
        self.long_word(ANSWER + at)
    }

    fn long_word(&self, at: u64) -> u32 {
        let mut word = [0; 4];
        self.memory
            .0
            .read_slice(&mut word, GuestAddress(at))
            .unwrap();
        u32::from_le_bytes(word)
    }

    /// Makes a segment, which is shown when that is asked for; its handle.
    pub fn create(&self, bytes: u64) -> u32 {
        assert_eq!(self.ask(CREATE, 0, bytes), 0);
        self.answered(4)
    }

    /// Makes a doorbell of the guest; its handle.
    pub fn doorbell(&self) -> u32 {
        assert_eq!(self.ask(DOORBELL, 0, 0), 0);
        self.answered(4)
    }

    /// Gives the device one more buffer for an event, and rings no doorbell.
    pub fn give_quietly(&self) {
        self.memory.describe(1, 0, EVENT, EVENT_BYTES, WRITE);
        self.put(1, self.events.fetch_add(1, Ordering::Relaxed));
    }

    /// Gives it one more, and rings where the device wants to hear of it; whether it did.
    pub fn give(&self) -> bool {
        self.give_quietly();
        // The buffer is there before the device's wish is read.
        fence(Ordering::SeqCst);
        let wanted = self.hears_of_buffers();
        if wanted {
            self.kicks[1].write(1).unwrap();
        }
        wanted
    }

    /// Whether the device wants a doorbell for a buffer.
    pub fn hears_of_buffers(&self) -> bool {
        self.memory.word(QUEUES[1] + USED) & NO_NOTIFY == 0
    }

    /// Events that there were.
    pub fn told(&self) -> u16 {
        self.memory.word(QUEUES[1] + USED + 2)
    }

    /// Waits until there were so many events; kind of the last, and the doorbell it is about.
    pub fn wait_for_events(&self, count: u16) -> (u16, u32) {
        while self.told() != count {
            assert!(readable(fd(&self.calls[1]), PATIENCE), "no event");
            let _ = self.calls[1].read();
        }
        (self.memory.word(EVENT), self.long_word(EVENT + 8))
    }

    /// Makes a segment and has it shown.
    pub fn show(&self, bytes: u64) {
        assert_eq!(self.ask(SHOW, self.create(bytes), 0), 0);
    }

    fn used(&self) -> u16 {
        self.memory.word(QUEUES[0] + USED + 2)
    }

    pub fn ask(&self, operation: u8, name: u32, size: u64) -> u32 {
        self.answer(self.post(operation, name, size))
    }

    /// Says that there are requests in all of the queue, whatever stands there, and rings.
    pub fn flood(memory: &Memory, kick: &EventFd) {
        let used = memory.word(QUEUES[0] + USED + 2);
        let offered = used.wrapping_add(ENTRIES).to_le_bytes();
        memory.write(QUEUES[0] + AVAILABLE + 2, &offered);
        let _ = kick.write(1);
    }
}

fn fd(event: &EventFd) -> std::os::fd::BorrowedFd<'_> {
    // SAFETY: the descriptor is open as long as the borrow of who owns it.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

fn guest_memory() -> GuestMemoryMmap {
    let file = File::from(sealed_memfd("guest", MEMORY as u64).unwrap());
    let range = (GuestAddress(0), MEMORY, Some(FileOffset::new(file, 0)));
    GuestMemoryMmap::from_ranges_with_files([range]).unwrap()
}

/// As QEMU does; the thread ends with the connection.
fn negotiate(frontend: &mut Frontend, memory: &GuestMemoryMmap) -> Arc<Qemu> {
    let features = frontend.get_features().unwrap();
    frontend.set_owner().unwrap();
    frontend.set_features(features).unwrap();
    let protocol = frontend.get_protocol_features().unwrap();
    assert!(protocol.contains(VhostUserProtocolFeatures::SHMEM));
    frontend.set_protocol_features(protocol).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    let (ours, theirs) = UnixStream::pair().unwrap();
    frontend
        .set_backend_request_fd(&theirs.as_fd().as_raw_fd())
        .unwrap();
    let qemu = Arc::new(Qemu::default());
    let server = Arc::clone(&qemu);
    thread::spawn(move || server.serve(ours));
    let region = memory.iter().next().unwrap();
    let region = VhostUserMemoryRegionInfo::from_guest_region(region).unwrap();
    frontend.set_mem_table(&[region]).unwrap();
    qemu
}
