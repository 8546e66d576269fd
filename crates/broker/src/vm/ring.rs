//! A virtqueue that may be looked at though its doorbell was not rung.
//!
//! The thread of a device takes several events at a time. By the time that it comes to one of them
//! its queue may have been stopped and begun again with another doorbell, which nobody has rung
//! yet. The crate's own queue reports that as an error, and the thread ends for good.

use std::fs::File;
use std::io;

use vhost_user_backend::{VringRwLock, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::Error;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// A queue of the device.
#[derive(Clone)]
pub struct Ring(VringRwLock);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl<'a> VringStateGuard<'a, Memory> for Ring {
    type G = <VringRwLock as VringStateGuard<'a, Memory>>::G;
}

impl<'a> VringStateMutGuard<'a, Memory> for Ring {
    type G = <VringRwLock as VringStateMutGuard<'a, Memory>>::G;
}

/// Everything but `read_kick` is the crate's.
macro_rules! passed_on {
    ($(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self $(, $argument: $kind)*) $(-> $result)? {
            self.0.$name($($argument),*)
        })*
    };
}

impl VringT<Memory> for Ring {
    fn new(memory: Memory, entries: u16) -> Result<Self, Error> {
        VringRwLock::new(memory, entries).map(Ring)
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, Memory>>::G {
        self.0.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, Memory>>::G {
        self.0.get_mut()
    }

    fn read_kick(&self) -> io::Result<bool> {
        match self.0.read_kick() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Ok(self.0.get_ref().is_enabled())
            }
            outcome => outcome,
        }
    }

    passed_on! {
        fn add_used(index: u16, length: u32) -> Result<(), Error>;
        fn signal_used_queue() -> io::Result<()>;
        fn enable_notification() -> Result<bool, Error>;
        fn disable_notification() -> Result<(), Error>;
        fn needs_notification() -> Result<bool, Error>;
        fn set_enabled(enabled: bool);
        fn set_queue_info(table: u64, available: u64, used: u64) -> Result<(), Error>;
        fn queue_next_avail() -> u16;
        fn set_queue_next_avail(base: u16);
        fn set_queue_next_used(index: u16);
        fn queue_used_idx() -> Result<u16, Error>;
        fn set_queue_size(entries: u16);
        fn set_queue_event_idx(enabled: bool);
        fn set_queue_ready(ready: bool);
        fn set_kick(file: Option<File>);
        fn set_call(file: Option<File>);
        fn set_err(file: Option<File>);
    }
}
