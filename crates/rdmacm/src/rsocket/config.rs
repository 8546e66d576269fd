//! The administrator's defaults, one number in each file of a directory (`rsocket(7)`).

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use super::message::mappings_told;

/// Where the files are.
const DIRECTORY: &str = "/etc/rdma/rsocket";
/// Receive buffers, unless a file or the program says otherwise.
const RECEIVE_BUFFER: u32 = 1 << 19;
/// Send buffers.
const SEND_BUFFER: u32 = 1 << 18;
/// Smallest buffer.
const BUFFER_MIN: u32 = 1 << 12;
/// Largest buffer: a message of half of it must fit into an immediate.
const BUFFER_MAX: u32 = 1 << 29;
/// Halves of the receive buffer begin at cache lines.
const HALF_ALIGNMENT: u32 = 64;
/// Work requests of either queue.
const QUEUE: u16 = 384;
/// Fewest work requests of a queue.
const QUEUE_MIN: u16 = 16;
/// Most work requests of a queue: what the device takes, with room for control messages.
const QUEUE_MAX: u16 = (1 << 15) - 64;
/// Longest message that is copied into a work request.
const INLINE: u16 = 64;
/// Longest message that the device copies into a work request.
const INLINE_MAX: u16 = 1024;
/// How long is polled before sleeping, in microseconds.
const POLLING: u32 = 10;
/// How long a call sleeps at most while others may take its events, in milliseconds.
const WAKE_UP: u32 = 500;

/// Sizes of a connection at this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Bytes that wait to be written.
    pub send_buffer: u32,
    /// Bytes that the peer may write before they are read.
    pub receive_buffer: u32,
    /// Data messages under way.
    pub sends: u16,
    /// Data messages not read.
    pub receives: u16,
    /// Longest message that is copied into a work request.
    pub inline: u16,
    /// Entries of the table of mappings.
    pub mappings: u16,
}

/// Sets one of the sizes.
type Setter = fn(&mut Sizes, u32);

/// What the files say.
pub(super) struct Config {
    /// Sizes of a new rsocket.
    pub sizes: Sizes,
    /// How long is polled before sleeping.
    pub polling: Duration,
    /// How long a call sleeps at most while others may take its events.
    pub wake_up: Duration,
}

/// The defaults, read once.
pub(super) static CONFIG: LazyLock<Config> =
    LazyLock::new(|| causeway_cancel::off(|| Config::read(Path::new(DIRECTORY))));

impl Sizes {
    /// Half of the receive buffer, of which the peer is granted one at a time.
    pub fn half(&self) -> u32 {
        self.receive_buffer / 2
    }

    /// Sets the size of the send buffer.
    pub fn set_send_buffer(&mut self, bytes: u32) {
        self.send_buffer = bytes.clamp(BUFFER_MIN, BUFFER_MAX);
    }

    /// Sets the size of the receive buffer.
    pub fn set_receive_buffer(&mut self, bytes: u32) {
        let half = (bytes / 2).clamp(BUFFER_MIN / 2, BUFFER_MAX / 2);
        self.receive_buffer = 2 * half.next_multiple_of(HALF_ALIGNMENT);
    }

    /// Sets the number of data messages under way.
    pub fn set_sends(&mut self, number: u32) {
        self.sends = queue(number);
    }

    /// Sets the number of data messages not read.
    pub fn set_receives(&mut self, number: u32) {
        self.receives = queue(number);
    }

    /// Sets the length up to which a message is copied into a work request.
    pub fn set_inline(&mut self, bytes: u32) {
        self.inline = bytes.min(INLINE_MAX.into()) as u16;
    }

    /// Sets the number of entries of the table of mappings.
    pub fn set_mappings(&mut self, number: u32) {
        self.mappings = mappings_told(u16::try_from(number).unwrap_or(u16::MAX));
    }
}

fn queue(number: u32) -> u16 {
    number.clamp(QUEUE_MIN.into(), QUEUE_MAX.into()) as u16
}

impl Config {
    fn read(directory: &Path) -> Config {
        let number = |name: &str| {
            let text = fs::read_to_string(directory.join(name)).ok()?;
            text.split_whitespace().next()?.parse::<u32>().ok()
        };
        let mut sizes = Sizes {
            send_buffer: SEND_BUFFER,
            receive_buffer: RECEIVE_BUFFER,
            sends: QUEUE,
            receives: QUEUE,
            inline: INLINE,
            mappings: 0,
        };
        let setters: [(&str, Setter); 6] = [
            ("mem_default", Sizes::set_receive_buffer),
            ("wmem_default", Sizes::set_send_buffer),
            ("sqsize_default", Sizes::set_sends),
            ("rqsize_default", Sizes::set_receives),
            ("inline_default", Sizes::set_inline),
            ("iomap_size", Sizes::set_mappings),
        ];
        for (name, set) in setters {
            if let Some(number) = number(name) {
                set(&mut sizes, number);
            }
        }
        let polling = number("polling_time").unwrap_or(POLLING);
        let wake_up = number("wake_up_interval").unwrap_or(WAKE_UP).max(1);
        Config {
            sizes,
            polling: Duration::from_micros(polling.into()),
            wake_up: Duration::from_millis(wake_up.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_change_the_defaults_within_limits() {
        let made = tempfile::tempdir().unwrap();
        let directory = made.path();
        let plain = Config::read(directory);
        assert_eq!(plain.sizes.receive_buffer, RECEIVE_BUFFER);
        assert_eq!(plain.polling, Duration::from_micros(10));
        for (name, text) in [
            ("mem_default", "1000000\n"),
            ("sqsize_default", "3"),
            ("inline_default", "70000"),
            ("polling_time", "no number"),
        ] {
            fs::write(directory.join(name), text).unwrap();
        }
        let changed = Config::read(directory);
        assert_eq!(changed.sizes.receive_buffer, 1_000_064);
        assert_eq!(changed.sizes.half() % HALF_ALIGNMENT, 0);
        assert_eq!(changed.sizes.sends, QUEUE_MIN);
        assert_eq!(changed.sizes.inline, INLINE_MAX);
        assert_eq!(changed.polling, plain.polling);
    }
}
