//! Owners that have not yet come back to a broker that has just begun.
//!
//! The broker knows from the one before it what there was, and answers `EAGAIN` to those who ask
//! for it until its owner is back, or until the time in which owners may come back is over.

use std::thread;
use std::time::{Duration, Instant};

use causeway_fabric::Error as FabricError;
use causeway_fabric::limits::{CALL_TIMEOUT, RESTORE_GRACE};
use causeway_fabric::node::NodeClient;
use causeway_fabric::services::node::WindowReply;
use rustix::io::Errno;

use crate::error::{ABSENT, Error, Result};

/// How long to wait before the broker is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// Who waits for ever waits for two brokers: one that ends may be followed by another.
const PATIENCE_MAX: Duration = RESTORE_GRACE.saturating_mul(2);

/// Asks until the owner is there or is given up by the broker, beyond the deadline as long as any
/// call may take that waits for a broker.
///
/// # Errors
/// As `ask`; `gone` if that is over first: the owner may come back yet, but programs know what to
/// do if it is not there.
pub(crate) fn until_back<T>(
    deadline: Option<Instant>,
    gone: Error,
    mut ask: impl FnMut() -> Result<T>,
) -> Result<T> {
    let begun = Instant::now();
    let longest = begun + PATIENCE_MAX;
    let end = deadline.map_or(longest, |by| by.max(begun + CALL_TIMEOUT).min(longest));
    until(end, gone, &mut ask)
}

/// Fetches what a process is reached by that has come back to another host's daemon. That host's
/// broker may have begun as well, and the segment's owner may be on its way to it.
///
/// # Errors
/// The daemon's.
pub(crate) fn fetch_by(
    end: Instant,
    client: &NodeClient,
    connection: u32,
) -> causeway_fabric::Result<WindowReply> {
    loop {
        let fetched = client.fetch_connection(connection);
        let is_awaited = match &fetched {
            Err(FabricError::Refused { errno, .. }) => *errno == Errno::AGAIN,
            _ => false,
        };
        let left = end.saturating_duration_since(Instant::now());
        if !is_awaited || left.is_zero() {
            return fetched;
        }
        thread::sleep(left.min(ASK_AGAIN));
    }
}

fn until<T>(end: Instant, gone: Error, ask: &mut impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        let answer = ask();
        if answer.as_ref().err() != Some(&ABSENT) {
            return answer;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(gone);
        }
        thread::sleep(left.min(ASK_AGAIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_absent_is_asked_for_until_there_is_an_answer_or_the_time_is_over() {
        let mut answers = [Err(ABSENT), Err(ABSENT), Ok(7)].into_iter();
        let short = Some(Instant::now());
        assert_eq!(
            until_back(short, Error::NO_SUCH_INTNO, || answers.next().unwrap()),
            Ok(7)
        );
        let mut answers = [Err(ABSENT), Err(Error::NO_SUCH_SEGMENT)].into_iter();
        let given_up = until_back::<()>(None, Error::NO_SUCH_INTNO, || answers.next().unwrap());
        assert_eq!(given_up, Err(Error::NO_SUCH_SEGMENT));
        let mut asked = 0;
        let late = until::<()>(Instant::now(), Error::NO_SUCH_INTNO, &mut || {
            asked += 1;
            Err(ABSENT)
        });
        assert_eq!((late, asked), (Err(Error::NO_SUCH_INTNO), 1));
    }
}
