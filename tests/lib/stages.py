"""The stages of tests/run, in order: cheap and fundamental first."""

import os
import shutil
import subprocess

from clients import agents, asked, matrix, spdk, verify
from lib import inject
from lib.netns import BUILD
from lib.report import Stopwatch

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CARGO_FLAGS = ["--locked"]
UNIT = inject.CRATES
UNIT_ENV = {"CAUSEWAY_BUILD": BUILD}
# What only computes leaves the processor to those beside it, whenever they want it.
COMPUTING = ["nice", "-n", "10"]
# When a compilation hangs.
COMPILE_SECONDS = 1800


class Stage:
    """A command (`argv`) that prints its counts, or a function that reports by itself."""

    def __init__(self, name, what, argv=None, function=None, seconds=600, env=None,
                 beside=False, sleeps=False, asked=False, chooses=False):
        self.name = name
        self.what = what
        self.argv = argv
        self.function = function
        # When it hangs: several times what it takes alone, since machines are shared.
        self.seconds = seconds
        self.env = env or {}
        # May run while other such stages run: it judges no time closely.
        self.beside = beside or sleeps
        # The same, and what it waits for is mostly the end of a lease or a budget of retries. Its
        # programs may poll meanwhile, where a processor is free.
        self.sleeps = sleeps
        # Too long for `make test`: it runs when it is asked for.
        self.asked = asked
        # Can run those of its tests alone whose names hold a text.
        self.chooses = chooses or function is not None or is_cargo(argv)

    def command(self, text):
        """The command line that runs those of its tests alone whose names hold `text`."""
        if not text:
            return self.argv
        return [*self.argv, text] if is_cargo(self.argv) else [*self.argv, "-k", text]


def is_cargo(argv):
    """Whether a command line is one of `cargo`."""
    return argv is not None and "--no-fail-fast" in argv


def cargo(*args):
    """A cargo test command line."""
    return [os.environ.get("CARGO", "cargo"), "test", *CARGO_FLAGS, "--no-fail-fast", *args]


def checker_env(checker):
    """A model checker replaces the atomics: its build shares no artefacts with the ordinary one."""
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")
    flags = f"{os.environ.get('RUSTFLAGS', '')} --cfg {checker}".strip()
    return {"RUSTFLAGS": flags, "CARGO_TARGET_DIR": os.path.join(target, checker)}


def sisci_stages():
    """Those of SISCI that run alone."""
    return [
        Stage("sisci", "SISCI: headers, symbols, every function, foreign programs",
              ["tests/sisci/run"], seconds=600),
        Stage("sisci-full", "SISCI between hosts: timers at full length, a million letters",
              ["tests/sisci/hosts", "--full"], seconds=4800, chooses=True, asked=True),
        Stage("sisci-secured-full", "SISCI between hosts on a secured wire: all programs",
              ["tests/sisci/hosts", "--secured"], seconds=1800, chooses=True, asked=True),
        # Its machines run loops that poll each other's memory, on emulated processors.
        Stage("sisci-guests", "SISCI between a guest and another host", ["tests/sisci/guests"],
              seconds=1500, chooses=True),
        Stage("directory-cluster", "three members of etcd: killed, and cut off",
              ["tests/directory/run", "--members"], seconds=900, chooses=True, asked=True),
        Stage("sisci-hostile", "SISCI: a hostile process of another user",
              ["tests/sisci/hostile"], seconds=300),
    ]


def document_stages():
    """Those of the documents and releases."""
    return [
        Stage("release", "releases of a clone: refused, rehearsed, made", ["tests/release/run"],
              seconds=400),
        Stage("docs", "the documents as a site, and the commands that they have people type",
              ["tests/docs/run"], seconds=1800, chooses=True),
        Stage("docs-phone", "the site on a telephone, by Chromium", ["tests/docs/run", "--phone"],
              seconds=1800, asked=True),
        Stage("docs-vm", "those commands of the documents that boot virtual machines",
              ["tests/docs/run", "--vm", "-k", "users/vm"], seconds=1800, asked=True),
    ]


def package_stages():
    """Those of packages, images and kernels that run when they are asked for."""
    return [
        Stage("image", "the container image: built, and two containers of it",
              ["tests/containers/run", "--image"], seconds=1500, asked=True),
        Stage("deb-trixie", "the same on Debian 13", ["tests/deb/run", "--suite", "trixie"],
              seconds=900, asked=True),
        Stage("sid", "programs of Debian sid, with the newest rdma-core", ["tests/deb/sid"],
              seconds=600, asked=True),
        Stage("upgrade", "Debian packages: the last tag's, upgraded while programs are connected",
              ["tests/deb/upgrade"], seconds=3000, asked=True),
        Stage("deb-again", "the Debian packages are built twice from source, and compared",
              ["tests/deb/again"], seconds=4500, asked=True),
        Stage("portable", "the wheel and the tarball, for older C libraries, on Debian 11",
              ["tests/python/portable"], seconds=3000, asked=True),
        Stage("bullseye", "Debian 11's own kernel as the host: UDP alone",
              ["tests/vm/kernels", "--suite", "bullseye"], seconds=1200, chooses=True, asked=True),
        Stage("trixie", "Debian 13's own kernel as the host",
              ["tests/vm/kernels", "--suite", "trixie"], seconds=1200, chooses=True, asked=True),
    ]


def compile_tests(report, text):
    """Compiles what `unit` runs, whose programs are to have the machine to themselves, and the
    libraries with points."""
    watch = Stopwatch()
    problem, output = None, ""
    try:
        done = subprocess.run([*COMPUTING, *cargo(*UNIT, "--no-run")], cwd=ROOT, check=False,
                              env=dict(os.environ, **UNIT_ENV), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=COMPILE_SECONDS)
        output = done.stdout
        if done.returncode:
            problem = f"exit status {done.returncode}"
        else:
            inject.build(timeout=COMPILE_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        problem = str(error)
    # Of tests that are chosen by a text, none is one of these.
    if problem or not text:
        report.add("compile", "the tests that `unit` runs", problem, watch.seconds(), output)


def computing_stages():
    """Those that compute all the time, for which no clock matters, and some that mostly sleep."""
    return [
        Stage("compile", "the tests that `unit` runs", function=compile_tests, beside=True),
        Stage("sim", "simulated networks, 10,000 seeds",
              [*COMPUTING, *cargo("--release", "-p", "causeway-sim")], seconds=1800, beside=True),
        Stage("loom", "models of the shared-memory protocols, locks and queues, SISCI's handles",
              [*COMPUTING,
               *cargo("--release", "-p", "causeway-shm", "-p", "causeway-biased-lock",
                      "-p", "causeway-two-ended", "--test", "loom", "--test", "models",
                      "--test", "lock_models", "--test", "handle_models")],
              seconds=1800, env=checker_env("loom"), beside=True),
        Stage("shuttle", "random interleavings of longer models of the same protocols",
              [*COMPUTING,
               *cargo("--release", "-p", "causeway-shm", "--test", "models", "--test",
                      "lock_models")],
              seconds=1800, env=checker_env("shuttle"), beside=True),
        # Debian has no herd7. Where it is on PATH this takes seconds.
        Stage("litmus", "the order of memory accesses, by C11 and on aarch64, by herd7",
              ["tests/litmus/run"], seconds=1200, chooses=True, beside=True,
              asked=shutil.which("herd7") is None),
        Stage("kill", "one side is killed", ["tests/kill/run"], seconds=1000, chooses=True,
              sleeps=True),
        Stage("hostile", "a hostile peer attacks by all it holds", ["tests/hostile/run"],
              seconds=700, chooses=True, sleeps=True),
        Stage("sisci-relay", "SISCI between hosts, for a process without a network",
              ["tests/sisci/relay"], seconds=600, chooses=True, sleeps=True),
    ]


def beside_stages():
    """Those that run side by side, the longest first, so that the others fill all places."""
    return [
        Stage("vm", "virtual machines, by QEMU without KVM", ["tests/vm/run"], seconds=1800,
              chooses=True, beside=True),
        Stage("fault", "one side is killed or stopped at every step in shared memory",
              ["tests/fault/run"], seconds=1200, chooses=True, sleeps=True),
        Stage("deb", "the Debian packages on Debian 12: installed, upgraded, removed",
              ["tests/deb/run"], seconds=1500, beside=True),
        Stage("sisci-hosts", "SISCI between hosts, by node daemons", ["tests/sisci/hosts"],
              seconds=600, chooses=True, beside=True),
        Stage("containers", "containers by CDI: hook, Kubernetes' device plugin, podman",
              ["tests/containers/run"], seconds=600, chooses=True, sleeps=True),
        Stage("bookworm", "Debian 12's own kernel as the host", ["tests/vm/kernels"],
              seconds=600, chooses=True, beside=True),
        Stage("pool", "pools of blocks: rights, deaths, a hostile process",
              ["tests/pool/run"], seconds=600, chooses=True, beside=True),
        Stage("fuzznet", "random datagrams at every open port", ["tests/fuzznet/run"],
              seconds=300, beside=True),
        Stage("cm", "connections through librdmacm", ["tests/cm/run"], seconds=600, chooses=True,
              beside=True),
        Stage("sisci-who", "SISCI between hosts: who is who, and who lies about it",
              ["tests/sisci/who"], seconds=600, chooses=True, sleeps=True),
        Stage("sisci-secured", "SISCI between hosts on a secured wire", ["tests/sisci/secured"],
              seconds=300, chooses=True, sleeps=True),
        Stage("locks", "processes that use locks are killed or stopped at every step",
              ["tests/locks/run"], seconds=600, chooses=True, beside=True),
        Stage("package", "the Debian packages in a guest", ["tests/vm/package"], seconds=600,
              beside=True),
        Stage("sisci-faults", "SISCI: either side is killed or stopped at every step",
              ["tests/sisci/faults"], seconds=600, chooses=True, beside=True),
        Stage("sisci-steps", "SISCI between hosts: anybody is killed or stopped at every step",
              ["tests/sisci/steps"], seconds=900, chooses=True, beside=True),
        Stage("dissector", "Wireshark's dissector on real traffic", ["tests/dissector/run"],
              seconds=900, chooses=True, beside=True),
        Stage("python", "the Python package, and the wheel", ["tests/python/run"], seconds=300,
              chooses=True, beside=True),
        Stage("directory", "nodes that an etcd names, and etcd away",
              ["tests/directory/run"], seconds=600, chooses=True, beside=True),
    ]


def all_stages():
    """Every stage: those of `make test`, and those that are run when they are asked for."""
    return [
        Stage("tidy", "the tree's own rules", ["tests/tidy/run"], seconds=120),
        *computing_stages(),
        Stage("unit", "unit and integration tests, corpus replay", cargo(*UNIT), seconds=1800,
              env=UNIT_ENV),
        Stage("driver", "the guests' driver, in user space",
              [os.path.join(BUILD, "test", "driver")], seconds=120),
        Stage("newest", "the guests' driver is built for Debian's newest kernel",
              ["tests/vm/newest"], seconds=300),
        Stage("counts", "instructions in each short operation, against what is recorded",
              ["tests/counts/run"], seconds=300),
        Stage("bench", "what the bench makes of its figures", ["benches/check"], seconds=60),
        Stage("cli", "the command line", ["tests/cli/run"], seconds=400),
        Stage("operations", "manual pages, completions, status, counters, metrics, top",
              ["tests/operations/run"], seconds=600, chooses=True),
        Stage("versions", "this tree and the release before it, every pair",
              ["tests/versions/run"], seconds=1200),
        Stage("paths", "the path shim", ["tests/paths/run"], seconds=120),
        Stage("isolate", "isolated programs, and containers", ["tests/isolate/run"], seconds=400),
        Stage("verify", "every opcode, every byte, both wires", function=verify.run),
        *sisci_stages(),
        Stage("scale", "thousands of queue pairs, hundreds of processes", ["tests/scale/run"],
              seconds=900),
        Stage("secure", "secured connections between hosts", ["tests/secure/run"], seconds=600,
              chooses=True),
        Stage("xdp", "short datagrams by AF_XDP, lost and refused", ["tests/xdp/run"],
              seconds=600, chooses=True),
        Stage("loss", "links that lose packets", ["tests/loss/run"], seconds=900),
        *document_stages(),
        *package_stages(),
        *beside_stages(),
        Stage("clients", "the distribution's own programs", function=matrix.run),
        Stage("clients-secured", "the same on a secured wire between hosts",
              function=matrix.run_secured, asked=True),
        Stage("nixl", "NIXL, of PyPI: its UCX backend between two agents",
              function=asked.stage(agents), asked=True),
        Stage("spdk", "SPDK's NVMe over fabrics, of the tree that CAUSEWAY_SPDK names",
              function=asked.stage(spdk, asked.ADDRESSED), asked=True),
        Stage("aarch64", "cross-built for aarch64, and run by an emulated machine",
              ["tests/aarch64/run"], seconds=4700, chooses=True, asked=True),
        Stage("aarch64-sim", "the simulated networks of `sim` there, 1,000 seeds",
              ["tests/aarch64/run", "--sim"], seconds=4700, chooses=True, asked=True),
        Stage("kasan", "the guests' driver in a kernel with KASAN and lockdep",
              ["tests/vm/kasan"], seconds=4500, chooses=True, asked=True),
    ]
