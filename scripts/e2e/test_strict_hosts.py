"""Hosts that answer only some ARP requests, as Linux does with rp_filter and arp_ignore: each is reached from
the other side.

The hosts have no route but that of their own subnet. In one case the gateway has an address there, in the
other one it has none.
"""

import itertools
import socket
import time

import pytest
from testbed.neighbour import FabricHosts
from testbed.pings import Pings
from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import GW_IP, PREFIX, Topology
from testbed.traffic import first_ping

pytestmark = pytest.mark.netns

# Checks of hosts about the sender of a request, and about its target.
RP_FILTERS, ARP_IGNORES = (1, 2), (0, 1, 2, 3)
SUBNETS = ("10.77.0", "10.78.0")
IB_HOST, SIMULATED = 2, 50
# Seconds after which the gateway has verified its entry of a host again.
CONFIRMED = 40
# Seconds without an answer at the end of that time.
GAP = 3


class Strict(Topology):
    """An Ethernet host for each pair of settings, at one switch, and an InfiniBand host.

    No packet has been sent when the test begins.
    """

    subnet, intruder = SUBNETS[1], True

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        pairs = itertools.product(RP_FILTERS, ARP_IGNORES)
        self.strict = {f"{self.eth}-{rp}{ignore}": (rp, ignore, f"{self.subnet}.{10 * rp + ignore}") for rp, ignore in pairs}

    def namespaces_up(self):
        for name in (self.eth, self.gw, self.ib, *self.strict):
            self.namespace(name)
        self.switch((self.gw, "gw0"), *((name, "eth0") for name in self.strict))
        for name, (rp, ignore, address) in self.strict.items():
            for interface in ("all", "default", "eth0"):
                settings = {"rp_filter": rp, "arp_ignore": ignore}
                run("sysctl", "-qw", *(f"net.ipv4.conf.{interface}.{key}={value}" for key, value in settings.items()), netns=name)
            run("ip", "addr", "add", f"{address}/{PREFIX}", "dev", "eth0", netns=name)

    def fabric_config(self):
        return super().fabric_config().replace(f"10.77.0.{IB_HOST}/{PREFIX}", f"{self.subnet}.{IB_HOST}/{PREFIX}")

    def gateway_config(self):
        segment = f'[[segment]]\nname = "one"\npkey = 0xffff\naddress = "{GW_IP}/{PREFIX}"\nsubnets = ["{SUBNETS[1]}.0/{PREFIX}"]\n'
        return super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "") + segment

    def up(self):
        self.start()
        self.wait_hosts()
        self.wait_for("the gateway to forward", self.link_up)


class StrictInfiniBand(FabricHosts):
    """An InfiniBand host that answers requests of its own subnet only, and those without a sender address."""

    def take_datagram(self, host, source, payload):
        is_request = payload[:2] == b"\x08\x06" and payload[10:12] == b"\0\1"
        if is_request and payload[32:35] not in (bytes(3), socket.inet_aton(self.addresses[0])[:3]):
            return
        super().take_datagram(host, source, payload)

    def arrived(self):
        return self.datagrams[0] + self.messages[0]


SUBNETS_IN_CORE = [SUBNETS[0], pytest.param(SUBNETS[1], marks=pytest.mark.core)]


@pytest.mark.parametrize("subnet", SUBNETS_IN_CORE)
def test_first_ping_to_strict_ethernet_hosts(start, subnet):
    topology = start(Strict, subnet=subnet)
    lost = [(rp, ignore) for rp, ignore, address in topology.strict.values() if not first_ping(topology.ib, address)]
    assert not lost, f"rp_filter, arp_ignore: {lost}"


@pytest.mark.parametrize("subnet", SUBNETS)
def test_first_ping_from_strict_ethernet_hosts(start, subnet):
    topology = start(Strict, subnet=subnet)
    lost = [(rp, ignore) for name, (rp, ignore, _) in topology.strict.items() if not first_ping(name, f"{subnet}.{IB_HOST}")]
    assert not lost, f"rp_filter, arp_ignore: {lost}"


@pytest.mark.parametrize("subnet", SUBNETS_IN_CORE)
def test_first_packet_to_a_strict_infiniband_host(start, subnet):
    topology = start(Strict, subnet=subnet)
    with StrictInfiniBand(topology, [f"{subnet}.{SIMULATED}"]) as host, \
            socket_in(next(iter(topology.strict)), socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"first", (f"{subnet}.{SIMULATED}", 9999))
        topology.wait_for("the first packet", host.arrived)


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("subnet", SUBNETS)
def test_strict_hosts_stay_reachable(start, figures, subnet):
    """The gateway verifies what it knows of a host from time to time: packets go on after that, each way."""
    topology = start(Strict, subnet=subnet)
    flows = {f"to {rp}{ignore}": Pings(topology.ib, address, 0.5, topology.dir / f"to-{rp}{ignore}.log")
             for rp, ignore, address in topology.strict.values()}
    target = f"{subnet}.{SIMULATED}"
    with StrictInfiniBand(topology, [target]) as host, socket_in(next(iter(topology.strict)), socket.AF_INET, socket.SOCK_DGRAM) as sender:
        try:
            end = time.monotonic() + CONFIRMED
            while time.monotonic() < end:
                sender.sendto(b"flow", (target, 9999))
                time.sleep(0.5)
            before = host.arrived()
            sender.sendto(b"last", (target, 9999))
            topology.wait_for("a packet after the confirmation", lambda: host.arrived() > before, seconds=GAP)
            for flow in flows.values():
                flow.wait_answers(seconds=GAP)
            lost = {name: flow.end()["lost"] for name, flow in flows.items()}
        finally:
            for flow in flows.values():
                flow.stop()
    figures(lost=lost)
    assert not any(lost.values()), lost
