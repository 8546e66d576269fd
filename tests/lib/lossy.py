"""Hosts to which packets get lost: a rule of nftables drops a part of the UDP and TCP packets.

They go over the link one by one, not as batches of the segmentation offload: those would be lost
whole.
"""

import re
import subprocess

from lib import netns

RULES = """
table inet loss {{
    chain input {{
        type filter hook input priority 0
        iifname {link} meta l4proto {{ tcp, udp }} numgen random mod 10000 < {rate} counter drop
    }}
}}
"""


def on(host, argv, text=None):
    """Runs a command in a host's network namespace; its output."""
    done = subprocess.run(["ip", "netns", "exec", host.netns, *argv], input=text, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise netns.SetupError(f"{' '.join(argv)}: {done.stdout.strip()}")
    return done.stdout


def lose(host, rate, mtu):
    """From now on `rate` of 10,000 packets to a host are lost."""
    on(host, ["ip", "link", "set", "dev", netns.LINK, "gso_max_size", str(mtu)])
    on(host, ["nft", "-f", "-"], RULES.format(link=netns.LINK, rate=rate))


def dropped(host):
    """Packets dropped on their way to a host."""
    found = re.search(r"counter packets (\d+)", on(host, ["nft", "list", "table", "inet", "loss"]))
    return int(found[1]) if found else 0
