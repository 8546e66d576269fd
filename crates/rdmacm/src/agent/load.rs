//! How much is done for strangers: for each host so much in a while, so that one host's flood
//! leaves the connections of the others alone. Who would be one too many is asked to come again
//! with a token, which shows that it receives at the address it sends from: so forged addresses use
//! up nothing that others need.
//!
//! To open a sealed message takes the broker some 20 us and two switches of processes, and an
//! answer a system call; to drop a datagram takes 1 us. A listener that opens all of a flood falls
//! behind, and its socket's buffer is full whenever somebody else's request comes.

use std::collections::HashMap;
use std::net::IpAddr;

use causeway_proto::{Duration, Instant};

/// After so long all hosts may begin anew.
const PERIOD: Duration = Duration::from_millis(100);
/// Datagrams of one host in a period that are worth the work, by their standing. Requests of 1,000
/// processes that one host starts at once are taken in four periods.
const OF_A_HOST_MAX: [u32; STANDINGS] = [256, 256, 64];
/// Datagrams of all hosts in a period. Of a host that is not known the broker is asked first
/// whether the wire to it is secured. Whoever has many addresses, as of a network of IPv6, can
/// prove many.
const OF_ALL_MAX: [u32; STANDINGS] = [512, 1024, 256];
/// Time in a period that goes to what is unknown: where the broker is slow that is less than what
/// is permitted otherwise. Who asks for tokens, and hears those who bear them, has the rest.
const UNKNOWN_TIME_MAX: Duration = Duration::from_millis(25);
/// Answers of one look at a listener's port that ask for tokens. What lies there beyond them is
/// read and dropped, which takes less time: a request with a token may wait behind it.
const ASKED_MAX: u32 = 256;

/// What shows of the sender of a datagram, before the datagram is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing: its address may be forged.
    Unknown,
    /// It receives at the address it sends from: the datagram bears a token that was sent there.
    Proved,
    /// So did the sender of the same request before. Whoever reads the path can repeat it.
    Repeated,
    /// It knows the name of a connection, or costs no more than to look at it.
    Expected,
}
/// How many kinds of senders are counted.
const STANDINGS: usize = 3;

/// What is to be done with a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is worth the work.
    Take,
    /// If it is a request, it is to come again with a token.
    Again,
    Drop,
}

/// Counts what was done.
#[derive(Default)]
pub(super) struct Load {
    begun: Option<Instant>,
    hosts: HashMap<IpAddr, [u32; STANDINGS]>,
    all: [u32; STANDINGS],
    /// What was unknown has taken this time.
    spent: Duration,
    /// Answers of this look that ask for tokens.
    asked: u32,
}

impl Load {
    /// Whether a datagram from this host is worth the work. Counts it then.
    pub fn judge(&mut self, host: IpAddr, standing: Standing, now: Instant) -> Verdict {
        let (counted, otherwise) = match standing {
            Standing::Expected => return Verdict::Take,
            Standing::Unknown => (0, Verdict::Again),
            Standing::Proved => (1, Verdict::Drop),
            Standing::Repeated => (2, Verdict::Drop),
        };
        if self.begun.is_none_or(|begun| now >= begun + PERIOD) {
            *self = Load {
                begun: Some(now),
                asked: self.asked,
                ..Load::default()
            };
        }
        let in_time = standing != Standing::Unknown || self.has_time();
        if self.all[counted] >= OF_ALL_MAX[counted] || !in_time {
            return otherwise;
        }
        let count = &mut self.hosts.entry(host.to_canonical()).or_default()[counted];
        if *count >= OF_A_HOST_MAX[counted] {
            return otherwise;
        }
        *count += 1;
        self.all[counted] += 1;
        Verdict::Take
    }

    /// A look at a port begins.
    pub fn begin_look(&mut self) {
        self.asked = 0;
    }

    /// Whether one more may be asked for a token. Counts it then.
    pub fn may_ask(&mut self) -> bool {
        let may = self.asked < ASKED_MAX;
        self.asked += u32::from(may);
        may
    }

    /// Whether there is time for what is unknown.
    pub fn has_time(&self) -> bool {
        self.spent < UNKNOWN_TIME_MAX
    }

    /// Does what is to be done for a datagram, and counts the time if its sender is unknown.
    pub fn spend<T>(&mut self, standing: Standing, work: impl FnOnce() -> T) -> T {
        if standing != Standing::Unknown {
            return work();
        }
        let begun = super::now();
        let result = work();
        self.note_spent(super::now().since(begun));
        result
    }

    /// What was unknown has taken this time. So much longer it takes until all may begin anew.
    fn note_spent(&mut self, time: Duration) {
        self.spent += time;
        self.begun = self.begun.map(|begun| begun + time);
    }
}

#[cfg(test)]
mod tests {
    use super::Standing::{Expected, Proved, Repeated, Unknown};
    use super::*;

    const T0: Instant = Instant(1);
    const HOST_MAX: u32 = OF_A_HOST_MAX[0];
    const ALL_MAX: u32 = OF_ALL_MAX[0];

    fn host(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    /// How many of so many datagrams are taken. All others are treated alike.
    fn taken(load: &mut Load, n: u32, standing: Standing, now: Instant, tries: u32) -> u32 {
        let otherwise = match standing {
            Unknown => Verdict::Again,
            _ => Verdict::Drop,
        };
        let taken = |_: &u32| match load.judge(host(n), standing, now) {
            Verdict::Take => true,
            other => {
                assert_eq!(other, otherwise);
                false
            }
        };
        u32::try_from((0..tries).filter(taken).count()).unwrap()
    }

    #[test]
    fn a_host_that_floods_leaves_the_others_theirs() {
        let mut load = Load::default();
        assert_eq!(taken(&mut load, 1, Unknown, T0, 50_000), HOST_MAX);
        assert_eq!(taken(&mut load, 2, Unknown, T0, 10), 10);
        let later = T0 + PERIOD;
        assert_eq!(taken(&mut load, 1, Unknown, later, 50_000), HOST_MAX);
        assert_eq!(taken(&mut load, 1, Proved, later, 50_000), OF_A_HOST_MAX[1]);
        assert_eq!(taken(&mut load, 2, Proved, later, 10), 10);
    }

    #[test]
    fn forged_addresses_cost_no_more_than_so_much_work_and_memory() {
        let mut load = Load::default();
        let sum = |load: &mut Load, standing| -> u32 {
            let each = |n| taken(load, n, standing, T0, 1);
            (0..10_000).map(each).sum()
        };
        for (counted, standing) in [Unknown, Proved, Repeated].into_iter().enumerate() {
            assert_eq!(sum(&mut load, standing), OF_ALL_MAX[counted]);
        }
        assert!(load.hosts.len() <= OF_ALL_MAX.iter().sum::<u32>() as usize);
        let later = T0 + PERIOD;
        assert_eq!(load.judge(host(7), Unknown, later), Verdict::Take);
    }

    #[test]
    fn a_token_is_heeded_whatever_comes_from_forged_addresses() {
        let mut load = Load::default();
        let victim = ALL_MAX * 2;
        for n in 0..ALL_MAX + 1 {
            load.judge(host(n), Unknown, T0);
        }
        // Somebody sends under the victim's own address, too.
        assert_eq!(taken(&mut load, victim, Unknown, T0, 50_000), 0);
        assert_eq!(taken(&mut load, victim, Repeated, T0, 50_000), 64);
        assert_eq!(load.judge(host(victim), Proved, T0), Verdict::Take);
        assert_eq!(load.judge(host(victim), Expected, T0), Verdict::Take);
    }

    #[test]
    fn a_slow_broker_is_asked_less() {
        let mut load = Load::default();
        assert_eq!(load.judge(host(1), Unknown, T0), Verdict::Take);
        load.note_spent(UNKNOWN_TIME_MAX - Duration::from_nanos(1));
        assert_eq!(load.judge(host(1), Unknown, T0), Verdict::Take);
        load.note_spent(PERIOD * 3);
        assert!(!load.has_time());
        let later = T0 + PERIOD * 3;
        assert_eq!(load.judge(host(1), Unknown, later), Verdict::Again);
        assert_eq!(load.judge(host(1), Proved, later), Verdict::Take);
        let over = later + PERIOD + UNKNOWN_TIME_MAX;
        assert_eq!(load.judge(host(1), Unknown, over), Verdict::Take);
        assert!(load.has_time());
    }

    #[test]
    fn so_many_are_asked_in_one_look() {
        let mut load = Load::default();
        for _ in 0..2 {
            load.begin_look();
            assert_eq!((0..1000).filter(|_| load.may_ask()).count(), 256);
            // The next period does not change that.
            load.judge(host(1), Unknown, T0 + PERIOD * 2);
            assert!(!load.may_ask());
        }
    }

    #[test]
    fn an_address_of_both_families_is_one_host() {
        let mut load = Load::default();
        assert_eq!(taken(&mut load, 9, Unknown, T0, HOST_MAX), HOST_MAX);
        let IpAddr::V4(v4) = host(9) else { panic!() };
        let mapped = IpAddr::V6(v4.to_ipv6_mapped());
        assert_eq!(load.judge(mapped, Unknown, T0), Verdict::Again);
    }
}
