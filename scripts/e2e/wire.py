#!/usr/bin/env python3
"""A wire between two interfaces of one network namespace: what arrives at one leaves by the other. A bridge would not do where an interface
has the address of the host behind it, as those of net_tap.

    wire.py INTERFACE INTERFACE
"""

import errno
import select
import socket
import struct
import sys

SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
PACKET_OUTGOING, ETH_P_ALL = 4, 3


def end(interface):
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.bind((interface, ETH_P_ALL))
    index = socket.if_nametoindex(interface)
    wire.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("iHH8s", index, PACKET_MR_PROMISC, 0, b""))
    return wire


def main():
    one, other = end(sys.argv[1]), end(sys.argv[2])
    print("ready", flush=True)
    while True:
        for source in select.select([one, other], [], [])[0]:
            try:
                frame, address = source.recvfrom(65536)
                if address[2] != PACKET_OUTGOING:
                    (other if source is one else one).send(frame)
            except OSError as error:
                # A cable that is pulled: what is on it is lost.
                if error.errno not in (errno.ENETDOWN, errno.ENOBUFS):
                    raise


if __name__ == "__main__":
    main()
