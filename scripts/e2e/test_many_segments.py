"""All the segments that one gateway may have, on one port of each side."""

import sys

import pytest
from testbed import tagger
from testbed.programs import TestbedError
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping

pytestmark = pytest.mark.netns

SEGMENTS = 128
FIRST_VLAN = 100
LAST = SEGMENTS - 1


def pkey(number):
    """A port's table has 128 P_Keys, of which one is the default one: the first segment's."""
    return 0x8100 + number if number else 0xFFFF


class ManySegments(Topology):
    """Every VLAN has a partition; only the last ones have hosts."""

    def namespaces_up(self):
        super().namespaces_up()
        self.last = f"{self.eth}-last"
        self.namespace(self.last)
        process = self.background("tagger", [sys.executable, tagger.__file__, "eth0", FIRST_VLAN + LAST, self.last, f"{ETH_IP}/{PREFIX}"],
                                  self.eth)
        self.wait_for("the host of the last VLAN", lambda: "ready" in process.text())

    def fabric_config(self):
        text = f'[fabric]\nmtu = {self.fabric_mtu}\n\n[[link]]\nname = "gateway"\nurl = "shm:{self.link}"\n'
        for number in range(SEGMENTS):
            members = {0: '"all"', LAST: '"gateway", "last"'}.get(number, '"gateway"')
            text += f'\n[[partition]]\nname = "p{number}"\npkey = {pkey(number):#x}\nmembers = [{members}]\n'
        return text + (f'\n[[host]]\nname = "last"\nnetns = "{self.ib}"\ntun = "ib0"\npkey = {pkey(LAST):#x}\n'
                       f'address = "{IB_IP}/{PREFIX}"\nmtu = 65520\nmode = "connected"\n')

    def gateway_config(self):
        text = super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "")
        return text + "".join(f'\n[[segment]]\nname = "s{number}"\npkey = {pkey(number):#x}\naddress = "{GW_IP}/{PREFIX}"\n'
                              f"vlan = {FIRST_VLAN + number}\n" for number in range(SEGMENTS))

    def up(self):
        self.start()
        self.wait_hosts()
        self.wait_for("all segments to forward", self.all_forward, seconds=600)

    def all_forward(self):
        try:
            rows = self.ctl("links")["segments"]
        except TestbedError:
            return False
        return len(rows) == SEGMENTS and all(row["role"] == "forwarding" for row in rows)


@pytest.mark.parametrize("direction", [pytest.param("to_infiniband", marks=pytest.mark.core), "to_ethernet"])
def test_first_packet_in_the_last_segment(start, direction):
    topology = start(ManySegments)
    netns, target = {"to_infiniband": (topology.last, IB_IP), "to_ethernet": (topology.ib, ETH_IP)}[direction]
    assert first_ping(netns, target)
    # The gateway joins the broadcast group and all link-local groups of each segment.
    topology.wait_for("all groups", lambda: len([g for g in topology.ctl("groups")["groups"] if g["state"] == "joined"]) == 13 * SEGMENTS)
