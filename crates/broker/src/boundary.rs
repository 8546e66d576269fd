//! The trust boundary: endpoints that could reach into each other's memory without us, because
//! their processes may trace each other (`ptrace(2)`), or because the configuration says that they
//! are inside one boundary.
//!
//! The broker may not look at other processes' `/proc`, so a process shows its PID namespace by
//! a descriptor. To come by that of another namespace a process must be allowed to trace somebody
//! inside, or be given it by one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use causeway_fabric::fds::check_pid_namespace;
use rustix::io::Errno;

/// A PID namespace that endpoints have shown.
#[derive(Clone, Debug)]
pub struct PidNamespace {
    /// Device and inode.
    identity: (u64, u64),
    /// Keeps the number from becoming that of another namespace when this one has ended. One
    /// descriptor for all that have shown it.
    _held: Arc<OwnedFd>,
}

impl PidNamespace {
    /// Examines what an endpoint shows as its namespace; `known` are those of others.
    ///
    /// # Errors
    /// `EINVAL` if it is none.
    pub fn examine<'a>(
        fd: OwnedFd,
        mut known: impl Iterator<Item = &'a PidNamespace>,
    ) -> Result<PidNamespace, Errno> {
        let identity = check_pid_namespace(&fd)?;
        let same = known.find(|other| other.identity == identity);
        Ok(same.cloned().unwrap_or_else(|| PidNamespace {
            identity,
            _held: Arc::new(fd),
        }))
    }
}

impl PartialEq for PidNamespace {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity
    }
}

/// An endpoint, as far as trust goes.
#[derive(Clone, Copy, Debug)]
pub struct Party<'a> {
    /// Number of its tenant.
    pub tenant: usize,
    /// Whether its tenant is one trust boundary.
    pub one_boundary: bool,
    /// Number of the virtual machine whose process it is.
    pub vm: Option<u64>,
    /// Its user.
    pub uid: u32,
    /// The PID namespace that it has shown.
    pub pid_namespace: Option<&'a PidNamespace>,
}

impl Party<'_> {
    /// Whether another is inside its trust boundary. Within a virtual machine its kernel keeps
    /// processes apart, and what it says of their users is believed.
    pub fn trusts(&self, other: &Party<'_>) -> bool {
        let one_user = self.uid == other.uid;
        if self.vm.is_some() || other.vm.is_some() {
            return self.vm == other.vm && one_user;
        }
        let one_namespace =
            self.pid_namespace.is_some() && self.pid_namespace == other.pid_namespace;
        self.tenant == other.tenant && (self.one_boundary || (one_user && one_namespace))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use causeway_fabric::fds::own_pid_namespace;

    #[test]
    fn trust_takes_user_and_namespace_or_a_tenant_that_is_one_boundary() {
        let namespace = PidNamespace {
            identity: (1, 2),
            _held: Arc::new(own_pid_namespace().unwrap()),
        };
        let one = Party {
            tenant: 1,
            one_boundary: false,
            vm: None,
            uid: 1000,
            pid_namespace: Some(&namespace),
        };
        let user = Party { uid: 1001, ..one };
        let hidden = Party {
            pid_namespace: None,
            ..one
        };
        assert!(one.trusts(&one));
        assert!(!one.trusts(&user), "another user");
        assert!(!hidden.trusts(&hidden), "namespaces that were not shown");
        let contained = PidNamespace {
            identity: (1, 3),
            ..namespace.clone()
        };
        let contained = Party {
            pid_namespace: Some(&contained),
            ..one
        };
        assert!(!one.trusts(&contained), "another namespace");
        let tenant = Party { tenant: 2, ..one };
        assert!(!one.trusts(&tenant), "another tenant");
        let inside = |party| Party {
            one_boundary: true,
            ..party
        };
        assert!(inside(hidden).trusts(&inside(user)), "one boundary");
        assert!(!inside(one).trusts(&inside(tenant)));
        let guest = Party { vm: Some(9), ..one };
        assert!(!inside(one).trusts(&inside(guest)), "host and machine");
        assert!(guest.trusts(&guest));
        assert!(!guest.trusts(&Party { uid: 1, ..guest }));
    }

    #[test]
    fn a_namespace_that_is_shown_twice_costs_one_descriptor() {
        let shown = || own_pid_namespace().unwrap();
        let first = PidNamespace::examine(shown(), std::iter::empty()).unwrap();
        let again = PidNamespace::examine(shown(), [&first].into_iter()).unwrap();
        assert!(Arc::ptr_eq(&again._held, &first._held) && again == first);
        let none = crate::testing::descriptor();
        let outcome = PidNamespace::examine(none, std::iter::empty());
        assert_eq!(outcome.err(), Some(Errno::INVAL));
    }
}
