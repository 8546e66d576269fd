"""Kubernetes' device plugin before a stand-in for kubelet."""

import json
import os
import subprocess

import grpc

from containers.kubelet import Kubelet, messages
from containers.node import Node
from lib.netns import BUILD

SHARES = 3
ALL = [f"cway0-{share}" for share in range(SHARES)]
WELL, ILL = (SHARES, {"Healthy"}), (SHARES, {"Unhealthy"})
CDI = "/run/cdi/causeway.dev-rdma.json"


def expect(found, expected):
    """A problem, unless they are equal."""
    return None if found == expected else f"{found}, not {expected}"


def refuses(call):
    """A problem, unless a call is refused as invalid."""
    try:
        return f"answered {call()}"
    except grpc.RpcError as error:
        return expect(error.code(), grpc.StatusCode.INVALID_ARGUMENT)


def lives(check, node, kubelet):
    """Registration, devices, their health, allocation, a kubelet that starts again."""
    node.start_broker()
    node.start_plugin("--socket", node.socket, "--shares", str(SHARES))
    plugin = kubelet.next()
    check("plugin: registers one name", expect(plugin.resource, "causeway.dev/rdma"))
    check("plugin: its devices", expect(plugin.next(), WELL))
    answer = plugin.allocate(*ALL[:2])
    check("plugin: allocation names the CDI device once",
          expect([device.name for device in answer.cdi_devices], ["causeway.dev/rdma=all"]) or
          expect((len(answer.mounts), len(answer.envs), len(answer.devices)), (0, 0, 0)))
    with open(CDI, encoding="utf-8") as file:
        check("plugin: the CDI specification is there",
              expect(json.load(file)["kind"], "causeway.dev/rdma"))
    for name in ("cway0-3", "cway0--1", "cway0-01", "cway0-", "gpu-0"):
        check(f"plugin: no device {name}", refuses(lambda name=name: plugin.allocate(name)))
    node.stop_broker()
    check("plugin: the broker goes", expect(plugin.next(), ILL))
    node.start_broker()
    check("plugin: the broker comes back", expect(plugin.next(), WELL))
    kubelet.stop()
    check("plugin: kubelet goes", expect(plugin.next(), None))
    plugin.close()
    kubelet = Kubelet(kubelet.api, node.plugins)
    plugin = kubelet.next()
    check("plugin: registers with the next kubelet", expect(plugin.next(), WELL))
    plugin.close()
    return kubelet


def signals(check, node, kubelet):
    """The end of the plugin, and one that was killed."""
    status, text = node.stop_plugin()
    check("plugin: ends when it is told to", expect(status, 0) and text)
    check("plugin: leaves no socket", expect(os.listdir(node.plugins), ["kubelet.sock"]))
    node.start_plugin("--shares", str(SHARES))
    kubelet.next().close()
    node.plugin.kill()
    node.plugin.wait()
    node.start_plugin("--shares", str(SHARES))
    plugin = kubelet.next()
    check("plugin: after one that was killed; without a tenant no broker is asked for",
          expect(plugin.next(), WELL))
    plugin.close()
    node.stop_plugin()


def mounting(check, node, kubelet):
    """What engines without CDI are told."""
    node.start_plugin("--inject", "mounts", "--socket", node.socket)
    plugin = kubelet.next()
    answer = plugin.allocate("cway0-0")
    mounts = {mount.container_path: (mount.host_path, mount.read_only) for mount in answer.mounts}
    tenant = os.path.dirname(node.socket)
    check("plugin: mounts for engines without CDI", expect(mounts, {
        "/opt/causeway/bin": (f"{BUILD}/bin", True), "/opt/causeway/lib": (f"{BUILD}/lib", True),
        tenant: (tenant, True)}))
    preload = [f"/opt/causeway/lib/{name}" for name in
               ("libibverbs.so.1", "librdmacm.so.1", "libcauseway-paths.so")]
    check("plugin: environment for engines without CDI", expect(dict(answer.envs), {
        "CAUSEWAY_SOCKET": node.socket, "LD_PRELOAD": ":".join(preload)}))
    check("plugin: no CDI device for engines without CDI", expect(len(answer.cdi_devices), 0))
    plugin.close()
    node.stop_plugin()


def foreign(check, node, kubelet):
    """Names of others' plugins."""
    names = ("--resource", "causeway.dev/rdma", "--resource", "rdma/ib")
    process = node.start_plugin(*names)
    text, _ = process.communicate(timeout=30)
    check("plugin: a foreign name is refused",
          None if process.returncode == 1 and "--foreign" in text else text)
    node.start_plugin(*names, "--foreign")
    plugins = {plugin.resource: plugin for plugin in (kubelet.next(), kubelet.next())}
    check("plugin: a foreign name by option", expect(sorted(plugins), [*names[1::2]]))
    for plugin in plugins.values():
        plugin.next()
    os.mkdir(os.path.join(node.real, "mlx5_0"))
    check("plugin: a real device appears", expect(plugins["rdma/ib"].next(), None))
    check("plugin: our own name goes on", expect(
        [device.name for device in plugins["causeway.dev/rdma"].allocate("cway0-0").cdi_devices],
        ["causeway.dev/rdma=all"]))
    for plugin in plugins.values():
        plugin.close()
    node.stop_plugin()
    node.start_plugin("--resource", "rdma/ib", "--resource", "causeway.dev/rdma", "--foreign")
    plugin = kubelet.next()
    check("plugin: a real device is there", expect(plugin.resource, "causeway.dev/rdma"))
    plugin.close()
    os.rmdir(os.path.join(node.real, "mlx5_0"))
    plugin = kubelet.next()
    check("plugin: the real device goes", expect(plugin.resource, "rdma/ib"))
    plugin.close()
    _, text = node.stop_plugin()
    check("plugin: it says why", None if "an RDMA device of its own" in text else text)


def odd_options(check, node):
    """What is refused at once."""
    for options, words in ((("--resource", "rdma"), "no domain"),
                           (("--resource", "kubernetes.io/rdma"), "Kubernetes' own"),
                           (("--shares", "0"), "--shares"),
                           (("--folder", "/var/empty"), "no libibverbs.so.1")):
        done = subprocess.run([os.path.join(BUILD, "bin", "causeway-kube"), "plugin", *options],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=30, check=False)
        check(f"plugin: {' '.join(options)} makes no sense",
              None if done.returncode and words in done.stdout else done.stdout)


def modes(check, folder):
    """A specification is for all to read and for nobody else to write, whatever the umask."""
    for umask in (0o000, 0o077):
        made = os.path.join(folder, f"umask-{umask:03o}")
        line = f'umask {umask:03o} && exec "$0" cdi --cdi-dir "$1"'
        subprocess.run(["sh", "-c", line, os.path.join(BUILD, "bin", "causeway-kube"), made],
                       check=True)
        found = [os.stat(path).st_mode & 0o777
                 for path in (made, os.path.join(made, os.path.basename(CDI)))]
        check(f"cdi: modes under umask {umask:03o}", expect(found, [0o755, 0o644]))


def serving(check, folder):
    """All of it."""
    made = os.path.join(folder, "messages")
    os.mkdir(made)
    node = Node(folder)
    kubelet = Kubelet(messages(made), node.plugins)
    try:
        odd_options(check, node)
        modes(check, folder)
        kubelet = lives(check, node, kubelet)
        signals(check, node, kubelet)
        mounting(check, node, kubelet)
        foreign(check, node, kubelet)
    finally:
        kubelet.stop()
        node.end()
