"""A gateway that starts to forward without knowing any host: hosts whose neighbor entries name another gateway are reached again.

The hosts are silent: none of them sends a packet between the old gateway's end and the ping.
"""

import json

import pytest
from testbed.pair import NAMES, PatientPair
from testbed.pings import back_within
from testbed.programs import run
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# What the gateway promises: seconds until silent hosts are reached.
PROMISE = 3.0
# A neighbor entry of the Ethernet host is not verified for so long that no test waits for it.
AGELESS_MS = 24 * 3600 * 1000


class ColdPair(PatientPair):
    """A pair; the neighbor entries of the Ethernet host do not age."""

    def namespaces_up(self):
        super().namespaces_up()
        run("sysctl", "-qw", f"net.ipv4.neigh.eth0.base_reachable_time_ms={AGELESS_MS}", netns=self.eth)

    def up(self):
        super().up()
        assert ping(self.ib, ETH_IP, 56)["ok"]

    def neighbor(self):
        """The hardware address at which the Ethernet host has the InfiniBand host."""
        [entry] = json.loads(run("ip", "-json", "neigh", "show", IB_IP, "dev", "eth0", netns=self.eth).stdout)
        return entry["lladdr"]

    def take_over_cold(self):
        """Both gateways are killed; the one that stood by starts again and forwards. Returns the neighbor entry of before."""
        forwarder, other = self.wait_settled()
        before = self.neighbor()
        # The entry is in use: it is not verified before it ages.
        run("ip", "neigh", "change", IB_IP, "lladdr", before, "dev", "eth0", "nud", "reachable", netns=self.eth)
        for name in NAMES:
            self.kill(self.gateways[name])
        self.start_one(other)
        self.wait_role(other, "forwarding")
        return before


@pytest.fixture
def pair(start):
    return start(ColdPair)


@pytest.mark.core
def test_silent_hosts_are_reached(pair):
    before = pair.take_over_cold()
    pair.wait_for("a ping to the InfiniBand host", lambda: ping(pair.eth, IB_IP, 56, count=1)["ok"])
    assert pair.neighbor() != before
    pair.wait_for("a ping to the Ethernet host", lambda: ping(pair.ib, ETH_IP, 56, count=1)["ok"])


@pytest.mark.timing
@pytest.mark.parametrize("side", ["ethernet", "infiniband"])
def test_silent_hosts_are_reached_soon(pair, figures, side):
    """A ping from one side is answered within three seconds after the gateway forwards."""
    pair.take_over_cold()
    netns, target = {"ethernet": (pair.eth, IB_IP), "infiniband": (pair.ib, ETH_IP)}[side]
    seconds = back_within(netns, target)
    figures(seconds=seconds)
    assert seconds < PROMISE


@pytest.mark.timing
def test_cached_hosts_are_reached_soon_after_a_restart(start, figures):
    """A single gateway is restarted: the InfiniBand host has the Ethernet host at a queue pair that is gone."""
    pair = start(ColdPair)
    forwarder, other = pair.wait_settled()
    pair.kill(pair.gateways[other])
    pair.kill(pair.gateways[forwarder])
    pair.start_one(forwarder)
    pair.wait_role(forwarder, "forwarding")
    seconds = back_within(pair.ib, ETH_IP)
    figures(seconds=seconds)
    assert seconds < PROMISE
