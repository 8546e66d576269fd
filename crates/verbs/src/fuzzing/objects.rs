//! What the script has made, and what keeps what from being destroyed.

use core::ffi::c_int;
use core::ptr;
use std::collections::BTreeSet;

use super::{Bench, device, open, outcome};
use crate::abi::{
    IbvAh, IbvCompChannel, IbvContext, IbvCq, IbvCqEx, IbvMr, IbvMw, IbvPd, IbvQp, IbvSrq, IbvTd,
};
use crate::{ah, cq, events, live, mcast, mr, mw, pd, qp, srq};

use super::script::Script;

/// Objects of a kind at a time.
const EACH_MAX: usize = 12;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Qp,
    Mw,
    Mr,
    Ah,
    Srq,
    Cq,
    Channel,
    Pd,
    Td,
}

/// In an order in which nothing is in the way of what comes after.
const KINDS: [Kind; 9] = [
    Kind::Qp,
    Kind::Mw,
    Kind::Mr,
    Kind::Ah,
    Kind::Srq,
    Kind::Cq,
    Kind::Channel,
    Kind::Pd,
    Kind::Td,
];

pub(super) struct Pd {
    pub(super) at: *mut IbvPd,
    pub(super) parent: *mut IbvPd,
    pub(super) td: *mut IbvTd,
}

pub(super) struct Cq {
    pub(super) at: *mut IbvCq,
    pub(super) channel: *mut IbvCompChannel,
    pub(super) extended: Option<*mut IbvCqEx>,
    /// Events taken and not acknowledged yet.
    pub(super) unacknowledged: u32,
}

pub(super) struct Qp {
    pub(super) at: *mut IbvQp,
    pub(super) extended: bool,
    pub(super) sig_all: bool,
    pub(super) groups: BTreeSet<[u8; 16]>,
}

#[derive(Default)]
pub(super) struct Objects {
    pub(super) pds: Vec<Pd>,
    pub(super) tds: Vec<*mut IbvTd>,
    pub(super) cqs: Vec<Cq>,
    pub(super) channels: Vec<*mut IbvCompChannel>,
    pub(super) srqs: Vec<*mut IbvSrq>,
    pub(super) qps: Vec<Qp>,
    pub(super) mrs: Vec<*mut IbvMr>,
    pub(super) mws: Vec<*mut IbvMw>,
    pub(super) ahs: Vec<*mut IbvAh>,
}

/// One of those there are, as the script says.
pub(super) fn choose<'a, T>(all: &'a [T], script: &mut Script<'_>) -> Option<&'a T> {
    let choice = usize::from(script.byte().unwrap_or(0));
    all.get(choice % all.len().max(1))
}

impl Objects {
    /// The addresses of all objects of a kind.
    pub(super) fn all(&self, kind: Kind) -> Vec<usize> {
        fn plain<T>(all: &[*mut T]) -> Vec<usize> {
            all.iter().map(|at| at.addr()).collect()
        }
        match kind {
            Kind::Qp => self.qps.iter().map(|qp| qp.at.addr()).collect(),
            Kind::Mw => plain(&self.mws),
            Kind::Mr => plain(&self.mrs),
            Kind::Ah => plain(&self.ahs),
            Kind::Srq => plain(&self.srqs),
            Kind::Cq => self.cqs.iter().map(|cq| cq.at.addr()).collect(),
            Kind::Channel => plain(&self.channels),
            // Parent domains before what they extend.
            Kind::Pd => self.pds.iter().rev().map(|pd| pd.at.addr()).collect(),
            Kind::Td => plain(&self.tds),
        }
    }

    /// Whether there is room for one more.
    pub(super) fn has_room(&self, kind: Kind) -> bool {
        self.all(kind).len() < EACH_MAX
    }

    /// What a call to destroy it is to return; none where it may be either.
    fn destroyed(&self, kind: Kind, at: usize) -> Option<c_int> {
        let busy = match kind {
            Kind::Qp => {
                let qp = self.qps.iter().find(|qp| qp.at.addr() == at);
                qp.is_some_and(|qp| !qp.groups.is_empty())
            }
            // It may be bound, or not.
            Kind::Mr if !self.mws.is_empty() => return None,
            Kind::Mw | Kind::Mr | Kind::Ah => false,
            // SAFETY: all that is listed is live.
            Kind::Srq => self.any_qp(|qp| unsafe { (*qp.at).srq }.addr() == at),
            Kind::Cq => self.any_qp(|qp| {
                // SAFETY: as above.
                unsafe { [(*qp.at).send_cq.addr(), (*qp.at).recv_cq.addr()] }.contains(&at)
            }),
            Kind::Channel => self.cqs.iter().any(|cq| cq.channel.addr() == at),
            Kind::Pd => self.domain_is_used(at),
            Kind::Td => self.pds.iter().any(|pd| pd.td.addr() == at),
        };
        Some(if busy { libc::EBUSY } else { 0 })
    }

    fn any_qp(&self, test: impl FnMut(&Qp) -> bool) -> bool {
        self.qps.iter().any(test)
    }

    fn domain_is_used(&self, at: usize) -> bool {
        // SAFETY: all that is listed is live.
        unsafe {
            self.qps.iter().any(|qp| (*qp.at).pd.addr() == at)
                || self.mrs.iter().any(|&mr| (*mr).pd.addr() == at)
                || self.mws.iter().any(|&mw| (*mw).pd.addr() == at)
                || self.ahs.iter().any(|&ah| (*ah).pd.addr() == at)
                || self.srqs.iter().any(|&srq| (*srq).pd.addr() == at)
                || self.pds.iter().any(|pd| pd.parent.addr() == at)
        }
    }

    fn remove(&mut self, kind: Kind, at: usize) {
        fn plain<T>(all: &mut Vec<*mut T>, at: usize) {
            all.retain(|object| object.addr() != at);
        }
        match kind {
            Kind::Qp => self.qps.retain(|qp| qp.at.addr() != at),
            Kind::Mw => plain(&mut self.mws, at),
            Kind::Mr => plain(&mut self.mrs, at),
            Kind::Ah => plain(&mut self.ahs, at),
            Kind::Srq => plain(&mut self.srqs, at),
            Kind::Cq => self.cqs.retain(|cq| cq.at.addr() != at),
            Kind::Channel => plain(&mut self.channels, at),
            Kind::Pd => self.pds.retain(|pd| pd.at.addr() != at),
            Kind::Td => plain(&mut self.tds, at),
        }
    }
}

/// The call that destroys an object of this kind.
///
/// # Safety
/// As the calls': the object need not exist.
unsafe fn call(kind: Kind, at: usize) -> c_int {
    let at = ptr::with_exposed_provenance_mut::<u8>(at);
    // SAFETY: what does not exist is refused, and is not looked at.
    unsafe {
        match kind {
            Kind::Qp => qp::destroy_qp(at.cast()),
            Kind::Mw => mw::dealloc_mw(at.cast()),
            Kind::Mr => mr::dereg_mr(at.cast()),
            Kind::Ah => ah::destroy_ah(at.cast()),
            Kind::Srq => srq::destroy_srq(at.cast()),
            Kind::Cq => cq::destroy_cq(at.cast()),
            Kind::Channel => events::destroy_comp_channel(at.cast()),
            Kind::Pd => pd::dealloc_pd(at.cast()),
            Kind::Td => pd::dealloc_td(at.cast()),
        }
    }
}

impl Bench {
    /// Destroys something that there is, or fails to for what stands on it.
    pub(super) fn destroy(&mut self, script: &mut Script<'_>) {
        let kind = *choose(&KINDS, script).expect("kinds");
        let all = self.objects.all(kind);
        if let Some(&at) = choose(&all, script) {
            self.destroy_one(kind, at);
        }
    }

    fn destroy_one(&mut self, kind: Kind, at: usize) {
        self.acknowledge();
        let expected = self.objects.destroyed(kind, at);
        let qp = self.objects.qps.iter().find(|qp| qp.at.addr() == at);
        // SAFETY: all that is listed is live.
        let qpn = qp.map(|qp| unsafe { (*qp.at).qp_num });
        // SAFETY: live, and no event of it is unacknowledged.
        let result = outcome(unsafe { call(kind, at) });
        let returned = result.err().unwrap_or(0);
        match expected {
            Some(expected) => assert_eq!(returned, expected, "destroying {kind:?}"),
            None => assert!([0, libc::EBUSY].contains(&returned), "{returned}: {kind:?}"),
        }
        if returned == 0 {
            self.objects.remove(kind, at);
            self.gone.insert((kind, at));
            if let (Kind::Qp, Some(qpn)) = (kind, qpn) {
                self.ledger.forget(qpn);
            }
        }
    }

    /// Destroys what has been destroyed, or never was there.
    pub(super) fn destroy_again(&mut self, script: &mut Script<'_>) {
        let kind = *choose(&KINDS, script).expect("kinds");
        let others: Vec<usize> = KINDS
            .iter()
            .filter(|&&other| other != kind)
            .flat_map(|&other| self.objects.all(other))
            .collect();
        let gone: Vec<usize> = self.gone.iter().map(|(_, at)| *at).collect();
        let at = match script.byte().unwrap_or(0) % 4 {
            0 => choose(&[0, 8, usize::MAX, 1 << 47], script).copied(),
            1 => choose(&others, script).copied(),
            _ => choose(&gone, script).copied(),
        };
        let Some(at) = at.filter(|at| !self.objects.all(kind).contains(at)) else {
            return;
        };
        // SAFETY: nothing of this kind is there.
        let returned = unsafe { call(kind, at) };
        assert_eq!(returned, libc::EINVAL, "{kind:?} that does not exist");
    }

    /// Destroys all there is; nothing is in the way.
    pub(super) fn destroy_all(&mut self) {
        for qp in &mut self.objects.qps {
            for group in core::mem::take(&mut qp.groups) {
                // SAFETY: a live queue pair.
                assert_eq!(unsafe { mcast::detach(qp.at, &raw const group, 0) }, 0);
            }
        }
        for kind in KINDS {
            for at in self.objects.all(kind) {
                self.destroy_one(kind, at);
            }
            assert!(self.objects.all(kind).is_empty(), "{kind:?} is left");
        }
        // Again, all of it.
        for &(kind, at) in &self.gone {
            // SAFETY: nothing is left.
            let returned = unsafe { call(kind, at) };
            assert_eq!(returned, libc::EINVAL, "{kind:?} destroyed twice");
        }
    }

    /// A context that is closed while objects of it are there, which are destroyed afterwards.
    pub(super) fn close_with_children(&mut self, script: &mut Script<'_>) {
        let context: *mut IbvContext = open();
        let before = live::count();
        let what = script.byte().unwrap_or(0);
        // SAFETY: objects of an open context, which are destroyed only, once it is closed.
        unsafe {
            let domain = pd::alloc_pd(context);
            let channel = events::create_comp_channel(context);
            let queue = cq::create_cq(context, 16, ptr::null_mut(), channel, 0);
            assert!(!domain.is_null() && !channel.is_null() && !queue.is_null());
            let closes_first = what & 1 != 0;
            if closes_first {
                assert_eq!(device::close_device(context), 0);
            }
            if what & 2 != 0 {
                assert_eq!(events::destroy_comp_channel(channel), libc::EBUSY);
            }
            assert_eq!(cq::destroy_cq(queue), 0);
            assert_eq!(events::destroy_comp_channel(channel), 0);
            assert_eq!(pd::dealloc_pd(domain), 0);
            assert_eq!(pd::dealloc_pd(domain), libc::EINVAL);
            if !closes_first {
                assert_eq!(device::close_device(context), 0);
            }
        }
        assert_eq!(live::count(), before - 1);
    }
}
