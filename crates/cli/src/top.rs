//! `causeway top`: endpoints, queue pairs, rates, and who waits for what, on a terminal.

mod model;
mod rows;
mod screen;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use causeway_fabric::launch::timespec;
use causeway_fabric::sys::termination_fd;
use causeway_fabric::{Address, Error};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::args::TopOptions;
use crate::complain;
use model::{Model, Sample};
use screen::{Sort, View};

/// How far Page Up and Page Down go.
const PAGE: usize = 10;

/// What poll(2) says of a terminal that no key will come from.
const GONE: PollFlags = PollFlags::HUP.union(PollFlags::ERR).union(PollFlags::NVAL);

/// What TERM is where there is no more than a printer (term(7)).
const DUMB: &str = "dumb";

/// What is on the screen.
struct Top {
    address: Address,
    interval: Duration,
    model: Model,
    view: View,
    sort: Sort,
    reversed: bool,
    /// First line that is shown.
    from: usize,
    /// Why there is nothing to show.
    problem: Option<String>,
}

/// Shows the state of this user's broker until `q` is pressed.
pub fn top(options: &TopOptions) -> u8 {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        complain("top needs a terminal; causeway status --json is for programs");
        return 1;
    }
    if std::env::var_os("TERM").is_some_and(|term| term == DUMB) {
        complain(
            "top needs a terminal that moves its cursor, and TERM is \"dumb\"; causeway status \
             prints lines",
        );
        return 1;
    }
    let mut top = Top {
        address: Address::from_env(),
        interval: options.interval,
        model: Model::default(),
        view: View::Endpoints,
        sort: Sort::Sent,
        reversed: false,
        from: 0,
        problem: None,
    };
    let outcome = end_by_signals().and_then(|()| {
        let mut terminal = ratatui::try_init()?;
        let outcome = top.run(&mut terminal);
        ratatui::restore();
        outcome
    });
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            complain(&format!("top: {error}"));
            1
        }
    }
}

/// Has a thread end this process, with the terminal as it was, when a signal says so. The one that
/// reads keys may wait for the rest of one for ever.
fn end_by_signals() -> io::Result<()> {
    // Blocked before the terminal is changed: a signal must not leave it as it is then.
    let signals = termination_fd()?;
    let until_one = move || {
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        while poll(&mut fds, None) == Err(Errno::INTR) {}
        ratatui::restore();
        std::process::exit(0);
    };
    std::thread::Builder::new().spawn(until_one)?;
    Ok(())
}

impl Top {
    /// Shows it until a key ends it.
    fn run(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let mut due = Instant::now();
        loop {
            if Instant::now() >= due {
                self.look();
                due = Instant::now() + self.interval;
            }
            terminal.draw(|frame| screen::draw(frame, self))?;
            // Some may have been read already, with one before.
            while event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && self.press(key)
                {
                    return Ok(());
                }
                terminal.draw(|frame| screen::draw(frame, self))?;
            }
            wait(due.saturating_duration_since(Instant::now()))?;
        }
    }

    /// Asks the broker.
    fn look(&mut self) {
        self.problem = match ask(&self.address) {
            Ok(Some(sample)) => {
                self.model.add(sample);
                None
            }
            Ok(None) => Some(format!("no broker in {}", self.address)),
            Err(error) => Some(format!("{}: {error}", self.address)),
        };
        if self.problem.is_some() {
            self.model = Model::default();
        }
    }

    /// Heeds a key; whether it was the last.
    fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return true,
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Tab => self.show(self.view.next()),
            KeyCode::Char('1') => self.show(View::Endpoints),
            KeyCode::Char('2') => self.show(View::QueuePairs),
            KeyCode::Char('3') => self.show(View::Waits),
            KeyCode::Char('>') => self.sort = self.sort.next(),
            KeyCode::Char('<') => self.sort = self.sort.previous(),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Down | KeyCode::Char('j') => self.from += 1,
            KeyCode::Up | KeyCode::Char('k') => self.from = self.from.saturating_sub(1),
            KeyCode::PageDown => self.from += PAGE,
            KeyCode::PageUp => self.from = self.from.saturating_sub(PAGE),
            KeyCode::Home => self.from = 0,
            _ => {}
        }
        false
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.from = 0;
    }
}

/// Waits for keys, or another size of the terminal, whose signal interrupts poll(2).
fn wait(most: Duration) -> io::Result<()> {
    let input = io::stdin();
    let mut fds = [PollFd::new(&input, PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(most))) {
        Ok(_) if fds[0].revents().intersects(GONE) => {
            Err(io::Error::other("the terminal has gone"))
        }
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// What the broker says now; `None` if none is running.
fn ask(address: &Address) -> Result<Option<Sample>, Error> {
    let Some(endpoints) = causeway_fabric::status::status(address)? else {
        return Ok(None);
    };
    Ok(Some(Sample {
        at: Instant::now(),
        endpoints,
        sessions: causeway_fabric::sisci::sessions(address)?.unwrap_or_default(),
        pools: causeway_fabric::pool::status(address)?.unwrap_or_default(),
    }))
}
