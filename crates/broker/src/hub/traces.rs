//! Traces: which tools have asked for one, and whose endpoints record for them.
//!
//! A trace shows what a process sends and receives, so only who could look into the process anyway
//! gets it: a process of its user in its PID namespace, or root in the broker's own. The broker
//! hands on the descriptor of the ring and sees none of the records. A trace is its tool's
//! session's: when that ends, by whatever end, endpoints are told.

use std::os::fd::OwnedFd;

use causeway_fabric::fds::own_pid_namespace;
use causeway_fabric::limits::TRACES_MAX;
use causeway_fabric::services::{TraceRequest, TraceRingReply};
use rustix::io::Errno;

use super::{Endpoint, Hub};
use crate::boundary::{Party, PidNamespace};
use crate::ids::{EndpointId, OWN_TENANT_ID, SessionId, TenantId};
use crate::session::Peer;
use crate::sys::copy;

/// The user that may trace processes of all users.
const ROOT: u32 = 0;

/// A trace.
#[derive(Debug)]
struct Trace {
    name: u64,
    session: SessionId,
    tenant: TenantId,
    one_boundary: bool,
    uid: u32,
    pid_namespace: Option<PidNamespace>,
    /// Of all users' processes.
    of_all: bool,
    request: TraceRequest,
    ring: OwnedFd,
}

/// All traces, and who is to be told of a change.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    running: Vec<Trace>,
    last_name: u64,
    news: Vec<(EndpointId, u64)>,
}

impl Trace {
    fn covers(&self, endpoint: &Endpoint) -> bool {
        if endpoint.vm.is_some() {
            // A guest's processes cannot map a ring of the host's.
            return false;
        }
        if self.of_all {
            return self.tenant == OWN_TENANT_ID || self.tenant == endpoint.tenant;
        }
        let tracer = Party {
            tenant: self.tenant,
            one_boundary: self.one_boundary,
            vm: None,
            uid: self.uid,
            pid_namespace: self.pid_namespace.as_ref(),
        };
        self.uid == endpoint.uid && tracer.trusts(&endpoint.party())
    }
}

impl Traces {
    /// The trace that has what an endpoint sends and receives: root's before its user's.
    fn of(&self, endpoint: &Endpoint) -> Option<&Trace> {
        let mut all = self.running.iter().filter(|trace| trace.covers(endpoint));
        let first = all.next()?;
        Some(all.find(|trace| trace.of_all).unwrap_or(first))
    }

    /// The name of that, or 0.
    fn name_for(&self, endpoint: &Endpoint) -> u64 {
        self.of(endpoint).map_or(0, |trace| trace.name)
    }

    /// An endpoint has come: it is told if it is to be traced.
    pub(super) fn greet(&mut self, id: EndpointId, endpoint: &Endpoint) {
        let name = self.name_for(endpoint);
        if name != 0 {
            self.news.push((id, name));
        }
    }

    /// Whether there is something to tell.
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Takes what is to be told: an endpoint, and the name of its trace.
    pub(crate) fn take_news(&mut self) -> Vec<(EndpointId, u64)> {
        std::mem::take(&mut self.news)
    }
}

impl Hub {
    /// Begins a trace for a session: `fds` are the ring, which has been examined, and the PID
    /// namespace if it is shown. Returns how many endpoints are told.
    ///
    /// # Errors
    /// `EBUSY` while another trace of its user runs, `EMFILE` beyond [`TRACES_MAX`], `EINVAL` if
    /// what is shown is no namespace.
    pub(crate) fn begin_trace(
        &mut self,
        (session, peer, one_boundary): (SessionId, Peer, bool),
        request: &TraceRequest,
        ring: OwnedFd,
        shown: Option<OwnedFd>,
    ) -> Result<u32, Errno> {
        let same = |trace: &Trace| {
            trace.session == session || (trace.tenant, trace.uid) == (peer.tenant, peer.uid)
        };
        if self.traces.running.iter().any(same) {
            return Err(Errno::BUSY);
        }
        if self.traces.running.len() >= TRACES_MAX {
            return Err(Errno::MFILE);
        }
        let pid_namespace = shown.map(|shown| self.namespace(shown)).transpose()?;
        let own = own_pid_namespace()
            .map(|own| self.namespace(own))
            .transpose()?;
        let at_home = own.is_some() && own == pid_namespace;
        self.traces.last_name += 1;
        let trace = Trace {
            name: self.traces.last_name,
            session,
            tenant: peer.tenant,
            one_boundary,
            uid: peer.uid,
            pid_namespace,
            of_all: peer.uid == ROOT && at_home,
            request: request.clone(),
            ring,
        };
        tracing::info!(
            pid = peer.pid,
            uid = peer.uid,
            of_all = trace.of_all,
            "a trace begins"
        );
        Ok(self.change_traces(|running| running.push(trace)))
    }

    /// A session has ended, and its trace with it.
    pub(crate) fn end_trace(&mut self, session: SessionId) {
        if self
            .traces
            .running
            .iter()
            .any(|trace| trace.session == session)
        {
            self.change_traces(|running| running.retain(|trace| trace.session != session));
        }
    }

    /// Changes the list, and notes the endpoints to tell. Returns how many they are.
    fn change_traces(&mut self, change: impl FnOnce(&mut Vec<Trace>)) -> u32 {
        let names = |hub: &Hub| {
            let all = hub.endpoints.iter();
            all.map(|(id, endpoint)| (*id, hub.traces.name_for(endpoint)))
                .collect::<Vec<_>>()
        };
        let before = names(self);
        change(&mut self.traces.running);
        let after = names(self);
        let mut told = 0;
        for (was, is) in before.into_iter().zip(after) {
            if was != is {
                self.traces.news.push(is);
                told += 1;
            }
        }
        told
    }

    /// The trace of an endpoint, and its ring.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub(crate) fn trace_ring(&self, id: EndpointId) -> Result<(TraceRingReply, OwnedFd), Errno> {
        let endpoint = self.endpoint(id).ok_or(Errno::NOTCONN)?;
        let trace = self.traces.of(endpoint).ok_or(Errno::NOENT)?;
        let reply = TraceRingReply {
            trace: trace.name,
            qpn: trace.request.qpn,
            keys: trace.request.keys,
            payload: trace.request.payload,
        };
        Ok((reply, copy(&trace.ring)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NETNS, descriptor, endpoint};

    const USER: u32 = 4001;

    fn tracer(session: SessionId, uid: u32) -> (SessionId, Peer, bool) {
        let peer = Peer {
            tenant: OWN_TENANT_ID,
            userfaultfd: false,
            pid: 9,
            uid,
            vm: None,
        };
        (session, peer, false)
    }

    fn begin(hub: &mut Hub, session: SessionId, uid: u32, shown: bool) -> Result<u32, Errno> {
        let shown = shown.then(|| own_pid_namespace().unwrap());
        let request = TraceRequest::default();
        hub.begin_trace(tracer(session, uid), &request, descriptor(), shown)
    }

    /// The endpoints that news is for.
    fn told(hub: &mut Hub) -> Vec<(EndpointId, bool)> {
        let news = hub.traces.take_news().into_iter();
        news.map(|(id, name)| (id, name != 0)).collect()
    }

    #[test]
    fn a_user_traces_its_own_processes_and_root_all() {
        let mut hub = Hub::new();
        let mine = endpoint(&mut hub, 1, USER, NETNS);
        let other = endpoint(&mut hub, 2, USER + 1, NETNS);
        assert_eq!(hub.trace_ring(mine).err(), Some(Errno::NOENT));
        assert_eq!(begin(&mut hub, 1, USER, true), Ok(1));
        assert_eq!(told(&mut hub), [(mine, true)]);
        assert!(hub.trace_ring(mine).is_ok());
        assert_eq!(hub.trace_ring(other).err(), Some(Errno::NOENT));
        assert_eq!(begin(&mut hub, 2, ROOT, true), Ok(2));
        assert_eq!(told(&mut hub), [(mine, true), (other, true)]);
        hub.end_trace(2);
        assert_eq!(told(&mut hub), [(mine, true), (other, false)]);
        hub.end_trace(1);
        hub.end_trace(1);
        assert_eq!(told(&mut hub), [(mine, false)]);
    }

    #[test]
    fn nothing_is_traced_out_of_another_namespace_or_a_machine() {
        let mut hub = Hub::new();
        let mine = endpoint(&mut hub, 1, ROOT, NETNS);
        assert_eq!(begin(&mut hub, 1, ROOT, false), Ok(0), "none was shown");
        hub.end_trace(1);
        hub.endpoints.get_mut(&mine).unwrap().pid_namespace = None;
        assert_eq!(begin(&mut hub, 1, USER, true), Ok(0));
        assert_eq!(begin(&mut hub, 2, ROOT, true), Ok(1), "root sees all");
        hub.end_trace(2);
        hub.endpoints.get_mut(&mine).unwrap().vm = Some(5);
        assert_eq!(begin(&mut hub, 2, ROOT, true), Ok(0));
    }

    #[test]
    fn a_user_has_one_trace_and_who_comes_later_is_told() {
        let mut hub = Hub::new();
        assert_eq!(begin(&mut hub, 1, USER, true), Ok(0));
        assert_eq!(begin(&mut hub, 2, USER, true), Err(Errno::BUSY));
        assert_eq!(begin(&mut hub, 1, USER + 1, true), Err(Errno::BUSY));
        let late = endpoint(&mut hub, 1, USER, NETNS);
        endpoint(&mut hub, 2, USER + 1, NETNS);
        assert_eq!(told(&mut hub), [(late, true)]);
        for session in 2..=TRACES_MAX as SessionId {
            let uid = USER + 1 + session as u32;
            assert_eq!(begin(&mut hub, session, uid, true), Ok(0));
        }
        assert_eq!(begin(&mut hub, 1000, 1, true), Err(Errno::MFILE));
    }
}
