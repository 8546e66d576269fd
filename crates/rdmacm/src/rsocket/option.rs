//! Options: `rsetsockopt`, `rgetsockopt`, `rfcntl`.

use core::ffi::{c_int, c_long, c_void};
use core::mem;
use core::ptr;
use std::time::{Duration, Instant};

use super::config::{CONFIG, Sizes};
use super::socket::{self, Phase, State};
use super::stream::Stream;
use crate::errno::{Errno, INVALID, Result, code};
use crate::id;

/// `SOL_RDMA`
const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const RDMA_ROUTE: c_int = 4;
/// `TCP_MAXSEG` before there is a route.
const SEGMENT: c_int = 2048;
/// `TCP_CONGESTION`: no algorithm of the kernel's is at work.
const CONGESTION: &[u8] = b"rdma\0";
/// `TCP_ESTABLISHED` and `TCP_CLOSE`
const STATE_ESTABLISHED: u8 = 1;
const STATE_CLOSE: u8 = 7;
/// Longest value that is handed to a program: `struct tcp_info`.
const VALUE_MAX: usize = size_of::<libc::tcp_info>();

/// What a program has set.
#[derive(Clone)]
pub(super) struct Options {
    /// Sizes of the connection.
    pub sizes: Sizes,
    /// `F_GETFL`
    status: c_int,
    /// `F_GETFD`
    descriptor: c_int,
    /// Switches without effect here, by level and name.
    switches: Vec<(c_int, c_int, c_int)>,
    linger: libc::linger,
    receive_timeout: Option<Duration>,
    send_timeout: Option<Duration>,
}

impl Options {
    /// What a new rsocket has, of `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
    pub fn new(flags: c_int) -> Options {
        let descriptor = flags & libc::SOCK_CLOEXEC != 0;
        Options {
            sizes: CONFIG.sizes,
            status: libc::O_RDWR | flags & libc::SOCK_NONBLOCK,
            descriptor: if descriptor { libc::FD_CLOEXEC } else { 0 },
            switches: Vec::new(),
            linger: libc::linger {
                l_onoff: 0,
                l_linger: 0,
            },
            receive_timeout: None,
            send_timeout: None,
        }
    }

    /// What a connection gets from its listener.
    pub fn inherited(&self) -> Options {
        Options {
            status: libc::O_RDWR,
            descriptor: 0,
            ..self.clone()
        }
    }

    /// Whether a call with these flags may not sleep.
    pub fn nonblocking(&self, flags: c_int) -> bool {
        self.status & libc::O_NONBLOCK != 0 || flags & libc::MSG_DONTWAIT != 0
    }

    /// When a call that receives, begun now, gives up.
    pub fn receive_deadline(&self) -> Option<Instant> {
        self.receive_timeout.and_then(socket::after)
    }

    /// When a call that sends, begun now, gives up.
    pub fn send_deadline(&self) -> Option<Instant> {
        self.send_timeout.and_then(socket::after)
    }

    /// How long closing waits for the peer, if the program says: `SO_LINGER`.
    pub fn linger(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.linger.l_linger).unwrap_or(0);
        (self.linger.l_onoff != 0).then(|| Duration::from_secs(seconds))
    }

    fn switch(&self, level: c_int, name: c_int) -> c_int {
        let found = self.switches.iter().find(|s| (s.0, s.1) == (level, name));
        found.map_or(0, |switch| switch.2)
    }

    fn set_switch(&mut self, level: c_int, name: c_int, value: c_int) {
        self.switches.retain(|s| (s.0, s.1) != (level, name));
        self.switches.push((level, name, value));
    }
}

/// Switches that are kept and do nothing: what they ask for is so anyway, or has no meaning here.
fn is_switch(level: c_int, name: c_int) -> bool {
    matches!(
        (level, name),
        (
            libc::SOL_SOCKET,
            libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_KEEPALIVE
                | libc::SO_OOBINLINE
                | libc::SO_BROADCAST
        ) | (libc::IPPROTO_IP, libc::IP_TOS)
            | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY | libc::IPV6_TCLASS)
            | (
                libc::IPPROTO_TCP,
                libc::TCP_NODELAY
                    | libc::TCP_CORK
                    | libc::TCP_QUICKACK
                    | libc::TCP_KEEPCNT
                    | libc::TCP_KEEPINTVL
                    | libc::TCP_KEEPIDLE
                    | libc::TCP_USER_TIMEOUT
            )
    )
}

/// A value of the program.
///
/// # Safety
/// `value` is null or points to `len` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len: libc::socklen_t) -> Result<T> {
    match value.is_null() || (len as usize) < size_of::<T>() {
        true => Err(INVALID),
        // SAFETY: as the caller promises.
        false => Ok(unsafe { value.cast::<T>().read_unaligned() }),
    }
}

fn duration(time: libc::timeval) -> Result<Option<Duration>> {
    let seconds = u64::try_from(time.tv_sec).map_err(|_| Errno(libc::EDOM))?;
    let micros = u64::try_from(time.tv_usec).map_err(|_| Errno(libc::EDOM))?;
    let duration = Duration::from_secs(seconds) + Duration::from_micros(micros);
    Ok(Some(duration).filter(|duration| !duration.is_zero()))
}

/// `rsetsockopt`
pub(crate) unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    code(socket::with(fd, |socket| {
        // SAFETY: the program passes as many bytes as it says.
        unsafe { set_option(&mut socket.lock(), level, name, value, len) }
    }))
}

/// # Safety
/// As [`rsetsockopt`].
unsafe fn set_option(
    state: &mut State,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> Result<()> {
    // SAFETY: as the caller promises.
    unsafe {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => state.options.linger = read(value, len)?,
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => {
                state.options.receive_timeout = duration(read(value, len)?)?;
            }
            (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => {
                state.options.send_timeout = duration(read(value, len)?)?;
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF) => {
                // Twice what is asked for, as the kernel has it; no change once it is in use.
                let bytes: u32 = read(value, len)?;
                let sizes = &mut state.options.sizes;
                match (state.stream.is_some(), name) {
                    (true, _) => {}
                    (false, libc::SO_RCVBUF) => sizes.set_receive_buffer(bytes.saturating_mul(2)),
                    (false, _) => sizes.set_send_buffer(bytes.saturating_mul(2)),
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG | libc::TCP_CONGESTION) => {}
            (SOL_RDMA, _) => return set_rdma(state, name, value, len),
            (level, name) if is_switch(level, name) => {
                let on: c_int = read(value, len)?;
                if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) && !state.id.is_null() {
                    id::inner(state.id).state().only_family = on != 0;
                }
                state.options.set_switch(level, name, on);
            }
            _ => return Err(Errno(libc::ENOTSUP)),
        }
    }
    Ok(())
}

/// # Safety
/// As [`rsetsockopt`].
unsafe fn set_rdma(
    state: &mut State,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> Result<()> {
    if !matches!(state.phase, Phase::Fresh | Phase::Listening) {
        return Err(INVALID);
    }
    if name == RDMA_ROUTE {
        // The route is known without being told.
        return Ok(());
    }
    // SAFETY: as the caller promises.
    let number: u32 = unsafe { read(value, len) }?;
    let sizes = &mut state.options.sizes;
    match name {
        RDMA_SQSIZE => sizes.set_sends(number),
        RDMA_RQSIZE => sizes.set_receives(number),
        RDMA_INLINE => sizes.set_inline(number),
        RDMA_IOMAPSIZE => sizes.set_mappings(number),
        _ => return Err(Errno(libc::ENOTSUP)),
    }
    Ok(())
}

/// A value on its way to the program.
struct Value {
    bytes: [u8; VALUE_MAX],
    len: usize,
}

impl Value {
    /// Plain data of C, without padding that matters.
    fn of<T: Copy>(value: T) -> Value {
        const { assert!(size_of::<T>() <= VALUE_MAX) };
        let mut bytes = [0; VALUE_MAX];
        let len = size_of::<T>();
        // SAFETY: there is room; `T` is plain data of C.
        unsafe {
            ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), bytes.as_mut_ptr(), len);
        }
        Value { bytes, len }
    }

    fn text(text: &[u8]) -> Value {
        let mut bytes = [0; VALUE_MAX];
        bytes[..text.len()].copy_from_slice(text);
        Value {
            bytes,
            len: text.len(),
        }
    }

    fn time(duration: Option<Duration>) -> Value {
        let duration = duration.unwrap_or_default();
        Value::of(libc::timeval {
            tv_sec: duration.as_secs() as libc::time_t,
            tv_usec: duration.subsec_micros().into(),
        })
    }
}

/// `rgetsockopt`
pub(crate) unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    code(socket::with(fd, |socket| {
        if value.is_null() || len.is_null() {
            return Err(INVALID);
        }
        let mut state = socket.lock();
        socket.progress(&mut state);
        let found = option(&mut state, level, name)?;
        // SAFETY: the program passes room for as many bytes as it says.
        unsafe {
            let room = (*len as usize).min(found.len);
            ptr::copy_nonoverlapping(found.bytes.as_ptr(), value.cast(), room);
            len.write(room as libc::socklen_t);
        }
        Ok(())
    }))
}

fn option(state: &mut State, level: c_int, name: c_int) -> Result<Value> {
    let options = &state.options;
    let sizes = &options.sizes;
    Ok(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_ERROR) => {
            let stream = state.stream.as_mut();
            let error = state.error.take().or(stream.and_then(|s| s.error.take()));
            Value::of(error.map_or(0, |errno| errno.0))
        }
        (libc::SOL_SOCKET, libc::SO_TYPE) => Value::of(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Value::of(libc::IPPROTO_TCP),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            Value::of(c_int::from(state.phase == Phase::Listening))
        }
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => Value::of(sizes.receive_buffer),
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => Value::of(sizes.send_buffer),
        (libc::SOL_SOCKET, libc::SO_LINGER) => Value::of(options.linger),
        (libc::SOL_SOCKET, libc::SO_RCVTIMEO) => Value::time(options.receive_timeout),
        (libc::SOL_SOCKET, libc::SO_SNDTIMEO) => Value::time(options.send_timeout),
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => Value::of(segment(state)),
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => Value::text(CONGESTION),
        (libc::IPPROTO_TCP, libc::TCP_INFO) => Value::of(info(state)),
        (SOL_RDMA, RDMA_SQSIZE) => Value::of(c_int::from(sizes.sends)),
        (SOL_RDMA, RDMA_RQSIZE) => Value::of(c_int::from(sizes.receives)),
        (SOL_RDMA, RDMA_INLINE) => Value::of(c_int::from(sizes.inline)),
        (SOL_RDMA, RDMA_IOMAPSIZE) => Value::of(c_int::from(sizes.mappings)),
        (level, name) if is_switch(level, name) => Value::of(options.switch(level, name)),
        _ => return Err(Errno(libc::ENOTSUP)),
    })
}

/// What a datagram of the connection holds, as its path says.
fn segment(state: &State) -> c_int {
    if state.id.is_null() {
        return SEGMENT;
    }
    // SAFETY: the identifier lives.
    let mtu = unsafe { id::inner(state.id).state().path.mtu };
    match mtu {
        0 => SEGMENT,
        // `enum ibv_mtu`: 1 is 256 bytes.
        mtu => 1 << (7 + c_int::from(mtu)),
    }
}

/// `struct tcp_info`, of which only the state and the window have a meaning here.
fn info(state: &State) -> libc::tcp_info {
    // SAFETY: numbers, for which zeroes are valid.
    let mut info: libc::tcp_info = unsafe { mem::zeroed() };
    let is_connected = |stream: &Stream| stream.connected && !stream.ended();
    let connected = state.stream.as_ref().is_some_and(is_connected);
    info.tcpi_state = if connected {
        STATE_ESTABLISHED
    } else {
        STATE_CLOSE
    };
    info.tcpi_snd_cwnd = state.options.sizes.sends.into();
    info.tcpi_snd_mss = segment(state) as u32;
    info
}

/// `rfcntl`. The last argument is a number for the commands that take one.
pub(crate) extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    super::connect::number(socket::with(fd, |socket| {
        let mut state = socket.lock();
        let options = &mut state.options;
        // The kernel looks at no more of it either.
        let argument = argument as c_int;
        match command {
            libc::F_GETFL => Ok(options.status),
            libc::F_SETFL => {
                options.status = libc::O_RDWR | argument & !libc::O_ACCMODE;
                Ok(0)
            }
            libc::F_GETFD => Ok(options.descriptor),
            libc::F_SETFD => {
                options.descriptor = argument;
                Ok(0)
            }
            _ => Err(Errno(libc::ENOTSUP)),
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_does_not_inherit_how_its_listener_blocks() {
        let mut options = Options::new(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        options.sizes.set_receive_buffer(1 << 20);
        assert!(options.nonblocking(0));
        let inherited = options.inherited();
        assert!(!inherited.nonblocking(0));
        assert!(inherited.nonblocking(libc::MSG_DONTWAIT));
        assert_eq!(inherited.sizes, options.sizes);
    }

    #[test]
    fn switches_are_kept() {
        let mut options = Options::new(0);
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        assert_eq!(options.switch(level, name), 0);
        options.set_switch(level, name, 1);
        options.set_switch(level, name, 2);
        assert_eq!(options.switch(level, name), 2);
        assert!(!is_switch(level, libc::TCP_ULP));
    }

    #[test]
    fn no_time_is_no_timeout() {
        let time = |tv_sec, tv_usec| libc::timeval { tv_sec, tv_usec };
        assert_eq!(duration(time(0, 0)), Ok(None));
        assert_eq!(
            duration(time(1, 500)),
            Ok(Some(Duration::from_micros(1_000_500)))
        );
        assert_eq!(duration(time(-1, 0)), Err(Errno(libc::EDOM)));
        let longest = duration(time(i64::MAX, 999_999)).unwrap().unwrap();
        assert_eq!(socket::after(longest), None);
    }
}
