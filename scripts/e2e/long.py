"""Messages in more buffers than a send may name: jumbo frames in small buffers, sends of two pieces at most. They go under keys of
their own or as copies, whole, and nothing of it is left. The Ethernet port is one that takes frames of any length in as many buffers
as they need, net_pcap; those that the gateway sends are as long as ethernet.mtu.
"""

import os
import signal
import socket

from checks.laboratory import Laboratory, grown, in_laboratory, socket_in, stopped
from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.programs import run
from stage.traffic import check_file

# Of the wire; the gateway's own end of it takes what one buffer has room for.
MTU, OWN_MTU, PIECES = 9_000, 2_000, 2
# Nearly 60 KiB, with the headers of IP and UDP, in seven frames of which all but the last are in five buffers.
PACKET, FRAMES = 61_400, 6
PACKETS, PORT = 20, 7030
IP_MTU_DISCOVER, IP_PMTUDISC_DONT = 10, 0


class Long(Laboratory):
    """A device that names few pieces, as the gateway sees it."""

    vdev = "net_pcap0,rx_iface_in=gw0,tx_iface=gw0"
    data_room = 2048
    way = "copy"

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def cable(self, one, dev, other, peer):
        super().cable(one, dev, other, peer)
        for netns, end in ((one, dev), (other, peer)):
            run("ip", "link", "set", end, "mtu", MTU, netns=netns)

    def gateway_config(self):
        text = super().gateway_config().replace("mtu = 1500", f"mtu = {OWN_MTU}", 1)
        return text.replace("[infiniband]\n", f'[infiniband]\nsend-segments = {PIECES}\nlong-messages = "{self.way}"\n', 1)


class LongByKey(Long):
    way = "key"


def send_whole(from_ns, to_ns, source, target):
    """Packets of random bytes, one after the other; how many came as they were."""
    receiver, sender = (socket_in(ns, socket.AF_INET, socket.SOCK_DGRAM) for ns in (to_ns, from_ns))
    came = 0
    with receiver, sender:
        receiver.bind((target, PORT))
        receiver.settimeout(10)
        sender.bind((source, 0))
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        for _ in range(PACKETS):
            data = os.urandom(PACKET)
            sender.sendto(data, (target, PORT))
            try:
                came += receiver.recv(1 << 16) == data
            except TimeoutError:
                break
    return came


def check_packets(lab):
    """60 KiB both ways; those to InfiniBand are in more buffers than a send names."""
    if lab.way == "key":
        # One is asked for at a time, and made by the control lcore: until there are as many as a round takes.
        copied = lambda: lab.ctl("stats")["long_messages"]["copied"]

        def enough():
            before = copied()
            return send_whole(ETH, IB, ETH_IP, IB_IP) == PACKETS and copied() == before

        lab.wait_for("keys enough for a round", enough, 30)
    stats = lab.ctl("stats")
    before, drops = stats["long_messages"], stats["drops"]
    to_ib, to_eth = send_whole(ETH, IB, ETH_IP, IB_IP), send_whole(IB, ETH, IB_IP, ETH_IP)
    stats = lab.ctl("stats")
    after, drops = stats["long_messages"], grown(stats["drops"], drops)
    keys, moved = grown(after.pop("keys"), before.pop("keys")), grown(after, before)
    copied, by_key = moved.get("copied", 0), moved.get("by_key", 0)
    ok = to_ib == to_eth == PACKETS and copied + by_key >= PACKETS * FRAMES
    if lab.way == "key":
        # Each had a key, but for those that came before there was one.
        ok &= by_key > PACKETS * FRAMES / 2 and keys.get("taken") == by_key and copied <= keys.get("missed", 0)
    else:
        ok &= by_key == 0 and not keys
    return {"ok": ok, "to_infiniband": to_ib, "to_ethernet": to_eth, "of": PACKETS, **moved, "keys": keys, "drops": drops}


def check_load(lab):
    """Files both ways, their contents, and that the keys come back."""
    before = lab.ctl("stats")["long_messages"]
    files = [check_file(lab, ETH, IB, IB_IP, 16 << 20), check_file(lab, IB, ETH, ETH_IP, 16 << 20)]
    lab.wait_for("keys back", lambda: lab.ctl("stats")["long_messages"]["keys"]["in_use"] == 0, 5)
    after = lab.ctl("stats")["long_messages"]
    keys, was = after.pop("keys"), before.pop("keys")
    moved = grown(after, before)
    sent = moved.get("by_key" if lab.way == "key" else "copied", 0)
    ok = all(f["ok"] for f in files) and sent > 0
    if lab.way == "key":
        # No key is made for each message: they go round.
        ok &= 0 < keys["idle"] and 5 * keys["idle"] < keys["taken"] - was["taken"] and keys["renewed"] == 0
    return {"ok": ok, "seconds": [f["seconds"] for f in files], **moved, "keys": keys}


def check_cut(lab):
    """The InfiniBand host goes with messages on their way to it, and comes back: keys in doubt are made anew."""
    sender = socket_in(ETH, socket.AF_INET, socket.SOCK_DGRAM)
    with sender:
        sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DONT)
        lab.fabric.popen.send_signal(signal.SIGSTOP)
        for _ in range(PACKETS):
            sender.sendto(bytes(PACKET), (IB_IP, PORT))
    # They are with the device by then, and nobody takes them.
    lab.wait_for("messages under way", lambda: lab.way == "copy" or lab.ctl("stats")["long_messages"]["keys"]["in_use"] > 0, 20)
    lab.lose(lab.fabric)
    lab.start_fabric()
    lab.wait_for("the InfiniBand link", lab.link_up, 20)
    lab.wait_for("the host", lambda: send_one(lab), 20)
    lab.wait_for("keys back", lambda: lab.ctl("stats")["long_messages"]["keys"].get("in_use", 0) == 0, 20)
    keys = lab.ctl("stats")["long_messages"]["keys"]
    result = check_packets(lab)
    result["ok"] &= keys["in_use"] == 0 and (keys["renewed"] > 0) == (lab.way == "key")
    return {**result, "renewed": keys["renewed"]}


def send_one(lab):
    return run("ping", "-n", "-q", "-c", 1, "-W", 1, "-s", 8000, IB_IP, netns=ETH, check=False).returncode == 0


def long(args, checks):
    for make in (LongByKey, Long):
        in_laboratory(make, args, checks, (
            (f"long_by_{make.way}_packets", check_packets),
            (f"long_by_{make.way}_load", check_load),
            (f"long_by_{make.way}_cut", check_cut),
            (f"long_by_{make.way}_stop_no_leak", stopped),
        ))
