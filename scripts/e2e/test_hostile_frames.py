"""Hostile frames from the Ethernet side."""

import itertools
import random
import struct

import pytest
from testbed.frames import EVERYONE, arp, ethernet_socket, ipv4, send_paced
from testbed.hostility import OFTEN, send_watched, wait_for_buffers
from testbed.programs import run
from testbed.topology import ETH_IP, GW_IP, IB_IP, Topology
from testbed.traffic import grown, packets, ping, traffic

pytestmark = pytest.mark.netns

# The Ethernet type of messages between gateways.
HELLO = 0x88B5


class FragmentPort(Topology):
    """An Ethernet port that takes fragments as they come; net_af_packet lets the kernel reassemble them."""

    vdev = "net_pcap0,rx_iface_in=gw0,tx_iface=gw0"


def hostile_frames(gateway, own):
    """(reason, frame) of everything that the gateway must drop for that reason."""
    def frame(ethertype, payload, dst=gateway, src=own):
        return dst + src + struct.pack(">H", ethertype) + payload

    data = bytes(100)
    good = lambda **more: ipv4(data, **more)
    return [
        ("truncated", frame(0x0800, b"")),
        ("truncated", frame(0x0800, good()[:19])),
        ("truncated", frame(0x0800, ipv4(data, length=1400))),
        ("truncated", frame(0x0800, ipv4(data, length=65535))),
        ("bad-length", frame(0x0800, ipv4(data, length=19))),
        ("bad-length", frame(0x0800, ipv4(data, length=0))),
        ("bad-length", frame(0x0800, ipv4(data, first=0x44))),
        ("bad-length", frame(0x0800, ipv4(data, first=0x4F, length=59))),
        ("bad-ipv4-version", frame(0x0800, ipv4(data, first=0x65))),
        ("bad-ipv4-version", frame(0x0800, ipv4(data, first=0x05))),
        ("bad-ipv4-checksum", frame(0x0800, ipv4(data, spoil=True))),
        ("ttl-exceeded", frame(0x0800, good(ttl=0))),
        ("martian", frame(0x0800, good(src="127.0.0.1"))),
        ("martian", frame(0x0800, good(src="224.0.0.1"))),
        ("martian", frame(0x0800, good(src="255.255.255.255"))),
        ("martian", frame(0x0800, good(src="0.0.0.0"))),
        ("martian", frame(0x0800, good(src=GW_IP))),
        ("martian", frame(0x0800, good(src=IB_IP))),
        ("martian", frame(0x0800, good(dst="127.0.0.1"))),
        ("martian", frame(0x0800, good(dst="240.0.0.1"))),
        ("martian", frame(0x0800, good(dst="10.77.0.0"))),
        ("martian", frame(0x0800, good(), src=b"\x01" + own[1:])),
        ("off-subnet", frame(0x0800, good(dst="198.51.100.7"))),
        ("group-unknown", frame(0x0800, good(dst="239.1.2.3"), dst=b"\x01\x00\x5e\x01\x02\x03")),
        ("link-broadcast-of-unicast", frame(0x0800, good(), dst=EVERYONE)),
        ("not-for-us", frame(0x0800, good(), dst=b"\x02\x13\x13\x13\x13\x13")),
        ("loop-self", frame(0x0800, good(), src=gateway)),
        ("loop-self", frame(0x0806, arp(gateway, "10.77.0.9", IB_IP), dst=EVERYONE)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, htype=32), dst=EVERYONE)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, ptype=0x86DD), dst=EVERYONE)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, hlen=20), dst=EVERYONE)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, plen=16), dst=EVERYONE)),
        ("bad-arp", frame(0x0806, arp(own, ETH_IP, IB_IP, op=9), dst=EVERYONE)),
        ("truncated", frame(0x0806, arp(own, ETH_IP, IB_IP)[:27], dst=EVERYONE)),
        ("hostile-arp", frame(0x0806, arp(own, GW_IP, IB_IP), dst=EVERYONE)),
        ("hostile-arp", frame(0x0806, arp(own, GW_IP, GW_IP, op=2), dst=EVERYONE)),
        ("hostile-arp", frame(0x0806, arp(EVERYONE, "10.77.0.9", IB_IP), dst=EVERYONE)),
        ("hostile-arp", frame(0x0806, arp(bytes(6), "10.77.0.9", IB_IP), dst=EVERYONE)),
        ("hostile-arp", frame(0x0806, arp(own, "10.77.0.255", IB_IP), dst=EVERYONE)),
        ("hostile-arp", frame(0x0806, arp(own, "224.0.0.5", IB_IP), dst=EVERYONE)),
        ("arp-off-subnet", frame(0x0806, arp(own, "192.0.2.9", "192.0.2.1"), dst=EVERYONE)),
        ("arp-off-subnet", frame(0x0806, arp(own, ETH_IP, "192.0.2.1"), dst=EVERYONE)),
        ("vlan-unknown", frame(0x8100, b"\x00\x05\x08\x00" + good())),
        ("vlan-stacked", frame(0x88A8, b"\x00\x05\x81\x00\x00\x06\x08\x00" + good())),
        ("ipv6", frame(0x86DD, b"\x60" + bytes(59))),
        ("unknown-ethertype", frame(0x0026, b"\x42\x42\x03" + bytes(35), dst=b"\x01\x80\xc2\x00\x00\x00")),
        ("unknown-ethertype", frame(0x88CC, bytes(46), dst=EVERYONE)),
        ("unknown-ethertype", frame(0x0000, b"")),
    ]


@pytest.mark.core
def test_hostile_frames(gateway, figures):
    """Each kind is dropped for its reason and no other, and no buffer is lost."""
    raw, mac, own = ethernet_socket(gateway)
    in_use = gateway.buffers_in_use()
    before = first = gateway.drops()
    with raw:
        for reason, frame in hostile_frames(mac, own):
            for _ in range(OFTEN):
                raw.send(frame)
            gateway.wait_for(f"drops of {frame[:60].hex()} ({reason})", lambda: sum(grown(gateway.drops(), before).values()) >= OFTEN)
            after = gateway.drops()
            assert grown(after, before) == {reason: OFTEN}, frame[:60].hex()
            before = after
    figures(dropped=grown(before, first))
    wait_for_buffers(gateway, in_use)
    alive = ping(gateway.eth, IB_IP, 56)
    assert alive["ok"], alive


# Packets that may be in flight between two readings of the counters.
UNDER_WAY = 100


@pytest.mark.core
def test_refused_hellos_count_once(gateway, figures):
    """Messages that look like hellos and have no room in the queue to the control lcore are dropped, and do
    not count as handed over, too.
    """
    raw, _, own = ethernet_socket(gateway)
    frame = b"\x03IPGW\x01" + own + struct.pack(">H", HELLO) + bytes(100)
    before, before_drops = traffic(gateway), gateway.drops()

    def refused():
        for _ in range(1000):
            raw.send(frame)
        return gateway.drops().get("punt-queue-full", 0) - before_drops.get("punt-queue-full", 0) > 10 * UNDER_WAY

    with raw:
        gateway.wait_for("hellos to be refused", refused)
    # Counters of drops are read first: what comes in between makes the other ones larger.
    dropped = gateway.drops()["punt-queue-full"] - before_drops.get("punt-queue-full", 0)
    after = traffic(gateway)
    names = [name for name in after if name.endswith("_receive")]
    received, punted = (packets(after, *n) - packets(before, *n) for n in (names, ["punt"]))
    figures(received=received, punted=punted, dropped=dropped)
    assert punted + dropped <= received + UNDER_WAY, (punted, dropped, received)


def set_mtu(topology, mtu):
    for netns, device in ((topology.eth, "eth0"), (topology.gw, "gw0")):
        run("ip", "link", "set", device, "mtu", mtu, netns=netns)


def test_frames_of_odd_sizes(gateway):
    """From the shortest to far more than the MTU."""
    raw, mac, own = ethernet_socket(gateway)
    in_use = gateway.buffers_in_use()

    def send(frame):
        try:
            raw.send(frame)
        except OSError:
            # The kernel refuses some of them.
            pass

    # Without "don't fragment": the gateway may cut what is too long, or drop it.
    sizes = [*range(0, 64), 1480, 1500, 1501, 1518, 1600, 2000, 2040, 2048, 2100, 4000, 4096, 8980]
    set_mtu(gateway, 9000)
    with raw:
        send_paced(send, [mac + own + b"\x08\x00" + ipv4(bytes(max(0, size - 20)))[:size] for size in sizes for _ in range(10)], 16, 0.01)
    set_mtu(gateway, 1500)
    wait_for_buffers(gateway, in_use)
    alive = ping(gateway.eth, IB_IP, 1472)
    assert alive["ok"], alive


def random_frames(mac, own, seed=1):
    chance = random.Random(seed)
    heads = [mac + own, EVERYONE + own, b"\x01\x00\x5e\x00\x00\x01" + own]
    types = [b"\x08\x00"] * 4 + [b"\x08\x06", b"\x81\x00", b"\x86\xdd", None]
    while True:
        body = bytearray(chance.randbytes(chance.randrange(0, chance.choice([64, 1500]))))
        ethertype = chance.choice(types) or chance.randbytes(2)
        if body and chance.random() < 0.5:
            body[0] = 0x45
        yield chance.choice(heads) + ethertype + bytes(body)


def test_random_frames(gateway, figures):
    """The gateway drops nearly all of them, and forwards as before."""
    count = 20_000
    raw, mac, own = ethernet_socket(gateway)
    in_use, drops, received = gateway.buffers_in_use(), gateway.drops(), packets(traffic(gateway), "eth_receive")
    with raw:
        send_watched(gateway, raw.send, itertools.islice(random_frames(mac, own), count))
    # They come behind all random frames.
    alive = ping(gateway.eth, IB_IP, 56)
    assert alive["ok"], alive
    wait_for_buffers(gateway, in_use)
    arrived, dropped = packets(traffic(gateway), "eth_receive") - received, grown(gateway.drops(), drops)
    figures(sent=count, arrived=arrived, dropped=dropped)
    assert arrived > count * 0.9
    assert sum(dropped.values()) > arrived * 0.95, dropped


def test_overlong_fragment(start):
    """A last fragment that would end behind byte 65,535."""
    topology = start(FragmentPort)
    raw, mac, own = ethernet_socket(topology)
    before = topology.drops()
    with raw:
        for _ in range(20):
            raw.send(mac + own + b"\x08\x00" + ipv4(bytes(200), frag=0x1FFF))
    topology.wait_for("the drops", lambda: sum(grown(topology.drops(), before).values()) >= 20)
    assert grown(topology.drops(), before).get("bad-length") == 20
