"""The gateway's Ethernet port is a bond of two kernel interfaces, of which one carries the traffic.

The drivers do not report to a bond of DPDK 22.11 that a link is down; the gateway does it for them.

    eth0 (bridge) ──┬── w0 ─ wire ─ dtap0 ──┬── net_bonding0 ─ gateway
                    └── w1 ─ wire ─ dtap1 ──┘

Or both carry it, as LACP decides: the bond of dpdk-testpmd is the switch.

    eth0 ── h0 ─ testpmd ─ net_bonding0 ──┬── p0 ─ w0 ──┬── net_bonding0 ─ gateway
                                          └── p1 ─ w1 ──┘
"""

import json
import socket

from testbed import wire
from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP, PREFIX, Topology
from testbed.traffic import ping

MEMBERS = (0, 1)
# The EtherType of slow protocols, and their packet socket's protocol.
SLOW, ETH_P_SLOW = 0x8809, socket.htons(0x8809)
# State bits of a LACPDU (IEEE 802.1AX 6.4.2.3): aggregation, synchronization, collecting, distributing.
AGGREGATED = 0x3C


class Bond(Topology):
    """Members on TAP devices."""

    vdev = "net_tap0,iface=dtap0"
    vdevs = ("net_tap1,iface=dtap1", "net_bonding0,mode=1,slave=net_tap0,slave=net_tap1")
    port = "net_bonding0"

    def namespaces_up(self):
        for name in (self.eth, self.gw, self.ib):
            self.namespace(name)
        run("ip", "link", "add", "eth0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=self.eth)
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)
        run("ip", "link", "set", "eth0", "up", netns=self.eth)
        for n in MEMBERS:
            self.cable(self.eth, f"p{n}", self.gw, f"w{n}")
            run("ip", "link", "set", f"p{n}", "master", "eth0", netns=self.eth)

    def gateway_config(self):
        return super().gateway_config().replace(f'port = "{self.vdev.split(",")[0]}"', f'port = "{self.port}"')

    def up(self):
        self.start()
        self.wait_for("the InfiniBand link", self.link_up)
        self.wait_hosts()
        self.wires()

    def wires(self):
        for n in MEMBERS:
            wire.start(self, self.gw, f"w{n}", f"dtap{n}")

    def set_cable(self, n, state):
        """Unplugs a member's cable at both ends ("down"), or plugs it in ("up")."""
        run("ip", "link", "set", f"dtap{n}", state, netns=self.gw)
        run("ip", "link", "set", f"p{n}", state, netns=self.eth)

    def changes(self):
        """How often the gateway has reported that traffic moved to the other member."""
        return self.gateway.text().count("its active link is gone")

    def wait_port(self, state):
        """Waits until the bond's link is up or down."""
        self.wait_for(f"the port to be {state}", lambda: self.ctl("links")["ethernet"]["link"] == state)

    def wait_packet(self):
        """Waits for a packet in each direction through the bond."""
        self.wait_for("the gateway's links", self.link_up)
        for netns, target in ((self.eth, IB_IP), (self.ib, ETH_IP)):
            self.wait_for(f"a packet from {netns}", lambda n=netns, t=target: ping(n, t, 56, count=1)["ok"])


class BondOfVeths(Bond):
    """Members on interfaces that exist already."""

    vdev = "net_af_packet0,iface=w0"
    vdevs = ("net_af_packet1,iface=w1", "net_bonding0,mode=1,slave=net_af_packet0,slave=net_af_packet1")

    def wires(self):
        """The members are cables themselves."""

    def set_cable(self, n, state):
        run("ip", "link", "set", f"p{n}", state, netns=self.eth)


class Lacp:
    """The last LACPDU that has arrived at an interface."""

    def __init__(self, netns, dev):
        self.socket = socket_in(netns, socket.AF_PACKET, socket.SOCK_RAW, ETH_P_SLOW)
        self.socket.bind((dev, SLOW))
        self.socket.setblocking(False)
        self.last = None

    def look(self):
        """Actor's system and state, partner's system and state; None before the first LACPDU."""
        try:
            while (frame := self.socket.recv(2048))[14:16] == b"\x01\x01":
                self.last = (frame[20:26], frame[32], frame[40:46], frame[52])
        except BlockingIOError:
            pass
        return self.last

    def close(self):
        self.socket.close()


class BondByLacp(Bond):
    """Both members carry traffic, by the flow's hash, as long as LACP's partner is there."""

    vdev = "net_af_packet0,iface=w0"
    vdevs = ("net_af_packet1,iface=w1", "net_bonding0,mode=4,xmit_policy=l34,slave=net_af_packet0,slave=net_af_packet1")
    # The bond's own pools are made at the start, and DPDK ends the program where there is no memory for them.
    hugepages_wanted = False

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.switch, self.lacp = f"{self.tag}-lacp", []

    def namespaces_up(self):
        for name in (self.eth, self.gw, self.ib, self.switch):
            self.namespace(name)
        for n in MEMBERS:
            self.cable(self.switch, f"p{n}", self.gw, f"w{n}")
        self.cable(self.eth, "eth0", self.switch, "h0")
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)
        self.lacp = [Lacp(self.switch, f"p{n}") for n in MEMBERS]
        members = [word for n in MEMBERS for word in ("--vdev", f"net_af_packet{n},iface=p{n}")]
        self.background("testpmd", ["dpdk-testpmd", "-l", "0-1", "--no-pci", "--no-huge", "--no-shconf", "-m", "512", "--no-telemetry",
                                    "--file-prefix", f"{self.tag}-lacp", *members, "--vdev", "net_af_packet2,iface=h0",
                                    "--vdev", "net_bonding0,mode=4,slave=net_af_packet0,slave=net_af_packet1",
                                    "--", "--portmask=0xc", "--total-num-mbufs=16384", "--forward-mode=io", "--auto-start",
                                    "--stats-period=3600"], self.switch)

    def up(self):
        super().up()
        self.wait_for("the gateway and its partner to aggregate both cables", self.aggregated)
        self.wait_packet()

    def close(self):
        for lacp in self.lacp:
            lacp.close()
        super().close()

    def wires(self):
        """The members are cables themselves."""

    def set_cable(self, n, state):
        run("ip", "link", "set", f"p{n}", state, netns=self.switch)

    def aggregated(self):
        """Whether the gateway's LACPDUs say on both cables that it and one and the same partner collect and
        distribute."""
        # testpmd sends its bond's LACPDUs only when it forwards packets.
        ping(self.eth, IB_IP, 56, count=3, interval=0.1, wait=1)
        seen = [lacp.look() for lacp in self.lacp]
        return (None not in seen and all(state & partner_state & AGGREGATED == AGGREGATED for _, state, _, partner_state in seen)
                and len({(system, partner) for system, _, partner, _ in seen}) == 1)

    def sent(self):
        """Packets that were sent by each member."""
        links = [json.loads(run("ip", "-s", "-j", "link", "show", f"w{n}", netns=self.gw).stdout)[0] for n in MEMBERS]
        return [link["stats64"]["tx"]["packets"] for link in links]
