//! The broker's tables of endpoints, their slots and their connections.

mod connections;
mod grants;
mod lookup;
mod readers;
pub mod totals;
mod traces;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Instant;

use causeway_fabric::limits::{
    ENDPOINTS_MAX, NEWS_DELAY, NEWS_HELD_MAX, RETURN_GRACE, SLOTS_PER_ENDPOINT_MAX,
};
use causeway_fabric::services::{Leave, PeerChange, PeerEvent, WirePref};
use causeway_identity::Slot;
use causeway_shm::Stats;
use rustix::io::Errno;

use crate::admission::{Claim, Holder, Shares};
use crate::boundary::{Party, PidNamespace};
use crate::config::Limits;
use crate::final_acks::FinalAcks;
use crate::guest_tables::GuestTables;
use crate::ids::{EndpointId, Place, TenantId, VmId};
use crate::memory::Memory;
use crate::pairing::{Link, Pairing};
use crate::process_end::Fate;
use crate::rates::RateTables;
use crate::rings::{Lent, Rings, new_ring};
use crate::secure::Handshakes;
use crate::segments::{Rights, Segment};
use crate::sys::{copy, random};
use totals::Totals;
use traces::Traces;

/// A limit of the configuration that endpoints meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Connected queue pairs.
    Qps,
    /// Segments.
    Segments,
    /// Bytes of memory moved into segments.
    Bytes,
}

/// One attached process.
#[derive(Debug)]
pub struct Endpoint {
    /// The tenant it belongs to. Nothing is ever shared with endpoints of another.
    pub tenant: TenantId,
    /// Its limits.
    pub limits: Limits,
    /// Limits of which the log says already that it met them.
    pub met: Vec<Limit>,
    /// Process as the socket's credentials give it; 0 if it lives in a foreign PID namespace.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The PID namespace that it has shown.
    pub pid_namespace: Option<PidNamespace>,
    /// Whether its tenant is one trust boundary.
    pub one_boundary: bool,
    /// Its virtual machine.
    pub vm: Option<VmId>,
    /// Its addresses, as it says.
    pub addresses: Vec<[u8; 16]>,
    /// Its name, as it says.
    pub comm: String,
    /// Wires it is willing to use.
    pub wire: WirePref,
    /// Its inbox memfd, examined.
    pub inbox: OwnedFd,
    /// What it counts there, once that was looked at: `None` if it can't be read.
    pub stats: OnceLock<Option<Stats>>,
    /// Its doorbell eventfd, examined.
    pub doorbell: OwnedFd,
    /// Its MR table, made by this broker or an earlier one, open for reading.
    pub mr_table: OwnedFd,
    /// The inode of that.
    pub table_inode: u64,
    /// Its slots, each with the cookie of its network namespace; in the place of that, the VM.
    pub slots: BTreeMap<Slot, u64>,
    /// The network namespace of the first slot that it had, for what it counts.
    pub netns: Option<u64>,
    /// By what its final acknowledgments are said, for each slot, and not of a VM's process.
    pub final_acks: BTreeMap<Slot, FinalAcks>,
    /// Its connected QPs.
    pub links: BTreeMap<u32, Link>,
    /// Rings that others made for a QP of this endpoint which has not joined.
    pub invitations: BTreeSet<u64>,
    /// Rings of this endpoint that the broker holds a descriptor of.
    pub open_rings: usize,
    /// Its segments, by name.
    pub segments: BTreeMap<u64, Segment>,
    /// Bytes that it says it moves into them.
    pub reserved: u64,
    /// What joined rings entitle each other endpoint to, for each protection domain.
    pub rights: HashMap<(EndpointId, u32), Rights>,
}

/// All tables. Knows nothing of sockets: the server carries out what accumulates in the outbox.
#[derive(Debug)]
pub struct Hub {
    endpoints: BTreeMap<EndpointId, Endpoint>,
    places: HashMap<Place, EndpointId>,
    pairings: HashMap<u64, Pairing>,
    /// Rings of which one half was restored, oldest first, and when to give up on the other.
    restoring: VecDeque<(Instant, u64)>,
    outbox: Vec<(EndpointId, PeerEvent)>,
    /// When what is in the outbox is to be delivered at the latest.
    news_due: Option<Instant>,
    /// Rings that are used again.
    rings: Rings,
    /// Tables of memory regions for readers in VMs.
    guest_tables: GuestTables,
    /// Segments that became stale, and the endpoints to tell.
    stale: Vec<(EndpointId, u64)>,
    /// Handshakes of secured connections.
    pub(crate) handshakes: Handshakes,
    /// What endpoints that have ended had counted.
    pub(crate) totals: Totals,
    /// Traces, and who records for them.
    pub(crate) traces: Traces,
    /// What tenants leave to each other.
    pub(crate) shares: Shares,
    /// Limits on what endpoints send.
    pub(crate) rates: RateTables,
    /// User of this process, which owns the segments' inodes.
    pub(crate) own_uid: u32,
    last_endpoint: EndpointId,
    /// Until when endpoints of an earlier broker may be about to come back; `None` before any has.
    settled_at: Option<Instant>,
}

impl Hub {
    /// Empty tables.
    pub fn new() -> Hub {
        Hub {
            endpoints: BTreeMap::new(),
            places: HashMap::new(),
            pairings: HashMap::new(),
            restoring: VecDeque::new(),
            rings: Rings::default(),
            guest_tables: GuestTables::default(),
            outbox: Vec::new(),
            news_due: None,
            stale: Vec::new(),
            handshakes: Handshakes::default(),
            totals: Totals::default(),
            traces: Traces::default(),
            shares: Shares::default(),
            rates: RateTables::default(),
            own_uid: rustix::process::geteuid().as_raw(),
            // Half of the space is left to count upwards in.
            last_endpoint: random() >> 1,
            settled_at: None,
        }
    }

    /// An endpoint of an earlier broker has come back: others are on their way.
    pub fn note_return(&mut self, now: Instant) {
        self.settled_at.get_or_insert(now + RETURN_GRACE);
    }

    /// When no more endpoints of an earlier broker are waited for.
    pub(crate) fn settled_at(&self) -> Option<Instant> {
        self.settled_at
    }

    /// Whether endpoints of an earlier broker may be about to come back.
    pub(crate) fn is_settling(&self) -> bool {
        self.settled_at.is_some_and(|when| Instant::now() < when)
    }

    /// Adds an endpoint whose descriptors have been examined. `returns`: it brought
    /// its MR table from the broker before.
    ///
    /// # Errors
    /// `EMFILE` beyond [`ENDPOINTS_MAX`], `EDQUOT` beyond its tenant's or user's share.
    pub fn attach(&mut self, endpoint: Endpoint, returns: bool) -> Result<EndpointId, Errno> {
        // With one table only one comes back.
        let table = endpoint.table_inode;
        let returns = returns && self.endpoints.values().all(|e| e.table_inode != table);
        let claim = Claim {
            most: ENDPOINTS_MAX,
            limit: endpoint.limits.endpoints,
            holder: endpoint.holder(),
            returns,
        };
        let held = self.endpoints.values().map(Endpoint::holder);
        if let Err(errno) = self.shares.admit(&claim, held, Instant::now()) {
            let (pid, uid, tenant) = (endpoint.pid, endpoint.uid, endpoint.tenant);
            tracing::warn!(pid, uid, tenant, %errno, "refused: no place for an endpoint");
            self.totals.refused(tenant);
            return Err(errno);
        }
        self.last_endpoint += 1;
        self.traces.greet(self.last_endpoint, &endpoint);
        self.rates
            .attached(self.last_endpoint, endpoint.tenant, endpoint.vm);
        self.endpoints.insert(self.last_endpoint, endpoint);
        Ok(self.last_endpoint)
    }

    /// Forgets an endpoint that died: its slots become free and its peers are told how
    /// ([`PeerChange::Dead`], or [`PeerChange::Exited`]). Returns the segments that an endpoint may
    /// hold though it should not any more.
    pub fn detach(&mut self, id: EndpointId, how: PeerChange) -> Vec<Memory> {
        self.drop_links_of_dead(id, how);
        let Some(endpoint) = self.endpoints.remove(&id) else {
            return Vec::new();
        };
        self.totals.ended(&endpoint);
        self.rates.ended(id);
        for (slot, netns) in endpoint.slots {
            self.places.remove(&(netns, slot));
        }
        self.rings.end(id);
        self.handshakes.end(id);
        self.drop_guest_tables(id, endpoint.vm);
        self.outbox.retain(|(to, _)| *to != id);
        self.stale.retain(|(to, _)| *to != id);
        let exposed = endpoint.segments.into_values().filter(|s| s.stale);
        exposed.map(|segment| segment.fd).collect()
    }

    /// Forgets an endpoint whose process has ended or has lost its connection, and sends its final
    /// acknowledgments to peers on other hosts if it is dead. As [`Hub::detach`].
    pub fn end(&mut self, id: EndpointId, fate: Fate) -> Vec<Memory> {
        if fate != Fate::Unknown {
            let final_acks = self.take_final_acks(id);
            final_acks.values().for_each(|acks| acks.say(fate));
        }
        let how = match fate {
            Fate::Exited => PeerChange::Exited,
            Fate::Killed | Fate::Unknown => PeerChange::Dead,
        };
        self.detach(id, how)
    }

    /// Keeps what is to be said for an endpoint when its process is dead.
    pub fn add_final_acks(&mut self, id: EndpointId, slot: Slot, acks: FinalAcks) {
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.final_acks.insert(slot, acks);
        }
    }

    /// Takes what [`Hub::add_final_acks`] kept.
    fn take_final_acks(&mut self, id: EndpointId) -> BTreeMap<Slot, FinalAcks> {
        let endpoint = self.endpoints.get_mut(&id);
        endpoint.map_or_else(BTreeMap::new, |endpoint| {
            std::mem::take(&mut endpoint.final_acks)
        })
    }

    /// Gives a slot of a network namespace to an endpoint that has proved to own its port.
    ///
    /// # Errors
    /// `EADDRINUSE` if the slot is taken, `EMFILE` beyond
    /// [`SLOTS_PER_ENDPOINT_MAX`].
    pub fn add_slot(&mut self, id: EndpointId, slot: Slot, netns: u64) -> Result<(), Errno> {
        let endpoint = self.endpoints.get_mut(&id).ok_or(Errno::INVAL)?;
        // Also refuses one endpoint the same slot in two namespaces: its QPNs would collide.
        if self.places.contains_key(&(netns, slot)) || endpoint.slots.contains_key(&slot) {
            return Err(Errno::ADDRINUSE);
        }
        if endpoint.slots.len() >= SLOTS_PER_ENDPOINT_MAX {
            return Err(Errno::MFILE);
        }
        endpoint.netns.get_or_insert(netns);
        endpoint.slots.insert(slot, netns);
        self.places.insert((netns, slot), id);
        Ok(())
    }

    /// Takes a slot back from its endpoint. Rings that others made for its QPs end.
    ///
    /// # Errors
    /// `ENOENT` if the slot is not the endpoint's, `EBUSY` while QPs of it are connected.
    pub fn remove_slot(&mut self, id: EndpointId, slot: Slot) -> Result<(), Errno> {
        let endpoint = self.endpoints.get(&id).ok_or(Errno::INVAL)?;
        let netns = *endpoint.slots.get(&slot).ok_or(Errno::NOENT)?;
        if endpoint
            .links
            .keys()
            .any(|&qpn| Slot::of_qpn(qpn) == Some(slot))
        {
            return Err(Errno::BUSY);
        }
        self.decline_invitations(id, Some(slot));
        self.places.remove(&(netns, slot));
        if let Some(endpoint) = self.endpoints.get_mut(&id) {
            endpoint.slots.remove(&slot);
            endpoint.final_acks.remove(&slot);
        }
        Ok(())
    }

    /// An endpoint by its id.
    pub fn endpoint(&self, id: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(&id)
    }

    /// All endpoints, with their names.
    pub fn endpoints(&self) -> impl Iterator<Item = (EndpointId, &Endpoint)> {
        self.endpoints.iter().map(|(id, endpoint)| (*id, endpoint))
    }

    /// The endpoints of a tenant.
    pub fn endpoints_of(&self, tenant: TenantId) -> impl Iterator<Item = &Endpoint> {
        let all = self.endpoints.values();
        all.filter(move |endpoint| endpoint.tenant == tenant)
    }

    /// Whether two endpoints are inside one trust boundary.
    pub(crate) fn trust_each_other(&self, a: EndpointId, b: EndpointId) -> bool {
        let party = |id| self.endpoints.get(&id).map(Endpoint::party);
        party(a).zip(party(b)).is_some_and(|(a, b)| a.trusts(&b))
    }

    /// What an endpoint shows as its namespace.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn namespace(&self, fd: OwnedFd) -> Result<PidNamespace, Errno> {
        let known = self.endpoints.values();
        PidNamespace::examine(fd, known.filter_map(|known| known.pid_namespace.as_ref()))
    }

    /// Notes how much memory an endpoint moves into segments, in place of what it said before.
    ///
    /// # Errors
    /// `EDQUOT` if that is more than before and beyond its limit.
    pub fn reserve(&mut self, id: EndpointId, bytes: u64) -> Result<(), Errno> {
        let endpoint = self.endpoints.get_mut(&id).ok_or(Errno::INVAL)?;
        if bytes > endpoint.limits.bytes.max(endpoint.reserved) {
            return Err(endpoint.meets(id, Limit::Bytes));
        }
        endpoint.reserved = bytes;
        Ok(())
    }

    /// The first endpoint whose id is above `after`, or `after` itself if `inclusive`; of one
    /// tenant, or of all.
    pub fn next_endpoint(
        &self,
        after: EndpointId,
        inclusive: bool,
        tenant: Option<TenantId>,
    ) -> Option<(EndpointId, &Endpoint)> {
        let from = if inclusive {
            after
        } else {
            after.checked_add(1)?
        };
        self.endpoints
            .range(from..)
            .find(|(_, endpoint)| tenant.is_none_or(|tenant| tenant == endpoint.tenant))
            .map(|(id, endpoint)| (*id, endpoint))
    }

    /// A ring for the first end of a connection, and a descriptor for the second where it is not
    /// one of those that are kept.
    fn ring_for(
        &mut self,
        id: EndpointId,
        peer: EndpointId,
    ) -> Result<(Lent, Option<OwnedFd>), Errno> {
        // A guest maps no more than its window holds; and of an endpoint connected to itself it
        // could not be told which end lets go.
        let keeps =
            id != peer && self.trust_each_other(id, peer) && self.endpoints[&id].vm.is_none();
        if keeps && let Some(lent) = self.rings.lend(id, peer)? {
            return Ok((lent, None));
        }
        let mut ring = new_ring()?;
        if keeps {
            match self.rings.keep(ring, id, peer, Instant::now())? {
                Ok(lent) => return Ok((lent, None)),
                Err(not_kept) => ring = not_kept,
            }
        }
        let fd = Some(copy(&ring)?);
        Ok((Lent { name: 0, fd }, Some(ring)))
    }

    /// An endpoint says that it uses a ring no more.
    pub(crate) fn release_ring(&mut self, id: EndpointId, leave: &Leave, now: Instant) {
        self.rings.release(id, leave, now);
    }

    /// Takes the ends to be told that a ring is given up, and its name.
    pub(crate) fn take_given_up(&mut self) -> Vec<(EndpointId, u64)> {
        self.rings.take_given_up()
    }

    /// Takes the names of stale segments to be delivered.
    pub fn take_stale(&mut self) -> Vec<(EndpointId, u64)> {
        std::mem::take(&mut self.stale)
    }

    /// Takes those that one endpoint is to be told of.
    pub fn take_stale_of(&mut self, id: EndpointId) -> Vec<u64> {
        let of_id = self.stale.extract_if(.., |(to, _)| *to == id);
        of_id.map(|(_, segment)| segment).collect()
    }

    /// Adds to what an endpoint is to be told. A death is told at once, all else soon.
    pub(crate) fn note_news(&mut self, to: EndpointId, event: PeerEvent) {
        let now = Instant::now();
        let due = match event.change {
            PeerChange::Dead | PeerChange::Exited => now,
            PeerChange::Left | PeerChange::Joined => now + NEWS_DELAY,
        };
        self.outbox.push((to, event));
        let due = if self.outbox.len() > NEWS_HELD_MAX {
            now
        } else {
            due
        };
        self.news_due = Some(self.news_due.map_or(due, |known| known.min(due)));
    }

    /// When there are events to be delivered.
    pub(crate) fn news_due(&self) -> Option<Instant> {
        self.news_due
    }

    /// Takes the events to be delivered by now.
    pub(crate) fn take_news(&mut self, now: Instant) -> Vec<(EndpointId, PeerEvent)> {
        if self.news_due.is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.news_due = None;
        self.take_outbox()
    }

    /// Takes all events.
    pub fn take_outbox(&mut self) -> Vec<(EndpointId, PeerEvent)> {
        std::mem::take(&mut self.outbox)
    }
}

impl Endpoint {
    /// What its trust boundary is told by.
    fn party(&self) -> Party<'_> {
        Party {
            tenant: self.tenant,
            one_boundary: self.one_boundary,
            vm: self.vm,
            uid: self.uid,
            pid_namespace: self.pid_namespace.as_ref(),
        }
    }

    /// The user whose place it has.
    pub(crate) fn holder(&self) -> Holder {
        Holder {
            tenant: self.tenant,
            vm: self.vm,
            uid: self.uid,
        }
    }

    /// A limit is met: says so in the log the first time, and gives the error for the endpoint.
    pub(crate) fn meets(&mut self, id: EndpointId, limit: Limit) -> Errno {
        if !self.met.contains(&limit) {
            self.met.push(limit);
            let (pid, uid, limits) = (self.pid, self.uid, &self.limits);
            tracing::warn!(
                endpoint = id,
                pid,
                uid,
                ?limit,
                ?limits,
                "refused: a limit is met"
            );
        }
        Errno::DQUOT
    }
}

impl Default for Hub {
    fn default() -> Self {
        Hub::new()
    }
}
