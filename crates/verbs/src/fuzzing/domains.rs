//! Protection domains, and what is registered and made in them.

use core::ptr;

use super::objects::{Kind, Pd, choose};
use super::script::Script;
use super::{Bench, outcome, pointer};
use crate::abi::{
    IbvAhAttr, IbvGlobalRoute, IbvMrInitAttr, IbvParentDomainInitAttr, IbvPd, IbvTdInitAttr,
};
use crate::{ah, gid, mr, mw, pd};

/// `IBV_ACCESS_LOCAL_WRITE` to `IBV_ACCESS_MW_BIND`: what most regions are registered with.
const ALL_ACCESS: u32 = 0x1f;

/// Access flags, most of them the useful ones.
pub(super) fn access(script: &mut Script<'_>) -> u32 {
    match script.byte().unwrap_or(0) {
        choice @ 0..32 => choice.into(),
        32..40 => 1 << (script.byte().unwrap_or(0) % 32),
        40..44 => script.word() as u32,
        _ => ALL_ACCESS,
    }
}

impl Bench {
    pub(super) fn alloc_pd(&mut self, _: &mut Script<'_>) {
        if !self.objects.has_room(Kind::Pd) {
            return;
        }
        // SAFETY: an open context.
        if let Some(at) = pointer(|| unsafe { pd::alloc_pd(self.context) }) {
            self.add_pd(at, ptr::null_mut(), ptr::null_mut());
        }
    }

    fn add_pd(&mut self, at: *mut IbvPd, parent: *mut IbvPd, td: *mut crate::abi::IbvTd) {
        self.objects.pds.push(Pd { at, parent, td });
    }

    pub(super) fn alloc_td(&mut self, script: &mut Script<'_>) {
        let mut attr = IbvTdInitAttr {
            comp_mask: u32::from(script.byte() == Some(1)),
        };
        if self.objects.has_room(Kind::Td)
            // SAFETY: an open context and a valid structure.
            && let Some(at) = pointer(|| unsafe { pd::alloc_td(self.context, &raw mut attr) })
        {
            self.objects.tds.push(at);
        }
    }

    pub(super) fn alloc_parent(&mut self, script: &mut Script<'_>) {
        let base = choose(&self.objects.pds, script).map_or(ptr::null_mut(), |pd| pd.at);
        let td = choose(&self.objects.tds, script).copied();
        let td = td.unwrap_or(ptr::null_mut());
        // SAFETY: zero is a valid value of every field.
        let mut attr: IbvParentDomainInitAttr = unsafe { core::mem::zeroed() };
        attr.pd = base;
        attr.td = td;
        attr.comp_mask = u32::from(script.byte().unwrap_or(0)) >> 5;
        if !self.objects.has_room(Kind::Pd) {
            return;
        }
        // SAFETY: live objects and a valid structure.
        let made = pointer(|| unsafe { pd::alloc_parent_domain(self.context, &raw mut attr) });
        if let Some(at) = made {
            self.add_pd(at, base, td);
        }
    }

    /// A domain, the script's choice.
    pub(super) fn domain(&self, script: &mut Script<'_>) -> Option<*mut IbvPd> {
        choose(&self.objects.pds, script).map(|pd| pd.at)
    }

    pub(super) fn register(&mut self, script: &mut Script<'_>) {
        let Some(domain) = self
            .domain(script)
            .filter(|_| self.objects.has_room(Kind::Mr))
        else {
            return;
        };
        let (at, length) = (self.memory.address(script), self.memory.length(script));
        let access = access(script);
        let way = script.byte().unwrap_or(0);
        let iova = match way >> 6 {
            0 => script.word(),
            _ => at.addr() as u64,
        };
        // SAFETY: a live domain; memory that goes away makes requests fail.
        let made = pointer(|| unsafe {
            match way % 4 {
                0 | 1 => mr::reg_mr(domain, at, length, access.cast_signed()),
                2 => mr::reg_mr_iova2(domain, at, length, iova, access),
                _ => {
                    let mut attr: IbvMrInitAttr = core::mem::zeroed();
                    attr.length = length;
                    attr.access = access.cast_signed();
                    attr.comp_mask = u64::from(way >> 2 & 7);
                    attr.iova = iova;
                    attr.addr = at;
                    mr::reg_mr_ex(domain, &raw mut attr)
                }
            }
        });
        if let Some(region) = made {
            // SAFETY: just made.
            unsafe {
                assert!(!(*region).context.is_null() && (*region).pd == domain);
                assert_eq!(((*region).addr, (*region).length), (at, length));
            }
            self.objects.mrs.push(region);
        }
    }

    pub(super) fn register_again(&mut self, script: &mut Script<'_>) {
        let Some(&region) = choose(&self.objects.mrs, script) else {
            return;
        };
        let flags = i32::from(script.byte().unwrap_or(1)) % 16;
        let domain = self.domain(script).expect("the region has one");
        let (at, length) = (self.memory.address(script), self.memory.length(script));
        let access = access(script).cast_signed();
        // SAFETY: live objects.
        unsafe {
            let before = ((*region).addr, (*region).length, (*region).pd);
            let returned = mr::rereg_mr(region, flags, domain, at, length, access);
            // `enum ibv_rereg_mr_err_code`
            assert!((-3..=0).contains(&returned), "rereg_mr: {returned}");
            if returned != 0 {
                let after = ((*region).addr, (*region).length, (*region).pd);
                assert_eq!(before, after, "refused, and changed");
            }
        }
    }

    pub(super) fn alloc_mw(&mut self, script: &mut Script<'_>) {
        let window = i32::from(script.byte().unwrap_or(2)) % 4;
        let room = self.objects.has_room(Kind::Mw);
        if let Some(domain) = self.domain(script).filter(|_| room)
            // SAFETY: a live domain.
            && let Some(made) = pointer(|| unsafe { mw::alloc_mw(domain, window) })
        {
            self.objects.mws.push(made);
        }
    }

    /// An address: mostly this host's own.
    pub(super) fn path(&self, script: &mut Script<'_>) -> IbvAhAttr {
        let how = script.byte().unwrap_or(0);
        let mut dgid = [0; 16];
        let sgid_index = how & 3;
        // SAFETY: an open context and room for a GID.
        let found = unsafe { gid::query_gid(self.context, 1, sgid_index.into(), &raw mut dgid) };
        assert!([0, -1].contains(&found));
        if how >> 2 == 1 {
            dgid[15] ^= 0x55;
        }
        if how >> 2 == 2 {
            dgid = [script.byte().unwrap_or(0); 16];
        }
        IbvAhAttr {
            grh: IbvGlobalRoute {
                dgid,
                flow_label: u32::from(how),
                sgid_index,
                hop_limit: 64,
                traffic_class: how,
            },
            dlid: u16::from(how >> 2 == 3),
            is_global: u8::from(how >> 2 != 4),
            port_num: if how >> 2 == 5 { how } else { 1 },
            ..IbvAhAttr::default()
        }
    }

    pub(super) fn create_ah(&mut self, script: &mut Script<'_>) {
        let room = self.objects.has_room(Kind::Ah);
        let Some(domain) = self.domain(script).filter(|_| room) else {
            return;
        };
        let mut attr = self.path(script);
        // SAFETY: a live domain and a valid structure.
        if let Some(made) = pointer(|| unsafe { ah::create_ah(domain, &raw mut attr) }) {
            self.objects.ahs.push(made);
        }
    }

    pub(super) fn multicast(&mut self, script: &mut Script<'_>) {
        let how = script.byte().unwrap_or(0);
        let mut group = [0; 16];
        group[..2].copy_from_slice(&[0xff, 0x0e]);
        group[10..].copy_from_slice(&[0xff, 0xff, 239, 0, 0, how & 1]);
        if how & 4 != 0 {
            group[0] = 0;
        }
        let count = self.objects.qps.len().max(1);
        let choice = usize::from(script.byte().unwrap_or(0)) % count;
        let Some(qp) = self.objects.qps.get_mut(choice) else {
            return;
        };
        // SAFETY: a live queue pair and a GID.
        let returned = unsafe {
            match how & 2 {
                0 => crate::mcast::attach(qp.at, &raw const group, 0),
                _ => crate::mcast::detach(qp.at, &raw const group, 0),
            }
        };
        if outcome(returned).is_err() {
            return;
        }
        let changed = match how & 2 {
            0 => qp.groups.insert(group),
            _ => qp.groups.remove(&group),
        };
        assert!(changed || how & 2 == 0, "left a group that it was not in");
    }
}
