"""Counts multicast packets on a UDP cable until SIGTERM, by group, sender and direction.

    mlids.py INTERFACE

Prints "listens" first, and a line "in|out SLID MGID DLID packets" for each counter at the end.
"in" counts packets from the device.
"""

import ipaddress
import signal
import socket
import struct
import sys
from collections import Counter

OUTGOING = 4
UDP = 17
WITH_GRH = 3
FIRST_MULTICAST = 0xC000


def group(frame):
    """Returns SLID, MGID and DLID of an InfiniBand multicast packet, or None for other frames."""
    if len(frame) < 34 or frame[12:14] != b"\x08\x00" or frame[23] != UDP:
        return None
    # Whole packets and first fragments.
    if struct.unpack_from(">H", frame, 20)[0] & 0x1FFF:
        return None
    packet = frame[14 + (frame[14] & 15) * 4 + 8:]
    if len(packet) < 48 or packet[0] & 15 or packet[1] & 3 != WITH_GRH:
        return None
    dlid, _, slid = struct.unpack_from(">HHH", packet, 2)
    mgid = packet[32:48]
    if mgid[0] != 0xFF and not FIRST_MULTICAST <= dlid < 0xFFFF:
        return None
    return slid, str(ipaddress.IPv6Address(mgid)), dlid


def main():
    counts = Counter()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
        wire.bind((sys.argv[1], 0))
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        # SIGTERM is polled between frames; frames received before it are counted.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        wire.settimeout(0.1)
        print("listens", flush=True)
        while True:
            if signal.SIGTERM in signal.sigpending():
                wire.setblocking(False)
            try:
                frame, address = wire.recvfrom(1 << 16)
            except BlockingIOError:
                break
            except TimeoutError:
                continue
            found = group(frame)
            if found:
                counts["out" if address[2] == OUTGOING else "in", *found] += 1
    for (direction, slid, mgid, dlid), count in sorted(counts.items()):
        print(f"{direction} {slid} {mgid} {dlid:#06x} {count}")


if __name__ == "__main__":
    main()
