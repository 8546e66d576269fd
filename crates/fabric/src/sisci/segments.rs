//! Calls about segments.

use std::os::fd::OwnedFd;

use causeway_shm::Life;
use rustix::io::Errno;

use super::Sisci;
use super::registry::{KeptConnection, KeptSegment};
use crate::attachment::{single, with_copy};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::remoting::Malformed;
use crate::services::sisci::{
    AttachSegmentRequest, Backing, ConnectSegmentRequest, ConnectionHandle, CreateSegmentRequest,
    LocalSegmentReply, MappedRequest, RegisterRequest, RemoveRequest, RestoreConnectionRequest,
    SegmentHandle, SegmentState, SisciStub, UnavailableRequest,
};

/// A local segment.
pub type LocalSegment = LocalSegmentReply;

/// A connection to a segment or an interrupt, made or pending.
pub type Connection = crate::services::sisci::ConnectSegmentReply;

/// What a connection leads to.
#[derive(Debug)]
pub struct Grant {
    /// The segment's memory, sealed, for reading and writing: `size` bytes at `offset`.
    pub memory: OwnedFd,
    /// Bytes.
    pub size: u64,
    /// Where the segment begins in the memory.
    pub offset: u64,
    /// Names the connection at both ends.
    pub name: u64,
    /// Names the segment.
    pub segment_name: u64,
    /// Dead once the connection is lost or cut, or the segment's owner died.
    pub life: Life,
    /// Whether the memory holds all replicas of a group ([`super::replicas`]).
    pub replicas: bool,
}

impl Sisci {
    /// Creates a segment of this node. Its memory comes with it, unless its backing is
    /// [`Backing::Empty`]. All numbers are in the reply, the size rounded up to pages.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EEXIST` if the id is in use, `EINVAL` for a size of nothing or a group
    /// of another size, `EPERM`
    /// for a group of the other kind, `EDQUOT` beyond the limits of the broker's configuration.
    pub fn create_segment(
        &self,
        id: Option<u32>,
        size: u64,
        backing: Backing,
        private: bool,
    ) -> Result<(LocalSegment, Option<OwnedFd>)> {
        let request = CreateSegmentRequest {
            id,
            size,
            backing,
            private,
        };
        self.session.call(|control, registry| {
            let (reply, fds) = SisciStub(control).create_segment(&request, &[])?;
            let both = match backing {
                Backing::Empty => none(&fds).map(|()| None),
                _ => with_copy(fds).map(Some),
            };
            let both = both.inspect_err(|_| give_up(control, reply.segment))?;
            let (memory, copy) = both.unzip();
            let kept = KeptSegment::new(reply.clone(), backing, private, copy);
            registry.segments.insert(reply.segment, kept);
            Ok((reply, memory))
        })
    }

    /// Gives an empty segment memory: a sparse memfd of [`crate::limits::SEGMENT_BYTES`] of its
    /// own, into which the program's pages are to be moved, each to the offset that is its address.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` unless both are whole pages and the segment is empty and has as
    /// many bytes; `EBUSY` if it has memory and has been prepared, or was not made empty.
    pub fn register_memory(&self, segment: u32, address: u64, size: u64) -> Result<OwnedFd> {
        let request = RegisterRequest {
            segment,
            offset: address,
            size,
        };
        self.session.call(|control, registry| {
            let (_, fds) = SisciStub(control).register_memory(&request, &[])?;
            let (memory, copy) = with_copy(fds)?;
            if let Some(kept) = registry.segments.get_mut(&segment) {
                kept.reply.offset = address;
                kept.reply.size = size;
                kept.memory = Some(copy);
            }
            Ok(memory)
        })
    }

    /// Makes a segment ready to be made available.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EINVAL` if it has no memory.
    pub fn prepare_segment(&self, segment: u32) -> Result<()> {
        self.session.call(|control, registry| {
            SisciStub(control).prepare_segment(&SegmentHandle { segment }, &[])?;
            if let Some(kept) = registry.segments.get_mut(&segment) {
                kept.reply.state = kept.reply.state.max(SegmentState::Prepared);
            }
            Ok(())
        })
    }

    /// Lets others connect to a segment.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ESRCH` if it is not prepared, `EPERM` if it is private.
    pub fn set_available(&self, segment: u32) -> Result<()> {
        self.session.call(|control, registry| {
            SisciStub(control).set_available(&SegmentHandle { segment }, &[])?;
            if let Some(kept) = registry.segments.get_mut(&segment) {
                kept.reply.state = SegmentState::Available;
            }
            Ok(())
        })
    }

    /// Lets nobody else connect. With `force` connected sessions lose their connections; with
    /// `notify` they are asked to disconnect.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ESRCH` if it was never available.
    pub fn set_unavailable(&self, segment: u32, force: bool, notify: bool) -> Result<()> {
        let request = UnavailableRequest {
            segment,
            force,
            notify,
        };
        self.session.call(|control, registry| {
            let (life, _) = SisciStub(control).set_unavailable(&request, &[])?;
            registry.set_life(segment, life);
            if let Some(kept) = registry.segments.get_mut(&segment) {
                kept.reply.state = SegmentState::Unavailable;
            }
            Ok(())
        })
    }

    /// Removes a local segment. One that others are attached to goes on without this process.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EBUSY` while somebody else has mapped it, unless `force`d.
    pub fn remove_segment(&self, segment: u32, force: bool) -> Result<()> {
        let request = RemoveRequest {
            handle: segment,
            force,
        };
        self.session.call(|control, registry| {
            SisciStub(control).remove_segment(&request, &[])?;
            registry.segments.remove(&segment);
            Ok(())
        })
    }

    /// Lets other processes of the node attach to a segment.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn share_segment(&self, segment: u32) -> Result<()> {
        self.session.call(|control, registry| {
            SisciStub(control).share_segment(&SegmentHandle { segment }, &[])?;
            if let Some(kept) = registry.segments.get_mut(&segment) {
                kept.shared = true;
            }
            Ok(())
        })
    }

    /// Attaches to a shared segment of this node. It is a local segment then.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT` if there is none, `EACCES` if it is not shared; `EAGAIN`
    /// as [`Sisci::connect_segment`].
    pub fn attach_segment(&self, id: u32) -> Result<(LocalSegment, OwnedFd)> {
        self.session.call(|control, registry| {
            let request = AttachSegmentRequest { id };
            let (reply, fds) = SisciStub(control).attach_segment(&request, &[])?;
            let both = with_copy(fds).inspect_err(|_| give_up(control, reply.segment));
            let (memory, copy) = both?;
            let backing = Backing::Own;
            let mut kept = KeptSegment::new(reply.clone(), backing, false, Some(copy));
            kept.shared = true;
            registry.segments.insert(reply.segment, kept);
            Ok((reply, memory))
        })
    }

    /// Connects to a segment of a node. One that is not there is refused at once, unless `wait`:
    /// then the connection is pending until [`crate::services::sisci::RemoteChange::Connected`], or
    /// until it is disconnected. What it leads to is to be fetched.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EHOSTUNREACH` if there is no such node, `ENOENT` if it has no such
    /// segment, or one that was never available; `ECONNREFUSED` if it was, and is not; `EAGAIN` if
    /// the broker before this one knew it, and its owner may yet come back.
    pub fn connect_segment(
        &self,
        node: u32,
        id: u32,
        group: bool,
        wait: bool,
    ) -> Result<Connection> {
        let request = ConnectSegmentRequest {
            node,
            id,
            group,
            wait,
        };
        self.session.call(|control, registry| {
            let (reply, _) = SisciStub(control).connect_segment(&request, &[])?;
            let kept = KeptConnection {
                request: request.clone(),
                grant: None,
                watched: false,
                mapped: false,
                operational: true,
            };
            registry.connections.insert(reply.connection, kept);
            Ok(reply)
        })
    }

    /// What a connection leads to.
    ///
    /// # Errors
    /// [`Error::Refused`]: `EAGAIN` if it is pending; `EBADF` if it was lost.
    pub fn fetch_connection(&self, connection: u32) -> Result<Grant> {
        self.session.call(|control, registry| {
            let request = ConnectionHandle { connection };
            let (reply, fds) = SisciStub(control).fetch_connection(&request, &[])?;
            let memory = single(fds)?;
            if let Some(kept) = registry.connections.get_mut(&connection) {
                kept.grant = Some(reply.clone());
            }
            Ok(Grant {
                memory,
                size: reply.size,
                offset: reply.offset,
                replicas: reply.replicas,
                name: reply.name,
                segment_name: reply.segment_name,
                life: Life {
                    index: reply.life.index,
                    generation: reply.life.generation,
                },
            })
        })
    }

    /// Takes up a connection that another session had, or one that was pending, under the number
    /// that it had. The other session, if it is still there, has it no more. Returns whether the
    /// segment's owner is there.
    ///
    /// # Errors
    /// [`Error::Refused`]: `ENOENT` if the segment has gone, or is another now; `EINVAL` if the
    /// number is taken, or the connection is not of such a session.
    pub fn restore_connection(&self, request: &RestoreConnectionRequest) -> Result<bool> {
        self.session.call(|control, registry| {
            let (reply, _) = SisciStub(control).restore_connection(request, &[])?;
            let kept = KeptConnection {
                request: request.request.clone(),
                grant: None,
                watched: false,
                mapped: false,
                operational: reply.operational,
            };
            registry.connections.insert(request.connection, kept);
            Ok(reply.operational)
        })
    }

    /// Asks to be told when the owner of a connection's segment is stopped, and goes on
    /// ([`crate::services::sisci::RemoteChange::NotOperational`]). Holds for the next broker too.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`].
    pub fn watch_connection(&self, connection: u32) -> Result<()> {
        self.session.call(|control, registry| {
            if let Some(kept) = registry.connections.get_mut(&connection) {
                kept.watched = true;
            }
            let request = ConnectionHandle { connection };
            let outcome = SisciStub(control).watch_connection(&request, &[]);
            forgiving(outcome.map(drop))
        })
    }

    /// Says whether the memory of a connection's segment is mapped: while it is, the segment's
    /// owner can remove it by force alone. Holds for the next broker too.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`].
    pub fn note_mapped(&self, connection: u32, mapped: bool) -> Result<()> {
        self.session.call(|control, registry| {
            if let Some(kept) = registry.connections.get_mut(&connection) {
                kept.mapped = mapped;
            }
            let request = MappedRequest { connection, mapped };
            let outcome = SisciStub(control).note_mapped(&request, &[]);
            forgiving(outcome.map(drop))
        })
    }

    /// Gives up a connection, made or pending. Nothing happens if it was lost. What is mapped of
    /// it stays memory until it is unmapped.
    ///
    /// # Errors
    /// As [`crate::session::Session::call`].
    pub fn disconnect_segment(&self, connection: u32) -> Result<()> {
        self.session.call(|control, registry| {
            let request = ConnectionHandle { connection };
            let outcome = SisciStub(control).disconnect_segment(&request, &[]);
            forgiving(outcome.map(drop))?;
            registry.connections.remove(&connection);
            Ok(())
        })
    }
}

/// A handle that the broker does not have has ended already.
pub(super) fn forgiving(outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(Error::Refused {
            errno: Errno::BADF, ..
        }) => Ok(()),
        outcome => outcome,
    }
}

/// A segment that was made or attached to, and whose memory this process has no room for, is none
/// of its.
fn give_up(control: &mut Control, segment: u32) {
    let request = RemoveRequest {
        handle: segment,
        force: true,
    };
    // Without a broker nobody keeps it.
    let _ = SisciStub(&mut control.one_way()).remove_segment(&request, &[]);
}

fn none(fds: &[OwnedFd]) -> Result<()> {
    match fds {
        [] => Ok(()),
        _ => Err(Malformed::Descriptors.into()),
    }
}
