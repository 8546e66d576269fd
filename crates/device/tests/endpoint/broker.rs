//! A broker of the tests' own, in this process: it introduces and grants to everybody, and answers
//! as it is told to.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use causeway_device::{Context, OpenError};
use causeway_fabric::Address;
use causeway_fabric::remoting::{Header, Kind, ONE_WAY, Received, encode_body, receive, send};
use causeway_fabric::runtime::SOCKET_NAME;
use causeway_fabric::services::{
    EVENT_PEERS, METHODS, PeerChange, PeerEvent, SERVICE, broker::dispatch,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with,
};
use tempfile::TempDir;

use crate::tables::{Tables, Turn, fresh_name};

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How the broker treats a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// With a reply of this errno value.
    Refuse(Errno),
    /// Not at all.
    Never,
    /// As it should, once [`Broker::release`] says so.
    Late,
    /// As it should, but for the reply's descriptors, which it keeps.
    WithoutDescriptors,
    /// With a body that means nothing.
    Garbled,
    /// By closing the connection.
    HangUp,
}

/// A request that waits for [`Broker::release`].
struct Held {
    endpoint: u64,
    header: Header,
    body: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// What the threads of a broker share.
#[derive(Default)]
struct Inner {
    tables: Tables,
    /// What comes of the next calls of a method, by name.
    manners: HashMap<&'static str, VecDeque<Manner>>,
    /// How often each method was called.
    calls: HashMap<&'static str, u32>,
    held: Vec<Held>,
    connections: BTreeMap<u64, Arc<OwnedFd>>,
    /// Whether it is to end.
    gone: bool,
}

#[derive(Default)]
struct Shared {
    inner: Mutex<Inner>,
    called: Condvar,
}

/// A broker, until it is dropped.
pub struct Broker {
    dir: Arc<TempDir>,
    shared: Arc<Shared>,
    listener: Arc<OwnedFd>,
}

impl Broker {
    /// Starts one, at an address of its own.
    pub fn start() -> Broker {
        Broker::start_in(Arc::new(tempfile::tempdir().unwrap()), &[])
    }

    fn start_in(dir: Arc<TempDir>, manners: &[(&'static str, Manner)]) -> Broker {
        let path = dir.path().join(SOCKET_NAME);
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 16).unwrap();
        let (shared, listener) = (Arc::<Shared>::default(), Arc::new(listener));
        let (accepting, serving) = (Arc::clone(&listener), Arc::clone(&shared));
        let broker = Broker {
            dir,
            shared,
            listener,
        };
        manners
            .iter()
            .for_each(|(method, manner)| broker.next(method, *manner));
        std::thread::spawn(move || accept_all(&accepting, &serving));
        broker
    }

    /// Where its socket is.
    fn path(&self) -> PathBuf {
        self.dir.path().join(SOCKET_NAME)
    }

    /// A device that is attached to it.
    pub fn open(&self) -> Result<Arc<Context>, OpenError> {
        Context::open_at(&Address::Socket(self.path()))
    }

    /// Ends it: connections are closed, and nobody listens. Another starts where it was, that knows
    /// nothing.
    pub fn restart(self) -> Broker {
        self.restart_with(&[])
    }

    /// As [`Broker::restart`]; the next one treats its first calls so.
    pub fn restart_with(self, manners: &[(&'static str, Manner)]) -> Broker {
        let dir = Arc::clone(&self.dir);
        drop(self);
        Broker::start_in(dir, manners)
    }

    /// How the next call of a method that has no manner yet is treated.
    pub fn next(&self, method: &'static str, manner: Manner) {
        assert!(METHODS.iter().any(|known| known.name == method), "{method}");
        let mut inner = self.shared.inner.lock().unwrap();
        inner.manners.entry(method).or_default().push_back(manner);
    }

    /// Answers what was held back.
    pub fn release(&self) {
        let mut inner = self.shared.inner.lock().unwrap();
        for held in std::mem::take(&mut inner.held) {
            inner.answer(held.endpoint, held.header, &held.body, held.fds, None);
        }
    }

    /// Waits until a method has been called so often.
    pub fn await_calls(&self, method: &str, count: u32) {
        let made = |inner: &Inner| inner.calls.get(method).copied().unwrap_or(0);
        let inner = self.shared.inner.lock().unwrap();
        let waited = self
            .shared
            .called
            .wait_timeout_while(inner, PATIENCE, |inner| made(inner) < count);
        let (inner, waited) = waited.unwrap();
        assert!(!waited.timed_out(), "{method}: {} calls", made(&inner));
    }

    /// How often a method has been called.
    pub fn calls(&self, method: &str) -> u32 {
        let inner = self.shared.inner.lock().unwrap();
        inner.calls.get(method).copied().unwrap_or(0)
    }

    /// The tables, for the tests that are themselves an endpoint.
    pub fn with_tables<T>(&self, f: impl FnOnce(&mut Tables) -> T) -> T {
        f(&mut self.shared.inner.lock().unwrap().tables)
    }

    /// Tells the endpoint of a queue pair what has become of its peer.
    pub fn tell(&self, local_qpn: u32, change: PeerChange) {
        let mut inner = self.shared.inner.lock().unwrap();
        let news = inner.tables.news_of(local_qpn, change);
        inner.tables.news.push(news.expect("a connection"));
        inner.tell_news();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let mut inner = self.shared.inner.lock().unwrap();
        inner.gone = true;
        let _ = std::fs::remove_file(self.path());
        // Ends the threads that wait on them.
        let _ = shutdown(&self.listener, Shutdown::Both);
        for connection in inner.connections.values() {
            let _ = shutdown(connection, Shutdown::Both);
        }
    }
}

fn accept_all(listener: &OwnedFd, shared: &Arc<Shared>) {
    while let Ok(connection) = accept_with(listener, SocketFlags::CLOEXEC) {
        let connection = Arc::new(connection);
        let mut inner = shared.inner.lock().unwrap();
        if inner.gone {
            return;
        }
        let endpoint = fresh_name();
        inner.connections.insert(endpoint, Arc::clone(&connection));
        drop(inner);
        let shared = Arc::clone(shared);
        std::thread::spawn(move || serve(endpoint, &connection, &shared));
    }
}

/// Serves a connection until it ends.
fn serve(endpoint: u64, connection: &Arc<OwnedFd>, shared: &Shared) {
    loop {
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        match receive(connection) {
            Ok(Received::Message(header, body, fds)) => {
                let mut inner = shared.inner.lock().unwrap();
                inner.take(endpoint, header, body, fds);
                shared.called.notify_all();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => break,
        }
    }
    let mut inner = shared.inner.lock().unwrap();
    inner.connections.remove(&endpoint);
    inner.tables.forget(endpoint);
    inner.tell_news();
}

impl Inner {
    /// Treats a request as it is to be treated.
    fn take(&mut self, endpoint: u64, header: Header, body: Vec<u8>, fds: Vec<OwnedFd>) {
        let known = METHODS
            .iter()
            .find(|known| (SERVICE, known.number) == (header.service, header.method));
        let method = known.expect("a method of the endpoints' service").name;
        *self.calls.entry(method).or_default() += 1;
        let manner = self.manners.get_mut(method).and_then(VecDeque::pop_front);
        match manner {
            Some(Manner::Never) => {}
            Some(Manner::Late) => self.held.push(Held {
                endpoint,
                header,
                body,
                fds,
            }),
            Some(Manner::HangUp) => {
                let _ = shutdown(&self.connections[&endpoint], Shutdown::Both);
            }
            manner => self.answer(endpoint, header, &body, fds, manner),
        }
    }

    fn answer(
        &mut self,
        endpoint: u64,
        header: Header,
        body: &[u8],
        fds: Vec<OwnedFd>,
        manner: Option<Manner>,
    ) {
        let outcome = match manner {
            Some(Manner::Refuse(errno)) => Err(errno),
            _ => {
                let mut turn = Turn {
                    endpoint,
                    tables: &mut self.tables,
                };
                dispatch(&mut turn, header.method, body, fds)
            }
        };
        let (status, (mut body, mut fds)) = match outcome {
            Ok(answer) => (0, answer),
            Err(errno) => (errno.raw_os_error(), Default::default()),
        };
        match manner {
            Some(Manner::WithoutDescriptors) => fds.clear(),
            Some(Manner::Garbled) => body = vec![0xff; body.len() + 1],
            _ => {}
        }
        if header.request != ONE_WAY {
            let reply = Header {
                kind: Kind::Reply,
                status,
                ..header
            };
            self.say(endpoint, reply, &body, &fds);
        }
        self.tell_news();
    }

    /// Tells endpoints what they do not know yet.
    fn tell_news(&mut self) {
        for (endpoint, event) in std::mem::take(&mut self.tables.news) {
            let header = Header {
                kind: Kind::Event,
                service: SERVICE,
                method: EVENT_PEERS,
                request: 0,
                status: 0,
                fds: 0,
            };
            self.say(endpoint, header, &body_of(event), &[]);
        }
    }

    fn say(&self, endpoint: u64, header: Header, body: &[u8], fds: &[OwnedFd]) {
        let header = Header {
            fds: fds.len() as u8,
            ..header
        };
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if let Some(connection) = self.connections.get(&endpoint) {
            // It may have gone.
            let _ = send(connection, &header.encode(body), &fds);
        }
    }
}

fn body_of(event: PeerEvent) -> Vec<u8> {
    let list: Vec<PeerEvent> = vec![event];
    encode_body(&list)
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}
