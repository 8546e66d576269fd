//! The protection domains of an endpoint, and how many objects use each.

use parking_lot::Mutex;

use crate::errno::Errno;
use crate::limits::LIMITS;
use crate::slab::Slab;

/// How many objects use each protection domain, by handle. Thread-safe.
#[derive(Debug)]
pub(crate) struct Pds(Mutex<Slab<u32>>);

impl Pds {
    pub fn new() -> Self {
        Pds(Mutex::new(Slab::new(LIMITS.max_pd)))
    }

    /// Adds one, with nothing in it yet. Returns its number; `None` where there are too many.
    pub fn insert(&self) -> Option<u32> {
        self.0.lock().insert(0)
    }

    /// Ends one.
    ///
    /// # Errors
    /// EBUSY while objects were created in it, EINVAL if it has ended already.
    pub fn remove(&self, pd: u32) -> Result<(), Errno> {
        let mut pds = self.0.lock();
        match pds.get(pd) {
            None => Err(Errno(libc::EINVAL)),
            Some(0) => {
                pds.remove(pd);
                Ok(())
            }
            Some(_) => Err(Errno(libc::EBUSY)),
        }
    }

    /// An object was created in a domain.
    pub fn add_user(&self, pd: u32) {
        if let Some(users) = self.0.lock().get_mut(pd) {
            *users += 1;
        }
    }

    /// One has ended.
    pub fn drop_user(&self, pd: u32) {
        if let Some(users) = self.0.lock().get_mut(pd) {
            *users = users.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_ends_once_and_only_when_nothing_is_in_it() {
        let pds = Pds::new();
        let pd = pds.insert().unwrap();
        pds.add_user(pd);
        assert_eq!(pds.remove(pd), Err(Errno(libc::EBUSY)));
        pds.drop_user(pd);
        assert_eq!(pds.remove(pd), Ok(()));
        assert_eq!(pds.remove(pd), Err(Errno(libc::EINVAL)));
    }
}
