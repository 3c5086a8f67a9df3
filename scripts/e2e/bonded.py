"""The gateway's Ethernet port is a bond of two interfaces of the kernel, of which one carries the traffic. Their drivers do not tell a
bond of DPDK 22.11 that a link is gone; the gateway does it in their place.

    eth0 (bridge) ──┬── w0 ─ wire ─ dtap0 ──┬── net_bonding0 ─ gateway
                    └── w1 ─ wire ─ dtap1 ──┘

Or both carry it, as LACP says: dpdk-testpmd's bond is the switch.

    eth0 ── h0 ─ testpmd ─ net_bonding0 ──┬── p0 ─ w0 ──┬── net_bonding0 ─ gateway
                                          └── p1 ─ w1 ──┘
"""

import json
import shutil
import socket
import sys
import time
from pathlib import Path

from checks.laboratory import Laboratory, Pulse, in_laboratory, left_out, socket_in, stopped
from checks.meanwhile import meanwhile
from stage.lab import ETH, ETH_IP, GW, IB, IB_IP, PREFIX
from stage.programs import Process, run
from stage.traffic import ping

MEMBERS = (0, 1)
SWITCH = "gwdemo-lacp"
# Of LACPDUs (IEEE 802.1AX 6.4.2.3): aggregation, synchronization, collecting, distributing.
SLOW, TOGETHER = 0x8809, 0x3c
# Seconds that a cable is out, shorter than it takes LACP to notice where no driver does.
OUT = 2


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
            self.wait_for("a wire", lambda wire=wire: "ready" in wire.text(), 30)

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


class Lacp:
    """The last LACPDU that came to an interface."""

    def __init__(self, netns, dev):
        self.socket = socket_in(netns, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(SLOW))
        self.socket.bind((dev, SLOW))
        self.socket.setblocking(False)
        self.last = None

    def look(self):
        """Actor's system and state, partner's system and state."""
        try:
            while (frame := self.socket.recv(2048))[14:16] == b"\x01\x01":
                self.last = (frame[20:26], frame[32], frame[40:46], frame[52])
        except BlockingIOError:
            pass
        return self.last


class BondedLacp(Bonded):
    """Both members carry traffic, by the flow's hash, as long as LACP's partner is there."""

    vdev = "net_af_packet0,iface=w0"
    vdevs = ("net_af_packet1,iface=w1", "net_bonding0,mode=4,xmit_policy=l34,slave=net_af_packet0,slave=net_af_packet1")

    def namespaces_up(self):
        for name in (ETH, GW, IB, SWITCH):
            self.namespace(name)
        for n in MEMBERS:
            self.cable(SWITCH, f"p{n}", GW, f"w{n}")
        self.cable(ETH, "eth0", SWITCH, "h0")
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=ETH)
        self.heard = [Lacp(SWITCH, f"p{n}") for n in MEMBERS]
        members = [word for n in MEMBERS for word in ("--vdev", f"net_af_packet{n},iface=p{n}")]
        line = ["dpdk-testpmd", "-l", "0-1", "--no-pci", "--no-huge", "--no-shconf", "-m", "512", "--no-telemetry",
                "--file-prefix", "gwlacp", *members, "--vdev", "net_af_packet2,iface=h0",
                "--vdev", "net_bonding0,mode=4,slave=net_af_packet0,slave=net_af_packet1",
                "--", "--portmask=0xc", "--total-num-mbufs=16384", "--forward-mode=io", "--auto-start", "--stats-period=3600"]
        self.processes.append(Process("testpmd", line, SWITCH, self.dir / "testpmd.log"))

    def hugepages_up(self):
        """Ordinary pages: the bond's own pools are made at the start, and DPDK ends the program where there is no memory for them."""
        return ["--no-huge", "--no-shconf", "-m", "512"]

    def wires(self):
        """They are cables themselves."""

    def pull(self, n, how="down"):
        run("ip", "link", "set", f"p{n}", how, netns=SWITCH)

    def together(self):
        """The gateway's LACPDUs say on both cables that it and one and the same partner collect and distribute."""
        heard = [lacp.look() for lacp in self.heard]
        return None not in heard and all(state & partner_state & TOGETHER == TOGETHER for _, state, _, partner_state in heard) and len(
            {(system, partner) for system, _, partner, _ in heard}) == 1

    def sent(self):
        """Frames that went out by each member."""
        links = [json.loads(run("ip", "-s", "-j", "link", "show", f"w{n}", netns=GW).stdout)[0] for n in MEMBERS]
        return [link["stats64"]["tx"]["packets"] for link in links]


def all_out_and_back(lab):
    """Without any member the port is down; with them it is up, and carries packets."""
    for n in MEMBERS:
        lab.pull(n)
    lab.wait_for("the port to be down", lambda: lab.ctl("links")["ethernet"]["link"] == "down", 20)
    for n in MEMBERS:
        lab.pull(n, "up")
    lab.wait_for("the port to be up again", lambda: lab.link_up() and lab.ctl("links")["ethernet"]["link"] == "up", 30)
    lab.wait_for("a packet", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 30)


def check_together(lab):
    """LACP makes one of two cables with DPDK's own bond at their other end, and flows go by either."""
    begin = time.monotonic()

    def together():
        # testpmd sends its bond's own frames only with those that it forwards.
        ping(ETH, IB_IP, 56, count=3, interval=0.1, wait=1)
        return lab.together()

    lab.wait_for("the gateway and its partner to aggregate both cables", together, 60)
    seconds = round(time.monotonic() - begin, 1)
    cold = check_cold(lab)
    before = lab.sent()
    with socket_in(IB, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for port in range(7100, 7164):
            sender.sendto(b"flow", (ETH_IP, port))
            time.sleep(0.002)
    flows = []

    def all_out():
        flows[:] = [after - was for was, after in zip(before, lab.sent())]
        return sum(flows) >= 64

    lab.wait_for("the flows to go out", all_out, 10)
    return {"ok": cold["ok"] and min(flows) >= 8 and sum(flows) >= 64, "seconds": seconds, "cold": cold, "flows_by_member": flows}


def check_members(lab):
    """Each cable is pulled for a moment and put back: what it carries is lost for as long, TCP goes on, and then nothing is missing."""
    def act():
        for n in MEMBERS:
            lab.pull(n)
            time.sleep(OUT)
            lab.pull(n, "up")
            time.sleep(OUT)

    result = meanwhile(lab, act, 10)
    after = ping(ETH, IB_IP, 56, count=20)
    all_out_and_back(lab)
    # TCP's own timer is what it waits for at last.
    return {**result, "ok": result["ok"] and result["outage"] < OUT + 2 and after["ok"], "after": after["received"]}


def check_cold(_):
    """One packet each way, from cold."""
    for netns in (ETH, IB):
        # What was asked while the port was not yet up ends unanswered, and the packets that wait for it with it.
        run("ip", "neigh", "flush", "all", netns=netns)
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

    pulse = Pulse(lambda: [process.popen.pid for process in lab.processes])
    result = meanwhile(lab, act, 10)
    # Twice half a second, until the gateway looks at its ports, and as long again.
    of_the_machine = 2 * pulse.stop()
    all_out_and_back(lab)
    times = lab.gateway.text().count("its active link is gone")
    return {**result, "ok": result["ok"] and result["outage"] < 2 + of_the_machine and times >= 2, "times": times,
            "of_the_machine": round(of_the_machine, 2)}


def bonded(args, checks):
    for suffix, make in (("", Bonded), ("_veth", BondedVeth)):
        in_laboratory(make, args, checks, (
            (f"ports_bond{suffix}_cold", check_cold),
            (f"ports_bond{suffix}_spare_fails", check_spare),
            (f"ports_bond{suffix}_active_fails", check_active),
            (f"ports_bond{suffix}_stop_no_leak", stopped),
        ))
    lacp = (("ports_bond_lacp_together", check_together), ("ports_bond_lacp_members_fail", check_members),
            ("ports_bond_lacp_stop_no_leak", stopped))
    if shutil.which("dpdk-testpmd"):
        in_laboratory(BondedLacp, args, checks, lacp)
    else:
        for name, _ in lacp:
            checks.run(name, lambda: left_out("there is no dpdk-testpmd here"))
