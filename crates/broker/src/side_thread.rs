//! A thread that does one kind of work beside the event loop: as long as the loop does something,
//! every program's calls wait.

use std::sync::mpsc::{Sender, channel};

/// A thread, started once there is work for it, and anew if it has ended.
#[derive(Debug)]
pub(crate) struct SideThread<T> {
    name: &'static str,
    work: fn(T),
    /// Leads to the thread, once one was needed.
    sender: Option<Sender<T>>,
}

impl<T: Send + 'static> SideThread<T> {
    /// One of that name, which does `work` with what it is given, in order.
    pub const fn new(name: &'static str, work: fn(T)) -> SideThread<T> {
        SideThread {
            name,
            work,
            sender: None,
        }
    }

    /// Gives the thread something to do.
    ///
    /// # Errors
    /// What was given, if there is no thread, and none can be started.
    pub fn give(&mut self, item: T) -> Result<(), T> {
        let item = match self.send(item) {
            Ok(()) => return Ok(()),
            Err(item) => item,
        };
        self.sender = self.start();
        self.send(item)
    }

    fn send(&self, item: T) -> Result<(), T> {
        match &self.sender {
            Some(sender) => sender.send(item).map_err(|unsent| unsent.0),
            None => Err(item),
        }
    }

    fn start(&self) -> Option<Sender<T>> {
        let (sender, receiver) = channel();
        let work = self.work;
        let all = move || receiver.into_iter().for_each(work);
        let thread = std::thread::Builder::new().name(self.name.into());
        match thread.spawn(all) {
            Ok(_) => Some(sender),
            Err(error) => {
                tracing::error!(%error, name = self.name, "cannot start a thread");
                None
            }
        }
    }
}

#[cfg(test)]
impl<T> SideThread<T> {
    /// One whose thread the test is.
    pub fn leading_to(sender: Sender<T>, work: fn(T)) -> SideThread<T> {
        SideThread {
            name: "test",
            work,
            sender: Some(sender),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Work = (u32, Sender<(u32, Option<String>)>);

    fn tell((number, told): Work) {
        let thread = std::thread::current().name().map(str::to_owned);
        told.send((number, thread)).unwrap();
    }

    #[test]
    fn the_thread_does_all_in_order() {
        let mut thread = SideThread::new("beside", tell);
        let (told, heard) = channel();
        for number in 0..100 {
            thread.give((number, told.clone())).unwrap();
        }
        drop(told);
        let name = Some("beside".to_owned());
        let all = Vec::from_iter((0..100).map(|number| (number, name.clone())));
        assert_eq!(Vec::from_iter(heard), all);
    }

    #[test]
    fn one_that_has_ended_is_replaced_and_loses_nothing() {
        let (sender, receiver) = channel();
        drop(receiver);
        let mut thread = SideThread::leading_to(sender, tell);
        let (told, heard) = channel();
        for number in 0..2 {
            thread.give((number, told.clone())).unwrap();
        }
        drop(told);
        let numbers = Vec::from_iter(heard.into_iter().map(|(number, _)| number));
        assert_eq!(numbers, [0, 1]);
    }

    #[test]
    fn one_that_lives_is_not_replaced() {
        let (sender, receiver) = channel();
        let mut thread = SideThread::leading_to(sender, tell);
        let (told, _heard) = channel();
        assert!(thread.give((7, told)).is_ok());
        assert_eq!(receiver.try_recv().unwrap().0, 7);
    }
}
