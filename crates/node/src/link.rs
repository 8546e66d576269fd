//! The queue pair that one peer's WRITEs, READs and triggers come to.

use std::net::IpAddr;
use std::sync::Arc;

use causeway_cancel::Allowed;
use causeway_device::{CompChannel, Context, Cq, Destination, Errno, Pd, QPT_RC, Qp, QpInit};
use causeway_fabric::services::node::{OpenReply, OpenRequest, TRIGGER_BYTES};
use causeway_identity::Access;
use causeway_proto::types::{QpCap, RecvWr, Sge, WcStatus};

use crate::limits::TRIGGERS_MAX;
use crate::memory::Region;

/// The place of a SEND that was received, and the trigger that it is.
type Received = (u64, Option<u32>);

/// A protection domain with a queue pair, once the peer has named its own.
pub struct Link {
    pd: Arc<Pd>,
    channel: Arc<CompChannel>,
    cq: Arc<Cq>,
    /// Where SENDs are received, [`TRIGGER_BYTES`] each.
    received: Option<Region>,
    qp: Option<Arc<Qp>>,
}

impl Link {
    /// Without a queue pair.
    ///
    /// # Errors
    /// The device's.
    pub fn new(context: &Arc<Context>) -> Result<Link, Errno> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        channel.set_nonblocking()?;
        let cq = context.create_cq(2 * TRIGGERS_MAX, Some(&channel), 0)?;
        let room = TRIGGERS_MAX as usize * TRIGGER_BYTES;
        let received = Region::own(&pd, room).map_err(|errno| Errno(errno.raw_os_error()))?;
        Ok(Link {
            pd,
            channel,
            cq,
            received: Some(received),
            qp: None,
        })
    }

    /// The domain in which the peer's segments are registered.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Ends the queue pair, if there is one. Returns the triggers that it had received: they were
    /// acknowledged, so nobody sends them again; and what the device failed with, if it did.
    pub fn retire(&mut self) -> (Vec<u32>, Result<(), Errno>) {
        let mut named = Vec::new();
        let outcome = self.take_last(&mut named);
        (named, outcome)
    }

    fn take_last(&mut self, named: &mut Vec<u32>) -> Result<(), Errno> {
        let Some(last) = self.qp.take() else {
            return Ok(());
        };
        last.destroy()?;
        loop {
            let (taken, received) = self.take(last.qpn())?;
            named.extend(received.iter().filter_map(|(_, trigger)| *trigger));
            if taken == 0 {
                return Ok(());
            }
        }
    }

    /// Makes a queue pair and joins it to the peer's. The last one has been retired.
    ///
    /// # Errors
    /// The device's.
    pub fn join(
        &mut self,
        (from, to): (IpAddr, IpAddr),
        peer: &OpenRequest,
    ) -> Result<OpenReply, Errno> {
        let init = QpInit {
            qp_type: QPT_RC,
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            srq: None,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: TRIGGERS_MAX,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            sq_sig_all: true,
        };
        let qp = self.pd.create_qp(init, 0)?;
        let sq_psn = Destination::first_psn()?;
        let destination = Destination {
            from,
            to,
            qpn: peer.qpn,
            sq_psn,
            rq_psn: peer.psn,
        };
        let joined = qp.join(&destination, Access::REMOTE_WRITE | Access::REMOTE_READ);
        let reply = OpenReply {
            qpn: qp.qpn(),
            psn: sq_psn,
        };
        self.qp = Some(qp);
        joined?;
        for place in 0..TRIGGERS_MAX {
            self.receive_at(place.into())?;
        }
        self.cq.req_notify(false)?;
        Ok(reply)
    }

    fn receive_at(&self, place: u64) -> Result<(), Errno> {
        let (Some(qp), Some(region)) = (&self.qp, &self.received) else {
            return Err(Errno(rustix::io::Errno::NOTCONN.raw_os_error()));
        };
        let sge = Sge {
            addr: region.base() + place * TRIGGER_BYTES as u64,
            length: TRIGGER_BYTES as u32,
            lkey: region.key(),
        };
        let wr = RecvWr {
            wr_id: place,
            sges: [sge].into_iter().collect(),
        };
        let posted = qp.post_recv_list([Ok(wr)].into_iter());
        posted.map_err(|(_, errno)| errno)
    }

    /// Announces when [`Link::triggers`] may have something.
    pub fn channel(&self) -> &Arc<CompChannel> {
        &self.channel
    }

    /// Takes an event of the channel, and the triggers that have come: the connections that they
    /// name. A SEND of another length is none. Without an event there is nothing. With an error of
    /// the device's the connection is of no use any more; the triggers taken before it are to be
    /// delivered still, since they were acknowledged.
    pub fn triggers(&self) -> (Vec<u32>, Result<(), Errno>) {
        let mut named = Vec::new();
        let outcome = self.take_triggers(&mut named);
        (named, outcome)
    }

    fn take_triggers(&self, named: &mut Vec<u32>) -> Result<(), Errno> {
        match self.channel.get_event(Allowed::NO) {
            Ok(_) => self.cq.ack_events(1),
            // The device's other thread has taken it.
            Err(Errno(libc::EAGAIN)) => return Ok(()),
            Err(why) => return Err(why),
        }
        self.cq.req_notify(false)?;
        let Some(own) = self.qp.as_ref().map(|qp| qp.qpn()) else {
            return Ok(());
        };
        let (_, received) = self.take(own)?;
        named.extend(received.iter().filter_map(|(_, trigger)| *trigger));
        for (place, _) in received {
            self.receive_at(place)?;
        }
        Ok(())
    }

    /// Takes a portion of completions: how many, and of those of SENDs to the queue pair `own` the
    /// place where each lies, with the trigger that it is.
    fn take(&self, own: u32) -> Result<(usize, Vec<Received>), Errno> {
        let mut received = Vec::new();
        let taken = self.cq.poll(TRIGGERS_MAX as usize, |wc, _| {
            if own == wc.qp_num && wc.status == WcStatus::Success {
                received.push((wc.wr_id, self.trigger_at(wc.wr_id, wc.byte_len)));
            }
        })?;
        Ok((taken, received))
    }

    fn trigger_at(&self, place: u64, length: u32) -> Option<u32> {
        let region = self.received.as_ref()?;
        let word = region.word(place as usize * TRIGGER_BYTES);
        (length as usize == TRIGGER_BYTES).then(|| u32::from_le(word))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The queue pair first: what it may reach ends with it.
        let ended = self.qp.take().map(|qp| qp.destroy());
        self.received = None;
        let ended = [
            ended.unwrap_or(Ok(())),
            self.cq.destroy(),
            self.channel.destroy(),
            self.pd.dealloc(),
        ];
        for why in ended.into_iter().filter_map(Result::err) {
            tracing::warn!(%why, "cannot give back part of a queue pair");
        }
    }
}
