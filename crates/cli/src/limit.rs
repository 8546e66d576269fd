//! `causeway limit`: limits on what tenants, processes and virtual machines send.

use causeway_fabric::rates::{LimitEntry, LimitOf, Rates, list, set};
use causeway_fabric::{Address, Error};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::args::LimitOptions;
use crate::status::printable;
use crate::{EXIT_OWN_FAILURE, complain};

/// Does what the command line says; the result is the exit status.
pub fn limit(options: &LimitOptions) -> u8 {
    let outcome = match wanted(options) {
        Ok(None) => print(options.json),
        Ok(Some(entry)) => {
            let address = Address::from_env();
            set(&address, &entry).map_err(|error| explain(&address, &entry, &error))
        }
        Err(why) => Err(why),
    };
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            complain(&why);
            EXIT_OWN_FAILURE
        }
    }
}

/// What a refusal means here.
fn explain(address: &Address, entry: &LimitEntry, error: &Error) -> String {
    let Error::Refused { errno, .. } = error else {
        return format!("{address}: {error}");
    };
    let whose = match entry.of {
        LimitOf::Tenant => format!("tenant {:?}", entry.name),
        LimitOf::Vm => format!("virtual machine {:?}", entry.name),
        LimitOf::Process => format!("process {} with the device open", entry.pid),
    };
    match *errno {
        Errno::NOENT => format!(
            "the broker in {address} has no {whose}: causeway limit shows tenants, causeway status \
             processes, causeway vm list machines"
        ),
        Errno::PERM => format!(
            "{address}: limits are set by the broker's own user and root, not by a tenant's"
        ),
        _ => format!("{address}: {error}"),
    }
}

/// The limit that is to be set, if one is.
fn wanted(options: &LimitOptions) -> Result<Option<LimitEntry>, String> {
    let LimitOptions {
        tenant,
        pid,
        vm,
        bytes,
        messages,
        burst,
        none,
        ..
    } = options;
    let named = tenant.is_some() || pid.is_some() || vm.is_some();
    let given = *none || bytes.is_some() || messages.is_some();
    match (named, given) {
        (false, false) if burst.is_none() => return Ok(None),
        (false, _) => {
            return Err(
                "whose limit? name a tenant, a process by --pid or a machine by --vm".into(),
            );
        }
        (true, false) => return Err("which limit? --bytes, --messages or --none".into()),
        (true, true) => {}
    }
    let rates = Rates {
        bytes: bytes.unwrap_or(0),
        messages: messages.unwrap_or(0),
        burst: burst.unwrap_or(0),
    };
    let of = match (pid, vm) {
        (Some(_), _) => LimitOf::Process,
        (None, Some(_)) => LimitOf::Vm,
        (None, None) => LimitOf::Tenant,
    };
    Ok(Some(LimitEntry {
        of,
        name: tenant.as_ref().or(vm.as_ref()).cloned().unwrap_or_default(),
        pid: pid.unwrap_or(0),
        rates,
    }))
}

fn print(as_json: bool) -> Result<(), String> {
    let address = Address::from_env();
    let entries = list(&address).map_err(|error| format!("{address}: {error}"))?;
    let text = match entries {
        _ if as_json => format!("{:#}\n", json_of(entries.as_deref().unwrap_or_default())),
        Some(entries) => table(&entries),
        None => format!("no broker in {address}\n"),
    };
    crate::print(&text)
}

fn json_of(entries: &[LimitEntry]) -> Value {
    let one = |entry: &LimitEntry| {
        let rates = &entry.rates;
        let mut value = json!({
            "name": entry.name,
            "bytes": rates.bytes,
            "messages": rates.messages,
            "burst": rates.burst,
        });
        match entry.of {
            LimitOf::Tenant => {}
            LimitOf::Process => value["pid"] = json!(entry.pid),
            LimitOf::Vm => value["vm"] = json!(true),
        }
        value
    };
    entries.iter().map(one).collect()
}

/// For people: a line for each.
fn table(entries: &[LimitEntry]) -> String {
    let of = |limit| match limit {
        0 => "-".to_owned(),
        limit => limit.to_string(),
    };
    let line = |entry: &LimitEntry| {
        let whose = match entry.of {
            LimitOf::Tenant => printable(&entry.name),
            LimitOf::Process => format!("{} ({})", entry.pid, printable(&entry.name)),
            LimitOf::Vm => format!("vm {}", printable(&entry.name)),
        };
        let Rates {
            bytes,
            messages,
            burst,
        } = entry.rates;
        row([&whose, &of(bytes), &of(messages), &of(burst)])
    };
    let head = row(["TENANT, PROCESS OR VM", "BYTES/S", "MESSAGES/S", "BURST"]);
    head + &entries.iter().map(line).collect::<String>()
}

fn row([whose, bytes, messages, burst]: [&str; 4]) -> String {
    format!("{whose:<32} {bytes:>14} {messages:>12} {burst:>12}\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Verb};

    fn options(line: &[&str]) -> LimitOptions {
        let line = ["causeway", "limit"].iter().chain(line);
        match Cli::try_parse_from(line).map(|cli| cli.verb) {
            Ok(Verb::Limit(options)) => options,
            Ok(_) => panic!("not a limit"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_refusal_says_who_is_missing() {
        let address = Address::Dir("/run/x".into());
        let refused = |line: &[&str], errno| {
            let entry = wanted(&options(line)).unwrap().unwrap();
            let method = "set_limit";
            explain(&address, &entry, &Error::Refused { method, errno })
        };
        let said = refused(&["web", "--none"], Errno::NOENT);
        assert!(said.contains("in /run/x has no tenant \"web\""), "{said}");
        let said = refused(&["--pid", "7", "--none"], Errno::NOENT);
        assert!(said.contains("no process 7 with"), "{said}");
        let said = refused(&["--vm", "a", "--none"], Errno::PERM);
        assert!(said.contains("root"), "{said}");
    }

    #[test]
    fn a_limit_names_whose_and_which() {
        assert_eq!(wanted(&options(&[])), Ok(None));
        let entry = wanted(&options(&["web", "--bytes", "3 MiB", "--burst", "64KiB"]));
        let entry = entry.unwrap().unwrap();
        assert_eq!((entry.of, entry.name.as_str()), (LimitOf::Tenant, "web"));
        assert_eq!((entry.rates.bytes, entry.rates.burst), (3 << 20, 64 << 10));
        let entry = wanted(&options(&["--pid", "7", "--messages", "5"]));
        let entry = entry.unwrap().unwrap();
        assert_eq!(
            (entry.of, entry.pid, entry.rates.messages),
            (LimitOf::Process, 7, 5)
        );
        let entry = wanted(&options(&["--vm", "a", "--messages", "5"]));
        let entry = entry.unwrap().unwrap();
        assert_eq!((entry.of, entry.name.as_str()), (LimitOf::Vm, "a"));
        let none = wanted(&options(&["web", "--none"])).unwrap().unwrap();
        assert!(!none.rates.is_set());
        for odd in [
            &["web"][..],
            &["--bytes", "1"],
            &["--none"],
            &["web", "--burst", "1"],
        ] {
            assert!(wanted(&options(odd)).is_err(), "{odd:?}");
        }
        assert!(Cli::try_parse_from(["causeway", "limit", "web", "--bytes", "fast"]).is_err());
    }

    #[test]
    fn the_table_has_a_line_for_each() {
        let rates = Rates {
            bytes: 1 << 20,
            ..Rates::default()
        };
        let entry = LimitEntry {
            of: LimitOf::Process,
            name: "ib_\x1b[2J".into(),
            pid: 42,
            rates,
        };
        let table = table(std::slice::from_ref(&entry));
        assert!(
            table.lines().nth(1).unwrap().starts_with("42 (ib_?[2J) "),
            "{table}"
        );
        assert!(
            !table.contains('\x1b') && table.contains("1048576            -"),
            "{table}"
        );
        let vm = LimitEntry {
            of: LimitOf::Vm,
            name: "a".into(),
            ..entry.clone()
        };
        let json = json_of(&[entry, vm]);
        assert_eq!(
            (&json[0]["pid"], &json[1]["vm"]),
            (&json!(42), &json!(true))
        );
    }
}
