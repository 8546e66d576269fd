//! Many connections and endpoints of one user or tenant, against a real broker. Needs root.

mod common;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use causeway_fabric::limits::ATTACH_PATIENCE;
use causeway_fabric::{Address, Error, WirePref, launch, status};
use common::{CONFIG_NAME, Host, PATIENCE, Peer, as_user, readable};
use rustix::io::Errno;
use rustix::process::{Resource, Signal, getrlimit, setrlimit};

/// Users that have no other meaning.
const ALICE: u32 = 4001;
const BOB: u32 = 4002;
const OTHER: u32 = 4101;
/// More connections than a broker has places for all its clients.
const MANY: usize = 13_000;

/// A broker with the tenants "small", of which there may be eight endpoints, and "large".
struct Tenants {
    host: Host,
    dir: PathBuf,
}

impl Tenants {
    fn new() -> Tenants {
        let mut files = getrlimit(Resource::Nofile);
        files.current = files.maximum;
        setrlimit(Resource::Nofile, files).unwrap();
        let host = Host::new();
        let dir = host.dir.with_extension("tenants");
        let config = format!(
            "[[tenant]]\nname = 'small'\nsocket = '{0}/small.sock'\nusers = [{ALICE}, {BOB}]\n\
             [tenant.limits]\nendpoints = 8\n\
             [[tenant]]\nname = 'large'\nsocket = '{0}/large.sock'\nusers = [{ALICE}, {BOB}]\n",
            dir.display()
        );
        std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
        host.start_broker("0");
        Tenants { host, dir }
    }

    fn address(&self, tenant: &str) -> Address {
        Address::Socket(self.dir.join(format!("{tenant}.sock")))
    }

    fn try_endpoint(&self, tenant: &str, uid: u32) -> Result<Peer, Error> {
        let address = self.address(tenant);
        as_user(uid, OTHER, || Peer::try_attach(&address, WirePref::Auto))
    }

    /// Connections of a user that say nothing.
    fn connections(&self, tenant: &str, uid: u32, count: usize) -> Vec<OwnedFd> {
        let address = self.address(tenant);
        as_user(uid, OTHER, || {
            let connect = |_| OwnedFd::from(launch::connect_existing(&address).unwrap().unwrap());
            (0..count).map(connect).collect()
        })
    }

    /// As many endpoints of a user as it gets, and why it gets no more.
    fn endpoints(&self, tenant: &str, uid: u32) -> (Vec<Peer>, Errno) {
        let mut peers = Vec::new();
        loop {
            match self.try_endpoint(tenant, uid) {
                Ok(peer) => peers.push(peer),
                Err(error) => return (peers, Errno::from_raw_os_error(error.errno())),
            }
        }
    }
}

/// How many of these the broker has not closed.
fn held(connections: &[OwnedFd]) -> usize {
    let open = |fd: &&OwnedFd| !readable(fd, Duration::ZERO);
    connections.iter().filter(open).count()
}

#[test]
fn connections_of_one_user_keep_nobody_out() {
    for tenant in ["small", "large"] {
        let tenants = Tenants::new();
        let many = tenants.connections(tenant, ALICE, MANY);
        let others = [
            tenants.try_endpoint("small", BOB),
            tenants.try_endpoint("large", BOB),
            Peer::try_attach(&tenants.host.address(), WirePref::Auto),
        ];
        for other in others {
            other.unwrap();
        }
        let seen = status::status(&tenants.host.address()).unwrap().unwrap();
        assert!(seen.len() <= 3);
        let kept = held(&many);
        assert!(kept < MANY, "{tenant}: {kept} are held");
        assert!(kept <= 8 + 64 || tenant == "large", "{tenant}: {kept}");
        // Those that are gone were not Bob's, and those that end make room.
        drop(many);
        tenants.try_endpoint(tenant, ALICE).unwrap();
    }
}

#[test]
fn a_connection_that_says_nothing_ends() {
    let tenants = Tenants::new();
    let silent = tenants.connections("large", ALICE, 3);
    let peer = tenants.try_endpoint("large", ALICE).unwrap();
    let by = Instant::now() + ATTACH_PATIENCE + PATIENCE;
    for connection in &silent {
        let left = by.saturating_duration_since(Instant::now());
        assert!(readable(connection, left), "still there");
    }
    assert!(peer.events_so_far().is_empty(), "who is attached stays");
}

#[test]
fn one_user_leaves_endpoints_to_others() {
    let tenants = Tenants::new();
    let (of_alice, why) = tenants.endpoints("small", ALICE);
    assert_eq!(why, Errno::DQUOT);
    assert!(of_alice.len() < 8, "all");
    let bob = tenants.try_endpoint("small", BOB).unwrap();
    // Both come back to the next broker, whoever wants their places meanwhile.
    tenants.host.signal_broker(Signal::KILL);
    tenants.host.start_broker("0");
    let strangers = tenants.endpoints("small", BOB).0;
    assert!(!strangers.is_empty());
    as_user(BOB, OTHER, || bob.attachment.reattach()).unwrap();
    as_user(ALICE, OTHER, || of_alice[0].attachment.reattach()).unwrap();
}
