//! How a port receives datagrams.

use std::array;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use causeway_cancel::off;
use quinn_udp::{EcnCodepoint, RecvMeta, UdpSockRef};

use super::{MORE, RECV_BATCH, RECV_SIZE, SEND_TRIES, STREAM, UdpPort};
use crate::alone::Came;
use crate::connected::ConnectedSocket;
use crate::received::{Received, Together};
use crate::{canonical, message};

impl UdpPort {
    /// Receives what is there, up to some batches' worth, and shows `f` each datagram with its
    /// source and the local address it was sent to.
    ///
    /// # Errors
    /// Whatever `recvmsg(2)` reports, except that there is nothing, and except errors of datagrams
    /// sent before ([`UdpPort::take_errors`] has them).
    pub fn recv(
        &mut self,
        mut f: impl FnMut(SocketAddr, Option<IpAddr>, &[u8]),
    ) -> io::Result<Received> {
        self.recv_together(|src, dst, all| all.datagrams.for_each(|one| f(src, dst, one)))
    }

    /// As [`UdpPort::recv`], with those at once that the kernel has joined together.
    ///
    /// # Errors
    /// As [`UdpPort::recv`].
    pub fn recv_together(
        &mut self,
        mut f: impl FnMut(SocketAddr, Option<IpAddr>, Together<'_>),
    ) -> io::Result<Received> {
        let mut meta = [RecvMeta::default(); RECV_BATCH];
        let got = self.recv_batch(&mut meta)?;
        let mut datagrams = 0;
        let mut bytes = 0;
        for (meta, buffer) in meta
            .iter()
            .zip(self.buffers.chunks_exact(RECV_SIZE))
            .take(got)
        {
            let src = canonical(meta.addr);
            let dst_ip = meta.dst_ip.map(|ip| ip.to_canonical());
            bytes += meta.len;
            let together = together(buffer, meta);
            datagrams += together.datagrams.len();
            f(src, dst_ip, together);
        }
        if got > 0 {
            self.connected.note_receive(None);
        }
        let full = got == self.offer;
        // A short datagram, as in a ping-pong, most often comes alone: to look for another would
        // only delay what it brought.
        let more = full && (got > 1 || bytes > MORE);
        // Where the kernel coalesces, one buffer after the other stays in the cache.
        let coalesced = bytes >= got * RECV_SIZE / 4;
        self.filled = if full { self.filled + 1 } else { 0 };
        if !full {
            self.offer = got.max(1);
        } else if self.filled > 1 && !coalesced {
            self.offer = (got * 2).min(RECV_BATCH);
        }
        Ok(Received {
            datagrams,
            more,
            stream: full && (got > 1 || bytes > STREAM),
        })
    }

    /// As [`UdpPort::recv_together`], from the sockets that are for one peer each: those in use,
    /// and those that were and may hold something; or `all`.
    ///
    /// # Errors
    /// As [`UdpPort::recv`].
    pub fn recv_connected(
        &mut self,
        all: bool,
        mut f: impl FnMut(SocketAddr, Option<IpAddr>, Together<'_>),
    ) -> io::Result<Received> {
        let mut received = Received::default();
        let mut nth = 0;
        while let Some(index) = self.connected.nth(nth, all) {
            received = received.and(self.recv_from(index, &mut f)?);
            nth += 1;
        }
        if !all && self.connected.has_left() {
            received = received.and(self.recv_left(&mut f));
        }
        Ok(received)
    }

    /// As [`UdpPort::recv_together`], from the sockets that lead nowhere now and may hold what came
    /// before: until they hold nothing.
    #[cold]
    fn recv_left(
        &mut self,
        f: &mut impl FnMut(SocketAddr, Option<IpAddr>, Together<'_>),
    ) -> Received {
        let mut received = Received::default();
        for index in self.connected.take_left() {
            let found = self.recv_from(index, f).unwrap_or_default();
            if found.datagrams > 0 {
                self.connected.keep_left(index);
            }
            received = received.and(found);
        }
        received
    }

    /// As [`UdpPort::recv_together`], from the socket for one peer with this index.
    ///
    /// # Errors
    /// As [`UdpPort::recv`].
    #[inline]
    pub fn recv_from(
        &mut self,
        index: usize,
        f: &mut impl FnMut(SocketAddr, Option<IpAddr>, Together<'_>),
    ) -> io::Result<Received> {
        let nothing = Received::default();
        let Some(peer) = self.connected.at(index) else {
            return Ok(nothing);
        };
        let (Some(dst_ip), Some(buffer)) = (peer.src(), self.buffers.get_mut(..RECV_SIZE)) else {
            return Ok(nothing);
        };
        let Some(meta) = receive_one(peer, buffer, self.proves_length)? else {
            return Ok(nothing);
        };
        let together = together(buffer, &meta);
        let received = Received {
            datagrams: together.datagrams.len(),
            more: meta.len > MORE,
            stream: meta.len > STREAM,
        };
        f(canonical(meta.addr), Some(dst_ip), together);
        self.connected.note_receive(Some(index));
        Ok(received)
    }

    /// Receives into the buffers; 0 if there is nothing.
    fn recv_batch(&mut self, meta: &mut [RecvMeta; RECV_BATCH]) -> io::Result<usize> {
        let mut chunks = self.buffers.chunks_exact_mut(RECV_SIZE);
        let mut slices: [IoSliceMut<'_>; RECV_BATCH] =
            array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        let mut result = Ok(0);
        for _ in 0..SEND_TRIES {
            let received = if self.offer == 1 {
                message::receive(self.socket.as_fd(), &mut slices[0]).map(|first| {
                    meta[0] = first;
                    1
                })
            } else {
                let socket = UdpSockRef::from(&self.socket);
                let offered = &mut slices[..self.offer];
                off(|| self.state.get_mut().recv(socket, offered, meta))
            };
            match received {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                Err(e) => result = Err(e),
            }
        }
        result
    }
}

/// What one buffer has received.
fn together<'a>(buffer: &'a [u8], meta: &RecvMeta) -> Together<'a> {
    Together {
        datagrams: buffer[..meta.len.min(RECV_SIZE)].chunks(meta.stride.max(1)),
        marked: meta.ecn == Some(EcnCodepoint::Ce),
    }
}

/// Receives once, as often as errors of datagrams sent before get in the way.
#[inline]
fn receive_one(
    peer: &mut ConnectedSocket,
    buffer: &mut [u8],
    proves_length: Option<fn(&[u8]) -> bool>,
) -> io::Result<Option<RecvMeta>> {
    let fd = peer.socket.as_fd();
    let mut result = Ok(None);
    for _ in 0..SEND_TRIES {
        let received = match peer.dst() {
            Some(dst) if peer.alone.is_expected() => {
                message::receive_datagram(fd, buffer).map(|len| alone(dst, len))
            }
            _ => message::receive(fd, buffer),
        };
        match received {
            Ok(meta) => {
                let Some(proves_length) = proves_length else {
                    return Ok(Some(meta));
                };
                let came = Came {
                    len: meta.len,
                    single: meta.stride >= meta.len,
                    proves_length: proves_length(&buffer[..meta.len.min(buffer.len())]),
                };
                if meta.ecn == Some(EcnCodepoint::Ce) {
                    peer.alone.note_mark(fd);
                }
                if peer.alone.note(fd, came) {
                    return Ok(Some(meta));
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if proves_length.is_some() {
                    peer.alone.note_empty(fd);
                }
                return Ok(None);
            }
            Err(e) => result = Err(e),
        }
    }
    result
}

/// A datagram of which nothing but its length was asked.
fn alone(from: SocketAddr, len: usize) -> RecvMeta {
    let mut meta = RecvMeta::default();
    (meta.addr, meta.len, meta.stride) = (from, len, len);
    meta
}
