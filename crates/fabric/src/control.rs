//! The client's end of a control connection: calls, and events that arrive between and during
//! them.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use causeway_owned::Owned;
use rustix::event::PollFlags;
use rustix::io::Errno;

use crate::channel::Channel;
use crate::error::{Error, Result, THE_CONNECTION};
use crate::launch::{wait_for, wait_readable};
use crate::limits::CALL_TIMEOUT;
use crate::remoting::{CONNECTION, Call, Header, Kind, Malformed, Method, ONE_WAY, Received};

/// What the broker tells an endpoint on its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The process at the other side of this QP's ring has exited (`_exit(2)`) without
    /// disconnecting; what it wrote to the ring before can still be read.
    PeerExited {
        /// QP of this endpoint.
        local_qpn: u32,
        /// Ring concerned.
        generation: u64,
    },
    /// The endpoint at the other side of this QP's ring died.
    PeerDead {
        /// QP of this endpoint.
        local_qpn: u32,
        /// Ring concerned.
        generation: u64,
    },
    /// The QP at the other side of this QP's ring was reset or destroyed; what it wrote to the
    /// ring before can still be read.
    PeerLeft {
        /// QP of this endpoint.
        local_qpn: u32,
        /// Ring concerned.
        generation: u64,
    },
    /// The QP at the other side joined the ring that this QP created. Informational: data may
    /// have been written before.
    PeerJoined {
        /// QP of this endpoint.
        local_qpn: u32,
        /// Ring concerned.
        generation: u64,
    },
    /// An endpoint of another user holds a descriptor of this segment to which no QP entitles it
    /// any more. Move what is in it to a new one, then destroy it
    /// ([`crate::Attachment::destroy_segment`]); nobody is granted it meanwhile.
    SegmentStale {
        /// The segment.
        segment: u64,
    },
    /// A ring that this endpoint keeps mapped, by name, will not be used again.
    RingGivenUp {
        /// The ring.
        ring: u64,
    },
    /// Another trace is to have what this endpoint sends and receives, or none is
    /// ([`crate::Attachment::trace_ring`]).
    TraceChanged,
    /// Other limits hold for what is sent ([`crate::Attachment::take_limits`]).
    LimitsChanged,
    /// The broker is gone. Rings and sockets keep working; peers' deaths are not told any more
    /// until [`crate::Attachment::reattach`], and this event is repeated if that fails.
    BrokerGone,
}

/// An event as it came, of whatever service.
#[derive(Debug)]
pub struct RawEvent {
    /// The service that tells it.
    pub service: u16,
    /// Its number there.
    pub number: u16,
    /// Its body, to be decoded by the client of the service.
    pub body: Vec<u8>,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// A reply: header, body, descriptors.
type Reply = (Header, Vec<u8>, Vec<OwnedFd>);

/// Most calls that are remembered after they have timed out. The broker answers one after the
/// other, so what an older one got is told before.
const TIMED_OUT_MAX: usize = 64;

/// A reply to a call that had timed out, or that lost its descriptors on the way, and was granted
/// all the same: the caller has not what it names, and the broker keeps that for it until it is
/// given back.
#[derive(Debug)]
pub struct LateReply {
    /// The service that was called.
    pub service: u16,
    /// Its method.
    pub method: &'static str,
    /// What was asked for.
    pub request: Vec<u8>,
    /// What the method answers, to be decoded by the client of the service.
    pub body: Vec<u8>,
    /// Descriptors that came with it; none where this process had no room for them.
    pub fds: Vec<OwnedFd>,
}

/// A connection to the broker: what the services' stubs call over.
#[derive(Debug)]
pub struct Control {
    channel: Owned<Channel>,
    last_request: u32,
    gone: bool,
    events: VecDeque<RawEvent>,
    /// The calls that have timed out, by request: service, method and body.
    timed_out: BTreeMap<u32, (u16, &'static str, Vec<u8>)>,
    late: Vec<LateReply>,
    /// Whether somebody waits for the reply to the last request.
    is_calling: bool,
    /// That reply, if it has lost its descriptors.
    incomplete: Option<Reply>,
}

impl Control {
    pub(crate) fn new(channel: impl Into<Channel>) -> Control {
        Control {
            channel: Owned::new(channel.into(), "the connection to the broker"),
            last_request: 0,
            gone: false,
            events: VecDeque::new(),
            timed_out: BTreeMap::new(),
            late: Vec::new(),
            is_calling: false,
            incomplete: None,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    /// Looks whether the program has closed the connection, which has ended then.
    fn check(&mut self) -> Result<()> {
        self.gone = self.gone || self.channel.check().is_err();
        if self.gone {
            return Err(Error::BrokerGone);
        }
        Ok(())
    }

    /// Whether this is in a guest, and the broker on its host.
    pub(crate) fn is_in_guest(&self) -> bool {
        self.channel.is_device()
    }

    /// Whether the broker closed the connection or broke the protocol.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone
    }

    /// Whether there are events to be taken.
    pub(crate) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub(crate) fn take_events(&mut self) -> VecDeque<RawEvent> {
        std::mem::take(&mut self.events)
    }

    /// Takes the replies that came too late.
    pub(crate) fn take_late(&mut self) -> Vec<LateReply> {
        std::mem::take(&mut self.late)
    }

    #[cold]
    fn note_timed_out(&mut self, service: u16, method: &'static str, body: Vec<u8>) {
        self.timed_out
            .insert(self.last_request, (service, method, body));
        if self.timed_out.len() > TIMED_OUT_MAX {
            self.timed_out.pop_first();
        }
    }

    fn note_late(&mut self, (header, body, fds): Reply) {
        let call = self.timed_out.remove(&header.request);
        if let Some((service, method, request)) = call.filter(|_| header.status == 0) {
            self.late.push(LateReply {
                service,
                method,
                request,
                body,
                fds,
            });
        }
    }

    /// The broker broke the protocol: nothing that follows is understood.
    pub(crate) fn give_up(&mut self) {
        self.gone = true;
    }

    /// Takes what lies in the socket, without blocking.
    pub(crate) fn drain(&mut self) {
        let _ = self.check();
        while !self.gone {
            match self.channel.receive() {
                Err(Errno::AGAIN) => return,
                // Nobody waits for a reply now: one that comes was given up by its caller.
                Ok(received) => {
                    if let Ok(Some(reply)) = self.accept(received) {
                        self.note_late(reply);
                    }
                }
                Err(_) => self.gone = true,
            }
        }
    }

    /// Sorts what was received: events are queued, a reply is returned.
    fn accept(&mut self, received: Received) -> Result<Option<Reply>> {
        match received {
            Received::Closed => {
                self.gone = true;
                Err(Error::BrokerGone)
            }
            Received::Malformed(why) => {
                self.gone = true;
                Err(why.into())
            }
            Received::Foreign(_, fds) => {
                self.gone = true;
                // Not asked for here.
                fds.into_iter().for_each(std::mem::forget);
                Err(Malformed::Descriptors.into())
            }
            Received::Incomplete(header, body) => self.accept_incomplete(header, body),
            Received::Message(header, body, fds) => match header.kind {
                Kind::Reply => Ok(Some((header, body, fds))),
                Kind::Event => {
                    self.events.push_back(RawEvent {
                        service: header.service,
                        number: header.method,
                        body,
                        fds,
                    });
                    Ok(None)
                }
                Kind::Request => {
                    self.gone = true;
                    Err(Error::Protocol(Malformed::Value("kind")))
                }
            },
        }
    }

    /// A message came without its descriptors. A call fails for that, and what it got is given back
    /// as what comes too late; of an event nobody knows what it was about, so that only a new
    /// attachment helps.
    fn accept_incomplete(&mut self, header: Header, body: Vec<u8>) -> Result<Option<Reply>> {
        let is_reply = header.kind == Kind::Reply;
        let awaited = self.is_calling && header.request == self.last_request;
        if is_reply && !awaited {
            self.note_late((header, body, Vec::new()));
            return Ok(None);
        }
        self.gone = !is_reply;
        self.incomplete = is_reply.then(|| (header, body, Vec::new()));
        Err(Error::System {
            what: "receive descriptors from the broker",
            errno: Errno::MFILE,
        })
    }

    fn transmit(&mut self, message: &[u8], fds: &[BorrowedFd<'_>], by: Instant) -> Result<()> {
        loop {
            match self.channel.send(message, fds) {
                Ok(()) => return Ok(()),
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    wait_for(&self.channel, PollFlags::OUT, by).map_err(|_| Error::Timeout)?;
                }
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    // Its last word may say why.
                    let refusal = self.await_reply(by).err();
                    self.gone = true;
                    return Err(refusal.unwrap_or(Error::BrokerGone));
                }
                Err(errno) => {
                    return Err(Error::System {
                        what: "send to the broker",
                        errno,
                    });
                }
            }
        }
    }

    fn await_reply(&mut self, by: Instant) -> Result<Reply> {
        loop {
            match self.channel.receive() {
                Err(Errno::AGAIN) => {
                    wait_readable(&self.channel, by).map_err(|_| Error::Timeout)?;
                }
                Err(errno) => {
                    return Err(Error::System {
                        what: "read from the broker",
                        errno,
                    });
                }
                Ok(received) => match self.accept(received)? {
                    Some(reply) if reply.0.request == CONNECTION => {
                        self.gone = true;
                        return Err(refused(THE_CONNECTION, reply.0.status));
                    }
                    Some(reply) if reply.0.request == self.last_request => return Ok(reply),
                    Some(reply) => self.note_late(reply),
                    None => {}
                },
            }
        }
    }
}

impl Control {
    /// Sends requests whose outcome does not matter, through a stub as others. They are not
    /// answered.
    pub(crate) fn one_way(&mut self) -> OneWay<'_> {
        OneWay(self)
    }
}

/// See [`Control::one_way`].
pub(crate) struct OneWay<'a>(&'a mut Control);

impl Call for OneWay<'_> {
    fn call(
        &mut self,
        service: u16,
        method: &Method,
        body: Vec<u8>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.0.check()?;
        let header = Header {
            kind: Kind::Request,
            service,
            method: method.number,
            request: ONE_WAY,
            status: 0,
            fds: fds.len() as u8,
        };
        let by = Instant::now() + CALL_TIMEOUT;
        self.0.transmit(&header.encode(&body), fds, by)?;
        Ok((Vec::new(), Vec::new()))
    }
}

impl Call for Control {
    fn call(
        &mut self,
        service: u16,
        method: &Method,
        body: Vec<u8>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>)> {
        self.check()?;
        self.last_request = self.last_request.wrapping_add(1).max(CONNECTION + 1);
        let header = Header {
            kind: Kind::Request,
            service,
            method: method.number,
            request: self.last_request,
            status: 0,
            fds: fds.len() as u8,
        };
        let by = Instant::now() + CALL_TIMEOUT;
        self.transmit(&header.encode(&body), fds, by)?;
        causeway_fault::point("call.sent");
        self.is_calling = true;
        // It takes the broker a while: looking before would be a system call for nothing.
        let waited = wait_readable(&self.channel, by).map_err(|_| Error::Timeout);
        let outcome = waited.and_then(|()| self.await_reply(by));
        self.is_calling = false;
        let incomplete = self.incomplete.take();
        if matches!(outcome, Err(Error::Timeout)) || incomplete.is_some() {
            self.note_timed_out(service, method.name, body);
        }
        if let Some(reply) = incomplete {
            self.note_late(reply);
        }
        let (reply, body, fds) = outcome?;
        causeway_fault::point("call.answered");
        match reply.status {
            0 => Ok((body, fds)),
            status => Err(refused(method.name, status)),
        }
    }
}

/// A status that is no errno value is still a refusal.
fn refused(method: &'static str, status: i32) -> Error {
    let errno = Errno::from_raw_os_error(status.clamp(1, i32::from(u8::MAX)));
    Error::Refused { method, errno }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::{VERSION, encode_body, send};
    use crate::services::{BrokerStub, SERVICE, StatusCursor, StatusPage};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Control, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (client, broker) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Control::new(client), broker)
    }

    /// What a broker says; said before the call, it lies in the socket when the call looks.
    fn say(broker: &OwnedFd, kind: Kind, request: u32, status: i32, body: &[u8]) {
        let header = Header {
            kind,
            service: SERVICE,
            method: 1,
            request,
            status,
            fds: 0,
        };
        send(broker, &header.encode(body), &[]).unwrap();
    }

    fn status(control: &mut Control) -> Result<StatusPage> {
        BrokerStub(control)
            .status(&StatusCursor::default(), &[])
            .map(|(page, _)| page)
    }

    #[test]
    fn events_and_late_replies_do_not_answer_a_call() {
        let (mut control, broker) = pair();
        say(&broker, Kind::Reply, 77, 5, &[]);
        say(&broker, Kind::Event, 0, 0, b"news");
        say(
            &broker,
            Kind::Reply,
            1,
            0,
            &encode_body(&StatusPage::default()),
        );
        assert_eq!(status(&mut control).unwrap(), StatusPage::default());
        let event = control.take_events().pop_front().unwrap();
        assert_eq!((event.service, event.number), (SERVICE, 1));
        assert_eq!(event.body, b"news");
        assert!(!control.is_gone());
    }

    #[test]
    fn what_a_call_that_timed_out_got_is_told_once() {
        let (mut control, broker) = pair();
        assert!(matches!(status(&mut control), Err(Error::Timeout)));
        say(&broker, Kind::Reply, 1, 0, b"what it got");
        say(&broker, Kind::Reply, 1, 0, b"again");
        say(&broker, Kind::Reply, 77, 0, b"nobody's");
        control.drain();
        let late = control.take_late().pop().unwrap();
        assert_eq!((late.service, late.method), (SERVICE, "status"));
        assert_eq!(late.request, encode_body(&StatusCursor::default()));
        assert_eq!(late.body, b"what it got");
        assert!(control.take_late().is_empty());
        // A refusal has left nothing, also where the next call finds it.
        assert!(matches!(status(&mut control), Err(Error::Timeout)));
        say(&broker, Kind::Reply, 2, Errno::BUSY.raw_os_error(), &[]);
        say(&broker, Kind::Reply, 3, Errno::PERM.raw_os_error(), &[]);
        assert!(matches!(status(&mut control), Err(Error::Refused { .. })));
        assert!(control.take_late().is_empty());
    }

    /// A reply that has lost its descriptors.
    fn robbed(control: &mut Control, request: u32) -> Result<Option<Reply>> {
        let header = Header {
            kind: Kind::Reply,
            service: SERVICE,
            method: 1,
            request,
            status: 0,
            fds: 1,
        };
        control.accept(Received::Incomplete(header, b"what it got".to_vec()))
    }

    #[test]
    fn what_comes_late_is_told_though_its_descriptors_were_lost() {
        let (mut control, broker) = pair();
        assert!(matches!(status(&mut control), Err(Error::Timeout)));
        // Nobody waits for it, whether another call was made since or not.
        assert!(matches!(robbed(&mut control, 1), Ok(None)));
        let late = control.take_late().pop().unwrap();
        assert_eq!((late.method, late.fds.len()), ("status", 0));
        assert_eq!(late.body, b"what it got");
        assert!(matches!(robbed(&mut control, 1), Ok(None)), "told once");
        assert!(matches!(robbed(&mut control, 77), Ok(None)), "nobody's");
        assert!(control.take_late().is_empty() && !control.is_gone());
        drop(broker);
    }

    #[test]
    fn a_refusal_carries_its_errno() {
        let (mut control, broker) = pair();
        say(&broker, Kind::Reply, 1, Errno::BUSY.raw_os_error(), &[]);
        let refusal = status(&mut control).unwrap_err();
        assert!(matches!(
            refusal,
            Error::Refused {
                method: "status",
                ..
            }
        ));
        assert_eq!(refusal.errno(), Errno::BUSY.raw_os_error());
        // A status that is no errno value is still a refusal.
        say(&broker, Kind::Reply, 2, i32::MIN, &[]);
        assert!(matches!(status(&mut control), Err(Error::Refused { .. })));
    }

    #[test]
    fn a_refused_connection_says_so_though_it_is_closed() {
        for closed in [false, true] {
            let (mut control, broker) = pair();
            say(&broker, Kind::Reply, CONNECTION, 13, &[]);
            let kept = (!closed).then_some(broker);
            let refusal = status(&mut control).unwrap_err();
            assert!(matches!(
                refusal,
                Error::Refused {
                    method: "the connection",
                    errno: Errno::ACCESS
                }
            ));
            assert!(control.is_gone());
            drop(kept);
        }
    }

    #[test]
    fn a_broker_that_breaks_the_protocol_is_left() {
        let (mut control, broker) = pair();
        say(&broker, Kind::Request, 1, 0, &[]);
        assert!(matches!(status(&mut control), Err(Error::Protocol(_))));
        assert!(control.is_gone());
        assert!(matches!(status(&mut control), Err(Error::BrokerGone)));
        let (mut control, broker) = pair();
        say(&broker, Kind::Reply, 1, 0, b"no status page");
        assert!(matches!(status(&mut control), Err(Error::Protocol(_))));
    }

    #[test]
    fn a_broker_of_another_release_is_named_with_both_versions() {
        let (mut control, broker) = pair();
        let header = Header {
            kind: Kind::Reply,
            service: 0,
            method: 0,
            request: crate::remoting::CONNECTION,
            status: Errno::PROTONOSUPPORT.raw_os_error(),
            fds: 0,
        };
        let mut message = header.encode(&[]);
        let theirs = VERSION + 1;
        message[2..4].copy_from_slice(&theirs.to_le_bytes());
        send(&broker, &message, &[]).unwrap();
        let error = status(&mut control).unwrap_err();
        assert_eq!(error.errno(), Errno::PROTONOSUPPORT.raw_os_error());
        let said = error.to_string();
        let both = [theirs, VERSION].map(|version| format!("version {version}"));
        assert!(both.iter().all(|version| said.contains(version)), "{said}");
    }

    #[test]
    fn the_end_is_noticed_in_a_call_and_between() {
        let (mut control, broker) = pair();
        drop(broker);
        assert!(matches!(status(&mut control), Err(Error::BrokerGone)));
        let (mut control, broker) = pair();
        control.drain();
        assert!(!control.is_gone());
        drop(broker);
        control.drain();
        assert!(control.is_gone());
    }
}
