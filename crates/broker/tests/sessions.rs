//! Sessions that are no endpoints: their lives, and what the next broker makes of them.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use causeway_fabric::remoting::Malformed;
use causeway_fabric::session::{Opened, Registry, Session};
use causeway_fabric::{Control, Error, RawEvent};
use causeway_shm::{Life, LifeTable};
use common::heir::spawn_heir;
use common::{Host, PATIENCE, readable};
use rustix::process::Signal;

/// Tells this program, run again, that it is to be a client process.
const ROLE: &str = "CW_TEST_ROLE";

/// A registry that holds nothing, and notes what happens to it.
#[derive(Debug, Default)]
struct Diary {
    presented: Vec<Opened>,
    broker_gone: usize,
}

impl Registry for Diary {
    fn present(&mut self, _: &mut Control, opened: &Opened) -> causeway_fabric::Result<()> {
        self.presented.push(*opened);
        Ok(())
    }

    fn absorb(&mut self, _: RawEvent) -> Result<(), Malformed> {
        Ok(())
    }

    fn broker_gone(&mut self) {
        self.broker_gone += 1;
    }

    fn has_news(&self) -> bool {
        self.broker_gone > 0
    }
}

fn open(host: &Host) -> Session<Diary> {
    Session::open(Some(&host.address()), Diary::default()).unwrap()
}

/// Sleeps on the table until a condition holds.
fn wait_until(table: &LifeTable, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = table.deaths();
        if holds() {
            return;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(left > Duration::ZERO, "never happens");
        table.wait_for_death(seen, left);
    }
}

/// Waits for the broker's end to be noticed, and takes the note.
fn await_loss(session: &Session<Diary>) {
    assert!(readable(session.event_fd(), PATIENCE));
    let gone = session.poll(|diary| std::mem::take(&mut diary.broker_gone));
    assert_eq!(gone.unwrap(), Some(1));
    assert!(!session.is_attached().unwrap());
}

#[test]
fn a_death_is_seen_in_the_table_and_wakes() {
    let host = Host::with_broker("0");
    let (a, b) = (open(&host), open(&host));
    let (life, table) = (b.life().unwrap(), a.life_table().unwrap());
    assert_ne!(life, a.life().unwrap());
    assert!(table.is_alive(life) && a.confirm(life).unwrap());
    drop(b);
    wait_until(&table, || !table.is_alive(life));
    assert!(!a.confirm(life).unwrap());
    assert!(table.is_alive(a.life().unwrap()));
}

/// Not a test: the process of the test below.
#[test]
#[ignore = "run by another test as a process of its own"]
fn client_process() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let session = Session::open(None, Diary::default()).unwrap();
    spawn_heir();
    println!("\nlife {}", session.life().unwrap().to_bits());
    std::io::stdout().flush().unwrap();
    // Until it is killed.
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_killed_process_is_dead_though_its_child_has_the_socket() {
    let host = Host::with_broker("0");
    let a = open(&host);
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client_process", "--ignored", "--nocapture"])
        .env(ROLE, "1")
        .env("CAUSEWAY_RUNTIME_DIR", &host.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let life = lines.find_map(|line| line.unwrap().strip_prefix("life ")?.parse().ok());
    let life = Life::from_bits(life.unwrap());
    let table = a.life_table().unwrap();
    assert!(table.is_alive(life));
    // Held open, so that the child lives on.
    let heirs_input = victim.stdin.take();
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until(&table, || !table.is_alive(life));
    drop(heirs_input);
}

#[test]
fn lives_outlast_a_broker() {
    let host = Host::with_broker("0");
    let (a, b, c) = (open(&host), open(&host), open(&host));
    let lives = [&a, &b, &c].map(|session| session.life().unwrap());
    let table = a.life_table().unwrap();
    host.signal_broker(Signal::KILL);
    // One that never comes back, and one that comes before them all.
    drop(c);
    host.start_broker("0");
    let newcomer = open(&host);
    let theirs = newcomer.life_table().unwrap();
    for (session, life) in [(&a, lives[0]), (&b, lives[1])] {
        await_loss(session);
        session.reattach().unwrap();
        let opened = session
            .with_registry(|diary| diary.presented.clone())
            .unwrap();
        assert_eq!(opened.len(), 2);
        assert!(opened[1].same_life && opened[1].life == life);
        assert!(theirs.is_alive(life) && table.is_alive(life));
    }
    let new = newcomer.life().unwrap();
    assert!(table.is_alive(new) && theirs.is_alive(lives[2]));
    drop(b);
    for table in [&table, &theirs] {
        wait_until(table, || !table.is_alive(lives[1]));
    }
}

#[test]
fn a_broker_is_started_for_a_call_and_not_for_giving_up() {
    let host = Host::with_broker("0");
    let a = open(&host);
    host.signal_broker(Signal::KILL);
    await_loss(&a);
    assert!(a.call_if_attached(|_, _| Ok(())).unwrap().is_none());
    host.start_broker("0");
    a.call(|_, _| Ok(())).unwrap();
    assert!(a.call_if_attached(|_, _| Ok(())).unwrap().is_some());
}

#[test]
fn a_child_has_no_session() {
    let host = Host::with_broker("0");
    let a = open(&host);
    // SAFETY: the child makes no call but those below, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(a.life(), Err(Error::Forked))
            && matches!(a.poll(|_| ()), Err(Error::Forked))
            && matches!(a.call(|_, _| Ok(())), Err(Error::Forked));
        drop(a);
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let life = a.life().unwrap();
    assert!(a.life_table().unwrap().is_alive(life) && a.confirm(life).unwrap());
}
