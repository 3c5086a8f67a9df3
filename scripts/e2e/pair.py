#!/usr/bin/env python3
"""Two gateways between the same two networks: one forwards, either may die, nothing loops.

    eth0 ── bridge ──┬── gw0 [gateway a] ──┬── fabric ── ib0
                     └── gw1 [gateway b] ──┘
"""

import json
import os
import re
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checks.drain import check_drain, check_drain_alone, check_upgrade
from checks.keepalived import check_keepalived, check_notify
from checks.laboratory import Laboratory, back_within, in_laboratory, socket_in
from checks.meanwhile import meanwhile
from checks.runtime import Follower
from stage.lab import ETH, ETH_IP, GW, IB, IB_IP, PREFIX
from stage.programs import Failed, Process, run
from stage.traffic import ping

NAMES = ("a", "b")
OWN = {"a": "10.77.0.254", "b": "10.77.0.253"}
# A network namespace each: the fan-out groups of net_af_packet are numbered by process, and two may meet.
OWN_NS = {name: f"{GW}-{name}" for name in NAMES}
FOREIGN_IP, NEW_HOST = "10.77.0.66", "10.77.0.74"
PAIR_KEY, OTHER_KEY = "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "f0e1d2c3b4a5968778695a4b3c2d1e0f"
ETH_P_IP, ETH_P_ALL = 0x0800, 0x0003
PACKET_OUTGOING = 4
# What the gateways promise.
TAKEOVER = 3.0


class PairLab(Laboratory):
    """Two gateways on one bridge and one fabric, and a third way between both networks for whoever wants to go it."""

    own_ns = OWN_NS

    def __init__(self, args):
        super().__init__(args, intruder=False)
        self.gateways = {}
        # Where a gateway's program is, if not where the others are.
        self.programs = dict.fromkeys(NAMES, Path(args.older).resolve()) if args.older else {}

    def namespaces_up(self):
        for name in (ETH, GW, IB, *OWN_NS.values()):
            self.namespace(name)
        run("ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=GW)
        run("ip", "link", "set", "br0", "up", netns=GW)
        for netns, dev in ((ETH, "eth0"), (OWN_NS["a"], "gw0"), (OWN_NS["b"], "gw1"), (GW, "foreign0")):
            run("ip", "link", "add", dev, "netns", netns, "type", "veth", "peer", "name", f"to-{dev}", "netns", GW)
            for where, name in ((netns, dev), (GW, f"to-{dev}")):
                run("ethtool", "-K", name, "rx", "off", "tx", "off", "tso", "off", "gso", "off", "gro", "off", netns=where)
            run("ip", "link", "set", f"to-{dev}", "master", "br0", "up", netns=GW)
            run("ip", "link", "set", dev, "mtu", "1500", "up", netns=netns)
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=ETH)

    def hugepages_up(self):
        # Two gateways' buffers; speed is no matter here.
        return ["--no-huge", "--no-shconf", "-m", "512"]

    def fabric_config(self):
        links = "".join(f'\n[[link]]\nname = "gateway-{n}"\nurl = "shm:{self.dir}/{n}.sock"\n' for n in NAMES)
        hosts = "".join(f"""
[[host]]
name = "{name}"
netns = "{netns}"
tun = "{tun}"
address = "{address}/{PREFIX}"
mtu = {mtu}
mode = "connected"
""" for name, netns, tun, address, mtu in (("host1", IB, "ib0", IB_IP, 65520), ("foreign", GW, "ibf0", FOREIGN_IP, 1500)))
        return f"[fabric]\nmtu = 4096\n{links}{hosts}"

    def gateway_config(self):
        return ""

    def start_gateway(self):
        for name in NAMES:
            self.start_one(name)

    def start_one(self, name, key=PAIR_KEY):
        config = self.dir / f"gateway-{name}.toml"
        config.write_text(f"""\
[gateway]
address = "{OWN[name]}/{PREFIX}"
control-socket = "{self.dir}/{name}-control.sock"
pair-key = "{key}"
idle = "sleep"

[ethernet]
port = "net_af_packet0"

[infiniband]
driver = "soft"

[infiniband.soft]
ports = [{{ link = "shm:{self.dir}/{name}.sock", mtu = 4096 }}]
""")
        iface = f"gw{NAMES.index(name)}"
        line = [self.programs.get(name, self.bin) / "ipoib-fwd", "-l", "0-1", "--no-pci", *self.memory, "--file-prefix", f"gwpair{name}",
                "--vdev", f"net_af_packet0,iface={iface}", "--", "--config", config]
        log = self.dir / f"gateway-{name}-{len(self.processes)}-{time.monotonic_ns()}.log"
        gateway = Process(f"gateway {name}", line, OWN_NS[name], log)
        self.gateways[name] = self.gateway = gateway
        self.processes.append(gateway)

    def pid(self, name):
        """Of the gateway itself: `ip netns exec` becomes it."""
        return self.gateways[name].popen.pid

    def role(self, name):
        return self.state(name)["role"]

    def state(self, name):
        """What a gateway says of itself; {"role": None} while it does not answer."""
        try:
            out = run(self.bin / "ipoib-fwd", "ctl", "--socket", self.dir / f"{name}-control.sock", "stats", "--json", timeout=30)
            answer = json.loads(out.stdout)
            return {**answer["gateway"], "drops": answer["drops"]}
        except (Failed, ValueError, KeyError):
            return {"role": None, "peers": [], "drops": {}}

    def settled(self):
        """The forwarder's name and the other's, once there is one of each and they hear each other on both sides."""
        roles = {n: self.state(n) for n in NAMES}
        forwarding = [n for n, s in roles.items() if s["role"] == "forwarding"]
        standby = [n for n, s in roles.items() if s["role"] == "standby"]
        both = all(any(p["alive"] and p["heard_on"] == "Ethernet InfiniBand" for p in s["peers"]) for s in roles.values())
        return (forwarding[0], standby[0]) if len(forwarding) == len(standby) == 1 and both else None

    def wait_settled(self, seconds=15):
        """Until each has had its role for longer than an election takes."""
        seen = [None, 0]

        def stays():
            now = self.settled()
            if now != seen[0]:
                seen[:] = now, time.monotonic()
            return now is not None and time.monotonic() - seen[1] > 1.5

        self.wait_for("one gateway that forwards and one that stands by", stays, seconds)
        return seen[0]

    def up(self):
        self.start()
        self.wait_settled(20)
        self.wait_for("the first packet through the pair", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 20)


def survived(lab, act):
    """TCP goes on whatever `act` does, and nothing is away for longer than promised."""
    result = meanwhile(lab, act)
    return {**result, "ok": result["ok"] and result["outage"] < TAKEOVER, "less_than": TAKEOVER}


def check_roles(lab):
    forwarder, other = lab.wait_settled()
    through = [ping(ETH, IB_IP, 56)["ok"], ping(IB, ETH_IP, 56)["ok"]]
    # Each gateway answers for itself, whatever its role.
    own = {f"{n}_from_{ns}": ping(ns, OWN[n], 56, count=3)["received"] > 0 for n in NAMES for ns in (ETH, IB)}
    return {"ok": bool(forwarder) and all(through) and all(own.values()), "forwards": forwarder, "stands_by": other, "own": own}


def check_killed(lab):
    """The forwarder is killed; then it comes back, and the other one is killed."""
    results = {"ok": True}
    for turn in ("first", "second"):
        forwarder, other = lab.wait_settled()
        # A round of what the forwarder knows.
        time.sleep(4)
        took = {}

        def kill():
            lab.lose(lab.gateways[forwarder])
            begin = time.monotonic()
            lab.wait_for("the other gateway to forward", lambda: lab.role(other) == "forwarding", 10)
            took["seconds"] = round(time.monotonic() - begin, 2)

        result = survived(lab, kill)
        results[turn] = {"killed": forwarder, "forwards_after": took.get("seconds"), **result}
        results["ok"] &= result["ok"] and took.get("seconds", 99) < TAKEOVER
        lab.start_one(forwarder)
    lab.wait_settled()
    return results


def check_killed_after_a_first_packet(lab):
    """The forwarder dies 0.15 s after a host's first packet: the other gateway knows that host, too, and tells where it is now."""
    forwarder, other = lab.wait_settled()
    run("ip", "addr", "add", f"{NEW_HOST}/{PREFIX}", "dev", "eth0", netns=ETH)
    try:
        first = run("ping", "-n", "-q", "-c", 1, "-W", 2, "-I", NEW_HOST, IB_IP, netns=ETH, check=False).returncode == 0
        # In which each of them has had a turn, also where the machine stands still.
        begin = time.monotonic()
        for name in (forwarder, other):
            lab.role(name)
        time.sleep(max(0.0, begin + 0.15 - time.monotonic()))
        lab.lose(lab.gateways[forwarder])
        # The InfiniBand host asks nobody for half a minute: it sends to where the new host was.
        seconds = back_within(TAKEOVER, IB, NEW_HOST)
    finally:
        run("ip", "addr", "del", f"{NEW_HOST}/{PREFIX}", "dev", "eth0", netns=ETH)
        lab.start_one(forwarder)
        lab.wait_settled()
    ok = first and seconds is not None and seconds < TAKEOVER
    return {"ok": ok, "first": first, "seconds": seconds, "forwards": other}


def check_asked_to_end(lab):
    """A gateway that ends in order hands over at once."""
    forwarder, other = lab.wait_settled()
    time.sleep(4)

    def stop():
        process = lab.gateways[forwarder]
        lab.processes.remove(process)
        process.popen.send_signal(signal.SIGTERM)
        lab.wait_for("the other gateway to forward", lambda: lab.role(other) == "forwarding", 10)
        process.stop()

    result = survived(lab, stop)
    lab.start_one(forwarder)
    lab.wait_settled()
    return result


# -- loops

def dhcp_like(number):
    """An IPv4 packet from nobody to everybody, with a number to know it by."""
    payload = b"pair-check" + struct.pack("!I", number)
    udp = struct.pack("!HHHH", 68, 67, 8 + len(payload), 0) + payload
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), number & 0xffff, 0, 64, 17, 0, bytes(4), b"\xff" * 4)
    total = sum(struct.unpack("!10H", head))
    total = (total & 0xffff) + (total >> 16)
    total = ~((total & 0xffff) + (total >> 16)) & 0xffff
    return head[:10] + struct.pack("!H", total) + head[12:] + udp


class Side:
    """A raw socket on a host's interface: sends broadcasts, counts what arrives."""

    def __init__(self, netns, dev, ethernet):
        self.socket = socket_in(netns, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.bind((dev, ETH_P_ALL))
        self.header = b"\xff" * 6 + self.socket.getsockname()[4] + b"\x08\x00" if ethernet else b""

    def send(self, number):
        self.socket.send(self.header + dhcp_like(number)) if self.header else self.socket.sendto(
            dhcp_like(number), (self.socket.getsockname()[0], ETH_P_IP, 0, 0, b""))

    def count(self, seconds, wanted=()):
        """Broadcasts of this check that arrived, by number, within so many seconds, which begin when those are there that are wanted."""
        seen, missing = {}, set(wanted)
        end = time.monotonic() + (10 if missing else seconds)
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.socket], [], [], left)[0]:
                break
            data, address = self.socket.recvfrom(2048)
            at = data.find(b"pair-check")
            if address[2] != PACKET_OUTGOING and at >= 0:
                (number,) = struct.unpack("!I", data[at + 10:at + 14])
                seen[number] = seen.get(number, 0) + 1
                if number in missing:
                    missing.remove(number)
                    end = end if missing else time.monotonic() + seconds
        return seen

    def close(self):
        self.socket.close()


def sides():
    return Side(ETH, "eth0", True), Side(IB, "ib0", False)


def check_cable(lab):
    """The forwarder's Ethernet cable is pulled: it resigns and the other one forwards, to whose figures it is half a pair; with the cable
    in again there is one of each."""
    forwarder, other = lab.wait_settled()
    hosts = [lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / f"{other}-control.sock", "neighbours", "--json"]
    lab.wait_for("tables that are warm", lambda: f'"{IB_IP}"' in run(*hosts).stdout, 20)
    cable, began = f"to-gw{NAMES.index(forwarder)}", time.monotonic()
    run("ip", "link", "set", cable, "down", netns=GW)
    try:
        lab.wait_for("the other gateway to forward", lambda: lab.role(other) == "forwarding", 15)
        seconds, old = round(time.monotonic() - began, 2), lab.role(forwarder)
        # No longer than it takes: what is not answered at once is lost.
        lab.wait_for("a packet through it", lambda: ping(ETH, IB_IP, 56, count=1, wait=0.2)["ok"], 15)
        through = round(time.monotonic() - began, 2)
        figures = [*hosts[:4], "metrics"]
        lab.wait_for("half a pair", lambda: re.search(r'^ipoib_fwd_segment_peers\{.*heard="one"\} 1', run(*figures).stdout, re.M), 10)
    finally:
        run("ip", "link", "set", cable, "up", netns=GW)
    settled = lab.wait_settled(30)
    lab.wait_for("a whole one", lambda: re.search(r'^ipoib_fwd_segment_peers\{.*heard="both"\} 1', run(*figures).stdout, re.M), 10)
    return {"ok": through < TAKEOVER and old != "forwarding" and settled is not None, "seconds": seconds, "first_packet": through,
            "old_forwarder": old}


def check_broadcast(lab):
    """Each broadcast arrives once on the other side and does not come back, also while a gateway comes anew."""
    forwarder, other = lab.wait_settled()
    eth, ib = sides()
    try:
        results = {}
        for turn in ("settled", "one_starts"):
            if turn == "one_starts":
                lab.lose(lab.gateways[other])
                lab.start_one(other)
            for number in range(60):
                eth.send(2 * number)
                ib.send(2 * number + 1)
                time.sleep(0.05)
            on_eth, on_ib = eth.count(1, range(1, 120, 2)), ib.count(0.5, range(0, 120, 2))
            results[turn] = {"on_ib": sum(on_ib.get(2 * n, 0) for n in range(60)),
                             "on_eth": sum(on_eth.get(2 * n + 1, 0) for n in range(60)),
                             "came_back": sum(on_eth.get(2 * n, 0) + on_ib.get(2 * n + 1, 0) for n in range(60)), "sent": 60}
        lab.wait_settled()
        ok = all(r["on_ib"] == r["on_eth"] == 60 and r["came_back"] == 0 for r in results.values())
        return {"ok": ok, **results}
    finally:
        eth.close()
        ib.close()


def relay(ethernet, tun):
    """A foreign bridge: carries each IPv4 broadcast from one interface to the other, and back."""
    a = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    b = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    a.bind((ethernet, ETH_P_ALL))
    b.bind((tun, ETH_P_ALL))
    header = b"\xff" * 6 + a.getsockname()[4] + b"\x08\x00"
    print("relaying", flush=True)
    while True:
        for s in select.select([a, b], [], [])[0]:
            data, address = s.recvfrom(65536)
            if address[2] == PACKET_OUTGOING:
                continue
            if s is a and data[12:14] == b"\x08\x00" and data[30:34] == b"\xff" * 4:
                length = struct.unpack("!H", data[16:18])[0]
                b.sendto(data[14:14 + length], (tun, ETH_P_IP, 0, 0, b""))
            elif s is b and data[16:20] == b"\xff" * 4:
                a.send(header + data)


def check_foreign_bridge(lab):
    """Something else joins both networks: the gateways block and say so, the network is quiet; when it is gone, they go on."""
    forwarder, _ = lab.wait_settled()
    follower = Follower(lab, "alarm", "--json", path=lab.dir / f"{forwarder}-control.sock")
    bridge = Process("foreign bridge", [sys.executable, os.path.abspath(__file__), "--relay", "foreign0", "ibf0"], GW,
                     lab.dir / "relay.log")
    eth, ib = sides()
    try:
        lab.wait_for("the foreign bridge", lambda: "relaying" in bridge.text(), 30)
        begin = time.monotonic()
        eth.send(100000)
        lab.wait_for("the gateways to block", lambda: all(lab.role(n) == "blocked" for n in NAMES), 10)
        blocked = round(time.monotonic() - begin, 2)
        circled = sum(eth.count(0.5).values())
        eth.send(100001)
        # It reaches the other side by the foreign way, and that is all.
        on_ib, on_eth = ib.count(2, [100001]), eth.count(0.5)
        still = {"on_ib": on_ib.get(100001, 0), "on_eth": on_eth.get(100001, 0)}
        alarm = "our own packets come back" in lab.gateways[forwarder].text()
        loops = [e.get("side") for e in follower.told(lab, "loop") if e["what"] == "loop"]
        state = lab.state(forwarder)
        # It stays, and they stay blocked.
        time.sleep(12)
        stay = [lab.role(n) for n in NAMES]
        bridge.stop(1)
        begin = time.monotonic()
        lab.wait_settled(40)
        again = round(time.monotonic() - begin, 2)
        through = ping(ETH, IB_IP, 56)["ok"] and ping(IB, ETH_IP, 56)["ok"]
        # One broadcast may circle for a second, eight times in each tenth of it.
        ok = (still == {"on_ib": 1, "on_eth": 0} and circled < 300 and alarm and bool(loops) and state.get("loops", 0) > 0
              and stay == ["blocked"] * 2 and through)
        return {"ok": ok, "blocked_after": blocked, "circled_before": circled, "of_one_broadcast_later": still, "alarm": alarm,
                "alarm_told": loops, "loops": state.get("loops"), "after_12_s": stay, "settled_again_after": again, "through": through}
    finally:
        bridge.stop(1)
        eth.close()
        ib.close()


def check_priority_by_reload(lab):
    """The gateway that stands by is given the higher priority while pings run: it takes over, and back."""
    forwarder, standby = lab.wait_settled()
    path = lab.dir / f"gateway-{standby}.toml"
    before = path.read_text()
    swaps = []
    with_ping = Process("ping", ["ping", "-n", "-q", "-i", "0.02", "-w", 40, ETH_IP], IB, lab.dir / "priority-ping.log")
    try:
        for text, wanted in ((before.replace("[gateway]\n", "[gateway]\npriority = 200\n"), standby),
                             (before.replace("[gateway]\n", "[gateway]\npriority = 50\n"), forwarder)):
            path.write_text(text)
            begin = time.monotonic()
            run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / f"{standby}-control.sock", "reload", timeout=30)
            lab.wait_for("the gateway with the higher priority", lambda: (lab.settled() or [None])[0] == wanted, 20)
            swaps.append(round(time.monotonic() - begin, 2))
    finally:
        path.write_text(before)
        with_ping.popen.send_signal(signal.SIGINT)
        with_ping.popen.wait(5)
        with_ping.stop(1)
    run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / f"{standby}-control.sock", "reload", timeout=30)
    m = re.search(r"(\d+) packets transmitted, (\d+) received", with_ping.text())
    lost = int(m[1]) - int(m[2]) if m else None
    return {"ok": lost is not None and lost * 0.02 < TAKEOVER and len(swaps) == 2, "swapped_after_s": swaps, "pings_lost": lost}


def check_other_key(lab):
    """A gateway with another key, which does not believe ours and is not believed: both forward and both say so. Hosts reach each other;
    a packet to all passes a few times and then no more."""
    _, other = lab.wait_settled()
    lab.lose(lab.gateways[other])
    lab.start_one(other, OTHER_KEY)
    lab.wait_for("both to forward", lambda: all(lab.role(n) == "forwarding" for n in NAMES), 10)
    eth, ib = sides()
    try:
        lab.wait_for("both to tell of the other one", lambda: all(lab.state(n).get("stranger") for n in NAMES), 10)
        said = {n: re.findall(r"ERROR.*another gateway .* is not believed.*", lab.gateways[n].text())[:1] for n in NAMES}
        told = {n: lab.state(n)["stranger"] for n in NAMES}
        remedy = all("gateway.pair-key" in t["why"] and t["heard_on"] == "Ethernet InfiniBand" for t in told.values())
        through = [ping(ETH, IB_IP, 56)["ok"], ping(IB, ETH_IP, 56)["ok"]]
        eth.count(0.2)
        ib.count(0.2)
        eth.send(200000)
        passed = ib.count(2, [200000]).get(200000, 0)
        later = ib.count(1).get(200000, 0)
        ok = all(said.values()) and remedy and all(through) and 1 <= passed <= 32 and later == 0
        return {"ok": ok, "said": said, "told": told, "through": through,
                "one_broadcast_passed": passed, "later": later}
    finally:
        eth.close()
        ib.close()
        lab.lose(lab.gateways[other])
        lab.start_one(other)
        lab.wait_settled()


def pair(args, checks):
    """All that two gateways need a laboratory for."""
    in_laboratory(PairLab, args, checks, (
        ("pair_roles", check_roles),
        ("pair_priority_by_reload", check_priority_by_reload),
        ("pair_killed", check_killed),
        ("pair_killed_after_a_first_packet", check_killed_after_a_first_packet),
        ("pair_asked_to_end", check_asked_to_end),
        ("pair_drain_alone", check_drain_alone),
        ("pair_drain", check_drain),
        ("pair_upgrade", check_upgrade),
        ("pair_keepalived", check_keepalived),
        ("pair_keepalived_notify", check_notify),
        ("pair_cable", check_cable),
        ("pair_broadcast", check_broadcast),
        ("pair_foreign_bridge", check_foreign_bridge),
        ("pair_other_key", check_other_key),
    ))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--relay", ethernet, tun]:
            relay(ethernet, tun)
        case _:
            sys.exit(__doc__)
