"""Packets that do not fit, packets to all hosts, and a change of the mode under traffic."""

import re
import socket

import pytest
from testbed.pings import Pings
from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import LATE, packets, ping, traffic

pytestmark = pytest.mark.netns

TO_ALL = ("10.77.0.255", "255.255.255.255", "224.0.0.1")
BY_RC, BY_UD = "ib_rc_transmit", "ib_ud_unicast_transmit"
# Pings that may be lost when the mode changes twice.
MAY_BE_LOST = 5


class Captured(Topology):
    captured = True


class FragmentPort(Topology):
    """An Ethernet port that takes fragments as they come; net_af_packet lets the kernel reassemble them."""

    vdev = "net_pcap0,rx_iface_in=gw0,tx_iface=gw0"
    captured = True


@pytest.mark.parametrize("to", [pytest.param("infiniband", marks=pytest.mark.core), "ethernet"])
def test_packets_to_all_hosts(start, to):
    """Subnet broadcast, limited broadcast and all-hosts multicast reach the other side."""
    topology = start(Captured)
    if to == "infiniband":
        sending, device, source, receiving = topology.eth, b"eth0", ETH_IP, topology.ib
    else:
        sending, device, source, receiving = topology.ib, b"ib0", IB_IP, topology.eth
    for port, target in enumerate(TO_ALL, 7100):
        with socket_in(receiving, socket.AF_INET, socket.SOCK_DGRAM) as receiver, \
                socket_in(sending, socket.AF_INET, socket.SOCK_DGRAM) as sender:
            receiver.bind(("0.0.0.0", port))
            receiver.settimeout(LATE)
            sender.bind((source, 0))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(source))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device)
            sender.sendto(target.encode(), (target, port))
            data, (peer, _) = receiver.recvfrom(100)
        assert (data.decode(), peer) == (target, source)


@pytest.mark.core
def test_too_big_is_answered(start):
    """The sender learns Ethernet's MTU from the gateway's ICMP message."""
    topology = start(Captured)
    out = run("ping", "-n", "-c", 3, "-i", "0.2", "-W", LATE, "-M", "do", "-s", 3000, ETH_IP, netns=topology.ib, check=False)
    reported = re.findall(r"mtu ?=? ?(\d+)", out.stdout + out.stderr)
    assert reported and set(reported) == {"1500"}, out.stdout + out.stderr
    route = run("ip", "route", "get", ETH_IP, netns=topology.ib).stdout
    assert re.findall(r"mtu (\d+)", route) == ["1500"], route
    assert topology.drops().get("too-big-answered", 0) > 0


def transmitted(topology, action):
    """Packets that the gateway sends by connection and by datagram during an action."""
    before = traffic(topology)
    action()
    after = traffic(topology)
    return tuple(packets(after, name) - packets(before, name) for name in (BY_RC, BY_UD))


def switch(topology, mode):
    """Changes the mode, and waits until pings go by the new path and by no other."""
    topology.ctl("mode", mode)

    def settled():
        rc, ud = transmitted(topology, lambda: ping(topology.eth, IB_IP, 56, count=2))
        return (rc == 0 and ud > 0) if mode == "datagram" else (ud == 0 and rc > 0)

    topology.wait_for(f"{mode} mode", settled)


def switch_under_traffic(topology):
    """Switches to datagram mode and back while pings run, and counts them in each mode; returns
    `Pings.end`."""
    pings = Pings(topology.eth, IB_IP, 0.01, topology.dir / "steady.log")
    twenty = lambda: ping(topology.eth, IB_IP, 56)
    try:
        rc, ud = transmitted(topology, twenty)
        assert rc >= 20 and ud == 0, (rc, ud)
        switch(topology, "datagram")
        rc, ud = transmitted(topology, twenty)
        assert rc == 0 and ud >= 20, (rc, ud)
        switch(topology, "connected")
        rc, ud = transmitted(topology, twenty)
        assert rc >= 20 and ud == 0, (rc, ud)
        return pings.end()
    finally:
        pings.stop()


@pytest.mark.core
def test_mode_switch(start, figures):
    figures(**switch_under_traffic(start(Captured)))


@pytest.mark.timing
def test_mode_switch_loses_few_packets(start, figures):
    pings = switch_under_traffic(start(Captured))
    figures(**pings)
    assert pings["lost"] <= MAY_BE_LOST


def fragmented(topology, netns, target):
    """Three packets of 60,000 bytes; how many were answered, and how many the gateway cut into fragments."""
    before = packets(traffic(topology), "fragmented")
    received = ping(netns, target, 60000, count=3, interval=0.1, more=("-M", "dont"))["received"]
    return received, packets(traffic(topology), "fragmented") - before


def test_fragments_to_infiniband(start, figures):
    topology = start(FragmentPort)
    received, cut = fragmented(topology, topology.eth, IB_IP)
    figures(fragmented_by_gateway=cut)
    assert received == 3


def test_fragments_to_ethernet(start, figures):
    topology = start(FragmentPort)
    received, cut = fragmented(topology, topology.ib, ETH_IP)
    figures(fragmented_by_gateway=cut)
    assert received == 3
    assert cut >= 3


def test_datagram_mode(start, figures):
    """Packets of Ethernet's MTU go by datagram, larger ones are cut; none goes by connection."""
    topology = start(FragmentPort)
    switch(topology, "datagram")

    def exchange():
        to_infiniband = ping(topology.eth, IB_IP, 1472, count=5)
        to_ethernet = ping(topology.ib, ETH_IP, 1472, count=5)
        assert to_infiniband["ok"], to_infiniband
        assert to_ethernet["ok"], to_ethernet
        received, cut = fragmented(topology, topology.ib, ETH_IP)
        figures(fragmented_by_gateway=cut)
        assert received == 3

    rc, ud = transmitted(topology, exchange)
    assert rc == 0
    assert ud >= 10
