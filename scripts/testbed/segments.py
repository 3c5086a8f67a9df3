"""Three segments on one gateway: VLANs joined to partitions, with the same addresses in all of them."""

import dataclasses
import sys

from testbed import tagger
from testbed.programs import TestbedError
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import ping


@dataclasses.dataclass(frozen=True)
class Segment:
    """A segment of the topology.

    `pattern` is the byte that the payload of its pings is made of; namespaces end with `suffix`.
    """

    name: str
    pkey: int
    pattern: int
    vlan: int = 0

    @property
    def suffix(self):
        return str(self.vlan or "")


SEGMENTS = (Segment("office", 0xFFFF, 0xA0), Segment("storage", 0x8064, 0xA1, 100), Segment("backup", 0x80C8, 0xA2, 200))


class Segments(Topology):
    """A host of each segment on each side. All hosts of a side have the same address."""

    captured = True

    def hosts(self, segment):
        """The network namespaces of a segment's Ethernet host and InfiniBand host."""
        return self.eth + segment.suffix, self.ib + segment.suffix

    def namespaces_up(self):
        super().namespaces_up()
        for segment in SEGMENTS[1:]:
            eth, ib = self.hosts(segment)
            self.namespace(eth)
            self.namespace(ib)
            arguments = ("eth0", segment.vlan, eth, f"{ETH_IP}/{PREFIX}")
            process = self.background(f"tagger {segment.vlan}", [sys.executable, tagger.__file__, *arguments], self.eth)
            self.wait_for(f"the host of VLAN {segment.vlan}", lambda: "ready" in process.text())

    def fabric_config(self):
        text = f'[fabric]\nmtu = {self.fabric_mtu}\n\n[[link]]\nname = "gateway"\nurl = "shm:{self.link}"\n'
        for segment in SEGMENTS:
            members = '"all"' if segment.pkey == 0xFFFF else f'"gateway", "{segment.name}"'
            text += f"""
[[partition]]
name = "{segment.name}"
pkey = {segment.pkey:#x}
members = [{members}]

[[host]]
name = "{segment.name}"
netns = "{self.hosts(segment)[1]}"
tun = "ib0"
pkey = {segment.pkey:#x}
address = "{IB_IP}/{PREFIX}"
mtu = 65520
mode = "connected"
"""
        return text

    def gateway_config(self):
        text = super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "")
        for segment in SEGMENTS:
            text += f'\n[[segment]]\nname = "{segment.name}"\npkey = {segment.pkey:#x}\naddress = "{GW_IP}/{PREFIX}"\n'
            text += f"vlan = {segment.vlan}\n" if segment.vlan else ""
        return text

    def up(self):
        self.start()
        self.wait_for("all segments' links", self.all_up)
        self.wait_hosts(len(SEGMENTS))

    def all_up(self):
        try:
            rows = self.ctl("links")["segments"]
        except TestbedError:
            return False
        return len(rows) == len(SEGMENTS) and all(row["link"] == "up" and row["role"] == "forwarding" for row in rows)

    def exchange(self):
        """Pings between all pairs of hosts in both directions, each with its own payload; all are
        answered."""
        for segment in SEGMENTS:
            eth, ib = self.hosts(segment)
            for netns, target in ((eth, IB_IP), (ib, ETH_IP)):
                result = ping(netns, target, 100, count=10, interval=0.05, more=("-p", f"{segment.pattern:02x}"))
                assert result["ok"], (segment.name, target, result)
