"""Who owns an address: claims that its owner refuses, addresses that move from one side to the other."""

import socket
import struct
import threading
import time

import ibwire
from checks.frames import arp, ethernet_socket, ipv4
from checks.laboratory import back_within, socket_in
from checks.runtime import Follower
from ibhosts import Hosts
from stage.lab import ETH, ETH_IP, IB, IB_IP, PREFIX
from stage.programs import Failed, run
from stage.traffic import ping

EVERYONE = b"\xff" * 6
STRANGER = b"\x02\x13\x13\x13\x13\x13"
TO_ETHERNET, TO_INFINIBAND = "10.77.0.70", "10.77.0.80"
BOTH_CARDS, ASKER, ASKED, BEHIND_ETHERNET = "10.77.0.85", "10.77.0.90", "10.77.0.91", "10.77.0.92"
QKEY, QPN, ARP = 0x0B1B, 5, 0x0806


def announcement(mac, ip):
    return EVERYONE + mac + b"\x08\x06" + arp(mac, ip, ip)


def counters(lab):
    return lab.ctl("neighbours")["counters"]["segment"]


def known(lab, side, ip):
    return any(n["address"] == ip for n in lab.ctl("neighbours")[side])


def told(lab, follower, what, ip):
    """What `ctl events` has told of an address in this way."""
    return [e for e in follower.told(lab, what) if e["what"] == what and e.get("address") == ip]


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

    def own(self):
        """Its link-layer address."""
        return struct.pack(">IQQ", QPN, 0xFE80 << 48, self.guid + 1)

    def request(self, sender, target):
        body = struct.pack(">HHBBH", 32, 0x0800, 20, 4, 1) + self.own() + socket.inet_aton(sender) + bytes(20)
        message = struct.pack(">HH", 0x0806, 0) + body + socket.inet_aton(target)
        qpn = int.from_bytes(self.address[1:4], "big")
        self.send(ibwire.ud(self.gateway, self.lid, qpn, QPN, QKEY, message))


def refused(lab, before, claim, ip, claimant):
    """Both sides' pings while somebody claims an address again and again; who that is, the events tell."""
    received, follower = [0, 0], Follower(lab, "address", "--json")
    for _ in range(5):
        claim()
        for at, (netns, target) in enumerate(((ETH, IB_IP), (IB, ETH_IP))):
            received[at] += ping(netns, target, 56, count=5)["received"]
        time.sleep(0.5)
    after = counters(lab)
    conflicts, moves = (after[k] - before[k] for k in ("conflicts", "moves"))
    disputes = told(lab, follower, "disputed", ip)
    # The flags in front of a link-layer address are as it was learnt.
    named = bool(disputes) and all(e["claimant"]["hardware_address"].endswith(claimant[-16:].hex(":")) for e in disputes)
    return {"ok": received == [25, 25] and conflicts >= 1 and moves == 0 and named, "received": received, "of": 25,
            "conflicts": conflicts, "moves": moves, "claimant_told": named, "told": [e["text"] for e in disputes][:2]}


def check_claim_from_ethernet(lab):
    """A stranger on Ethernet says that it has the InfiniBand host's address."""
    ping(ETH, IB_IP, 56, count=2)
    raw, _, _ = ethernet_socket(lab)
    with raw:
        return refused(lab, counters(lab), lambda: raw.send(announcement(STRANGER, IB_IP)), IB_IP, STRANGER)


def check_claim_from_infiniband(lab):
    """A stranger on InfiniBand says that it has the Ethernet host's address."""
    ping(IB, ETH_IP, 56, count=2)
    with Neighbour(lab) as stranger:
        return refused(lab, counters(lab), lambda: stranger.request(ETH_IP, ETH_IP), ETH_IP, stranger.own())


def check_move_to_ethernet(lab):
    """An address whose InfiniBand host is silent is taken over on Ethernet."""
    raw, _, own = ethernet_socket(lab)
    with raw, Neighbour(lab) as old:
        old.request(TO_ETHERNET, ETH_IP)
        lab.wait_for("the gateway to know the address on InfiniBand", lambda: known(lab, "infiniband", TO_ETHERNET), 10)
        before, follower = counters(lab), Follower(lab, "address", "--json")
        run("ip", "addr", "add", f"{TO_ETHERNET}/{PREFIX}", "dev", "eth0", netns=ETH)
        try:
            raw.send(announcement(own, TO_ETHERNET))
            seconds = back_within(5, IB, TO_ETHERNET)
        finally:
            run("ip", "addr", "del", f"{TO_ETHERNET}/{PREFIX}", "dev", "eth0", netns=ETH)
    moves = counters(lab)["moves"] - before["moves"]
    moved = [(e["side"], e["hardware_address"]) for e in told(lab, follower, "moved", TO_ETHERNET)]
    ok = seconds is not None and seconds < 3 and moves == 1 and moved == [("Ethernet", own.hex(":"))]
    return {"ok": ok, "seconds": seconds, "moves": moves, "moved_told": moved}


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
        follower = Follower(lab, "address", "--json")
        new.request(TO_INFINIBAND, TO_INFINIBAND)
        begin, heard = time.monotonic(), None
        want = announcement(gateway, TO_INFINIBAND)
        ears.settimeout(0.2)
        while heard is None and time.monotonic() - begin < 5:
            try:
                heard = round(time.monotonic() - begin, 2) if ears.recv(2048).startswith(want) else None
            except TimeoutError:
                pass
        moves = counters(lab)["moves"] - before["moves"]
        moved = [(e["side"], e["hardware_address"]) for e in told(lab, follower, "moved", TO_INFINIBAND)]
        on_ib, on_eth = known(lab, "infiniband", TO_INFINIBAND), known(lab, "ethernet", TO_INFINIBAND)
    ok = (there["received"] > 0 and heard is not None and heard < 2 and moves == 1 and on_ib and not on_eth and len(moved) == 1
          and moved[0][0] == "InfiniBand" and moved[0][1].endswith(new.own()[-16:].hex(":")))
    return {"ok": ok, "seconds": heard, "moves": moves, "moved_told": moved, "known_on": {"infiniband": on_ib, "ethernet": on_eth}}


def hosts_of(lab, addresses):
    """Hosts of ours on the second link of the fabric."""
    links = lab.ctl("links")["infiniband"]
    gateway = links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))
    hosts = Hosts(lab.far, lab.near, 0x02_00_00_00_00_00_BA_E0, addresses, gateway)
    hosts.start()
    if not hosts.wait_active() or not hosts.join_group(10):
        hosts.close()
        raise Failed(f"the hosts' port is in state {hosts.state}, broadcast group {hosts.broadcast_lid}")
    return hosts


def hardware(lab, ip, side="infiniband"):
    return next((n["hardware_address"] for n in lab.ctl("neighbours")[side] if n["address"] == ip), None)


def check_claim_within_infiniband(lab):
    """A stranger on InfiniBand says that it has the address of a host there, which answers when it is asked."""
    ping(ETH, IB_IP, 56, count=2)
    hosts, before, received, stolen = hosts_of(lab, [IB_IP]), hardware(lab, IB_IP), 0, []
    hosts.mute.add(0)
    hosts.took = lambda _, packet: stolen.append(1) if packet[16:20] == socket.inet_aton(IB_IP) else None
    judged = lambda: sum(counters(lab)[kind] for kind in ("conflicts", "claims_dropped"))
    try:
        for _ in range(5):
            so_far = judged()
            hosts.ask(0, IB_IP)
            lab.wait_for("the claim to be judged", lambda: judged() > so_far, 10)
            received += ping(ETH, IB_IP, 56, count=5)["received"]
        after = hardware(lab, IB_IP)
        return {"ok": received == 25 and after == before and not stolen, "stolen": len(stolen), "received": received, "of": 25,
                "hardware_address": [before, after]}
    finally:
        hosts.close()


def check_move_within_infiniband(lab):
    """An address goes from one card to another, whose first one says nothing any more; the next packet goes to the new one."""
    raw, gateway, own = ethernet_socket(lab)
    hosts = hosts_of(lab, [BOTH_CARDS, BOTH_CARDS])
    frame = gateway + own + b"\x08\x00" + ipv4(bytes(20), dst=BOTH_CARDS)
    taken = lambda n: hosts.datagrams[n] + hosts.messages[n]
    hosts.mute.add(1)
    try:
        hosts.ask(0, ETH_IP)
        lab.wait_for("the gateway to know the first card", lambda: known(lab, "infiniband", BOTH_CARDS), 10)
        raw.send(frame)
        lab.wait_for("a packet at the first card", lambda: taken(0) == 1, 10)
        hosts.mute = {0}
        hosts.ask(1, BOTH_CARDS)
        begin = time.monotonic()
        while taken(1) == 0 and time.monotonic() - begin < 5:
            raw.send(frame)
            time.sleep(0.02)
        seconds = round(time.monotonic() - begin, 2)
        time.sleep(1.5)
        before = taken(0), taken(1)
        for _ in range(20):
            raw.send(frame)
        lab.wait_for("packets at the second card", lambda: taken(1) >= before[1] + 20, 10)
        return {"ok": seconds < 3 and taken(0) == before[0], "seconds": seconds, "to_the_old_one_meanwhile": before[0] - 1,
                "to_the_new_one_later": taken(1) - before[1], "to_the_old_one_later": taken(0) - before[0]}
    finally:
        hosts.close()
        raw.close()


def check_proxy_answer(lab):
    """An InfiniBand host asks for another one. Somebody on Ethernet answers for everybody and is quicker, but is not believed; what
    nobody on InfiniBand has is found on Ethernet all the same."""
    raw, _, own = ethernet_socket(lab)
    ears = socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW)
    ears.bind(("eth0", ARP))
    ears.settimeout(0.1)
    hosts, lies, stop = hosts_of(lab, [ASKER, ASKED]), [], threading.Event()

    def lie():
        while not stop.is_set():
            try:
                frame = ears.recv(2048)
            except TimeoutError:
                continue
            wanted = socket.inet_ntoa(frame[38:42])
            if frame[20:22] == b"\0\1" and wanted in (ASKED, BEHIND_ETHERNET):
                asker, asker_ip = frame[22:28], frame[28:32]
                answer = struct.pack(">HHBBH", 1, 0x0800, 6, 4, 2) + own + frame[38:42] + asker + asker_ip
                raw.send(asker + own + b"\x08\x06" + answer)
                lies.append(wanted)

    take = hosts.take_datagram

    def take_later(host, source, payload):
        """The owner answers after the liar, whichever thread has its turn first, and within what its own side has (250 ms)."""
        if host == 1 and payload[56:60] == socket.inet_aton(ASKED):
            end = time.monotonic() + 0.15
            while ASKED not in lies and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(0.02)
        take(host, source, payload)

    hosts.take_datagram = take_later
    liar = threading.Thread(target=lie, daemon=True)
    liar.start()
    try:
        before = counters(lab)
        hosts.ask_all(0, ASKED)
        lab.wait_for("the lie to be withdrawn", lambda: counters(lab)["answers_withdrawn"] > before["answers_withdrawn"], 10)
        time.sleep(1.5)
        to_asked = [ip for ip, _ in hosts.answers[0] if ip == ASKED]
        withdrawn = counters(lab)["answers_withdrawn"] - before["answers_withdrawn"]
        where = {side: known(lab, side, ASKED) for side in ("infiniband", "ethernet")}
        begin = time.monotonic()
        hosts.ask_all(0, BEHIND_ETHERNET)
        found = lambda: any(ip == BEHIND_ETHERNET and at[4:] == hosts.gateway[4:] for ip, at in hosts.answers[0])
        while not found() and time.monotonic() - begin < 15:
            time.sleep(0.01)
        seconds = round(time.monotonic() - begin, 3)
        ok = (not to_asked and ASKED in lies and withdrawn == 1 and where == {"infiniband": True, "ethernet": False} and found())
        return {"ok": ok, "answered_by_liar": lies.count(ASKED), "told_to_asker": to_asked, "withdrawn": withdrawn, "known_on": where,
                "found_on_ethernet_after": seconds if found() else None}
    finally:
        stop.set()
        liar.join(1)
        hosts.close()
        ears.close()
        raw.close()
