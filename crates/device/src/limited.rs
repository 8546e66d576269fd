//! The limits on what an endpoint sends, as the broker has told them, and where they are counted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use causeway_fabric::rates::{EndpointLimits, Rates};
use causeway_proto::Instant;
use causeway_proto::pace::{Limit, Rate, Seen};
use causeway_shm::layout::RATE_PAGE_BYTES;
use causeway_shm::{RatePage, Segment, SharedLimit};
use parking_lot::Mutex;

/// A limit that all queue pairs of a process share, and what it has seen.
#[derive(Debug, Default)]
struct Counted {
    limit: Limit,
    bytes: AtomicU64,
    messages: AtomicU64,
    /// Where those of other processes count as well; then the two above are nothing.
    page: Option<(RatePage, SharedLimit)>,
}

impl Counted {
    fn new(rates: &Rates, page: Option<(RatePage, SharedLimit)>) -> Self {
        Counted {
            limit: Limit {
                bytes: Rate::new(rates.bytes, rates.burst),
                messages: Rate::new(rates.messages, 0),
            },
            page,
            ..Counted::default()
        }
    }

    fn seen(&self) -> Seen<'_> {
        match &self.page {
            Some((page, of)) => Seen {
                bytes: page.bytes(*of),
                messages: page.messages(*of),
            },
            None => Seen {
                bytes: &self.bytes,
                messages: &self.messages,
            },
        }
    }
}

/// The limits of an endpoint: its tenant's, its virtual machine's, and its own.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    tenant: Counted,
    vm: Counted,
    own: Counted,
}

impl Limits {
    /// Those that the broker has told. Without the page, or where it can't be mapped, this process
    /// counts alone.
    fn new(told: EndpointLimits) -> Self {
        let map = |fd| {
            let segment = Segment::map(fd, RATE_PAGE_BYTES).ok()?;
            RatePage::open(Arc::new(segment)).ok()
        };
        let page = told.page.and_then(map);
        let shared = |of| page.clone().map(|page| (page, of));
        Limits {
            tenant: Counted::new(&told.news.tenant, shared(SharedLimit::Tenant)),
            vm: Counted::new(&told.news.vm, shared(SharedLimit::Vm)),
            own: Counted::new(&told.news.own, None),
        }
    }

    /// Whether anything is limited.
    pub fn are_set(&self) -> bool {
        let Limits { tenant, vm, own } = self;
        [tenant, vm, own].iter().any(|one| one.limit.is_set())
    }

    /// Lets a message of so many bytes through now, or says when to ask again.
    ///
    /// # Errors
    /// As [`Rate::take`].
    pub fn take(&self, bytes: u32, now: Instant) -> Result<(), Instant> {
        let Limits { tenant, vm, own } = self;
        let give_back = |one: &Counted| one.limit.give_back(one.seen(), bytes);
        own.limit.take(own.seen(), bytes, now)?;
        let taken = vm.limit.take(vm.seen(), bytes, now);
        taken.inspect_err(|_| give_back(own))?;
        let taken = tenant.limit.take(tenant.seen(), bytes, now);
        taken.inspect_err(|_| [own, vm].into_iter().for_each(give_back))
    }
}

/// The limits of an endpoint at present. Each queue pair has them, too.
#[derive(Debug, Default)]
pub(crate) struct CurrentLimits(Mutex<Arc<Limits>>);

impl CurrentLimits {
    /// The limits.
    pub fn get(&self) -> Arc<Limits> {
        Arc::clone(&self.0.lock())
    }

    /// Others hold from now on, which the broker has told.
    pub fn set(&self, told: EndpointLimits) -> Arc<Limits> {
        let limits = Arc::new(Limits::new(told));
        *self.0.lock() = Arc::clone(&limits);
        limits
    }
}

#[cfg(test)]
mod tests {
    use causeway_fabric::fds::private_memfd;
    use causeway_fabric::services::limit::LimitNews;

    use super::*;

    #[test]
    fn a_message_is_let_through_by_all_or_counts_in_none() {
        let rates = |bytes| Rates {
            bytes,
            ..Rates::default()
        };
        let news = LimitNews {
            tenant: rates(1_000_000),
            vm: rates(10_000_000),
            own: rates(100_000_000),
        };
        let limits = Limits::new(EndpointLimits { news, page: None });
        assert!(limits.are_set() && !Limits::default().are_set());
        let now = Instant(1_000_000_000);
        let through = (0..100).take_while(|_| limits.take(1000, now).is_ok());
        assert_eq!(
            through.count(),
            11,
            "10 ms of the tenant's, and one that begins then"
        );
        for (one, burst) in [(&limits.own, 1_000_000), (&limits.vm, 100_000)] {
            let rest = one.limit.take(one.seen(), burst - 11_000, now);
            assert!(rest.is_ok());
            assert!(
                one.limit.take(one.seen(), 1, now).is_ok(),
                "what was refused left nothing"
            );
            assert!(one.limit.take(one.seen(), 1, now).is_err());
        }
    }

    #[test]
    fn limits_that_share_a_page_count_apart() {
        let fd = private_memfd("rates", RATE_PAGE_BYTES as u64).unwrap();
        let told = |page| EndpointLimits {
            news: LimitNews {
                tenant: Rates {
                    bytes: 1_000_000_000,
                    ..Rates::default()
                },
                vm: Rates {
                    messages: 100,
                    ..Rates::default()
                },
                ..LimitNews::default()
            },
            page: Some(page),
        };
        let [one, other] = [(); 2].map(|()| Limits::new(told(fd.try_clone().unwrap())));
        let now = Instant(1_000_000_000);
        let through = [&one, &other].map(|limits| limits.take(8, now).is_ok());
        assert_eq!(
            through,
            [true, true],
            "10 ms are one message, and one that begins then"
        );
        assert!(
            [one, other]
                .iter()
                .all(|limits| limits.take(8, now).is_err())
        );
    }
}
