"""The gateway's Ethernet port is a bond of two interfaces of the kernel, of which one carries the traffic. Their drivers do not tell a
bond of DPDK 22.11 that a link is gone; the gateway does it in their place.

    eth0 (bridge) ──┬── w0 ─ wire ─ dtap0 ──┬── net_bonding0 ─ gateway
                    └── w1 ─ wire ─ dtap1 ──┘
"""

import sys
import time
from pathlib import Path

from checks.laboratory import Laboratory, in_laboratory, stopped
from checks.meanwhile import meanwhile
from demo import ETH, ETH_IP, GW, IB, IB_IP, PREFIX, Process, ping, run

MEMBERS = (0, 1)


class Bonded(Laboratory):
    vdev = "net_tap0,iface=dtap0"
    vdevs = ("net_tap1,iface=dtap1", "net_bonding0,mode=1,slave=net_tap0,slave=net_tap1")
    port = "net_bonding0"

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def namespaces_up(self):
        for name in (ETH, GW, IB):
            self.namespace(name)
        run("ip", "link", "add", "eth0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=ETH)
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=ETH)
        run("ip", "link", "set", "eth0", "up", netns=ETH)
        for n in MEMBERS:
            self.cable(ETH, f"p{n}", GW, f"w{n}")
            run("ip", "link", "set", f"p{n}", "master", "eth0", netns=ETH)

    def gateway_config(self):
        return super().gateway_config().replace(f'port = "{self.vdev.split(",")[0]}"', f'port = "{self.port}"')

    def up(self):
        self.start()
        self.wait_for("the InfiniBand link", self.link_up, 20)
        self.wires()

    def wires(self):
        for n in MEMBERS:
            wire = Process(f"wire {n}", [sys.executable, Path(__file__).parent / "wire.py", f"w{n}", f"dtap{n}"], GW,
                           self.dir / f"wire{n}.log")
            self.processes.append(wire)
            self.wait_for("a wire", lambda wire=wire: "ready" in wire.text(), 5)

    def pull(self, n, how="down"):
        """A member's cable is pulled, at both ends, or put back."""
        run("ip", "link", "set", f"dtap{n}", how, netns=GW)
        run("ip", "link", "set", f"p{n}", how, netns=ETH)


class BondedVeth(Bonded):
    """Members that are interfaces which there are already."""

    vdev = "net_af_packet0,iface=w0"
    vdevs = ("net_af_packet1,iface=w1", "net_bonding0,mode=1,slave=net_af_packet0,slave=net_af_packet1")

    def wires(self):
        """They are cables themselves."""

    def pull(self, n, how="down"):
        run("ip", "link", "set", f"p{n}", how, netns=ETH)


def check_cold(_):
    """One packet each way, from cold."""
    to_ib, back = ping(ETH, IB_IP, 56, count=1, wait=3), ping(IB, ETH_IP, 56, count=1, wait=3)
    return {"ok": to_ib["ok"] and back["ok"], "to_infiniband": to_ib["received"], "to_ethernet": back["received"]}


def check_spare(lab):
    """The member that does not carry the traffic is pulled and put back: TCP goes on and no ping is lost."""
    def act():
        lab.pull(1)
        time.sleep(2)
        lab.pull(1, "up")

    result = meanwhile(lab, act)
    return {**result, "ok": result["ok"] and result["lost"] == 0}


def check_active(lab):
    """The member that carries the traffic is pulled, then the other one while the first is back: TCP goes on both times. Without any the
    port is down."""
    def act():
        lab.pull(0)
        time.sleep(2.5)
        lab.pull(0, "up")
        time.sleep(1)
        lab.pull(1)
        time.sleep(2.5)
        lab.pull(1, "up")

    result = meanwhile(lab, act, 10)
    for n in MEMBERS:
        lab.pull(n)
    lab.wait_for("the port to be down", lambda: lab.ctl("links")["ethernet"]["link"] == "down", 5)
    for n in MEMBERS:
        lab.pull(n, "up")
    lab.wait_for("the port to be up again", lambda: lab.link_up() and lab.ctl("links")["ethernet"]["link"] == "up", 10)
    lab.wait_for("a packet", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 10)
    times = lab.gateway.text().count("its active link is gone")
    return {**result, "ok": result["ok"] and result["outage"] < 2 and times >= 2, "times": times}


def bonded(args, checks):
    for suffix, make in (("", Bonded), ("_veth", BondedVeth)):
        in_laboratory(make, args, checks, (
            (f"ports_bond{suffix}_cold", check_cold),
            (f"ports_bond{suffix}_spare_fails", check_spare),
            (f"ports_bond{suffix}_active_fails", check_active),
            (f"ports_bond{suffix}_stop_no_leak", stopped),
        ))
