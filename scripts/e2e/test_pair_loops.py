"""Two gateways between the same two networks: no broadcast arrives twice or comes back, whatever else joins
the networks."""

import contextlib
import re
import sys
import time

import pytest
from testbed import relay
from testbed.broadcasts import Broadcasts, exchange
from testbed.follower import Follower
from testbed.pair import BOTH_SIDES, NAMES, OTHER_KEY, PatientPair
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# Copies of one broadcast that circles until the gateways have noticed: eight in each tenth of a second.
CIRCLING = 300
# Seconds for which a loop blocks the gateways, at least, and two more.
BLOCKED = 12
# Seconds between two broadcasts, short enough for every queue on the path.
PACE = 0.05


@pytest.fixture
def pair(start):
    return start(PatientPair)


@pytest.fixture
def hosts(pair):
    """Sockets for broadcasts on the hosts of both sides."""
    with contextlib.closing(Broadcasts(pair.eth, "eth0", True)) as eth, contextlib.closing(Broadcasts(pair.ib, "ib0", False)) as ib:
        yield eth, ib


@pytest.mark.core
def test_broadcasts_arrive_once(pair):
    pair.wait_settled()
    on_ib, on_eth, came_back = exchange(pair)
    assert set(on_ib) == set(on_eth) == {1}, (on_ib, on_eth)
    assert not came_back


def test_broadcasts_arrive_once_while_a_gateway_starts(pair, hosts, figures):
    eth, ib = hosts
    _, other = pair.wait_settled()
    pair.kill(pair.gateways[other])
    pair.start_one(other)
    from_eth, from_ib, enough = [], [], 60
    while len(from_eth) < enough:
        from_eth.append(2 * len(from_eth))
        from_ib.append(2 * len(from_ib) + 1)
        eth.send(from_eth[-1])
        ib.send(from_ib[-1])
        time.sleep(PACE)
        pair.check_alive()
        # Until it stands by, and for some time after that.
        if len(from_eth) == enough and pair.role(other) != "standby":
            enough += 20
    ib.wait(*from_eth)
    eth.wait(*from_ib)
    eth.wait_quiet()
    ib.wait_quiet()
    figures(sent=len(from_eth))
    assert eth.counts == dict.fromkeys(from_ib, 1)
    assert ib.counts == dict.fromkeys(from_eth, 1)


def block(pair, hosts):
    """Something else joins both networks: the gateways block, report it and stay blocked.

    When it is gone they forward again.

    Returns how often a broadcast arrived before they had noticed.
    """
    eth, ib = hosts
    forwarder, _ = pair.wait_settled()
    with Follower(pair, "alarm", "--json", path=pair.control_socket(forwarder)) as follower:
        bridge = pair.background("foreign bridge", [sys.executable, relay.__file__, "foreign0", "ibf0"], pair.gw)
        pair.wait_for("the foreign bridge", lambda: "relaying" in bridge.text())
        eth.send(1)
        pair.wait_for("the gateways to block", lambda: all(pair.role(name) == "blocked" for name in NAMES))
        eth.wait_quiet()
        ib.wait_quiet()
        circled = eth.counts.get(1, 0)
        # From now on the foreign bridge alone carries broadcasts.
        eth.send(2)
        ib.wait(2)
        ib.send(3)
        eth.wait(3)
        eth.wait_quiet()
        ib.wait_quiet()
        assert (ib.counts[2], eth.counts.get(2, 0)) == (1, 0)
        assert (eth.counts[3], ib.counts.get(3, 0)) == (1, 0)
        assert "our own packets come back" in pair.gateways[forwarder].text()
        assert any(e["what"] == "loop" and e.get("side") for e in follower.events_until("loop"))
        assert pair.state(forwarder)["loops"] > 0
        end = time.monotonic() + BLOCKED
        while time.monotonic() < end:
            assert [pair.role(name) for name in NAMES] == ["blocked", "blocked"]
        pair.forget(bridge)
        bridge.stop()
    pair.wait_settled()
    assert ping(pair.eth, IB_IP, 56)["ok"]
    assert ping(pair.ib, ETH_IP, 56)["ok"]
    return circled


@pytest.mark.slow
def test_foreign_bridge_blocks_the_gateways(pair, hosts, figures):
    figures(circled=block(pair, hosts))


@pytest.mark.slow
@pytest.mark.timing
def test_foreign_bridge_is_noticed_in_time(pair, hosts, figures):
    """The rate at which a broadcast circles is bounded, so the number of copies shows how long it circled."""
    circled = block(pair, hosts)
    figures(circled=circled)
    assert circled < CIRCLING


@pytest.mark.core
def test_other_key(pair, hosts):
    """Gateways with different keys do not believe each other: one forwards, the other one is blocked, and
    both report it.

    Hosts reach each other, and a broadcast passes once. When the forwarder dies, the other one takes over.
    """
    eth, ib = hosts
    first, other = pair.wait_settled()
    pair.kill(pair.gateways[other])
    pair.start_one(other, OTHER_KEY)
    pair.wait_role(other, "blocked")

    def strangers():
        return [pair.state(name).get("stranger") or {} for name in NAMES]

    pair.wait_for("both to report the other one", lambda: all(s.get("heard_on") == BOTH_SIDES for s in strangers()))
    assert all("gateway.pair-key" in s["why"] for s in strangers()), strangers()
    for gateway in pair.gateways.values():
        assert re.search(r"ERROR.*is not believed", gateway.text()), gateway.name
    assert ping(pair.eth, IB_IP, 56)["ok"]
    assert ping(pair.ib, ETH_IP, 56)["ok"]
    eth.send(1)
    ib.wait(1)
    ib.send(2)
    eth.wait(2)
    ib.wait_quiet()
    eth.wait_quiet()
    assert (ib.counts[1], eth.counts[2]) == (1, 1)
    assert [pair.role(name) for name in (first, other)] == ["forwarding", "blocked"]
    pair.kill(pair.gateways[first])
    pair.wait_role(other, "forwarding")
