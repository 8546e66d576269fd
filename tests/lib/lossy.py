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
        iifname {link} meta l4proto udp numgen random mod 10000 < {rate} counter drop
        iifname {link} {tcp} numgen random mod 10000 < {rate} counter drop
    }}
}}
"""
TCP, ESTABLISHED_TCP = "meta l4proto tcp", "tcp flags & syn == 0"


def on(host, argv, text=None):
    """Runs a command in a host's network namespace; its output."""
    done = subprocess.run(["ip", "netns", "exec", host.netns, *argv], input=text, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise netns.SetupError(f"{' '.join(argv)}: {done.stdout.strip()}")
    return done.stdout


def lose(host, rate, mtu, handshakes=True):
    """From now on `rate` of 10,000 packets to a host are lost.

    Without `handshakes` those of TCP's are not among them. The kernel repeats a SYN after a second,
    and some wait for a shorter time.
    """
    on(host, ["ip", "link", "set", "dev", netns.LINK, "gso_max_size", str(mtu)])
    tcp = TCP if handshakes else ESTABLISHED_TCP
    on(host, ["nft", "-f", "-"], RULES.format(link=netns.LINK, rate=rate, tcp=tcp))


def dropped(host):
    """Packets dropped on their way to a host."""
    listed = on(host, ["nft", "list", "table", "inet", "loss"])
    return sum(int(number) for number in re.findall(r"counter packets (\d+)", listed))
