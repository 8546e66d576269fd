//! Owners that have not yet come back to a broker that has just begun.
//!
//! The broker knows from the one before it what there was, and answers `EAGAIN` to those who ask
//! for it until its owner is back, or until the time in which owners may come back is over. It
//! tells when that is so, and then it is asked again.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use causeway_fabric::Error as FabricError;
use causeway_fabric::limits::{CALL_TIMEOUT, RESTORE_GRACE};
use causeway_fabric::node::NodeClient;
use causeway_fabric::services::node::WindowReply;
use causeway_fabric::services::sisci::{AbsentKind, AwaitReturnRequest};
use causeway_fabric::sisci::Sisci;
use rustix::io::Errno;

use crate::asked::Asked;
use crate::error::{ABSENT, Error, Result};
use crate::returns::Returns;

/// How long to wait before one is asked again that does not tell: a broker or a daemon that does
/// not know how to, has no room for one more wait, or contradicts itself.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// Who waits for ever waits for two brokers: one that ends may be followed by another.
const PATIENCE_MAX: Duration = RESTORE_GRACE.saturating_mul(2);

/// Something that may be absent.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub kind: AbsentKind,
    pub node: u32,
    pub id: u32,
    /// When to give up; `None` is never.
    pub deadline: Option<Instant>,
    /// What it is to programs if its owner has not come back by then: it may come back yet, but
    /// programs know what to do if it is not there.
    pub gone: Error,
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

impl Wanted {
    /// Asks until the owner is there or is given up by the broker, beyond the deadline as long as
    /// any call may take that waits for a broker. `ask` begins with this host's broker, and leaves
    /// the one that has answered.
    ///
    /// # Errors
    /// As `ask`; `gone` if that is over first.
    pub fn until_back<T>(
        &self,
        returns: &Returns,
        sisci: &Arc<Sisci>,
        mut ask: impl FnMut(&mut Asked) -> Result<T>,
    ) -> Result<T> {
        let asked = RefCell::new(Asked::Broker(sisci.clone()));
        let request = |ticket| AwaitReturnRequest {
            ticket,
            kind: self.kind,
            node: self.node,
            id: self.id,
        };
        let register = |ticket| asked.borrow().await_return(&request(ticket));
        let ask = || {
            let mut asked = asked.borrow_mut();
            *asked = Asked::Broker(sisci.clone());
            ask(&mut asked)
        };
        until(returns, (self.end(), self.gone), ask, register)
    }

    fn end(&self) -> Instant {
        let begun = Instant::now();
        let longest = begun + PATIENCE_MAX;
        let deadline = self.deadline;
        deadline.map_or(longest, |by| by.max(begun + CALL_TIMEOUT).min(longest))
    }
}

/// `register` has a wait of this name told, and says whether there is nothing to wait for.
fn until<T>(
    returns: &Returns,
    (end, gone): (Instant, Error),
    mut ask: impl FnMut() -> Result<T>,
    register: impl Fn(u64) -> causeway_fabric::Result<bool>,
) -> Result<T> {
    let mut is_said_to_be_back = false;
    loop {
        // Before it is asked: what it waits with may go at any time, and it is to hear of that.
        let ticket = returns.begin();
        let answer = ask();
        let left = end.saturating_duration_since(Instant::now());
        if answer.as_ref().err() != Some(&ABSENT) || left.is_zero() {
            returns.end(ticket);
            return match answer {
                Err(ABSENT) => Err(gone),
                answer => answer,
            };
        }
        match register(ticket) {
            Ok(false) => {
                is_said_to_be_back = false;
                returns.wait(ticket, end);
            }
            Ok(true) if !is_said_to_be_back => {
                is_said_to_be_back = true;
                returns.end(ticket);
            }
            Ok(true) | Err(_) => {
                returns.end(ticket);
                thread::sleep(left.min(ASK_AGAIN));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const GONE: Error = Error::NO_SUCH_INTNO;

    fn soon() -> (Instant, Error) {
        (Instant::now() + PATIENCE_MAX, GONE)
    }

    #[test]
    fn who_is_absent_is_asked_for_again_when_there_is_news_and_no_earlier() {
        let returns = Returns::default();
        let asked = Cell::new(0);
        std::thread::scope(|scope| {
            let ask = || {
                asked.set(asked.get() + 1);
                if asked.get() < 4 { Err(ABSENT) } else { Ok(7) }
            };
            let register = |ticket| match asked.get() {
                // It is back before it could be waited for.
                1 => Ok(true),
                // The news comes before the answer.
                2 => {
                    returns.tell(ticket);
                    Ok(false)
                }
                _ => {
                    scope.spawn(|| returns.tell_all());
                    Ok(false)
                }
            };
            assert_eq!(until(&returns, soon(), ask, register), Ok(7));
        });
        assert_eq!(asked.get(), 4);
    }

    #[test]
    fn it_ends_with_the_answer_that_the_owner_is_given_up_or_with_the_time() {
        let returns = Returns::default();
        let mut answers = [Err(ABSENT), Err(Error::NO_SUCH_SEGMENT)].into_iter();
        let ask = || answers.next().unwrap();
        let given_up = until::<()>(&returns, soon(), ask, |_| Ok(true));
        assert_eq!(given_up, Err(Error::NO_SUCH_SEGMENT));
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            Err(ABSENT)
        };
        let over = (Instant::now(), GONE);
        assert_eq!(until::<()>(&returns, over, ask, |_| Ok(false)), Err(GONE));
        assert_eq!(asked.get(), 1);
        // Nobody tells: it is asked once more at the end, if the time was not over before.
        let over = (Instant::now() + ASK_AGAIN, GONE);
        assert_eq!(until::<()>(&returns, over, ask, |_| Ok(false)), Err(GONE));
        assert!((2..=3).contains(&asked.get()));
    }

    #[test]
    fn one_that_contradicts_itself_is_asked_no_more_than_now_and_then() {
        let returns = Returns::default();
        let asked = Cell::new(0);
        let ask = || {
            asked.set(asked.get() + 1);
            Err(ABSENT)
        };
        let pauses = 3;
        let over = (Instant::now() + ASK_AGAIN * pauses, GONE);
        assert_eq!(until::<()>(&returns, over, ask, |_| Ok(true)), Err(GONE));
        // At first, when it is said to be back, and after each pause.
        assert!(asked.get() <= 2 + pauses, "{}", asked.get());
    }

    #[test]
    fn one_that_does_not_know_how_to_tell_is_asked_now_and_then() {
        let returns = Returns::default();
        let mut answers = [Err(ABSENT), Err(ABSENT), Ok(7)].into_iter();
        let ask = || answers.next().unwrap();
        let refused = |_| Err(causeway_fabric::Error::BrokerGone);
        assert_eq!(until(&returns, soon(), ask, refused), Ok(7));
    }
}
