#!/usr/bin/env python3
"""A wire between two interfaces of one network namespace: it copies every frame that arrives at one to the
other.

A bridge cannot be used where an interface has the address of the host behind it, as those of net_tap have.

    wire.py INTERFACE INTERFACE
"""

import errno
import select
import socket
import struct
import sys
from pathlib import Path

SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
PACKET_OUTGOING, ETH_P_ALL = 4, 3


def start(topology, netns, one, other):
    """Starts a wire that ends with the topology, and waits until it carries frames."""
    wire = topology.background(f"wire {one}", [sys.executable, Path(__file__), one, other], netns)
    topology.wait_for(f"the wire of {one}", lambda: "ready" in wire.text())


def socket_on(interface):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.bind((interface, ETH_P_ALL))
    index = socket.if_nametoindex(interface)
    wire.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
    return wire


def main():
    one, other = socket_on(sys.argv[1]), socket_on(sys.argv[2])
    print("ready", flush=True)
    while True:
        for source in select.select([one, other], [], [])[0]:
            try:
                frame, address = source.recvfrom(65536)
                if address[2] != PACKET_OUTGOING:
                    (other if source is one else one).send(frame)
            except OSError as error:
                # The cable is unplugged, and the frame is lost.
                if error.errno not in (errno.ENETDOWN, errno.ENOBUFS):
                    raise


if __name__ == "__main__":
    main()
