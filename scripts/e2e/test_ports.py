"""Several Ethernet ports and InfiniBand devices: nothing of a segment is seen in another, and trouble with a
port stays there."""

import json
import socket

import pytest
from testbed.exporter import samples
from testbed.follower import Follower
from testbed.ports import ETHERNETS, Ports, PortsOfTwoWorkers
from testbed.programs import DEADLINE, run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, GW_IP, IB_IP
from testbed.traffic import first_ping, ping, send_file

pytestmark = pytest.mark.netns

FILE_BYTES = 8 << 20
ETH_P_ALL, CAPTURE_ALL = 3, socket.htons(3)


@pytest.fixture(params=[Ports, PortsOfTwoWorkers])
def ports(request, start):
    return start(request.param)


class Monitor:
    """All packets that a host's interface sees, counted by segment: the payload of each segment's pings is a
    pattern of its own."""

    def __init__(self, netns, dev, segments):
        self.segments = segments
        self.socket = socket_in(netns, socket.AF_PACKET, socket.SOCK_RAW, CAPTURE_ALL)
        self.socket.bind((dev, ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.setblocking(False)

    def counts(self):
        """Packets so far of each segment that was seen."""
        counts = {}
        while True:
            try:
                packet = self.socket.recv(65536)
            except BlockingIOError:
                return counts
            for n, s in enumerate(self.segments):
                if bytes([0xA0 + n]) * 40 in packet:
                    counts[s.name] = counts.get(s.name, 0) + 1

    def close(self):
        self.socket.close()


def ping_with_pattern(topology, number):
    """One ping in each direction; in every other segment the InfiniBand host is the first to send."""
    s = topology.segments[number]
    directions = ((s.eth, IB_IP), (s.ib, ETH_IP))
    for netns, target in directions if number % 2 else reversed(directions):
        result = ping(netns, target, 100, count=1, wait=60, more=("-p", f"{0xA0 + number:02x}"))
        assert result["ok"], f"{s.name}: {netns} to {target}: {result}"


@pytest.mark.parametrize("ports", [pytest.param(Ports, marks=pytest.mark.core), PortsOfTwoWorkers], indirect=True)
def test_first_packets_stay_in_their_segment(ports):
    """The first packets of all, one in each direction in each segment, are seen on the interfaces of their
    segment and on no other."""
    segments = ports.segments
    monitors = {f"wire {n}": (Monitor(ports.wire(n), "eth0", segments), {s.name for s in segments if s.ethernet == n}) for n in ETHERNETS}
    monitors |= {s.ib: (Monitor(s.ib, "ib0", segments), {s.name}) for s in segments}
    monitors |= {s.eth: (Monitor(s.eth, "eth0", segments), {s.name}) for s in segments if s.vlan}
    try:
        # Packets of the second round arrive behind whatever went astray in the first one.
        for _ in range(2):
            for number in range(len(segments)):
                ping_with_pattern(ports, number)
        seen = {name: (set(monitor.counts()), own) for name, (monitor, own) in monitors.items()}
    finally:
        for monitor, _ in monitors.values():
            monitor.close()
    assert {name: counts for name, (counts, _) in seen.items()} == {name: own for name, (_, own) in seen.items()}


def test_files(ports, figures):
    """A file in each segment, two to InfiniBand and two to Ethernet."""
    before = ports.ctl("stats")["segments"]
    seconds = {}
    for n, s in enumerate(ports.segments):
        directions = (s.eth, s.ib, IB_IP), (s.ib, s.eth, ETH_IP)
        result = send_file(ports, *directions[n % 2], FILE_BYTES)
        assert result["ok"], f"{s.name}: {result}"
        seconds[s.name] = result["seconds"]
    after = ports.ctl("stats")["segments"]
    sent = {a["segment"]: a["to_infiniband_packets"] - b["to_infiniband_packets"] for a, b in zip(after, before)}
    figures(seconds=seconds, to_infiniband_packets=sent)
    assert all(sent.values()), sent


def test_own_addresses(ports):
    """The gateway answers for itself on both sides of each segment."""
    silent = [(s.name, netns) for s in ports.segments for netns in (s.eth, s.ib) if not first_ping(netns, GW_IP)]
    assert not silent


def test_unplugged_port(ports):
    """Without the cable of one Ethernet port the segments of the other one go on; with it its own segments
    come back."""
    office, others = ports.segments[0], [s for s in ports.segments if s.ethernet == 1]
    ports.connect()
    run("ip", "link", "set", "eth0", "down", netns=ports.wire(0))
    try:
        ports.wait_for("the port's link to be down", lambda: [p["link"] for p in ports.ctl("links")["ethernet_ports"]] == ["down", "up"])
        waits = {row["segment"]: row["waits_for"] for row in ports.ctl("links")["segments"]}
        values = samples(ports.ctl_text("metrics").stdout)
        for s in ports.segments:
            assert waits[s.name] == (None if s in others else "Ethernet port net_af_packet0 has no link"), s.name
            assert values["ipoib_fwd_segment_waiting", f'segment="{s.name}"'] == (s not in others), s.name
        for s in others:
            result = ping(s.eth, IB_IP, 56)
            assert result["ok"], f"{s.name}: {result}"
        # Packets for hosts behind the cable are dropped, and delay no others.
        run("ping", "-n", "-q", "-c", 50, "-i", "0.01", "-W", "0.1", ETH_IP, netns=office.ib, check=False)
        for s in others:
            result = ping(s.ib, ETH_IP, 56)
            assert result["ok"], f"{s.name}: {result}"
    finally:
        run("ip", "link", "set", "eth0", "up", netns=ports.wire(0))
    ports.wait_for("all segments to forward again", ports.all_up)
    ports.wait_for("a packet through the port that is back", lambda: ping(office.eth, IB_IP, 56, count=1)["ok"])


def ethernet_links(ports):
    return [p["link"] for p in ports.ctl("links")["ethernet_ports"]]


@pytest.mark.core
def test_deleted_interfaces(start):
    """Segments of an Ethernet port whose interface was deleted say so and what to do, also when one of its
    name exists again; others go on.

    The gateway ends with its last interface, for the service manager to start it again."""
    ports = start(Ports)
    log = ports.gateway.text
    # Those at the other end exit with their interface.
    for tagger in [p for p in ports.processes if p.name.startswith("tagger")]:
        ports.forget(tagger)
    with Follower(ports, "alarm") as follower:
        run("ip", "link", "del", "gw1", netns=ports.gw)
        ports.wait_for("the port's interface to be missed", lambda: ethernet_links(ports) == ["up", "gone"])
        follower.wait("interface-gone")
    ports.cable(ports.wire(1), "eth0", ports.gw, "gw1")
    waits = {row["segment"]: row["waits_for"] for row in ports.ctl("links")["segments"]}
    health = json.loads(ports.ctl_text("health", "--json", check=False).stdout)
    health = {row["segment"]: row["why"] for row in health["segments"]}
    for s in ports.segments:
        if s.ethernet:
            assert "the interface of Ethernet port net_af_packet1 is gone: restart the gateway" in waits[s.name], s.name
            assert waits[s.name] in health[s.name]
        else:
            assert waits[s.name] is health[s.name] is None
            assert ping(s.eth, IB_IP, 56)["ok"], s.name
    assert log().count("Ethernet port net_af_packet1: its interface is gone; restart the gateway") == 1
    assert ethernet_links(ports) == ["up", "gone"]
    ports.forget(ports.gateway)
    run("ip", "link", "del", "gw0", netns=ports.gw)
    assert ports.gateway.popen.wait(DEADLINE) == 1
    assert "Ethernet port net_af_packet1: its interface is gone; restart the gateway" in log().splitlines()[-1]


BAD_RELOADS = {
    "vlan twice": ('name = "cross"\nethernet = "net_af_packet1"', 'name = "cross"\nethernet = "net_af_packet0"', ("VLAN 100", "annex")),
    "no such port": ("port = 2", "port = 3", ("2 port(s)", "soft0")),
    "no such device": ('device = "soft1"', 'device = "soft7"', ("soft7", "soft0")),
    "no such Ethernet port": ('ethernet = "net_af_packet1"', 'ethernet = "net_af_packet9"', ("net_af_packet9", "net_af_packet1")),
}


def test_bad_reloads(ports):
    """A reload that names ports that do not exist, or a port's VLAN twice, is refused with the line of the
    file, and changes nothing."""
    path = ports.dir / "gateway.toml"
    good = path.read_text()
    for name, (old, new, words) in BAD_RELOADS.items():
        assert old in good, name
        path.write_text(good.replace(old, new, 1))
        out = ports.ctl_text("reload", check=False)
        assert out.returncode, name
        for word in (f"{path}:", *words):
            assert word in out.stderr, name
        assert ports.all_up(), name
    path.write_text(good)
    for s in ports.segments:
        assert ping(s.eth, IB_IP, 56, count=2, wait=DEADLINE // 2)["ok"], s.name
