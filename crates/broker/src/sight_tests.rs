//! What lists show to a process of the host, and to a guest whose VM was attached without a tenant.

use std::time::Instant;

use causeway_fabric::services::limit::{LimitCursor, LimitService, Rates};
use causeway_fabric::services::pool::{CreatePoolRequest, PoolCursor, PoolService};
use causeway_fabric::services::secure::SecuredRequest;
use causeway_fabric::services::session::OpenRequest;
use causeway_fabric::services::sisci::{ItemCursor, JoinRequest, SisciService};
use causeway_fabric::services::{BrokerService, StatusCursor, TallyCursor};

use crate::config::{Config, Tenant};
use crate::hub::Hub;
use crate::ids::{EndpointId, OWN_TENANT_ID, SessionId, TenantId};
use crate::services::Services;
use crate::session::{Caller, Peer};
use crate::sysfs_views::SysfsViews;
use crate::testing::{NETNS, endpoint_of};
use crate::vm::Vms;
use crate::{handler, limits, pool, sisci};

const HOST: Peer = Peer {
    tenant: OWN_TENANT_ID,
    userfaultfd: false,
    pid: 1,
    uid: 0,
    vm: None,
};
const GUEST: Peer = Peer {
    pid: 0,
    vm: Some(7),
    ..HOST
};
/// A VM that has a limit, and is of no tenant now.
const VM: &str = "elsewhere";

/// Two tenants, each with an endpoint, a pool, and a process that uses SISCI.
struct World {
    hub: Hub,
    endpoints: [EndpointId; 2],
    services: Services,
    tenants: Vec<Tenant>,
}

impl World {
    fn new() -> World {
        let own = Config::without_file().tenants.remove(0);
        let other = Tenant {
            name: "other".to_owned(),
            ..own.clone()
        };
        let mut hub = Hub::new();
        let rates = Rates {
            bytes: 1,
            ..Default::default()
        };
        hub.rates.set_vm(VM, rates, std::iter::empty());
        let endpoints = [0, 1].map(|tenant| {
            let slot = tenant as u16 + 1;
            endpoint_of(&mut hub, tenant, (slot, NETNS), 0)
        });
        let mut world = World {
            hub,
            endpoints,
            services: Services::default(),
            tenants: vec![own, other],
        };
        for tenant in [0, 1] {
            let peer = Peer { tenant, ..HOST };
            world.as_caller(
                tenant as SessionId + 1,
                peer,
                |services, tenants, caller| {
                    let members = &mut services.members;
                    let open = OpenRequest::default();
                    members.open(caller, &open, &[], Instant::now()).unwrap();
                    let pool = CreatePoolRequest {
                        name: "pool".to_owned(),
                        block_bytes: 4096,
                        capacity: 1,
                        ..Default::default()
                    };
                    let mut client = pool_client(services, tenants, caller);
                    client.create_pool(pool, Vec::new()).unwrap();
                    let mut client = sisci_client(services, tenants, caller);
                    client.join(JoinRequest::default(), Vec::new()).unwrap();
                },
            );
        }
        world
    }

    fn as_caller<T>(
        &mut self,
        session: SessionId,
        peer: Peer,
        then: impl FnOnce(&mut Services, &[Tenant], &Caller<'_>) -> T,
    ) -> T {
        let tenant = &self.tenants[peer.tenant];
        let caller = Caller {
            session,
            peer,
            tenant,
        };
        then(&mut self.services, &self.tenants, &caller)
    }

    /// Endpoints, sums, and secured connections, by tenant.
    fn endpoints(&mut self, peer: Peer) -> [Vec<String>; 3] {
        let mut views = SysfsViews::new(Default::default(), None);
        let mut client = handler::Client {
            hub: &mut self.hub,
            sysfs_views: &mut views,
            tenants: &self.tenants,
            peer,
            session: 3,
            endpoint: &mut None,
        };
        let mut cursor = StatusCursor::default();
        let listed = std::iter::from_fn(|| {
            let entry = client
                .status(cursor.clone(), Vec::new())
                .unwrap()
                .body
                .entry;
            entry.map(|entry| {
                cursor.endpoint = entry.endpoint;
                entry.tenant
            })
        });
        let listed = listed.collect();
        let mut cursor = TallyCursor::default();
        let sums = std::iter::from_fn(|| {
            let page = client.tally(cursor.clone(), Vec::new()).unwrap().body;
            cursor.tenant = page.next;
            page.entry.map(|entry| entry.name)
        });
        let sums = sums.collect();
        let mut secured = Vec::new();
        for (endpoint, tenant) in self.endpoints.into_iter().zip(&self.tenants) {
            let request = SecuredRequest { endpoint, from: 0 };
            if client.secured(request, Vec::new()).is_ok() {
                secured.push(tenant.name.clone());
            }
        }
        [listed, sums, secured]
    }

    /// Those of tenants and VMs, by name.
    fn limits(&mut self, peer: Peer) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let vms = Vms::new(dir.path()).unwrap();
        let mut client = limits::Client::new(&mut self.hub, &vms, &self.tenants, peer);
        let entries = (0..).map_while(|seen| {
            let page = client.limits(LimitCursor { seen }, Vec::new()).unwrap();
            page.body.entry
        });
        entries.map(|entry| entry.name).collect()
    }

    /// Pools, and SISCI's processes, by tenant.
    fn others(&mut self, peer: Peer) -> [Vec<String>; 2] {
        self.as_caller(3, peer, |services, tenants, caller| {
            let mut client = pool_client(services, tenants, caller);
            let mut cursor = PoolCursor::default();
            let pools = std::iter::from_fn(|| {
                let page = client.status(cursor.clone(), Vec::new()).unwrap();
                page.body.entry.map(|entry| {
                    cursor.pool = entry.pool;
                    entry.tenant
                })
            });
            let pools = pools.collect();
            let mut client = sisci_client(services, tenants, caller);
            let mut cursor = ItemCursor::default();
            let processes = std::iter::from_fn(|| {
                let page = client.items(cursor.clone(), Vec::new()).unwrap();
                page.body.entry.map(|entry| {
                    cursor.session = entry.session;
                    entry.tenant
                })
            });
            [pools, processes.collect()]
        })
    }
}

fn pool_client<'a>(
    services: &'a mut Services,
    tenants: &'a [Tenant],
    caller: &'a Caller<'a>,
) -> pool::client::Client<'a> {
    pool::client::Client {
        pools: &mut services.pools,
        members: &mut services.members,
        tenants,
        caller,
    }
}

fn sisci_client<'a>(
    services: &'a mut Services,
    tenants: &'a [Tenant],
    caller: &'a Caller<'a>,
) -> sisci::Client<'a> {
    sisci::Client {
        tables: &mut services.sisci,
        context: sisci::Context {
            members: &mut services.members,
            outbox: &mut services.outbox,
        },
        tenants,
        caller,
    }
}

/// What each list shows to `peer`: limits of these, all else of these tenants.
fn is_shown(world: &mut World, peer: Peer, tenants: &[&str], limits: &[&str]) {
    for (at, list) in world.endpoints(peer).into_iter().enumerate() {
        assert_eq!(list, tenants, "list {at} of endpoints, {peer:?}");
    }
    for (at, list) in world.others(peer).into_iter().enumerate() {
        assert_eq!(list, tenants, "list {at} of the services, {peer:?}");
    }
    assert_eq!(world.limits(peer), limits, "{peer:?}");
}

#[test]
fn a_guest_of_no_tenant_sees_the_brokers_own_only() {
    let mut world = World::new();
    let all = ["default", "other"];
    is_shown(&mut world, HOST, &all, &["default", "other", VM]);
    is_shown(&mut world, GUEST, &all[..1], &all[..1]);
    for vm in [None, Some(8)] {
        let member = Peer {
            tenant: 1 as TenantId,
            vm,
            ..HOST
        };
        is_shown(&mut world, member, &all[1..], &all[1..]);
    }
}
