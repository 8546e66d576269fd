//! What network namespaces are known by: the cookie that the kernel has for each. Before Linux 5.14
//! it has none.

use causeway_identity::Slot;
use rustix::io::Errno;

use crate::ids::EndpointId;

/// Marks what stands for a namespace that is not known. Cookies count from 1, and the numbers of
/// virtual machines have the bit above.
const UNKNOWN: u64 = 1 << 62;
/// More than a slot has.
const SLOT_BITS: u32 = 16;
/// The view of sysfs of everybody whose namespace is not known: it has the addresses of who asked
/// last.
const SHARED_VIEW: u64 = 0;

/// The namespace of an endpoint's slot, from its cookie. Without one each slot is in a namespace of
/// its own: two in one could be told from two in different ones only by what a peer says of itself.
/// So nobody is paired, and all travels by UDP.
pub fn of_slot(cookie: Option<u64>, endpoint: EndpointId, slot: Slot) -> u64 {
    let place = (endpoint << SLOT_BITS) & (UNKNOWN - 1) | u64::from(slot.number());
    cookie.unwrap_or(UNKNOWN | place)
}

/// The namespace of a socket, for its view of sysfs.
///
/// # Errors
/// `EINVAL` for what is no socket.
pub fn of_view(cookie: Result<u64, Errno>) -> Result<u64, Errno> {
    match cookie {
        Ok(cookie) => Ok(cookie),
        Err(Errno::NOPROTOOPT) => Ok(SHARED_VIEW),
        Err(_) => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_cookies_no_two_slots_are_in_one_namespace() {
        let (one, two) = (Slot::MIN, Slot::MAX);
        assert_eq!(of_slot(Some(7), u64::MAX, one), 7);
        let unknown = [(5, one), (5, two), (6, one), (u64::MAX, one)];
        let mut found = unknown
            .map(|(endpoint, slot)| of_slot(None, endpoint, slot))
            .to_vec();
        assert!(found.iter().all(|namespace| namespace >> 62 == 1));
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), unknown.len());
    }

    #[test]
    fn without_cookies_there_is_one_view() {
        assert_eq!(of_view(Ok(7)), Ok(7));
        assert_eq!(of_view(Err(Errno::NOPROTOOPT)), Ok(SHARED_VIEW));
        assert_eq!(of_view(Err(Errno::NOTSOCK)), Err(Errno::INVAL));
    }
}
