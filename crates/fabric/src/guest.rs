//! The guest driver's device (`guest/driver/causeway_ioctl.h`): messages to the broker of the host,
//! and segments in the VM's window.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use causeway_shm::lock::{self, Outside, Proxy};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::limits::{MESSAGE_FDS_MAX, MESSAGE_MAX};
use crate::remoting::{Received, assemble};
use crate::runtime::Address;

/// The device. Where it is, and nothing else is asked for, the broker is the host's.
pub const DEVICE: &str = "/dev/causeway";

/// In the place of a descriptor: none.
const NO_FD: i32 = -1;
/// `_IOC(dir, type, number, size)` of `asm-generic/ioctl.h`, for reading and writing.
const fn request_number(number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | 0xca << 8 | number
}
const SEND: u64 = request_number(0x10, size_of::<Transfer>());
const RECEIVE: u64 = request_number(0x11, size_of::<Transfer>());
const CREATE: u64 = request_number(0x12, size_of::<Creation>());
/// `_IO(0xca, 0x13)`
const WATCH: u64 = 0xca << 8 | 0x13;
/// `_IO(0xca, 0x15)`
const SETTLE: u64 = 0xca << 8 | 0x15;
const SLEEP: u64 = request_number(0x16, size_of::<Sleeping>());
const WAKE: u64 = request_number(0x14, size_of::<Waking>());

/// `struct causeway_transfer`
#[repr(C)]
struct Transfer {
    message: u64,
    length: u32,
    count: u32,
    fds: [i32; MESSAGE_FDS_MAX],
}

/// `struct causeway_creation`
#[repr(C)]
struct Creation {
    length: u64,
    fd: i32,
    zero: u32,
}

/// `struct causeway_waking`
#[repr(C)]
struct Waking {
    address: u64,
    count: u32,
    zero: u32,
}

/// `CAUSEWAY_WORDS_MAX`
const WORDS_MAX: usize = 2;

/// `struct causeway_sleep`
#[repr(C)]
struct Sleeping {
    addresses: [u64; WORDS_MAX],
    expected: [u32; WORDS_MAX],
    count: u32,
    zero: u32,
    nanoseconds: u64,
}

/// Whether this is a guest with the driver loaded.
pub fn is_present() -> bool {
    let found = rustix::fs::stat(DEVICE);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice)
}

/// Whether this process's broker is reached by the device.
pub fn is_used() -> bool {
    matches!(Address::from_env(), Address::Device)
}

/// Opens the device.
///
/// # Errors
/// What `open(2)` says; `ENODEV` while the host has no broker.
pub fn open() -> Result<OwnedFd, Errno> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Memory for what this endpoint shares, where this process's broker is reached by the device: it
/// has to lie in the window. `None` where it may be any memfd.
///
/// # Errors
/// What the driver says: `ENODEV`, `EDQUOT`, `ENOSPC`, `ETIMEDOUT`.
pub fn segment(bytes: usize) -> Result<Option<OwnedFd>, Errno> {
    match Address::from_env() {
        Address::Device => create_segment(&open()?, bytes as u64).map(Some),
        _ => Ok(None),
    }
}

fn create_segment(device: &OwnedFd, length: u64) -> Result<OwnedFd, Errno> {
    let mut creation = Creation {
        length,
        fd: NO_FD,
        zero: 0,
    };
    // SAFETY: the structure is the one that the request's number names.
    unsafe { request(device.as_fd(), CREATE, &mut creation)? };
    // SAFETY: the driver has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(creation.fd) })
}

/// Makes a doorbell, which was granted to be rung, readable when it is rung.
///
/// # Errors
/// What the driver says: `ENODEV`, `ENOMEM`, `ETIMEDOUT`, `ENOTTY` for anything else.
pub fn watch(bell: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: a request without argument.
    unsafe { request(bell, WATCH, &mut [0u8; 0]) }
}

/// Waits until the host has done what was asked of it before: the shortest way to it and back.
///
/// # Errors
/// What the driver says: `ENODEV`, `ENOMEM`, `ETIMEDOUT`; `ENOTTY` from one that is older.
pub fn settle(device: BorrowedFd<'_>) -> Result<(), Errno> {
    // SAFETY: a request without argument.
    unsafe { request(device, SETTLE, &mut [0u8; 0]) }
}

/// This machine's device, which locks use.
fn device() -> Option<BorrowedFd<'static>> {
    static DEVICE_FILE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    let file = DEVICE_FILE.get_or_init(|| open().ok());
    file.as_ref().map(AsFd::as_fd)
}

/// Has locks of this process sleep by the host, and wake sleepers there.
pub(crate) fn reach_outside() {
    lock::reach_outside_by(Outside {
        wake: wake_outside,
        sleep: sleep_outside,
    });
}

fn wake_outside(address: usize, count: u32) -> bool {
    let mut waking = Waking {
        address: address as u64,
        count,
        zero: 0,
    };
    let Some(device) = device() else { return false };
    // SAFETY: the structure is the one that the request's number names; the driver does not access
    // the memory at the address.
    let outcome = unsafe { request(device, WAKE, &mut waking) };
    // A sleeper that is not woken looks again by itself after a while.
    outcome != Err(Errno::FAULT)
}

fn sleep_outside(words: &[(usize, u32)], time: Duration) -> Proxy {
    let mut sleep = Sleeping {
        addresses: [0; WORDS_MAX],
        expected: [0; WORDS_MAX],
        count: words.len() as u32,
        zero: 0,
        nanoseconds: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
    };
    for (at, (address, expected)) in words.iter().take(WORDS_MAX).enumerate() {
        sleep.addresses[at] = *address as u64;
        sleep.expected[at] = *expected;
    }
    let Some(device) = device() else {
        return Proxy::Refused;
    };
    // SAFETY: the structure is the one that the request's number names; the driver does not access
    // the memory at the addresses.
    match unsafe { request(device, SLEEP, &mut sleep) } {
        Ok(()) => Proxy::Slept,
        Err(Errno::FAULT) => Proxy::Elsewhere,
        Err(_) => Proxy::Refused,
    }
}

/// Sends one encoded message without blocking.
pub(crate) fn send(device: &OwnedFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut transfer = Transfer {
        message: message.as_ptr() as u64,
        length: message.len() as u32,
        count: fds.len() as u32,
        fds: [NO_FD; MESSAGE_FDS_MAX],
    };
    for (place, fd) in transfer.fds.iter_mut().zip(fds) {
        *place = fd.as_raw_fd();
    }
    // SAFETY: the structure is the one that the request's number names; the driver reads `length`
    // bytes of the message.
    match unsafe { request(device.as_fd(), SEND, &mut transfer) } {
        Err(Errno::NODEV | Errno::NOTCONN) => Err(Errno::PIPE),
        outcome => outcome,
    }
}

/// Receives one message without blocking.
pub(crate) fn receive(device: &OwnedFd) -> Result<Received, Errno> {
    let mut bytes = vec![0u8; MESSAGE_MAX];
    let mut transfer = Transfer {
        message: bytes.as_mut_ptr() as u64,
        length: bytes.len() as u32,
        count: MESSAGE_FDS_MAX as u32,
        fds: [NO_FD; MESSAGE_FDS_MAX],
    };
    // SAFETY: the structure is the one that the request's number names; the driver writes at most
    // `length` bytes to the message.
    match unsafe { request(device.as_fd(), RECEIVE, &mut transfer) } {
        Err(Errno::NODEV | Errno::PIPE) => return Ok(Received::Closed),
        outcome => outcome?,
    }
    let made = transfer.fds.iter().take(transfer.count as usize);
    let fds = made
        // SAFETY: the driver has just made these descriptors for us.
        .map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) })
        .collect();
    let received = bytes.get(..transfer.length as usize);
    Ok(assemble(received.unwrap_or_default(), fds))
}

/// Makes a request of the driver.
///
/// # Safety
/// `argument` is what the driver takes for a request of this number.
unsafe fn request<T>(file: BorrowedFd<'_>, number: u64, argument: &mut T) -> Result<(), Errno> {
    let argument: *mut T = argument;
    let fd = file.as_raw_fd();
    loop {
        // SAFETY: the caller's promise; the pointer is valid for the call.
        let outcome = unsafe { libc::ioctl(fd, number, argument.cast::<MaybeUninit<u8>>()) };
        if outcome >= 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
            Errno::INTR => {}
            errno => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_numbered_as_the_driver_numbers_them() {
        assert_eq!((size_of::<Transfer>(), size_of::<Creation>()), (32, 16));
        assert_eq!(SEND, 0xc020_ca10);
        assert_eq!(RECEIVE, 0xc020_ca11);
        assert_eq!(CREATE, 0xc010_ca12);
        assert_eq!((WATCH, WAKE), (0xca13, 0xc010_ca14));
        assert_eq!((SETTLE, SLEEP), (0xca15, 0xc028_ca16));
    }
}
