//! Limits on what processes send: who has which, and who is to be told.
//!
//! The broker sees nothing of what is sent. It tells endpoints their limits, and gives those that
//! share one a page in which they count together: one for a tenant's processes on this host, and
//! one for those in each of its VMs, whose clocks are others. A limit that changes has a new page.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;

use causeway_fabric::fds::private_memfd;
use causeway_fabric::services::limit::{LimitNews, Rates};
use causeway_shm::layout::RATE_PAGE_BYTES;
use rustix::io::Errno;

use crate::config::Tenant;
use crate::ids::{EndpointId, TenantId, VmId};
use crate::sys::copy;

/// Name of the pages' memfds.
const PAGE_NAME: &str = "causeway-rates";

/// What endpoints are limited to.
#[derive(Debug, Default)]
pub struct RateTables {
    /// By tenant; those beyond have none.
    tenants: Vec<Rates>,
    /// Of endpoints that have limits of their own.
    endpoints: HashMap<EndpointId, Rates>,
    /// The pages of limits that are shared.
    pages: HashMap<(TenantId, Option<VmId>), OwnedFd>,
    /// Endpoints that are to be told.
    due: BTreeSet<EndpointId>,
}

impl RateTables {
    /// The limits that a configuration gives.
    pub fn new(tenants: &[Tenant]) -> RateTables {
        RateTables {
            tenants: tenants.iter().map(|tenant| tenant.rates.clone()).collect(),
            ..RateTables::default()
        }
    }

    /// The limits of a tenant.
    pub fn of_tenant(&self, tenant: TenantId) -> Rates {
        self.tenants.get(tenant).cloned().unwrap_or_default()
    }

    /// The limits of an endpoint's own, if it has some.
    pub fn of_endpoint(&self, id: EndpointId) -> Option<&Rates> {
        self.endpoints.get(&id)
    }

    /// An endpoint is there: it is told, if it is limited.
    pub fn attached(&mut self, id: EndpointId, tenant: TenantId) {
        if self.of_tenant(tenant).is_set() {
            self.due.insert(id);
        }
    }

    /// An endpoint has gone.
    pub fn ended(&mut self, id: EndpointId) {
        self.endpoints.remove(&id);
        self.due.remove(&id);
    }

    /// Sets the limits of a tenant, and has its endpoints told.
    pub fn set_tenant(
        &mut self,
        tenant: TenantId,
        rates: Rates,
        endpoints: impl Iterator<Item = EndpointId>,
    ) {
        self.pages.retain(|(of, _), _| *of != tenant);
        if let Some(limits) = self.tenants.get_mut(tenant) {
            *limits = rates;
            self.due.extend(endpoints);
        }
    }

    /// Sets the limits of an endpoint, and has it told.
    pub fn set_endpoint(&mut self, id: EndpointId, rates: Rates) {
        if rates.is_set() {
            self.endpoints.insert(id, rates);
        } else {
            self.endpoints.remove(&id);
        }
        self.due.insert(id);
    }

    /// The endpoints that are to be told.
    pub fn take_due(&mut self) -> BTreeSet<EndpointId> {
        std::mem::take(&mut self.due)
    }

    /// What an endpoint of a tenant, and of a VM, is told. Without a page, for want of descriptors
    /// or memory, it counts alone.
    pub fn news_for(
        &mut self,
        id: EndpointId,
        tenant: TenantId,
        vm: Option<VmId>,
    ) -> (LimitNews, Option<OwnedFd>) {
        let news = LimitNews {
            tenant: self.of_tenant(tenant),
            own: self.endpoints.get(&id).cloned().unwrap_or_default(),
        };
        if !news.tenant.is_set() {
            return (news, None);
        }
        let page = self.page(tenant, vm);
        if let Err(errno) = &page {
            tracing::warn!(endpoint = id, %errno, "no page for its tenant's limit");
        }
        (news, page.ok())
    }

    fn page(&mut self, tenant: TenantId, vm: Option<VmId>) -> Result<OwnedFd, Errno> {
        if let Some(page) = self.pages.get(&(tenant, vm)) {
            return copy(page);
        }
        let page = private_memfd(PAGE_NAME, RATE_PAGE_BYTES as u64)?;
        let lent = copy(&page)?;
        self.pages.insert((tenant, vm), page);
        Ok(lent)
    }

    /// Forgets the pages of a VM that has no endpoints any more.
    pub fn forget_vm(&mut self, vm: VmId) {
        self.pages.retain(|(_, of), _| *of != Some(vm));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Rates = Rates {
        bytes: 1000,
        messages: 0,
        burst: 0,
    };

    fn tables() -> RateTables {
        RateTables {
            tenants: vec![Rates::default(), FAST],
            ..RateTables::default()
        }
    }

    fn inode(fd: &OwnedFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn who_is_limited_is_told_and_nobody_else() {
        let mut tables = tables();
        tables.attached(1, 0);
        tables.attached(2, 1);
        tables.attached(3, 1);
        tables.ended(3);
        assert_eq!(Vec::from_iter(tables.take_due()), [2]);
        assert!(tables.take_due().is_empty());
        tables.set_tenant(1, Rates::default(), [2].into_iter());
        tables.set_endpoint(1, FAST);
        assert_eq!(Vec::from_iter(tables.take_due()), [1, 2]);
        let (news, page) = tables.news_for(2, 1, None);
        assert_eq!((news, page.is_none()), (LimitNews::default(), true));
        let (news, page) = tables.news_for(1, 0, None);
        assert_eq!(
            (news.own, page.is_none()),
            (FAST, true),
            "its own are its alone"
        );
        tables.ended(1);
        assert_eq!(tables.news_for(1, 0, None).0, LimitNews::default());
    }

    #[test]
    fn a_page_is_that_of_one_tenant_on_one_clock_at_one_rate() {
        let mut tables = tables();
        let mut page = |id, vm| inode(&tables.news_for(id, 1, vm).1.unwrap());
        let (host, guest) = (page(1, None), page(2, Some(7)));
        assert_eq!((page(3, None), page(4, Some(7))), (host, guest));
        assert_ne!(host, guest);
        assert_ne!(page(5, Some(8)), guest);
        tables.set_tenant(1, FAST, [].into_iter());
        assert_ne!(inode(&tables.news_for(1, 1, None).1.unwrap()), host);
        tables.forget_vm(7);
        assert_eq!(tables.pages.len(), 1);
    }
}
