"""One gateway of two is taken out of service, stopped, replaced and put back, and what runs through them does
not notice."""

import json
import os
import shutil

import pytest
from testbed.follower import Follower
from testbed.meanwhile import under_datagrams
from testbed.pair import OWN, Pair
from testbed.programs import run
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# A longer gap between datagrams, without the time for which the machine kept processes waiting, means that
# one was lost.
LONGEST_GAP_MS = 500
# The address that a gateway has after the reload.
NEW_OWN = "10.77.0.252"
EVENTS = ("drained", "handed-over", "undrained")
# Exit code of `ipoib-fwd ctl health` for a gateway that does not forward and could not.
NOT_HEALTHY = 5


@pytest.fixture
def pair(start):
    return start(Pair)


def assert_nothing_lost(result):
    assert result["lost"] == 0, result
    datagrams = result["datagrams"]
    assert datagrams["longest_gap_ms"] < LONGEST_GAP_MS + datagrams["run_delay_ms"], datagrams


def drain_and_undo(pair):
    """The forwarder is drained while traffic runs, reports it everywhere, and is put back.

    Returns what traffic noticed.
    """
    forwarder, other = pair.wait_warm()
    changes = pair.state(forwarder)["resignations"], pair.state(other)["takeovers"]

    def act():
        pair.drain(forwarder)
        assert [pair.role(forwarder), pair.role(other)] == ["drained", "forwarding"]
        assert [row["role"] for row in pair.answer_of(forwarder, "links")["segments"]] == ["drained"]
        assert (pair.state(forwarder)["resignations"], pair.state(other)["takeovers"]) == (changes[0] + 1, changes[1] + 1)
        health = pair.ctl_of(forwarder, "health", "--json")
        assert health.returncode == NOT_HEALTHY
        assert "--undo" in json.loads(health.stdout)["segments"][0]["why"]
        assert pair.ctl_of(other, "health").returncode == 0
        metrics = pair.ctl_of(forwarder, "metrics").stdout
        assert 'role="drained"} 1' in metrics and 'role="forwarding"} 0' in metrics
        # The other one is the last one now.
        assert "--alone" in pair.ctl_of(other, "drain").stderr
        assert [p["leaves"] for p in pair.state(other)["peers"] if p["alive"]] == [True]

    with Follower(pair, "--json", path=pair.control_socket(forwarder)) as follower:
        result = under_datagrams(pair, act)
        assert pair.drain(forwarder, "--undo")["drained"] is False
        assert pair.wait_settled() == (other, forwarder)
        follower.events_until(*EVENTS)
    return result


@pytest.mark.core
def test_drain(pair, figures):
    result = drain_and_undo(pair)
    figures(**result)
    assert result["ok"], result


@pytest.mark.timing
def test_drain_loses_nothing(pair, figures):
    result = drain_and_undo(pair)
    figures(**result)
    assert result["ok"], result
    assert_nothing_lost(result)


def reload_while_drained(pair):
    """The forwarder is drained, reads a changed file and is put back. Returns what traffic noticed."""
    forwarder, other = pair.wait_warm()

    def act():
        pair.drain(forwarder)
        text = pair.config(forwarder).read_text()
        pair.config(forwarder).write_text(text.replace(OWN[forwarder], NEW_OWN))
        assert pair.answer_of(forwarder, "reload")["changed"] == ["default"]
        assert pair.role(forwarder) == "drained"
        assert pair.drain(forwarder, "--undo")["drained"] is False
        assert pair.wait_settled() == (other, forwarder)

    result = under_datagrams(pair, act)
    assert ping(pair.eth, NEW_OWN, 56, count=1)["ok"]
    return result


def test_reload_of_a_drained_gateway(pair, figures):
    result = reload_while_drained(pair)
    figures(**result)
    assert result["ok"], result


@pytest.mark.timing
def test_reload_of_a_drained_gateway_loses_nothing(pair, figures):
    result = reload_while_drained(pair)
    figures(**result)
    assert result["ok"], result
    assert_nothing_lost(result)


def test_drain_of_the_last_gateway(pair):
    """It is refused with the reason.

    With --alone the gateway drains; nobody forwards until it is put back.
    """
    forwarder, other = pair.wait_settled()
    pair.kill(pair.gateways[other])
    pair.wait_for("the other gateway to be missed", lambda: not any(p["alive"] for p in pair.state(forwarder)["peers"]))
    [row] = pair.answer_of(forwarder, "links")["segments"]
    assert row["peers"] == 0, "a dead gateway is no peer"
    refused = pair.ctl_of(forwarder, "drain")
    assert refused.returncode == 1
    assert "no standby gateway hears this one" in refused.stderr and "--alone" in refused.stderr
    assert pair.role(forwarder) == "forwarding"
    pair.drain(forwarder, "--alone")
    assert pair.role(forwarder) == "drained"
    log = pair.gateways[forwarder].text
    pair.wait_for("the log to say that nobody forwards", lambda: "no other gateway is heard to forward" in log())
    assert "handed over" not in log()
    pair.drain(forwarder, "--undo")
    pair.wait_role(forwarder, "forwarding")


@pytest.mark.core
def test_drain_while_a_port_is_down(gateway):
    """The segment is drained whatever it waits for, and says both."""
    run("ip", "link", "set", "eth0", "down", netns=gateway.eth)
    gateway.wait_for("the port to be down", lambda: gateway.ctl("links")["ethernet"]["link"] == "down")
    answer = gateway.ctl("drain", "--alone")
    [row] = answer["segments"]
    assert (answer["drained"], row["role"], row["healthy"]) == (True, "drained", False)
    assert "it is drained" in row["why"] and "has no link" in row["why"], row["why"]


def upgrade(pair):
    """Both gateways are replaced under one connection, one after the other: drained, stopped, started from
    another file.

    With `--older` they are of another version before. Returns what traffic noticed.
    """
    pair.wait_warm()

    def act():
        for _ in range(2):
            forwarder, _ = pair.wait_warm()
            pair.drain(forwarder)
            pair.programs[forwarder] = pair.dir / f"next-{forwarder}"
            pair.programs[forwarder].mkdir()
            shutil.copy2(pair.bin / "ipoib-fwd", pair.programs[forwarder])
            pair.replace(forwarder)

    result = under_datagrams(pair, act)
    for name, gateway in pair.gateways.items():
        assert os.readlink(f"/proc/{gateway.pid}/exe") == str(pair.dir / f"next-{name}" / "ipoib-fwd")
    return result


@pytest.fixture
def older_pair(start, older):
    """A pair of the older version, if there is one."""
    pair = start(Pair, up=False)
    if older:
        pair.programs = dict.fromkeys(pair.own_ns, older)
    pair.up()
    return pair


@pytest.mark.slow
def test_upgrade(older_pair, figures):
    result = upgrade(older_pair)
    figures(**result)
    assert result["ok"], result


@pytest.mark.slow
@pytest.mark.timing
def test_upgrade_loses_nothing(older_pair, figures):
    result = upgrade(older_pair)
    figures(**result)
    assert result["ok"], result
    assert_nothing_lost(result)
