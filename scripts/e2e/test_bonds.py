"""A bond as the gateway's Ethernet port: traffic goes on while one member's cable is unplugged, and the port
is down without any."""

import os
import shutil
import socket
import time

import pytest
from testbed.bonds import MEMBERS, Bond, BondByLacp, BondOfVeths
from testbed.meanwhile import meanwhile
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import first_ping, ping

pytestmark = pytest.mark.netns

# Seconds for which a cable is unplugged: longer than the gateway takes to notice, shorter than LACP does
# without a driver's help.
UNPLUGGED = 2
# Seconds without traffic that a member's loss may cause: half a second until the gateway looks at its ports,
# and as long again.
OUTAGE = 2
FLOWS, FIRST_PORT = 64, 7100


@pytest.fixture(params=[Bond, BondOfVeths])
def bond(request, start):
    return start(request.param)


@pytest.fixture
def lacp(start):
    if not shutil.which("dpdk-testpmd"):
        assert not os.environ.get("CI"), "dpdk-testpmd is not installed"
        pytest.skip("dpdk-testpmd is not installed")
    return start(BondByLacp)


def first_packets(bond):
    """One packet in each direction, without a neighbour known."""
    # Requests that the hosts sent before the port was up stay unanswered, and packets that wait for them are
    # lost.
    bond.flush_neighbours()
    assert first_ping(bond.eth, IB_IP)
    assert first_ping(bond.ib, ETH_IP)


def all_down_and_up(bond):
    """Without any member the port is down; with them it is up and carries packets."""
    for n in MEMBERS:
        bond.set_cable(n, "down")
    bond.wait_port("down")
    for n in MEMBERS:
        bond.set_cable(n, "up")
    bond.wait_port("up")
    bond.wait_packet()


def unplug_for_a_while(bond, *members):
    """Unplugs the members' cables, one after the other."""
    def act():
        for n in members:
            bond.set_cable(n, "down")
            time.sleep(UNPLUGGED)
            bond.set_cable(n, "up")
            if n != members[-1]:
                time.sleep(UNPLUGGED)

    return act


def unplug_until_noticed(bond):
    """Unplugs the active member's cable, and then the other one's, each until the gateway has reported it."""
    def act():
        for n in MEMBERS:
            bond.set_cable(n, "down")
            bond.wait_for(f"the gateway to notice that member {n} is down", lambda n=n: bond.changes() > n)
            bond.set_cable(n, "up")
            # The gateway does not report that a link is up again, and looks twice a second.
            bond.wait_packet()
            time.sleep(UNPLUGGED)

    return act


def test_first_packets(bond):
    first_packets(bond)


def test_standby_member_unplugged(bond):
    """The member that carries no traffic is unplugged and plugged in again: TCP goes on."""
    bond.wait_packet()
    result = meanwhile(bond, unplug_for_a_while(bond, 1))
    assert result["ok"], result
    assert not bond.changes()


@pytest.mark.timing
def test_standby_member_unplugged_without_loss(bond, figures):
    bond.wait_packet()
    result = meanwhile(bond, unplug_for_a_while(bond, 1), seconds=8)
    figures(**result)
    assert result["ok"], result
    assert result["lost"] == 0


def test_active_member_unplugged(bond):
    """The member that carries the traffic is unplugged, then the other one: TCP goes on both times."""
    bond.wait_packet()
    result = meanwhile(bond, unplug_until_noticed(bond))
    assert result["ok"], result
    assert bond.changes() >= len(MEMBERS)


@pytest.mark.core
def test_all_members_unplugged(bond):
    """Without any member the port is down, and it comes back with them."""
    bond.wait_packet()
    all_down_and_up(bond)
    # The members had their addresses before the gateway gave up its capabilities.
    assert "not permitted" not in bond.gateway.text()


@pytest.mark.timing
def test_active_member_unplugged_within_time(bond, figures):
    bond.wait_packet()
    result = meanwhile(bond, unplug_until_noticed(bond), seconds=10)
    figures(**result)
    assert result["ok"], result
    assert result["outage"] < OUTAGE


@pytest.mark.slow
def test_lacp_aggregates(lacp, figures):
    """LACP aggregates two cables with the bond of DPDK at their other end, and flows use either."""
    first_packets(lacp)
    before, flows = lacp.sent(), []
    with socket_in(lacp.ib, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for port in range(FIRST_PORT, FIRST_PORT + FLOWS):
            sender.sendto(b"flow", (ETH_IP, port))
            time.sleep(0.002)

    def all_out():
        flows[:] = [after - was for was, after in zip(before, lacp.sent())]
        return sum(flows) >= FLOWS

    lacp.wait_for("the flows to go out", all_out)
    figures(flows_by_member=flows)
    assert min(flows) >= FLOWS // 8, flows


@pytest.mark.slow
def test_lacp_members_unplugged(lacp):
    """Each cable is unplugged for a while: TCP goes on, and afterwards no packet is lost."""
    result = meanwhile(lacp, unplug_for_a_while(lacp, *MEMBERS))
    assert result["ok"], result
    after = ping(lacp.eth, IB_IP, 56)
    assert after["ok"], after
    all_down_and_up(lacp)


@pytest.mark.slow
@pytest.mark.timing
def test_lacp_members_unplugged_within_time(lacp, figures):
    """Packets are lost only while a cable is unplugged."""
    result = meanwhile(lacp, unplug_for_a_while(lacp, *MEMBERS), seconds=10)
    figures(**result)
    assert result["ok"], result
    # TCP's own timer comes on top.
    assert result["outage"] < UNPLUGGED + OUTAGE
