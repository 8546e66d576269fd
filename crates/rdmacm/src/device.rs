//! The device that identifiers are bound to: the first of libibverbs, opened once.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use std::net::IpAddr;

use causeway_abi::{IbvContext, IbvDeviceAttr, IbvGidEntry, IbvPd, IbvPortAttr};
use parking_lot::Mutex;

use crate::errno::{Errno, Result, last};
use crate::ffi;

/// The only port.
pub(crate) const PORT: u8 = 1;
/// GIDs looked at.
const GIDS_MAX: usize = 256;

/// An open device. It stays open until the process ends, as its identifiers may have given it away.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    /// Its context.
    pub context: *mut IbvContext,
    /// The protection domain of queue pairs that are given none.
    pd: *mut IbvPd,
    pid: u32,
}

// SAFETY: verbs objects may be used from any thread (ibv_open_device(3)).
unsafe impl Send for Device {}

static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

/// The device.
///
/// # Errors
/// ENODEV if there is none, or what `ibv_open_device(3)` says.
pub(crate) fn get() -> Result<Device> {
    let mut slot = DEVICE.lock();
    match *slot {
        // A forked child opens its own: the parent's is of no use to it.
        Some(device) if device.pid == std::process::id() => Ok(device),
        _ => Ok(*slot.insert(open()?)),
    }
}

fn open() -> Result<Device> {
    // SAFETY: the list and the devices in it are valid until freed; contexts are not affected.
    let context = unsafe {
        let list = ffi::ibv_get_device_list(ptr::null_mut());
        if list.is_null() {
            return Err(last());
        }
        let context = match (*list).is_null() {
            true => Err(Errno(libc::ENODEV)),
            false => Ok(ffi::ibv_open_device(*list)),
        };
        ffi::ibv_free_device_list(list);
        context?
    };
    if context.is_null() {
        return Err(last());
    }
    Ok(Device {
        context,
        pd: ptr::null_mut(),
        pid: std::process::id(),
    })
}

impl Device {
    /// The protection domain for those that bring none; made when it is needed first.
    pub fn default_pd(self) -> Result<*mut IbvPd> {
        let mut slot = DEVICE.lock();
        let device = slot.as_mut().ok_or(Errno(libc::ENODEV))?;
        if device.pd.is_null() {
            // SAFETY: the context is open.
            device.pd = unsafe { ffi::ibv_alloc_pd(device.context) };
        }
        match device.pd.is_null() {
            true => Err(last()),
            false => Ok(device.pd),
        }
    }

    /// READs and atomics of one queue pair: as many as it answers at once, and as many as it has
    /// outstanding.
    pub fn reads(self) -> Result<(u8, u8)> {
        let mut attr = MaybeUninit::<IbvDeviceAttr>::uninit();
        // SAFETY: the context is open; success fills the whole structure.
        let attr = unsafe {
            match ffi::ibv_query_device(self.context, attr.as_mut_ptr()) {
                0 => attr.assume_init(),
                code => return Err(Errno(code)),
            }
        };
        // 255 stands for "as many as can be" in a connection's parameters.
        let most = |n: c_int| n.clamp(0, (u8::MAX - 1).into()) as u8;
        Ok((most(attr.max_qp_rd_atom), most(attr.max_qp_init_rd_atom)))
    }

    /// The port's attributes.
    pub fn port(self) -> Result<IbvPortAttr> {
        let mut attr = IbvPortAttr::default();
        // SAFETY: the context is open, and the structure has room for all that is written.
        match unsafe { ffi::ibv_query_port(self.context, PORT, &raw mut attr) } {
            0 => Ok(attr),
            code => Err(Errno(code)),
        }
    }

    /// The GID of a local address and its index. A loopback address has none of its own where
    /// there are others: the first one stands for it.
    ///
    /// # Errors
    /// ENODEV if the address is not the device's.
    pub fn gid_of(self, ip: IpAddr) -> Result<([u8; 16], u8)> {
        let mut entries = Vec::with_capacity(GIDS_MAX);
        // SAFETY: there is room for as many entries as are named.
        let count = unsafe {
            let size = size_of::<IbvGidEntry>();
            ffi::_ibv_query_gid_table(self.context, entries.as_mut_ptr(), GIDS_MAX, 0, size)
        };
        let count = usize::try_from(count).map_err(|_| last())?.min(GIDS_MAX);
        // SAFETY: so many have been written.
        unsafe { entries.set_len(count) };
        let wanted = gid(ip);
        let found = entries.iter().find(|e| bytes(e) == wanted);
        let found = found.or_else(|| entries.first().filter(|_| ip.is_loopback()));
        let entry: &IbvGidEntry = found.ok_or(Errno(libc::ENODEV))?;
        let index = u8::try_from(entry.gid_index).map_err(|_| Errno(libc::ENODEV))?;
        Ok((bytes(entry), index))
    }
}

/// The GID that stands for an address (RoCE v2).
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn bytes(entry: &IbvGidEntry) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&entry.gid[0].to_ne_bytes());
    gid[8..].copy_from_slice(&entry.gid[1].to_ne_bytes());
    gid
}

/// `rdma_get_devices(3)`: the contexts, null-terminated; freed by [`free_devices`].
pub(crate) unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut IbvContext {
    let result = get().map(|device| {
        // SAFETY: the block has room for both words; null is passed on.
        unsafe {
            let list = libc::calloc(2, size_of::<usize>()).cast::<*mut IbvContext>();
            if !list.is_null() {
                list.write(device.context);
            }
            list
        }
    });
    if !count.is_null() {
        // SAFETY: the program passes null or a valid pointer.
        unsafe { count.write(c_int::from(result.is_ok())) };
    }
    crate::errno::pointer(result)
}

/// `rdma_free_devices(3)`
pub(crate) unsafe extern "C" fn free_devices(list: *mut *mut IbvContext) {
    // SAFETY: the list is one of `get_devices`.
    unsafe { libc::free(list.cast()) };
}
