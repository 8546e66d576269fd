//! Traces: a tool asks the broker for one, and endpoints are told of it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use crate::attachment::Attachment;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::fds::own_pid_namespace;
use crate::remoting::Malformed;
use crate::runtime::Address;
use crate::services::{BrokerStub, TraceRequest, TraceRingReply};

/// What is to be recorded.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceOptions {
    /// Of this queue pair alone.
    pub qpn: Option<u32>,
    /// With keys.
    pub keys: bool,
    /// Most bytes of payload of a datagram.
    pub payload: u32,
}

/// A trace that this process has asked for. It ends when this is dropped, and with this process.
#[derive(Debug)]
pub struct Trace {
    control: Control,
    /// Endpoints that were there when it began.
    pub endpoints: u32,
}

impl Trace {
    /// Begins a trace at the broker at `address`, which is started if there is none. Endpoints of
    /// this user put records into the ring.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EBUSY` while another trace of this user runs, `EPERM` in a virtual
    /// machine, `ENOSYS` from a broker that knows nothing of traces; what keeps from reaching it.
    pub fn begin(address: &Address, ring: BorrowedFd<'_>, options: &TraceOptions) -> Result<Trace> {
        let mut control = Control::new(crate::launch::connect_or_start(address)?);
        let namespace = (!control.is_in_guest()).then(own_pid_namespace).flatten();
        let request = TraceRequest {
            qpn: options.qpn,
            keys: options.keys,
            payload: options.payload,
            pid_namespace: namespace.is_some(),
        };
        let mut fds = vec![ring];
        fds.extend(namespace.as_ref().map(AsFd::as_fd));
        let (reply, _) = BrokerStub(&mut control).trace(&request, &fds)?;
        Ok(Trace {
            control,
            endpoints: reply.endpoints,
        })
    }

    /// What is readable when the broker has ended it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.control.socket()
    }

    /// Whether the broker has ended it.
    pub fn has_ended(&mut self) -> bool {
        self.control.drain();
        self.control.is_gone()
    }
}

/// The ring of a trace, as an endpoint gets it.
#[derive(Debug)]
pub struct TraceRing {
    /// What it is for.
    pub what: TraceRingReply,
    /// The ring.
    pub fd: OwnedFd,
}

impl Attachment {
    /// The name of the trace that the broker has told of last; 0: there is none.
    #[must_use]
    pub fn trace_told(&self) -> u64 {
        self.trace.load(Ordering::Acquire)
    }

    /// The ring of the trace that is to have what this endpoint sends and receives; `None` if none
    /// is.
    ///
    /// # Errors
    /// [`Error::Refused`], or the broker can't be reached.
    pub fn trace_ring(&self) -> Result<Option<TraceRing>> {
        let mut state = self.lock()?;
        let asked = self.with_broker(&mut state, |control, _| {
            BrokerStub(control).trace_ring(&(), &[])
        });
        match asked {
            Ok((what, fds)) => {
                let fd = fds.into_iter().next().ok_or(Malformed::Descriptors)?;
                Ok(Some(TraceRing { what, fd }))
            }
            Err(Error::Refused {
                errno: Errno::NOENT,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
