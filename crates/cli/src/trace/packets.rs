//! Records of a trace as packets of a pcapng file
//! (<https://ietf-opsawg-wg.github.io/draft-ietf-opsawg-pcap/draft-ietf-opsawg-pcapng.html>).

use std::borrow::Cow;
use std::net::Ipv6Addr;
use std::time::{Duration, SystemTime};

use causeway_shm::{TraceRecord, Way};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::blocks::interface_statistics::{
    InterfaceStatisticsBlock, InterfaceStatisticsOption,
};
use pcap_file::{DataLink, Endianness, PcapResult};

/// `if_tsresol`: timestamps are in units of ten to the minus so many seconds.
const NANOSECONDS: u8 = 9;
/// `epb_flags`: the direction of a packet.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Lengths of headers.
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
/// Protocol number of UDP.
const UDP: u8 = 17;
const HOP_LIMIT: u8 = 64;

/// A file that is being made.
pub(super) struct Packets {
    writer: PcapNgWriter<Vec<u8>>,
    /// Packets, by their ways.
    counts: [u64; Way::ALL.len()],
    begun: u64,
}

impl Packets {
    /// A file with an interface for each way.
    pub fn new() -> PcapResult<Self> {
        // Big-endian, since pcap-file writes the halves of a statistics block's time in the order
        // of its bytes, and the format wants the upper one first.
        let mut writer = PcapNgWriter::with_endianness(Vec::new(), Endianness::Big)?;
        for way in Way::ALL {
            let what = match way {
                Way::Direct => "copies to and from the memory of peers on this host",
                Way::Ring => "rings in shared memory",
                Way::Udp => "UDP datagrams",
            };
            writer.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::RAW,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(way.name())),
                    InterfaceDescriptionOption::IfDescription(Cow::Borrowed(what)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
        }
        Ok(Packets {
            writer,
            counts: [0; Way::ALL.len()],
            begun: now(),
        })
    }

    /// Adds a packet.
    pub fn add(&mut self, record: &TraceRecord, bytes: &[u8]) -> PcapResult<()> {
        let mut data = headers(record);
        let original = data.len() + record.original as usize;
        data.extend_from_slice(bytes);
        let direction = if record.outbound { OUTBOUND } else { INBOUND };
        let comment = format!("{}, process {}", record.way.name(), record.pid);
        self.writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: record.way as u32,
            timestamp: Duration::from_nanos(record.time),
            original_len: u32::try_from(original).unwrap_or(u32::MAX),
            data: Cow::Owned(data),
            options: vec![
                EnhancedPacketOption::Comment(Cow::Owned(comment)),
                EnhancedPacketOption::Flags(direction),
            ],
        })?;
        self.counts[record.way as usize] += 1;
        Ok(())
    }

    /// Ends the file with what was lost of each way. Returns the sum.
    pub fn finish(&mut self, lost_of: impl Fn(Way) -> u64) -> PcapResult<u64> {
        let mut all = 0_u64;
        for way in Way::ALL {
            let (lost, kept) = (lost_of(way), self.counts[way as usize]);
            all = all.saturating_add(lost);
            self.writer.write_pcapng_block(InterfaceStatisticsBlock {
                interface_id: way as u32,
                timestamp: now(),
                options: vec![
                    InterfaceStatisticsOption::IsbStartTime(self.begun),
                    InterfaceStatisticsOption::IsbIfRecv(kept.saturating_add(lost)),
                    InterfaceStatisticsOption::IsbIfDrop(lost),
                ],
            })?;
        }
        Ok(all)
    }

    /// How many packets there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How many bytes of the file have not been taken.
    pub fn pending(&self) -> usize {
        self.writer.get_ref().len()
    }

    /// Takes the next bytes of the file.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.get_mut())
    }
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// The headers of IP and UDP that a datagram has, or would have.
fn headers(record: &TraceRecord) -> Vec<u8> {
    let (src, dst) = (Ipv6Addr::from(record.src.0), Ipv6Addr::from(record.dst.0));
    let whole = UDP_LEN + record.original as usize;
    let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    let mut out = Vec::with_capacity(IPV6_LEN + UDP_LEN);
    let pseudo = match (src.to_ipv4_mapped(), dst.to_ipv4_mapped()) {
        (Some(src), Some(dst)) => {
            out.extend_from_slice(&[0x45, 0]);
            out.extend_from_slice(&short(IPV4_LEN + whole));
            out.extend_from_slice(&[0, 0, 0x40, 0, HOP_LIMIT, UDP, 0, 0]);
            out.extend_from_slice(&src.octets());
            out.extend_from_slice(&dst.octets());
            let checksum = !sum(&out);
            out[10..12].copy_from_slice(&checksum.to_be_bytes());
            [&src.octets()[..], &dst.octets()].concat()
        }
        _ => {
            out.extend_from_slice(&[0x60, 0, 0, 0]);
            out.extend_from_slice(&short(whole));
            out.extend_from_slice(&[UDP, HOP_LIMIT]);
            out.extend_from_slice(&src.octets());
            out.extend_from_slice(&dst.octets());
            [src.octets(), dst.octets()].concat()
        }
    };
    // The checksum is what the kernel leaves to a network card: that of the pseudo-header alone,
    // since the rest may not be here.
    let rest = [&[0, UDP][..], &short(whole)].concat();
    let checksum = sum(&[pseudo, rest].concat());
    out.extend_from_slice(&record.src.1.to_be_bytes());
    out.extend_from_slice(&record.dst.1.to_be_bytes());
    out.extend_from_slice(&short(whole));
    out.extend_from_slice(&checksum.to_be_bytes());
    out
}

/// The sum of 16-bit words in ones' complement (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| {
        let [high, low] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        u64::from(u16::from_be_bytes([high, low]))
    });
    let mut sum: u64 = words.sum();
    while sum > u64::from(u16::MAX) {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    fn record(way: Way, original: u32) -> TraceRecord {
        let address = |last| {
            std::net::Ipv4Addr::new(10, 0, 0, last)
                .to_ipv6_mapped()
                .octets()
        };
        TraceRecord {
            time: 1_700_000_000_123_456_789,
            way,
            outbound: way == Way::Udp,
            original,
            pid: 42,
            src: (address(1), 20_481),
            dst: (address(2), 20_482),
        }
    }

    #[test]
    fn packets_have_their_ways_times_lengths_and_what_was_lost() {
        let mut packets = Packets::new().unwrap();
        packets.add(&record(Way::Ring, 1000), b"abc").unwrap();
        packets.add(&record(Way::Udp, 3), b"abc").unwrap();
        let lost = packets.finish(|way| 7 * u64::from(way == Way::Direct));
        assert_eq!((lost.unwrap(), packets.count()), (7, 2));
        let file = packets.take_bytes();
        let mut reader = PcapNgReader::new(&file[..]).unwrap();
        let (mut seen, mut drops) = (Vec::new(), Vec::new());
        while let Some(block) = reader.next_block() {
            match block.unwrap() {
                Block::EnhancedPacket(packet) => seen.push((
                    packet.interface_id,
                    packet.timestamp.as_nanos(),
                    packet.original_len,
                    packet.data.len(),
                )),
                Block::InterfaceStatistics(block) => match block.options[2] {
                    InterfaceStatisticsOption::IsbIfDrop(count) => drops.push(count),
                    ref other => panic!("{other:?}"),
                },
                _ => {}
            }
        }
        let time = 1_700_000_000_123_456_789;
        assert_eq!(seen, [(1, time, 1028, 31), (2, time, 31, 31)]);
        assert_eq!(drops, [7, 0, 0]);
    }

    #[test]
    fn the_header_of_ipv4_sums_up_and_ipv6_has_its_length() {
        let packet = headers(&record(Way::Ring, 100));
        assert_eq!((packet.len(), sum(&packet[..IPV4_LEN])), (28, u16::MAX));
        assert_eq!(packet[2..4], 128_u16.to_be_bytes());
        let six = TraceRecord {
            src: ([0xfe; 16], 1),
            ..record(Way::Ring, 100)
        };
        let packet = headers(&six);
        assert_eq!((packet.len(), packet[0]), (48, 0x60));
        assert_eq!(packet[4..6], 108_u16.to_be_bytes());
    }
}
