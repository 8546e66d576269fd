//! Command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::names::Resource;

/// Most containers of a node that may have the device: kubelet bounds pods at some hundreds.
pub const SHARES_MAX: u32 = 10_000;

/// Gives containers Causeway's RDMA device: by a CDI specification, and to Kubernetes as a device
/// plugin.
#[derive(Clone, Debug, Parser)]
#[command(name = "causeway-kube", version)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Write the CDI specification: `podman run --device causeway.dev/rdma=all` finds it
    Cdi(CdiOptions),
    /// Write specifications again that this program has written, with the options they were
    /// written with: for when what they name was installed or removed. The packages do it
    CdiAgain(CdiAgainOptions),
    /// Serve Kubernetes' device plugin API, and write the CDI specification first
    Plugin(PluginOptions),
    /// The hook that the specification names; container engines call it
    #[command(hide = true)]
    Hook(HookOptions),
    /// Write the shells' completions; the package is made with it
    #[command(hide = true)]
    Completions(CompletionsOptions),
}

/// What a container gets.
#[derive(Args, Clone, Debug)]
pub struct InjectionOptions {
    /// Folder on the host with bin/ and lib/, or prefix of an installation, of which containers get
    /// Causeway's files alone [default: what this program is in the bin/ of]
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
    /// Where containers see programs and libraries
    #[arg(long, value_name = "DIR", default_value = "/opt/causeway")]
    pub container_folder: PathBuf,
    /// Socket of a broker's tenant: containers get its directory and come by it. Its users must be
    /// admitted there. Without it each container starts a broker of its own
    #[arg(long, value_name = "SOCKET")]
    pub socket: Option<PathBuf>,
}

/// Options of `cdi`.
#[derive(Args, Clone, Debug)]
pub struct CdiOptions {
    /// What a container gets.
    #[command(flatten)]
    pub injection: InjectionOptions,
    /// Where container engines look for specifications; "-" writes to standard output
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
}

/// Options of `cdi-again`.
#[derive(Args, Clone, Debug)]
pub struct CdiAgainOptions {
    /// Where specifications may be; may be given several times
    #[arg(
        long = "cdi-dir",
        value_name = "DIR",
        default_values = ["/etc/cdi", "/var/run/cdi"]
    )]
    pub cdi_dirs: Vec<PathBuf>,
}

/// How a container is given the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Inject {
    /// The name in the CDI specification (kubelet 1.29 and newer, containerd 1.7, CRI-O 1.23)
    Cdi,
    /// Mounts and environment, for engines without CDI: preloads the libraries; programs that look
    /// into /sys/class/infiniband themselves need `causeway run`
    Mounts,
}

/// Options of `plugin`.
#[derive(Args, Clone, Debug)]
pub struct PluginOptions {
    /// What a container gets.
    #[command(flatten)]
    pub injection: InjectionOptions,
    /// Where container engines look for specifications
    #[arg(long, value_name = "DIR", default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// kubelet's directory of device plugins
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    pub kubelet_dir: PathBuf,
    /// Name under which pods ask for the device; may be given several times
    #[arg(
        long = "resource",
        value_name = "DOMAIN/NAME",
        default_value = "causeway.dev/rdma"
    )]
    pub resources: Vec<Resource>,
    /// Allow names of others' plugins, as rdma/ib; never served where the node has a real RDMA
    /// device
    #[arg(long)]
    pub foreign: bool,
    /// How many containers of the node may have the device at a time, for each name
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SHARES_MAX)))]
    pub shares: u32,
    /// How containers are given the device
    #[arg(long, value_enum, default_value_t = Inject::Cdi)]
    pub inject: Inject,
    /// Where the node's real RDMA devices would be
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/sys/class/infiniband",
        hide = true
    )]
    pub real_devices: PathBuf,
    /// error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log: tracing::Level,
}

/// Options of `hook`.
#[derive(Args, Clone, Debug)]
pub struct HookOptions {
    /// A library that the container's programs are to find by its name: a path in the container
    #[arg(long = "library", value_name = "FILE")]
    pub libraries: Vec<PathBuf>,
}

/// Options of `completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsOptions {
    /// A directory that is laid out as /usr/share
    pub directory: PathBuf,
}
