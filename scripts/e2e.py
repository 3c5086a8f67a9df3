#!/usr/bin/env python3
"""The gateway where it hurts: captures, packets that do not fit, mode switches, hostile packets on both sides, killed
peers, operators' errors. Works on the demo's laboratory (scripts/demo.py) and leaves nothing behind."""

import argparse
import collections
import ctypes
import json
import os
import random
import re
import signal
import socket
import struct
import sys
import time
from pathlib import Path

import demo
import ibwire
from demo import ETH, ETH_IP, GW, GW_IP, HUGEPAGES, IB, IB_IP, PREFIX, Failed, Lab, Process, ping, run, traffic

LOCK_PATIENCE = 180
LIBC = ctypes.CDLL(None, use_errno=True)


def say(text):
    print(f"e2e: {text}", flush=True)


def socket_in(netns, *kind):
    """A socket that lives in another network namespace."""
    own, other = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{netns}", os.O_RDONLY)
    try:
        if LIBC.setns(other, 0x40000000):
            raise Failed(f"setns {netns}: {os.strerror(ctypes.get_errno())}")
        try:
            return socket.socket(*kind)
        finally:
            LIBC.setns(own, 0x40000000)
    finally:
        os.close(own)
        os.close(other)


class Checks:
    """Runs checks, prints them, keeps them."""

    def __init__(self, only):
        self.results, self.only = [], only

    def wanted(self, *names):
        return not self.only or any(n.startswith(o) for n in names for o in self.only)

    def run(self, name, body, lab=None):
        if not self.wanted(name):
            return
        begin = time.monotonic()
        try:
            result = body()
        except Failed as e:
            result = {"ok": False, "error": str(e)[-3000:]}
        result["took"] = round(time.monotonic() - begin, 2)
        self.results.append({"name": name, **result})
        figures = {k: v for k, v in result.items() if k != "ok"}
        say(f"{name}: {'ok' if result['ok'] else 'FAILED'} {json.dumps(figures)}")
        if lab:
            lab.alive()


class Laboratory(Lab):
    """The demo's, with a second link of the fabric for an intruder."""

    def __init__(self, args, intruder=True):
        super().__init__(args)
        self.far, self.near = ibwire.intruder_pair()
        self.with_intruder = intruder

    def fabric_config(self):
        text = super().fabric_config()
        if self.with_intruder:
            near, far = ("%s:%d" % a for a in (self.near, self.far))
            text += f'\n[[link]]\nname = "intruder"\nurl = "udp:{near}-{far}"\n'
        return text

    def up(self):
        self.start()
        self.wait_for("the first packet through the gateway", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 20)
        self.wait_for("connections both ways", lambda: self.ctl("connections").get("established_both_ways"), 10)

    def lose(self, process):
        """Kills a process without a chance to say anything."""
        process.popen.kill()
        process.popen.wait()
        process.out.close()
        self.processes.remove(process)

    def in_use(self):
        return self.ctl("stats")["buffers"]["in_use"]

    def ask(self, *words):
        return run(self.bin / "ipoib-fwd", "ctl", "--socket", self.dir / "control.sock", *words, timeout=10)


def grown(after, before):
    return {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}


def packets(counters, *names):
    return sum(counters[n]["packets"] for n in names)


# -- 1. captures

def tshark(path, *more):
    # Payload of the file transfer is no protocol.
    out = run("tshark", "-n", "-r", path, "-d", f"tcp.port=={demo.FILE_PORT},data", *more, timeout=60, check=False)
    if out.returncode:
        raise Failed(f"tshark: {out.stderr.strip()[-500:]}")
    return out.stdout.splitlines()


def table(path, condition, *fields):
    words = [w for f in fields for w in ("-e", f)]
    return [dict(zip(fields, line.split("\t"))) for line in
            tshark(path, "-Y", condition, "-T", "fields", "-E", "occurrence=f", *words)]


def check_dissected(lab, name):
    bad = tshark(lab.dir / name, "-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number", "-e", "frame.protocols")
    total = len(tshark(lab.dir / name, "-T", "fields", "-e", "frame.number"))
    return {"ok": not bad and total > 50, "packets": total, "malformed": len(bad), "first": bad[:3]}


def check_crcs(lab, name):
    total = icrc = vcrc = 0
    for _, packet in ibwire.read_erf(lab.dir / name)[:4000]:
        total += 1
        vcrc += ibwire.vcrc(packet[:-2]) != packet[-2:]
        icrc += ibwire.icrc(packet[:-6]) != packet[-6:-2]
    return {"ok": total > 50 and not icrc and not vcrc, "packets": total, "wrong_icrc": icrc, "wrong_vcrc": vcrc}


def number(text):
    return int(text, 0) if text else 0


CM = "infiniband.cm."


def check_handshake(lab):
    """Both connections, as tshark reads them: each REQ with its REP and RTU, and what the IPoIB drafts want in them."""
    path = lab.dir / "gateway.pcap"
    # Comm ids and private data come from the bytes: tshark has no field for some of them.
    seen = {}
    for frame, (_, packet) in enumerate(ibwire.read_erf(path), 1):
        if len(packet) == 290 and packet[8] == 100 and packet[28 + 1] == 7:
            mad = packet[28:284]
            seen.setdefault(struct.unpack_from(">H", mad, 16)[0], []).append((frame, packet, mad[24:]))
    fields = [CM + "req." + f for f in ("serviceid", "localqpn", "startpsn", "pkey", "pppmtu", "srq", "rnrretrcount",
                                        "retrcount", "transpsvctype")]
    requests = table(path, "infiniband.cm.req", "frame.number", "infiniband.lrh.slid", *fields)
    replies = table(path, "infiniband.cm.rep", "frame.number", CM + "rep.localqpn", CM + "rep.startpsn", CM + "rep.srq")
    addresses = [n["hardware_address"] for n in lab.neighbours["infiniband"]] + [lab.own_address]
    qpns = {int(a.replace(":", "")[2:8], 16) for a in addresses}
    wrong, found = [], []

    def expect(what, got, want):
        if got != want:
            wrong.append(f"{what}: {got}, not {want}")

    reps = {struct.unpack_from(">I", b, 4)[0]: (f, p, b) for f, p, b in seen.get(0x13, [])}
    # In datagram mode nobody listens.
    rejected = {struct.unpack_from(">I", b, 4)[0] for _, _, b in seen.get(0x12, [])}
    rtus = {struct.unpack_from(">II", b, 0) for _, _, b in seen.get(0x14, [])}
    data = [p for _, p in ibwire.read_erf(path) if p[8] == 4]
    for req in requests:
        frame, packet, body = next(r for r in seen[0x10] if r[0] == int(req["frame.number"]))
        comm = struct.unpack_from(">I", body)[0]
        if comm in rejected:
            continue
        if comm not in reps:
            wrong.append(f"REQ in frame {frame} has no REP")
            continue
        rep_frame, _, rep = reps[comm]
        rep_fields = next(r for r in replies if int(r["frame.number"]) == rep_frame)
        rep_comm = struct.unpack_from(">I", rep)[0]
        expect("RTU", (comm, rep_comm) in rtus, True)
        service = number(req[CM + "req.serviceid"])
        expect("service id's prefix", service >> 24, 0x10 << 32)
        expect("service id's QPN is one of the addresses'", service & 0xFFFFFF in qpns, True)
        expect("P_Key", number(req[CM + "req.pkey"]), 0xFFFF)
        expect("path MTU (5 = 4096)", number(req[CM + "req.pppmtu"]), 5)
        expect("service type RC", number(req[CM + "req.transpsvctype"]), 0)
        expect("SRQ in REQ and REP", (req[CM + "req.srq"], rep_fields[CM + "rep.srq"]), ("0x01", "0x01"))
        # Private data: our UD QPN and receive MTU; 65,524 is 65,520 and the encapsulation header.
        for what, private in (("REQ", body[140:148]), ("REP", rep[36:44])):
            qpn, mtu = struct.unpack(">II", private)
            expect(f"{what}'s private QPN is one of the addresses'", qpn in qpns, True)
            expect(f"{what}'s private MTU", mtu, 65524)
        # The starting PSN in the REP is where the opener begins to send (IBA 12.7.31).
        (to, psn) = number(rep_fields[CM + "rep.localqpn"]), number(rep_fields[CM + "rep.startpsn"])
        first = next((p for p in data if struct.unpack_from(">I", p, 12)[0] & 0xFFFFFF == to), None)
        if first is None:
            wrong.append(f"no data to QP {to:#x}")
            continue
        expect("PSN of the first data", struct.unpack_from(">I", first, 16)[0] & 0xFFFFFF, psn)
        found.append({"service_id": f"{service:#018x}", "qpn": req[CM + "req.localqpn"], "peer_qpn": f"{to:#08x}",
                      "start_psn": psn, "slid": req["infiniband.lrh.slid"]})
    ways = {f["slid"] for f in found}
    expect("openers", len(ways), 2)
    expect("DREQ and DREP at the end", (len(seen.get(0x15, [])) > 0, len(seen.get(0x16, [])) > 0), (True, True))
    return {"ok": not wrong, "connections": found, "wrong": wrong,
            "messages": {f"{k:#x}": len(v) for k, v in sorted(seen.items())}}


def check_data(lab):
    path = lab.dir / "gateway.pcap"
    opcodes = collections.Counter(number(l) for l in tshark(path, "-T", "fields", "-e", "infiniband.bth.opcode"))
    # From the bytes: LRH, BTH, encapsulation header, IPv4. tshark takes some connections' data for SDP's, by their numbers.
    in_rc = sum(p[1] & 3 == 2 and p[8] == 4 and p[20:24] == b"\x08\0\0\0" and p[24] >> 4 == 4
                for _, p in ibwire.read_erf(path) if len(p) > 24)
    arp = len(tshark(path, "-Y", "infiniband.bth.opcode == 100 && arp", "-T", "fields", "-e", "frame.number"))
    by_ud = len(tshark(path, "-Y", "infiniband.bth.opcode == 100 && icmp", "-T", "fields", "-e", "frame.number"))
    leaves = table(path, "infiniband.mad.mgmtclass == 3 && infiniband.mad.method == 0x15", "infiniband.mad.attributeid")
    ok = in_rc > 100 and opcodes[17] > 10 and arp > 1 and by_ud > 0 and any(
        number(l["infiniband.mad.attributeid"]) == 0x38 for l in leaves)
    return {"ok": ok, "rc_send_only_with_ip": in_rc, "acknowledges": opcodes[17], "rc_first_middle_last":
            [opcodes[0], opcodes[1], opcodes[2]], "arp": arp, "icmp_by_ud": by_ud, "member_record_delete": len(leaves)}


def check_ethernet_capture(lab):
    path = lab.dir / "gateway.pcap.eth.pcap"
    lines = tshark(path, "-T", "fields", "-e", "frame.protocols")
    bad = tshark(path, "-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number")
    kinds = collections.Counter("arp" if "arp" in l else "icmp" if "icmp" in l else "tcp" if "tcp" in l else "other"
                                for l in lines)
    return {"ok": not bad and kinds["arp"] > 0 and kinds["icmp"] > 10 and kinds["tcp"] > 100, "malformed": len(bad),
            **kinds}


def check_stop(lab, name, process, how, code=0):
    begin = time.monotonic()
    process.popen.send_signal(how)
    try:
        got = process.popen.wait(10)
    except Exception:
        raise Failed(f"{name}: still there 10 s after {how.name}") from None
    seconds = time.monotonic() - begin
    process.stop(0)
    if process in lab.processes:
        lab.processes.remove(process)
    return {"ok": got == code and seconds < 3, "signal": how.name, "exit_code": got, "seconds": round(seconds, 2)}


def captures(args, checks):
    if not checks.wanted("capture"):
        return
    args.capture = True
    lab = Laboratory(args, intruder=False)
    demo.FILE_BYTES = 2 << 20
    try:
        lab.up()
        for netns, target in ((ETH, IB_IP), (IB, ETH_IP)):
            ping(netns, target, 1400, count=20)
        # More than the path MTU: first, middle and last packets.
        ping(IB, GW_IP, 8000, count=3)
        demo.check_file(lab, ETH, IB, IB_IP)
        lab.ctl("mode", "datagram")
        time.sleep(0.2)
        ping(ETH, IB_IP, 56, count=5)
        lab.neighbours = lab.ctl("neighbours")
        lab.own_address = lab.ctl("links")["infiniband"]["addresses"].split(" ")[0]
        lab.ctl("mode", "connected")
        ping(ETH, IB_IP, 56, count=5)
        checks.run("capture_stop_gateway", lambda: check_stop(lab, "gateway", lab.gateway, signal.SIGTERM))
        checks.run("capture_stop_fabric", lambda: check_stop(lab, "ibfab", lab.fabric, signal.SIGINT))
        for name in ("gateway.pcap", "fabric.pcap"):
            checks.run(f"capture_dissected_{name.split('.')[0]}", lambda name=name: check_dissected(lab, name))
            checks.run(f"capture_crcs_{name.split('.')[0]}", lambda name=name: check_crcs(lab, name))
        checks.run("capture_handshake", lambda: check_handshake(lab))
        checks.run("capture_data", lambda: check_data(lab))
        checks.run("capture_ethernet", lambda: check_ethernet_capture(lab))
    finally:
        lab.close()
        args.capture = False


# -- 2. packets that do not fit

def check_too_big(lab):
    out = run("ping", "-n", "-c", 3, "-i", "0.2", "-W", 1, "-M", "do", "-s", 3000, ETH_IP, netns=IB, check=False)
    text = out.stdout + out.stderr
    told = re.search(r"mtu ?=? ?(\d+)", text)
    route = run("ip", "route", "get", ETH_IP, netns=IB).stdout
    learned = re.search(r"mtu (\d+)", route)
    answered = lab.ctl("stats")["drops"].get("too-big-answered", 0)
    ok = bool(told and told[1] == "1500" and learned and learned[1] == "1500" and answered > 0)
    run("ip", "route", "flush", "cache", netns=IB)
    return {"ok": ok, "ping_said": told[0] if told else text[-300:], "route_mtu": learned[1] if learned else None,
            "too_big_answered": answered}


def check_fragments(lab, netns, target):
    before = packets(traffic(lab), "fragmented")
    out = run("ping", "-n", "-q", "-c", 3, "-i", "0.1", "-W", 3, "-M", "dont", "-s", 60000, target, netns=netns,
              check=False).stdout
    m = re.search(r"(\d+) packets transmitted, (\d+) received", out)
    got = int(m[2]) if m else 0
    return {"ok": got == 3, "received": got, "of": 3, "fragmented_by_gateway": packets(traffic(lab), "fragmented") - before}


def check_to_all(from_ns, to_ns, source):
    """Subnet broadcast, limited broadcast and all-hosts multicast reach the other side."""
    took = {}
    for number, target in enumerate(("10.77.0.255", "255.255.255.255", "224.0.0.1")):
        port = 7100 + number
        receiver, sender = (socket_in(ns, socket.AF_INET, socket.SOCK_DGRAM) for ns in (to_ns, from_ns))
        with receiver, sender:
            receiver.bind(("0.0.0.0", port))
            receiver.settimeout(2)
            sender.bind((source, 0))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(source))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0" if from_ns == ETH else b"ib0")
            sender.sendto(target.encode(), (target, port))
            try:
                data, (peer, _) = receiver.recvfrom(100)
                took[target] = data.decode() == target and peer == source
            except TimeoutError:
                took[target] = False
    return {"ok": all(took.values()), **took}


def check_ud_limits(lab):
    """Datagram mode: what is larger than Ethernet's MTU is answered or cut, what fits goes by UD."""
    lab.ctl("mode", "datagram")
    try:
        time.sleep(0.3)
        before = traffic(lab)
        fits = ping(ETH, IB_IP, 1472, count=5)
        back = ping(IB, ETH_IP, 1472, count=5)
        large = check_fragments(lab, IB, ETH_IP)
        after = traffic(lab)
        rc = packets(after, "ib_rc_transmit") - packets(before, "ib_rc_transmit")
        ud = packets(after, "ib_ud_unicast_transmit") - packets(before, "ib_ud_unicast_transmit")
        return {"ok": fits["ok"] and back["ok"] and large["ok"] and rc == 0 and ud >= 10, "eth_to_ib": fits["received"],
                "ib_to_eth": back["received"], "large": large, "rc_transmit": rc, "ud_transmit": ud}
    finally:
        lab.ctl("mode", "connected")


# -- 3. the mode is switched under traffic

def check_mode_switch(lab):
    steady = Process("ping", ["ping", "-n", "-q", "-i", "0.01", "-c", "500", IB_IP], ETH, lab.dir / "steady.log")
    try:
        marks = []
        for mode in (None, "datagram", "connected"):
            if mode:
                lab.ctl("mode", mode)
            # The change itself is not part of what is counted.
            time.sleep(0.4)
            before = traffic(lab)
            time.sleep(0.9)
            after = traffic(lab)
            rc, ud = (packets(after, n) - packets(before, n) for n in ("ib_rc_transmit", "ib_ud_unicast_transmit"))
            marks.append({"mode": mode or "connected", "rc": rc, "ud": ud})
        steady.popen.wait(20)
        m = re.search(r"(\d+) packets transmitted, (\d+) received", steady.text())
        lost = int(m[1]) - int(m[2]) if m else None
    finally:
        steady.stop(1)
    ok = (lost is not None and lost <= 5 and marks[0]["rc"] > 20 and marks[0]["ud"] == 0 and marks[1]["ud"] > 20
          and marks[1]["rc"] == 0 and marks[2]["rc"] > 20 and marks[2]["ud"] == 0)
    return {"ok": ok, "lost": lost, "of": 500, "transmitted": marks}


# -- 4. hostile frames

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
        ("vlan", frame(0x8100, b"\x00\x05\x08\x00" + good())),
        ("vlan", frame(0x88A8, b"\x00\x05\x81\x00\x00\x06\x08\x00" + good())),
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


def settle(lab, before, seconds=5.0):
    """Buffers in use, once they are back to `before` or time is over."""
    end = time.monotonic() + seconds
    while True:
        now = lab.in_use()
        if now <= before or time.monotonic() > end:
            return now
        time.sleep(0.1)


def ethernet_socket(lab):
    raw = socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind(("eth0", 0))
    gateway = bytes.fromhex(lab.ctl("links")["ethernet"]["mac"].replace(":", ""))
    own = bytes.fromhex(json.loads(run("ip", "-j", "link", "show", "eth0", netns=ETH).stdout)[0]["address"].replace(":", ""))
    return raw, gateway, own


def check_hostile_frames(lab):
    raw, gateway, own = ethernet_socket(lab)
    times, wrong, want = 20, [], collections.Counter()
    in_use, begin = lab.in_use(), lab.ctl("stats")["drops"]
    frames = hostile_frames(gateway, own)
    before = begin
    with raw:
        for reason, frame in frames:
            want[reason] += times
            for _ in range(times):
                raw.send(frame)
            end, got = time.monotonic() + 1, {}
            while time.monotonic() < end and got.get(reason, 0) < times:
                time.sleep(0.01)
                now = lab.ctl("stats")["drops"]
                got = grown(now, before)
            before = now
            if got != {reason: times}:
                wrong.append({"frame": frame[:60].hex(), "want": reason, "got": got})
    left = settle(lab, in_use)
    alive = ping(ETH, IB_IP, 56)
    return {"ok": not wrong and alive["ok"] and left <= in_use, "kinds": len(frames), "each": times,
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
    left, alive = settle(lab, in_use), ping(ETH, IB_IP, 1472)
    return {"ok": alive["ok"] and left <= in_use, "frames": len(frames), "ping": alive["received"],
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
        send_paced(raw.send, (frame() for _ in range(count)))
    time.sleep(0.3)
    after = lab.ctl("stats")
    left, alive = settle(lab, in_use), ping(ETH, IB_IP, 56)
    arrived = packets(after["traffic"], "eth_receive") - packets(before["traffic"], "eth_receive")
    dropped = grown(after["drops"], before["drops"])
    return {"ok": alive["ok"] and left <= in_use and arrived > count * 0.9 and sum(dropped.values()) > arrived * 0.95,
            "sent": count, "arrived": arrived, "dropped": dropped, "ping": alive["received"], "buffers": [in_use, left]}


# -- 5. hostile packets in the fabric

def device_drops(lab):
    return lab.ctl("links").get("device_drops", {})


def check_hostile_packets(lab):
    links, table_ = lab.ctl("links"), lab.ctl("neighbours")
    gateway, host = links["infiniband"]["lid"], next(n["dlid"] for n in table_["infiniband"] if n["address"] == IB_IP)
    address = bytes.fromhex(links["infiniband"]["addresses"].split(" ")[0].replace(":", ""))
    qpn = int.from_bytes(address[1:4], "big")
    in_use, drops, device = lab.in_use(), lab.ctl("stats")["drops"], device_drops(lab)
    counters = lab.ctl("links")["link_counters"]
    intruder = ibwire.Intruder(lab.far, lab.near)
    intruder.start()
    sent = collections.Counter()
    try:
        end = time.monotonic() + 10
        while intruder.state != 4 and time.monotonic() < end:
            time.sleep(0.02)
        if intruder.state != 4:
            raise Failed(f"the intruder's port is in state {intruder.state}, LID {intruder.lid}, link "
                         f"{'up' if intruder.up else 'down'}")
        time.sleep(0.3)
        me, chance, times = intruder.lid, random.Random(2), 50
        qkey = 0x0B1B

        def attack(name, make):
            for _ in range(times):
                intruder.send(make())
                sent[name] += 1
            time.sleep(0.02)

        def ipoib(kind=0x0800, body=b""):
            return struct.pack(">HH", kind, 0) + body

        good = ipv4(bytes(64), src="10.77.0.66", dst=ETH_IP)
        attack("random", lambda: bytes([chance.getrandbits(4) << 4]) + chance.randbytes(chance.randrange(0, 4200)))
        attack("random_small", lambda: chance.randbytes(chance.randrange(1, 40)))
        attack("bad_vcrc", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good))[:-2] + b"\xab\xcd")

        def bad_icrc():
            whole = ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good))[:-6] + b"\x01\x02\x03\x04"
            return whole + ibwire.vcrc(whole)

        attack("bad_icrc", bad_icrc)
        attack("bad_length", lambda: (lambda w: w + ibwire.vcrc(w))(
            (lambda p: p[:4] + struct.pack(">H", chance.randrange(0, 2048)) + p[6:-2])(
                ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good)))))
        attack("wrong_pkey", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good), pkey=0x8123))
        attack("wrong_qkey", lambda: ibwire.ud(gateway, me, qpn, 5, 0x1234, ipoib(body=good)))
        attack("no_such_qp", lambda: ibwire.ud(gateway, me, 0x7FFFFF, 5, qkey, ipoib(body=good)))
        attack("opcode", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good), opcode=chance.randrange(256)))
        attack("truncated_ipoib", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good)[:chance.randrange(0, 24)]))
        attack("not_ipoib", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(chance.getrandbits(16), good)))
        attack("bad_arp", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(0x0806, struct.pack(
            ">HHBBH", 32, 0x0800, 6, 4, 1) + chance.randbytes(48))))
        attack("arp_of_gateway", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(0x0806, struct.pack(
            ">HHBBH", 32, 0x0800, 20, 4, 2) + b"\0\0\0\5" + chance.randbytes(16) + socket.inet_aton(GW_IP)
            + address + socket.inet_aton(GW_IP))))
        attack("martian", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=ipv4(bytes(64), src=ETH_IP, dst=ETH_IP))))
        attack("rc_from_elsewhere", lambda: ibwire.finish(ibwire.lrh(gateway, me) + ibwire.bth(
            4, chance.randrange(2, 0xFFFF), psn=chance.getrandbits(24), ack=True) + ipoib(body=good)))
        attack("unknown_class", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, bytes(
            [1, chance.choice([0x05, 0x09, 0x2F, 0x42, 0xFE]), 1, 1]) + chance.randbytes(252)))
        attack("random_mad", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, chance.randbytes(256)))
        attack("short_mad", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, chance.randbytes(chance.randrange(0, 255))))
        for name, attribute in (("mra", 0x11), ("rej", 0x12), ("rep", 0x13), ("rtu", 0x14), ("dreq", 0x15),
                                ("drep", 0x16), ("lap", 0x19), ("unknown", 0x77)):
            attack(f"cm_{name}", lambda a=attribute: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, ibwire.cm(
                a, chance.randbytes(232), chance.getrandbits(64))))

        def request():
            """A REQ that is right but for its private data: none, where QPN and MTU belong."""
            body = bytearray(232)
            gid = struct.pack(">QQ", 0xFE80 << 48, intruder.guid + 1)
            struct.pack_into(">IIQQIIIIIII", body, 0, chance.getrandbits(32), 0, 0x10 << 56 | qpn, intruder.guid, 0, 0,
                             chance.getrandbits(24) << 8 | 4, 0, 0x14 << 3, chance.getrandbits(24) << 8 | 0xA0, 0xFFFF5008)
            struct.pack_into(">HHHH", body, 48, 0xFFFF, 0x5008, me, gateway)
            body[56:72], body[72:88] = gid, struct.pack(">Q", 0xFE80 << 48) + address[12:20]
            struct.pack_into(">IBBBB", body, 88, 0, 0, 0, 8, 0x98)
            return ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, ibwire.cm(0x10, bytes(body), chance.getrandbits(64)))

        attack("cm_req_without_private_data", request)
        attack("cm_req_random", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, ibwire.cm(
            0x10, chance.randbytes(232), chance.getrandbits(64))))
        # To the subnet manager and administration, and to the host.
        attack("sm_random", lambda: ibwire.ud(intruder.sm_lid, me, 0, 0, 0, bytes([1, chance.choice([1, 0x81]), 1])
                                              + chance.randbytes(253), vl=15))
        attack("sa_random", lambda: ibwire.ud(intruder.sm_lid, me, 1, 1, ibwire.GSI_QKEY, bytes([1, 3, 2])
                                              + chance.randbytes(253)))
        attack("host_random_mad", lambda: ibwire.ud(host, me, 1, 1, ibwire.GSI_QKEY, bytes([1, 7, 2, 3])
                                                    + chance.randbytes(252)))
        time.sleep(0.5)
        answers = collections.Counter()
        for packet in intruder.received:
            if len(packet) == 290 and packet[29] == 7:
                answers[f"{struct.unpack_from('>H', packet, 28 + 16)[0]:#x}"] += 1
    finally:
        intruder.close()
    alive, back = ping(ETH, IB_IP, 56), ping(IB, ETH_IP, 56)
    left = settle(lab, in_use)
    dropped, by_device = grown(lab.ctl("stats")["drops"], drops), grown(device_drops(lab), device)
    control = grown({k: v for k, v in lab.ctl("links")["link_counters"].items() if isinstance(v, int)},
                    {k: v for k, v in counters.items() if isinstance(v, int)})
    missing = [r for r in ("icrc", "pkey", "qkey", "no_queue_pair") if by_device.get(r, 0) < 50]
    missing += [r for r in ("truncated", "bad-arp", "hostile-arp", "martian") if dropped.get(r, 0) < 10]
    ok = alive["ok"] and back["ok"] and left <= in_use and not missing
    return {"ok": ok, "sent": dict(sent), "dropped": dropped, "dropped_by_device": by_device, "not_counted": missing,
            "link_counters": control, "cm_answers": dict(answers), "ping": [alive["received"], back["received"]],
            "buffers": [in_use, left]}


# -- 6. peers that die

def back_within(seconds, netns, target):
    begin = time.monotonic()
    while time.monotonic() - begin < seconds + 10:
        if run("ping", "-n", "-q", "-c", 1, "-W", 1, target, netns=netns, check=False).returncode == 0:
            return round(time.monotonic() - begin, 2)
    return None


def recovered(lab, seconds=10):
    first, second = back_within(seconds, ETH, IB_IP), None
    if first is not None:
        second = back_within(seconds, IB, ETH_IP)
    both = None
    if second is not None:
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            ping(ETH, IB_IP, 56, count=2)
            ping(IB, ETH_IP, 56, count=2)
            if lab.ctl("connections").get("established_both_ways"):
                both = round(time.monotonic() - begin, 2)
                break
    after = ping(ETH, IB_IP, 56)
    ok = None not in (first, second, both) and first + second <= seconds and after["ok"]
    return {"ok": ok, "eth_to_ib_after": first, "ib_to_eth_after": second, "connected_after": both, "within": seconds,
            "ping": after["received"]}


def check_fabric_killed(lab):
    lab.lose(lab.fabric)
    time.sleep(1)
    lab.alive()
    lab.start_fabric()
    return recovered(lab)


def check_fabric_stopped(lab):
    lab.fabric.popen.send_signal(signal.SIGSTOP)
    try:
        time.sleep(3)
    finally:
        lab.fabric.popen.send_signal(signal.SIGCONT)
    return recovered(lab)


def check_gateway_killed(lab):
    lab.lose(lab.gateway)
    time.sleep(0.5)
    lab.start_gateway()
    begin = time.monotonic()
    back = back_within(10, IB, ETH_IP)
    rest = recovered(lab)
    return {**rest, "ok": rest["ok"] and back is not None and back <= 10, "ib_host_after": back,
            "seconds": round(time.monotonic() - begin, 2)}


# -- 7. operators' errors

def refused(argv, *words, netns=None):
    """A start that must fail: code 1, one line of ours that has all the words, no panic, within two seconds."""
    begin = time.monotonic()
    out = run(*argv, netns=netns, check=False, timeout=20)
    seconds, text = time.monotonic() - begin, out.stdout + out.stderr
    program = Path(argv[0]).name
    lines = [l for l in text.splitlines() if l.startswith(f"{program}: ")]
    ok = (out.returncode == 1 and len(lines) == 1 and "panicked" not in text and seconds < 2
          and all(re.search(w, lines[0]) for w in words))
    return {"ok": ok, "exit_code": out.returncode, "seconds": round(seconds, 2),
            "said": lines if lines else text[-300:], **({} if ok else {"all": text[-1500:]})}


def operator_errors(args, checks):
    if not checks.wanted("error"):
        return
    gateway, fabric = Path(args.bin).resolve() / "ipoib-fwd", Path(args.bin).resolve() / "ibfab"
    directory = Path(demo.tempfile.mkdtemp(prefix="ipoib-fwd-e2e-"))
    try:
        good = directory / "good.toml"
        base = ('[gateway]\naddress = "10.77.0.254/24"\ncontrol-socket = ""\n[ethernet]\nport = "net_null0"\n'
                '[infiniband]\ndriver = "soft"\n[infiniband.soft]\nports = [{ link = "udp:127.0.0.1:0-127.0.0.1:9" }]\n')
        good.write_text(base)

        def with_(name, old, new):
            path = directory / f"{name}.toml"
            path.write_text(base.replace(old, new))
            return path

        small = ["--no-pci", "--no-huge", "--no-shconf", "-m", "256", "--file-prefix", "gwerr", "--vdev", "net_null0"]

        def start(*eal, config=good):
            return [gateway, *eal, "--", "--config", config]

        def no_hugepages():
            before = HUGEPAGES.read_text()
            try:
                HUGEPAGES.write_text("0")
                if int((HUGEPAGES.parent / "free_hugepages").read_text()):
                    return {"ok": True, "skipped": "others hold free hugepages"}
                return refused(start("-l", "0-1", "--no-pci", "--in-memory", "--vdev", "net_null0"), "hugepages",
                               "nr_hugepages|--no-huge")
            finally:
                HUGEPAGES.write_text(before)

        checks.run("error_no_hugepages", no_hugepages)
        for name, argv, words in (
            ("core_mask", start("-c", "0xf1", *small), ("CPU|cpu|lcore", "online")),
            ("core_list", start("-l", "0-999", *small), ("CPU|cpu|lcore", "online")),
            ("core_garbage", start("-l", "zero", *small), ("-l", "zero")),
            ("no_worker", start("-l", "0", *small), ("lcore", "-l 0[-,]1")),
            ("unknown_port", start("-l", "0-1", *small, config=with_("port", "net_null0", "net_nul7")), ("net_nul7",)),
            ("unknown_driver", start("-l", "0-1", *small[:-1], "net_nulll0"), ("net_nulll0", "net_null")),
            ("unknown_interface", start("-l", "0-1", *small[:-1], "net_af_packet0,iface=nosuch0"), ("nosuch0|net_af_packet0",)),
            ("unknown_key", start("-l", "0-1", *small, config=with_("key", "address", "adress")),
             (r"key\.toml:2:1", "adress", "did you mean `address`")),
            ("unknown_section", start("-l", "0-1", *small, config=with_("section", "[ethernet]", "[ehternet]")),
             (r"section\.toml:4", "ehternet", "ethernet")),
            ("wrong_type", start("-l", "0-1", *small, config=with_("type", '"soft"', "7")), (r"type\.toml:7", )),
            ("bad_address", start("-l", "0-1", *small, config=with_("address", "10.77.0.254/24", "10.77.0.254/44")),
             (r"address\.toml:2",)),
            ("no_config", start("-l", "0-1", *small, config=directory / "none.toml"), (r"none\.toml", "--config")),
            ("bad_link_url", start("-l", "0-1", *small, config=with_("url", "udp:", "tcp:")), ("tcp:", "shm:", "udp:")),
            ("no_separator", [gateway, "--config", good], ("--",)),
            ("fabric_unknown_key", [fabric, "--config", with_("fabric", base, '[[link]]\nname = "x"\nulr = "y"\n')],
             (r"fabric\.toml:3", "ulr", "url")),
            ("fabric_bad_url", [fabric, "--config", with_("fabric2", base, '[[link]]\nname = "x"\nurl = "udp:1"\n')],
             ("udp:1",)),
            ("fabric_no_config", [fabric, "--config", directory / "none.toml"], (r"none\.toml",)),
            ("ctl_nobody", [gateway, "ctl", "--socket", directory / "none.sock", "stats"], (r"none\.sock",)),
        ):
            checks.run(f"error_{name}", lambda argv=argv, words=words: refused(argv, *words))
    finally:
        demo.shutil.rmtree(directory, ignore_errors=True)


def check_second_gateway(lab):
    """On the control socket of one that runs."""
    config = lab.dir / "second.toml"
    config.write_text(lab.gateway_config().replace("net_af_packet0", "net_null0").replace(
        f"shm:{lab.link}", "udp:127.0.0.1:0-127.0.0.1:9"))
    result = refused([lab.bin / "ipoib-fwd", "-l", "0-1", "--no-pci", "--no-huge", "--no-shconf", "-m", "256",
                      "--file-prefix", "gwsecond", "--vdev", "net_null0", "--", "--config", config], r"control\.sock")
    first = lab.ctl("stats")
    return {**result, "ok": result["ok"] and "traffic" in first}


# -- 8. what an operator sees

def check_ctl(lab):
    wrong = []
    ping(ETH, IB_IP, 56, count=3)
    for what, key in (("stats", "traffic"), ("links", "infiniband"), ("neighbours", "infiniband"),
                      ("connections", "connections"), ("groups", "groups")):
        answer, text = lab.ctl(what), lab.ask(what).stdout
        if not answer.get(key):
            wrong.append(f"{what} --json: {answer}")
        if len(text.splitlines()) < 2 or "{" in text or "[" in text:
            wrong.append(f"{what}: {text[:800]}")
    links = lab.ctl("links")["infiniband"]
    if (links.get("port_state"), links.get("link"), links.get("mtu"), links.get("mode")) != (
            "active", "up", 4096, "connected"):
        wrong.append(f"links: {links}")
    neighbours = lab.ctl("neighbours")
    seen = {side: {n["address"] for n in neighbours[side]} for side in ("infiniband", "ethernet")}
    if seen != {"infiniband": {IB_IP}, "ethernet": {ETH_IP}}:
        wrong.append(f"neighbours: {seen}")
    live = collections.Counter(c["passive"] for c in lab.ctl("connections")["connections"] if c["state"] == "live")
    if live != {True: 1, False: 1}:
        wrong.append(f"connections: {lab.ctl('connections')}")
    bad = lab.bin / "ipoib-fwd"
    out = run(bad, "ctl", "--socket", lab.dir / "control.sock", "nonsense", check=False)
    if out.returncode == 0 or "panicked" in out.stderr:
        wrong.append(f"nonsense: {out.returncode} {out.stderr}")
    groups = [g for g in lab.ctl("groups")["groups"]]
    return {"ok": not wrong, "groups": len(groups), "wrong": wrong}


def check_socket(lab):
    """Hostile words on the control socket."""
    path, chance = str(lab.dir / "control.sock"), random.Random(3)
    for _ in range(50):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(2)
            try:
                s.connect(path)
                s.send(chance.choice([b"/" + chance.randbytes(chance.randrange(1000)), b"", b"/mode,", b"/stats," + b"x" * 900,
                                      chance.randbytes(4000)]))
            except OSError:
                pass
    idle = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(40)]
    try:
        for s in idle:
            s.settimeout(0.2)
            try:
                s.connect(path)
            except OSError:
                pass
    finally:
        for s in idle:
            s.close()
    time.sleep(0.3)
    return {"ok": "traffic" in lab.ctl("stats")}


def check_stats_lines(lab):
    """--stats 1: a line a second; the gateway is started anew for it.

    Its port is now one that takes fragments as they come: net_af_packet lets the kernel reassemble them, and what is
    longer than its frames is lost then."""
    first = check_stop(lab, "gateway", lab.gateway, signal.SIGTERM)
    lab.vdev, lab.more = "net_pcap0,rx_iface_in=gw0,tx_iface=gw0", ("--stats", "1")
    (lab.dir / "gateway.toml").write_text(lab.gateway_config())
    # Its address is another one, too.
    run("ip", "neigh", "flush", "all", netns=ETH)
    lab.start_gateway()
    back = back_within(10, ETH, IB_IP)
    time.sleep(2.5)
    lines = [l for l in lab.gateway.text().splitlines() if l.startswith("to IB: RC ")]
    return {"ok": first["ok"] and back is not None and len(lines) >= 2, "lines": len(lines), "last": lines[-1:],
            "stopped": first, "traffic_after": back}


def check_overlong_fragment(lab):
    """A last fragment that would end behind 65,535."""
    raw, gateway, own = ethernet_socket(lab)
    before = lab.ctl("stats")["drops"].get("bad-length", 0)
    with raw:
        for _ in range(20):
            raw.send(gateway + own + b"\x08\x00" + ipv4(bytes(200), frag=0x1FFF))
    time.sleep(0.3)
    got = lab.ctl("stats")["drops"].get("bad-length", 0) - before
    return {"ok": got == 20, "bad_length": got}


def check_no_leak(lab):
    result = check_stop(lab, "gateway", lab.gateway, signal.SIGINT)
    report = json.loads((lab.dir / "report.json").read_text())
    panicked = [l for l in (lab.dir / "gateway.log").read_text(errors="replace").splitlines() if "panicked" in l]
    outstanding = report["buffers_outstanding"]
    return {**result, "ok": result["ok"] and outstanding == 0 and not panicked, "buffers_outstanding": outstanding,
            "panics": panicked}


def hard(args, checks):
    """Everything that one laboratory after another need not be built for."""
    lab = Laboratory(args)
    try:
        lab.up()
        for name, body in (
            ("to_all_eth_to_ib", lambda: check_to_all(ETH, IB, ETH_IP)),
            ("to_all_ib_to_eth", lambda: check_to_all(IB, ETH, IB_IP)),
            ("too_big_answered", lambda: check_too_big(lab)),
            ("mode_switch", lambda: check_mode_switch(lab)),
            ("ctl_answers", lambda: check_ctl(lab)),
            ("ctl_hostile", lambda: check_socket(lab)),
            ("error_second_gateway", lambda: check_second_gateway(lab)),
            ("hostile_frames", lambda: check_hostile_frames(lab)),
            ("hostile_sizes", lambda: check_odd_sizes(lab)),
            ("hostile_random_frames", lambda: check_random_frames(lab)),
            ("hostile_packets", lambda: check_hostile_packets(lab)),
            ("died_fabric_stopped", lambda: check_fabric_stopped(lab)),
            ("died_fabric_killed", lambda: check_fabric_killed(lab)),
            ("died_gateway_killed", lambda: check_gateway_killed(lab)),
            ("stats_lines", lambda: check_stats_lines(lab)),
            ("fragments_eth_to_ib", lambda: check_fragments(lab, ETH, IB_IP)),
            ("fragments_ib_to_eth", lambda: check_fragments(lab, IB, ETH_IP)),
            ("datagram_mode", lambda: check_ud_limits(lab)),
            ("hostile_fragment", lambda: check_overlong_fragment(lab)),
            ("stop_no_leak", lambda: check_no_leak(lab)),
            ("stop_fabric", lambda: check_stop(lab, "ibfab", lab.fabric, signal.SIGTERM)),
        ):
            checks.run(name, body, lab)
    except Failed:
        # The laboratory's own logs say why.
        for p in lab.processes:
            say(f"{p.name}'s last words:\n" + p.text()[-3000:])
        raise
    finally:
        lab.close()


def main():
    parser = argparse.ArgumentParser(prog="scripts/e2e.py", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the checks and their figures to FILE")
    parser.add_argument("--bin", metavar="DIR", default="target/release", help="where the programs are")
    parser.add_argument("--keep", action="store_true", help="keep logs, configuration and captures")
    parser.add_argument("only", nargs="*", metavar="NAME", help="only checks whose names begin so")
    args = parser.parse_args()
    args.capture = False
    lock = demo.take_lock(LOCK_PATIENCE)
    if lock is None:
        sys.exit("e2e: another laboratory has been running on this machine for minutes; wait for it to end")

    def interrupted(signum, _frame):
        raise KeyboardInterrupt(signal.Signals(signum).name)

    # Also where the shell has it ignored, as for jobs in the background.
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    checks, error, begin = Checks(args.only), None, time.monotonic()
    try:
        for part in (operator_errors, captures, hard):
            try:
                part(args, checks)
            except Failed as e:
                error = f"{part.__name__}: {e}"
                say(f"FAILED {error}")
    except KeyboardInterrupt:
        error = "interrupted"
    if args.json:
        document = {"checks": checks.results}
        if error:
            document["error"] = error
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    failed = [r["name"] for r in checks.results if not r["ok"]]
    if failed or error:
        sys.exit(f"e2e: FAILED: {', '.join(failed)} {error or ''}")
    say(f"all {len(checks.results)} checks passed in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
