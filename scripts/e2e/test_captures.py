"""Captures of both programs on the wire, read by tshark and byte by byte."""

import collections
import contextlib
import os
import struct
import threading
import time

import pytest
from testbed import ibwire
from testbed.topology import ETH_IP, GW_IP, IB_IP, Topology
from testbed.traffic import packets, ping, send_file, traffic
from testbed.tshark import frame_numbers, malformed, table, tshark

pytestmark = pytest.mark.netns

# Retries that the gateway's connections have; the hosts' have none.
RETRIES, RNR_RETRIES = 2, 5
# Packets of which both CRCs are computed.
CHECKED = 4000
CM = "infiniband.cm."
REQ, REJ, REP, RTU, DREQ, DREP = 0x10, 0x12, 0x13, 0x14, 0x15, 0x16
SEND_ONLY, ACKNOWLEDGE, UD_SEND_ONLY = 4, 17, 100


class Captured(Topology):
    captured = True

    def gateway_config(self):
        retries = f"[infiniband]\nretry-count = {RETRIES}\nrnr-retry = {RNR_RETRIES}\n"
        return super().gateway_config().replace("[infiniband]\n", retries, 1)

    def exchange(self):
        """Everything that a capture should have: both modes, packets of more than the path MTU, and
        handshakes, none of them cut off."""
        for netns, target in ((self.eth, IB_IP), (self.ib, ETH_IP)):
            ping(netns, target, 1400)
        # First, middle and last packets of a message.
        ping(self.ib, GW_IP, 8000, count=3)
        assert send_file(self, self.eth, self.ib, IB_IP, 2 << 20)["ok"]
        self.ctl("mode", "datagram")
        by_datagram = lambda: packets(traffic(self), "ib_ud_unicast_transmit")
        before = by_datagram()
        self.wait_for("pings by datagram", lambda: ping(self.eth, IB_IP, 56, count=5)["ok"] and by_datagram() > before)
        neighbors, link = self.ctl("neighbours"), self.ctl("links")["infiniband"]
        self.ctl("mode", "connected")
        ping(self.eth, IB_IP, 56, count=1)
        self.wait_connected()
        # Each connection has carried something.
        ping(self.eth, IB_IP, 56, count=5)
        self.own_lid = link["lid"]
        addresses = [row["hardware_address"] for row in neighbors["infiniband"]] + [link["addresses"].split(" ")[0]]
        self.qpns = {int(address.replace(":", "")[2:8], 16) for address in addresses}

    def stop(self):
        """Stops the gateway, then the fabric; the captures are complete."""
        self.stop_gateway()
        self.forget(self.fabric)
        assert self.fabric.stop() == 0


@pytest.fixture
def recorded(start):
    """The stopped topology with its captures."""
    topology = start(Captured)
    topology.exchange()
    topology.stop()
    return topology


def number(text):
    return int(text, 0) if text else 0


def test_captures_are_well_formed(recorded, figures):
    """tshark dissects every packet of both programs, and all CRCs are right."""
    for name in ("gateway.pcap", "fabric.pcap"):
        path = recorded.dir / name
        assert malformed(path) == [], name
        captured = ibwire.read_erf(path)
        figures(**{name: len(captured)})
        assert len(captured) > 50, name
        assert len(frame_numbers(path)) == len(captured), name
        for frame, (_, packet) in enumerate(captured[:CHECKED], 1):
            assert ibwire.vcrc(packet[:-2]) == packet[-2:], f"VCRC of packet {frame} of {name}"
            assert ibwire.icrc(packet[:-6]) == packet[-6:-2], f"ICRC of packet {frame} of {name}"


def cm_messages(captured):
    """Messages of communication management by attribute: (frame number, packet, message).

    Communication IDs and private data come from the bytes: tshark has no field for some of them.
    """
    found = collections.defaultdict(list)
    for frame, (_, packet) in enumerate(captured, 1):
        if len(packet) == 290 and packet[8] == UD_SEND_ONLY and packet[29] == 7:
            mad = packet[28:284]
            found[struct.unpack_from(">H", mad, 16)[0]].append((frame, packet, mad[24:]))
    return found


def check_request(fields, of_gateway, qpns):
    """A REQ as tshark reads it: what the IPoIB RFCs want in it."""
    service = number(fields[CM + "req.serviceid"])
    assert service >> 24 == 0x10 << 32, "prefix of the service ID"
    assert service & 0xFFFFFF in qpns, "QPN in the service ID"
    assert number(fields[CM + "req.pkey"]) == 0xFFFF
    assert number(fields[CM + "req.pppmtu"]) == 5, "path MTU (5 is 4096)"
    retries = number(fields[CM + "req.retrcount"]), number(fields[CM + "req.rnrretrcount"])
    assert retries == ((RETRIES, RNR_RETRIES) if of_gateway else (0, 0))
    assert number(fields[CM + "req.transpsvctype"]) == 0, "service type (0 is RC)"
    assert fields[CM + "req.srq"] == "0x01"


def check_private_data(data, qpns):
    """The UD QPN and the receive MTU; 65,524 is 65,520 and the encapsulation header."""
    qpn, mtu = struct.unpack(">II", data)
    assert qpn in qpns
    assert mtu == 65524


@pytest.mark.core
def test_handshakes(recorded, figures):
    """Each REQ has its REP and RTU, what the IPoIB RFCs want is in them, and both sides open connections."""
    path = recorded.dir / "gateway.pcap"
    captured = ibwire.read_erf(path)
    messages = cm_messages(captured)
    requests = table(path, CM + "req", "frame.number", "infiniband.lrh.slid", *(CM + "req." + name for name in (
        "serviceid", "localqpn", "startpsn", "pkey", "pppmtu", "srq", "rnrretrcount", "retrcount", "transpsvctype")))
    reply_fields = {int(row["frame.number"]): row for row in
                    table(path, CM + "rep", "frame.number", CM + "rep.localqpn", CM + "rep.startpsn", CM + "rep.srq")}
    bodies = {frame: body for frame, _, body in messages[REQ]}
    replies = {struct.unpack_from(">I", body, 4)[0]: (frame, packet, body) for frame, packet, body in messages[REP]}
    # In datagram mode there is no listener.
    rejected = {struct.unpack_from(">I", body, 4)[0] for _, _, body in messages[REJ]}
    ready = {struct.unpack_from(">II", body, 0) for _, _, body in messages[RTU]}
    data = [packet for _, packet in captured if packet[8] == SEND_ONLY]
    openers = set()
    for request in requests:
        body = bodies[int(request["frame.number"])]
        (comm,) = struct.unpack_from(">I", body)
        if comm in rejected:
            continue
        assert comm in replies, f"REQ in frame {request['frame.number']} has no REP"
        reply_frame, reply_packet, reply = replies[comm]
        fields = reply_fields[reply_frame]
        assert (comm, struct.unpack_from(">I", reply)[0]) in ready, f"REP in frame {reply_frame} has no RTU"
        check_request(request, number(request["infiniband.lrh.slid"]) == recorded.own_lid, recorded.qpns)
        assert fields[CM + "rep.srq"] == "0x01"
        check_private_data(body[140:148], recorded.qpns)
        check_private_data(reply[36:44], recorded.qpns)
        # The starting PSN in the REP is where the opener begins to send (IBA 12.7.31). Two ports may have a
        # queue pair of one number.
        qpn, psn = number(fields[CM + "rep.localqpn"]), number(fields[CM + "rep.startpsn"])
        first = next((p for p in data if p[2:4] == reply_packet[6:8] and struct.unpack_from(">I", p, 12)[0] & 0xFFFFFF == qpn), None)
        assert first is not None, f"no data to QP {qpn:#x}"
        assert struct.unpack_from(">I", first, 16)[0] & 0xFFFFFF == psn, "PSN of the first data"
        openers.add(request["infiniband.lrh.slid"])
    figures(**{f"{attribute:#x}": len(found) for attribute, found in sorted(messages.items())})
    assert len(openers) == 2
    assert messages[DREQ] and messages[DREP]


def test_captured_data(recorded, figures):
    """IP by connections, ARP and IP by datagrams, and the gateway leaves its groups at its end."""
    path = recorded.dir / "gateway.pcap"
    opcodes = collections.Counter(number(line) for line in tshark(path, "-T", "fields", "-e", "infiniband.bth.opcode"))
    # From the bytes: LRH, BTH, encapsulation header, IPv4. tshark takes some connections' data for SDP's, by
    # their numbers.
    by_connection = sum(packet[1] & 3 == 2 and packet[8] == SEND_ONLY and packet[20:24] == b"\x08\0\0\0" and packet[24] >> 4 == 4
                        for _, packet in ibwire.read_erf(path) if len(packet) > 24)
    figures(by_connection=by_connection, acknowledges=opcodes[ACKNOWLEDGE])
    assert by_connection > 100
    assert opcodes[ACKNOWLEDGE] > 10
    assert len(frame_numbers(path, "infiniband.bth.opcode == 100 && arp")) > 1
    assert frame_numbers(path, "infiniband.bth.opcode == 100 && icmp")
    deleted = table(path, "infiniband.mad.mgmtclass == 3 && infiniband.mad.method == 0x15", "infiniband.mad.attributeid")
    assert 0x38 in [number(row["infiniband.mad.attributeid"]) for row in deleted], "no member record was deleted"


def test_ethernet_capture(recorded, figures):
    path = recorded.dir / "gateway.pcap.eth.pcap"
    assert malformed(path) == []
    kinds = collections.Counter(next((kind for kind in ("arp", "icmp", "tcp") if kind in line), "other")
                                for line in tshark(path, "-T", "fields", "-e", "frame.protocols"))
    figures(**kinds)
    assert kinds["arp"] > 0
    assert kinds["icmp"] > 10
    assert kinds["tcp"] > 100


@contextlib.contextmanager
def hanging_disk(start):
    """A topology whose gateway captures into a pipe that is open and that no process reads."""
    topology = start(Captured, up=False)
    os.mkfifo(topology.dir / "gateway.pcap")
    pipe = os.open(topology.dir / "gateway.pcap", os.O_RDWR)
    try:
        topology.up()

        def misses_packets():
            # More than the rings hold.
            send_file(topology, topology.eth, topology.ib, IB_IP)
            capture = topology.ctl("capture")
            return capture["missing"] > 0 and capture.get("disk_silent_ms", 0) > 1000

        topology.wait_for("packets that the capture misses", misses_packets)
        yield topology
    finally:
        os.close(pipe)


def test_capture_to_a_disk_that_hangs(start, figures):
    """The gateway forwards, makes connections, reports what the capture misses, and exits in order."""
    with hanging_disk(start) as topology:
        missing = topology.ctl("capture")["missing"]
        # Handshakes, while the capture's thread waits for the disk.
        topology.ctl("mode", "datagram")
        topology.ctl("mode", "connected")
        pinged = ping(topology.eth, IB_IP, 56)
        assert pinged["ok"], pinged
        topology.wait_connected()
        metric = [int(line.split()[-1]) for line in topology.ctl_text("metrics").stdout.splitlines()
                  if line.startswith('ipoib_fwd_capture_packets_total{outcome="missing"}')]
        figures(missing=missing, metric=metric)
        assert len(metric) == 1 and metric[0] >= missing
        assert topology.gateway.text().count("does not accept data") == 1
        topology.stop_gateway()
        assert "its disk has not taken the last packets" in topology.gateway.text()


@pytest.mark.timing
def test_a_disk_that_hangs_delays_little(start, figures):
    with hanging_disk(start) as topology:
        answers = []
        for _ in range(50):
            begin = time.monotonic()
            topology.ctl("capture")
            answers.append(time.monotonic() - begin)
        begin = time.monotonic()
        topology.stop_gateway()
        stopped = time.monotonic() - begin
        figures(slowest_answer=round(max(answers), 3), stopped_after=round(stopped, 2))
        assert max(answers) < 5
        assert stopped < 18


class Bounded(Captured):
    """Captures of both programs that are full soon."""

    FILES, SIZE = 2, 64 << 10

    def capture(self, name):
        return ["--capture", self.dir / name, "--capture-files", self.FILES, "--capture-size", self.SIZE]

    def on_disk(self, name):
        """Bytes of each file of a capture at one moment: none if a file appears or disappears meanwhile."""
        before, sizes = set(self.dir.glob(f"{name}*")), {}
        for path in before:
            with contextlib.suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        return sizes if before == set(self.dir.glob(f"{name}*")) else {}

    def complete(self):
        """The gateway's files once their number is at its limit; a rotation temporarily has one less."""
        files = self.ctl("capture")["files"]
        return files if len(files) == 2 * self.FILES else None


@contextlib.contextmanager
def watched(topology):
    """Looks at the gateway's captures all the time; the largest sum of their sizes is in the list when it is
    over."""
    highest, over = [0], threading.Event()

    def watch():
        while not over.wait(0.001):
            highest[0] = max(highest[0], sum(topology.on_disk("gateway.pcap").values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield highest
    finally:
        over.set()
        watcher.join()


def test_size_of_captures_is_bounded(start, figures):
    """Captures take no more space than their limits, even over a restart, and tshark reads each file."""
    topology = start(Bounded)
    with watched(topology) as highest:
        assert send_file(topology, topology.eth, topology.ib, IB_IP, 2 << 20)["ok"]
        assert topology.ctl("capture")["state"] == "captures"
        topology.stop_gateway()
        stale = topology.on_disk("gateway.pcap")
        topology.start_gateway()
        topology.wait_for("a ping after the restart", lambda: ping(topology.eth, IB_IP, 56, count=1)["ok"])
        fresh = topology.on_disk("gateway.pcap")
        assert send_file(topology, topology.ib, topology.eth, ETH_IP, 2 << 20)["ok"]
        topology.wait_for("the maximum number of files", topology.complete)
        topology.stop()
    figures(highest=highest[0])
    # InfiniBand and Ethernet packets.
    assert 0 < highest[0] <= 2 * topology.FILES * topology.SIZE
    assert len(stale) == 2 * topology.FILES
    assert not set(stale) & (set(fresh) - {"gateway.pcap", "gateway.pcap.1", "gateway.pcap.eth.pcap"}), (stale, fresh)
    left = {**topology.on_disk("gateway.pcap"), **topology.on_disk("fabric.pcap")}
    assert len(left) == 3 * topology.FILES, left
    assert max(left.values()) <= topology.SIZE, left
    for name in left:
        assert frame_numbers(topology.dir / name), name
        assert malformed(topology.dir / name) == [], name
