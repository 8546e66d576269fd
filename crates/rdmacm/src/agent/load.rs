//! How much is done for strangers: for each host so much in a while, so that one host's flood
//! leaves the connections of the others alone.
//!
//! To open a sealed message takes the broker some 20 us and two switches of processes, and an
//! answer a system call; to drop a datagram takes 1 us. A listener that opens all of a flood falls
//! behind, and its socket's buffer is full whenever somebody else's request comes.

use std::collections::HashMap;
use std::net::IpAddr;

use causeway_proto::{Duration, Instant};

/// After so long all hosts may begin anew.
const PERIOD: Duration = Duration::from_millis(100);
/// Datagrams of one host in a period that are worth the work. Requests of 1,000 processes that one
/// host starts at once get their tokens in four periods.
const OF_A_HOST_MAX: u32 = 256;
/// Datagrams of all hosts in a period: senders' addresses may be forged. Of a host that is not
/// known the broker is asked first whether the wire to it is secured.
const OF_ALL_MAX: u32 = 512;

/// Counts what was done.
#[derive(Default)]
pub(super) struct Load {
    begun: Option<Instant>,
    hosts: HashMap<IpAddr, u32>,
    all: u32,
}

impl Load {
    /// Whether a datagram from this host, which nothing expects, is worth the work. Counts it then.
    pub fn admits(&mut self, host: IpAddr, now: Instant) -> bool {
        if self.begun.is_none_or(|begun| now.since(begun) >= PERIOD) {
            self.begun = Some(now);
            self.hosts.clear();
            self.all = 0;
        }
        if self.all >= OF_ALL_MAX {
            return false;
        }
        let count = self.hosts.entry(host.to_canonical()).or_default();
        if *count >= OF_A_HOST_MAX {
            return false;
        }
        *count += 1;
        self.all += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Instant = Instant(1);

    fn host(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    fn admitted(load: &mut Load, n: u32, now: Instant, tries: u32) -> u32 {
        let admitted = |_: &u32| load.admits(host(n), now);
        u32::try_from((0..tries).filter(admitted).count()).unwrap()
    }

    #[test]
    fn a_host_that_floods_leaves_the_others_theirs() {
        let mut load = Load::default();
        assert_eq!(admitted(&mut load, 1, T0, 50_000), OF_A_HOST_MAX);
        assert_eq!(admitted(&mut load, 2, T0, 10), 10);
        let later = T0 + PERIOD;
        assert_eq!(admitted(&mut load, 1, later, 50_000), OF_A_HOST_MAX);
    }

    #[test]
    fn forged_addresses_cost_no_more_than_so_much_work_and_memory() {
        let mut load = Load::default();
        let all: u32 = (0..10_000).map(|n| admitted(&mut load, n, T0, 1)).sum();
        assert_eq!(all, OF_ALL_MAX);
        assert!(load.hosts.len() <= OF_ALL_MAX as usize);
        assert!(load.admits(host(7), T0 + PERIOD));
    }

    #[test]
    fn an_address_of_both_families_is_one_host() {
        let mut load = Load::default();
        assert_eq!(admitted(&mut load, 9, T0, OF_A_HOST_MAX), OF_A_HOST_MAX);
        let IpAddr::V4(v4) = host(9) else { panic!() };
        assert!(!load.admits(IpAddr::V6(v4.to_ipv6_mapped()), T0));
    }
}
