"""One address on hosts of both sides: its owner keeps its traffic across the gateway, and the gateway names
both."""

import json

import pytest
from testbed.follower import Follower
from testbed.neighbour import FabricHosts
from testbed.programs import run
from testbed.topology import ETH_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping, ping

pytestmark = [pytest.mark.netns, pytest.mark.core]


class Newcomer(Topology):
    """A second Ethernet host, without an address, at a switch with the first one and the gateway; InfiniBand
    hosts of the test's own."""

    intruder = True

    def namespaces_up(self):
        self.second = f"{self.eth}-second"
        for name in (self.eth, self.second, self.gw, self.ib):
            self.namespace(name)
        self.switch((self.gw, "gw0"), (self.eth, "eth0"), (self.second, "eth0"))
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)


def hardware(netns):
    """The MAC address of an Ethernet host."""
    return json.loads(run("ip", "-j", "link", "show", "eth0", netns=netns).stdout)[0]["address"]


def owner(topology, side, address):
    """The link-layer address that the gateway has for an address on a side, or None."""
    return next((n["hardware_address"] for n in topology.ctl("neighbours")[side] if n["address"] == address), None)


def check_dispute(topology, event, address, sides, hardware_addresses):
    """The event, the journal and the counters name the address, its owner and the claimant, with their
    sides."""
    assert event["address"] == address
    said = [(event["side"], event["hardware_address"]), (event["claimant"]["side"], event["claimant"]["hardware_address"])]
    for (side, found), wanted_side, wanted in zip(said, sides, hardware_addresses):
        # The flags in front of an InfiniBand address are as the gateway learnt them.
        assert side == wanted_side and found[-17:] == wanted[-17:], (event, wanted)
    line = next(line for line in topology.gateway.text().splitlines() if f"{address} is claimed by" in line)
    assert "WARN" in line and all(found in line for _, found in said), line
    now = topology.ctl("neighbours")["counters"]["segment"]
    assert now["conflicts"] >= 1 and now["moves"] == 0, now


def pings_pass(topology):
    for netns, target in ((topology.eth, IB_IP), (topology.ib, ETH_IP)):
        topology.wait_for(f"pings to {target}", lambda netns=netns, target=target: ping(netns, target, 56, count=5)["ok"])


def test_address_of_an_infiniband_host_on_ethernet(start):
    """Another Ethernet host gets the InfiniBand host's address by `ip addr add`, and uses it."""
    topology = start(Newcomer)
    assert first_ping(topology.eth, IB_IP)
    before, mac = owner(topology, "infiniband", IB_IP), topology.ctl("links")["ethernet"]["mac"]
    with Follower(topology, "address", "--json") as follower:
        run("ip", "addr", "add", f"{IB_IP}/{PREFIX}", "dev", "eth0", netns=topology.second)
        # Its first packet claims the address. An answer to it may reach either host.
        ping(topology.second, ETH_IP, 56, count=1, wait=1)
        event = next(event for event in follower.events_until("disputed") if event["what"] == "disputed")
    check_dispute(topology, event, IB_IP, ("InfiniBand", "Ethernet"), (before, hardware(topology.second)))
    # The gateway defends the owner on the side of the claim, too.
    topology.wait_for("the Ethernet host to have the owner at the gateway",
                      lambda: f"lladdr {mac} " in run("ip", "neigh", "show", IB_IP, netns=topology.eth).stdout)
    pings_pass(topology)
    assert owner(topology, "infiniband", IB_IP) == before and owner(topology, "ethernet", IB_IP) is None


def test_address_of_an_ethernet_host_on_infiniband(start):
    """Another InfiniBand host comes up with the Ethernet host's address, announces it, and answers for it."""
    topology = start(Newcomer)
    assert first_ping(topology.ib, ETH_IP)
    with Follower(topology, "address", "--json") as follower, FabricHosts(topology, [ETH_IP]) as hosts:
        hosts.ask_all(0, ETH_IP)
        event = next(event for event in follower.events_until("disputed") if event["what"] == "disputed")
        check_dispute(topology, event, ETH_IP, ("Ethernet", "InfiniBand"), (hardware(topology.eth), hosts.hardware(0).hex(":")))
        pings_pass(topology)
        assert owner(topology, "ethernet", ETH_IP) == hardware(topology.eth) and owner(topology, "infiniband", ETH_IP) is None
