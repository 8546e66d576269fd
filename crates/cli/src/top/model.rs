//! What the broker has said, and how fast it changes.

use std::time::{Duration, Instant};

use causeway_fabric::pool::PoolStatus;
use causeway_fabric::services::sisci::SisciSession;
use causeway_fabric::status::EndpointStatus;

/// One answer.
pub(super) struct Sample {
    pub at: Instant,
    pub endpoints: Vec<EndpointStatus>,
    pub sessions: Vec<SisciSession>,
    pub pools: Vec<PoolStatus>,
}

/// Per second, over the last interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rates {
    pub sent: f64,
    pub received: f64,
    pub messages: f64,
    pub retransmits: f64,
    /// Peers that had no receive posted.
    pub not_ready: f64,
    /// Times that no answer came in time.
    pub timeouts: f64,
}

impl Rates {
    /// Those of two together.
    pub fn plus(self, other: Rates) -> Rates {
        Rates {
            sent: self.sent + other.sent,
            received: self.received + other.received,
            messages: self.messages + other.messages,
            retransmits: self.retransmits + other.retransmits,
            not_ready: self.not_ready + other.not_ready,
            timeouts: self.timeouts + other.timeouts,
        }
    }
}

/// The last answers.
#[derive(Default)]
pub(super) struct Model {
    now: Option<Sample>,
    before: Option<Sample>,
}

impl Model {
    /// The next answer.
    pub fn add(&mut self, sample: Sample) {
        self.before = self.now.replace(sample);
    }

    /// The last one.
    pub fn now(&self) -> Option<&Sample> {
        self.now.as_ref()
    }

    /// The endpoints, each with its rates.
    pub fn endpoints(&self) -> Vec<(&EndpointStatus, Rates)> {
        let Some(now) = &self.now else {
            return Vec::new();
        };
        let rated = |endpoint| (endpoint, self.rates(now.at, endpoint));
        now.endpoints.iter().map(rated).collect()
    }

    fn rates(&self, at: Instant, endpoint: &EndpointStatus) -> Rates {
        let Some(before) = &self.before else {
            return Rates::default();
        };
        let same = |other: &&EndpointStatus| other.endpoint == endpoint.endpoint;
        let earlier = before.endpoints.iter().find(same);
        earlier.map_or_else(Rates::default, |earlier| {
            between(earlier, endpoint, at.duration_since(before.at))
        })
    }
}

fn between(before: &EndpointStatus, now: &EndpointStatus, time: Duration) -> Rates {
    let rate = |name| {
        let change = counter(now, name).saturating_sub(counter(before, name));
        change as f64 / time.as_secs_f64().max(f64::EPSILON)
    };
    Rates {
        sent: rate("tx_bytes"),
        received: rate("rx_bytes"),
        messages: rate("tx_messages") + rate("rx_messages"),
        retransmits: rate("retransmits"),
        not_ready: rate("rnr_received"),
        timeouts: rate("timeouts"),
    }
}

/// A counter of an endpoint, by name.
pub(super) fn counter(endpoint: &EndpointStatus, name: &str) -> u64 {
    let found = endpoint.counters.iter().find(|found| found.name == name);
    found.map_or(0, |found| found.value)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use causeway_fabric::WirePref;
    use causeway_fabric::status::{Counter, QpStatus, Wire};

    /// An endpoint with a queue pair that waits for its peer, and so much sent.
    pub fn endpoint(number: u64, sent: u64) -> EndpointStatus {
        EndpointStatus {
            endpoint: number,
            pid: 40 + number as i32,
            uid: 1000,
            comm: format!("prog\x1b{number}"),
            wire: WirePref::Auto,
            slots: vec![1],
            netns: 1,
            tenant: "web".into(),
            segments: 0,
            reserved: 0,
            resident: 0,
            qps: vec![QpStatus {
                local_qpn: 0x1001,
                remote_gid: None,
                remote_qpn: 0x2001,
                wire: Wire::Ring,
                joined: false,
                trusted: false,
            }],
            counters: vec![Counter {
                name: "tx_bytes".into(),
                value: sent,
            }],
        }
    }

    pub fn sample(at: Instant, sent: &[u64]) -> Sample {
        Sample {
            at,
            endpoints: (1..)
                .zip(sent)
                .map(|(n, &sent)| endpoint(n, sent))
                .collect(),
            sessions: Vec::new(),
            pools: Vec::new(),
        }
    }

    #[test]
    fn rates_are_changes_over_time() {
        let (start, mut model) = (Instant::now(), Model::default());
        model.add(sample(start, &[1000]));
        assert_eq!(model.endpoints()[0].1, Rates::default());
        model.add(sample(start + Duration::from_secs(2), &[5000, 7]));
        let found = model.endpoints();
        assert!((found[0].1.sent - 2000.0).abs() < 1e-6, "{:?}", found[0].1);
        assert_eq!(found[1].1, Rates::default(), "it was not there before");
    }

    #[test]
    fn a_counter_that_goes_back_is_no_rate() {
        let (start, mut model) = (Instant::now(), Model::default());
        model.add(sample(start, &[1000]));
        model.add(sample(start + Duration::from_secs(1), &[10]));
        assert_eq!(model.endpoints()[0].1.sent, 0.0);
    }
}
