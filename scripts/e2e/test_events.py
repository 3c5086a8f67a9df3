"""`ctl events`: clients that follow what happens in a gateway, and hostile ones."""

import json

import pytest
from testbed.follower import Follower, control_client
from testbed.programs import run
from testbed.topology import IB_IP
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# An address of the Ethernet host that the gateway does not know yet.
NEWCOMER = "10.77.0.77"
# More events than the gateway keeps for a client that does not read.
RELOADS = 1500
# Clients that may follow events at a time.
FOLLOWERS = 8


@pytest.mark.core
def test_events(gateway):
    """Link, role, connection, address and reload, for several clients at once, each with the kinds that it
    requested."""
    wanted = {("address", "learnt"), ("reload", "done"), ("connection", "down"), ("connection", "up"), ("link", "down"),
              ("link", "up"), ("role", "forwarding")}
    with Follower(gateway, "--json") as everything, Follower(gateway) as lines, Follower(gateway, "link,reload", "--json") as some:
        run("ip", "addr", "add", f"{NEWCOMER}/24", "dev", "eth0", netns=gateway.eth)
        assert ping(gateway.eth, IB_IP, 56, count=1, more=("-I", NEWCOMER))["ok"]
        gateway.ctl("reload")
        gateway.ctl("mode", "datagram")
        gateway.ctl("mode", "connected")
        run("ip", "link", "set", "eth0", "down", netns=gateway.eth)
        everything.wait_event("link", "down")
        # A shorter outage does not change the role.
        everything.wait_event("role", "standby")
        run("ip", "link", "set", "eth0", "up", netns=gateway.eth)
        gateway.wait_for("a ping", lambda: ping(gateway.eth, IB_IP, 56, count=1)["ok"])
        gateway.wait_connected()
        for kind, name in wanted:
            everything.wait_event(kind, name)
        events = [json.loads(line) for line in everything.end()[0]]
        gateway.wait_for("all events as lines", lambda: len(lines.text().splitlines()) >= len(events))
        as_lines, of_some = lines.end()[0], [json.loads(line) for line in some.end()[0]]
    assert [e for e in events if e.get("address") == NEWCOMER]
    assert [e["time"] for e in events] == sorted(e["time"] for e in events)
    for line in as_lines:
        assert len(line.split()) >= 5 and line.split()[0].endswith("Z"), line
    assert len(events) > len(of_some)
    assert {e["kind"] for e in of_some} == {"link", "reload"}


def read_events(client, until):
    """Reads events until `until` holds for their number and the number of lost ones; returns both."""
    read = lost = 0
    while not until(read, lost):
        event = json.loads(client.recv(1 << 20))["/events"]
        read += event.get("what") == "done"
        lost += event.get("lost", 0)
    return read, lost


def test_slow_reader(gateway, figures):
    """A client that does not read loses events, learns how many, and delays nobody else."""
    with control_client(gateway.socket, b"/events,reload") as slow, control_client(gateway.socket) as other:
        for _ in range(RELOADS):
            # The answer comes although the slow client does not read.
            other.send(b"/reload")
            assert "/reload" in json.loads(other.recv(1 << 20))
        read, lost = read_events(slow, lambda read, lost: read + lost >= RELOADS)
        figures(read=read, lost=lost)
        assert lost > 0
        assert read + lost == RELOADS
        # It continues with the next event, and there was none in between.
        gateway.ctl("reload")
        assert json.loads(slow.recv(1 << 20))["/events"]["what"] == "done"


def test_hostile_followers(gateway):
    """Words that are no kinds are refused; the number of followers is bounded; one that follows may still
    send requests."""
    for request in (b"/events,storm", b"/events,link,", b"/events," + b"link," * 190, b"/events,\xff"):
        with control_client(gateway.socket, request) as client:
            assert "error" in json.loads(client.recv(1 << 20)), request
    out = gateway.ctl_text("events", "strom", check=False)
    assert out.returncode == 2
    assert "possible values" in out.stderr
    followers = [control_client(gateway.socket, b"/events") for _ in range(FOLLOWERS + 2)]
    refused = ["error" in json.loads(client.recv(1 << 20)) for client in followers]
    assert sum(refused) == 2
    first = followers[refused.index(False)]
    first.send(b"/help,events")
    assert "/help" in json.loads(first.recv(1 << 20))
    for client in followers:
        client.close()
    gateway.ctl("stats")


@pytest.mark.parametrize("killed", [False, True], ids=("stopped", "killed"))
def test_gateway_ends(gateway, killed):
    """A follower learns that the gateway has ended, in order or not, from its exit code and message."""
    with Follower(gateway) as lines, Follower(gateway, "alarm", "--json") as alarms:
        if killed:
            gateway.kill(gateway.gateway)
        else:
            gateway.stop_gateway()
        results = [follower.end(how=None) for follower in (lines, alarms)]
    assert [code for _, code, _ in results] == [4 if killed else 3] * 2
    for _, _, error in results:
        assert "gateway" in error
    assert any("gateway: stopping" in line for line in results[0][0]) != killed
    gateway.start_gateway()
    gateway.wait_for("a ping through the next gateway", lambda: ping(gateway.eth, IB_IP, 56, count=1)["ok"])


@pytest.mark.timing
def test_answer_time_with_slow_reader(gateway):
    """A client that does not read delays no answer by two seconds."""
    with control_client(gateway.socket, b"/events,reload"), control_client(gateway.socket) as other:
        other.settimeout(2)
        for _ in range(RELOADS):
            other.send(b"/reload")
            other.recv(1 << 20)
