//! Nodes by name.

use core::ffi::{CStr, c_char, c_uint};
use std::net::{IpAddr, Ipv6Addr, ToSocketAddrs};

use causeway_fabric::services::sisci::NodeInfo;

use super::give;
use crate::error::{Error, Result};
use crate::library::{Library, from_fabric};

/// `DIS_MAX_NSCIS`
const ADAPTERS: usize = 16;
/// `DIS_ADAPTER_TYPE_SOFTWARE`
const SOFTWARE: c_uint = 1;

/// `dis_nodeId_list_t`
pub(super) type NodeList = [c_uint; ADAPTERS];

/// What a kind of adapter is called.
pub(super) fn kind(number: c_uint) -> &'static CStr {
    match number {
        SOFTWARE => c"software (Causeway)",
        _ => c"unknown",
    }
}

/// Finds the nodes of a name. None found is a list of zeroes.
///
/// # Safety
/// `name` is null or a string; the other pointers are null or valid, `adapters` for as many numbers
/// as a list of nodes has.
pub(super) unsafe fn find(
    library: &'static Library,
    name: *const c_char,
    adapters: *mut c_uint,
    nodes: *mut NodeList,
    kind: *mut c_uint,
) -> Result<()> {
    if name.is_null() || nodes.is_null() {
        return Err(Error::ILLEGAL_PARAMETER);
    }
    // SAFETY: the caller passes a string.
    let name = unsafe { CStr::from_ptr(name) };
    let sisci = library.fabric()?;
    let known = sisci.nodes().map_err(|error| from_fabric(&error))?;
    let mut found: NodeList = [0; ADAPTERS];
    if let Ok(name) = name.to_str() {
        let matches = matching(name, sisci.node(), &known);
        for (place, node) in found.iter_mut().zip(matches) {
            *place = node;
        }
    }
    // SAFETY: the caller passes places for them.
    unsafe {
        give(nodes, found);
        give(kind, if found[0] == 0 { 0 } else { SOFTWARE });
        give(adapters.cast::<NodeList>(), [0; ADAPTERS]);
    }
    Ok(())
}

/// The nodes that a name stands for: a node's number, an address of one, or a host's name.
fn matching(name: &str, own: u32, known: &[NodeInfo]) -> Vec<u32> {
    if let Ok(number) = name.parse::<u32>() {
        let here = known.iter().any(|node| node.node == number) || number == own;
        return here.then_some(number).into_iter().collect();
    }
    if name == "localhost" || rustix::system::uname().nodename().to_bytes() == name.as_bytes() {
        return vec![own];
    }
    let addresses: Vec<IpAddr> = match name.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => match (name, 0).to_socket_addrs() {
            Ok(addresses) => addresses.map(|address| address.ip()).collect(),
            Err(_) => return Vec::new(),
        },
    };
    let has = |node: &&NodeInfo| {
        let mut of_node = node
            .addresses
            .iter()
            .map(|a| Ipv6Addr::from(*a).to_canonical());
        of_node.any(|address| addresses.contains(&address))
    };
    known.iter().filter(has).map(|node| node.node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_found_by_number_address_and_name() {
        let node = |node, last| NodeInfo {
            node,
            addresses: vec![
                std::net::Ipv4Addr::new(192, 0, 2, last)
                    .to_ipv6_mapped()
                    .octets(),
            ],
            here: true,
            sessions: 0,
            trusted: false,
            ..NodeInfo::default()
        };
        let known = [node(8, 1), node(12, 2)];
        assert_eq!(matching("8", 4, &known), [8]);
        assert_eq!(matching("4", 4, &known), [4]);
        assert_eq!(matching("16", 4, &known), []);
        assert_eq!(matching("192.0.2.2", 4, &known), [12]);
        assert_eq!(matching("localhost", 4, &known), [4]);
        assert_eq!(matching("192.0.2.3", 4, &known), []);
    }
}
