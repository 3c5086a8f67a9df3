#!/usr/bin/env python3
"""A VLAN interface in user space, for kernels without them: a TAP device whose frames carry a tag on another
interface.

    tagger.py INTERFACE VLAN NETNS ADDRESS/LENGTH    (the TAP is eth0 of NETNS)
"""

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 2, 0x1000
SOL_PACKET, PACKET_AUXDATA, TP_STATUS_VLAN_VALID = 263, 8, 0x10
PACKET_OUTGOING, ETH_P_ALL = 4, 3


def main():
    interface, vlan, netns, address = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    wire.bind((interface, 0))
    wire.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    # Frames for the TAP's own address are not for this interface.
    index = socket.if_nametoindex(interface)
    wire.setsockopt(SOL_PACKET, 1, struct.pack("iHH8s", index, 1, 0, b""))
    with open(f"/run/netns/{netns}") as other:
        if ctypes.CDLL(None, use_errno=True).setns(other.fileno(), CLONE_NEWNET):
            sys.exit(f"tagger: setns {netns}: {os.strerror(ctypes.get_errno())}")
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
    for arguments in (["link", "set", "eth0", "up"], ["addr", "add", address, "dev", "eth0"]):
        subprocess.run(["ip", *arguments], check=True)
    tag = struct.pack("!HH", 0x8100, vlan)
    print("ready", flush=True)
    while True:
        for fd in select.select([tap, wire], [], [])[0]:
            try:
                if fd is tap:
                    frame = os.read(tap, 65536)
                    wire.send(frame[:12] + tag + frame[12:])
                    continue
                frame, control, _, source = wire.recvmsg(65536, 256)
            except OSError as error:
                if error.errno != errno.ENETDOWN:
                    raise
                # The kernel reports it once; the interface may come back.
                continue
            tags = [struct.unpack("IIIHHHH", data[:20]) for level, kind, data in control
                    if (level, kind) == (SOL_PACKET, PACKET_AUXDATA)]
            ours = any(status & TP_STATUS_VLAN_VALID and tci & 0xFFF == vlan for status, _, _, _, _, tci, _ in tags)
            if ours and source[2] != PACKET_OUTGOING:
                os.write(tap, frame)


if __name__ == "__main__":
    main()
