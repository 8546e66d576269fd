"""Hosts with brokers and node daemons, and members of etcd, each in a network namespace."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

from lib.netns import BUILD, Host, SetupError, describe, ip, kill, need_root, pids_in

SECONDS = 120
CLIENT_PORT, PEER_PORT = 2379, 2380
# In milliseconds. etcd's shortest lease is one and a half elections long.
HEARTBEAT, ELECTION = 50, 500
# Users of etcd, and their passwords: who may do all, and who may write below a prefix.
ROOT_USER, HOSTS_USER = ("root", "what only operators know"), ("hosts", "what hosts know")
# Codes of gRPC: of no token, or one from before a change of rights; of one that is not known.
NAMELESS, STALE = 3, 16
# A tenth of what they are by default.
LEASE_SECONDS, RENEW_MS = 1, 300
PREFIX = "10.84"


def until(what, holds, seconds=SECONDS):
    """Waits until something holds, and returns it; SetupError says what does not."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.02)
    raise SetupError(f"in {seconds} s not: {what}")


class Network:
    """Namespaces on a bridge, which is in one of its own."""

    serial = 0

    def __init__(self):
        need_root("making network namespaces")
        Network.serial += 1
        self.tag, self.third = f"cwd{os.getpid()}x{Network.serial}", Network.serial
        self.names, self.hosts = [f"{self.tag}br"], []
        self.scratch = tempfile.mkdtemp(prefix=f"{self.tag}-")
        try:
            ip("netns", "add", self.names[0])
            ip("-n", self.names[0], "link", "add", "br0", "type", "bridge")
            ip("-n", self.names[0], "link", "set", "br0", "up")
        except (subprocess.CalledProcessError, OSError) as error:
            self.end()
            raise SetupError(f"cannot make a bridge: {describe(error)}") from error

    def host(self, name):
        """A new host."""
        netns, number = f"{self.tag}{name}", len(self.names)
        ip("netns", "add", netns)
        self.names.append(netns)
        ip("-n", netns, "link", "set", "lo", "up")
        ip("link", "add", "cw0", "netns", netns, "type", "veth", "peer", "name", name,
           "netns", self.names[0])
        ip("-n", self.names[0], "link", "set", "dev", name, "master", "br0", "up")
        address = f"{PREFIX}.{self.third}.{number}"
        ip("-n", netns, "addr", "add", f"{address}/24", "dev", "cw0")
        ip("-n", netns, "link", "set", "cw0", "up")
        host = Host(name, address, netns, tempfile.mkdtemp(prefix=f"{netns}-"))
        self.hosts.append(host)
        return host

    def end(self):
        """Ends all that runs in the namespaces, and removes them."""
        # First the daemons: as long as one runs, it has another broker started, with its directory.
        for name in self.names:
            for pid in pids_in(name):
                kill(pid)
        until("the namespaces are empty", lambda: not any(pids_in(name) for name in self.names))
        for host in self.hosts:
            host.end()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.scratch, ignore_errors=True)


def block(host, other, blocked=True):
    """Lets a host send nothing to another, or lets it send again."""
    ip("-n", host.netns, "route", "add" if blocked else "del", "blackhole", f"{other.address}/32")


def certificates(folder, address):
    """An authority, and certificates of a server at an address and of a client."""
    def openssl(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=tests",
            "-days", "2", "-addext", "basicConstraints=critical,CA:TRUE")
    # With users, etcd's gateway refuses certificates that have a common name.
    for name, subject in (("server", "/CN=server"), ("client", "/O=client")):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        with open(os.path.join(folder, "extensions"), "w", encoding="ascii") as f:
            f.write(f"subjectAltName=IP:{address}\nbasicConstraints=CA:FALSE\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem", "-days", "2", "-extfile", "extensions")


class Etcd:
    """A member. It answers clients at its address, and this program at its loopback."""

    def __init__(self, host, folder, members, tls=False):
        self.host, self.tls, self.process = host, tls, None
        # Once it asks for users: whether that is so, and what shows that this program is root.
        self.guarded, self.token = False, ""
        self.folder, self.data = folder, os.path.join(folder, host.name)
        self.url = f"http{'s' if tls else ''}://{host.address}:{CLIENT_PORT}"
        peers = ",".join(f"{m.name}=http://{m.address}:{PEER_PORT}" for m in members)
        own = f"http://{host.address}:{PEER_PORT}"
        self.command = [
            "etcd", "--name", host.name, "--data-dir", self.data, "--initial-cluster", peers,
            "--listen-peer-urls", own, "--initial-advertise-peer-urls", own,
            "--listen-client-urls", f"{self.url},http://127.0.0.1:{CLIENT_PORT}",
            "--advertise-client-urls", self.url,
            "--heartbeat-interval", str(HEARTBEAT),
            "--election-timeout", str(ELECTION)]
        if tls:
            certificates(folder, host.address)
            file = lambda name: os.path.join(folder, name)  # noqa: E731
            self.command += ["--cert-file", file("server.pem"), "--key-file", file("server.key"),
                             "--client-cert-auth", "--trusted-ca-file", file("ca.pem")]

    def start(self):
        """Starts it, with what it had."""
        with open(f"{self.data}.log", "ab") as log:
            self.process = self.host.popen(self.command, stdout=log, stderr=log)

    def kill(self):
        """Ends it by SIGKILL."""
        self.process.kill()
        self.process.wait()

    def ask(self, path, request):
        """What the gateway answers, or None."""
        answer = self.ask_once(path, request)
        if self.guarded and answer and answer.get("code") in (NAMELESS, STALE):
            name, password = ROOT_USER
            # With a token that etcd has given up it would not be heard.
            self.token = ""
            known = self.ask_once("auth/authenticate", {"name": name, "password": password})
            self.token = (known or {}).get("token", "")
            answer = self.ask_once(path, request)
        return answer

    def ask_once(self, path, request):
        """The same, with the token that there is."""
        argv = ["curl", "-s", "-m", "5", f"http://127.0.0.1:{CLIENT_PORT}/v3/{path}",
                "-d", json.dumps(request)]
        if self.token:
            argv += ["-H", f"Authorization: {self.token}"]
        done = subprocess.run(self.host.command(argv), stdout=subprocess.PIPE, check=False)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def guard(self, prefix):
        """From now on it wants to know the user, and the hosts' may write below a prefix alone."""
        for name, password in (ROOT_USER, HOSTS_USER):
            self.ask("auth/user/add", {"name": name, "password": password})
            self.ask("auth/role/add", {"name": name})
            self.ask("auth/user/grant", {"user": name, "role": name})
        self.permit(prefix)
        self.ask("auth/enable", {})
        self.guarded = True
        until("etcd wants to know the user", self.is_up)

    def permit(self, prefix):
        """Lets the hosts write below a prefix: tokens that were given before are of no use."""
        end = encode(prefix[:-1] + "0")
        self.ask("auth/role/grant", {"name": HOSTS_USER[0], "perm": {
            "permType": "READWRITE", "key": encode(prefix), "range_end": end}})

    def is_up(self):
        """Whether a majority answers."""
        answer = self.ask("kv/range", {"key": encode("/")})
        return bool(answer) and "header" in answer

    def put(self, key, value):
        """Stores a value; the revision."""
        answer = self.ask("kv/put", {"key": encode(key), "value": encode(value)})
        assert answer and "header" in answer, answer
        return int(answer["header"]["revision"])

    def remove(self, key):
        """Removes a key."""
        self.ask("kv/deleterange", {"key": encode(key)})

    def entries(self, prefix):
        """Keys below a prefix, without it: value and lease."""
        request = {"key": encode(prefix), "range_end": encode(prefix[:-1] + "0")}
        answer = self.ask("kv/range", request) or {}
        return {decode(kv["key"])[len(prefix):]: (decode(kv.get("value", "")),
                                                  int(kv.get("lease", 0)))
                for kv in answer.get("kvs", [])}

    def leads(self):
        """Whether it is the leader."""
        status = self.ask("maintenance/status", {}) or {}
        return bool(status) and status.get("leader") == status["header"]["member_id"]


def encode(text):
    """As the gateway wants keys and values."""
    return base64.b64encode(text.encode()).decode()


def decode(text):
    """A key or a value of the gateway's."""
    return base64.b64decode(text).decode()


class Side:
    """A host with a broker and a node daemon that joins the directory."""

    def __init__(self, host, members, cluster="lab"):
        self.host, self.cluster, self.node = host, cluster, None
        self.members, self.starts, self.log_path = members, 0, None
        self.listen = []
        self.settings = {"LD_LIBRARY_PATH": os.path.join(BUILD, "lib")}
        self.config = os.path.join(host.runtime_dir, "causewayd.toml")
        self.configure(host.name)
        self.broker = None
        self.start_broker()

    def configure(self, name, cluster=None, extra="", certificate=True, password=HOSTS_USER[1],
                  mode=0o600, by_broker=False):
        """Writes the configuration: no node is in it."""
        cluster = cluster or self.cluster
        cache = os.path.join(self.host.runtime_dir, f"{cluster}-{name}.json")
        urls = ", ".join(f'"{member.url}"' for member in self.members)
        # Most tests start and end the daemon themselves.
        text = "" if by_broker else "[sisci]\nnode_daemon = false\n"
        text += (f'[sisci.directory]\netcd = [{urls}]\n'
                 f'cluster = "{cluster}"\nhost = "{name}"\n'
                 f'trust = "address"\nlease_seconds = {LEASE_SECONDS}\nrenew_ms = {RENEW_MS}\n'
                 f'cache = "{cache}"\naddresses = ["{self.host.address}"]\n')
        if self.members[0].tls:
            folder = self.members[0].folder
            text += self.login(password, mode)
            files = {"ca": "ca.pem"}
            if certificate:
                files |= {"certificate": "client.pem", "key": "client.key"}
            for key, file in files.items():
                text += f'{key} = "{os.path.join(folder, file)}"\n'
        with open(self.config, "w", encoding="ascii") as f:
            f.write(text + extra)

    def login(self, password, mode):
        """Writes the password's file, and what the configuration says of it."""
        path = os.path.join(self.host.runtime_dir, "etcd-password")
        with open(path, "w", encoding="ascii") as f:
            f.write(password + "\n")
        os.chmod(path, mode)
        return f'user = "{HOSTS_USER[0]}"\npassword_file = "{path}"\n'

    def start_broker(self):
        """Starts the broker."""
        self.broker = self.host.popen(
            [os.path.join(BUILD, "bin", "causewayd"), "--foreground", "--idle", "0", "--config",
             self.config], text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if not any("ready" in line for line in iter(self.broker.stderr.readline, "")):
            raise SetupError("the broker does not say that it is ready")

    def start_node(self, wait=True):
        """Starts the daemon."""
        self.starts += 1
        self.log_path = os.path.join(self.host.runtime_dir, f"noded-{self.starts}.log")
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.node = self.host.popen(
                [os.path.join(BUILD, "bin", "causeway-noded"), "--config", self.config,
                 *self.listen],
                stdout=subprocess.DEVNULL, stderr=log)
        if wait:
            self.await_line("ready")

    def log(self):
        """What the daemon has said."""
        with open(self.log_path, encoding="utf-8") as f:
            return f.read()

    def lacks_etcd(self):
        """Whether the daemon's last word about etcd is that it is away."""
        log = self.log()
        return log.rfind("etcd is away") > log.rfind("etcd answers again")

    def await_line(self, *words, after=0):
        """Waits until a line of the daemon's holds these words; after so many bytes of its log."""
        def holds():
            if self.node.poll() is not None:
                raise SetupError(f"the daemon of {self.host.name} has ended: {self.log()}")
            return any(all(word in line for word in words)
                       for line in self.log()[after:].splitlines())
        try:
            until(words, holds)
        except SetupError as error:
            raise SetupError(f"{self.host.name}: {error}\n{self.log()}") from error

    def end_node(self):
        """Ends the daemon by SIGKILL, if there is one."""
        if self.node:
            self.node.kill()
            self.node.wait()
            self.node = None

    def ensure_node(self):
        """Starts the daemon, unless a test before has."""
        if not self.node:
            self.start_node()

    def program(self, name, *args, env=None, **kwargs):
        """Starts a program of the tests."""
        return self.host.popen([os.path.join(BUILD, "test", "sisci", name), *args],
                               env={**self.settings, **(env or {})}, text=True, **kwargs)

    def run(self, name, *args, env=None):
        """Runs a program of the tests to its end: exit status and output."""
        return self.ended(self.program(name, *args, env=env, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT))

    def causeway(self, *args):
        """Runs the command line to its end: exit status and output."""
        return self.ended(self.host.popen(
            [os.path.join(BUILD, "bin", "causeway"), *args], env=self.settings, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))

    @staticmethod
    def ended(process):
        """Waits for a program: exit status and output."""
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            kill(process.pid)
            output, _ = process.communicate()
            return 124, output
        return process.returncode, output


class Traffic:
    """Stores and loads from one host to a node, until something fails."""

    def __init__(self, owner, user, node):
        self.owner = owner.program("steady", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if "serving" not in self.owner.stdout.readline():
            raise SetupError("the owner of a segment does not begin")
        self.path = os.path.join(user.host.runtime_dir, "traffic")
        with open(self.path, "w", encoding="ascii") as out:
            self.user = user.program("steady", str(node), stdout=out, stderr=out)

    def count(self):
        """How often it went well; SetupError if it went wrong."""
        with open(self.path, encoding="ascii") as f:
            lines = f.read().split("\n")[:-1]
        if self.user.poll() is not None:
            raise SetupError(f"the traffic has ended: {lines[-3:]}")
        return int(lines[-1]) if lines else 0

    def goes_on(self):
        """Waits until it has gone on for some time since now."""
        before = self.count()
        until("traffic goes on", lambda: self.count() >= before + 200)
        return self.count() - before

    def end(self):
        """Ends both."""
        for process in (self.user, self.owner):
            process.kill()
            process.wait()
