//! The calls of bpf(2) that steering takes: maps, a program, its link to an interface.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// The driver runs the program (`XDP_FLAGS_DRV_MODE` of `linux/if_link.h`), and not the kernel
/// after it: there many datagrams may be joined into one, which the program can't tell.
const DRIVER_MODE: u32 = 1 << 2;

/// What bpf(2) takes, of the fields that are used. The kernel takes those behind for zero.
#[repr(C)]
#[derive(Default)]
struct MapAttributes {
    kind: u32,
    key_len: u32,
    value_len: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct EntryAttributes {
    map: u32,
    _pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramAttributes {
    kind: u32,
    len: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkAttributes {
    program: u32,
    target: u32,
    attach: u32,
    flags: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// Every pointer in `attributes` is to memory of the length that the command takes.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    let at = std::ptr::from_ref(attributes);
    // SAFETY: the attributes live across the call and their size is given; the caller's promise.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    i32::try_from(done)
        .ok()
        .filter(|done| *done >= 0)
        .ok_or_else(io::Error::last_os_error)
}

/// As [`bpf`], of a command that returns a descriptor.
///
/// # Safety
/// As [`bpf`].
unsafe fn open<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise.
    let fd = unsafe { bpf(command, attributes) }?;
    // SAFETY: the descriptor is new, and nobody else's. bpf(2) makes it close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: &impl AsRawFd) -> u32 {
    fd.as_raw_fd() as u32
}

/// A map from keys of so many bytes to a word.
#[derive(Debug)]
pub struct Map {
    fd: OwnedFd,
    key_len: usize,
}

impl Map {
    /// A hash table.
    ///
    /// # Errors
    /// EPERM without CAP_BPF, and what else bpf(2) reports.
    pub fn hash(key_len: usize, entries: u32) -> io::Result<Map> {
        Map::create(MAP_TYPE_HASH, key_len, entries)
    }

    /// A table of sockets of AF_XDP, by numbers from 0.
    ///
    /// # Errors
    /// As [`Map::hash`]; it takes CAP_NET_ADMIN as well.
    pub fn sockets(entries: u32) -> io::Result<Map> {
        Map::create(MAP_TYPE_XSKMAP, size_of::<u32>(), entries)
    }

    fn create(kind: u32, key_len: usize, entries: u32) -> io::Result<Map> {
        let attributes = MapAttributes {
            kind,
            key_len: key_len as u32,
            value_len: size_of::<u32>() as u32,
            entries,
            flags: 0,
        };
        // SAFETY: there are no pointers in it.
        let fd = unsafe { open(MAP_CREATE, &attributes) }?;
        Ok(Map { fd, key_len })
    }

    /// Sets an entry, of a descriptor or a number.
    ///
    /// # Errors
    /// `InvalidInput` for a key of another length; what bpf(2) reports: E2BIG if it is full.
    pub fn insert(&self, key: &[u8], value: u32) -> io::Result<()> {
        let attributes = self.entry(key, std::ptr::from_ref(&value).addr())?;
        // SAFETY: key and value live across the call and have the map's lengths.
        unsafe { bpf(MAP_UPDATE, &attributes) }.map(drop)
    }

    /// Removes one.
    ///
    /// # Errors
    /// As [`Map::insert`]; `NotFound` if there is none.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        let attributes = self.entry(key, 0)?;
        // SAFETY: the key lives across the call and has the map's length.
        unsafe { bpf(MAP_DELETE, &attributes) }.map(drop)
    }

    fn entry(&self, key: &[u8], value: usize) -> io::Result<EntryAttributes> {
        if key.len() != self.key_len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(EntryAttributes {
            map: number(&self.fd),
            key: key.as_ptr().expose_provenance() as u64,
            value: value as u64,
            ..EntryAttributes::default()
        })
    }

    /// Its descriptor's number, as programs name it.
    pub(crate) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// Loads a program for the receiving side of interfaces.
///
/// # Errors
/// EPERM without CAP_BPF and CAP_NET_ADMIN; what else bpf(2) reports: EINVAL and EACCES if the
/// kernel does not see that it is safe.
pub fn load(instructions: &[u64]) -> io::Result<OwnedFd> {
    let mut attributes = ProgramAttributes {
        kind: PROG_TYPE_XDP,
        len: instructions.len() as u32,
        instructions: instructions.as_ptr().expose_provenance() as u64,
        license: c"Dual MIT/GPL".as_ptr().expose_provenance() as u64,
        attach: ATTACH_XDP,
        ..ProgramAttributes::default()
    };
    attributes.name[..8].copy_from_slice(b"causeway");
    // SAFETY: both pointers are to memory that lives across the call, of the length given or with
    // an end.
    unsafe { open(PROG_LOAD, &attributes) }
}

/// Has the driver of an interface run a program for as long as the descriptor is open.
///
/// # Errors
/// EOPNOTSUPP if the driver can't, ERANGE or EINVAL if the interface's MTU is too large for it,
/// EBUSY if another program is there, and what else bpf(2) reports.
pub fn attach(program: BorrowedFd<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    let attributes = LinkAttributes {
        program: number(&program),
        target: ifindex,
        attach: ATTACH_XDP,
        flags: DRIVER_MODE,
    };
    // SAFETY: there are no pointers in it.
    unsafe { open(LINK_CREATE, &attributes) }
}
