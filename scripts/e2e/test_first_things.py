"""First trials after the start of a gateway: ARP by hand, and a second subnet of hosts with
strict settings."""

import pytest
from testbed.programs import DEADLINE, run
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping

pytestmark = [pytest.mark.netns, pytest.mark.core]

FREE_IP = "10.77.0.99"
SECOND_ETH, SECOND_IB = "10.78.0.1", "10.78.0.2"


def arping(topology, *arguments):
    """`arping` of the Ethernet host; one question, whose answer may take as long as it does on a busy
    machine."""
    return run("arping", "-c", 1, "-w", DEADLINE // 2, "-I", "eth0", *arguments, netns=topology.eth, check=False)


class Cold(Topology):
    """Nothing has been sent when the test begins."""

    def up(self):
        self.start()
        self.wait_hosts()
        self.wait_for("the gateway to forward", self.link_up)


def test_arping(start):
    """A new InfiniBand host and the gateway itself are both at the gateway's address."""
    topology = start(Cold)
    mac = topology.ctl("links")["ethernet"]["mac"].upper()
    for address in (IB_IP, GW_IP):
        answer = arping(topology, address)
        assert answer.returncode == 0, answer.stdout
        assert mac in answer.stdout


@pytest.mark.parametrize(("address", "taken"), [(IB_IP, True), (GW_IP, True), (FREE_IP, False)], ids=["host", "gateway", "free"])
def test_arping_for_duplicates(start, address, taken):
    """Duplicate address detection, as a host does it that boots: an address is taken or not."""
    topology = start(Cold)
    # arping ends with 1 if somebody has the address. It waits for all of its time if nobody has.
    probe = run("arping", "-D", "-c", 2, "-w", DEADLINE // 2 if taken else 3, "-I", "eth0", address, netns=topology.eth, check=False)
    assert (probe.returncode == 1) == taken, probe.stdout


class SecondSubnet(Cold):
    """Hosts of a subnet in which the gateway has no address.

    The Ethernet host drops what does not come from its own subnet.
    """

    def namespaces_up(self):
        super().namespaces_up()
        run("ip", "addr", "del", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)
        run("ip", "addr", "add", f"{SECOND_ETH}/{PREFIX}", "dev", "eth0", netns=self.eth)
        for name in ("all", "default", "eth0"):
            run("sysctl", "-qw", f"net.ipv4.conf.{name}.rp_filter=1", netns=self.eth)

    def fabric_config(self):
        return super().fabric_config().replace(f"{IB_IP}/{PREFIX}", f"{SECOND_IB}/{PREFIX}")

    def gateway_config(self):
        segment = f'[[segment]]\nname = "one"\npkey = 0xffff\naddress = "{GW_IP}/{PREFIX}"\nsubnets = ["10.78.0.0/{PREFIX}"]\n'
        return super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "") + segment


def test_second_subnet_from_infiniband(start):
    topology = start(SecondSubnet)
    assert first_ping(topology.ib, SECOND_ETH)


def test_second_subnet_from_ethernet(start):
    topology = start(SecondSubnet)
    assert first_ping(topology.eth, SECOND_IB)


def test_init_finds_a_pair_with_equal_indices(start):
    """The other end of a veth is in another namespace and has the same index there."""
    topology = start(Cold)
    peer = ("peer", "name", "x1", "index", 500, "netns", topology.ib)
    run("ip", "link", "add", "x0", "index", 500, "type", "veth", *peer, netns=topology.eth)
    run("ip", "link", "set", "x0", "up", netns=topology.eth)
    proposal = run(topology.bin / "ipoib-fwd", "init", netns=topology.eth).stdout
    assert "x0: usable" in proposal, proposal
