"""Hosts beyond a router of either side: the gateway's routes, with real routers at both ends."""

import re

import pytest
from testbed.programs import run
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import LATE, first_ping, grown, ping

pytestmark = pytest.mark.netns

# The network behind the Ethernet host, which routes for it, and that behind the InfiniBand host.
ETH_NET, FAR_ETH_IP, ETH_ROUTER = "10.88.0.0/24", "10.88.0.2", "10.88.0.1"
IB_NET, FAR_IB_IP, IB_ROUTER = "10.99.0.0/24", "10.99.0.2", "10.99.0.1"


class Routers(Topology):
    """A network behind each host. No host knows another one when it is up."""

    captured = True

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.far_eth, self.far_ib = f"{self.tag}-eth2", f"{self.tag}-ib2"

    def fabric_config(self):
        # The host's interface is a TUN device: the fabric must know its next hop.
        return super().fabric_config() + f'gateway = "{ETH_IP}"\n'

    def gateway_config(self):
        text = super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "")
        return text + f"""
[[segment]]
address = "{GW_IP}/{PREFIX}"
[[segment.route]]
to = "{ETH_NET}"
via = "{ETH_IP}"
[[segment.route]]
to = "{IB_NET}"
via = "{IB_IP}"
"""

    def namespaces_up(self):
        super().namespaces_up()
        for far in (self.far_eth, self.far_ib):
            self.namespace(far)
        for near, far, router, host in ((self.eth, self.far_eth, ETH_ROUTER, FAR_ETH_IP), (self.ib, self.far_ib, IB_ROUTER, FAR_IB_IP)):
            run("sysctl", "-qw", "net.ipv4.ip_forward=1", netns=near)
            run("ip", "link", "add", "far0", "netns", near, "type", "veth", "peer", "name", "near0", "netns", far)
            run("ip", "addr", "add", f"{router}/24", "dev", "far0", netns=near)
            run("ip", "link", "set", "far0", "up", netns=near)
            run("ip", "addr", "add", f"{host}/24", "dev", "near0", netns=far)
            run("ip", "link", "set", "near0", "up", netns=far)
            run("ip", "route", "add", "default", "via", router, netns=far)

    def up(self):
        self.start()
        self.wait_for("the InfiniBand link", self.link_up)
        self.wait_hosts()
        run("ip", "route", "add", IB_NET, "via", IB_IP, netns=self.eth)
        run("ip", "route", "add", ETH_NET, "via", ETH_IP, netns=self.ib)


# The first packets, without a second attempt: the gateway knows neither router.
def test_first_packet_to_infiniband(start):
    assert first_ping(start(Routers).far_eth, FAR_IB_IP)


def test_first_packet_to_ethernet(start):
    assert first_ping(start(Routers).far_ib, FAR_ETH_IP)


@pytest.mark.core
def test_pings_between_routed_networks(start):
    topology = start(Routers)
    to_infiniband = ping(topology.far_eth, FAR_IB_IP, 1400)
    assert to_infiniband["ok"], to_infiniband
    to_ethernet = ping(topology.far_ib, FAR_ETH_IP, 1400)
    assert to_ethernet["ok"], to_ethernet


def test_too_big_is_answered_beyond_a_router(start):
    topology = start(Routers)
    out = run("ping", "-n", "-c", 3, "-i", "0.3", "-W", LATE, "-M", "do", "-s", 3000, FAR_ETH_IP, netns=topology.ib, check=False)
    assert re.findall(r"mtu ?=? ?(\d+)", out.stdout + out.stderr)[:1] == ["1500"], out.stdout + out.stderr


def test_destination_without_a_route(start):
    """The gateway drops the packet, and counts it."""
    topology = start(Routers)
    before = topology.drops()
    run("ip", "route", "add", "10.111.0.0/24", "via", IB_IP, netns=topology.eth)
    assert not ping(topology.eth, "10.111.0.9", 56, count=1, wait=1)["ok"]
    topology.wait_for("the drop", lambda: grown(topology.drops(), before).get("off-subnet", 0) >= 1)
