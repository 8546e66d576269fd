//! Sockets of AF_XDP, with packet memory: made, which takes privileges, and adopted, which takes
//! none.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::memfd_create;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};

use crate::ring::{Consumer, Producer};
use crate::umem::Mapping;

/// Bytes of a frame. The kernel leaves 256 of them free in front of what has come.
pub(crate) const FRAME: usize = 2048;
/// Frames to receive into: as many short datagrams wait for a process that is off its processor.
pub(crate) const RECEIVES: u32 = 1024;
/// Frames to send.
pub(crate) const SENDS: u32 = 1024;
/// Bytes of packet memory.
pub(crate) const UMEM: usize = FRAME * (RECEIVES + SENDS) as usize;
/// So that nobody pulls the memory away from under the other.
const SEALS: SealFlags = SealFlags::GROW
    .union(SealFlags::SHRINK)
    .union(SealFlags::SEAL);

/// What is lent: the socket, bound to a queue, and its packet memory.
#[derive(Debug)]
pub struct Lent {
    /// The socket.
    pub socket: OwnedFd,
    /// The packet memory, a memfd.
    pub memory: OwnedFd,
}

/// Makes a socket that receives and sends on a queue of an interface, with packet memory of its
/// own.
///
/// # Errors
/// EPERM without CAP_NET_RAW, EBUSY if another socket has the queue, EAFNOSUPPORT where the kernel
/// has no AF_XDP, and what else socket(2), setsockopt(2) and bind(2) report.
pub fn make(ifindex: u32, queue: u32) -> io::Result<Lent> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("causeway-xdp", flags)?;
    ftruncate(&memory, UMEM as u64)?;
    fcntl_add_seals(&memory, SEALS)?;
    let mapped = Mapping::new(memory.as_fd(), UMEM, 0)?;
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let registration = libc::xdp_umem_reg {
        addr: mapped.address().expose_provenance() as u64,
        len: UMEM as u64,
        chunk_size: FRAME as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    // The kernel keeps the pages, and needs no mapping of them.
    set(&socket, libc::XDP_UMEM_REG, &registration)?;
    set(&socket, libc::XDP_UMEM_FILL_RING, &RECEIVES)?;
    set(&socket, libc::XDP_UMEM_COMPLETION_RING, &SENDS)?;
    set(&socket, libc::XDP_RX_RING, &RECEIVES)?;
    set(&socket, libc::XDP_TX_RING, &SENDS)?;
    bind(&socket, ifindex, queue)?;
    Ok(Lent { socket, memory })
}

fn set<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value lives across the call, and its size is given.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    check(done)
}

fn bind(socket: &OwnedFd, ifindex: u32, queue: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        // Without copies nothing has been tested.
        sxdp_flags: libc::XDP_COPY,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the address lives across the call, and its size is given.
    let done = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    check(done)
}

fn check(done: libc::c_int) -> io::Result<()> {
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A lent socket's rings and packet memory, mapped.
#[derive(Debug)]
pub(crate) struct Rings {
    pub memory: Mapping,
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub receive: Consumer<libc::xdp_desc>,
    pub send: Producer<libc::xdp_desc>,
}

impl Rings {
    /// Maps them, and offers the kernel the frames to receive into.
    ///
    /// # Errors
    /// `InvalidData` if they are not what [`make`] makes; what getsockopt(2) and mmap(2) report.
    pub fn map(socket: BorrowedFd<'_>, memory: BorrowedFd<'_>) -> io::Result<Rings> {
        let seals = fcntl_get_seals(memory)?;
        let len = fstat(memory)?.st_size;
        if !seals.contains(SEALS) || len != UMEM as i64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let offsets = ring_offsets(socket)?;
        let (receives, sends) = (RECEIVES, SENDS);
        let mut rings = Rings {
            memory: Mapping::new(memory, UMEM, 0)?,
            fill: Producer::map(
                socket,
                offsets.fr,
                (receives, libc::XDP_UMEM_PGOFF_FILL_RING),
            )?,
            completion: Consumer::map(
                socket,
                offsets.cr,
                (sends, libc::XDP_UMEM_PGOFF_COMPLETION_RING),
            )?,
            receive: Consumer::map(
                socket,
                offsets.rx,
                (receives, libc::XDP_PGOFF_RX_RING as u64),
            )?,
            send: Producer::map(socket, offsets.tx, (sends, libc::XDP_PGOFF_TX_RING as u64))?,
        };
        for frame in 0..u64::from(RECEIVES) {
            rings.fill.push(frame * FRAME as u64);
        }
        Ok(rings)
    }
}

fn ring_offsets(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    let none = libc::xdp_ring_offset {
        producer: 0,
        consumer: 0,
        desc: 0,
        flags: 0,
    };
    let mut offsets = libc::xdp_mmap_offsets {
        rx: none,
        tx: none,
        fr: none,
        cr: none,
    };
    let mut len = size_of_val(&offsets) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `offsets`; both outlive the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut len,
        )
    };
    check(done)?;
    // A shorter form is that of kernels before 5.4.
    if len as usize == size_of_val(&offsets) {
        Ok(offsets)
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}
