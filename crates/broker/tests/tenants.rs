//! Tenants, their limits, and what users can't do to each other, against a real broker. Needs root.

mod common;

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use causeway_fabric::rates::{LimitEntry, LimitOf, Rates, set as set_limit};
use causeway_fabric::sysfs::{SysfsGid, SysfsRequest, SysfsView};
use causeway_fabric::{Address, ConnectRequest, Error, Event, Introduction, WirePref, status};
use causeway_identity::Access;
use common::{CONFIG_NAME, Host, Peer, as_user, ring};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fchmod, ftruncate, open};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::Signal;

const REMOTE_READ: u32 = Access::REMOTE_READ.bits();
const REMOTE_WRITE: u32 = Access::REMOTE_WRITE.bits();
/// Users that have no other meaning.
const ALICE: u32 = 4001;
const BOB: u32 = 4002;
const CAROL: u32 = 4003;
/// A group that admits to the tenant "web".
const WEB: u32 = 4100;
/// No group that means anything.
const OTHER: u32 = 4101;
/// The overflow user.
const NOBODY: u32 = 65534;
const PD: u32 = 3;

/// A broker with the tenants "web" (Alice, Bob, and the group WEB) and "tiny" (Alice, root).
struct Tenants {
    host: Host,
    /// Where their sockets are: others may enter.
    dir: PathBuf,
}

impl Tenants {
    fn new() -> Tenants {
        let host = Host::new();
        let dir = host.dir.with_extension("tenants");
        let config = format!(
            "[[tenant]]\nname = 'web'\nsocket = '{0}/web.sock'\nusers = [{ALICE}, {BOB}]\n\
             groups = [{WEB}]\nuserfaultfd = [{ALICE}]\n\
             [[tenant]]\nname = 'tiny'\nsocket = '{0}/tiny.sock'\nusers = [{ALICE}, 0]\n\
             [tenant.limits]\nendpoints = 2\nqps = 2\nsegments = 1\nbytes = '100 MiB'\n",
            dir.display()
        );
        std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
        host.start_broker("0");
        Tenants { host, dir }
    }

    fn address(&self, tenant: &str) -> Address {
        Address::Socket(self.dir.join(format!("{tenant}.sock")))
    }

    fn endpoint(&self, tenant: &str, uid: u32) -> Peer {
        let address = self.address(tenant);
        as_user(uid, OTHER, || Peer::attach(&address, WirePref::Auto))
    }

    fn admits(&self, tenant: &str, uid: u32, group: u32) -> bool {
        let address = self.address(tenant);
        match as_user(uid, group, || status::status(&address)) {
            Ok(Some(_)) => true,
            Err(Error::Refused { errno, .. }) if errno == Errno::ACCESS => false,
            other => panic!("{other:?}"),
        }
    }
}

fn errno<T: std::fmt::Debug>(outcome: Result<T, Error>) -> Errno {
    Errno::from_raw_os_error(outcome.unwrap_err().errno())
}

/// Connects the owner's QP `index`, with these access flags, with the peer's of the same index.
fn pair(owner: &Peer, peer: &Peer, index: u32, access: u32) -> common::RingOf {
    ring(owner.connect_with(index, peer.qpn(index), PD, access));
    ring(peer.connect(index, owner, index))
}

#[test]
fn a_tenant_admits_those_it_names_and_nobody_else() {
    let tenants = Tenants::new();
    for (uid, group, admitted) in [
        (ALICE, OTHER, true),
        (BOB, OTHER, true),
        (CAROL, OTHER, false),
        (CAROL, WEB, true),
        (WEB, OTHER, true),
        (0, OTHER, false),
        (NOBODY, WEB, false),
    ] {
        assert_eq!(tenants.admits("web", uid, group), admitted, "{uid} {group}");
    }
    assert!(tenants.admits("tiny", 0, OTHER));
    assert!(!tenants.admits("tiny", BOB, WEB));
    // Whoever is refused is told so, and does not take it for a broker on its way out.
    let address = tenants.address("web");
    let refusal = as_user(CAROL, OTHER, || SysfsView::open(&address, &device()));
    assert_eq!(errno(refusal), Errno::ACCESS);
}

#[test]
fn tenants_share_nothing() {
    let tenants = Tenants::new();
    let (a, b) = (tenants.endpoint("web", ALICE), tenants.endpoint("web", BOB));
    // The same user in another tenant, and root in the broker's own.
    let (other, own) = (
        tenants.endpoint("tiny", ALICE),
        tenants.host.endpoint(WirePref::Auto),
    );
    ring(a.connect(1, &b, 1));
    for stranger in [&other, &own] {
        assert!(matches!(a.connect(2, stranger, 2), Introduction::Udp));
        assert!(matches!(stranger.connect(2, &a, 2), Introduction::Udp));
    }
    let shm = as_user(BOB, OTHER, || {
        Peer::attach(&tenants.address("web"), WirePref::Shm)
    });
    assert!(matches!(shm.connect(1, &other, 1), Introduction::NoPeer));
    let seen = |address: &Address, uid| {
        let list = as_user(uid, OTHER, || status::status(address))
            .unwrap()
            .unwrap();
        let mut names: Vec<String> = list.into_iter().map(|entry| entry.tenant).collect();
        names.sort();
        names
    };
    assert_eq!(seen(&tenants.address("web"), BOB), ["web"; 3]);
    assert_eq!(seen(&tenants.address("tiny"), 0), ["tiny"]);
    let all = seen(&tenants.host.address(), 0);
    assert_eq!(all, ["default", "tiny", "web", "web", "web"]);
}

/// Everything that a user tries on a descriptor that was granted for reading.
fn attack_reader(fd: &OwnedFd) {
    let path = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
    for way in [OFlags::RDWR, OFlags::WRONLY] {
        let reopened = open(&path, way | OFlags::CLOEXEC, Mode::empty());
        assert_eq!(reopened.map(drop), Err(Errno::ACCESS));
    }
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(fd, punch, 0, 4096), Err(Errno::BADF));
    assert_eq!(pwrite(fd, b"x", 0), Err(Errno::BADF));
    assert_eq!(fchmod(fd, Mode::from_raw_mode(0o666)), Err(Errno::PERM));
    // SAFETY: maps nothing of this program's; the mapping is to fail.
    let mapped = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            4096,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
            fd,
            0,
        )
    };
    assert_eq!(mapped.map(drop), Err(Errno::ACCESS));
}

#[test]
fn a_user_cannot_write_what_it_was_granted_for_reading() {
    let tenants = Tenants::new();
    let (a, b) = (tenants.endpoint("web", ALICE), tenants.endpoint("web", BOB));
    let (segment, own) = a.attachment.create_segment(PD, true, false).unwrap();
    let seen = pair(&a, &b, 1, REMOTE_READ);
    assert!(!seen.trusted);
    pwrite(&own, b"owner", 0).unwrap();
    let (reader, writable) = b.attachment.map_segment(b.qpn(1), segment).unwrap();
    assert!(!writable);
    let mut found = [0; 5];
    pread(&reader, &mut found, 0).unwrap();
    assert_eq!(&found, b"owner");
    for fd in [&reader, &seen.peer_table] {
        as_user(BOB, OTHER, || attack_reader(fd));
    }
    // Nor does the owner's user get at the inode: it is the broker's.
    as_user(ALICE, OTHER, || attack_reader(&reader));
    // One that may be written has a size and seals that nobody changes.
    pair(&a, &b, 2, REMOTE_WRITE);
    let (writer, writable) = b.attachment.map_segment(b.qpn(2), segment).unwrap();
    assert!(writable);
    as_user(BOB, OTHER, || {
        assert_eq!(ftruncate(&writer, 0), Err(Errno::PERM));
        let seal = rustix::fs::fcntl_add_seals(&writer, rustix::fs::SealFlags::WRITE);
        assert_eq!(seal, Err(Errno::PERM));
    });
}

#[test]
fn an_owner_is_told_when_another_user_keeps_what_it_should_not() {
    let tenants = Tenants::new();
    let (a, b) = (tenants.endpoint("web", ALICE), tenants.endpoint("web", BOB));
    let create = || a.attachment.create_segment(PD, true, false).unwrap().0;
    let map = |index, segment| b.attachment.map_segment(b.qpn(index), segment);
    let both = REMOTE_READ | REMOTE_WRITE;
    // By its own doing, the owner hears it in the reply.
    let first = create();
    pair(&a, &b, 1, both);
    map(1, first).unwrap();
    assert_eq!(
        a.attachment.set_access(a.qpn(1), REMOTE_READ).unwrap(),
        [first]
    );
    assert_eq!(errno(map(1, first)), Errno::NOENT);
    let second = create();
    map(1, second).unwrap();
    assert_eq!(a.attachment.disconnect(a.qpn(1)).unwrap(), [second]);
    // By the peer's doing, in an event.
    let third = create();
    pair(&a, &b, 2, both);
    map(2, third).unwrap();
    a.events_so_far();
    b.attachment.disconnect(b.qpn(2)).unwrap();
    let mut told = a.events();
    while told.len() < 2 {
        told.extend(a.events());
    }
    assert_eq!(told[0], Event::SegmentStale { segment: third });
    assert!(matches!(told[1..], [Event::PeerLeft { .. }]));
    // By connecting again without a disconnect.
    let fourth = create();
    pair(&a, &b, 3, both);
    map(3, fourth).unwrap();
    a.events_so_far();
    a.connect_with(3, b.qpn(4), PD, both);
    assert_eq!(a.events_so_far(), [Event::SegmentStale { segment: fourth }]);
    // By the peer's death.
    let fifth = create();
    pair(&a, &b, 5, both);
    map(5, fifth).unwrap();
    a.events_so_far();
    drop(b);
    assert!(a.events().contains(&Event::SegmentStale { segment: fifth }));
    for segment in [first, second, third, fourth, fifth] {
        a.attachment.destroy_segment(segment).unwrap();
    }
}

#[test]
fn without_a_broker_what_may_be_held_counts_as_held() {
    let tenants = Tenants::new();
    let (a, b) = (tenants.endpoint("web", ALICE), tenants.endpoint("web", BOB));
    let (held, _) = a.attachment.create_segment(PD, true, false).unwrap();
    let (kept, _) = a.attachment.create_segment(PD + 1, true, false).unwrap();
    pair(&a, &b, 1, REMOTE_WRITE);
    tenants.host.signal_broker(Signal::KILL);
    assert_eq!(a.events().last(), Some(&Event::BrokerGone));
    // None is started for a tenant's socket, and that is said.
    let lost = a.attachment.reattach().unwrap_err();
    assert!(lost.to_string().contains("no broker answers at"), "{lost}");
    assert_eq!(a.attachment.disconnect(a.qpn(1)).unwrap(), [held]);
    tenants.host.start_broker("0");
    as_user(ALICE, OTHER, || a.attachment.reattach()).unwrap();
    as_user(BOB, OTHER, || b.attachment.reattach()).unwrap();
    pair(&a, &b, 2, REMOTE_WRITE);
    let map = |segment| b.attachment.map_segment(b.qpn(2), segment);
    assert_eq!(
        errno(map(held)),
        Errno::NOENT,
        "no broker hears of it again"
    );
    assert_eq!(
        errno(map(kept)),
        Errno::ACCESS,
        "of another protection domain"
    );
    a.attachment.destroy_segment(held).unwrap();
}

#[test]
fn a_dead_owners_memory_is_taken_from_those_who_held_it() {
    let tenants = Tenants::new();
    let b = tenants.endpoint("web", BOB);
    let address = tenants.address("web");
    let mut owner = Owner::start(&address);
    let remote: u32 = owner.read().parse().unwrap();
    ring(b.connect_to(1, remote));
    owner.say(&b.qpn(1).to_string());
    let segment = owner.read().parse().unwrap();
    let (held, _) = b.attachment.map_segment(b.qpn(1), segment).unwrap();
    let mut found = [0; 6];
    pread(&held, &mut found, 4096).unwrap();
    assert_eq!(&found, b"secret");
    // It loses its broker only: nothing is taken.
    owner.say("detach");
    assert_eq!(owner.read(), "detached");
    while !b
        .events()
        .iter()
        .any(|event| matches!(event, Event::PeerDead { .. }))
    {}
    pread(&held, &mut found, 4096).unwrap();
    assert_eq!(&found, b"secret");
    owner.child.kill().unwrap();
    owner.child.wait().unwrap();
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while found != [0; 6] {
        assert!(std::time::Instant::now() < deadline, "still there");
        std::thread::yield_now();
        pread(&held, &mut found, 4096).unwrap();
    }
}

#[test]
fn limits_hold_and_are_told_apart_from_failures() {
    let tenants = Tenants::new();
    let (a, b) = (tenants.endpoint("tiny", ALICE), tenants.endpoint("tiny", 0));
    let address = tenants.address("tiny");
    let third = as_user(ALICE, OTHER, || Peer::try_attach(&address, WirePref::Auto));
    assert_eq!(errno(third.map(drop)), Errno::DQUOT);
    let (segment, _) = a.attachment.create_segment(PD, true, false).unwrap();
    assert_eq!(
        errno(a.attachment.create_segment(PD, false, false)),
        Errno::DQUOT
    );
    a.attachment.destroy_segment(segment).unwrap();
    a.attachment.create_segment(PD, false, false).unwrap();
    ring(a.connect(1, &b, 1));
    ring(a.connect(2, &b, 2));
    let request = ConnectRequest {
        local_qpn: a.qpn(3),
        remote_gid: None,
        gid_is_local: false,
        remote_qpn: b.qpn(3),
        pd: PD,
        access: 0,
        known: 0,
    };
    assert_eq!(errno(a.attachment.connect(&request)), Errno::DQUOT);
    a.attachment.disconnect(a.qpn(1)).unwrap();
    a.attachment.connect(&request).unwrap();

    let reserved = || {
        let list = as_user(ALICE, OTHER, || status::status(&address))
            .unwrap()
            .unwrap();
        let id = a.attachment.endpoint().unwrap();
        list.into_iter()
            .find(|entry| entry.endpoint == id)
            .unwrap()
            .reserved
    };
    a.attachment.reserve(10 << 20).unwrap();
    assert_eq!(reserved(), 64 << 20, "a unit at once");
    a.attachment.reserve(90 << 20).unwrap();
    assert_eq!(
        reserved(),
        100 << 20,
        "not beyond the limit for the unit's sake"
    );
    assert_eq!(errno(a.attachment.reserve(1)), Errno::DQUOT);
    a.attachment.release(1).unwrap();
    a.attachment.reserve(1).unwrap();
    a.attachment.release(100 << 20).unwrap();
    assert_eq!(reserved(), 0);
    a.attachment.reserve(100 << 20).unwrap();
    tenants.host.signal_broker(Signal::KILL);
    tenants.host.start_broker("0");
    let more = as_user(ALICE, OTHER, || a.attachment.reserve(1));
    assert_eq!(errno(more), Errno::DQUOT);
    assert_eq!(reserved(), 100 << 20, "the next broker knows");
}

#[test]
fn the_device_for_page_faults_goes_to_those_who_are_listed() {
    let tenants = Tenants::new();
    let there = std::path::Path::new("/dev/userfaultfd").exists();
    for (tenant, uid, trusted) in [
        ("web", ALICE, true),
        ("web", BOB, false),
        ("tiny", ALICE, false),
        ("tiny", 0, false),
    ] {
        let address = tenants.address(tenant);
        let device = as_user(uid, OTHER, || status::userfaultfd(&address)).unwrap();
        assert_eq!(device.is_some(), trusted && there, "{tenant} {uid}");
    }
    let own = status::userfaultfd(&tenants.host.address()).unwrap();
    assert_eq!(own.is_some(), there);
}

fn device() -> SysfsRequest {
    let gid = SysfsGid {
        gid: [0; 16],
        ifname: "lo".into(),
    };
    SysfsRequest {
        node_guid: [2; 8],
        gids: vec![gid],
    }
}

#[test]
fn a_tenants_clients_can_read_their_view_of_sysfs() {
    let tenants = Tenants::new();
    let address = tenants.address("web");
    as_user(BOB, OTHER, || {
        let view = SysfsView::open(&address, &device()).unwrap();
        let path = view
            .root()
            .join("sys/class/infiniband/cway0/ports/1/gid_attrs/ndevs/0");
        assert_eq!(std::fs::read_to_string(path).unwrap(), "lo\n");
    });
    tenants.host.signal_broker(Signal::TERM);
    let left: Vec<_> = std::fs::read_dir(&tenants.dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_bad_configuration_is_refused_with_its_reason() {
    let host = Host::new();
    let start = || {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_causewayd"))
            .args(["--detached", "--runtime-dir"])
            .arg(&host.dir)
            .arg("--config")
            .arg(host.dir.join(CONFIG_NAME))
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(start().contains("No such file"));
    let open_dir = host.dir.with_extension("open");
    std::fs::create_dir(&open_dir).unwrap();
    std::fs::set_permissions(&open_dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let config = format!(
        "[[tenant]]\nname = 'x'\nsocket = '{}/x.sock'\nusers = [0]\n",
        open_dir.display()
    );
    std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
    assert!(start().contains("the socket of tenant \"x\""));
}

/// Tells this program, run again, where the broker is.
const OWNER_AT: &str = "CW_TEST_OWNER_AT";

/// Not a test: a process that owns a segment, becomes another user itself and does as it is told.
#[test]
#[ignore = "run by another test as a process of its own"]
fn owner_process() {
    let Some(socket) = std::env::var_os(OWNER_AT) else {
        return;
    };
    let address = Address::Socket(socket.into());
    let peer = as_user(ALICE, OTHER, || Peer::attach(&address, WirePref::Auto));
    let line = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    println!("\nsays {}", peer.qpn(1));
    let remote = line().parse().unwrap();
    ring(peer.connect_with(1, remote, PD, REMOTE_READ));
    let (segment, own) = peer.attachment.create_segment(PD, false, false).unwrap();
    pwrite(&own, b"secret", 4096).unwrap();
    println!("\nsays {segment}");
    assert_eq!(line(), "detach");
    drop(peer);
    println!("\nsays detached");
    line();
}

/// That process.
struct Owner {
    child: std::process::Child,
    out: std::io::BufReader<std::process::ChildStdout>,
}

impl Owner {
    fn start(address: &Address) -> Owner {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner_process", "--ignored", "--nocapture"])
            .env(OWNER_AT, address.socket())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        Owner { child, out }
    }

    fn read(&mut self) -> String {
        use std::io::BufRead;
        for line in std::io::Read::by_ref(&mut self.out).lines() {
            if let Some(said) = line.unwrap().strip_prefix("says ") {
                return said.to_owned();
            }
        }
        panic!("the owner ended without a word");
    }

    fn say(&mut self, word: &str) {
        use std::io::Write;
        writeln!(self.child.stdin.as_ref().unwrap(), "{word}").unwrap();
    }
}

/// The limits that an endpoint is told next, and the inode of the page that comes with them.
fn told(peer: &Peer) -> (Rates, Rates, Option<u64>) {
    assert_eq!(peer.events(), [Event::LimitsChanged]);
    let limits = peer.attachment.take_limits().unwrap();
    let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
    (
        limits.news.tenant,
        limits.news.own,
        limits.page.as_ref().map(inode),
    )
}

#[test]
fn limits_are_told_to_those_whom_they_concern() {
    let tenants = Tenants::new();
    let (a, other) = (
        tenants.endpoint("web", ALICE),
        tenants.endpoint("tiny", ALICE),
    );
    let rates = Rates {
        bytes: 1000,
        messages: 10,
        burst: 0,
    };
    let entry = LimitEntry {
        of: LimitOf::Tenant,
        name: "web".into(),
        pid: 0,
        rates: rates.clone(),
    };
    let refused = as_user(ALICE, OTHER, || set_limit(&tenants.address("web"), &entry));
    assert_eq!(errno(refused), Errno::PERM, "it is the tenant's own");
    let own = tenants.host.address();
    set_limit(&own, &entry).unwrap();
    let (tenant, alone, page) = told(&a);
    assert_eq!((&tenant, alone), (&rates, Rates::default()));
    let b = tenants.endpoint("web", BOB);
    assert_eq!(told(&b), (rates, Rates::default(), page));
    assert!(page.is_some());
    assert!(other.events_so_far().is_empty(), "another tenant's");
    let none = LimitEntry {
        rates: Rates::default(),
        ..entry.clone()
    };
    set_limit(&own, &none).unwrap();
    assert_eq!(told(&a), (Rates::default(), Rates::default(), None));
    for name in ["", "nobody"] {
        let name = name.to_owned();
        let nobody = LimitEntry {
            name,
            ..entry.clone()
        };
        assert_eq!(errno(set_limit(&own, &nobody)), Errno::NOENT);
    }
}

#[test]
fn limits_are_those_of_the_broker_that_is_there() {
    let tenants = Tenants::new();
    let a = tenants.endpoint("web", ALICE);
    let entry = LimitEntry {
        of: LimitOf::Tenant,
        name: "web".into(),
        pid: 0,
        rates: Rates {
            bytes: 1000,
            ..Rates::default()
        },
    };
    set_limit(&tenants.host.address(), &entry).unwrap();
    assert_eq!(told(&a).0, entry.rates);
    tenants.host.signal_broker(Signal::KILL);
    tenants.host.start_broker("0");
    assert_eq!(a.events(), [Event::BrokerGone]);
    as_user(ALICE, OTHER, || a.attachment.reattach()).unwrap();
    assert_eq!(told(&a), (Rates::default(), Rates::default(), None));
}
