//! Limits on what the processes of tenants and virtual machines send, as the file has them.

use std::collections::BTreeMap;

use causeway_fabric::services::limit::Rates;
use causeway_fabric::services::vm::is_vm_name;
use serde::Deserialize;

use super::values::{Amount, Count};

/// What is not named is not limited; of a tenant, it is as for all.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of rates")]
pub(super) struct RatesTable {
    bytes: Option<Amount>,
    messages: Option<Count<{ usize::MAX }>>,
    burst: Option<Amount>,
}

impl RatesTable {
    /// These limits, and others where none is given.
    pub fn over(&self, base: &Rates) -> Rates {
        let bytes = |given: Option<Amount>, base| given.map_or(base, |amount| amount.0);
        let messages = self.messages.map(|count| count.0 as u64);
        Rates {
            bytes: bytes(self.bytes, base.bytes),
            messages: messages.unwrap_or(base.messages),
            burst: bytes(self.burst, base.burst),
        }
    }
}

/// A virtual machine, by the name that it is attached with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a virtual machine")]
pub(super) struct VmTable {
    name: String,
    rates: RatesTable,
}

/// The limits of virtual machines.
pub(super) fn of_vms(tables: &[VmTable]) -> Result<BTreeMap<String, Rates>, String> {
    let mut vms = BTreeMap::new();
    for VmTable { name, rates } in tables {
        if !is_vm_name(name) {
            return Err(format!(
                "vm {name:?}: no virtual machine can have that name"
            ));
        }
        if vms
            .insert(name.clone(), rates.over(&Rates::default()))
            .is_some()
        {
            return Err(format!("vm {name:?} is configured twice"));
        }
    }
    Ok(vms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn rates_are_those_of_the_tenant_else_those_of_all() {
        let tenant = "[[tenant]]\nname = 'web'\nsocket = '/run/t/web.sock'\nusers = ['root']\n";
        let text = format!(
            "[rates]\nbytes = '100 MiB'\nmessages = 1000\n{tenant}[tenant.rates]\nmessages = 0\n\
             burst = 4096"
        );
        let config = Config::parse(&text).unwrap();
        let all = Rates {
            bytes: 100 << 20,
            messages: 1000,
            burst: 0,
        };
        assert_eq!(config.tenants[0].rates, all);
        let web = Rates {
            messages: 0,
            burst: 4096,
            ..all
        };
        assert_eq!(config.tenants[1].rates, web);
        let none = Config::parse(tenant).unwrap();
        assert!(none.tenants.iter().all(|tenant| !tenant.rates.is_set()));
    }

    #[test]
    fn a_rate_that_is_none_is_named() {
        let why = Config::parse("[rates]\nbytes = 'fast'").unwrap_err();
        assert!(why.contains("line 2") && why.contains("\"fast\""), "{why}");
        let why = Config::parse("[rates]\nbyte = 1").unwrap_err();
        assert!(why.contains("unknown field"), "{why}");
    }

    #[test]
    fn virtual_machines_have_rates_by_name() {
        let vm = |name: &str| format!("[[vm]]\nname = '{name}'\n[vm.rates]\nmessages = 5\n");
        let config = Config::parse(&(vm("a") + &vm("b.1"))).unwrap();
        assert_eq!(Vec::from_iter(config.vms.keys()), ["a", "b.1"]);
        assert_eq!(config.vms["a"].messages, 5);
        for (text, wanted) in [(vm("a").repeat(2), "twice"), (vm("a b"), "that name")] {
            let why = Config::parse(&text).unwrap_err();
            assert!(why.contains(wanted), "{why}");
        }
    }
}
