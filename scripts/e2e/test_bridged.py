"""Two segments of one gateway whose networks are joined by mistake: by a kernel bridge on Ethernet, and by
one partition on InfiniBand.

    eth0 ── bridge ──┬── gw0 ─ one ─ soft0/1 ──┬── fabric ── ib0
                     └── gw1 ─ two ─ soft0/2 ──┘
"""

import pytest
from testbed.broadcasts import exchange
from testbed.programs import TestbedError, run
from testbed.topology import ETH_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping

pytestmark = pytest.mark.netns

COUNT = 40
NAMES = ("one", "two")
# The gateway's messages about segments that meet.
ALARM = "two: it meets another segment of this gateway on both sides"
SAME_NETWORK = "of this gateway is on the same network on"


class Bridged(Topology):
    """Segments of different subnets, which do not trust each other."""

    vdev, vdevs = "net_af_packet0,iface=gw0", ("net_af_packet1,iface=gw1",)
    captured = True
    addresses = ("10.77.0.254", "10.78.0.254")
    # The roles, and what the log says once the segments have met.
    roles_wanted, message = [["forwarding", "blocked"]], ALARM

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.bridge = f"{self.tag}-bridge"

    def namespaces_up(self):
        for name in (self.eth, self.gw, self.ib, self.bridge):
            self.namespace(name)
        run("ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=self.bridge)
        run("ip", "link", "set", "br0", "up", netns=self.bridge)
        for netns, dev in ((self.eth, "eth0"), (self.gw, "gw0"), (self.gw, "gw1")):
            self.cable(netns, dev, self.bridge, f"to-{dev}")
            run("ip", "link", "set", f"to-{dev}", "master", "br0", netns=self.bridge)
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)

    def fabric_config(self):
        links = "".join(f'\n[[link]]\nname = "port{n}"\nurl = "shm:{self.dir}/{n}.sock"\n' for n in (1, 2))
        return (f'[fabric]\nmtu = {self.fabric_mtu}\n{links}\n[[host]]\nname = "host1"\nnetns = "{self.ib}"\ntun = "ib0"\n'
                f'address = "{IB_IP}/{PREFIX}"\nmtu = 65520\nmode = "connected"\n')

    def gateway_config(self):
        ports = ", ".join(f'{{ link = "shm:{self.dir}/{n}.sock", mtu = {self.fabric_mtu} }}' for n in (1, 2))
        segments = "".join(f'\n[[segment]]\nname = "{name}"\nethernet = "net_af_packet{n}"\nport = {n + 1}\n'
                           f'address = "{address}/{PREFIX}"\n' for n, (name, address) in enumerate(zip(NAMES, self.addresses)))
        return (f'[gateway]\ncontrol-socket = "{self.socket}"\nidle = "sleep"\n\n[infiniband]\ndriver = "soft"\n'
                f'max-connections = 64\nsrq-depth = 256\n\n[infiniband.soft]\nports = [{ports}]\n{segments}')

    def roles(self):
        """The segments' roles, in their order."""
        try:
            return [row["role"] for row in self.ctl("links")["segments"]]
        except TestbedError:
            return []

    def up(self):
        self.start()
        self.wait_hosts()
        self.wait_for("the segments' roles", lambda: self.roles() in self.roles_wanted)
        self.wait_for("the segments to meet", lambda: self.message in self.gateway.text())


class OneSubnet(Bridged):
    """Segments that take each other for two gateways of one segment."""

    addresses = ("10.77.0.254", "10.77.0.253")
    roles_wanted, message = [["forwarding", "standby"], ["standby", "forwarding"]], f"{SAME_NETWORK} Ethernet"


def broadcasts_pass_once(topology):
    """Each broadcast arrives once at the other network and does not come back, and the hosts reach each
    other."""
    at_ib, at_eth, came_back = exchange(topology, COUNT)
    assert at_ib == [1] * COUNT
    assert at_eth == [1] * COUNT
    assert not came_back
    assert first_ping(topology.eth, IB_IP)
    assert first_ping(topology.ib, ETH_IP)


@pytest.mark.core
def test_different_subnets(start):
    """One segment forwards, the other one is blocked with an alarm."""
    topology = start(Bridged)
    broadcasts_pass_once(topology)
    assert topology.roles() == ["forwarding", "blocked"]
    assert "two: role: forwarding" not in topology.gateway.text()
    assert topology.ctl("stats")["alarms"]["loops"] > 0


def test_separated_again(start):
    """Without the bridge both segments forward, though they are still on the same InfiniBand network, which
    the gateway reports."""
    topology = start(Bridged)
    run("ip", "link", "set", "to-gw1", "nomaster", netns=topology.bridge)
    topology.wait_for("both segments to forward", lambda: topology.roles() == ["forwarding", "forwarding"])
    topology.wait_for("the message on InfiniBand", lambda: SAME_NETWORK in topology.gateway.text())
    broadcasts_pass_once(topology)


def test_same_subnet(start):
    """One segment is elected, and the gateway reports that they meet."""
    topology = start(OneSubnet)
    broadcasts_pass_once(topology)
    assert sorted(topology.roles()) == ["forwarding", "standby"]
    assert f"{SAME_NETWORK} Ethernet" in topology.gateway.text()
