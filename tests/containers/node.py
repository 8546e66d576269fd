"""A node: a broker with a tenant, and the device plugin."""

import os
import select
import signal
import subprocess

from lib.netns import BUILD

SECONDS = 30


class Node:
    """Directories of a node, in a folder, and what runs there."""

    def __init__(self, folder, causeway=BUILD):
        self.folder = folder
        self.program = os.path.join(causeway, "bin", "causeway-kube")
        for name in ("tenant", "run", "plugins", "real"):
            os.mkdir(os.path.join(folder, name), 0o700 if name == "run" else 0o755)
        self.socket = os.path.join(folder, "tenant", "broker.sock")
        self.config = os.path.join(folder, "causewayd.toml")
        with open(self.config, "w", encoding="ascii") as file:
            file.write(f'[[tenant]]\nname = "jobs"\nsocket = "{self.socket}"\nusers = [0]\n')
        self.plugin = None

    @property
    def plugins(self):
        """kubelet's directory."""
        return os.path.join(self.folder, "plugins")

    @property
    def real(self):
        """Where the kernel's RDMA devices would be."""
        return os.path.join(self.folder, "real")

    def start_broker(self):
        """Starts the broker; it is ready when this returns."""
        subprocess.run([os.path.join(BUILD, "bin", "causewayd"), "--config", self.config,
                        "--runtime-dir", os.path.join(self.folder, "run"), "--idle", "0"],
                       stdout=subprocess.DEVNULL, check=True)

    def stop_broker(self):
        """Ends the broker, and waits for that."""
        pid_file = os.path.join(self.folder, "run", "broker.pid")
        if not os.path.exists(pid_file):
            return
        with open(pid_file, encoding="ascii") as file:
            broker = os.pidfd_open(int(file.read()))
        try:
            signal.pidfd_send_signal(broker, signal.SIGTERM)
            # Its files go before its lock does, so they tell nothing of its end.
            if not select.select([broker], [], [], SECONDS)[0]:
                raise TimeoutError("the broker does not end")
        finally:
            os.close(broker)

    def cdi(self, *options):
        """Writes the CDI specification for this machine."""
        return subprocess.run([self.program, "cdi", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)

    def start_plugin(self, *options):
        """Starts the device plugin."""
        argv = [self.program, "plugin", "--kubelet-dir", self.plugins, "--real-devices", self.real,
                *options]
        self.plugin = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
        return self.plugin

    def stop_plugin(self):
        """Ends the plugin; its status and words."""
        self.plugin.terminate()
        text, _ = self.plugin.communicate(timeout=SECONDS)
        status, self.plugin = self.plugin.returncode, None
        return status, text

    def end(self):
        """Ends everything."""
        if self.plugin:
            self.stop_plugin()
        self.stop_broker()
