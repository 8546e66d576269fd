//! The counters of the device's port, as the kernel shows those of an HCA
//! (Documentation/ABI/stable/sysfs-class-infiniband) and those of its software device rxe.
//!
//! What two programs of this host exchange by shared memory counts as sent and as received, as with
//! an HCA that loops it back; there are no headers then.

use causeway_shm::Snapshot;

/// The port's counters are in words of so many bytes.
const WORD: u64 = 4;
/// How long a value may be shown before the next, in milliseconds.
pub const LIFESPAN_MS: u64 = 1000;

/// Names below the port's directory, and values.
pub fn lines(counted: &Snapshot) -> Vec<(&'static str, u64)> {
    let (messages, bytes) = (counted.local_messages(), counted.local_bytes());
    let sent = counted.udp_tx_datagrams.wrapping_add(messages);
    let received = counted.udp_rx_datagrams.wrapping_add(messages);
    vec![
        (
            "counters/port_xmit_data",
            counted.udp_tx_bytes.wrapping_add(bytes) / WORD,
        ),
        (
            "counters/port_rcv_data",
            counted.udp_rx_bytes.wrapping_add(bytes) / WORD,
        ),
        ("counters/port_xmit_packets", sent),
        ("counters/port_rcv_packets", received),
        ("counters/port_rcv_errors", counted.drops),
        ("hw_counters/sent_pkts", sent),
        ("hw_counters/rcvd_pkts", received),
        ("hw_counters/rcvd_rnr_err", counted.rnr_received),
        ("hw_counters/send_rnr_err", counted.rnr_sent),
        ("hw_counters/completer_retry_err", counted.retransmits),
        ("hw_counters/local_ack_timeout_err", counted.timeouts),
        (
            "hw_counters/np_ecn_marked_roce_packets",
            counted.marks_received,
        ),
        ("hw_counters/rp_cnp_handled", counted.marks_reported),
        ("hw_counters/lifespan", LIFESPAN_MS),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_counts_both_ways_and_udp_with_its_headers() {
        let counted = Snapshot {
            tx_messages: 5,
            tx_bytes: 4000,
            udp_tx_messages: 2,
            udp_tx_payload: 2000,
            udp_tx_datagrams: 3,
            udp_tx_bytes: 2100,
            udp_rx_datagrams: 1,
            udp_rx_bytes: 80,
            ..Snapshot::default()
        };
        let found = lines(&counted);
        let value = |name| found.iter().find(|line| line.0 == name).unwrap().1;
        assert_eq!(value("counters/port_xmit_data"), (2100 + 2000) / 4);
        assert_eq!(value("counters/port_rcv_data"), (80 + 2000) / 4);
        assert_eq!(value("counters/port_xmit_packets"), 6);
        assert_eq!(value("counters/port_rcv_packets"), 4);
    }
}
