"""A bridge that does not belong to the gateways: carries each IPv4 broadcast from an Ethernet interface to an
InfiniBand one, and back.

  relay.py ETHERNET TUN
"""

import select
import socket
import struct
import sys

ETH_P_IP, ETH_P_ALL, PACKET_OUTGOING = 0x0800, 0x0003, 4
EVERYONE, BROADCAST = b"\xff" * 6, b"\xff" * 4


def relay(ethernet, tun):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    other = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    one.bind((ethernet, ETH_P_ALL))
    other.bind((tun, ETH_P_ALL))
    header = EVERYONE + one.getsockname()[4] + struct.pack("!H", ETH_P_IP)
    print("relaying", flush=True)
    while True:
        for source in select.select([one, other], [], [])[0]:
            data, address = source.recvfrom(65536)
            if address[2] == PACKET_OUTGOING:
                continue
            if source is one and data[12:14] == b"\x08\x00" and data[30:34] == BROADCAST:
                (length,) = struct.unpack("!H", data[16:18])
                other.sendto(data[14:14 + length], (tun, ETH_P_IP, 0, 0, b""))
            elif source is other and data[16:20] == BROADCAST:
                one.send(header + data)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    relay(*sys.argv[1:])
