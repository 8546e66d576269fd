//! Command line.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use causeway_fabric::Address;
use causeway_fabric::runtime::{CONFIG_ROOT, RUNTIME_DIR_ROOT};
use causeway_fabric::services::node::NODE_PORT;
use clap::Parser;

use crate::limits::LINGER;
use crate::xdp::Offer;

/// Causeway's node daemon: lets processes of other hosts reach the SISCI segments and interrupts of
/// the nodes whose addresses its network namespace has.
#[derive(Clone, Debug, Parser)]
#[command(name = "causeway-noded", version)]
pub struct Options {
    /// Runtime directory of the broker, which is started if there is none [default: what
    /// $CAUSEWAY_SOCKET, $CAUSEWAY_RUNTIME_DIR and the user say]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,

    /// Socket of a tenant, whose segments are served, instead of a runtime directory
    #[arg(long, value_name = "SOCKET", conflicts_with = "runtime_dir")]
    pub socket: Option<PathBuf>,

    /// Configuration of the broker, of which the table [sisci.directory] is the daemon's; for root
    /// and the runtime directory of root, /etc/causeway/causewayd.toml if it exists
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Where to listen; programs of other hosts connect to port 20480
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = everywhere())]
    pub listen: SocketAddr,

    /// How long owners see nothing of a process whose connection is broken: it may come back
    /// until then. At most 10 seconds; more counts as 10
    #[arg(long, value_name = "MS", default_value_t = LINGER.as_millis() as u32)]
    pub linger_ms: u32,

    /// Serve metrics of the broker over HTTP, for Prometheus, at /metrics. Who can connect there
    /// can read them
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,

    /// Serve counters of single processes, too: of that many that have moved most. Each makes
    /// labels of its own, which Prometheus keeps
    #[arg(long, value_name = "N", default_value_t = 0, requires = "metrics",
          value_parser = clap::value_parser!(u16).range(..=i64::from(PROCESSES_MAX)))]
    pub metrics_processes: u16,

    /// Lend a process of this user a socket of AF_XDP on a queue of an interface, by which its
    /// short datagrams travel (causeway run --port xdp). Experimental; may be given several times.
    /// Takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF. The user can then send any frame there
    #[arg(long, value_name = "IFACE[:QUEUE]=UID", conflicts_with = "of_broker")]
    pub xdp: Vec<Offer>,

    /// Process of the broker that has started it: it ends with that, and gives up capabilities
    #[arg(long, hide = true)]
    pub of_broker: Option<i32>,

    /// error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: tracing::Level,
}

/// Most processes whose counters are served: some thousand samples.
const PROCESSES_MAX: u16 = 256;

fn everywhere() -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, NODE_PORT).into()
}

impl Options {
    /// The configuration file, if there is one.
    pub fn config(&self) -> Option<PathBuf> {
        let of_root = self.broker() == Address::Dir(RUNTIME_DIR_ROOT.into());
        let default = || {
            let path = PathBuf::from(CONFIG_ROOT);
            (of_root && rustix::process::geteuid().is_root() && path.exists()).then_some(path)
        };
        self.config.clone().or_else(default)
    }

    /// Where the broker is.
    pub fn broker(&self) -> Address {
        match (&self.runtime_dir, &self.socket) {
            (Some(dir), _) => Address::Dir(dir.clone()),
            (None, Some(socket)) => Address::Socket(socket.clone()),
            (None, None) => Address::from_env(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood() {
        let parse = |args: &[&str]| Options::try_parse_from([&["causeway-noded"], args].concat());
        let plain = parse(&["--runtime-dir", "/tmp/x"]).unwrap();
        assert_eq!(plain.broker(), Address::Dir("/tmp/x".into()));
        assert_eq!(plain.listen.port(), NODE_PORT);
        let tenant = parse(&["--socket", "/run/t", "--listen", "10.0.0.1:7"]).unwrap();
        assert_eq!(tenant.broker(), Address::Socket("/run/t".into()));
        assert_eq!(tenant.listen.to_string(), "10.0.0.1:7");
        assert!(parse(&["--socket", "/a", "--runtime-dir", "/b"]).is_err());
        let lending = parse(&["--xdp", "eth0=1000", "--xdp", "eth0:3=1001"]).unwrap();
        assert_eq!(lending.xdp.len(), 2);
        assert!(parse(&["--xdp", "eth0"]).is_err());
        assert_eq!(parse(&["--linger-ms", "10000"]).unwrap().linger_ms, 10_000);
    }
}
