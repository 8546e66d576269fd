//! The service for limits on what is sent, for one client.

use std::os::fd::OwnedFd;

use causeway_fabric::remoting::Answer;
use causeway_fabric::services::limit::{LimitCursor, LimitEntry, LimitOf, LimitPage, LimitService};
use rustix::io::Errno;

use crate::config::Tenant;
use crate::hub::{Endpoint, Hub};
use crate::ids::{EndpointId, TenantId};
use crate::session::Peer;
use crate::vm::Vms;

/// One client's view of the limits.
#[derive(Debug)]
pub struct Client<'a> {
    /// The tables.
    hub: &'a mut Hub,
    /// All tenants.
    tenants: &'a [Tenant],
    /// The VMs that may attach.
    vms: &'a Vms,
    /// The caller.
    peer: Peer,
}

impl<'a> Client<'a> {
    /// A caller's view of these tables.
    pub fn new(hub: &'a mut Hub, vms: &'a Vms, tenants: &'a [Tenant], peer: Peer) -> Self {
        Client {
            hub,
            tenants,
            vms,
            peer,
        }
    }

    /// The endpoints of which something is true.
    fn find(&self, is_it: impl Fn(&Endpoint) -> bool) -> Vec<EndpointId> {
        let found = self.hub.endpoints().filter(|(_, endpoint)| is_it(endpoint));
        found.map(|(id, _)| id).collect()
    }

    /// The limits that the caller may know of, as with the status.
    fn known(&self) -> Vec<LimitEntry> {
        let sees = |tenant| self.peer.sees(tenant);
        let tenants = self.tenants.iter().enumerate().filter(|(id, _)| sees(*id));
        let of_tenant = |(id, tenant): (TenantId, &Tenant)| LimitEntry {
            of: LimitOf::Tenant,
            name: tenant.name.clone(),
            pid: 0,
            rates: self.hub.rates.of_tenant(id),
        };
        let mut entries: Vec<LimitEntry> = tenants.map(of_tenant).collect();
        let of_vms = self.hub.rates.of_vms();
        let visible = of_vms
            .filter(|(name, _)| self.peer.is_own() || self.vms.tenant_of(name).is_some_and(sees));
        entries.extend(visible.map(|(name, rates)| LimitEntry {
            of: LimitOf::Vm,
            name: name.to_owned(),
            pid: 0,
            rates: rates.clone(),
        }));
        for (id, endpoint) in self.hub.endpoints() {
            let rates = self.hub.rates.of_endpoint(id);
            if let Some(rates) = rates.filter(|_| sees(endpoint.tenant)) {
                entries.push(LimitEntry {
                    of: LimitOf::Process,
                    name: endpoint.comm.clone(),
                    pid: endpoint.pid,
                    rates: rates.clone(),
                });
            }
        }
        entries
    }
}

impl LimitService for Client<'_> {
    fn set_limit(&mut self, entry: LimitEntry, _: Vec<OwnedFd>) -> Result<Answer<()>, Errno> {
        if !self.peer.is_own() {
            return Err(Errno::PERM);
        }
        let LimitEntry {
            of,
            name,
            pid,
            rates,
        } = entry;
        tracing::info!(?of, name, pid, ?rates, "a limit is set");
        match of {
            LimitOf::Tenant => {
                let found = self.tenants.iter().position(|tenant| tenant.name == name);
                let tenant = found.ok_or(Errno::NOENT)?;
                let ids = self.find(|endpoint| endpoint.tenant == tenant);
                self.hub.rates.set_tenant(tenant, rates, ids.into_iter());
            }
            LimitOf::Vm => {
                let rates_of = &mut self.hub.rates;
                let known = rates_of.of_vms().any(|(other, _)| other == name);
                if !known && self.vms.tenant_of(&name).is_none() {
                    return Err(Errno::NOENT);
                }
                let vm = rates_of.vm_named(&name);
                let ids = self.find(|endpoint| vm.is_some() && endpoint.vm == vm);
                self.hub.rates.set_vm(&name, rates, ids.into_iter());
            }
            LimitOf::Process => {
                let ids = self.find(|endpoint| endpoint.pid == pid);
                if ids.is_empty() || pid == 0 {
                    return Err(Errno::NOENT);
                }
                for id in ids {
                    self.hub.rates.set_endpoint(id, rates.clone());
                }
            }
        }
        Ok(().into())
    }

    fn limits(&mut self, cursor: LimitCursor, _: Vec<OwnedFd>) -> Result<Answer<LimitPage>, Errno> {
        let entry = self.known().into_iter().nth(cursor.seen as usize);
        Ok(LimitPage { entry }.into())
    }
}
