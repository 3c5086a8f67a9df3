"""Hostile packets from the fabric."""

import collections
import random
import socket
import struct
import time

import pytest
from testbed import ibwire
from testbed.frames import ipv4
from testbed.hostility import OFTEN, wait_for_buffers
from testbed.programs import DEADLINE
from testbed.topology import ETH_IP, GW_IP, IB_IP, Topology
from testbed.traffic import grown, ping

pytestmark = pytest.mark.netns

QKEY = 0x0B1B
NO_SUCH_QPN = 0x7FFFFF
CM_MESSAGES = {"mra": 0x11, "rej": 0x12, "rep": 0x13, "rtu": 0x14, "dreq": 0x15, "drep": 0x16, "lap": 0x19, "unknown": 0x77}
# Drop reasons of the gateway's device, and those of the gateway, each of which must occur.
BY_DEVICE = {"bad_icrc": "icrc", "wrong_qkey": "qkey", "no_such_qp": "no_queue_pair"}
BY_GATEWAY = ("truncated", "bad-arp", "hostile-arp", "martian")


class Intruded(Topology):
    """A second link of the fabric, on which the intruder is."""

    intruder = True


def ipoib(kind=0x0800, body=b""):
    return struct.pack(">HH", kind, 0) + body


def with_vcrc(body):
    return body + ibwire.vcrc(body)


class Attacks:
    """Makers of hostile packets.

    `gateway`, `host` and `me` are LIDs, `address` is the gateway's link-layer address.
    """

    def __init__(self, intruder, gateway, host, address, seed=2):
        self.chance = random.Random(seed)
        self.me, self.sm, self.guid = intruder.lid, intruder.sm_lid, intruder.guid
        self.gateway, self.host, self.address = gateway, host, address
        self.qpn = int.from_bytes(address[1:4], "big")
        self.good = ipoib(body=ipv4(bytes(64), src="10.77.0.66", dst=ETH_IP))

    def datagram(self, payload, qpn=None, qkey=QKEY, **more):
        return ibwire.ud(self.gateway, self.me, self.qpn if qpn is None else qpn, 5, qkey, payload, **more)

    def mad(self, payload):
        return ibwire.ud(self.gateway, self.me, 1, 1, ibwire.GSI_QKEY, payload)

    def cm(self, attribute, body):
        return self.mad(ibwire.cm(attribute, body, self.chance.getrandbits(64)))

    def marker(self):
        """A packet that the gateway's device drops and counts."""
        return self.datagram(self.good, qpn=NO_SUCH_QPN)

    def bad_length(self):
        packet = self.datagram(self.good)
        return with_vcrc(packet[:4] + struct.pack(">H", self.chance.randrange(0, 2048)) + packet[6:-2])

    def bad_arp(self):
        return self.datagram(ipoib(0x0806, struct.pack(">HHBBH", 32, 0x0800, 6, 4, 1) + self.chance.randbytes(48)))

    def arp_of_gateway(self):
        hardware = b"\0\0\0\5" + self.chance.randbytes(16)
        return self.datagram(ipoib(0x0806, struct.pack(">HHBBH", 32, 0x0800, 20, 4, 2) + hardware + socket.inet_aton(GW_IP)
                                   + self.address + socket.inet_aton(GW_IP)))

    def rc_from_elsewhere(self):
        return ibwire.finish(ibwire.lrh(self.gateway, self.me) + ibwire.bth(
            4, self.chance.randrange(2, 0xFFFF), psn=self.chance.getrandbits(24), ack=True) + self.good)

    def request_without_private_data(self):
        """A REQ that is right but for its private data: none, where QPN and MTU belong."""
        body, bits = bytearray(232), self.chance.getrandbits
        struct.pack_into(">IIQQIIIIIII", body, 0, bits(32), 0, 0x10 << 56 | self.qpn, self.guid, 0, 0, bits(24) << 8 | 4, 0, 0x14 << 3,
                         bits(24) << 8 | 0xA0, 0xFFFF5008)
        struct.pack_into(">HHHH", body, 48, 0xFFFF, 0x5008, self.me, self.gateway)
        prefix = struct.pack(">Q", 0xFE80 << 48)
        body[56:72], body[72:88] = prefix + struct.pack(">Q", self.guid + 1), prefix + self.address[12:20]
        struct.pack_into(">IBBBB", body, 88, 0, 0, 0, 8, 0x98)
        return self.cm(0x10, bytes(body))

    def all(self):
        """(name, maker) of each kind; the ones to the subnet manager, to subnet administration and to the
        host are the last."""
        chance, good, datagram = self.chance, self.good, self.datagram
        yield "random", lambda: bytes([chance.getrandbits(4) << 4]) + chance.randbytes(chance.randrange(0, 4200))
        yield "random_small", lambda: chance.randbytes(chance.randrange(1, 40))
        yield "bad_vcrc", lambda: datagram(good)[:-2] + b"\xab\xcd"
        yield "bad_icrc", lambda: with_vcrc(datagram(good)[:-6] + b"\x01\x02\x03\x04")
        yield "bad_length", self.bad_length
        yield "wrong_pkey", lambda: datagram(good, pkey=0x8123)
        yield "wrong_qkey", lambda: datagram(good, qkey=0x1234)
        yield "no_such_qp", self.marker
        yield "opcode", lambda: datagram(good, opcode=chance.randrange(256))
        yield "truncated_ipoib", lambda: datagram(good[:chance.randrange(0, 24)])
        yield "not_ipoib", lambda: datagram(ipoib(chance.getrandbits(16), good[4:]))
        yield "bad_arp", self.bad_arp
        yield "arp_of_gateway", self.arp_of_gateway
        yield "martian", lambda: datagram(ipoib(body=ipv4(bytes(64), src=ETH_IP, dst=ETH_IP)))
        yield "rc_from_elsewhere", self.rc_from_elsewhere
        yield "unknown_class", lambda: self.mad(bytes([1, chance.choice([0x05, 0x09, 0x2F, 0x42, 0xFE]), 1, 1]) + chance.randbytes(252))
        yield "random_mad", lambda: self.mad(chance.randbytes(256))
        yield "short_mad", lambda: self.mad(chance.randbytes(chance.randrange(0, 255)))
        for name, attribute in CM_MESSAGES.items():
            yield f"cm_{name}", lambda attribute=attribute: self.cm(attribute, chance.randbytes(232))
        yield "cm_req_without_private_data", self.request_without_private_data
        yield "cm_req_random", lambda: self.cm(0x10, chance.randbytes(232))
        yield "sm_random", lambda: ibwire.ud(self.sm, self.me, 0, 0, 0, bytes([1, chance.choice([1, 0x81]), 1]) + chance.randbytes(253),
                                             vl=15)
        yield "sa_random", lambda: ibwire.ud(self.sm, self.me, 1, 1, ibwire.GSI_QKEY, bytes([1, 3, 2]) + chance.randbytes(253))
        yield "host_random_mad", lambda: ibwire.ud(self.host, self.me, 1, 1, ibwire.GSI_QKEY, bytes([1, 7, 2, 3]) + chance.randbytes(252))


def device_drops(topology):
    return topology.ctl("links").get("device_drops", {})


def send_until_counted(topology, intruder, make, reason, times):
    """Sends packets until the gateway's device has dropped `times` of them for a reason: the UDP link may
    lose some."""
    before, end = device_drops(topology).get(reason, 0), time.monotonic() + DEADLINE
    while (missing := times - (device_drops(topology).get(reason, 0) - before)) > 0:
        topology.check_alive()
        assert time.monotonic() < end, f"{missing} of {times} drops by the device are missing: {reason}"
        for _ in range(missing):
            intruder.send(make())
        # The link holds some of them while the fabric stands still.
        time.sleep(0.02)


def attack(topology, intruder, attacks):
    """Sends OFTEN packets of each kind, and waits after each kind until the gateway has taken all of them;
    returns the kinds."""
    kinds = []
    # A port is reachable a moment after it is active.
    send_until_counted(topology, intruder, attacks.marker, "no_queue_pair", 1)
    for name, make in attacks.all():
        kinds.append(name)
        if name in BY_DEVICE:
            send_until_counted(topology, intruder, make, BY_DEVICE[name], OFTEN)
        else:
            for _ in range(OFTEN):
                intruder.send(make())
            send_until_counted(topology, intruder, attacks.marker, "no_queue_pair", 1)
    return kinds


def cm_answers(intruder):
    """Messages of communication management that the intruder has received, by attribute."""
    mads = [packet[28:] for packet in intruder.received if len(packet) == 290 and packet[29] == 7]
    return dict(collections.Counter(f"{struct.unpack_from('>H', mad, 16)[0]:#x}" for mad in mads))


@pytest.mark.core
def test_hostile_packets(start, figures):
    """The device and the gateway drop and count them, lose no buffer, and forward as before."""
    topology = start(Intruded)
    link = topology.ctl("links")["infiniband"]
    host = next(n["dlid"] for n in topology.ctl("neighbours")["infiniband"] if n["address"] == IB_IP)
    address = bytes.fromhex(link["addresses"].split(" ")[0].replace(":", ""))
    in_use, drops, by_device = topology.buffers_in_use(), topology.drops(), device_drops(topology)
    intruder = ibwire.Intruder(topology.far, topology.near)
    intruder.start()
    try:
        assert intruder.wait_active(DEADLINE), f"the intruder's port is in state {intruder.state}, LID {intruder.lid}"
        kinds = attack(topology, intruder, Attacks(intruder, link["lid"], host, address))
        answers = cm_answers(intruder)
    finally:
        intruder.close()
    # A kind of packet that leaks has leaked all that were sent of it.
    wait_for_buffers(topology, in_use)
    to_infiniband, to_ethernet = ping(topology.eth, IB_IP, 56), ping(topology.ib, ETH_IP, 56)
    assert to_infiniband["ok"], to_infiniband
    assert to_ethernet["ok"], to_ethernet
    drops, by_device = grown(topology.drops(), drops), grown(device_drops(topology), by_device)
    figures(kinds=len(kinds), dropped=drops, dropped_by_device=by_device, cm_answers=answers)
    assert all(by_device.get(reason, 0) >= OFTEN for reason in BY_DEVICE.values()), by_device
    # The switch lets nothing of a partition pass that the intruder is not in.
    assert by_device.get("pkey", 0) == 0
    assert all(drops.get(reason, 0) >= 10 for reason in BY_GATEWAY), drops
