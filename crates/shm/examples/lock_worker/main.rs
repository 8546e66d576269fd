//! Processes that use the locks and die, and the one that keeps the life table as the broker does.
//!
//! `tests/locks/run` builds it with the feature `inject` and runs it:
//!
//! - `lock_worker points OBJECT ROLE`: tells which fault points a victim reaches;
//! - `lock_worker fault OBJECT ROLE POINT COUNT KILL|STOP`: a victim among others;
//! - `lock_worker rounds COUNT`: so many broadcasts, with a waiter killed in each;
//! - `lock_worker storm SECONDS SEED`: processes killed at random;
//! - `lock_worker hostile SECONDS SEED`: one that writes rubbish into all objects.
//!
//! With `LOCK_WORKER_WITHOUT_WAITV` in the environment the kernel does not know `futex_waitv(2)`.
//!
//! The exit status says whether it went well; the last line of output, what happened.

mod fault;
mod rounds;
mod script;
mod storm;
mod world;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if std::env::var_os("LOCK_WORKER_WITHOUT_WAITV").is_some() {
        world::forget_waitv();
    }
    let number = |word: &str| word.parse().expect("a number");
    let result = match words[..] {
        ["points", object, role] => fault::points(object, role),
        ["fault", object, role, point, count, signal] => {
            fault::strike(object, role, point, count, signal)
        }
        ["rounds", count] => rounds::run(number(count)),
        ["storm", seconds, seed] => storm::run(number(seconds), number(seed)),
        ["hostile", seconds, seed] => storm::hostile(number(seconds), number(seed)),
        _ => Err("see the documentation of lock_worker".into()),
    };
    match result {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            println!("FAILED: {why}");
            ExitCode::FAILURE
        }
    }
}
