//! Secrets of multicast groups, derived from the cluster's keys (docs/WIRE.md, *Secured
//! multicast*).
//!
//! Nothing is remembered of who has asked. A secret serves for some minutes, one group and one
//! tenant: whoever is a member may have it, and no key of the cluster's leaves the broker.

use std::net::Ipv6Addr;
use std::time::{SystemTime, UNIX_EPOCH};

use causeway_fabric::services::secure::{
    DerivedSecret, GroupReply, GroupRequest, KEY_NAME_BYTES, SecretBytes,
};
use causeway_wire::group::{KEY_ID_LEN, is_epoch_near};
use rustix::io::Errno;

use crate::config::Tenant;

const _: () = assert!(KEY_NAME_BYTES == KEY_ID_LEN);

/// Derives them for a tenant's process.
///
/// # Errors
/// `EINVAL` if it is no group, or the epoch is neither now's nor near; `EOPNOTSUPP` without a key.
pub(crate) fn secrets(tenant: &Tenant, request: &GroupRequest) -> Result<GroupReply, Errno> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    secrets_at(tenant, request, u32::try_from(now).unwrap_or(u32::MAX))
}

fn secrets_at(tenant: &Tenant, request: &GroupRequest, time: u32) -> Result<GroupReply, Errno> {
    let address = Ipv6Addr::from(request.group).to_canonical();
    if !address.is_multicast() || !is_epoch_near(request.epoch, time) {
        return Err(Errno::INVAL);
    }
    if tenant.wire.keys.is_empty() {
        return Err(Errno::OPNOTSUPP);
    }
    let derive = |psk: &crate::keys::Psk| DerivedSecret {
        key: psk.name(),
        secret: SecretBytes(psk.group_secret(&tenant.name, &request.group, request.epoch)),
    };
    Ok(GroupReply {
        secrets: tenant.wire.keys.iter().map(derive).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use causeway_wire::group::{CLOCK_TOLERANCE, EPOCH_SECONDS, epoch_of};

    use super::*;
    use crate::config::Config;
    use crate::keys::WireKeys;

    /// The middle of an epoch.
    const T0: u32 = 3_000_000 * EPOCH_SECONDS + EPOCH_SECONDS / 2;

    fn tenant(keys: &[u8]) -> Tenant {
        let mut tenant = Config::without_file().tenants.remove(0);
        tenant.wire.keys = WireKeys::of(keys);
        tenant
    }

    fn request(last: u8, epoch: u32) -> GroupRequest {
        let group = Ipv4Addr::new(239, 1, 2, last).to_ipv6_mapped().octets();
        GroupRequest { group, epoch }
    }

    #[test]
    fn a_secret_is_of_one_key_group_tenant_and_epoch() {
        let epoch = epoch_of(T0);
        let of = |tenant: &Tenant, request: &GroupRequest, time| {
            secrets_at(tenant, request, time).unwrap().secrets
        };
        let both = of(&tenant(&[1, 2]), &request(3, epoch), T0);
        assert_eq!(both.len(), 2);
        assert_ne!(both[0], both[1]);
        let one = of(&tenant(&[2]), &request(3, epoch), T0);
        assert_eq!(one[0], both[1], "whatever its place in the file");
        let next = of(&tenant(&[2]), &request(3, epoch + 1), T0 + EPOCH_SECONDS);
        let other_group = of(&tenant(&[2]), &request(4, epoch), T0);
        let other = Tenant {
            name: "web".into(),
            ..tenant(&[2])
        };
        let other_tenant = of(&other, &request(3, epoch), T0);
        for changed in [next, other_group, other_tenant] {
            assert_eq!(changed[0].key, one[0].key);
            assert_ne!(changed[0].secret, one[0].secret);
        }
        let psk = WireKeys::of(&[2]);
        let key = psk.first().unwrap().bytes();
        assert!(one[0].secret.0 != *key && one[0].key[..] != key[..KEY_NAME_BYTES]);
    }

    #[test]
    fn only_groups_have_secrets_and_none_of_other_times() {
        let (it, epoch) = (tenant(&[1]), epoch_of(T0));
        let begin = epoch * EPOCH_SECONDS;
        for (time, outcome) in [
            (begin, true),
            (begin - CLOCK_TOLERANCE, true),
            (begin - CLOCK_TOLERANCE - 1, false),
            (begin + EPOCH_SECONDS + CLOCK_TOLERANCE - 1, true),
            (begin + EPOCH_SECONDS + CLOCK_TOLERANCE, false),
        ] {
            let answer = secrets_at(&it, &request(3, epoch), time);
            assert_eq!(answer.is_ok(), outcome, "{time}");
        }
        let mut host = request(3, epoch);
        host.group = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets();
        assert_eq!(secrets_at(&it, &host, T0), Err(Errno::INVAL));
        let none = secrets_at(&tenant(&[]), &request(3, epoch), T0);
        assert_eq!(none, Err(Errno::OPNOTSUPP));
    }
}
