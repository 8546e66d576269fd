//! What the made-up broker knows, and what it answers where it is not told to answer otherwise.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use causeway_fabric::fds::sealed_memfd;
use causeway_fabric::limits::SEGMENT_BYTES;
use causeway_fabric::remoting::Answer;
use causeway_fabric::services::broker::BrokerService;
use causeway_fabric::services::secure::*;
use causeway_fabric::services::*;
use causeway_identity::Slot;
use causeway_shm::Ring;
use causeway_shm::layout::{MR_TABLE_BYTES, RING_CAPACITY, ring_len};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};

type Outcome<T> = Result<Answer<T>, Errno>;

/// An endpoint, as it has presented itself.
pub struct Endpoint {
    /// Inbox, doorbell, table of memory regions.
    pub fds: [OwnedFd; 3],
    pub slots: Vec<Slot>,
}

/// One end of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub endpoint: u64,
    pub qpn: u32,
    pub joined: bool,
}

/// A ring between two queue pairs.
pub struct Pairing {
    pub ring: OwnedFd,
    pub ends: [End; 2],
}

/// Everything that the broker knows.
#[derive(Default)]
pub struct Tables {
    pub endpoints: BTreeMap<u64, Endpoint>,
    /// By generation.
    pub pairings: BTreeMap<u64, Pairing>,
    pub segments: HashMap<u64, OwnedFd>,
    /// What has not been told yet, and to whom.
    pub news: Vec<(u64, PeerEvent)>,
    /// Connections that an earlier broker had made.
    pub restored: Vec<RestoreRequest>,
}

/// A name that no broker of this process has given to anything.
pub fn fresh_name() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

fn copy(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().unwrap()
}

impl Tables {
    /// The endpoint of a queue pair.
    fn owner(&self, qpn: u32) -> Option<u64> {
        let slot = Slot::of_qpn(qpn)?;
        let mut endpoints = self.endpoints.iter();
        endpoints.find_map(|(id, known)| known.slots.contains(&slot).then_some(*id))
    }

    /// What is to be told to the endpoint of a queue pair, and which that is.
    pub fn news_of(&self, local_qpn: u32, change: PeerChange) -> Option<(u64, PeerEvent)> {
        let mut pairings = self.pairings.iter();
        let (generation, end) = pairings.find_map(|(generation, pairing)| {
            let end = pairing.ends.iter().find(|end| end.qpn == local_qpn)?;
            Some((*generation, *end))
        })?;
        let event = PeerEvent {
            local_qpn,
            generation,
            change,
        };
        Some((end.endpoint, event))
    }

    /// Forgets the ring of a queue pair; its peer is told. One that waits for it is not its own
    /// yet: who leaves gets no answer, so its peer may be connecting anew already.
    fn part(&mut self, qpn: u32, change: PeerChange) {
        let is_own = |end: &End| end.qpn == qpn && end.joined;
        let has = |pairing: &Pairing| pairing.ends.iter().any(is_own);
        let found = self.pairings.iter().find(|(_, pairing)| has(pairing));
        let Some(generation) = found.map(|(generation, _)| *generation) else {
            return;
        };
        let ends = self.pairings[&generation].ends;
        for peer in ends.iter().filter(|end| end.qpn != qpn && end.joined) {
            self.news.extend(self.news_of(peer.qpn, change));
        }
        self.pairings.remove(&generation);
    }

    /// The ring that waits for a queue pair of the test's, which joins it, and its peer's table.
    pub fn join(&mut self, qpn: u32) -> [OwnedFd; 2] {
        let mut pairings = self.pairings.values_mut();
        let pairing = pairings.find(|pairing| pairing.ends[1].qpn == qpn).unwrap();
        pairing.ends[1].joined = true;
        let peer = &self.endpoints[&pairing.ends[0].endpoint];
        [copy(&pairing.ring), copy(&peer.fds[2])]
    }

    /// An endpoint has gone.
    pub fn forget(&mut self, endpoint: u64) {
        let ends = self.pairings.values().flat_map(|pairing| pairing.ends);
        let own: Vec<End> = ends.filter(|end| end.endpoint == endpoint).collect();
        for end in own {
            self.part(end.qpn, PeerChange::Dead);
        }
        self.endpoints.remove(&endpoint);
    }

    /// The ring that waits for a queue pair, or another. Returns its generation and the side.
    fn ring_for(&mut self, own: End, remote: End) -> Result<(u64, u8), Errno> {
        let waits = |pairing: &Pairing| {
            let [first, second] = pairing.ends;
            first
                == End {
                    joined: true,
                    ..remote
                }
                && second
                    == End {
                        joined: false,
                        ..own
                    }
        };
        let waiting = self.pairings.iter_mut().find(|(_, pairing)| waits(pairing));
        if let Some((&generation, pairing)) = waiting {
            pairing.ends[1].joined = true;
            self.news
                .extend(self.news_of(remote.qpn, PeerChange::Joined));
            return Ok((generation, 1));
        }
        let ring = sealed_memfd("made-up-ring", ring_len(RING_CAPACITY) as u64)?;
        rustix::io::pwrite(&ring, &Ring::header(), 0)?;
        let generation = fresh_name();
        let ends = [own, remote];
        self.pairings.insert(generation, Pairing { ring, ends });
        Ok((generation, 0))
    }
}

/// A call of an endpoint.
pub struct Turn<'a> {
    pub endpoint: u64,
    pub tables: &'a mut Tables,
}

/// What is not needed by the device.
fn unknown<T>() -> Outcome<T> {
    Err(Errno::NOSYS)
}

impl BrokerService for Turn<'_> {
    fn attach(&mut self, request: AttachRequest, fds: Vec<OwnedFd>) -> Outcome<AttachReply> {
        let mut fds = fds.into_iter();
        let (inbox, doorbell) = (fds.next().unwrap(), fds.next().unwrap());
        let known = fds.nth(usize::from(request.pid_namespace));
        let fresh = known.is_none();
        let table = match known {
            Some(table) => table,
            None => sealed_memfd("made-up-table", MR_TABLE_BYTES as u64)?,
        };
        let answer = Answer {
            body: AttachReply {
                endpoint: self.endpoint,
                ..AttachReply::default()
            },
            fds: fresh.then(|| copy(&table)).into_iter().collect(),
        };
        let endpoint = Endpoint {
            fds: [inbox, doorbell, table],
            slots: Vec::new(),
        };
        self.tables.endpoints.insert(self.endpoint, endpoint);
        Ok(answer)
    }

    fn add_slot(&mut self, request: SlotRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        let slot = Slot::new(request.slot).ok_or(Errno::INVAL)?;
        let endpoint = self.tables.endpoints.get_mut(&self.endpoint);
        endpoint.ok_or(Errno::INVAL)?.slots.push(slot);
        Ok(().into())
    }

    fn remove_slot(&mut self, request: SlotRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        let slot = Slot::new(request.slot).ok_or(Errno::INVAL)?;
        let endpoint = self.tables.endpoints.get_mut(&self.endpoint);
        let slots = &mut endpoint.ok_or(Errno::INVAL)?.slots;
        let at = slots.iter().position(|known| *known == slot);
        slots.remove(at.ok_or(Errno::NOENT)?);
        Ok(().into())
    }

    fn connect(&mut self, request: ConnectBody, _: Vec<OwnedFd>) -> Outcome<ConnectReply> {
        let peer = self.tables.owner(request.remote_qpn).ok_or(Errno::NOENT)?;
        let own = End {
            endpoint: self.endpoint,
            qpn: request.local_qpn,
            joined: true,
        };
        let remote = End {
            endpoint: peer,
            qpn: request.remote_qpn,
            joined: false,
        };
        let (generation, side) = self.tables.ring_for(own, remote)?;
        let mut fds = vec![copy(&self.tables.pairings[&generation].ring)];
        if request.known != peer {
            fds.extend(self.tables.endpoints[&peer].fds.iter().map(copy));
        }
        let body = ConnectReply {
            wire: Wire::Ring,
            side,
            generation,
            peer,
            trusted: true,
            ring: 0,
            guest_table: 0,
        };
        Ok(Answer { body, fds })
    }

    fn disconnect(&mut self, request: DisconnectRequest, _: Vec<OwnedFd>) -> Outcome<StaleReply> {
        self.tables.part(request.local_qpn, PeerChange::Left);
        Ok(StaleReply::default().into())
    }

    fn restore(&mut self, request: RestoreRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        self.tables.restored.push(request);
        Ok(().into())
    }

    fn status(&mut self, _: StatusCursor, _: Vec<OwnedFd>) -> Outcome<StatusPage> {
        unknown()
    }

    fn tally(&mut self, _: TallyCursor, _: Vec<OwnedFd>) -> Outcome<TallyPage> {
        unknown()
    }

    fn sysfs_view(&mut self, _: SysfsRequest, _: Vec<OwnedFd>) -> Outcome<SysfsReply> {
        unknown()
    }

    fn set_access(&mut self, _: AccessRequest, _: Vec<OwnedFd>) -> Outcome<StaleReply> {
        Ok(StaleReply::default().into())
    }

    fn create_segment(
        &mut self,
        _: CreateSegmentRequest,
        _: Vec<OwnedFd>,
    ) -> Outcome<SegmentReply> {
        let fd = sealed_memfd("made-up-segment", SEGMENT_BYTES)?;
        let segment = fresh_name();
        self.tables.segments.insert(segment, copy(&fd));
        Ok(Answer {
            body: SegmentReply { segment },
            fds: vec![fd],
        })
    }

    fn destroy_segment(&mut self, request: SegmentRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        let segment = self.tables.segments.remove(&request.segment);
        segment.map(|_| ().into()).ok_or(Errno::NOENT)
    }

    fn restore_segment(
        &mut self,
        request: RestoreSegmentRequest,
        fds: Vec<OwnedFd>,
    ) -> Outcome<()> {
        let fd = fds.into_iter().next().unwrap();
        self.tables.segments.insert(request.segment, fd);
        Ok(().into())
    }

    fn map_segment(&mut self, request: MapRequest, _: Vec<OwnedFd>) -> Outcome<MapReply> {
        let segment = self.tables.segments.get(&request.segment);
        Ok(Answer {
            body: MapReply { writable: true },
            fds: vec![copy(segment.ok_or(Errno::NOENT)?)],
        })
    }

    fn userfaultfd(&mut self, (): (), _: Vec<OwnedFd>) -> Outcome<()> {
        Ok(().into())
    }

    fn reserve(&mut self, _: ReserveRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        Ok(().into())
    }

    fn report_addresses(&mut self, _: AddressesRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        Ok(().into())
    }

    fn leave(&mut self, request: Leave, _: Vec<OwnedFd>) -> Outcome<()> {
        self.tables.part(request.local_qpn, PeerChange::Left);
        Ok(().into())
    }

    fn guest_table(&mut self, _: GuestTableRequest, _: Vec<OwnedFd>) -> Outcome<GuestTableReply> {
        unknown()
    }

    fn trace(&mut self, _: TraceRequest, _: Vec<OwnedFd>) -> Outcome<TraceReply> {
        unknown()
    }

    fn trace_ring(&mut self, (): (), _: Vec<OwnedFd>) -> Outcome<TraceRingReply> {
        unknown()
    }

    fn asker(&mut self, (): (), _: Vec<OwnedFd>) -> Outcome<()> {
        Ok(().into())
    }

    fn wire(&mut self, query: WireQuery, _: Vec<OwnedFd>) -> Outcome<WireReply> {
        let secured = query.wanted;
        Ok(WireReply { secured }.into())
    }

    fn begin_handshake(&mut self, _: BeginRequest, _: Vec<OwnedFd>) -> Outcome<BeginReply> {
        unknown()
    }

    fn answer_handshake(&mut self, _: AnswerRequest, _: Vec<OwnedFd>) -> Outcome<HandshakeReply> {
        unknown()
    }

    fn finish_handshake(&mut self, _: FinishRequest, _: Vec<OwnedFd>) -> Outcome<HandshakeReply> {
        unknown()
    }

    fn associate(&mut self, _: AssociationRequest, _: Vec<OwnedFd>) -> Outcome<HandshakeReply> {
        unknown()
    }

    fn group_secrets(&mut self, _: GroupRequest, _: Vec<OwnedFd>) -> Outcome<GroupReply> {
        unknown()
    }

    fn restore_secured(&mut self, _: PeerRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        unknown()
    }

    fn seal_message(&mut self, _: Sealed, _: Vec<OwnedFd>) -> Outcome<Sealed> {
        unknown()
    }

    fn open_message(&mut self, _: Sealed, _: Vec<OwnedFd>) -> Outcome<Sealed> {
        unknown()
    }

    fn secured(&mut self, _: SecuredRequest, _: Vec<OwnedFd>) -> Outcome<SecuredReply> {
        unknown()
    }

    fn is_suspended(&mut self, _: PeerRequest, _: Vec<OwnedFd>) -> Outcome<bool> {
        Ok(false.into())
    }

    /// All endpoints are of the process that tests.
    fn peer_process(&mut self, _: PeerRequest, _: Vec<OwnedFd>) -> Outcome<()> {
        let fds = vec![pidfd_open(getpid(), PidfdFlags::empty())?];
        Ok(Answer { body: (), fds })
    }
}
