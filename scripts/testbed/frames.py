"""Frames and packets byte by byte, for hosts that do not speak as the kernel does."""

import json
import socket
import struct
import time

from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP

EVERYONE = b"\xff" * 6


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(payload=b"", src=ETH_IP, dst=IB_IP, first=0x45, ttl=64, protocol=17, length=None, spoil=False, frag=0):
    words = max((first & 15) * 4, 20) - 20
    length = 20 + words + len(payload) if length is None else length
    head = struct.pack(">BBHHHBBH4s4s", first, 0, length, 1, frag, ttl, protocol, 0, socket.inet_aton(src),
                       socket.inet_aton(dst)) + bytes(words)
    value = checksum(head) ^ (0x5555 if spoil else 0)
    return head[:10] + struct.pack(">H", value) + head[12:] + payload


def arp(sender_mac, sender_ip, target_ip, htype=1, ptype=0x0800, hlen=6, plen=4, op=1):
    return struct.pack(">HHBBH6s4s6s4s", htype, ptype, hlen, plen, op, sender_mac, socket.inet_aton(sender_ip), bytes(6),
                       socket.inet_aton(target_ip))


def send_paced(send, frames, burst=64, pause=0.003):
    """Sends frames in bursts with a pause after each, so that a receiver's ring has room."""
    for at, frame in enumerate(frames):
        send(frame)
        if at % burst == burst - 1:
            time.sleep(pause)


def ethernet_socket(topology):
    """A raw socket on the Ethernet host's interface, with the hardware addresses of the gateway and of the
    host."""
    raw = socket_in(topology.eth, socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind(("eth0", 0))
    gateway = bytes.fromhex(topology.ctl("links")["ethernet"]["mac"].replace(":", ""))
    link = json.loads(run("ip", "-j", "link", "show", "eth0", netns=topology.eth).stdout)[0]
    return raw, gateway, bytes.fromhex(link["address"].replace(":", ""))
