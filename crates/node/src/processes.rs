//! Processes of other hosts by the names that they give themselves. One that comes back, while its
//! earlier connection has not been found broken, ends that first: no request of the earlier queue
//! pair is carried out any more when those of the next one come.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use causeway_fabric::services::node::IdentifyRequest;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use crate::limits::END_PATIENCE;

/// The node of a process, and its own name.
type Key = (u32, u64, u64);

/// Processes that are connected.
#[derive(Default)]
pub struct Processes(Mutex<HashMap<Key, Arc<Connection>>>);

/// The connection of one.
struct Connection {
    socket: OwnedFd,
    progress: Mutex<Progress>,
    changed: Condvar,
}

#[derive(Default)]
struct Progress {
    /// Another connection of the process has come.
    followed: bool,
    /// Nothing is left of this one.
    over: bool,
}

/// A process is connected as long as this lives.
pub struct Connected<'a> {
    of: &'a Processes,
    key: Key,
    own: Arc<Connection>,
}

impl Processes {
    /// Enters a process, after the end of its earlier connection.
    ///
    /// # Errors
    /// `ETIMEDOUT` if that does not end; `EMFILE` without descriptors.
    pub fn enter(
        &self,
        node: u32,
        process: &IdentifyRequest,
        socket: impl AsFd,
    ) -> Result<Connected<'_>, Errno> {
        let key = (node, process.high, process.low);
        let socket = rustix::io::fcntl_dupfd_cloexec(socket, 0).map_err(|_| Errno::MFILE)?;
        let own = Arc::new(Connection {
            socket,
            progress: Mutex::default(),
            changed: Condvar::new(),
        });
        let mut connections = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = connections.insert(key, own.clone());
        drop(connections);
        let entered = Connected { of: self, key, own };
        match earlier {
            Some(earlier) if !earlier.end() => Err(Errno::TIMEDOUT),
            _ => Ok(entered),
        }
    }
}

impl Connection {
    /// Has the thread of the connection end. Whether it has.
    fn end(&self) -> bool {
        // First, so that its thread knows why its socket has ended.
        self.lock().followed = true;
        self.changed.notify_all();
        // One that is broken already is not connected.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let progress = self.lock();
        let waited = self
            .changed
            .wait_timeout_while(progress, END_PATIENCE, |progress| !progress.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connected<'_> {
    /// Whether another connection of the process takes the place of this one.
    pub fn is_followed(&self) -> bool {
        self.own.lock().followed
    }

    /// Waits for such a connection, for `patience` at most. Whether there is one.
    pub fn await_follower(&self, patience: Duration) -> bool {
        let progress = self.own.lock();
        let waited = self
            .own
            .changed
            .wait_timeout_while(progress, patience, |progress| !progress.followed);
        waited.unwrap_or_else(PoisonError::into_inner).0.followed
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        let mut connections = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if connections
            .get(&self.key)
            .is_some_and(|current| Arc::ptr_eq(current, &self.own))
        {
            connections.remove(&self.key);
        }
        drop(connections);
        self.own.lock().over = true;
        self.own.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    #[test]
    fn one_that_comes_back_ends_its_earlier_connection() {
        let pair = || {
            let kind = (AddressFamily::UNIX, SocketType::STREAM);
            socketpair(kind.0, kind.1, SocketFlags::CLOEXEC, None).unwrap()
        };
        let processes = Processes::default();
        let name = IdentifyRequest { high: 1, low: 2 };
        let (socket, _other) = pair();
        let first = processes.enter(4, &name, &socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // The end of the socket is what its thread sees.
                let mut stream = UnixStream::from(socket);
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
                assert!(first.is_followed() && first.await_follower(Duration::ZERO));
                drop(first);
            });
            let (again, _other) = pair();
            let second = processes.enter(4, &name, &again).unwrap();
            assert!(!second.is_followed() && !second.await_follower(Duration::ZERO));
            // Of another node it is another process.
            let (third, _other) = pair();
            assert!(processes.enter(8, &name, &third).is_ok());
            assert!(!second.is_followed());
        });
        assert!(processes.0.lock().unwrap().is_empty());
    }
}
