//! What the broker tells an endpoint of its own accord.

use std::os::fd::OwnedFd;

use crate::control::Control;
use crate::remoting::decode_body;
use crate::services::limit::LimitNews;
use crate::services::{
    EVENT_PEERS, EVENT_RINGS, EVENT_STALE, EVENT_TRACE, PeerEvent, SERVICE, limit,
};

/// What the broker has told.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// What happened to peers.
    pub peers: Vec<PeerEvent>,
    /// Segments that became stale.
    pub stale: Vec<u64>,
    /// Rings that were given up.
    pub rings: Vec<u64>,
    /// The trace that there is now, or 0.
    pub trace: Option<u64>,
    /// The limits from now on.
    pub limits: Option<EndpointLimits>,
}

/// The limits of an endpoint.
#[derive(Debug, Default)]
pub struct EndpointLimits {
    /// Those of its tenant and of its virtual machine, and its own.
    pub news: LimitNews,
    /// The page in which all but its own are counted, with others; `None` where this endpoint
    /// counts alone.
    pub page: Option<OwnedFd>,
}

/// Decodes the events of the endpoints' service; others are nobody's here. A broker whose events
/// can't be understood is left.
pub(crate) fn sort_events(control: &mut Control) -> News {
    let mut news = News::default();
    for event in control.take_events() {
        let understood = match (event.service, event.number) {
            (SERVICE, EVENT_PEERS) => decode_body(&event.body).map(|more| {
                let more: Vec<PeerEvent> = more;
                news.peers.extend(more);
            }),
            (SERVICE, EVENT_STALE) => decode_body(&event.body).map(|more| {
                let more: Vec<u64> = more;
                news.stale.extend(more);
            }),
            (SERVICE, EVENT_RINGS) => decode_body(&event.body).map(|more| {
                let more: Vec<u64> = more;
                news.rings.extend(more);
            }),
            (SERVICE, EVENT_TRACE) => {
                decode_body(&event.body).map(|trace| news.trace = Some(trace))
            }
            (limit::SERVICE, limit::EVENT_LIMITS) => decode_body(&event.body).map(|limits| {
                let page = event.fds.into_iter().next();
                news.limits = Some(EndpointLimits { news: limits, page });
            }),
            _ => Ok(()),
        };
        if understood.is_err() {
            control.give_up();
        }
    }
    news
}
