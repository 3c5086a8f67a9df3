"""Two gateways: one forwards, the other takes over when that one dies, resigns or loses a side, and
connections survive."""

import re
import time

import pytest
from testbed.meanwhile import meanwhile
from testbed.pair import NAMES, OWN, TAKEOVER, Pair, PatientPair
from testbed.pings import Pings, back_within
from testbed.programs import DEADLINE, run
from testbed.topology import ETH_IP, IB_IP, PREFIX
from testbed.traffic import ping

pytestmark = pytest.mark.netns

NEW_HOST = "10.77.0.74"
# Seconds between two pings.
INTERVAL = 0.02


@pytest.fixture
def pair(start):
    return start(Pair)


@pytest.mark.core
def test_one_forwards_and_each_answers_for_itself(start):
    pair = start(PatientPair)
    pair.wait_settled()
    assert ping(pair.eth, IB_IP, 56)["ok"]
    assert ping(pair.ib, ETH_IP, 56)["ok"]
    for netns in (pair.eth, pair.ib):
        for name, address in OWN.items():
            assert ping(netns, address, 56, count=3)["received"], f"gateway {name} does not answer {netns}"


# -- takeover: what happens to the forwarder

def kill_both_in_turn(pair):
    """The forwarder is killed and comes back; then the other one is killed.

    Returns what traffic noticed, each time.
    """
    results = []
    for _ in range(2):
        forwarder, other = pair.wait_warm()
        took = []
        result = meanwhile(pair, lambda forwarder=forwarder, took=took: took.append(pair.kill_one(forwarder)))
        assert pair.role(other) == "forwarding"
        results.append({**result, "killed": forwarder, "forwards_after": took[0]})
        pair.start_one(forwarder)
    pair.wait_settled()
    return results


def stop_forwarder(pair):
    """The forwarder is stopped in order, and comes back."""
    forwarder, other = pair.wait_warm()
    result = meanwhile(pair, lambda: pair.stop_one(forwarder))
    assert pair.role(other) == "forwarding"
    pair.start_one(forwarder)
    pair.wait_settled()
    return [result]


def pull_cable(pair):
    """The forwarder's Ethernet cable is pulled: it resigns.

    To the metrics of the other one it is half a pair, until the cable is back.
    """
    forwarder, other = pair.wait_warm()
    cable = f"to-gw{NAMES.index(forwarder)}"

    def peers(heard):
        metrics = pair.ctl_of(other, "metrics").stdout
        return re.search(rf'^ipoib_fwd_segment_peers\{{.*heard="{heard}"\}} 1', metrics, re.M)

    def pull():
        run("ip", "link", "set", cable, "down", netns=pair.gw)
        pair.wait_role(other, "forwarding")
        assert pair.role(forwarder) != "forwarding"
        pair.wait_for("a peer that is heard on one side", lambda: peers("one"))

    result = meanwhile(pair, pull)
    run("ip", "link", "set", cable, "up", netns=pair.gw)
    pair.wait_settled()
    pair.wait_for("a peer that is heard on both sides", lambda: peers("both"))
    return [result]


TAKEOVERS = [pytest.param(kill_both_in_turn, id="killed"), pytest.param(stop_forwarder, id="stopped"), pytest.param(pull_cable, id="cable")]


@pytest.mark.slow
@pytest.mark.parametrize("act", TAKEOVERS)
def test_connections_survive(pair, figures, act):
    results = act(pair)
    figures(results=results)
    for result in results:
        assert result["ok"], result["tcp"]


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("act", TAKEOVERS)
def test_takeover_time(pair, figures, act):
    results = act(pair)
    figures(results=results)
    for result in results:
        assert result["ok"] and result["outage"] < TAKEOVER, result
        assert result.get("forwards_after", 0) < TAKEOVER, result


def kill_after_a_first_packet(pair, known):
    """The forwarder is killed after a host's first packet, once `known` returns.

    Returns the seconds until that host is reached.

    The InfiniBand host sends no query for half a minute, and sends to where the new host was: the other
    gateway notifies it.
    """
    forwarder, other = pair.wait_warm()
    run("ip", "addr", "add", f"{NEW_HOST}/{PREFIX}", "dev", "eth0", netns=pair.eth)
    run("ping", "-n", "-q", "-c", 1, "-W", DEADLINE // 2, "-I", NEW_HOST, IB_IP, netns=pair.eth)
    known(other)
    pair.kill(pair.gateways[forwarder])
    return back_within(pair.ib, NEW_HOST)


@pytest.mark.core
def test_host_of_a_first_packet_is_reached_after_takeover(start):
    """The other gateway learns of a host from the forwarder."""
    pair = start(PatientPair)

    def learnt(other):
        pair.wait_for("the other gateway to know the new host", lambda: any(
            n["address"] == NEW_HOST for n in pair.answer_of(other, "neighbours")["ethernet"]))

    kill_after_a_first_packet(pair, learnt)


@pytest.mark.timing
def test_host_of_a_first_packet_is_known_at_once(pair, figures):
    """The forwarder is killed 0.15 s after the packet."""
    seconds = kill_after_a_first_packet(pair, lambda _: time.sleep(0.15))
    figures(seconds=seconds)
    assert seconds < TAKEOVER


# -- changed while traffic runs

def swap_priorities(pair):
    """The standby gateway is given the higher priority and takes over, then the lower one.

    Returns the pings sent and lost.
    """
    forwarder, other = pair.wait_settled()
    config = pair.config(other)
    before = config.read_text()
    pings = Pings(pair.ib, ETH_IP, INTERVAL, pair.dir / "priority-ping.log")
    try:
        pings.wait_answers()
        for priority, wanted in ((200, other), (50, forwarder)):
            config.write_text(before.replace("[gateway]\n", f"[gateway]\npriority = {priority}\n"))
            pair.ctl_of(other, "reload", check=True)
            pair.wait_settled(forwarder=wanted)
        return pings.end()
    finally:
        pings.stop()


def test_priority_by_reload(pair, figures):
    figures(**swap_priorities(pair))


@pytest.mark.timing
def test_priority_by_reload_time(pair, figures):
    result = swap_priorities(pair)
    figures(**result)
    assert result["lost"] * INTERVAL < TAKEOVER
