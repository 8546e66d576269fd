//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use causeway_fabric::amount::amount;
use causeway_identity::QPN_MASK;
use causeway_shm::trace::TRACE_PAYLOAD_MAX;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// Shortest interval of `causeway top`, in seconds.
const INTERVAL_MIN: f64 = 0.1;
/// Longest.
const INTERVAL_MAX: f64 = 3600.0;

/// RDMA programs on machines without RDMA hardware.
#[derive(Parser)]
#[command(name = "causeway", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs of the command line.
#[derive(Subcommand)]
pub enum Verb {
    /// Run a program with Causeway's libraries in place of the distribution's
    Run(RunOptions),
    /// Show the endpoints of this host's broker: queue pairs, wires, counters
    Status(StatusOptions),
    /// Show endpoints, queue pairs, rates and who waits for what, again and again
    Top(TopOptions),
    /// Record what this user's programs send and receive, as a file for Wireshark
    Trace(TraceOptions),
    /// Show SISCI's nodes: who answers there, and what does not agree
    Nodes(NodesOptions),
    /// Examine this machine: what works, what does not, and what to do about it
    Doctor,
    /// Show and set limits on what tenants and processes send
    Limit(LimitOptions),
    /// Let virtual machines attach to this host's broker
    Vm(VmOptions),
    /// Measure on this machine what something costs, beside what it is compared with
    Bench(BenchOptions),
    /// Write manual pages and completions, as packages install them
    #[command(hide = true)]
    Manual(ManualOptions),
}

/// Which wire the program's queue pairs may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Wire {
    /// Shared memory to peers on this host, UDP to all others
    Auto,
    /// Shared memory only; a peer on another host cannot be reached
    Shm,
    /// UDP only, even to peers on this host
    Udp,
}

impl Wire {
    /// The value of `CAUSEWAY_WIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Wire::Auto => "auto",
            Wire::Shm => "shm",
            Wire::Udp => "udp",
        }
    }
}

/// How the program's short datagrams to other hosts travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Port {
    /// By the kernel's UDP
    Udp,
    /// By a socket of AF_XDP, as long as causeway-noded lends one; else by UDP (experimental)
    Xdp,
}

impl Port {
    /// The value of `CAUSEWAY_PORT`.
    pub fn name(self) -> &'static str {
        match self {
            Port::Udp => "udp",
            Port::Xdp => "xdp",
        }
    }
}

/// `causeway run`
#[derive(Args)]
#[command(
    after_help = "The command replaces causeway: its exit status, signals and streams are \
                        the command's own. Exit status 125: causeway failed; 126: the command \
                        cannot be executed; 127: it was not found."
)]
pub struct RunOptions {
    /// The wire to use; without it, CAUSEWAY_WIRE of the environment decides, else auto
    #[arg(long, value_enum)]
    pub wire: Option<Wire>,

    /// How short datagrams to other hosts travel; without it, CAUSEWAY_PORT of the environment
    /// decides, else udp
    #[arg(long, value_enum)]
    pub port: Option<Port>,

    /// Seal every datagram to other hosts, or fail: the broker must have a key for it
    #[arg(long)]
    pub secure: bool,

    /// Do not show the program the device's files in /sys/class/infiniband and /dev/infiniband
    #[arg(long)]
    pub no_paths: bool,

    /// Show them in a mount namespace instead of by the path shim: to static programs and raw
    /// system calls too. Takes root, or user namespaces for everyone
    #[arg(long, conflicts_with = "no_paths")]
    pub isolate: bool,

    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// `causeway vm`
#[derive(Args)]
pub struct VmOptions {
    /// What to do.
    #[command(subcommand)]
    pub verb: VmVerb,
}

/// The verbs of `causeway vm`.
#[derive(Subcommand)]
pub enum VmVerb {
    /// Let a VM attach, and print the QEMU arguments for it
    #[command(
        after_help = "The VM's memory must be shared: -object memory-backend-memfd,id=m,size=SIZE,\
                      share=on -machine q35,memory-backend=m. QEMU must be 11.0 or newer."
    )]
    Attach(VmAttachOptions),
    /// List the VMs that may attach
    List,
    /// Boot guests by QEMU without KVM, from this source tree, to try things in: `vm lab --help`
    #[command(disable_help_flag = true)]
    Lab {
        /// The options of the lab, and what its guests run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Plug the device of a running VM in again, whose broker has ended
    #[command(
        after_help = "The device must have an id and be plugged into a port with room for its \
                      window: see docs/VM.md. Processes of the guest that used it must be started \
                      again."
    )]
    Replug(VmReplugOptions),
    /// End a VM's attachment
    Detach {
        /// The VM
        name: String,
    },
}

/// `causeway vm attach`
#[derive(Args)]
pub struct VmAttachOptions {
    /// A name for the VM
    pub name: String,

    /// The tenant that its processes belong to; without it, the broker's own
    #[arg(long)]
    pub tenant: Option<String>,

    /// Print what goes into a libvirt domain
    #[arg(long)]
    pub libvirt: bool,
}

/// `causeway vm replug`
#[derive(Args)]
pub struct VmReplugOptions {
    /// The VM
    pub name: String,

    /// The socket of its QEMU's -qmp
    #[arg(long, value_name = "SOCKET")]
    pub qmp: PathBuf,

    /// The tenant that its processes belong to; without it, the broker's own
    #[arg(long)]
    pub tenant: Option<String>,

    /// The device's id, if it was taken out already
    #[arg(long, value_name = "ID")]
    pub device: Option<String>,

    /// The port to plug it into, if it was taken out already
    #[arg(long, value_name = "ID")]
    pub bus: Option<String>,
}

/// `causeway status`
#[derive(Args)]
pub struct StatusOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `causeway top`
#[derive(Args)]
#[command(
    after_help = "Keys: q or Esc quits, Tab or 1 to 3 chooses endpoints, queue pairs or waits, \
                  < and > choose the column by which endpoints are sorted, r reverses the order, \
                  arrows and Page Up and Down scroll. Asking keeps a broker that was started on \
                  demand from ending."
)]
pub struct TopOptions {
    /// How long until the broker is asked again
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub interval: Duration,
}

/// `causeway trace`
#[derive(Args)]
#[command(
    allow_missing_positional = true,
    override_usage = "causeway trace [OPTIONS] QPN FILE\n       \
                      causeway trace [OPTIONS] --all FILE",
    after_help = "What travels through shared memory is recorded as the datagrams that would carry \
                  it: each packet's interface, direct, ring or udp, says how it went. Root records \
                  the programs of all users, other users their own. A program is slower while it \
                  is recorded. Packets that arrive faster than they can be written are lost, and \
                  the file counts them. If no broker runs, one is started. A new file is \
                  readable by its owner alone."
)]
pub struct TraceOptions {
    /// The queue pair to record, by its number as `causeway status` shows it
    #[arg(value_parser = parse_qpn, required_unless_present = "all", conflicts_with = "all")]
    pub qpn: Option<u32>,

    /// The file to write, in pcapng; - is standard output
    pub file: PathBuf,

    /// Record all queue pairs, also of programs that are started later
    #[arg(long)]
    pub all: bool,

    /// Record payload too: at most so many bytes of each datagram, 256 if no number is given
    #[arg(
        long,
        value_name = "BYTES",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "256",
        value_parser = clap::value_parser!(u32).range(1..=TRACE_PAYLOAD_MAX as i64)
    )]
    pub payload: Option<u32>,

    /// Record remote keys too; without this option they are zeros
    #[arg(long)]
    pub keys: bool,

    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = parse_interval)]
    pub seconds: Option<Duration>,

    /// End after this number of packets
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// The number of a queue pair, decimal or after 0x.
fn parse_qpn(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let known = number.ok().filter(|number| *number <= QPN_MASK);
    known.ok_or_else(|| format!("{text:?} is not the number of a queue pair"))
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("{text:?} is not a number"))?;
    let range = INTERVAL_MIN..=INTERVAL_MAX;
    if !range.contains(&seconds) {
        return Err(format!("it must be {INTERVAL_MIN} to {INTERVAL_MAX} s"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// `causeway manual`
#[derive(Args)]
pub struct ManualOptions {
    /// Directory that stands for /usr/share
    pub directory: PathBuf,
}

/// `causeway nodes`
#[derive(Args)]
#[command(
    after_help = "STATE is `here` for nodes of this network namespace, `reachable` where a node \
                        daemon answers. A conflict is another cluster, configuration, tenant or \
                        version, two hosts that are one node, or one node with an address that is \
                        not configured. Exit status 1: there is a conflict, or no broker."
)]
pub struct NodesOptions {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `causeway limit`
#[derive(Args)]
#[command(
    override_usage = "causeway limit [--json]\n       \
                      causeway limit TENANT LIMIT...\n       \
                      causeway limit --pid PID LIMIT...\n       \
                      causeway limit --vm NAME LIMIT...\n\n\
                      LIMIT is --none, or --bytes, --messages or both, with --burst or without.",
    after_help = "Without a tenant, process or virtual machine, the limits that hold are listed. A \
                  limit replaces the one before and lasts as long as the broker; lasting limits \
                  belong in the broker's configuration, causewayd.toml. An amount is a number of \
                  bytes, or a number with KiB, MiB, GiB or TiB."
)]
pub struct LimitOptions {
    /// Limit this tenant: its processes on this host together
    #[arg(conflicts_with = "json")]
    pub tenant: Option<String>,

    /// Limit this process
    #[arg(
        long,
        conflicts_with_all = ["tenant", "json"],
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(i32).range(1..)
    )]
    pub pid: Option<i32>,

    /// Limit this virtual machine: its processes together
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tenant", "pid", "json"])]
    pub vm: Option<String>,

    /// Let at most so many bytes of payload through each second; 0: any number
    #[arg(
        long,
        value_name = "AMOUNT",
        allow_negative_numbers = true,
        value_parser = parse_amount
    )]
    pub bytes: Option<u64>,

    /// Let at most so many messages through each second; 0: any number
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub messages: Option<u64>,

    /// Let so many bytes through at once after a pause; without it, what --bytes lets through in
    /// 10 ms
    #[arg(
        long,
        value_name = "AMOUNT",
        allow_negative_numbers = true,
        value_parser = parse_amount
    )]
    pub burst: Option<u64>,

    /// Remove the limit
    #[arg(long, conflicts_with_all = ["bytes", "messages", "burst"])]
    pub none: bool,

    /// List the limits in JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_amount(text: &str) -> Result<u64, String> {
    amount(text).ok_or_else(|| format!("{text:?} is not an amount such as \"64 MiB\""))
}

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Benchmark {
    /// Locks in shared memory, against the C library's and bare futexes
    Locks,
    /// SISCI: segments, interrupts and sequences, against plain shared memory and eventfds. With
    /// --node N: to another host's node, where `causeway bench sisci --serve` runs, against verbs
    /// WRITEs and bare UDP to the same host
    Sisci,
    /// The copy engine's queues, against memcpy
    Dma,
    /// In a guest: its window, doorbells and calls, against its own memory and the bare way to the
    /// host. `--serve` runs the other side, in another guest or on the host
    Vm,
    /// Queue pairs to another HOST, where `causeway bench net --serve` runs, against bare UDP and
    /// TCP to the same host
    Net,
}

/// `causeway bench`
#[derive(Args)]
pub struct BenchOptions {
    /// What to measure
    #[arg(value_enum)]
    pub what: Benchmark,

    /// The other host of `bench net`: its name or address
    pub host: Option<String>,

    /// The other host's node of `bench sisci`
    #[arg(long)]
    pub node: Option<u32>,

    /// Be the other side of `bench vm`, `bench net` or `bench sisci`, once
    #[arg(long)]
    pub serve: bool,

    /// The TCP port at which the two sides of `bench net` and `bench sisci` meet
    #[arg(long, default_value_t = 20_479)]
    pub port: u16,

    /// Measure briefly: the figures are rough
    #[arg(long)]
    pub quick: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn run_options(line: &[&str]) -> RunOptions {
        match Cli::try_parse_from(line).map(|cli| cli.verb) {
            Ok(Verb::Run(options)) => options,
            Ok(_) => panic!("not a run"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_the_command_are_left_alone() {
        let o = run_options(&[
            "causeway", "run", "--wire", "udp", "--", "ls", "--wire", "-x",
        ]);
        assert_eq!(o.wire, Some(Wire::Udp));
        assert_eq!(o.command, ["ls", "--wire", "-x"]);
    }

    #[test]
    fn the_double_dash_may_be_left_out() {
        let o = run_options(&["causeway", "run", "ibv_rc_pingpong", "-g", "0"]);
        assert_eq!(o.wire, None);
        assert_eq!(o.command, ["ibv_rc_pingpong", "-g", "0"]);
    }

    #[test]
    fn a_trace_is_of_one_queue_pair_or_of_all() {
        let parse = |line: &[&str]| {
            let line = ["causeway", "trace"].iter().chain(line);
            match Cli::try_parse_from(line).map(|cli| cli.verb) {
                Ok(Verb::Trace(o)) => Some((o.qpn, o.all, o.file, o.payload)),
                _ => None,
            }
        };
        let file = || PathBuf::from("f");
        assert_eq!(
            parse(&["0x1a2", "f"]),
            Some((Some(0x1a2), false, file(), None))
        );
        assert_eq!(
            parse(&["17", "f", "--payload"]),
            Some((Some(17), false, file(), Some(256)))
        );
        assert_eq!(parse(&["--all", "f"]), Some((None, true, file(), None)));
        assert_eq!(
            parse(&["--all", "--payload=9", "f"]),
            Some((None, true, file(), Some(9)))
        );
        for wrong in [
            &["f"][..],
            &["--all", "1", "f"],
            &["x", "f"],
            &["0x1000000", "f"],
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(parse(&["1", "f", "--payload=100000"]), None);
    }

    #[test]
    fn a_command_is_required() {
        assert!(Cli::try_parse_from(["causeway", "run"]).is_err());
    }
}
