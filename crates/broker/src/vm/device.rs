//! The vhost-user device: virtqueues and window of one VM.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

use causeway_fabric::limits::MESSAGE_FDS_MAX;
use rustix::io::Errno;
use vhost::vhost_user::Backend;
use vhost::vhost_user::message::{
    VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserVirtioFeatures,
};
use vhost_user_backend::{VhostUserBackend, VringEpollHandler, VringState, VringT};
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

use super::guest::{Admit, Guest};
use super::messages::{Answer, REQUEST_MAX, Request};
use super::ring::Ring;
use super::window::{Channel, Extent, Mapper, WINDOW_BYTES};

/// Queue by which the guest asks.
const CONTROL_QUEUE: u16 = 0;
/// Queue by which it is told.
const EVENT_QUEUE: u16 = 1;
/// Queues in all.
const QUEUES: usize = 2;
/// Most buffers in a queue; as the arguments of QEMU say.
pub const QUEUE_SIZE: usize = 128;
/// Event number of the guest's sessions and doorbells. [`QUEUES`] is that of the thread's end.
const SOURCES: u16 = 3;
/// `VIRTIO_F_VERSION_1`.
const FEATURE_VERSION_1: u64 = 1 << 32;
/// `VIRTQ_AVAIL_F_NO_INTERRUPT`, of the flags that an available ring begins with.
const NO_INTERRUPT: u16 = 1;
/// What the configuration space begins with, so that a driver knows the device: "CWVM".
const CONFIG_MAGIC: u32 = 0x4d56_5743;
/// Most requests and events of one turn: as many as a queue holds. A guest that adds more meanwhile
/// says so again, and a guest whose rings lie in each other does not keep the thread busy.
const TURN: usize = QUEUE_SIZE;
/// Version of the messages on the virtqueues.
pub const CONFIG_VERSION: u32 = 3;
/// Bytes of the configuration space; as the arguments of QEMU say.
pub const CONFIG_BYTES: usize = 64;

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type Handler<A> = VringEpollHandler<Arc<Device<A>>>;

/// The device of one VM.
pub struct Device<A: Admit + Send + 'static> {
    memory: Memory,
    channel: Arc<Channel>,
    /// Used by the VM's own thread, and by the one that detaches it.
    guest: Mutex<Guest<Shared, A>>,
    /// Something has become of a guest that is detached.
    parted: Condvar,
    /// How often queues were stopped.
    stops: AtomicU64,
    /// The thread's end.
    exit: Mutex<Option<(EventConsumer, EventNotifier)>>,
    handler: Mutex<Weak<Handler<A>>>,
    /// Whether events wait for buffers.
    held: AtomicBool,
    /// Nothing that the guest asks for is done any more: the VM was detached.
    retired: AtomicBool,
    /// QEMU has left.
    ended: AtomicBool,
    /// The queues, once there was an event.
    rings: OnceLock<Vec<Ring>>,
    /// The answer to a request that was carried out while its queue was stopped.
    owed: Mutex<Option<Owed>>,
}

/// An answer, and where its queue stood.
struct Owed {
    chain: Chain,
    answer: Answer,
    next: u16,
}

/// The channel to QEMU, shared by the thread that gets it and the one that uses it.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Channel>);

impl Mapper for Shared {
    fn map(&self, fd: &OwnedFd, from: u64, extent: Extent) -> io::Result<()> {
        self.0.map(fd, from, extent)
    }

    fn unmap(&self, extent: Extent) -> io::Result<()> {
        self.0.unmap(extent)
    }

    fn settle(&self) {
        self.0.settle();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<A: Admit + Send> Device<A> {
    /// A device that no QEMU has found yet.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new(memory: Memory, broker: A) -> Result<Arc<Self>, Errno> {
        let shared = Shared::default();
        let flags = EventFlag::NONBLOCK | EventFlag::CLOEXEC;
        let exit = new_event_consumer_and_notifier(flags).map_err(|_| Errno::MFILE)?;
        Ok(Arc::new(Device {
            memory,
            channel: Arc::clone(&shared.0),
            guest: Mutex::new(Guest::new(shared, broker)?),
            parted: Condvar::new(),
            stops: AtomicU64::new(0),
            exit: Mutex::new(Some(exit)),
            handler: Mutex::new(Weak::new()),
            held: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            rings: OnceLock::new(),
            owed: Mutex::new(None),
        }))
    }

    /// Begins to tell the guest what its sessions and doorbells have.
    ///
    /// # Errors
    /// What `epoll_ctl(2)` says.
    pub fn watch(&self, handler: &Arc<Handler<A>>) -> io::Result<()> {
        let sources = locked(&self.guest).as_raw_fd();
        *locked(&self.handler) = Arc::downgrade(handler);
        handler.register_listener(sources, EventSet::IN, u64::from(SOURCES))
    }

    /// QEMU has left: nothing that the guest had is anybody's.
    pub fn end(&self) {
        // First: a guest that asks without end would keep the lock.
        self.ended.store(true, Ordering::SeqCst);
        self.channel.set(None);
        locked(&self.guest).leave();
        self.parted.notify_all();
    }

    /// The guest is to have nothing any more, though QEMU is there: what it was shown is taken
    /// back, and whatever it asks for is refused. Waits for QEMU, and for the guest's driver as
    /// long as [`Guest::take_back`] says; of a VM that is paused it is done when it goes on.
    pub fn retire(&self) {
        // First: the thread of a guest that asks without end does it, rather than this one.
        self.retired.store(true, Ordering::SeqCst);
        let mut guest = locked(&self.guest);
        while !self.ended.load(Ordering::SeqCst) {
            let going = self.rings.get().filter(|rings| are_going(rings));
            let until = going.and_then(|rings| self.take_back(&mut guest, rings));
            if guest.has_lost_all() {
                break;
            }
            guest = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(left) => {
                    let woken = self.parted.wait_timeout(guest, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
                None => (self.parted.wait(guest)).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Of a detached guest, while its queues are the device's; until when it has something.
    fn take_back(&self, guest: &mut Guest<Shared, A>, queues: &[Ring]) -> Option<Instant> {
        let until = guest.take_back(Instant::now());
        if let Some(events) = queues.get(usize::from(EVENT_QUEUE)) {
            self.give_events(guest, events);
        }
        until
    }

    /// Events wait for buffers, or do so no more.
    fn hold(&self, guest: &Guest<Shared, A>, hold: bool) {
        if self.held.swap(hold, Ordering::Relaxed) == hold {
            return;
        }
        let Some(handler) = locked(&self.handler).upgrade() else {
            return;
        };
        let (fd, data) = (guest.as_raw_fd(), u64::from(SOURCES));
        let outcome = if hold {
            handler.unregister_listener(fd, EventSet::IN, data)
        } else {
            handler.register_listener(fd, EventSet::IN, data)
        };
        if let Err(error) = outcome {
            tracing::error!(%error, "cannot watch a guest's sessions");
        }
    }

    /// Carries out what the guest asks for.
    fn take_requests(&self, guest: &mut Guest<Shared, A>, queue: &Ring) {
        self.give_owed(queue);
        for _ in 0..TURN {
            if self.ended.load(Ordering::SeqCst) {
                break;
            }
            let memory = self.memory.memory();
            let stops = self.stops.load(Ordering::SeqCst);
            let next = {
                let mut ring = queue.get_mut();
                let ready = ring.is_enabled() && ring.get_queue().ready();
                let ring = ring.get_queue_mut();
                ready.then(|| ring.pop_descriptor_chain(memory.clone()))
            };
            let Some(chain) = next.flatten() else { break };
            // Nothing is locked here: making a segment waits for QEMU.
            let answer = match read_request(&memory, chain.clone()) {
                Some(request) => guest.answer(request),
                None => Answer::failed(Errno::BADMSG),
            };
            let mut ring = queue.get_mut();
            // A queue that was stopped meanwhile is the guest's again.
            if self.stops.load(Ordering::SeqCst) != stops {
                let next = ring.get_queue().next_avail();
                *locked(&self.owed) = Some(Owed {
                    chain,
                    answer,
                    next,
                });
                break;
            }
            // The guest may have been shown more of the window meanwhile; its own memory stays.
            if !give_answer(&memory, &mut ring, chain, answer) {
                break;
            }
        }
    }

    /// A VM that was paused while it waited for an answer gets it when it goes on. Its queue is
    /// then given back as it was; one of a driver that begins is at its beginning.
    fn give_owed(&self, queue: &Ring) {
        let mut ring = queue.get_mut();
        if !ring.is_enabled() || !ring.get_queue().ready() {
            return;
        }
        let Some(owed) = locked(&self.owed).take() else {
            return;
        };
        let next = ring.get_queue().next_avail();
        if next != 0 && next == owed.next {
            give_answer(&self.memory.memory(), &mut ring, owed.chain, owed.answer);
        }
    }

    /// Tells the guest what there is, as long as it has buffers. That it has given new ones we want
    /// to hear only if there were none: it would be a doorbell of the guest's for each event.
    fn give_events(&self, guest: &mut Guest<Shared, A>, queue: &Ring) {
        let mut given = false;
        for turn in 0.. {
            if turn == TURN {
                // What there is keeps the sources readable.
                self.hold(guest, false);
                break;
            }
            if !is_going(queue) {
                self.hold(guest, true);
                break;
            }
            let Some(event) = guest.next_event() else {
                self.hold(guest, false);
                break;
            };
            let memory = self.memory.memory();
            // Locked from first to last: a queue that is stopped is not written to any more.
            let mut ring = queue.get_mut();
            let ready = ring.is_enabled() && ring.get_queue().ready();
            let Some(chain) = ready.then(|| buffer(&mut ring, &memory)).flatten() else {
                guest.put_back(event);
                self.hold(guest, true);
                break;
            };
            let head = chain.head_index();
            let written = write_all(&memory, chain, &event.encode());
            given = true;
            if ring.add_used(head, written).is_err() {
                break;
            }
        }
        if given {
            // A guest that can't be interrupted has gone, which we are told otherwise.
            let _ = queue.signal_used_queue();
        }
    }
}

/// The guest's next buffer for an event. Where there is none the guest will ring its doorbell for
/// the next one it gives; where there is one it need not.
fn buffer(ring: &mut VringState, memory: &MemoryGuard) -> Option<Chain> {
    let queue = ring.get_queue_mut();
    let mut chain = queue.pop_descriptor_chain(memory.clone());
    // A queue whose words can't be written is broken, which shows in what follows.
    if chain.is_none() && queue.enable_notification(&**memory).unwrap_or(false) {
        // It came between the two looks.
        chain = queue.pop_descriptor_chain(memory.clone());
    }
    if chain.is_some() {
        let _ = queue.disable_notification(&**memory);
    }
    chain
}

type MemoryGuard = vm_memory::atomic::GuestMemoryLoadGuard<GuestMemoryMmap>;
type Chain = virtio_queue::DescriptorChain<MemoryGuard>;

/// Whether a queue is the device's. While none is the VM is paused, or has no driver, and QEMU must
/// not be asked for anything: 11.1 ends itself (SIGSEGV) when it is asked to map or unmap then.
/// A request that crosses with the pause has that effect still.
fn is_going(queue: &Ring) -> bool {
    let ring = queue.get_ref();
    ring.is_enabled() && ring.get_queue().ready()
}

fn are_going(queues: &[Ring]) -> bool {
    queues.iter().all(is_going)
}

/// Writes an answer where the guest waits for it; false if the queue is broken.
fn give_answer(
    memory: &GuestMemoryMmap,
    ring: &mut VringState,
    chain: Chain,
    answer: Answer,
) -> bool {
    let head = chain.head_index();
    let written = write_all(memory, chain, &answer.encode());
    ring.add_used(head, written).is_ok() && interrupt(memory, ring).is_ok()
}

/// Interrupts the guest, if it wants to be: there may be nobody that waits for an answer.
fn interrupt(memory: &GuestMemoryMmap, ring: &VringState) -> io::Result<()> {
    // The answer is there before the guest's wish is read; it looks for answers once more after it
    // has changed that.
    fence(Ordering::SeqCst);
    let flags = GuestAddress(ring.get_queue().avail_ring());
    let flags = memory.load::<u16>(flags, Ordering::Relaxed);
    match flags.map(u16::from_le) {
        Ok(flags) if flags & NO_INTERRUPT != 0 => Ok(()),
        _ => ring.signal_used_queue(),
    }
}

fn read_request(memory: &GuestMemoryMmap, chain: Chain) -> Option<Request> {
    let mut reader = chain.reader(memory).ok()?;
    let length = reader.available_bytes();
    if length > REQUEST_MAX {
        return None;
    }
    let mut bytes = vec![0; length];
    io::Read::read_exact(&mut reader, &mut bytes).ok()?;
    Request::decode(&bytes)
}

/// Writes `bytes` to a buffer of the guest, if it has room for all; returns how many it got.
fn write_all(memory: &GuestMemoryMmap, chain: Chain, bytes: &[u8]) -> u32 {
    let Ok(mut writer) = chain.writer(memory) else {
        return 0;
    };
    if writer.available_bytes() < bytes.len() {
        return 0;
    }
    match io::Write::write_all(&mut writer, bytes) {
        Ok(()) => bytes.len() as u32,
        Err(_) => 0,
    }
}

impl<A: Admit + Send> VhostUserBackend for Device<A> {
    type Bitmap = ();
    type Vring = Ring;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        FEATURE_VERSION_1 | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::BACKEND_SEND_FD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::SHARED_OBJECT
            | VhostUserProtocolFeatures::SHMEM
    }

    fn set_event_idx(&self, _: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut config = [0u8; CONFIG_BYTES];
        config[0..4].copy_from_slice(&CONFIG_MAGIC.to_le_bytes());
        config[4..8].copy_from_slice(&CONFIG_VERSION.to_le_bytes());
        config[8..12].copy_from_slice(&(MESSAGE_FDS_MAX as u32).to_le_bytes());
        let (from, count) = (offset as usize, size as usize);
        let range = from..from.saturating_add(count);
        config.get(range).map(<[u8]>::to_vec).unwrap_or_default()
    }

    fn get_shmem_config(&self) -> io::Result<VhostUserShMemConfig> {
        Ok(VhostUserShMemConfig::new(1, &[WINDOW_BYTES]))
    }

    fn update_memory(&self, _: Memory) -> io::Result<()> {
        Ok(())
    }

    fn set_backend_req_fd(&self, backend: Backend) {
        self.channel.set(Some(backend));
    }

    // A VM that is paused stops its queues too, and goes on later: nothing is forgotten here. A
    // driver that begins says so.
    fn stop_vring(&self, _: u32) -> io::Result<()> {
        self.stops.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        locked(&self.exit).take()
    }

    fn handle_event(&self, event: u16, _: EventSet, queues: &[Ring], _: usize) -> io::Result<()> {
        if self.ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut guest = locked(&self.guest);
        self.rings.get_or_init(|| queues.to_vec());
        let retired = self.retired.load(Ordering::SeqCst);
        if retired && are_going(queues) {
            self.take_back(&mut guest, queues);
        }
        let (Some(control), Some(events)) = (
            queues.get(usize::from(CONTROL_QUEUE)),
            queues.get(usize::from(EVENT_QUEUE)),
        ) else {
            return Ok(());
        };
        match event {
            CONTROL_QUEUE => self.take_requests(&mut guest, control),
            EVENT_QUEUE | SOURCES => self.give_events(&mut guest, events),
            _ => {}
        }
        if retired {
            self.parted.notify_all();
        }
        Ok(())
    }
}
