"""`ctl trace`: what a gateway does with packets, by filter and bounded."""

import collections
import json
import signal

import pytest
from testbed.follower import Follower, control_client
from testbed.frames import ethernet_socket
from testbed.programs import run
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# An address that no host has.
NOBODY_IP = "10.77.0.99"
# Traces at a time.
TRACES = 4


class Trace(Follower):
    """`ipoib-fwd ctl trace`."""

    command = "trace"

    def rows(self, how=signal.SIGTERM):
        """With `--json`: the rows with a verdict, all rows, and the exit code."""
        lines, code, _ = self.end(how)
        rows = [json.loads(line) for line in lines]
        return [row for row in rows if "verdict" in row], rows, code


def ping_one_by_one(topology, count):
    """Pings, each of which is answered before the next one is sent."""
    for _ in range(count):
        assert ping(topology.eth, IB_IP, 56, count=1)["ok"]


def infiniband_host(topology):
    return next(n for n in topology.ctl("neighbours")["infiniband"] if n["address"] == IB_IP)


@pytest.mark.core
def test_packets_over_connections(gateway):
    """Two rows for each ping, with ports, segment and what the lookup found; the trace ends by the number of
    rows."""
    mac = json.loads(run("ip", "-j", "link", "show", "eth0", netns=gateway.eth).stdout)[0]["address"]
    with Trace(gateway, "--json", "proto=icmp", f"host={IB_IP}", f"mac={mac}", "--count", "4") as trace:
        ping_one_by_one(gateway, 5)
        seen, rows, code = trace.rows(how=None)
    assert code == 0
    assert (rows[-1].get("end"), rows[-1]["missed"]) == ("the requested number of rows", 0)
    assert collections.Counter((row["step"], row["from"], row["verdict"], (row["lookup"] or {}).get("mode")) for row in seen) == {
        ("worker", "Ethernet", "forwarded", "connected"): 2, ("worker", "InfiniBand", "forwarded", None): 2}
    segment, neighbour = gateway.ctl("links")["segments"][0], infiniband_host(gateway)
    own = {c["qpn"] for c in gateway.ctl("connections")["connections"] if not c["passive"]}
    for row in seen:
        assert row["segment"] == segment["segment"], row
        lookup = row["lookup"]
        if row["from"] == "Ethernet":
            assert row["port"] == segment["ethernet"], row
            assert (lookup["neighbour"], lookup["dlid"]) == (IB_IP, neighbour["dlid"]), row
            assert lookup["hardware_address"] == neighbour["hardware_address"], row
            assert lookup["own_qpn"] in own, row
        else:
            assert (row["port"], row["mode"]) == (segment["infiniband"], "connected"), row
            assert (lookup["mac"], lookup["neighbour"]) == (mac, ETH_IP), row


def test_datagrams_as_lines(gateway):
    """Datagrams of a port and a segment, a line each."""
    gateway.ctl("mode", "datagram")
    gateway.wait_for("a ping", lambda: ping(gateway.eth, IB_IP, 56, count=1)["ok"])
    segment, neighbour = gateway.ctl("links")["segments"][0], infiniband_host(gateway)
    destination = f"LID {neighbour['dlid']}, QP "

    def datagrams(lines):
        return [line for line in lines if "datagram, " in line and destination in line and line.endswith("forwarded")]

    with Trace(gateway, "proto=icmp", f"at={segment['infiniband']}", f"segment={segment['segment']}") as trace:
        ping_one_by_one(gateway, 3)
        gateway.wait_for("three lines", lambda: len(datagrams(trace.text().splitlines())) >= 3)
        lines, _, _ = trace.end()
    assert len(datagrams(lines)) == 3, lines


def test_end_by_time(gateway):
    with Trace(gateway, "proto=icmp", "--seconds", "1") as trace:
        lines, code, _ = trace.end(how=None)
    assert code == 0
    assert "its time is over" in lines[-1]


def test_unresolved_address(gateway):
    """A packet to an address that no host has: handed over, pending, and dropped when there is no answer.

    Other packets have no rows.
    """
    mac = gateway.ctl("links")["ethernet"]["mac"]
    with Trace(gateway, "--json", f"host={NOBODY_IP}", "proto=icmp") as trace:
        run("ip", "neigh", "replace", NOBODY_IP, "lladdr", mac, "dev", "eth0", "nud", "permanent", netns=gateway.eth)
        run("ping", "-n", "-q", "-c", 1, "-W", 1, NOBODY_IP, netns=gateway.eth, check=False)
        ping_one_by_one(gateway, 2)
        trace.wait("neighbour-unresolved")
        seen, _, _ = trace.rows()
    assert [(row["step"], row["verdict"], row["reason"]) for row in seen] == [
        ("worker", "to the control lcore", f"no path to {NOBODY_IP} yet"),
        ("control lcore", "waits", f"for the address of {NOBODY_IP}, or its path"),
        ("control lcore", "dropped", "neighbour-unresolved")]
    assert len({row["packet"] for row in seen}) == 1
    assert seen[-1]["explained"]


def test_dropped_by_worker(gateway):
    """A frame that a worker drops has its VLAN, its reason and no segment."""
    raw, mac, _ = ethernet_socket(gateway)
    with raw, Trace(gateway, "--json", "direction=in") as trace:
        raw.send(mac + bytes.fromhex("020000000001") + b"\x81\x00\x0f\xa0\x08\x00" + bytes(60))
        trace.wait("vlan-unknown")
        seen, _, _ = trace.rows()
    [dropped] = [row for row in seen if row["reason"] == "vlan-unknown"]
    assert (dropped["verdict"], dropped["vlan"], dropped["segment"]) == ("dropped", 4000, None)


def test_refused_traces(gateway):
    """The number of traces is bounded, and wrong filters are refused with what they may be."""
    traces = [Trace(gateway, "host=192.0.2.1") for _ in range(TRACES)]
    refused = gateway.ctl_text("trace", "host=192.0.2.1", check=False)
    assert refused.returncode == 1
    assert "4 clients" in refused.stderr
    for trace in traces:
        trace.end()
    for arguments, text in ((["hots=1"], "host=ADDRESS"), (["segment=none"], "there are"), (["at=none"], "there are"),
                            (["--count", "0"], "count=1..10000")):
        out = gateway.ctl_text("trace", *arguments, check=False)
        assert out.returncode == 1, arguments
        assert text in out.stderr, arguments
    # There is room for another one once the gateway has noticed that they are gone.
    gateway.wait_for("a place", lambda: place_for_trace(gateway))
    with Trace(gateway, "--json", "--count", "1") as trace:
        ping_one_by_one(gateway, 1)
        assert trace.rows(how=None)[2] == 0


def place_for_trace(topology):
    """Whether a raw client may start a trace."""
    with control_client(topology.socket, b"/trace,host=192.0.2.1") as client:
        return "error" not in json.loads(client.recv(1 << 20))
