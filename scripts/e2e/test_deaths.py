"""The fabric or the gateway is killed or stopped, and comes back."""

import signal
import time

import pytest
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# Seconds within which packets pass again, and then connections are established.
WITHIN = 20


def fabric_stands_still(topology):
    """For about three seconds, with packets in flight."""
    topology.fabric.popen.send_signal(signal.SIGSTOP)
    try:
        assert ping(topology.eth, IB_IP, 56, count=10, interval=0.25, wait=1)["received"] == 0
    finally:
        topology.fabric.popen.send_signal(signal.SIGCONT)


def fabric_dies(topology):
    topology.kill(topology.fabric)
    topology.wait_for("the gateway to notice", lambda: not topology.link_up())
    topology.start_fabric()


def gateway_dies(topology):
    topology.kill(topology.gateway)
    topology.start_gateway()


def recover(topology):
    """Waits for packets in both directions; returns the seconds that it took."""
    begin = time.monotonic()
    for direction, netns, target in (("to InfiniBand", topology.eth, IB_IP), ("to Ethernet", topology.ib, ETH_IP)):
        topology.wait_for(f"a packet {direction}", lambda: ping(netns, target, 56, count=1, wait=1)["ok"])
    return time.monotonic() - begin


def reconnect(topology):
    """Waits for connections in both directions, with packets that need them; returns the seconds that it
    took."""
    begin = time.monotonic()

    def connected():
        for netns, target in ((topology.eth, IB_IP), (topology.ib, ETH_IP)):
            ping(netns, target, 56, count=2, wait=1)
        return topology.ctl("connections").get("established_both_ways")

    topology.wait_for("connections in both directions", connected)
    return time.monotonic() - begin


@pytest.mark.parametrize("fault", [fabric_stands_still, pytest.param(fabric_dies, marks=pytest.mark.core), gateway_dies])
def test_recovery(start, fault):
    topology = start(Topology)
    fault(topology)
    recover(topology)
    reconnect(topology)
    after = ping(topology.eth, IB_IP, 56)
    assert after["ok"], after


@pytest.mark.timing
@pytest.mark.parametrize("fault", [fabric_stands_still, fabric_dies, gateway_dies])
def test_recovery_in_time(start, figures, fault):
    topology = start(Topology)
    fault(topology)
    packets, connections = recover(topology), reconnect(topology)
    figures(packets_after=round(packets, 2), connections_after=round(connections, 2))
    assert packets <= WITHIN
    assert connections <= WITHIN
