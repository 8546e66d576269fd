//! Limits on what processes send: who has which, and who is to be told.
//!
//! The broker sees nothing of what is sent. It tells endpoints their limits, and gives those that
//! share one a page in which they count together: one for a tenant's processes on this host, and
//! one for those in each of its VMs, whose clocks are others. A VM's own limit is counted in the
//! page of its processes, which nobody outside has. A limit that changes has a new page.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;

use causeway_fabric::fds::private_memfd;
use causeway_fabric::services::limit::{LimitNews, Rates};
use causeway_shm::layout::RATE_PAGE_BYTES;
use rustix::io::Errno;

use crate::config::Config;
use crate::ids::{EndpointId, TenantId, VmId};
use crate::sys::copy;

/// Name of the pages' memfds.
const PAGE_NAME: &str = "causeway-rates";

/// What endpoints are limited to.
#[derive(Debug, Default)]
pub struct RateTables {
    /// By tenant; those beyond have none.
    tenants: Vec<Rates>,
    /// By name, of VMs that have limits, whether they are attached or not.
    vms: BTreeMap<String, Rates>,
    /// The names of VMs whose processes have come.
    vm_names: HashMap<VmId, String>,
    /// Of endpoints that have limits of their own.
    endpoints: HashMap<EndpointId, Rates>,
    /// The pages of limits that are shared.
    pages: HashMap<(TenantId, Option<VmId>), OwnedFd>,
    /// Endpoints that are to be told.
    due: BTreeSet<EndpointId>,
}

impl RateTables {
    /// The limits that a configuration gives.
    pub fn new(config: &Config) -> RateTables {
        let tenants = config.tenants.iter();
        RateTables {
            tenants: tenants.map(|tenant| tenant.rates.clone()).collect(),
            vms: config.vms.clone(),
            ..RateTables::default()
        }
    }

    /// The limits of a tenant.
    pub fn of_tenant(&self, tenant: TenantId) -> Rates {
        self.tenants.get(tenant).cloned().unwrap_or_default()
    }

    /// The VMs that have limits, by name.
    pub fn of_vms(&self) -> impl Iterator<Item = (&str, &Rates)> {
        let set = self.vms.iter().filter(|(_, rates)| rates.is_set());
        set.map(|(name, rates)| (name.as_str(), rates))
    }

    /// The limits of a VM.
    fn of_vm(&self, vm: Option<VmId>) -> Rates {
        let name = vm.and_then(|vm| self.vm_names.get(&vm));
        let rates = name.and_then(|name| self.vms.get(name));
        rates.cloned().unwrap_or_default()
    }

    /// A process of a VM comes: its name is this, and that of no other VM.
    pub fn name_vm(&mut self, vm: VmId, name: &str) {
        if !self.vm_names.contains_key(&vm) {
            self.vm_names.retain(|_, other| other != name);
            self.vm_names.insert(vm, name.to_owned());
        }
    }

    /// The VM that has a name, if processes of it have come.
    pub fn vm_named(&self, name: &str) -> Option<VmId> {
        let found = self.vm_names.iter().find(|(_, other)| *other == name);
        found.map(|(vm, _)| *vm)
    }

    /// The limits of an endpoint's own, if it has some.
    pub fn of_endpoint(&self, id: EndpointId) -> Option<&Rates> {
        self.endpoints.get(&id)
    }

    /// An endpoint is there: it is told, if it is limited.
    pub fn attached(&mut self, id: EndpointId, tenant: TenantId, vm: Option<VmId>) {
        if self.of_tenant(tenant).is_set() || self.of_vm(vm).is_set() {
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

    /// Sets the limits of a VM, and has its endpoints told.
    pub fn set_vm(
        &mut self,
        name: &str,
        rates: Rates,
        endpoints: impl Iterator<Item = EndpointId>,
    ) {
        if let Some(vm) = self.vm_named(name) {
            self.forget_vm(vm);
        }
        match rates.is_set() {
            true => drop(self.vms.insert(name.to_owned(), rates)),
            false => drop(self.vms.remove(name)),
        }
        self.due.extend(endpoints);
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
            vm: self.of_vm(vm),
            own: self.endpoints.get(&id).cloned().unwrap_or_default(),
        };
        if !news.tenant.is_set() && !news.vm.is_set() {
            return (news, None);
        }
        let page = self.page(tenant, vm);
        if let Err(errno) = &page {
            tracing::warn!(endpoint = id, %errno, "no page for the limits that it shares");
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

    /// Forgets the pages of a VM: it has no endpoints any more, or another limit.
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
        tables.attached(1, 0, None);
        tables.attached(2, 1, None);
        tables.attached(3, 1, None);
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

    #[test]
    fn a_vm_is_limited_by_its_name_and_counts_where_no_other_can() {
        let mut tables = tables();
        tables.name_vm(7, "a");
        tables.name_vm(8, "b");
        tables.set_vm("a", FAST, [1, 2].into_iter());
        assert_eq!(Vec::from_iter(tables.take_due()), [1, 2]);
        tables.attached(3, 0, Some(7));
        tables.attached(4, 0, Some(8));
        tables.attached(5, 0, None);
        assert_eq!(Vec::from_iter(tables.take_due()), [3]);
        let (news, page) = tables.news_for(3, 0, Some(7));
        let (page, wanted) = (inode(&page.unwrap()), (&Rates::default(), &FAST));
        assert_eq!((&news.tenant, &news.vm), wanted);
        let news = tables.news_for(4, 0, Some(8));
        assert_eq!((news.0, news.1.is_none()), (LimitNews::default(), true));
        // The tenant's limit is counted in the same page; it is no other VM's.
        tables.tenants[0] = FAST;
        assert_eq!(inode(&tables.news_for(1, 0, Some(7)).1.unwrap()), page);
        assert_ne!(inode(&tables.news_for(4, 0, Some(8)).1.unwrap()), page);
        assert_ne!(inode(&tables.news_for(5, 0, None).1.unwrap()), page);
        // Another limit has another page.
        tables.set_vm("a", FAST, [].into_iter());
        assert_ne!(inode(&tables.news_for(1, 0, Some(7)).1.unwrap()), page);
    }

    #[test]
    fn a_vm_keeps_its_limit_when_it_comes_again() {
        let mut tables = tables();
        tables.name_vm(7, "a");
        tables.set_vm("a", FAST, [].into_iter());
        tables.name_vm(9, "a");
        assert_eq!(tables.vm_named("a"), Some(9));
        assert_eq!(tables.news_for(1, 0, Some(9)).0.vm, FAST);
        assert_eq!(tables.news_for(1, 0, Some(7)).0.vm, Rates::default());
        assert_eq!(Vec::from_iter(tables.of_vms()), [("a", &FAST)]);
        tables.set_vm("a", Rates::default(), [].into_iter());
        assert_eq!(tables.of_vms().count(), 0);
    }
}
