"""Answers of a gateway with several ports and devices: every row has its own port's state, and every segment
its own."""

import ipaddress
import json
import struct

import pytest
from testbed import ibwire
from testbed.ports import ETHERNETS, IB_PORTS, Ports, PortsOfTwoWorkers
from testbed.programs import DEADLINE, run
from testbed.topology import ETH_IP, GW_IP, IB_IP
from testbed.traffic import first_ping, grown, ping

pytestmark = pytest.mark.netns

# Packets and connection requests of the intruder; a segment's pings.
BAD_CRCS, REQUESTS, PINGS = 7, 3, 25
PORT_NAMES = {f"{device}/{port}" for device, port, _ in IB_PORTS}


@pytest.fixture(params=[Ports, PortsOfTwoWorkers])
def ports(request, start):
    return start(request.param)


def ethernet_name(segment):
    return f"net_af_packet{segment.ethernet}"


def ib_name(segment):
    return f"{segment.device}/{segment.port}"


def test_links(ports):
    """Every port has its row, with addresses of its own, and every segment its ports."""
    links = ports.ctl("links")
    ethernets = {p["port"]: (p["mac"], p["link"]) for p in links["ethernet_ports"]}
    assert set(ethernets) == {f"net_af_packet{n}" for n in ETHERNETS}
    assert len(set(ethernets.values())) == len(ETHERNETS), ethernets
    infinibands = {f"{p['device']}/{p['port']}": (p["gid"], p["link"]) for p in links["infiniband_ports"]}
    assert set(infinibands) == PORT_NAMES
    assert len(set(infinibands.values())) == len(IB_PORTS), infinibands
    assert {link for _, link in (*ethernets.values(), *infinibands.values())} == {"up"}
    joined = {s["segment"]: (s["ethernet"], s["infiniband"], s["vlan"]) for s in links["segments"]}
    assert joined == {s.name: (ethernet_name(s), ib_name(s), s.vlan) for s in ports.segments}
    assert not {"ethernet", "infiniband"} & set(links)
    text = ports.ctl_text("links").stdout
    assert not [name for name in (*ethernets, *joined) if name not in text], text
    ports.connect()


def test_port_rows(ports):
    """Each port's row counts its own links and has their addresses."""
    links, rows = ports.ctl("links"), ports.rows()
    assert set(rows) == PORT_NAMES
    for name, row in rows.items():
        segments = [s for s in links["segments"] if s["infiniband"] == name]
        assert len(segments) == sum(ib_name(s) == name for s in ports.segments)
        assert (row["links"], row["links_up"], row["port_state"]) == (len(segments), len(segments), "active"), row
        assert row["lid"], row
        # The address of a port's only link is in the port's row; those of several are in the segments' rows.
        assert (row["addresses"] or None) == (segments[0]["addresses"] if len(segments) == 1 else None), row
        gid = ipaddress.ip_address(row["gid"]).packed
        for address in " ".join(s["addresses"] for s in segments).split():
            assert bytes.fromhex(address.replace(":", ""))[4:] == gid, f"{name}: {address}"


def test_rows_of_a_segment(ports):
    """`links` of one segment has that segment's ports only."""
    for s in ports.segments:
        links = ports.ctl("links", s.name)
        end = links["infiniband"]
        assert (links["ethernet"]["port"], f"{end['device']}/{end['port']}") == (ethernet_name(s), ib_name(s))
        assert [row["segment"] for row in links["segments"]] == [s.name]
        assert "devices" not in links


def rejected(links):
    return sum(links["rejects"]["sent"].values())


def request(intruder, row, number):
    """A REQ for a service that nobody offers."""
    body = bytearray(232)
    struct.pack_into(">IIQQIIIIIII", body, 0, 0x5000 + number, 0, 0x7777, intruder.guid, 0, 0, 0x123400, 0, 0x14 << 3,
                     0x567800 | 0xA0, 0xFFFF5008)
    struct.pack_into(">HHHH", body, 48, 0xFFFF, 0x5008, intruder.lid, row["lid"])
    body[56:72] = struct.pack(">QQ", 0xFE80 << 48, intruder.guid + 1)
    body[72:88] = ipaddress.ip_address(row["gid"]).packed
    struct.pack_into(">IBBBB", body, 88, 0, 0, 0, 8, 0x98)
    return ibwire.ud(row["lid"], intruder.lid, 1, 1, ibwire.GSI_QKEY, ibwire.cm(0x10, bytes(body), number))


def intrude(ports, row):
    """Sends one port packets that its device drops and connection requests that are rejected; returns `links`
    before and after."""
    intruder = ibwire.Intruder(ports.far, ports.near)
    intruder.start()
    try:
        assert intruder.wait_active(DEADLINE), f"the intruder's port is in state {intruder.state}"

        def is_rejected():
            intruder.send(request(intruder, row, 0x100))
            return rejected(ports.ctl("links"))

        ports.wait_for("the path to the gateway", is_rejected)
        before = ports.ctl("links")
        for _ in range(BAD_CRCS):
            bad = ibwire.ud(row["lid"], intruder.lid, 1, 1, ibwire.GSI_QKEY, bytes(256))[:-6] + b"\x01\x02\x03\x04"
            intruder.send(bad + ibwire.vcrc(bad))
        for n in range(REQUESTS):
            intruder.send(request(intruder, row, n))

        def are_counted():
            now = ports.ctl("links")
            return (rejected(now) - rejected(before) >= REQUESTS
                    and now["device_drops"].get("icrc", 0) - before["device_drops"].get("icrc", 0) >= BAD_CRCS)

        ports.wait_for("the packets to be counted", are_counted)
        return before, ports.ctl("links")
    finally:
        intruder.close()


@pytest.mark.parametrize("ports", [pytest.param(Ports, marks=pytest.mark.core), PortsOfTwoWorkers], indirect=True)
def test_counters_of_the_second_port(ports, figures):
    """Rejects of one port count in its row and once in the sum; its device's drops count once, however many
    ports it has."""
    target = "soft0/2"
    before, after = intrude(ports, ports.rows()[target])
    by_port = [{f"{p['device']}/{p['port']}": p["rejects_sent"] for p in links["infiniband_ports"]} for links in (before, after)]
    rejects, all_rejects = grown(by_port[1], by_port[0]), rejected(after) - rejected(before)
    figures(rejects=rejects, all_rejects=all_rejects)
    assert rejects == {target: all_rejects}
    assert all_rejects >= REQUESTS
    by_device = [{d["device"]: d["drops"].get("icrc", 0) for d in links["devices"]} for links in (before, after)]
    assert grown(by_device[1], by_device[0]) == {"soft0": BAD_CRCS}
    assert after["device_drops"].get("icrc", 0) - before["device_drops"].get("icrc", 0) == BAD_CRCS


def test_stats_of_a_segment(ports):
    """A segment's packets count in that segment, at some worker, and in no other segment."""
    ports.connect()
    for s in ports.segments:
        before = {r["segment"]: r for r in ports.ctl("stats")["segments"]}
        own_before = ports.ctl("stats", s.name)["traffic"]["to_infiniband"]["packets"]
        assert ping(s.eth, IB_IP, 56, count=PINGS)["ok"], s.name
        after = {r["segment"]: r for r in ports.ctl("stats")["segments"]}
        stats = ports.ctl("stats", s.name)
        own = stats["traffic"]["to_infiniband"]["packets"]
        more = {name: grown(after[name], before[name]).get("to_infiniband_packets", 0) for name in after}
        assert more[s.name] >= PINGS, f"{s.name}: {more}"
        assert own - own_before >= PINGS, s.name
        assert sum(r["to_infiniband_packets"] for r in stats["workers"]) >= own, s.name
        # Hosts query each other now and then.
        assert all(n < PINGS for name, n in more.items() if name != s.name), f"{s.name}: {more}"


LISTS = (("connections", "connections"), ("neighbours", "infiniband"), ("neighbours", "ethernet"), ("groups", "groups"))


def test_lists(ports):
    """A list has the entries of all segments, or of one; every connection has a queue pair of its own on its
    device."""
    ports.connect()
    names = {s.name for s in ports.segments}
    for command, key in LISTS:
        assert {r["segment"] for r in ports.ctl(command)[key]} == names, command
        for s in ports.segments:
            assert {r["segment"] for r in ports.ctl(command, s.name)[key]} == {s.name}, command
    connections = ports.ctl("connections")["connections"]
    for device in {s.device for s in ports.segments}:
        segments = {s.name for s in ports.segments if s.device == device}
        qpns = [c["qpn"] for c in connections if c["segment"] in segments and c["qpn"]]
        assert len(qpns) == len(set(qpns)) > 0, f"{device}: {qpns}"
    hosts = {n["segment"]: n["address"] for n in ports.ctl("neighbours")["ethernet"] if n["hardware_address"]}
    assert hosts == dict.fromkeys(names, ETH_IP)


def test_gids(ports):
    """Each device's GIDs are its own, by the control socket and by `ipoib-fwd gids`."""
    answer = ports.ctl("gids")
    own = {name: ipaddress.ip_address(row["gid"]) for name, row in ports.rows().items()}
    assert {f"{g['device']}/{g['port']}": ipaddress.ip_address(g["gid"]) for g in answer["gids"] if g["index"] == 0} == own
    assert [d["device"] for d in answer["devices"]] == ["soft0", "soft1"]
    assert len({d["shared"] for d in answer["devices"]}) == 2, answer["devices"]
    out = run(ports.bin / "ipoib-fwd", "gids", "--json", "--socket", ports.socket).stdout
    assert {f"{g['device']}/{g['port']}" for g in json.loads(out)["gids"]} == PORT_NAMES


def test_text(ports):
    """For people the answers are tables in which every port, device and segment has its name."""
    ports.connect()
    ethernets, devices, names = {f"net_af_packet{n}" for n in ETHERNETS}, {"soft0", "soft1"}, {s.name for s in ports.segments}
    for command, words in (("links", ethernets | devices | names), ("stats", names), ("connections", names),
                           ("neighbours", names | {IB_IP, ETH_IP}), ("groups", names), ("gids", devices)):
        text = ports.ctl_text(command).stdout
        assert not [word for word in words if word not in text], text
        assert not text.lstrip().startswith("{"), text
    out = ports.ctl_text("links", "offce", check=False)
    assert out.returncode
    assert "office" in out.stderr


def test_own_address_of_each_segment(ports):
    """The gateway's address in a segment is a host's like others, also once hosts of both sides are known."""
    ports.connect()
    for s in ports.segments:
        assert first_ping(s.eth, GW_IP), s.name
