"""One gateway with two Ethernet ports and three InfiniBand ports: two of one device, one of another, on two
fabrics with the same LIDs.

Each of four segments joins one Ethernet port to one InfiniBand port. All have the same addresses, and nothing
passes between them.

    eth0 of eth0 ── gw0 ─┬─ office ─ soft0/1 ─┬─ fabric 0
                         └─ annex ── soft1/1 ─│─┬─ fabric 1
    eth0 of eth1 ── gw1 ─┬─ plant ── soft0/2 ─│─┘
                         └─ cross ── soft0/1 ─┘
"""

import sys
from pathlib import Path
from typing import NamedTuple

from testbed import tagger
from testbed.programs import TestbedError, run
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import ping


class Segment(NamedTuple):
    """A segment of the gateway, by the ports that it joins."""

    name: str
    ethernet: int
    vlan: int | None
    device: str
    port: int
    fabric: int
    pkey: int
    # Network namespaces of its hosts.
    eth: str
    ib: str


# The gateway's InfiniBand ports, each with its fabric.
IB_PORTS = (("soft0", 1, 0), ("soft0", 2, 1), ("soft1", 1, 1))
ETHERNETS, FABRICS = (0, 1), (0, 1)
# Name, Ethernet port, VLAN, device, its port, fabric and P_Key.
SEGMENTS = (("office", 0, None, "soft0", 1, 0, 0xFFFF), ("plant", 1, None, "soft0", 2, 1, 0xFFFF),
            ("annex", 0, 100, "soft1", 1, 1, 0x8064), ("cross", 1, 100, "soft0", 1, 0, 0x8064))


class Ports(Topology):
    """A host of each segment on each side. The intruder's link is on fabric 1."""

    vdev, vdevs = "net_af_packet0,iface=gw0", ("net_af_packet1,iface=gw1",)
    intruder, gids, captured = True, True, True

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.segments = [Segment(name, ethernet, vlan, *rest, f"{self.eth}-{name}" if vlan else self.wire(ethernet), f"{self.ib}-{name}")
                         for name, ethernet, vlan, *rest in SEGMENTS]
        self.fabrics = []

    def wire(self, number):
        """Network namespace at the other end of an Ethernet port."""
        return f"{self.eth}{number}"

    def namespaces_up(self):
        for name in (self.gw, *map(self.wire, ETHERNETS), *(s.ib for s in self.segments), *(s.eth for s in self.segments if s.vlan)):
            self.namespace(name)
        for n in ETHERNETS:
            self.cable(self.wire(n), "eth0", self.gw, f"gw{n}")
            run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.wire(n))
        for s in self.segments:
            if s.vlan:
                argv = [sys.executable, Path(tagger.__file__), "eth0", s.vlan, s.eth, f"{ETH_IP}/{PREFIX}"]
                process = self.background(f"tagger {s.name}", argv, self.wire(s.ethernet))
                self.wait_for(f"the Ethernet host of {s.name}", lambda p=process: "ready" in p.text())

    def socket_of(self, device, port):
        return self.dir / f"{device}-{port}.sock"

    def fabric_config(self, fabric=0):
        text = f"[fabric]\nmtu = {self.fabric_mtu}\n"
        if fabric == 1:
            near, far = ("%s:%d" % a for a in (self.near, self.far))
            text += f'\n[[link]]\nname = "intruder"\nurl = "udp:{near}-{far}"\n'
        for device, port in ((d, p) for d, p, f in IB_PORTS if f == fabric):
            text += f'\n[[link]]\nname = "{device}-{port}"\nurl = "shm:{self.socket_of(device, port)}"\n'
        for s in (s for s in self.segments if s.fabric == fabric):
            guests = ', "intruder"' if fabric == 1 and s.pkey == 0xFFFF else ""
            text += (f'\n[[partition]]\nname = "{s.name}"\npkey = {s.pkey:#x}\n'
                     f'members = ["{s.device}-{s.port}", "{s.name}"{guests}]\n'
                     f'\n[[host]]\nname = "{s.name}"\nnetns = "{s.ib}"\ntun = "ib0"\npkey = {s.pkey:#x}\n'
                     f'address = "{IB_IP}/{PREFIX}"\nmtu = 65520\nmode = "connected"\n')
        return text

    def start_fabric(self):
        for fabric in FABRICS:
            config = self.dir / f"fabric{fabric}.toml"
            config.write_text(self.fabric_config(fabric))
            argv = [self.bin / "ibfab", "--config", config, *self.capture(f"fabric{fabric}.pcap")]
            self.fabrics.append(self.background(f"ibfab {fabric}", argv))

    def gateway_config(self):
        link = '{{ link = "shm:{}", mtu = {} }}'.format
        ports = {name: ", ".join(link(self.socket_of(d, p), self.fabric_mtu) for d, p, _ in IB_PORTS if d == name)
                 for name in ("soft0", "soft1")}
        text = f"""\
[gateway]
control-socket = "{self.socket}"
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
        for s in self.segments:
            text += (f'\n[[segment]]\nname = "{s.name}"\nethernet = "net_af_packet{s.ethernet}"\ndevice = "{s.device}"\n'
                     f'port = {s.port}\npkey = {s.pkey:#x}\naddress = "{GW_IP}/{PREFIX}"\n')
            text += f"vlan = {s.vlan}\n" if s.vlan else ""
        return text

    def up(self):
        self.start()
        self.wait_for("all segments' links", self.all_up)
        for fabric, process in enumerate(self.fabrics):
            hosts = sum(s.fabric == fabric for s in self.segments)
            self.wait_for("the InfiniBand hosts' links", lambda p=process, h=hosts: p.text().count("link up") >= h)

    def all_up(self):
        try:
            rows = self.ctl("links")["segments"]
        except TestbedError:
            return False
        return len(rows) == len(self.segments) and all(r["link"] == "up" and r["role"] == "forwarding" for r in rows)

    def connect(self):
        """The hosts of every segment reach each other, and there are connections in both directions."""
        for s in self.segments:
            for netns, target in ((s.eth, IB_IP), (s.ib, ETH_IP)):
                self.wait_for(f"pings in {s.name}", lambda n=netns, t=target: ping(n, t, 56, count=2)["ok"])
        both = {(s.name, passive) for s in self.segments for passive in (True, False)}
        self.wait_for("connections in both directions in all segments", lambda: both <= {
            (c["segment"], c["passive"]) for c in self.ctl("connections")["connections"] if c["state"] == "live"})

    def rows(self, *arguments):
        """The InfiniBand ports' rows of `links`, by name."""
        return {f"{p['device']}/{p['port']}": p for p in self.ctl("links", *arguments)["infiniband_ports"]}


class PortsOfTwoWorkers(Ports):
    workers = 2
