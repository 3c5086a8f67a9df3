"""Hostile frames from the Ethernet side."""

import collections
import json
import random
import socket
import struct
import time

from checks.laboratory import grown, packets, socket_in
from stage.lab import ETH, ETH_IP, GW, GW_IP, IB_IP
from stage.programs import run
from stage.traffic import ping


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


def hostile_frames(gateway, own):
    """(reason, frame) of everything that must be dropped for that reason."""
    def frame(ethertype, payload, dst=gateway, src=own):
        return dst + src + struct.pack(">H", ethertype) + payload

    data, everyone = bytes(100), b"\xff" * 6
    good = lambda **more: ipv4(data, **more)
    return [
        ("truncated", frame(0x0800, b"")),
        ("truncated", frame(0x0800, good()[:19])),
        ("truncated", frame(0x0800, ipv4(data, length=1400))),
        ("truncated", frame(0x0800, ipv4(data, length=65535))),
        ("bad-length", frame(0x0800, ipv4(data, length=19))),
        ("bad-length", frame(0x0800, ipv4(data, length=0))),
        ("bad-length", frame(0x0800, ipv4(data, first=0x44))),
        ("bad-length", frame(0x0800, ipv4(data, first=0x4F, length=59))),
        ("bad-ipv4-version", frame(0x0800, ipv4(data, first=0x65))),
        ("bad-ipv4-version", frame(0x0800, ipv4(data, first=0x05))),
        ("bad-ipv4-checksum", frame(0x0800, ipv4(data, spoil=True))),
        ("ttl-exceeded", frame(0x0800, good(ttl=0))),
        ("martian", frame(0x0800, good(src="127.0.0.1"))),
        ("martian", frame(0x0800, good(src="224.0.0.1"))),
        ("martian", frame(0x0800, good(src="255.255.255.255"))),
        ("martian", frame(0x0800, good(src="0.0.0.0"))),
        ("martian", frame(0x0800, good(src=GW_IP))),
        ("martian", frame(0x0800, good(src=IB_IP))),
        ("martian", frame(0x0800, good(dst="127.0.0.1"))),
        ("martian", frame(0x0800, good(dst="240.0.0.1"))),
        ("martian", frame(0x0800, good(dst="10.77.0.0"))),
        ("martian", frame(0x0800, good(), src=b"\x01" + own[1:])),
        ("off-subnet", frame(0x0800, good(dst="198.51.100.7"))),
        ("group-unknown", frame(0x0800, good(dst="239.1.2.3"), dst=b"\x01\x00\x5e\x01\x02\x03")),
        ("link-broadcast-of-unicast", frame(0x0800, good(), dst=everyone)),
        ("not-for-us", frame(0x0800, good(), dst=b"\x02\x13\x13\x13\x13\x13")),
        ("loop-self", frame(0x0800, good(), src=gateway)),
        ("loop-self", frame(0x0806, arp(gateway, "10.77.0.9", IB_IP), dst=everyone)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, htype=32), dst=everyone)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, ptype=0x86DD), dst=everyone)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, hlen=20), dst=everyone)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, plen=16), dst=everyone)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, op=9), dst=everyone)),
        ("truncated", frame(0x0806, arp(own, ETH_IP, IB_IP)[:27], dst=everyone)),
        ("hostile-arp", frame(0x0806, arp(own, GW_IP, IB_IP), dst=everyone)),
        ("hostile-arp", frame(0x0806, arp(own, GW_IP, GW_IP, op=2), dst=everyone)),
        ("hostile-arp", frame(0x0806, arp(b"\xff" * 6, "10.77.0.9", IB_IP), dst=everyone)),
        ("hostile-arp", frame(0x0806, arp(bytes(6), "10.77.0.9", IB_IP), dst=everyone)),
        ("hostile-arp", frame(0x0806, arp(own, "10.77.0.255", IB_IP), dst=everyone)),
        ("hostile-arp", frame(0x0806, arp(own, "224.0.0.5", IB_IP), dst=everyone)),
        ("vlan-unknown", frame(0x8100, b"\x00\x05\x08\x00" + good())),
        ("vlan-stacked", frame(0x88A8, b"\x00\x05\x81\x00\x00\x06\x08\x00" + good())),
        ("ipv6", frame(0x86DD, b"\x60" + bytes(59))),
        ("unknown-ethertype", frame(0x0026, b"\x42\x42\x03" + bytes(35), dst=b"\x01\x80\xc2\x00\x00\x00")),
        ("unknown-ethertype", frame(0x88CC, bytes(46), dst=everyone)),
        ("unknown-ethertype", frame(0x0000, b"")),
    ]


def send_paced(send, frames, burst=64, pause=0.003):
    for at, frame in enumerate(frames):
        send(frame)
        if at % burst == burst - 1:
            time.sleep(pause)


def send_watched(lab, send, frames, burst=256):
    """As many frames at a time as the ring of the port holds, and the next ones when the gateway has taken those: one that stands still
    for a moment misses none."""
    received = lambda: packets(lab.ctl("stats")["traffic"], "eth_receive")
    before, sent = received(), 0
    for frame in frames:
        send(frame)
        sent += 1
        if sent == burst:
            end, last = time.monotonic() + 2, before
            # Some are none that a port takes: those are few.
            while (now := received()) - before < sent and time.monotonic() < end and not (now == last and now - before > 0.9 * sent):
                last = now
                time.sleep(0.01)
            before, sent = now, 0


# Most buffers that a worker has in hand between pool and receive queues (`STASH`): it takes them all at a time, so the number in
# use goes up and down by as many without a leak. What must not leak is sent more often than that.
IN_HAND = 64
OFTEN = 100


def settle(lab, before, seconds=20.0):
    """Buffers in use beyond `before` and those in hand, 0 if none, at the latest when time is over; and all that are in use."""
    end = time.monotonic() + seconds
    while True:
        now = lab.in_use()
        if now <= before + IN_HAND or time.monotonic() > end:
            return max(0, now - before - IN_HAND), now
        time.sleep(0.1)


def ethernet_socket(lab):
    raw = socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind(("eth0", 0))
    gateway = bytes.fromhex(lab.ctl("links")["ethernet"]["mac"].replace(":", ""))
    own = bytes.fromhex(json.loads(run("ip", "-j", "link", "show", "eth0", netns=ETH).stdout)[0]["address"].replace(":", ""))
    return raw, gateway, own


def check_hostile_frames(lab):
    raw, gateway, own = ethernet_socket(lab)
    times, wrong, want = OFTEN, [], collections.Counter()
    in_use, begin = lab.in_use(), lab.ctl("stats")["drops"]
    frames = hostile_frames(gateway, own)
    before = begin
    with raw:
        for reason, frame in frames:
            want[reason] += times
            for _ in range(times):
                raw.send(frame)
            end, got = time.monotonic() + 10, {}
            while time.monotonic() < end and got.get(reason, 0) < times:
                time.sleep(0.01)
                now = lab.ctl("stats")["drops"]
                got = grown(now, before)
            before = now
            if got != {reason: times}:
                wrong.append({"frame": frame[:60].hex(), "want": reason, "got": got})
    leaked, left = settle(lab, in_use)
    alive = ping(ETH, IB_IP, 56)
    return {"ok": not wrong and alive["ok"] and not leaked, "kinds": len(frames), "each": times,
            "dropped": grown(lab.ctl("stats")["drops"], begin), "wrong": wrong, "ping": alive["received"],
            "buffers": [in_use, left]}


def check_odd_sizes(lab):
    """From the shortest to far more than the MTU."""
    raw, gateway, own = ethernet_socket(lab)
    in_use = lab.in_use()
    for netns, dev in ((ETH, "eth0"), (GW, "gw0")):
        run("ip", "link", "set", dev, "mtu", 9000, netns=netns)
    try:
        with raw:
            def send(frame):
                try:
                    raw.send(frame)
                except OSError:
                    pass
            # No frag bits: the gateway may cut what is too long, or drop it.
            sizes = [*range(0, 64), 1480, 1500, 1501, 1518, 1600, 2000, 2040, 2048, 2100, 4000, 4096, 8980]
            frames = [gateway + own + b"\x08\x00" + ipv4(bytes(max(0, n - 20)))[:n] for n in sizes for _ in range(10)]
            send_paced(send, frames, 16, 0.01)
    finally:
        for netns, dev in ((ETH, "eth0"), (GW, "gw0")):
            run("ip", "link", "set", dev, "mtu", 1500, netns=netns)
    (leaked, left), alive = settle(lab, in_use), ping(ETH, IB_IP, 1472)
    return {"ok": alive["ok"] and not leaked, "frames": len(frames), "ping": alive["received"],
            "buffers": [in_use, left]}


def check_random_frames(lab, count=20000, seed=1):
    raw, gateway, own = ethernet_socket(lab)
    chance, in_use, before = random.Random(seed), lab.in_use(), lab.ctl("stats")
    head = [gateway + own, b"\xff" * 6 + own, b"\x01\x00\x5e\x00\x00\x01" + own]
    types = [b"\x08\x00"] * 4 + [b"\x08\x06", b"\x81\x00", b"\x86\xdd", None]

    def frame():
        body = bytearray(chance.randbytes(chance.randrange(0, chance.choice([64, 1500]))))
        kind = chance.choice(types) or chance.randbytes(2)
        if body and chance.random() < 0.5:
            body[0] = 0x45
        return chance.choice(head) + kind + bytes(body)

    with raw:
        send_watched(lab, raw.send, (frame() for _ in range(count)))
    time.sleep(0.3)
    after = lab.ctl("stats")
    (leaked, left), alive = settle(lab, in_use), ping(ETH, IB_IP, 56)
    arrived = packets(after["traffic"], "eth_receive") - packets(before["traffic"], "eth_receive")
    dropped = grown(after["drops"], before["drops"])
    return {"ok": alive["ok"] and not leaked and arrived > count * 0.9 and sum(dropped.values()) > arrived * 0.95,
            "sent": count, "arrived": arrived, "dropped": dropped, "ping": alive["received"], "buffers": [in_use, left]}


def check_overlong_fragment(lab):
    """A last fragment that would end behind 65,535; on a port that takes fragments as they come, as `check_stats_lines` leaves it."""
    raw, gateway, own = ethernet_socket(lab)
    before = lab.ctl("stats")["drops"].get("bad-length", 0)
    with raw:
        for _ in range(20):
            raw.send(gateway + own + b"\x08\x00" + ipv4(bytes(200), frag=0x1FFF))
    end, got = time.monotonic() + 20, 0
    while got < 20 and time.monotonic() < end:
        time.sleep(0.1)
        got = lab.ctl("stats")["drops"].get("bad-length", 0) - before
    return {"ok": got == 20, "bad_length": got}
