"""Two gateways without a key: their logs say what they cannot promise, and forged hellos block neither of
them."""

import contextlib
import socket
import struct

import pytest
from testbed.ibhosts import Hosts
from testbed.neighbour import GUID
from testbed.pair import FOREIGN_IP, NAMES, PatientPair
from testbed.programs import DEADLINE, TestbedError
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import first_ping

pytestmark = [pytest.mark.netns, pytest.mark.core]

ETHERTYPE_HELLO, PAIR_GROUP = 0x88B5, bytes.fromhex("034950475701")
# Offsets in a message between gateways: its kind, the identity of its sender, and the side on which it was
# sent.
MAGIC, KIND, LENGTH, SENDER, SIDE = b"IPGW", 5, 6, slice(16, 32), 40
HELLO = 1
# Headers in front of the message: LRH, GRH, BTH, DETH and IPoIB header.
INFINIBAND_HEADERS = 8 + 40 + 12 + 8 + 4
# Forged hellos of each gateway.
FORGED = 20


class KeylessPair(PatientPair):
    """Nobody has given the gateways a key. The fabric has a second link for a liar."""

    pair_key, intruder = None, True

    def fabric_config(self):
        near, far = ("%s:%d" % address for address in (self.near, self.far))
        return super().fabric_config() + f'\n[[link]]\nname = "intruder"\nurl = "udp:{near}-{far}"\n'


class EthernetLiar:
    """A host on Ethernet that hears hellos and sends its own."""

    def __init__(self, pair):
        self.socket = socket_in(pair.eth, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE_HELLO))
        self.socket.bind(("eth0", ETHERTYPE_HELLO))
        self.socket.settimeout(DEADLINE)

    def hear(self):
        return self.socket.recv(2048)[14:]

    def send(self, message):
        self.socket.send(PAIR_GROUP + self.socket.getsockname()[4] + struct.pack(">H", ETHERTYPE_HELLO) + message)

    def close(self):
        self.socket.close()


class InfiniBandLiar(Hosts):
    """A host on InfiniBand that hears hellos and sends its own."""

    def __init__(self, pair):
        links = pair.answer_of("a", "links")["infiniband"]
        gateway = bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))
        super().__init__(pair.far, pair.near, GUID, [FOREIGN_IP], (links["lid"], gateway))
        self.pair, self.hellos = pair, []
        self.start()
        if not self.wait_active(DEADLINE) or not self.join_group(DEADLINE):
            self.close()
            raise TestbedError("the liar's port does not come up")

    def take(self, packet):
        message = packet[INFINIBAND_HEADERS:]
        if message.startswith(MAGIC):
            self.hellos.append(message[:int.from_bytes(message[LENGTH:LENGTH + 2], "big")])
        super().take(packet)

    def hear(self):
        return self.pair.wait_for("a message between gateways", lambda: self.hellos and self.hellos.pop(0))

    def send(self, packet):
        # Packets of the port itself are complete; messages get their headers here.
        if packet.startswith(MAGIC):
            self.send_all(0, struct.pack(">HH", ETHERTYPE_HELLO, 0) + packet)
        else:
            super().send(packet)


def suspected(pair):
    """By gateway: hellos in its own name that arrived on the side on which it had not sent them."""
    return {name: pair.state(name)["hellos"]["suspected"] for name in NAMES}


def hellos(liar):
    """A hello of each of the two gateways, by sender."""
    heard = {}
    while len(heard) < len(NAMES):
        message = liar.hear()
        if message[KIND] == HELLO:
            heard[message[SENDER]] = message
    return heard.values()


def check_warnings(pair):
    """A gateway that meets another one says in its log what a pair without a key cannot promise."""
    for name in NAMES:
        warnings = [line for line in pair.gateways[name].text().splitlines() if "WARN" in line and "is there" in line]
        assert warnings and all("There is no `gateway.pair-key`" in line and "`ipoib-fwd init`" in line for line in warnings), name


@pytest.mark.parametrize("liar_of", [EthernetLiar, InfiniBandLiar], ids=["ethernet", "infiniband"])
def test_pair_without_a_key(start, liar_of):
    """They are a pair and warn.

    A host of one side repeats hellos of both as if they had been sent on the other side: they probe, find no
    loop, and go on.
    """
    pair = start(KeylessPair)
    forwarder, other = pair.wait_settled()
    check_warnings(pair)
    before = suspected(pair)
    with contextlib.closing(liar_of(pair)) as liar:
        for message in hellos(liar):
            forged = bytearray(message)
            forged[SIDE] ^= 1
            for _ in range(FORGED):
                liar.send(bytes(forged))
        pair.wait_for("both gateways to take the forged hellos",
                      lambda: all(count - before[name] >= FORGED for name, count in suspected(pair).items()))
        # The one that forwards still does, and the other one does not take over.
        assert first_ping(pair.eth, IB_IP)
        assert first_ping(pair.ib, ETH_IP)
    assert [pair.role(name) for name in (forwarder, other)] == ["forwarding", "standby"]
    assert [pair.state(name)["loops"] for name in NAMES] == [0, 0]
    assert not any("which is a loop" in pair.gateways[name].text() or "packets come back" in pair.gateways[name].text() for name in NAMES)
