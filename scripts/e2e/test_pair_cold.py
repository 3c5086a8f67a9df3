"""A gateway that starts to forward without knowing any host: hosts whose neighbor entries name another
gateway are reached again.

The hosts are silent: none of them sends a packet between the old gateway's end and the ping.
"""

import json
import sys
import time

import pytest
from testbed import tagger
from testbed.pair import NAMES, OWN, PatientPair
from testbed.pings import back_within
from testbed.programs import TestbedError, run
from testbed.topology import ETH_IP, IB_IP, PREFIX
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# Promised by the gateway: seconds until silent hosts are reached.
PROMISE = 3.0
# A neighbor entry of the Ethernet host is not verified for so long that no test waits for it.
AGELESS_MS = 24 * 3600 * 1000


class ColdPair(PatientPair):
    """A pair; the neighbor entries of the Ethernet hosts do not age."""

    eth_ip, ib_ip = ETH_IP, IB_IP

    def networks(self):
        """The network namespaces of the hosts of each segment: Ethernet, InfiniBand."""
        return [(self.eth, self.ib)]

    def up(self):
        self.start()
        self.wait_settled()
        for eth, ib in self.networks():
            run("sysctl", "-qw", f"net.ipv4.neigh.eth0.base_reachable_time_ms={AGELESS_MS}", netns=eth)
            for netns, target in ((eth, self.ib_ip), (ib, self.eth_ip)):
                self.wait_for(f"a ping to {target}", lambda netns=netns, target=target: ping(netns, target, 56, count=1)["ok"])

    def neighbors(self):
        """The hardware addresses at which the Ethernet hosts have the InfiniBand hosts."""
        shown = [run("ip", "-json", "neigh", "show", self.ib_ip, "dev", "eth0", netns=eth).stdout for eth, _ in self.networks()]
        return [json.loads(entries)[0]["lladdr"] for entries in shown]

    def forwards_alone(self, name):
        return self.role(name) == "forwarding"

    def take_over_cold(self, in_order=False):
        """Both gateways exit, and the standby starts again and forwards.

        The standby is killed. The other gateway is killed or, with `in_order`, stopped after that. Returns
        the neighbor entries of before.
        """
        forwarder, other = self.wait_settled()
        before = self.neighbors()
        for lladdr, (eth, _) in zip(before, self.networks()):
            # The entry is in use: it is not verified before it ages.
            run("ip", "neigh", "change", self.ib_ip, "lladdr", lladdr, "dev", "eth0", "nud", "reachable", netns=eth)
        self.kill(self.gateways[other])
        if in_order:
            process = self.gateways[forwarder]
            self.forget(process)
            assert process.stop() == 0, process.text()[-4000:]
        else:
            self.kill(self.gateways[forwarder])
        self.start_one(other)
        self.wait_for(f"gateway {other} to forward", lambda: self.forwards_alone(other))
        return before


class WithoutKey(ColdPair):
    pair_key = None


class SecondSubnet(ColdPair):
    """The hosts are in a subnet in which the gateways have no address."""

    eth_ip, ib_ip = "10.78.0.1", "10.78.0.2"

    def namespaces_up(self):
        super().namespaces_up()
        run("ip", "addr", "del", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)
        run("ip", "addr", "add", f"{self.eth_ip}/{PREFIX}", "dev", "eth0", netns=self.eth)

    def fabric_config(self):
        return super().fabric_config().replace(f'"{IB_IP}/', f'"{self.ib_ip}/')

    def segments(self, name):
        return f'\n[[segment]]\nname = "one"\npkey = 0xffff\naddress = "{OWN[name]}/{PREFIX}"\nsubnets = ["10.78.0.0/{PREFIX}"]\n'


class SpreadSegments(ColdPair):
    """Two segments, one of them a VLAN, with hosts of the same addresses.

    Each gateway is the preferred one of another segment.
    """

    # Name, P_Key, VLAN, and the preferred gateway.
    rows = (("office", 0xFFFF, 0, "a"), ("storage", 0x8064, 100, "b"))

    def networks(self):
        return [(self.eth, self.ib), (f"{self.eth}-vlan", f"{self.ib}-vlan")]

    def namespaces_up(self):
        super().namespaces_up()
        eth, ib = self.networks()[1]
        self.namespace(eth)
        self.namespace(ib)
        line = [sys.executable, tagger.__file__, "eth0", 100, eth, f"{ETH_IP}/{PREFIX}"]
        process = self.background("tagger", line, self.eth)
        self.wait_for("the host of the VLAN", lambda: "ready" in process.text())

    def fabric_config(self):
        members = ", ".join(f'"{name}"' for name in ("gateway-a", "gateway-b", "storage"))
        return super().fabric_config() + f"""
[[partition]]
name = "office"
pkey = 0xffff
members = ["all"]

[[partition]]
name = "storage"
pkey = 0x8064
members = [{members}]

[[host]]
name = "storage"
netns = "{self.networks()[1][1]}"
tun = "ib0"
pkey = 0x8064
address = "{IB_IP}/{PREFIX}"
mtu = 65520
mode = "connected"
"""

    def segments(self, name):
        return "".join(f'\n[[segment]]\nname = "{segment}"\npkey = {pkey:#x}\naddress = "{OWN[name]}/{PREFIX}"\n'
                       f"priority = {200 if name == preferred else 100}\n" + (f"vlan = {vlan}\n" if vlan else "")
                       for segment, pkey, vlan, preferred in self.rows)

    def roles(self, name):
        try:
            return [row["role"] for row in self.answer_of(name, "links")["segments"]]
        except (TestbedError, ValueError, KeyError):
            return []

    def wait_settled(self, forwarder=None):
        wanted = {"a": ["forwarding", "standby"], "b": ["standby", "forwarding"]}
        self.wait_for("each gateway to forward one segment", lambda: {name: self.roles(name) for name in NAMES} == wanted)
        return NAMES

    def forwards_alone(self, name):
        return self.roles(name) == ["forwarding", "forwarding"]


KINDS = [ColdPair, SecondSubnet, WithoutKey, SpreadSegments]
IN_CORE, OTHERS = [pytest.param(kind, marks=pytest.mark.core) for kind in KINDS[:2]], KINDS[2:]


@pytest.mark.parametrize("kind", IN_CORE + OTHERS)
def test_silent_hosts_are_reached(start, kind):
    reach_silent_hosts(start(kind))


@pytest.mark.core
def test_silent_hosts_are_reached_after_a_stop(start):
    """The only gateway is stopped in order, and another one is started."""
    reach_silent_hosts(start(ColdPair), in_order=True)


def reach_silent_hosts(pair, **how):
    before = pair.take_over_cold(**how)
    for eth, ib in pair.networks():
        pair.wait_for("a ping to the InfiniBand host", lambda eth=eth: ping(eth, pair.ib_ip, 56, count=1)["ok"])
        pair.wait_for("a ping to the Ethernet host", lambda ib=ib: ping(ib, pair.eth_ip, 56, count=1)["ok"])
    # Another gateway is there now, but for the segments which this one forwarded before.
    assert any(now != then for now, then in zip(pair.neighbors(), before))


@pytest.mark.timing
@pytest.mark.parametrize("side", ["ethernet", "infiniband"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("in_order", [False, True], ids=["killed", "stopped"])
def test_silent_hosts_are_reached_soon(start, figures, kind, side, in_order):
    """A ping from one side is answered within three seconds after the gateway forwards."""
    pair = start(kind)
    pair.take_over_cold(in_order)
    begin, seconds = time.monotonic(), []
    for eth, ib in pair.networks():
        netns, target = {"ethernet": (eth, pair.ib_ip), "infiniband": (ib, pair.eth_ip)}[side]
        back_within(netns, target)
        seconds.append(round(time.monotonic() - begin, 2))
    figures(seconds=seconds)
    assert max(seconds) < PROMISE


@pytest.mark.timing
def test_cached_hosts_are_reached_soon_after_a_restart(start, figures):
    """A single gateway is restarted: the InfiniBand host has the Ethernet host at a queue pair that is
    gone."""
    pair = start(ColdPair)
    forwarder, other = pair.wait_settled()
    pair.kill(pair.gateways[other])
    pair.kill(pair.gateways[forwarder])
    pair.start_one(forwarder)
    pair.wait_role(forwarder, "forwarding")
    seconds = back_within(pair.ib, ETH_IP)
    figures(seconds=seconds)
    assert seconds < PROMISE
