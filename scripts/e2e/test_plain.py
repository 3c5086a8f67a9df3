"""Traffic between hosts of both sides."""

import random
import socket

import pytest
from testbed.programs import DEADLINE
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping

pytestmark = [pytest.mark.netns, pytest.mark.core]

# A round has room in every queue on the path.
DATAGRAMS, ROUND, PORT = 3200, 32, 7040


def test_ping_to_infiniband(gateway):
    assert ping(gateway.eth, IB_IP, 56)["ok"]
    assert ping(gateway.eth, IB_IP, 1472)["ok"]


def test_ping_to_ethernet(gateway):
    assert ping(gateway.ib, ETH_IP, 56)["ok"]
    assert ping(gateway.ib, ETH_IP, 1472)["ok"]


@pytest.mark.parametrize("direction", ["to_infiniband", "to_ethernet"])
def test_every_datagram_arrives(gateway, direction):
    """Thousands of datagrams arrive once each, with their bytes.

    A round is sent when the one before it has arrived.
    """
    ends = (gateway.eth, ETH_IP), (gateway.ib, IB_IP)
    (from_ns, source), (to_ns, target) = ends if direction == "to_infiniband" else reversed(ends)
    with socket_in(from_ns, socket.AF_INET, socket.SOCK_DGRAM) as sender, socket_in(to_ns, socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        sender.bind((source, 0))
        receiver.bind((target, PORT))
        receiver.settimeout(DEADLINE)
        for first in range(0, DATAGRAMS, ROUND):
            sent = [number.to_bytes(4, "big") + random.Random(number).randbytes(number % 1400) for number in range(first, first + ROUND)]
            for data in sent:
                sender.sendto(data, (target, PORT))
            received = []
            while len(received) < ROUND:
                try:
                    received.append(receiver.recv(2000))
                except TimeoutError:
                    missing = [int.from_bytes(data[:4], "big") for data in sent if data not in received]
                    pytest.fail(f"lost: {missing}")
            assert sorted(received) == sorted(sent)
