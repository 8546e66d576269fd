//! A pipe between two processes of one broker's: records each way, by the queues of two data
//! interrupts. It crosses network namespaces and the window of a virtual machine, as cells do.
//!
//! [`Messages`] makes messages of the remoting protocol of it, as [`crate::Stream`] does of TCP.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use causeway_shm::layout::{INTERRUPT_BYTES, INTERRUPT_PAYLOAD_MAX};
use causeway_shm::{Doorbell, Interrupt, Segment, Trigger, TriggerError};
use rustix::io::Errno;

use crate::remoting::Received;
use crate::sisci::Cell;
use crate::stream::take_message;

/// How long the other end may leave its queue full before it is taken for gone.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two looks at a full queue.
const PAUSE: Duration = Duration::from_micros(100);

/// One end of a pipe. Thread-safe.
#[derive(Debug)]
pub struct Pipe {
    /// To the other end.
    pub out: Sender,
    /// From the other end.
    pub into: Receiver,
}

/// The way to the other end. Thread-safe.
#[derive(Debug)]
pub struct Sender(Mutex<(Trigger, Doorbell)>);

/// The way from the other end. Thread-safe.
#[derive(Debug)]
pub struct Receiver {
    queue: Mutex<Interrupt>,
    bell: Doorbell,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn map(memory: OwnedFd) -> Result<Arc<Segment>, Errno> {
    let mapped = Segment::map(memory, INTERRUPT_BYTES);
    mapped.map(Arc::new).map_err(|_| Errno::NOMEM)
}

impl Sender {
    /// Of the trigger's end of a cell.
    ///
    /// # Errors
    /// `ENOMEM`; `EPROTO` if it is none.
    pub fn new(cell: Cell) -> Result<Sender, Errno> {
        let trigger = Trigger::open(map(cell.memory)?).map_err(|_| Errno::PROTO)?;
        Ok(Sender(Mutex::new((trigger, Doorbell::from_fd(cell.bell)))))
    }

    /// Sends a record. False if the queue is full.
    ///
    /// # Errors
    /// `EPROTO` if the other end has spoilt the queue, `EMSGSIZE`, what the doorbell says.
    pub fn send(&self, record: &[u8]) -> Result<bool, Errno> {
        let mut out = locked(&self.0);
        let (trigger, bell) = &mut *out;
        match trigger.send(record, bell) {
            Ok(_) => Ok(true),
            Err(TriggerError::Full) => Ok(false),
            Err(TriggerError::Length) => Err(Errno::MSGSIZE),
            Err(TriggerError::Corrupt(_)) => Err(Errno::PROTO),
            Err(TriggerError::Bell(why)) => Err(Errno::from_io_error(&why).unwrap_or(Errno::IO)),
        }
    }
}

impl Receiver {
    /// Of the owner's end of a cell.
    ///
    /// # Errors
    /// `ENOMEM`; `EPROTO` if it is none.
    pub fn new(cell: Cell) -> Result<Receiver, Errno> {
        let queue = Interrupt::open(map(cell.memory)?).map_err(|_| Errno::PROTO)?;
        Ok(Receiver {
            queue: Mutex::new(queue),
            bell: Doorbell::from_fd(cell.bell),
        })
    }

    /// Readable when there may be something to receive, once [`Receiver::arm`] has found nothing.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.fd()
    }

    /// Takes the next record, in the place of what is in `record`. False if there is none.
    ///
    /// # Errors
    /// `EPROTO` if the other end has spoilt the queue.
    pub fn receive(&self, record: &mut Vec<u8>) -> Result<bool, Errno> {
        let taken = locked(&self.queue).receive(record);
        taken.map_err(|_| Errno::PROTO)
    }

    /// Has the bell rung for the next record. False if there is one already.
    pub fn arm(&self) -> bool {
        let mut queue = locked(&self.queue);
        // One that cannot be drained stays readable: who waits for it looks more often.
        let _ = self.bell.drain();
        queue.arm();
        !queue.is_pending()
    }

    /// Rings the bell, as if something had come.
    pub fn wake(&self) {
        // Fails only if the counter is full, and then it is readable already.
        let _ = causeway_owned::signal(self.bell.fd());
    }
}

/// Messages over a pipe. Thread-safe.
#[derive(Debug)]
pub struct Messages {
    pipe: Pipe,
    /// Held while a message goes: its records follow each other.
    sending: Mutex<()>,
    incoming: Mutex<Vec<u8>>,
    ended: AtomicBool,
}

impl Messages {
    /// Over a pipe.
    pub fn new(pipe: Pipe) -> Messages {
        // What has come already is found by the first look, which whoever waits has at once.
        pipe.into.wake();
        Messages {
            pipe,
            sending: Mutex::default(),
            incoming: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    /// Readable when [`Messages::receive`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.into.bell()
    }

    /// Nothing is received any more.
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.pipe.into.wake();
    }

    /// Sends one encoded message, and waits for room where there is none.
    ///
    /// # Errors
    /// `EPIPE` if the other end does not take what was sent before; as [`Sender::send`].
    pub fn send(&self, message: &[u8]) -> Result<(), Errno> {
        let length = (message.len() as u32).to_le_bytes();
        let framed = [&length, message].concat();
        let _sending = locked(&self.sending);
        let by = Instant::now() + PATIENCE;
        for record in framed.chunks(INTERRUPT_PAYLOAD_MAX) {
            while !self.pipe.out.send(record)? {
                if Instant::now() > by || self.ended.load(Ordering::Acquire) {
                    return Err(Errno::PIPE);
                }
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Receives one message without blocking.
    ///
    /// # Errors
    /// `EAGAIN` if none has come whole, `EPROTO` if the other end has spoilt the pipe.
    pub fn receive(&self) -> Result<Received, Errno> {
        let mut incoming = locked(&self.incoming);
        let mut record = Vec::new();
        loop {
            if self.ended.load(Ordering::Acquire) {
                return Ok(Received::Closed);
            }
            if let Some(received) = take_message(&mut incoming) {
                // There may be more behind it.
                self.pipe.into.wake();
                return Ok(received);
            }
            if self.pipe.into.receive(&mut record)? {
                incoming.extend_from_slice(&record);
            } else if self.pipe.into.arm() {
                return match self.ended.load(Ordering::Acquire) {
                    true => Ok(Received::Closed),
                    false => Err(Errno::AGAIN),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remoting::{Header, Kind};
    use causeway_shm::{Life, interrupt};
    use std::os::fd::AsFd;

    /// Both ends of a cell.
    fn cell() -> [Cell; 2] {
        let segment = Segment::create("t", INTERRUPT_BYTES).unwrap();
        let memory = segment.fd().try_clone_to_owned().unwrap();
        interrupt::format(Arc::new(segment)).unwrap();
        let bell = Doorbell::create().unwrap();
        let life = Life {
            index: 0,
            generation: 0,
        };
        let copy = |fd: BorrowedFd<'_>| -> OwnedFd { fd.try_clone_to_owned().unwrap() };
        [0, 1].map(|_| Cell {
            name: 1,
            node: 4,
            life,
            memory: copy(memory.as_fd()),
            bell: copy(bell.fd()),
        })
    }

    fn pair() -> [Pipe; 2] {
        let ([a, b], [c, d]) = (cell(), cell());
        [(a, c), (d, b)].map(|(out, into)| Pipe {
            out: Sender::new(out).unwrap(),
            into: Receiver::new(into).unwrap(),
        })
    }

    fn is_readable(fd: BorrowedFd<'_>) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        let now = crate::launch::timespec(Duration::ZERO);
        poll(
            &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
            Some(&now),
        )
        .unwrap()
            > 0
    }

    fn message(body: &[u8]) -> Vec<u8> {
        let header = Header {
            kind: Kind::Request,
            service: 5,
            method: 1,
            request: 1,
            status: 0,
            fds: 0,
        };
        header.encode(body)
    }

    #[test]
    fn long_messages_go_in_records_and_several_at_once_are_all_found() {
        let [one, other] = pair().map(Messages::new);
        let bodies = [vec![1; 20_000], vec![2; 3], Vec::new()];
        for body in &bodies {
            one.send(&message(body)).unwrap();
        }
        for wanted in &bodies {
            assert!(is_readable(other.fd()));
            match other.receive() {
                Ok(Received::Message(_, body, _)) => assert_eq!(&body, wanted),
                unexpected => panic!("{unexpected:?}"),
            }
        }
        assert!(matches!(other.receive(), Err(Errno::AGAIN)));
        assert!(!is_readable(other.fd()));
        one.send(&message(b"again")).unwrap();
        assert!(is_readable(other.fd()), "the bell is rung for who waits");
        other.end();
        assert!(matches!(other.receive(), Ok(Received::Closed)));
    }

    #[test]
    fn an_end_that_takes_nothing_holds_up_nobody_for_ever() {
        let [one, _other] = pair().map(Messages::new);
        let message = message(&[7; 30_000]);
        let sent = (0..20).find_map(|_| one.send(&message).err());
        assert_eq!(sent, Some(Errno::PIPE));
    }

    #[test]
    fn what_is_no_message_is_called_that() {
        let [one, other] = pair();
        let other = Messages::new(other);
        assert!(one.out.send(&u32::MAX.to_le_bytes()).unwrap());
        assert!(matches!(other.receive(), Ok(Received::Malformed(_))));
    }
}
