//! The library's state in a process: its objects, its session with the broker, its threads.
//!
//! Nothing is created before a descriptor is opened. A child made by fork(2) begins with nothing:
//! what it inherited is left alone, since its locks may be held by threads that the child has not.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::time::{Duration, Instant};

use causeway_fabric::Error as FabricError;
use causeway_fabric::sisci::Sisci;
use causeway_memory::Mover;
use causeway_shm::{Life, LifeTable};
use parking_lot::{Mutex, RwLock};

use crate::blocks::Block;
use crate::callbacks::Callbacks;
use crate::channel::Channel;
use crate::descriptor::Descriptor;
use crate::dma::DmaQueue;
pub(crate) use crate::error::from_fabric;
use crate::error::{Error, Result};
use crate::flag::Flags;
use crate::handles::Table;
use crate::interrupt::{Data, LocalInterrupt, Plain};
use crate::late::Late;
use crate::local::LocalSegment;
use crate::map::Map;
use crate::peer::Peers;
use crate::pump;
use crate::registry::Registry;
use crate::remote::RemoteSegment;
use crate::returns::Returns;
use crate::sequence::{Owner, Sequences};
use crate::trigger::RemoteInterrupt;

/// Everything of a process. Never freed.
#[derive(Debug)]
pub struct Library {
    /// How often `SCIInitialize` was called, less `SCITerminate`.
    initialized: AtomicUsize,
    fabric: Mutex<Option<Fabric>>,
    pub(crate) registry: Mutex<Registry>,
    /// Nodes of other hosts.
    pub(crate) peers: Peers,
    /// Threads that wait for owners.
    pub(crate) returns: Arc<Returns>,
    /// Connects that are given up at some time, of this host's segments and of others'.
    pub(crate) awaited: Mutex<Vec<Weak<RemoteSegment>>>,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) flags: Arc<Flags>,
    pub(crate) descriptors: Table<Descriptor>,
    pub(crate) locals: Table<LocalSegment>,
    pub(crate) remotes: Table<RemoteSegment>,
    pub(crate) late: Late,
    pub(crate) maps: Table<Map>,
    /// Maps by their first address.
    pub(crate) addresses: RwLock<BTreeMap<usize, Arc<Map>>>,
    pub(crate) sequences: Sequences,
    pub(crate) queues: Table<DmaQueue>,
    pub(crate) channels: Table<Channel>,
    pub(crate) blocks: Table<Block>,
    pub(crate) interrupts: Table<LocalInterrupt<Plain>>,
    pub(crate) data_interrupts: Table<LocalInterrupt<Data>>,
    pub(crate) remote_interrupts: Table<RemoteInterrupt<Plain>>,
    pub(crate) remote_data_interrupts: Table<RemoteInterrupt<Data>>,
    /// Made when memory is first registered.
    mover: OnceLock<Mover>,
    /// Life tables seen: one, and another after some restarts of the broker.
    tables: Mutex<Vec<&'static LifeTable>>,
}

/// The connection to the broker.
#[derive(Debug)]
struct Fabric {
    sisci: Arc<Sisci>,
    pump: Arc<pump::Control>,
}

static CURRENT: AtomicPtr<Library> = AtomicPtr::new(std::ptr::null_mut());
/// How many forks the process is away from the one that loaded the library.
static EPOCH: AtomicU32 = AtomicU32::new(0);
static HOOKS: Once = Once::new();
/// How long a program that ends waits until what it has stored to other hosts' memory is there.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

unsafe extern "C" fn forget_parent() {
    CURRENT.store(std::ptr::null_mut(), Ordering::SeqCst);
    EPOCH.fetch_add(1, Ordering::SeqCst);
}

/// Runs when the program has returned from `main` or called exit(3). What it has stored to other
/// hosts' memory arrives, though it has neither unmapped that nor terminated the library. A child
/// has no library of its parent's.
extern "C" fn settle_at_exit() {
    let Ok(library) = Library::get() else { return };
    causeway_pio::sync();
    library.peers.settle_until(Instant::now() + EXIT_PATIENCE);
}

impl Library {
    fn new() -> Result<Library> {
        let epoch = EPOCH.load(Ordering::SeqCst);
        let returns = Arc::<Returns>::default();
        Ok(Library {
            initialized: AtomicUsize::new(0),
            fabric: Mutex::new(None),
            registry: Mutex::default(),
            peers: Peers::new(returns.clone()),
            returns,
            awaited: Mutex::default(),
            callbacks: Arc::new(Callbacks::new()?),
            flags: Arc::default(),
            descriptors: Table::new(epoch),
            locals: Table::new(epoch),
            remotes: Table::new(epoch),
            late: Late::default(),
            maps: Table::new(epoch),
            addresses: RwLock::default(),
            sequences: Sequences::new(epoch),
            queues: Table::new(epoch),
            channels: Table::new(epoch),
            blocks: Table::new(epoch),
            interrupts: Table::new(epoch),
            data_interrupts: Table::new(epoch),
            remote_interrupts: Table::new(epoch),
            remote_data_interrupts: Table::new(epoch),
            mover: OnceLock::new(),
            tables: Mutex::default(),
        })
    }

    /// The library, if `SCIInitialize` was called.
    ///
    /// # Errors
    /// [`Error::NOT_INITIALIZED`]
    #[inline]
    pub fn get() -> Result<&'static Library> {
        // SAFETY: null, or leaked by `initialize`.
        match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
            Some(library) if library.initialized.load(Ordering::Relaxed) > 0 => Ok(library),
            _ => Err(Error::NOT_INITIALIZED),
        }
    }

    /// `SCIInitialize`
    ///
    /// # Errors
    /// [`Error::SYSTEM`] without descriptors.
    pub fn initialize() -> Result<&'static Library> {
        // SAFETY: the handler of fork(2) stores to atomics, as any may; both live as long as the
        // library, which is never unloaded.
        HOOKS.call_once(|| unsafe {
            libc::pthread_atfork(None, None, Some(forget_parent));
            libc::atexit(settle_at_exit);
        });
        causeway_recover::install();
        loop {
            let current = CURRENT.load(Ordering::Acquire);
            // SAFETY: null, or leaked below.
            if let Some(library) = unsafe { current.as_ref() } {
                library.initialized.fetch_add(1, Ordering::SeqCst);
                return Ok(library);
            }
            let fresh = Box::into_raw(Box::new(Library::new()?));
            let swapped =
                CURRENT.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
            if swapped.is_err() {
                // SAFETY: made above, and seen by nobody else.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }

    /// `SCITerminate`. The last one removes all objects.
    pub fn terminate() {
        let Ok(library) = Library::get() else { return };
        if library.initialized.fetch_sub(1, Ordering::SeqCst) > 1 {
            return;
        }
        library.clear();
        library.peers.clear();
        let fabric = library.fabric.lock().take();
        if let Some(fabric) = fabric {
            // The pump lets go of the session when it has stopped, and the broker clears up.
            fabric.pump.stop();
        }
        *library.registry.lock() = Registry::default();
    }

    /// Removes all objects, the users first.
    fn clear(&self) {
        // What fails is gone already.
        self.blocks.each(|block| {
            let _ = block.remove(self);
        });
        self.queues.each(|queue| queue.abort());
        self.queues.each(|queue| {
            let _ = queue.remove(self);
        });
        self.channels.each(|channel| {
            let _ = channel.remove(self);
        });
        self.sequences.clear();
        self.maps.each(|map| {
            let _ = map.remove(self);
        });
        self.interrupts.each(|interrupt| {
            let _ = interrupt.remove(self);
        });
        self.data_interrupts.each(|interrupt| {
            let _ = interrupt.remove(self);
        });
        self.remote_interrupts.each(|remote| {
            let _ = remote.remove(self);
        });
        self.remote_data_interrupts.each(|remote| {
            let _ = remote.remove(self);
        });
        self.remotes.each(|remote| {
            let _ = remote.remove(self);
        });
        self.locals.each(|local| {
            let _ = local.remove(self, true);
        });
        self.descriptors.each(|descriptor| {
            let _ = descriptor.close(self);
        });
    }

    /// The connection to the broker, made by the first caller.
    ///
    /// # Errors
    /// [`Error::SYSTEM`] if there is none to be had, [`Error::INCONSISTENT_VERSIONS`] if it is of
    /// another version, [`Error::NOT_INITIALIZED`] for a call that `SCITerminate` has overtaken: it
    /// must not open the connection again.
    pub(crate) fn fabric(&'static self) -> Result<Arc<Sisci>> {
        let mut fabric = self.fabric.lock();
        if self.initialized.load(Ordering::SeqCst) == 0 {
            return Err(Error::NOT_INITIALIZED);
        }
        if let Some(fabric) = &*fabric {
            return Ok(fabric.sisci.clone());
        }
        let opened = Sisci::open(None).inspect_err(tell_once);
        let sisci = Arc::new(opened.map_err(|error| from_fabric(&error))?);
        let pump = pump::start(self, sisci.clone())?;
        *fabric = Some(Fabric {
            sisci: sisci.clone(),
            pump,
        });
        Ok(sisci)
    }

    /// Has the pump look again when its next connect is to be given up.
    pub(crate) fn kick_pump(&self) {
        if let Some(fabric) = &*self.fabric.lock() {
            fabric.pump.kick();
        }
    }

    /// What moves the program's memory; with the broker's userfaultfd, where it lends one.
    pub(crate) fn mover(&self, sisci: &Sisci) -> &Mover {
        self.mover.get_or_init(|| {
            let session = sisci.session();
            let asker = session.asker().ok().flatten();
            Mover::lent(session.userfaultfd().ok().flatten(), asker)
        })
    }

    /// The session whose life a connection depends on.
    pub(crate) fn owner(&self, sisci: &Sisci, life: Life) -> Result<Owner> {
        let table = sisci.session().life_table().map_err(|e| from_fabric(&e))?;
        let place = std::ptr::from_ref(table.deaths_word());
        let mut tables = self.tables.lock();
        let known = tables.iter().find(|t| std::ptr::eq(t.deaths_word(), place));
        let table = match known {
            Some(table) => *table,
            None => {
                // Never given up: a sequence may be looking at it.
                let table: &'static LifeTable = Box::leak(Box::new(table));
                tables.push(table);
                table
            }
        };
        Ok(Owner { table, life })
    }
}

/// Tells people why there is no broker to be had: all that programs can say is `SCI_ERR_SYSTEM`.
/// Once in a process, since some try again in a loop.
fn tell_once(error: &FabricError) {
    static TOLD: Once = Once::new();
    // A standard error that can't be written to is nobody's to read.
    TOLD.call_once(|| {
        let _ = writeln!(
            std::io::stderr(),
            "causeway: cannot open SISCI: {error} (see `causeway doctor`)"
        );
    });
}
