"""Three segments on one gateway: VLANs joined to partitions, with the same addresses in all of them, and
nothing of one in another."""

import pathlib
import re
import socket

import pytest
from testbed import ibwire
from testbed.segments import SEGMENTS, Segments
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, GW_IP, IB_IP
from testbed.traffic import grown, ping
from testbed.tshark import tshark

pytestmark = pytest.mark.netns

MONITORING = pathlib.Path(__file__).resolve().parents[2] / "docs/monitoring.md"
# The manual's bounds of the number of time series.
BOUNDS = re.compile(r"at most (\d+) for a worker, (\d+) for a segment, (\d+) for a port, and (\d+) besides")


def patterns(data):
    """The segments whose pings' payload is in a packet."""
    return {segment.name for segment in SEGMENTS if bytes([segment.pattern]) * 40 in data}


def test_pings_in_all_segments(start):
    start(Segments).exchange()


def test_orderly_stop_warns_of_no_link(start):
    """Every segment leaves its groups when the gateway is stopped: that is no failure of its link."""
    topology = start(Segments)
    before = len(topology.gateway.text())
    topology.stop_gateway()
    warnings = [line for line in topology.gateway.text()[before:].splitlines() if " WARN " in line or " ERROR " in line]
    assert not warnings


def test_own_address_in_all_segments(start):
    """The gateway answers in each segment for itself."""
    topology = start(Segments)
    for segment in SEGMENTS:
        eth, _ = topology.hosts(segment)
        assert ping(eth, GW_IP, 56, count=3)["ok"], segment.name


def test_neighbors_of_all_segments(start):
    """Each segment knows its own two hosts, though their addresses are the same in all."""
    topology = start(Segments)
    topology.exchange()
    table = topology.ctl("neighbours")
    for side, address in (("infiniband", IB_IP), ("ethernet", ETH_IP)):
        known = sorted(row["segment"] for row in table[side] if row["address"] == address and row["hardware_address"])
        assert known == sorted(segment.name for segment in SEGMENTS), side
    assert len({row["hardware_address"] for row in table["infiniband"] if row["address"] == IB_IP}) == len(SEGMENTS)


def test_vlan_offloads(start):
    """The port strips and inserts the tags of what passes."""
    topology = start(Segments)
    offloads = topology.ctl("links")["ethernet"]["offloads"]
    assert offloads["strip_tags"] and offloads["insert_tags"], offloads
    topology.exchange()


def test_tags_of_no_segment(start):
    """The gateway drops and counts a tag that no segment has, and two tags."""
    topology = start(Segments)
    before = topology.drops()
    with socket_in(topology.eth, socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
        raw.bind(("eth0", 0))
        head, body = b"\xff" * 6 + b"\x02\0\0\0\0\x77", b"\x08\x06" + bytes(46)
        raw.send(head + b"\x81\0\x01\x2c" + body)
        raw.send(head + b"\x88\xa8\0\x64\x81\0\0\x64" + body)
        raw.send(head + b"\x81\0\0\x64\x81\0\0\xc8" + body)
    reasons = ("vlan-unknown", "vlan-stacked")
    dropped = lambda: {reason: count for reason, count in grown(topology.drops(), before).items() if reason in reasons}
    topology.wait_for("the drops", lambda: sum(dropped().values()) >= 3)
    assert dropped() == {"vlan-unknown": 1, "vlan-stacked": 2}


def test_number_of_time_series(start, figures):
    """The number of metrics is the maximum in the manual: for segments, workers and ports, none for hosts."""
    of_worker, of_segment, of_port, of_gateway = map(int, BOUNDS.search(" ".join(MONITORING.read_text().split())).groups())
    topology = start(Segments)
    topology.exchange()
    lines = [line for line in topology.ctl_text("metrics").stdout.splitlines() if line and not line.startswith("#")]
    segments = {s.name: sum(f'segment="{s.name}"' in line for line in lines) for s in SEGMENTS}
    worker = sum(line.startswith("ipoib_fwd_worker_") and 'worker="0"' in line for line in lines)
    ports = sum("ethernet_port" in line for line in lines), sum('device="' in line for line in lines)
    others = len(lines) - sum(segments.values()) - worker - sum(ports)
    figures(all=len(lines), of_segments=segments, of_worker=worker, of_ports=ports, others=others)
    assert not [line for line in lines if ETH_IP in line or IB_IP in line]
    assert all(0 < count <= of_segment for count in segments.values()), segments
    assert worker <= of_worker
    assert max(ports) <= of_port
    assert 0 < others <= of_gateway


def check_fabric_packets(path):
    """Every captured InfiniBand packet has the payload of its own partition's segment or of none; returns the
    packets by segment."""
    by_pkey, seen = {segment.pkey & 0x7FFF: segment.name for segment in SEGMENTS}, dict.fromkeys((s.name for s in SEGMENTS), 0)
    for _, packet in ibwire.read_erf(path):
        bth = 8 if len(packet) > 1 and packet[1] & 3 == 2 else 48
        if found := patterns(packet) if len(packet) >= bth + 4 else ():
            name = by_pkey.get(int.from_bytes(packet[bth + 2:bth + 4], "big") & 0x7FFF)
            assert found == {name}
            seen[name] += 1
    return seen


def check_frames(path):
    """Every captured frame has the payload of its own VLAN's segment; returns the frames by segment."""
    by_vlan, seen = {segment.suffix: segment.name for segment in SEGMENTS}, dict.fromkeys((s.name for s in SEGMENTS), 0)
    for line in tshark(path, "-Y", "icmp", "-T", "fields", "-e", "vlan.id", "-e", "data.data", "-E", "separator=;"):
        vlan, _, data = line.partition(";")
        name = by_vlan.get(vlan)
        assert name is not None, f"VLAN {vlan} is in no segment"
        assert patterns(bytes.fromhex(data)) <= {name}, f"in {name}"
        seen[name] += 1
    return seen


@pytest.mark.core
def test_no_packet_leaves_its_segment(start, figures):
    """No packet of one segment is in another, on either side."""
    topology = start(Segments)
    topology.exchange()
    topology.stop_gateway()
    packets = check_fabric_packets(topology.dir / "gateway.pcap")
    frames = check_frames(topology.dir / "gateway.pcap.eth.pcap")
    figures(packets=packets, frames=frames)
    assert all(packets.values()) and all(frames.values()), (packets, frames)
