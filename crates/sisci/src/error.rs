//! Errors of the interface: values and texts.

use core::ffi::CStr;
use core::fmt;

use causeway_fabric::Error as FabricError;
use rustix::io::Errno;

/// Set in every error.
const MASK: u32 = 0x4000_0000;

/// `sci_error_t`.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Error(pub u32);

/// Result of a function of the interface.
pub type Result<T> = core::result::Result<T, Error>;

macro_rules! errors {
    ($($(#[doc = $doc:literal])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Error {
            $(
                #[doc = concat!("`SCI_ERR_", stringify!($name), "`: ", $text, ".")]
                pub const $name: Error = Error(MASK | $code);
            )*

            /// Its name, if it is one of the interface.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    0 => Some("OK"),
                    $(code if code == MASK | $code => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// What it means, for people: `SCIGetErrorString`.
            #[must_use]
            pub fn text(self) -> &'static CStr {
                const fn text(with_nul: &'static str) -> &'static CStr {
                    match CStr::from_bytes_with_nul(with_nul.as_bytes()) {
                        Ok(text) => text,
                        Err(_) => panic!("a text with a NUL inside"),
                    }
                }
                match self.0 {
                    0 => c"OK",
                    $(code if code == MASK | $code => {
                        const { text(concat!(
                            "SCI_ERR_", stringify!($name), ": ", $text, "\0"
                        )) }
                    })*
                    _ => c"Unknown SISCI error",
                }
            }
        }

        #[cfg(test)]
        const ALL: &[Error] = &[$(Error::$name),*];
    };
}

errors! {
    BUSY = 0x900, "the object is in use";
    FLAG_NOT_IMPLEMENTED = 0x901, "the flag is not implemented";
    ILLEGAL_FLAG = 0x902, "a flag that the function does not have";
    NOSPC = 0x904, "no room";
    API_NOSPC = 0x905, "the library has no room";
    HW_NOSPC = 0x906, "the adapter has no room";
    NOT_IMPLEMENTED = 0x907, "not implemented";
    ILLEGAL_ADAPTERNO = 0x908, "not an adapter number";
    NO_SUCH_ADAPTERNO = 0x909, "no adapter has this number";
    TIMEOUT = 0x90a, "the time is over";
    OUT_OF_RANGE = 0x90b, "offset and size reach beyond the end";
    NO_SUCH_SEGMENT = 0x90c, "no such segment or interrupt";
    ILLEGAL_NODEID = 0x90d, "not a node id";
    CONNECTION_REFUSED = 0x90e, "the connection was refused";
    SEGMENT_NOT_CONNECTED = 0x90f, "the segment is not connected";
    SIZE_ALIGNMENT = 0x910, "the size is not aligned";
    OFFSET_ALIGNMENT = 0x911, "the offset is not aligned";
    ILLEGAL_PARAMETER = 0x912, "an argument is not what it should be";
    MAX_ENTRIES = 0x913, "the queue is full";
    SEGMENT_NOT_PREPARED = 0x914, "the segment is not prepared";
    ILLEGAL_ADDRESS = 0x915, "not a usable address";
    ILLEGAL_OPERATION = 0x916, "not possible with this object, or now";
    ILLEGAL_QUERY = 0x917, "no such query";
    SEGMENTID_USED = 0x918, "the segment id is in use";
    SYSTEM = 0x919, "the system, or the broker, failed";
    CANCELLED = 0x91a, "the object was removed";
    NOT_CONNECTED = 0x91b, "not connected";
    NOT_AVAILABLE = 0x91c, "not available";
    INCONSISTENT_VERSIONS = 0x91d, "library and broker are of different versions";
    COND_INT_RACE_PROBLEM = 0x91e, "an interrupt came while it was being enabled";
    OVERFLOW = 0x91f, "more than can be counted";
    NOT_INITIALIZED = 0x920, "SCIInitialize has not been called";
    ACCESS = 0x921, "not allowed";
    NOT_SUPPORTED = 0x922, "needs hardware that is not there";
    DEPRECATED = 0x923, "not supported any more";
    DMA_NOT_AVAILABLE = 0x924, "no DMA engine";
    DMA_DISABLED = 0x925, "the DMA engine is disabled";
    SEMAPHORE_COUNT_EXCEEDED = 0x926, "the count of the semaphore is exceeded";
    IRQL_ILLEGAL = 0x927, "not possible at this interrupt level";
    INTNO_USED = 0x928, "the interrupt number is in use";
    NO_SUCH_NODEID = 0xa00, "no node has this id";
    NODE_NOT_RESPONDING = 0xa02, "the node does not respond";
    NO_REMOTE_LINK_ACCESS = 0xa04, "the remote node's link is down";
    NO_LINK_ACCESS = 0xa05, "the link is down";
    TRANSFER_FAILED = 0xa06, "the transfer failed";
    NO_SUCH_FDID = 0xa07, "no such device";
    REMOTE_BUSY = 0xb00, "the remote node is busy";
    LOCAL_BUSY = 0xb01, "the local node is busy";
    ALL_BUSY = 0xb02, "all nodes are busy";
}

impl Error {
    /// `SCI_ERR_OK`
    pub const OK: Error = Error(0);
    /// `SCI_ERR_NO_SUCH_INTNO`, which has the value of [`Error::NO_SUCH_SEGMENT`].
    pub const NO_SUCH_INTNO: Error = Error::NO_SUCH_SEGMENT;
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Error({:#x})", self.0),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text().to_string_lossy())
    }
}

impl std::error::Error for Error {}

/// The owner of what is asked for may yet come back to a new broker. Programs do not see it
/// ([`crate::absent`]).
pub(crate) const ABSENT: Error = Error::REMOTE_BUSY;

/// What a failure of the broker's is to programs.
pub(crate) fn from_fabric(error: &FabricError) -> Error {
    match error {
        FabricError::Refused { errno, method } => match *errno {
            Errno::HOSTUNREACH => Error::NO_SUCH_NODEID,
            Errno::NOENT => Error::NO_SUCH_SEGMENT,
            Errno::CONNREFUSED => Error::CONNECTION_REFUSED,
            Errno::EXIST => Error::SEGMENTID_USED,
            Errno::BUSY => Error::BUSY,
            Errno::ACCESS => Error::ACCESS,
            Errno::PERM => Error::ILLEGAL_OPERATION,
            Errno::SRCH => Error::SEGMENT_NOT_PREPARED,
            Errno::BADF | Errno::INVAL => Error::ILLEGAL_PARAMETER,
            Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::NOMEM => {
                Error::NOSPC
            }
            Errno::AGAIN if *method == "fetch_connection" => Error::NOT_CONNECTED,
            Errno::AGAIN => ABSENT,
            Errno::OPNOTSUPP | Errno::FBIG => Error::NOT_SUPPORTED,
            Errno::PROTO | Errno::PROTONOSUPPORT => Error::INCONSISTENT_VERSIONS,
            _ => Error::SYSTEM,
        },
        FabricError::Protocol(_) | FabricError::Version { .. } => Error::INCONSISTENT_VERSIONS,
        FabricError::Forked => Error::NOT_INITIALIZED,
        FabricError::UnknownNode { .. } => Error::NO_SUCH_NODEID,
        _ => Error::SYSTEM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_a_value_and_a_text_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for error in ALL {
            assert!(seen.insert(error.0), "{error:?}");
            let text = error.text().to_str().unwrap();
            assert!(text.starts_with(&format!("SCI_ERR_{error:?}: ")), "{text}");
        }
        assert_eq!(Error::OK.text(), c"OK");
        assert_eq!(Error(7).text(), c"Unknown SISCI error");
    }
}
