"""One gateway with two Ethernet ports and three InfiniBand ports: two of one device, one of another, on two fabrics whose LIDs
are the same. Each of four segments joins one to one, with the same addresses in all of them, and nothing of one is in another.

    eth0 of gwdemo-eth0 ── gw0 ─┬─ office ─ soft0/1 ─┬─ fabric 0
                                └─ annex ── soft1/1 ─│─┬─ fabric 1
    eth0 of gwdemo-eth1 ── gw1 ─┬─ lab ──── soft0/2 ─│─┘
                                └─ cross ── soft0/1 ─┘
"""

import socket
import sys
from pathlib import Path
from typing import NamedTuple

from checks.laboratory import Laboratory, grown, in_laboratory, socket_in, stopped
from checks.port_rows import PORT_ROWS
from stage.lab import ETH_IP, GW, GW_IP, IB_IP, PREFIX
from stage.programs import Failed, Process, run
from stage.traffic import FILE_BYTES, check_file, ping


class Joined(NamedTuple):
    """A segment, by what it joins."""

    name: str
    ethernet: int
    vlan: int | None
    device: str
    port: int
    fabric: int
    pkey: int

    @property
    def eth(self):
        """Network namespace of the Ethernet host."""
        return f"{GW}-eth-{self.name}" if self.vlan else wire(self.ethernet)

    @property
    def ib(self):
        """Network namespace of the InfiniBand host."""
        return f"{GW}-ib-{self.name}"


def wire(number):
    """Network namespace at the other end of an Ethernet port."""
    return f"gwdemo-eth{number}"


SEGMENTS = (Joined("office", 0, None, "soft0", 1, 0, 0xFFFF), Joined("lab", 1, None, "soft0", 2, 1, 0xFFFF),
            Joined("annex", 0, 100, "soft1", 1, 1, 0x8064), Joined("cross", 1, 100, "soft0", 1, 0, 0x8064))
# The gateway's InfiniBand ports, each with the fabric that it is on.
CABLES = (("soft0", 1, 0), ("soft0", 2, 1), ("soft1", 1, 1))
ETHERNETS = (0, 1)


class Ports(Laboratory):
    """A host of each segment on each side."""

    vdev, vdevs = "net_af_packet0,iface=gw0", ("net_af_packet1,iface=gw1",)
    segments, cables = SEGMENTS, CABLES

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def namespaces_up(self):
        for name in (GW, *(wire(n) for n in ETHERNETS), *(s.ib for s in SEGMENTS), *(s.eth for s in SEGMENTS if s.vlan)):
            self.namespace(name)
        for n in ETHERNETS:
            self.cable(wire(n), "eth0", GW, f"gw{n}")
            run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=wire(n))
        for s in SEGMENTS:
            if s.vlan:
                tagger = Process(f"tagger {s.name}", [sys.executable, Path(__file__).parent / "tagger.py", "eth0", s.vlan, s.eth,
                                                      f"{ETH_IP}/{PREFIX}"], wire(s.ethernet), self.dir / f"tagger-{s.name}.log")
                self.processes.append(tagger)
                self.wait_for(f"the Ethernet host of {s.name}", lambda tagger=tagger: "ready" in tagger.text(), 30)

    def socket_of(self, device, port):
        return self.dir / f"{device}-{port}.sock"

    def start_fabric(self):
        for fabric in (0, 1):
            cables = [c for c in CABLES if c[2] == fabric]
            text = "[fabric]\nmtu = 4096\n"
            if fabric == 1:
                near, far = ("%s:%d" % a for a in (self.near, self.far))
                text += f'\n[[link]]\nname = "intruder"\nurl = "udp:{near}-{far}"\n'
            for device, port, _ in cables:
                text += f'\n[[link]]\nname = "{device}-{port}"\nurl = "shm:{self.socket_of(device, port)}"\n'
            for s in (s for s in SEGMENTS if s.fabric == fabric):
                guests = ', "intruder"' if fabric == 1 and s.pkey == 0xFFFF else ""
                text += (f'\n[[partition]]\nname = "{s.name}"\npkey = {s.pkey:#x}\n'
                         f'members = ["{s.device}-{s.port}", "{s.name}"{guests}]\n'
                         f'\n[[host]]\nname = "{s.name}"\nnetns = "{s.ib}"\ntun = "ib0"\npkey = {s.pkey:#x}\n'
                         f'address = "{IB_IP}/{PREFIX}"\nmtu = 65520\nmode = "connected"\n')
            config = self.dir / f"fabric{fabric}.toml"
            config.write_text(text)
            self.processes.append(Process(f"ibfab {fabric}", [self.bin / "ibfab", "--config", config], None,
                                          self.dir / f"ibfab{fabric}.log"))

    def gateway_config(self):
        cable = '{{ link = "shm:{}", mtu = 4096 }}'.format
        ports = {d: ", ".join(cable(self.socket_of(d, p)) for device, p, _ in CABLES if device == d) for d in ("soft0", "soft1")}
        text = f"""\
[gateway]
control-socket = "{self.dir}/control.sock"
gids = "{self.dir}/gids"
idle = "sleep"

[infiniband]
driver = "soft"
max-connections = 64
srq-depth = 256

[infiniband.soft]
name = "soft0"
ports = [{ports["soft0"]}]

[[infiniband.soft-device]]
name = "soft1"
ports = [{ports["soft1"]}]
"""
        for s in SEGMENTS:
            text += (f'\n[[segment]]\nname = "{s.name}"\nethernet = "net_af_packet{s.ethernet}"\ndevice = "{s.device}"\n'
                     f'port = {s.port}\npkey = {s.pkey:#x}\naddress = "{GW_IP}/{PREFIX}"\n')
            text += f"vlan = {s.vlan}\n" if s.vlan else ""
        return text

    def up(self):
        self.start()
        self.wait_for("all segments' links", self.all_up, 30)
        for n in (0, 1):
            fabric, hosts = next(p for p in self.processes if p.name == f"ibfab {n}"), sum(s.fabric == n for s in SEGMENTS)
            self.wait_for("the InfiniBand hosts' links", lambda f=fabric, h=hosts: f.text().count("link up") >= h, 10)

    def all_up(self):
        try:
            rows = self.ctl("links")["segments"]
        except Failed:
            return False
        return len(rows) == len(SEGMENTS) and all(r["link"] == "up" and r["role"] == "forwarding" for r in rows)


class PortsOfTwoWorkers(Ports):
    workers = 2


# -- the checks

def pattern(number):
    """What the payload of a segment's pings is made of."""
    return f"{0xA0 + number:02x}"


class Ear:
    """All packets that a host's interface sees, and of which segments they are by their patterns."""

    def __init__(self, netns, dev):
        # ETH_P_ALL.
        self.socket = socket_in(netns, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.bind((dev, 3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.socket.setblocking(False)

    def heard(self):
        counts = dict.fromkeys((s.name for s in SEGMENTS), 0)
        while True:
            try:
                packet = self.socket.recv(65536)
            except BlockingIOError:
                return counts
            for n, s in enumerate(SEGMENTS):
                counts[s.name] += bytes([0xA0 + n]) * 40 in packet


def check_cold(lab):
    """The first packets of all, one each way in each segment, and nothing of a segment anywhere but where it belongs."""
    ears = {f"wire {n}": (Ear(wire(n), "eth0"), {s.name for s in SEGMENTS if s.ethernet == n}) for n in ETHERNETS}
    ears |= {s.ib: (Ear(s.ib, "ib0"), {s.name}) for s in SEGMENTS}
    ears |= {s.eth: (Ear(s.eth, "eth0"), {s.name}) for s in SEGMENTS if s.vlan}
    came, wrong, unheard = {}, {}, []
    try:
        for n, s in enumerate(SEGMENTS):
            # In two segments an Ethernet host is the first that speaks, in two an InfiniBand host.
            ways = (("to_infiniband", s.eth, IB_IP), ("to_ethernet", s.ib, ETH_IP))
            for way, netns, target in ways if n % 2 else reversed(ways):
                out = run("ping", "-n", "-q", "-c", 1, "-W", 3, "-s", 100, "-p", pattern(n), target, netns=netns, check=False).stdout
                came[f"{s.name}_{way}"] = ", 1 received" in out
        for where, (ear, own) in ears.items():
            heard = ear.heard()
            wrong |= {f"{name} on {where}": count for name, count in heard.items() if count and name not in own}
            unheard += [f"{name} on {where}" for name in own if not heard[name]]
    finally:
        for ear, _ in ears.values():
            ear.socket.close()
    return {"ok": all(came.values()) and not wrong and not unheard, "came": came, "of_others": wrong, "unheard": unheard}


def check_tcp(lab):
    """A file in each segment, two to InfiniBand and two to Ethernet."""
    seconds, ok, before = {}, True, lab.ctl("stats")["segments"]
    for n, s in enumerate(SEGMENTS):
        ways = (s.eth, s.ib, IB_IP), (s.ib, s.eth, ETH_IP)
        result = check_file(lab, *ways[n % 2], FILE_BYTES >> 3)
        seconds[s.name], ok = result["seconds"], ok and result["ok"]
    after = lab.ctl("stats")["segments"]
    frames = {a["segment"]: a["to_infiniband_packets"] - b["to_infiniband_packets"] for a, b in zip(after, before)}
    return {"ok": ok and all(frames.values()), "seconds": seconds, "to_infiniband_packets": frames}


def check_own_addresses(lab):
    """The gateway answers in each segment for itself, on both sides."""
    pings = {s.name: [ping(netns, GW_IP, 56, count=1, wait=3)["ok"] for netns in (s.eth, s.ib)] for s in SEGMENTS}
    return {"ok": all(map(all, pings.values())), **pings}


def check_ctl(lab):
    """Every port has its row and every segment its ports; each port's own addresses are told."""
    links = lab.ctl("links")
    ethernets = {p["port"]: (p["mac"], p["link"]) for p in links["ethernet_ports"]}
    infinibands = {f"{p['device']}/{p['port']}": (p["gid"], p["link"]) for p in links["infiniband_ports"]}
    joined = {s["segment"]: (s["ethernet"], s["infiniband"], s["vlan"]) for s in links["segments"]}
    wanted = {s.name: (f"net_af_packet{s.ethernet}", f"{s.device}/{s.port}", s.vlan) for s in SEGMENTS}
    ok = (joined == wanted and len(set(ethernets.values())) == 2 and len(set(infinibands.values())) == 3
          and all(up == "up" for _, up in (*ethernets.values(), *infinibands.values())))
    text = lab.ask("links").stdout
    named = all(name in text for name in (*ethernets, *wanted))
    lab.wait_for("connections in all segments", lambda: {c["segment"] for c in lab.ctl("connections")["connections"]} == set(wanted), 10)
    return {"ok": ok and named, "ethernets": ethernets, "infinibands": infinibands, "joined": joined}


def check_cable(lab):
    """One Ethernet cable is pulled: the segments of the other port go on, and those of this one come back with it."""
    others = [s for s in SEGMENTS if s.ethernet == 1]
    office = SEGMENTS[0]
    run("ip", "link", "set", "eth0", "down", netns=wire(0))
    try:
        lab.wait_for("the port's link to be down", lambda: [p["link"] for p in lab.ctl("links")["ethernet_ports"]] == ["down", "up"], 15)
        meanwhile = {s.name: ping(s.eth, IB_IP, 56, count=20)["received"] for s in others}
        # What comes for hosts behind the cable is dropped, and holds no other up.
        run("ping", "-n", "-q", "-c", 50, "-i", "0.01", "-W", "0.1", ETH_IP, netns=office.ib, check=False)
        during = {s.name: ping(s.ib, ETH_IP, 56, count=20)["received"] for s in others}
    finally:
        run("ip", "link", "set", "eth0", "up", netns=wire(0))
    lab.wait_for("the segment to forward again", lab.all_up, 20)
    lab.wait_for("a packet through the port that is back", lambda: ping(office.eth, IB_IP, 56, count=1)["ok"], 10)
    return {"ok": all(n == 20 for n in (*meanwhile.values(), *during.values())), "while_down": meanwhile, "and_back": during}


def check_bad_words(lab):
    """A reload that names ports that are not there, or a VLAN of a port twice, is refused with the line; all goes on."""
    path = lab.dir / "gateway.toml"
    before = path.read_text()
    wrong, said = [], {}
    try:
        for name, old, new, words in (
            ("vlan_twice", 'name = "cross"\nethernet = "net_af_packet1"', 'name = "cross"\nethernet = "net_af_packet0"',
             ("VLAN 100", "annex")),
            ("no_such_port", "port = 2", "port = 3", ("2 port(s)", "soft0")),
            ("no_such_device", 'device = "soft1"', 'device = "soft7"', ("soft7", "soft0")),
            ("no_such_ethernet", 'ethernet = "net_af_packet1"', 'ethernet = "net_af_packet9"', ("net_af_packet9", "net_af_packet1")),
        ):
            path.write_text(before.replace(old, new, 1))
            out = run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "reload", check=False, timeout=30)
            said[name] = out.stderr.strip()
            at = f"{path}:"
            if not out.returncode or at not in out.stderr or not all(word in out.stderr for word in words):
                wrong.append(name)
    finally:
        path.write_text(before)
    return {"ok": not wrong and lab.all_up(), "wrong": wrong, "said": said}


def check_stop(lab):
    """It ends in order, and every buffer has come home; nothing was lost to a wrong port."""
    drops = grown(lab.ctl("stats")["drops"], {})
    return {**stopped(lab), "drops": drops}


def ports(args, checks):
    for suffix, make in (("", Ports), ("_workers", PortsOfTwoWorkers)):
        in_laboratory(make, args, checks, (
            (f"ports{suffix}_cold", check_cold),
            (f"ports{suffix}_own_addresses", check_own_addresses),
            (f"ports{suffix}_ctl", check_ctl),
            (f"ports{suffix}_tcp", check_tcp),
            *((f"ports{suffix}_{name}", check) for name, check in PORT_ROWS),
            (f"ports{suffix}_cable", check_cable),
            (f"ports{suffix}_bad_words", check_bad_words),
            (f"ports{suffix}_stop_no_leak", check_stop),
        ))
