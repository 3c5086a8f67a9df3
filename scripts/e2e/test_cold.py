"""The very first packet, to a gateway that knows no host yet: one packet, no second attempt."""

import socket

import pytest
from testbed.programs import TestbedError, run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import LATE, first_ping, grown

pytestmark = pytest.mark.netns

# The gateway forgets a neighbor that nobody uses after this long.
IDLE_SECONDS = 2
PORT = 7007
IP_MTU_DISCOVER, IP_PMTUDISC_DONT, IP_PMTUDISC_DO = 10, 0, 2


class Cold(Topology):
    """Comes up without a packet between the hosts."""

    captured = True

    def lcores(self):
        # EAL's other option for the same two lcores.
        return ["-c", "0x3"]

    def gateway_config(self):
        return super().gateway_config().replace("[infiniband]\n", f"[infiniband]\nneighbour-idle-seconds = {IDLE_SECONDS}\n", 1)

    def up(self):
        self.start()
        self.wait_for("the gateway's links", self.links_up)
        self.wait_hosts()
        self.flush_neighbours()

    def links_up(self):
        try:
            return self.link_up() and self.ctl("links")["ethernet"]["link"] == "up"
        except TestbedError:
            return False

    def skip_arp(self):
        """The Ethernet host sends to the gateway without an ARP request: its first packet reaches a gateway
        that knows no host."""
        mac = self.ctl("links")["ethernet"]["mac"]
        run("ip", "neigh", "replace", IB_IP, "lladdr", mac, "dev", "eth0", "nud", "permanent", netns=self.eth)


class SmallDatagrams(Cold):
    """A fabric whose datagrams are shorter than Ethernet's frames."""

    fabric_mtu = 1024


class LongBuffers(Cold):
    """Buffers, and with them frames of the Ethernet port, for what the kernel reassembles from fragments."""

    data_room = 16384


def test_first_ping_to_infiniband(start):
    assert first_ping(start(Cold).eth, IB_IP)


@pytest.mark.core
def test_first_ping_to_ethernet(start):
    assert first_ping(start(Cold).ib, ETH_IP)


@pytest.mark.slow
def test_ping_after_silence(start):
    """The gateway finds a host again that it has forgotten."""
    topology = start(Cold)
    topology.skip_arp()
    assert first_ping(topology.eth, IB_IP)
    topology.wait_for("the gateway to forget the InfiniBand host", lambda: not topology.ctl("neighbours")["infiniband"])
    assert first_ping(topology.eth, IB_IP)


def test_first_datagram(start):
    topology = start(Cold)
    topology.skip_arp()
    with socket_in(topology.ib, socket.AF_INET, socket.SOCK_DGRAM) as receiver, \
            socket_in(topology.eth, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind((IB_IP, PORT))
        receiver.settimeout(LATE)
        sender.sendto(b"the only one", (IB_IP, PORT))
        assert receiver.recv(100) == b"the only one"


def test_packet_larger_than_a_datagram(start):
    """It waits for the connection, and is not answered "too big" meanwhile."""
    topology = start(SmallDatagrams)
    for netns, target in ((topology.eth, IB_IP), (topology.ib, ETH_IP)):
        out = run("ping", "-n", "-c", 1, "-W", LATE, "-M", "do", "-s", 1400, target, netns=netns, check=False).stdout
        assert " 1 received" in out
        assert "needed" not in out
    assert topology.ctl("stats")["traffic"]["ib_ud_unicast_transmit"]["packets"] == 0


def test_fragments(start):
    """One packet each way that takes several frames; the Ethernet port's kernel or the host reassembles the
    fragments."""
    topology = start(LongBuffers)
    for netns, target in ((topology.eth, IB_IP), (topology.ib, ETH_IP)):
        out = run("ping", "-n", "-q", "-c", 1, "-W", LATE, "-M", "dont", "-s", 8000, target, netns=netns, check=False).stdout
        assert " 1 received" in out, topology.drops()


def test_group_packet_larger_than_a_datagram(start):
    """The gateway cuts a packet to all hosts that fits no datagram, or drops and counts it if it must not be
    cut."""
    topology = start(SmallDatagrams)
    large = bytes(range(200)) * 7
    with socket_in(topology.ib, socket.AF_INET, socket.SOCK_DGRAM) as receiver, \
            socket_in(topology.eth, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind(("0.0.0.0", PORT))
        receiver.settimeout(LATE)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)

        def send(payload, discover):
            sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, discover)
            sender.sendto(payload, ("10.77.0.255", PORT))

        before = topology.drops()
        send(large, IP_PMTUDISC_DONT)
        assert receiver.recv(2000) == large
        assert grown(topology.drops(), before) == {}
        send(large, IP_PMTUDISC_DO)
        # Had the large packet come through, it would be the first one received.
        send(b"behind it", IP_PMTUDISC_DO)
        assert receiver.recv(2000) == b"behind it"
        topology.wait_for("the drop", lambda: grown(topology.drops(), before))
        assert grown(topology.drops(), before) == {"too-big": 1}
