"""One InfiniBand host requests connections without end, in all segments: others connect all the same."""

import itertools
import threading
import time

import pytest
from testbed.ibhosts import Hosts
from testbed.neighbour import GUID
from testbed.programs import DEADLINE, TestbedError
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping

pytestmark = pytest.mark.netns

SEGMENTS = 8
# Seconds within which another host is connected in both directions.
PROMISE = 1.0
# Requests of a burst, and seconds after it: some 900 a second, and about three times this rate.
BURSTS, PAUSE = [10, 40], 0.01
# Numbers of queue pairs at the flooding host, each of which requests a connection of its own.
QUEUE_PAIRS = 0x80000


def pkey(number):
    return 0x8100 + number if number else 0xFFFF


class FloodedSegments(Topology):
    """Segments on one port of each side.

    The flooding host is in all partitions, the other one in the default one.
    """

    intruder = True

    def fabric_config(self):
        partitions = ""
        for number in range(SEGMENTS):
            members = '"gateway", "intruder"' if number else '"all"'
            partitions += f'\n[[partition]]\nname = "p{number}"\npkey = {pkey(number):#x}\nmembers = [{members}]\n'
        return super().fabric_config() + partitions

    def gateway_config(self):
        text = super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "")
        return text + "".join(f'\n[[segment]]\nname = "s{number}"\npkey = {pkey(number):#x}\naddress = "{GW_IP}/{PREFIX}"\n'
                              + (f"vlan = {100 + number}\n" if number else "") for number in range(SEGMENTS))

    def rows(self):
        try:
            return self.ctl("links")["segments"]
        except TestbedError:
            return []

    def up(self):
        self.start()
        self.wait_hosts()
        self.wait_for("all segments to forward", lambda: [row["role"] for row in self.rows()] == ["forwarding"] * SEGMENTS)

    def requests(self):
        """By segment: requests for connections that were decided."""
        counters = self.ctl("links")["link_counters"]
        return [sum(counters[f"s{number}"][name] for name in ("connections_accepted", "requests_limited", "requests_rejected"))
                for number in range(SEGMENTS)]

    def connected(self):
        """Whether the honest host has connections in both directions."""
        live = {row["passive"] for row in self.ctl("connections")["connections"] if row["ip"] == IB_IP and row["state"] == "live"}
        return live == {False, True}


class Flood(threading.Thread):
    """A host that requests connections in all segments and answers each response, so that they are
    established."""

    def __init__(self, topology, burst):
        super().__init__(daemon=True)
        self.burst = burst
        self.rows, self.over, self.sent = topology.rows(), threading.Event(), 0
        self.gateways = [bytes.fromhex(row["addresses"].split(" ")[0].replace(":", "")) for row in self.rows]
        lid = topology.ctl("links")["infiniband"]["lid"]
        self.hosts = Hosts(topology.far, topology.near, GUID, ["10.77.0.66"], (lid, self.gateways[0]))

    def run(self):
        for number in itertools.count():
            if self.over.is_set():
                return
            segment = number % SEGMENTS
            self.hosts.open(number % QUEUE_PAIRS, self.gateways[segment], pkey(segment))
            self.sent += 1
            if number % self.burst == 0:
                time.sleep(PAUSE)

    def __enter__(self):
        self.hosts.start()
        if not self.hosts.wait_active(DEADLINE):
            self.hosts.close()
            raise TestbedError(f"the port of the flooding host is in state {self.hosts.state}")
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()
        self.hosts.close()


@pytest.mark.timing
@pytest.mark.parametrize("burst", BURSTS)
def test_connection_under_a_flood_of_requests(start, figures, burst):
    topology = start(FloodedSegments)
    with Flood(topology, burst) as flood:
        topology.wait_for("requests in all segments to be decided", lambda: min(topology.requests()) > burst)
        sent, begin = flood.sent, time.monotonic()
        answered = first_ping(topology.ib, ETH_IP)
        first = time.monotonic() - begin
        topology.wait_for("the connections of the other host", topology.connected)
        seconds = time.monotonic() - begin
        rate = (flood.sent - sent) / seconds
        decided, refused = topology.requests(), flood.hosts.rejected
        # Its connections are not the ones that make room for those of the flood.
        again = first_ping(topology.ib, ETH_IP) and first_ping(topology.eth, IB_IP) and topology.connected()
    figures(first_ping=round(first, 3), connected=round(seconds, 3), requests_a_second=round(rate), decided=decided, rejected=dict(refused),
            established=len(flood.hosts.opened))
    assert answered and again
    assert flood.hosts.opened, "the flood has no connection"
    assert seconds < PROMISE
