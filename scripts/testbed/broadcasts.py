"""Numbered broadcasts between the hosts of both networks: how often each arrives, and whether any comes
back."""

import contextlib
import select
import socket
import struct
import time

from testbed.frames import EVERYONE, ipv4
from testbed.programs import DEADLINE, TestbedError
from testbed.sockets import socket_in

ETH_P_IP, ETH_P_ALL, PACKET_OUTGOING = 0x0800, 0x0003, 4
PORT, MARK = 67, b"testbed-broadcast"
# Numbers of the broadcasts that follow those which are counted, and how many of them go there and back one
# after the other.
FLUSH_FROM, FLUSHES = 1 << 20, 3


def numbered(number):
    # The gateway recognizes copies of a packet by the first bytes of its payload.
    body = struct.pack(">I", number) + MARK
    return ipv4(struct.pack(">HHHH", PORT, PORT, 8 + len(body), 0) + body, src="0.0.0.0", dst="255.255.255.255")


class Broadcasts:
    """A raw socket on a host's interface that sends broadcasts with numbers and counts those that arrive, by
    number."""

    def __init__(self, netns, dev, ethernet):
        self.dev, self.counts = dev, {}
        self.socket = socket_in(netns, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.bind((dev, ETH_P_ALL))
        self.header = EVERYONE + self.socket.getsockname()[4] + struct.pack(">H", ETH_P_IP) if ethernet else b""

    def send(self, number):
        if self.header:
            self.socket.send(self.header + numbered(number))
        else:
            self.socket.sendto(numbered(number), (self.dev, ETH_P_IP, 0, 0, b""))

    def receive(self, seconds):
        """Counts a packet, of whatever kind; False if none arrives in time."""
        if not select.select([self.socket], [], [], max(0, seconds))[0]:
            return False
        data, address = self.socket.recvfrom(2048)
        at = data.find(MARK)
        if address[2] != PACKET_OUTGOING and at >= 4:
            (number,) = struct.unpack_from(">I", data, at - 4)
            self.counts[number] = self.counts.get(number, 0) + 1
        return True

    def wait(self, *numbers):
        """Counts what arrives until each of these broadcasts has arrived once at least."""
        end = time.monotonic() + DEADLINE
        while missing := [n for n in numbers if n not in self.counts]:
            if not self.receive(end - time.monotonic()):
                raise TestbedError(f"broadcasts {missing} have not arrived at {self.dev} within {DEADLINE} s")

    def wait_quiet(self, seconds=1):
        """Counts what arrives until no broadcast has arrived for `seconds`."""
        end = time.monotonic() + DEADLINE
        quiet_since, counted = time.monotonic(), sum(self.counts.values())
        while (now := time.monotonic()) < quiet_since + seconds:
            if now > end:
                raise TestbedError(f"broadcasts still arrive at {self.dev} after {DEADLINE} s: {self.counts}")
            self.receive(quiet_since + seconds - now)
            if (total := sum(self.counts.values())) != counted:
                quiet_since, counted = time.monotonic(), total

    def close(self):
        self.socket.close()


def exchange(topology, count=40, interval=0.02):
    """Sends `count` broadcasts from each host, waits for them at the other one, and then for later ones, so
    that copies have arrived, too.

    Returns how often each arrived at the InfiniBand host and at the Ethernet host, and the numbers of those
    that came back to their sender.
    """
    with contextlib.closing(Broadcasts(topology.eth, "eth0", True)) as eth, contextlib.closing(Broadcasts(topology.ib, "ib0", False)) as ib:
        from_eth, from_ib = range(0, 2 * count, 2), range(1, 2 * count, 2)
        for one, other in zip(from_eth, from_ib):
            eth.send(one)
            ib.send(other)
            # Short enough for every queue on the path.
            time.sleep(interval)
        ib.wait(*from_eth)
        eth.wait(*from_ib)
        for number in range(FLUSH_FROM, FLUSH_FROM + 2 * FLUSHES, 2):
            eth.send(number)
            ib.wait(number)
            ib.send(number + 1)
            eth.wait(number + 1)
        came_back = sorted({n for n in from_eth if n in eth.counts} | {n for n in from_ib if n in ib.counts})
        return [ib.counts[n] for n in from_eth], [eth.counts[n] for n in from_ib], came_back
