"""Messages in more buffers than a send may name: jumbo frames in small buffers, sends of two pieces at most.

They go by memory keys of their own or as copies, whole, and nothing of it is left. The Ethernet port is one
that receives frames of any length in several buffers, net_pcap; those that the gateway sends are as
long as ethernet.mtu.
"""

import os
import signal
import socket

import pytest
from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import LATE, grown, send_file

pytestmark = pytest.mark.netns

# The MTU of the wire; the gateway's own frames are as long as one buffer has room for.
MTU, OWN_MTU, PIECES = 9_000, 2_000, 2
# Nearly 60 KiB, with the headers of IP and UDP, in seven frames of which all but the last are in five
# buffers.
PACKET, FRAMES = 61_400, 6
PACKETS, PORT = 20, 7030
IP_MTU_DISCOVER, IP_PMTUDISC_DONT = 10, 0
METHODS = pytest.mark.parametrize("method", ["key", "copy"])


class LongMessages(Topology):
    """To the gateway, the device is one that takes few pieces in a send.

    `method` says how it sends long messages.
    """

    vdev = "net_pcap0,rx_iface_in=gw0,tx_iface=gw0"
    data_room = 2048
    method = "copy"

    def cable(self, one, dev, other, peer):
        super().cable(one, dev, other, peer)
        for netns, end in ((one, dev), (other, peer)):
            run("ip", "link", "set", end, "mtu", MTU, netns=netns)

    def gateway_config(self):
        text = super().gateway_config().replace("mtu = 1500", f"mtu = {OWN_MTU}", 1)
        return text.replace("[infiniband]\n", f'[infiniband]\nsend-segments = {PIECES}\nlong-messages = "{self.method}"\n', 1)

    def long_messages(self):
        return self.ctl("stats")["long_messages"]

    def wait_for_keys(self):
        self.wait_for("the return of all keys", lambda: self.long_messages()["keys"].get("in_use", 0) == 0)


def send_whole(from_ns, to_ns, source, target):
    """Sends packets of random bytes, one after the other; returns how many arrived unchanged before the first
    that did not arrive."""
    receiver, sender = (socket_in(ns, socket.AF_INET, socket.SOCK_DGRAM) for ns in (to_ns, from_ns))
    arrived = 0
    with receiver, sender:
        receiver.bind((target, PORT))
        receiver.settimeout(LATE)
        sender.bind((source, 0))
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        for _ in range(PACKETS):
            data = os.urandom(PACKET)
            sender.sendto(data, (target, PORT))
            try:
                arrived += receiver.recv(1 << 16) == data
            except TimeoutError:
                break
    return arrived


def make_keys(topology):
    """Sends until there are enough keys for a round of packets: the control lcore makes them one at a
    time."""
    copied = lambda: topology.long_messages()["copied"]

    def enough():
        before = copied()
        return send_whole(topology.eth, topology.ib, ETH_IP, IB_IP) == PACKETS and copied() == before

    topology.wait_for("keys enough for a round", enough)


def exchange_packets(topology, figures):
    """60 KiB in both directions; those to InfiniBand are in more buffers than a send names."""
    if topology.method == "key":
        make_keys(topology)
    before, drops = topology.long_messages(), topology.drops()
    to_infiniband = send_whole(topology.eth, topology.ib, ETH_IP, IB_IP)
    to_ethernet = send_whole(topology.ib, topology.eth, IB_IP, ETH_IP)
    after, drops = topology.long_messages(), grown(topology.drops(), drops)
    assert (to_infiniband, to_ethernet) == (PACKETS, PACKETS), drops
    keys, sent = grown(after.pop("keys"), before.pop("keys")), grown(after, before)
    figures(sent=sent, keys=keys)
    copied, by_key = sent.get("copied", 0), sent.get("by_key", 0)
    assert copied + by_key >= PACKETS * FRAMES
    if topology.method == "key":
        # Each had a key, but for those that came before there was one.
        assert by_key > PACKETS * FRAMES / 2
        assert keys.get("taken") == by_key
        assert copied <= keys.get("missed", 0)
    else:
        assert by_key == 0 and not keys


@METHODS
def test_packets(start, figures, method):
    exchange_packets(start(LongMessages, method=method), figures)


@METHODS
def test_files(start, figures, method):
    """Files arrive unchanged in both directions, and all keys return."""
    topology = start(LongMessages, method=method)
    before = topology.long_messages()
    to_infiniband = send_file(topology, topology.eth, topology.ib, IB_IP, 16 << 20)
    assert to_infiniband["ok"], to_infiniband
    to_ethernet = send_file(topology, topology.ib, topology.eth, ETH_IP, 16 << 20)
    assert to_ethernet["ok"], to_ethernet
    topology.wait_for_keys()
    after = topology.long_messages()
    keys, keys_before = after.pop("keys"), before.pop("keys")
    sent = grown(after, before)
    figures(sent=sent, keys=keys)
    if method == "key":
        assert sent.get("by_key", 0) > 0
        # The gateway makes no key for each message: it uses them again.
        assert keys["idle"] > 0
        assert 5 * keys["idle"] < keys["taken"] - keys_before["taken"]
        assert keys["renewed"] == 0
    else:
        assert sent.get("copied", 0) > 0


@METHODS
def test_fabric_dies_with_messages_in_flight(start, figures, method):
    """The InfiniBand host goes with messages in flight to it, and comes back; the gateway renews the keys
    that are in doubt."""
    topology = start(LongMessages, method=method)
    if method == "key":
        make_keys(topology)
    with socket_in(topology.eth, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        topology.fabric.popen.send_signal(signal.SIGSTOP)
        for _ in range(PACKETS):
            sender.sendto(bytes(PACKET), (IB_IP, PORT))
    # They are with the device by then, and no peer takes them.
    topology.wait_for("messages in flight", lambda: method == "copy" or topology.long_messages()["keys"]["in_use"] > 0)
    topology.kill(topology.fabric)
    topology.start_fabric()
    topology.wait_for("the InfiniBand link", topology.link_up)
    large_ping = ("ping", "-n", "-q", "-c", 1, "-W", 1, "-s", 8000, IB_IP)
    topology.wait_for("the host", lambda: run(*large_ping, netns=topology.eth, check=False).returncode == 0)
    topology.wait_for_keys()
    assert (topology.long_messages()["keys"]["renewed"] > 0) == (method == "key")
    exchange_packets(topology, figures)
