"""Who owns an address: claims that its owner refuses, addresses that move from one side to the other."""

import socket
import struct
import time

import ibwire
from checks.frames import arp, ethernet_socket
from checks.laboratory import back_within, socket_in
from demo import ETH, ETH_IP, IB, IB_IP, PREFIX, Failed, ping, run

EVERYONE = b"\xff" * 6
STRANGER = b"\x02\x13\x13\x13\x13\x13"
TO_ETHERNET, TO_INFINIBAND = "10.77.0.70", "10.77.0.80"
QKEY, QPN, ARP = 0x0B1B, 5, 0x0806


def announcement(mac, ip):
    return EVERYONE + mac + b"\x08\x06" + arp(mac, ip, ip)


def counters(lab):
    return lab.ctl("neighbours")["counters"]["segment"]


def known(lab, side, ip):
    return any(n["address"] == ip for n in lab.ctl("neighbours")[side])


class Neighbour(ibwire.Intruder):
    """An InfiniBand host that speaks ARP when it is told to, and answers nobody."""

    def __init__(self, lab):
        super().__init__(lab.far, lab.near)
        links = lab.ctl("links")["infiniband"]
        self.gateway, self.address = links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))

    def __enter__(self):
        self.start()
        end = time.monotonic() + 10
        while self.state != 4:
            if time.monotonic() > end:
                self.close()
                raise Failed(f"the neighbour's port is in state {self.state}")
            time.sleep(0.02)
        time.sleep(0.3)
        return self

    def __exit__(self, *_):
        self.close()

    def request(self, sender, target):
        own = struct.pack(">IQQ", QPN, 0xFE80 << 48, self.guid + 1)
        body = struct.pack(">HHBBH", 32, 0x0800, 20, 4, 1) + own + socket.inet_aton(sender) + bytes(20)
        message = struct.pack(">HH", 0x0806, 0) + body + socket.inet_aton(target)
        qpn = int.from_bytes(self.address[1:4], "big")
        self.send(ibwire.ud(self.gateway, self.lid, qpn, QPN, QKEY, message))


def refused(lab, before, claim):
    """Both sides' pings while somebody claims an address again and again."""
    received = [0, 0]
    for _ in range(5):
        claim()
        for at, (netns, target) in enumerate(((ETH, IB_IP), (IB, ETH_IP))):
            received[at] += ping(netns, target, 56, count=5)["received"]
        time.sleep(0.5)
    after = counters(lab)
    conflicts, moves = (after[k] - before[k] for k in ("conflicts", "moves"))
    return {"ok": received == [25, 25] and conflicts >= 1 and moves == 0, "received": received, "of": 25,
            "conflicts": conflicts, "moves": moves}


def check_claim_from_ethernet(lab):
    """A stranger on Ethernet says that it has the InfiniBand host's address."""
    ping(ETH, IB_IP, 56, count=2)
    raw, _, _ = ethernet_socket(lab)
    with raw:
        return refused(lab, counters(lab), lambda: raw.send(announcement(STRANGER, IB_IP)))


def check_claim_from_infiniband(lab):
    """A stranger on InfiniBand says that it has the Ethernet host's address."""
    ping(IB, ETH_IP, 56, count=2)
    with Neighbour(lab) as stranger:
        return refused(lab, counters(lab), lambda: stranger.request(ETH_IP, ETH_IP))


def check_move_to_ethernet(lab):
    """An address whose InfiniBand host is silent is taken over on Ethernet."""
    raw, _, own = ethernet_socket(lab)
    with raw, Neighbour(lab) as old:
        old.request(TO_ETHERNET, ETH_IP)
        lab.wait_for("the gateway to know the address on InfiniBand", lambda: known(lab, "infiniband", TO_ETHERNET), 3)
        before = counters(lab)
        run("ip", "addr", "add", f"{TO_ETHERNET}/{PREFIX}", "dev", "eth0", netns=ETH)
        try:
            raw.send(announcement(own, TO_ETHERNET))
            seconds = back_within(5, IB, TO_ETHERNET)
        finally:
            run("ip", "addr", "del", f"{TO_ETHERNET}/{PREFIX}", "dev", "eth0", netns=ETH)
    moves = counters(lab)["moves"] - before["moves"]
    return {"ok": seconds is not None and seconds < 3 and moves == 1, "seconds": seconds, "moves": moves}


def check_move_to_infiniband(lab):
    """An address whose Ethernet host is gone turns up on InfiniBand: Ethernet is told where."""
    raw, gateway, _ = ethernet_socket(lab)
    raw.close()
    with socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW) as ears, Neighbour(lab) as new:
        ears.bind(("eth0", ARP))
        run("ip", "addr", "add", f"{TO_INFINIBAND}/{PREFIX}", "dev", "eth0", netns=ETH)
        try:
            before, there = counters(lab), ping(IB, TO_INFINIBAND, 56, count=3)
        finally:
            run("ip", "addr", "del", f"{TO_INFINIBAND}/{PREFIX}", "dev", "eth0", netns=ETH)
        new.request(TO_INFINIBAND, TO_INFINIBAND)
        begin, told = time.monotonic(), None
        want = announcement(gateway, TO_INFINIBAND)
        ears.settimeout(0.2)
        while told is None and time.monotonic() - begin < 5:
            try:
                told = round(time.monotonic() - begin, 2) if ears.recv(2048).startswith(want) else None
            except TimeoutError:
                pass
        moves = counters(lab)["moves"] - before["moves"]
        on_ib, on_eth = known(lab, "infiniband", TO_INFINIBAND), known(lab, "ethernet", TO_INFINIBAND)
    ok = there["received"] > 0 and told is not None and told < 2 and moves == 1 and on_ib and not on_eth
    return {"ok": ok, "seconds": told, "moves": moves, "known_on": {"infiniband": on_ib, "ethernet": on_eth}}
