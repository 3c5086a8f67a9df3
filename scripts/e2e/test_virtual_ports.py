"""The gateway and a host on virtual ports, as functions of SR-IOV have them: nothing is sent or taken without
a GRH."""

import pytest
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import first_ping, ping, send_file

pytestmark = pytest.mark.netns


class VirtualPorts(Topology):
    """Both ends of the fabric are virtual ports; its paths have a hop limit, as those of a subnet manager
    that knows virtual ports."""

    def fabric_config(self):
        text = super().fabric_config().replace("[fabric]\n", "[fabric]\nhop_limit = 1\n")
        return text.replace('mode = "connected"\n', 'mode = "connected"\ngrh_required = true\n')

    def gateway_config(self):
        return super().gateway_config().replace(f"mtu = {self.fabric_mtu} }}", f"mtu = {self.fabric_mtu}, grh-required = true }}")

    def up(self):
        self.start()
        self.wait_hosts()
        self.wait_for("the gateway to forward", self.link_up)


class SeveralLids(VirtualPorts):
    """The same with four LIDs for each port."""

    def fabric_config(self):
        return super().fabric_config().replace("[fabric]\n", "[fabric]\nlmc = 2\n")


@pytest.mark.core
@pytest.mark.parametrize("kind", [VirtualPorts, SeveralLids])
@pytest.mark.parametrize("direction", ["to_infiniband", "to_ethernet"])
def test_virtual_ports(start, direction, kind):
    """From cold: ARP, the handshake of connected mode and data all have a GRH."""
    topology = start(kind)
    netns, target = {"to_infiniband": (topology.eth, IB_IP), "to_ethernet": (topology.ib, ETH_IP)}[direction]
    assert first_ping(netns, target)
    topology.wait_connected()
    assert ping(netns, target, 1472)["ok"]
    sent = send_file(topology, topology.eth, topology.ib, IB_IP)
    assert sent["ok"], sent
