"""Address ownership: claims that the owner refuses, and addresses that move to another host."""

import socket
import threading
import time

import pytest
from testbed.follower import Follower
from testbed.frames import EVERYONE, arp, ethernet_socket, ipv4
from testbed.neighbour import FabricHosts
from testbed.pings import back_within
from testbed.programs import DEADLINE, run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP, PREFIX, Topology
from testbed.traffic import ping

pytestmark = pytest.mark.netns

STRANGER = b"\x02\x13\x13\x13\x13\x13"
TO_ETHERNET, TO_INFINIBAND, BOTH_CARDS = "10.77.0.70", "10.77.0.80", "10.77.0.85"
ASKER, BEHIND_ETHERNET = "10.77.0.90", "10.77.0.92"
# Queried hosts, one per attempt.
ASKED = [f"10.77.0.{n}" for n in range(100, 120)]
ETHERTYPE_ARP = 0x0806
# Within these times an address is reachable at its new host, or Ethernet hosts are notified of it.
MOVE, NOTIFIED = 3, 2
# For how long the gateway waits for an answer from InfiniBand before it believes one from Ethernet, less a
# margin.
OWN_SIDE_FIRST = 0.2


class Owners(Topology):
    """The plain one, with a second link of the fabric for hosts of the test's own."""

    intruder, captured = True, True


@pytest.fixture
def owners(start):
    return start(Owners)


def announcement(mac, ip):
    return EVERYONE + mac + b"\x08\x06" + arp(mac, ip, ip)


def counters(topology):
    return topology.ctl("neighbours")["counters"]["segment"]


def judged(topology):
    """Claims that the gateway has refused."""
    now = counters(topology)
    return now["conflicts"] + now["claims_dropped"]


def hardware_address(topology, ip, side="infiniband"):
    """The link-layer address of a neighbour, or None if the gateway does not know it."""
    return next((n["hardware_address"] for n in topology.ctl("neighbours")[side] if n["address"] == ip), None)


def of_address(events, what, ip):
    return [e for e in events if e["what"] == what and e.get("address") == ip]


# -- claims that are refused

def claim_until_refused(topology, claim):
    """Repeats a claim until it counts: one during a query of the owner for an earlier claim does not."""
    before = judged(topology)

    def refused():
        claim()
        return judged(topology) > before

    topology.wait_for("the claim to be refused", refused)


def refuse_claims(topology, claim, ip, claimant):
    """Claims an address again and again: traffic goes on, and events name the claimant."""
    before = counters(topology)
    with Follower(topology, "address", "--json") as follower:
        for _ in range(5):
            claim()
            for netns, target in ((topology.eth, IB_IP), (topology.ib, ETH_IP)):
                got = ping(netns, target, 56, count=5)
                assert got["ok"], f"{netns}: {got}"
            claim_until_refused(topology, claim)
        events = follower.events_until("disputed")
    after = counters(topology)
    assert after["conflicts"] > before["conflicts"]
    assert after["moves"] == before["moves"], "the claimant got the address"
    disputes = of_address(events, "disputed", ip)
    assert disputes, events
    for event in disputes:
        # The flags in front of a link-layer address are as the gateway learnt them.
        assert event["claimant"]["hardware_address"].endswith(claimant[-16:].hex(":")), event


@pytest.mark.core
def test_claim_from_ethernet_is_refused(owners):
    """A stranger on Ethernet claims the InfiniBand host's address."""
    assert ping(owners.eth, IB_IP, 56, count=2)["ok"]
    raw, _, _ = ethernet_socket(owners)
    with raw:
        refuse_claims(owners, lambda: raw.send(announcement(STRANGER, IB_IP)), IB_IP, STRANGER)


@pytest.mark.core
def test_claim_from_infiniband_is_refused(owners):
    """A stranger on InfiniBand claims the Ethernet host's address."""
    assert ping(owners.ib, ETH_IP, 56, count=2)["ok"]
    with FabricHosts(owners, [ETH_IP], mute=[0]) as stranger:
        refuse_claims(owners, lambda: stranger.ask(0, ETH_IP), ETH_IP, stranger.hardware(0))


@pytest.mark.core
def test_claim_within_infiniband_is_refused(owners):
    """A stranger on InfiniBand claims the address of a host there, which answers a query."""
    assert ping(owners.eth, IB_IP, 56, count=2)["ok"]
    before, stolen = hardware_address(owners, IB_IP), []
    with FabricHosts(owners, [IB_IP], mute=[0]) as stranger:
        stranger.took = lambda _, packet: stolen.append(packet) if packet[16:20] == socket.inet_aton(IB_IP) else None
        for _ in range(5):
            claim_until_refused(owners, lambda: stranger.ask(0, IB_IP))
            assert ping(owners.eth, IB_IP, 56, count=5)["ok"]
    assert hardware_address(owners, IB_IP) == before
    assert not stolen, f"{len(stolen)} packets went to the claimant"


# -- addresses that move

def move_to_ethernet(topology):
    """An address whose InfiniBand host is silent is claimed on Ethernet.

    Returns the seconds until it answers there.
    """
    raw, _, own = ethernet_socket(topology)
    with raw, FabricHosts(topology, [TO_ETHERNET], mute=[0]) as old:
        old.ask(0, ETH_IP)
        topology.wait_for("the gateway to know the address on InfiniBand", lambda: hardware_address(topology, TO_ETHERNET))
        before = counters(topology)
        with Follower(topology, "address", "--json") as follower:
            run("ip", "addr", "add", f"{TO_ETHERNET}/{PREFIX}", "dev", "eth0", netns=topology.eth)
            raw.send(announcement(own, TO_ETHERNET))
            seconds = back_within(topology.ib, TO_ETHERNET)
            moved = of_address(follower.events_until("moved"), "moved", TO_ETHERNET)
    assert counters(topology)["moves"] - before["moves"] == 1
    assert [(e["side"], e["hardware_address"]) for e in moved] == [("Ethernet", own.hex(":"))]
    return seconds


def move_to_infiniband(topology):
    """An address whose Ethernet host is gone is claimed on InfiniBand.

    Returns the seconds until Ethernet hosts are notified.
    """
    raw, gateway, _ = ethernet_socket(topology)
    raw.close()
    receiver, new = socket_in(topology.eth, socket.AF_PACKET, socket.SOCK_RAW), FabricHosts(topology, [TO_INFINIBAND], mute=[0])
    with receiver, new:
        receiver.bind(("eth0", ETHERTYPE_ARP))
        run("ip", "addr", "add", f"{TO_INFINIBAND}/{PREFIX}", "dev", "eth0", netns=topology.eth)
        assert ping(topology.ib, TO_INFINIBAND, 56, count=3)["ok"]
        run("ip", "addr", "del", f"{TO_INFINIBAND}/{PREFIX}", "dev", "eth0", netns=topology.eth)
        before, want = counters(topology), announcement(gateway, TO_INFINIBAND)
        with Follower(topology, "address", "--json") as follower:
            new.ask(0, TO_INFINIBAND)
            begin = time.monotonic()
            receiver.settimeout(DEADLINE)
            while not receiver.recv(2048).startswith(want):
                assert time.monotonic() - begin < DEADLINE, "Ethernet hosts are not notified of the move"
            seconds = time.monotonic() - begin
            moved = of_address(follower.events_until("moved"), "moved", TO_INFINIBAND)
        assert hardware_address(topology, TO_INFINIBAND) and not hardware_address(topology, TO_INFINIBAND, "ethernet")
    assert counters(topology)["moves"] - before["moves"] == 1
    assert [e["side"] for e in moved] == ["InfiniBand"]
    assert moved[0]["hardware_address"].endswith(new.hardware(0)[-16:].hex(":")), moved
    return seconds


def move_within_infiniband(topology):
    """An address moves from a card that is silent from then on to another one.

    Returns the seconds until packets go there.
    """
    raw, gateway, own = ethernet_socket(topology)
    frame = gateway + own + b"\x08\x00" + ipv4(bytes(20), dst=BOTH_CARDS)
    with raw, FabricHosts(topology, [BOTH_CARDS, BOTH_CARDS], mute=[1]) as cards:
        def taken(card):
            return cards.datagrams[card] + cards.messages[card]

        cards.ask(0, ETH_IP)
        topology.wait_for("the gateway to know the first card", lambda: hardware_address(topology, BOTH_CARDS))
        raw.send(frame)
        topology.wait_for("a packet at the first card", lambda: taken(0) == 1)
        sent = 1
        cards.mute = {0}
        cards.ask(1, BOTH_CARDS)
        begin = time.monotonic()
        while not taken(1):
            assert time.monotonic() - begin < DEADLINE, "no packet goes to the new card"
            raw.send(frame)
            sent += 1
            time.sleep(0.02)
        seconds = time.monotonic() - begin
        topology.wait_for("all packets so far", lambda: taken(0) + taken(1) == sent)
        at_old, at_new = taken(0), taken(1)
        for _ in range(20):
            raw.send(frame)
        topology.wait_for("all packets at the new card", lambda: taken(1) >= at_new + 20)
        assert (taken(0), taken(1)) == (at_old, at_new + 20)
    return seconds


@pytest.mark.core
def test_address_moves_to_ethernet(owners):
    move_to_ethernet(owners)


@pytest.mark.core
def test_address_moves_to_infiniband(owners):
    move_to_infiniband(owners)


def test_address_moves_within_infiniband(owners):
    move_within_infiniband(owners)


@pytest.mark.timing
@pytest.mark.parametrize(("move", "limit"), [(move_to_ethernet, MOVE), (move_to_infiniband, NOTIFIED), (move_within_infiniband, MOVE)])
def test_move_takes_seconds(owners, figures, move, limit):
    seconds = move(owners)
    figures(seconds=seconds)
    assert seconds < limit


# -- an InfiniBand host that queries another one

class Liar(threading.Thread):
    """A host on Ethernet that answers for every address in `victims`."""

    def __init__(self, topology, victims):
        super().__init__(daemon=True)
        self.victims, self.lies, self.over = victims, [], threading.Event()
        self.raw, _, self.mac = ethernet_socket(topology)
        self.receiver = socket_in(topology.eth, socket.AF_PACKET, socket.SOCK_RAW)
        self.receiver.bind(("eth0", ETHERTYPE_ARP))
        self.receiver.settimeout(0.1)

    def run(self):
        while not self.over.is_set():
            try:
                frame = self.receiver.recv(2048)
            except TimeoutError:
                continue
            wanted = socket.inet_ntoa(frame[38:42])
            if frame[20:22] == b"\0\1" and wanted in self.victims:
                # An ARP reply to the host that sent the query.
                self.raw.send(frame[22:28] + self.mac + b"\x08\x06\0\1\x08\0\6\4\0\2" + self.mac + frame[38:42] + frame[22:32])
                self.lies.append(wanted)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()
        self.raw.close()
        self.receiver.close()


class LateHosts(FabricHosts):
    """Host 0 queries the others, which answer after the liar has.

    `answered` has for each how long that took, and whether it did.
    """

    def __init__(self, topology, liar):
        super().__init__(topology, [ASKER, *ASKED])
        self.liar, self.late = liar, {}

    def take_datagram(self, host, source, payload):
        address = self.addresses[host] if host < len(self.addresses) else None
        if host and payload[:2] == b"\x08\x06" and payload[56:60] == socket.inet_aton(address) and address not in self.late:
            begin = time.monotonic()
            while address not in self.liar.lies and time.monotonic() - begin < OWN_SIDE_FIRST * 3 / 4:
                time.sleep(0.002)
            # The list contains lies that are sent.
            time.sleep(0.02)
            super().take_datagram(host, source, payload)
            self.late[address] = address in self.liar.lies and time.monotonic() - begin < OWN_SIDE_FIRST
            return
        super().take_datagram(host, source, payload)


def test_answer_from_the_other_side_is_withdrawn(owners, figures):
    """An InfiniBand host queries another one.

    A host on Ethernet answers for all addresses, and first: the gateway believes neither side.

    For an address that nobody on InfiniBand has it believes Ethernet.
    """
    with Liar(owners, (*ASKED, BEHIND_ETHERNET)) as liar, LateHosts(owners, liar) as hosts:
        withdrawn, attempts = counters(owners)["answers_withdrawn"], 0
        for asked in ASKED:
            attempts += 1
            hosts.ask_all(0, asked)
            owners.wait_for("the owner's answer", lambda asked=asked: asked in hosts.late)
            # On a busy machine the liar may be too slow, or the owner.
            if hosts.late[asked]:
                break
        else:
            pytest.fail("the lie never came before the owner's answer")
        owners.wait_for("the lie to be withdrawn", lambda: counters(owners)["answers_withdrawn"] > withdrawn)
        assert not hardware_address(owners, asked, "infiniband") and not hardware_address(owners, asked, "ethernet")
        # An answer that follows, for an address that nobody else has.
        hosts.ask_all(0, BEHIND_ETHERNET)
        owners.wait_for("the answer from Ethernet", lambda: any(
            ip == BEHIND_ETHERNET and at[4:] == hosts.gateway[4:] for ip, at in hosts.answers[0]))
        assert asked in liar.lies
        assert asked not in {ip for ip, _ in hosts.answers[0]}, "the gateway passed on the lie"
        assert counters(owners)["answers_withdrawn"] == withdrawn + 1
    figures(attempts=attempts)
