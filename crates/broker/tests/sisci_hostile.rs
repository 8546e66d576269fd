//! SISCI clients that say what they should not: they come to grief alone.

mod common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use causeway_fabric::Address;
use causeway_fabric::fds::{private_memfd, reopen, sealed_memfd};
use causeway_fabric::limits::BACKLOG_BYTES_MAX;
use causeway_fabric::remoting::{
    Field, HEADER_BYTES, Header, Kind, Received, encode_body, receive, send,
};
use causeway_fabric::services::session::{self, OpenRequest};
use causeway_fabric::services::sisci::{
    Backing, Bond, ConnectInterruptRequest, ConnectSegmentRequest, ConnectionHandle, JoinRequest,
    LocalSegmentReply, METHODS, RestoreConnectionRequest, RestoreSegmentRequest, SERVICE,
    SegmentHandle, SegmentState, TakeCellRequest,
};
use causeway_fabric::sisci::Sisci;
use common::nodes::{SIZE, available, connect, events_so_far, host, process, refused};
use common::{CONFIG_NAME, Host, PATIENCE, readable};
use rustix::io::Errno;

/// A client that says what it likes.
struct Attacker(OwnedFd);

impl Attacker {
    fn new(host: &Host) -> Attacker {
        Attacker(host.socket())
    }

    /// One that has joined as a node.
    fn joined(host: &Host, node: u32) -> Attacker {
        let attacker = Attacker::new(host);
        let open = encode_body(&OpenRequest::default());
        assert_eq!(attacker.call(session::SERVICE, 1, &open, &[]), Ok(()));
        assert_eq!(
            attacker.say(
                "join",
                &JoinRequest {
                    node: Some(node),
                    here: vec![node],
                    for_other_host: false,
                    linger_ms: 0,
                },
                &[]
            ),
            Ok(())
        );
        attacker
    }

    fn say(&self, name: &str, body: &impl Field, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        let method = METHODS.iter().find(|method| method.name == name).unwrap();
        self.call(SERVICE, method.number, &encode_body(body), fds)
    }

    fn call(
        &self,
        service: u16,
        method: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), Errno> {
        let header = Header {
            kind: Kind::Request,
            service,
            method,
            request: 1,
            status: 0,
            fds: fds.len() as u8,
        };
        send(&self.0, &header.encode(body), fds).unwrap();
        loop {
            assert!(readable(&self.0, PATIENCE), "the broker is silent");
            match receive(&self.0).unwrap() {
                Received::Message(header, ..) if header.kind == Kind::Event => {}
                Received::Message(header, ..) => match header.status {
                    0 => return Ok(()),
                    status => return Err(Errno::from_raw_os_error(status)),
                },
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn nothing_is_done_for_who_has_not_joined() {
    let host = host();
    let stranger = Attacker::new(&host);
    for method in METHODS {
        let outcome = stranger.call(SERVICE, method.number, &[], &[]);
        let harmless = ["nodes", "cluster"].contains(&method.name);
        assert_eq!(outcome.is_ok(), harmless, "{}", method.name);
    }
    let join = JoinRequest {
        node: Some(4),
        here: Vec::new(),
        for_other_host: false,
        linger_ms: 0,
    };
    assert_eq!(stranger.say("join", &join, &[]), Err(Errno::NOTCONN));
    let handle = SegmentHandle { segment: 1 };
    let outcome = stranger.say("set_available", &handle, &[]);
    assert_eq!(outcome, Err(Errno::NOTCONN));
    assert_eq!(stranger.call(SERVICE, 999, &[], &[]), Err(Errno::NOSYS));
    assert_eq!(stranger.call(99, 1, &[], &[]), Err(Errno::NOSYS));
    let member = Attacker::joined(&host, 4);
    assert_eq!(member.say("join", &join, &[]), Err(Errno::ISCONN));
    let open = encode_body(&OpenRequest::default());
    let again = member.call(session::SERVICE, 1, &open, &[]);
    assert_eq!(again, Err(Errno::ISCONN));
    for method in METHODS {
        let garbage = member.call(SERVICE, method.number, &[0xff; 300], &[]);
        assert_eq!(garbage, Err(Errno::BADMSG), "{}", method.name);
    }
}

#[test]
fn handles_of_others_lead_nowhere() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    available(&a, 7);
    connect(&b, 4, 7);
    a.create_interrupt(Some(9), false, false).unwrap();
    b.connect_interrupt(4, 9, false, false).unwrap();
    events_so_far(&a);
    let attacker = Attacker::joined(&host, 4);
    for number in 0..20u32 {
        let segment = SegmentHandle { segment: number };
        for method in ["prepare_segment", "set_available", "share_segment"] {
            assert_eq!(attacker.say(method, &segment, &[]), Err(Errno::BADF));
        }
        let connection = ConnectionHandle { connection: number };
        for method in [
            "fetch_connection",
            "disconnect_segment",
            "disconnect_interrupt",
        ] {
            assert_eq!(attacker.say(method, &connection, &[]), Err(Errno::BADF));
        }
        for local in [false, true] {
            let handle = number;
            let take = TakeCellRequest { handle, local };
            assert_eq!(attacker.say("take_cell", &take, &[]), Err(Errno::BADF));
        }
    }
    assert!(events_so_far(&a).is_empty() && events_so_far(&b).is_empty());
}

fn claim(id: u32) -> RestoreSegmentRequest {
    RestoreSegmentRequest {
        segment: LocalSegmentReply {
            segment: 1,
            id,
            name: 77,
            size: SIZE,
            offset: 0,
            state: SegmentState::Available,
            life: Default::default(),
        },
        backing: Backing::Own,
        private: false,
        shared: true,
        connections: Vec::new(),
    }
}

#[test]
fn only_what_a_broker_made_is_restored() {
    let host = host();
    let a = process(&host, 4);
    let (segment, memory) = available(&a, 7);
    let attacker = Attacker::joined(&host, 4);
    let restore = |request: &RestoreSegmentRequest, fd: BorrowedFd<'_>| {
        attacker.say("restore_segment", request, &[fd])
    };
    let made = claim(9);
    let open_to_all = sealed_memfd("causeway-sisci:default", SIZE).unwrap();
    let wrong_name = private_memfd("causeway-sisci:web", SIZE).unwrap();
    let wrong_size = private_memfd("causeway-sisci:default", SIZE + 4096).unwrap();
    let reader = reopen(&memory, false).unwrap();
    for fd in [&open_to_all, &wrong_name, &wrong_size, &reader] {
        assert_eq!(restore(&made, fd.as_fd()), Err(Errno::INVAL));
    }
    let memory = memory.as_fd();
    let with = |change: &dyn Fn(&mut RestoreSegmentRequest)| {
        let mut request = made.clone();
        change(&mut request);
        request
    };
    for bad in [
        with(&|request| request.segment.offset = 4096),
        with(&|request| request.segment.offset = 1 << 63),
        with(&|request| request.segment.size = 4095),
        with(&|request| request.segment.segment = 0),
        with(&|request| request.segment.segment = u32::MAX),
        with(&|request| request.segment.name = 0),
        with(&|request| request.segment.name = segment.name),
        with(&|request| request.private = true),
        with(&|request| {
            request.backing = Backing::Group;
            request.segment.id = 64;
        }),
    ] {
        assert_eq!(restore(&bad, memory), Err(Errno::INVAL), "{bad:?}");
    }
    // An id that is taken, by whatever name.
    let theirs = claim(7);
    assert_eq!(restore(&theirs, memory), Err(Errno::EXIST));
    // What a connected process knows does not make it an owner.
    let mut known = claim(7);
    known.segment.name = segment.name;
    assert_eq!(restore(&known, memory), Err(Errno::ACCESS));
    let unprepared = attacker.say("restore_segment", &made, &[]);
    assert_eq!(unprepared, Err(Errno::INVAL));
    // This user's own word is the broker's. Even so no more connections are believed in than fit.
    let own = private_memfd("causeway-sisci:default", SIZE).unwrap();
    let crowded = RestoreSegmentRequest {
        connections: (1..2000).map(|name| Bond { name, node: 8 }).collect(),
        ..claim(9)
    };
    assert_eq!(restore(&crowded, own.as_fd()), Ok(()));
    let sessions = causeway_fabric::sisci::sessions(&host.address()).unwrap();
    let mut items = sessions.iter().flatten().flat_map(|session| &session.items);
    assert_eq!(items.find(|item| item.id == 9).unwrap().peers, 1024);
    assert!(events_so_far(&a).is_empty());
}

#[test]
fn connections_are_not_guessed() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 8));
    let (segment, _) = available(&a, 7);
    let (_, grant) = connect(&b, 4, 7);
    assert_eq!(events_so_far(&a).len(), 1);
    let attacker = Attacker::joined(&host, 8);
    let request = ConnectSegmentRequest {
        node: 4,
        id: 7,
        group: false,
        wait: false,
    };
    let life = segment.life.clone();
    let honest = RestoreConnectionRequest {
        request,
        connection: 1,
        name: grant.name,
        segment_name: segment.name,
        life,
    };
    // Somebody else's, with all that is secret about it.
    let claim =
        |request: &RestoreConnectionRequest| attacker.say("restore_connection", request, &[]);
    assert_eq!(claim(&honest), Err(Errno::INVAL));
    let mut guess = honest.clone();
    guess.life.generation ^= 1;
    assert_eq!(claim(&guess), Err(Errno::NOENT));
    let mut guess = honest.clone();
    guess.request.id = 8;
    assert_eq!(claim(&guess), Err(Errno::NOENT));
    let mut guess = honest.clone();
    guess.connection = 0;
    assert_eq!(claim(&guess), Err(Errno::INVAL));
    assert!(events_so_far(&a).is_empty() && events_so_far(&b).is_empty());
}

#[test]
fn floods_end_at_a_limit() {
    let host = host();
    let (a, b) = (process(&host, 4), process(&host, 4));
    available(&a, 7);
    let interrupt = a.create_interrupt(Some(9), false, false).unwrap();
    let attacker = Attacker::joined(&host, 8);
    let until_refused = |name: &str, body: &dyn Fn(u32) -> Vec<u8>| {
        let method = METHODS.iter().find(|method| method.name == name).unwrap();
        let call = |turn| attacker.call(SERVICE, method.number, &body(turn), &[]);
        (0..10_000).find_map(|turn| call(turn).err().map(|why| (turn, why)))
    };
    let connect_to = |id, wait| {
        encode_body(&ConnectSegmentRequest {
            node: 4,
            id,
            group: false,
            wait,
        })
    };
    let made = until_refused("connect_segment", &|_| connect_to(7, false));
    assert_eq!(made, Some((1024, Errno::MFILE)));
    let pending = until_refused("connect_segment", &|turn| connect_to(100 + turn, true));
    assert_eq!(pending, Some((4096 - 1024, Errno::MFILE)));
    let cells = until_refused("connect_interrupt", &|_| {
        encode_body(&ConnectInterruptRequest {
            node: 4,
            number: 9,
            data: false,
            wait: false,
        })
    });
    assert_eq!(cells, Some((1024, Errno::MFILE)));
    refused(b.connect_segment(4, 7, false, false), Errno::MFILE);
    drop(attacker);
    // The victim has its own back, and others were served all the time.
    while a.take_cells(interrupt.interrupt, true).unwrap().len() == 1 {}
    let deadline = std::time::Instant::now() + PATIENCE;
    while b.connect_segment(4, 7, false, false).is_err() {
        assert!(std::time::Instant::now() < deadline);
    }
    a.create_segment(None, 1, Backing::Own, false).unwrap();
}

#[test]
fn events_for_a_deaf_process_are_kept_up_to_a_limit() {
    let host = host();
    let (other, talkative) = (process(&host, 4), process(&host, 8));
    let deaf = process(&host, 4);
    available(&deaf, 7);
    let most = 2 * BACKLOG_BYTES_MAX / HEADER_BYTES;
    let refusal = (0..most).find_map(|_| {
        let connected = talkative.connect_segment(4, 7, false, false);
        let connection = match connected {
            Ok(connection) => connection.connection,
            Err(refusal) => return Some(refusal),
        };
        talkative.disconnect_segment(connection).unwrap();
        None
    });
    refused(Err::<(), _>(refusal.unwrap()), Errno::NOENT);
    available(&other, 7);
    connect(&talkative, 4, 7);
}

#[test]
fn tenants_do_not_see_each_other() {
    let host = Host::new();
    let dir = host.dir.with_extension("tenants");
    let config = format!(
        "[[tenant]]\nname = 'a'\nsocket = '{0}/a.sock'\nusers = [0]\n\
         [[tenant]]\nname = 'b'\nsocket = '{0}/b.sock'\nusers = [0]\n",
        dir.display()
    );
    std::fs::write(host.dir.join(CONFIG_NAME), config).unwrap();
    host.start_broker("0");
    let address = |name: &str| Address::Socket(dir.join(format!("{name}.sock")));
    let [a, b] = ["a", "b"].map(|name| Sisci::open_as(Some(&address(name)), None).unwrap());
    let (segment, _) = available(&a, 7);
    a.share_segment(segment.segment).unwrap();
    a.create_interrupt(Some(9), false, false).unwrap();
    a.create_segment(Some(1), SIZE, Backing::Group, false)
        .unwrap();
    refused(b.connect_segment(4, 7, false, false), Errno::NOENT);
    refused(b.attach_segment(7), Errno::NOENT);
    refused(b.connect_interrupt(4, 9, false, false), Errno::NOENT);
    let size = b.create_segment(Some(1), 2 * SIZE, Backing::Group, false);
    size.unwrap();
    available(&b, 7);
    b.create_interrupt(Some(9), false, false).unwrap();
    let life = a.session().life().unwrap();
    assert!(!b.session().confirm(life).unwrap());
    assert!(!b.session().life_table().unwrap().is_alive(life));
    let sessions = |name: &str| {
        causeway_fabric::sisci::sessions(&address(name))
            .unwrap()
            .unwrap()
    };
    assert!(sessions("a").iter().all(|session| session.tenant == "a"));
    assert_eq!(sessions("b").len(), 1);
    let all = causeway_fabric::sisci::sessions(&host.address())
        .unwrap()
        .unwrap();
    assert_eq!(all.len(), 2);
    assert_eq!(all[0].items.len(), 3);
}
