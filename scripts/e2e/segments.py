"""Three segments on one gateway: VLANs joined to partitions, with the same addresses in all of them, and nothing of one in another."""

import socket
import sys
from pathlib import Path

import ibwire
from checks.laboratory import Laboratory, grown, in_laboratory, socket_in, stopped
from stage.lab import ETH, ETH_IP, GW_IP, IB_IP, MOST_CAPTURED, PREFIX
from stage.programs import Failed, Process, run
from stage.traffic import ping

# Name, VLAN, partition, network namespace of the Ethernet host's side, of the InfiniBand host.
SEGMENTS = (("office", None, 0xFFFF, "gwdemo-eth", "gwdemo-ib"), ("storage", 100, 0x8064, "gwdemo-eth100", "gwdemo-ib100"),
            ("backup", 200, 0x80C8, "gwdemo-eth200", "gwdemo-ib200"))


def host(name, netns, pkey):
    """An InfiniBand host of a partition, for the fabric's configuration."""
    return f"""
[[host]]
name = "{name}"
netns = "{netns}"
tun = "ib0"
pkey = {pkey:#x}
address = "{IB_IP}/{PREFIX}"
mtu = 65520
mode = "connected"
"""


class Segments(Laboratory):
    """A host of each segment on each side. All hosts of a side have the same address."""

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def namespaces_up(self):
        super().namespaces_up()
        for _, vlan, _, eth, ib in SEGMENTS[1:]:
            for name in (eth, ib):
                self.namespace(name)
            tagger = Process(f"tagger{vlan}", [sys.executable, Path(__file__).parent / "tagger.py", "eth0", vlan, eth,
                                               f"{ETH_IP}/{PREFIX}"], ETH, self.dir / f"tagger{vlan}.log")
            self.processes.append(tagger)
            self.wait_for(f"the host of VLAN {vlan}", lambda: "ready" in tagger.text(), 30)

    def fabric_config(self):
        text = f'[fabric]\nmtu = 4096\n\n[[link]]\nname = "gateway"\nurl = "shm:{self.link}"\n'
        for name, _, pkey, _, netns in SEGMENTS:
            members = '"all"' if pkey == 0xFFFF else f'"gateway", "{name}"'
            text += f"""
[[partition]]
name = "{name}"
pkey = {pkey:#x}
members = [{members}]
""" + host(name, netns, pkey)
        return text

    def gateway_config(self):
        text = super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "")
        for name, vlan, pkey, _, _ in SEGMENTS:
            text += f'\n[[segment]]\nname = "{name}"\npkey = {pkey:#x}\naddress = "{GW_IP}/{PREFIX}"\n'
            text += f"vlan = {vlan}\n" if vlan else ""
        return text

    def capture(self, name):
        return ["--capture", self.dir / name, *MOST_CAPTURED] if name == "gateway.pcap" else []

    def up(self):
        self.start()
        self.wait_for("all segments' links", self.all_up, 30)
        self.hosts_up(len(SEGMENTS))

    def all_up(self):
        try:
            rows = self.ctl("links")["segments"]
        except Failed:
            return False
        return len(rows) == len(SEGMENTS) and all(r["link"] == "up" and r["role"] == "forwarding" for r in rows)


def check_pings(lab):
    """Every pair of hosts, both ways, with a payload of its own: the first packet counts."""
    result = {"ok": True}
    for number, (name, _, _, eth, ib) in enumerate(SEGMENTS):
        for way, netns, target in (("to_infiniband", eth, IB_IP), ("to_ethernet", ib, ETH_IP)):
            got = ping(netns, target, 100, count=10, interval=0.05, more=("-p", f"{0xA0 + number:02x}"))["ok"]
            result[f"{name}_{way}"] = got
            result["ok"] &= got
    return result


def check_own_addresses(lab):
    """The gateway answers in each segment for itself."""
    pings = {name: ping(eth, GW_IP, 56, count=3)["ok"] for name, _, _, eth, _ in SEGMENTS}
    return {"ok": all(pings.values()), **pings}


def check_tables(lab):
    """Each segment knows its own two hosts, though their addresses are the same in all."""
    table = lab.ctl("neighbours")
    seen = {side: sorted(n["segment"] for n in table[side] if n["address"] == ip and n["hardware_address"])
            for side, ip in (("infiniband", IB_IP), ("ethernet", ETH_IP))}
    hardware = {n["hardware_address"] for n in table["infiniband"] if n["address"] == IB_IP}
    names = sorted(s[0] for s in SEGMENTS)
    return {"ok": seen["infiniband"] == names and seen["ethernet"] == names and len(hardware) == len(SEGMENTS), **seen}


def check_offloads(lab):
    """The port takes tags off and puts them on; what passed in the checks before has passed by that."""
    told = lab.ctl("links")["ethernet"]["offloads"]
    return {"ok": told["strip_tags"] and told["insert_tags"], **told}


def check_stranger(lab):
    """A tag that no segment has is dropped and counted; so are two tags."""
    before = lab.ctl("stats")["drops"]
    raw = socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW, 0)
    with raw:
        raw.bind(("eth0", 0))
        head, body = b"\xff" * 6 + b"\x02\0\0\0\0\x77", b"\x08\x06" + bytes(46)
        raw.send(head + b"\x81\0\x01\x2c" + body)
        raw.send(head + b"\x88\xa8\0\x64\x81\0\0\x64" + body)
        raw.send(head + b"\x81\0\0\x64\x81\0\0\xc8" + body)
    wanted = {"vlan-unknown": 1, "vlan-stacked": 2}
    dropped = lambda: grown(lab.ctl("stats")["drops"], before)
    lab.wait_for("the drops", lambda: all(dropped().get(reason, 0) >= count for reason, count in wanted.items()), 10)
    more = dropped()
    return {"ok": all(more.get(reason, 0) == count for reason, count in wanted.items()), "dropped": more}


def check_series(lab):
    """As many figures for monitoring as the manual promises at most: for workers, segments and ports, and none for a host."""
    text = run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "metrics").stdout
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    of = {name: sum(f'segment="{name}"' in line for line in lines) for name, *_ in SEGMENTS}
    workers = lab.workers * [sum(line.startswith("ipoib_fwd_worker_") and 'worker="0"' in line for line in lines)]
    ports = [sum("ethernet_port" in line for line in lines), sum('device="' in line for line in lines)]
    beside = len(lines) - sum(of.values()) - sum(workers) - sum(ports)
    named = [line for line in lines if ETH_IP in line or IB_IP in line]
    ok = (max(of.values()) <= 110 and max(workers) <= 25 and max(ports) <= 9 and 0 < beside <= 80 and not named and min(of.values()) > 0)
    return {"ok": ok, "all": len(lines), "of_segments": of, "of_workers": workers, "of_ports": ports, "beside": beside, "named": named[:3]}


def foreign(packet, mine):
    """True if a packet of the fabric carries another segment's pattern than that of its P_Key."""
    return any(bytes([0xA0 + n]) * 40 in packet and n != mine for n in range(len(SEGMENTS)))


def check_capture(lab):
    """After the gateway's end: no packet of one segment is in another, on either side."""
    code = stopped(lab)
    wrong, seen = 0, {name: 0 for name, *_ in SEGMENTS}
    by_pkey = {pkey & 0x7FFF: n for n, (_, _, pkey, _, _) in enumerate(SEGMENTS)}
    for _, packet in ibwire.read_erf(lab.dir / "gateway.pcap"):
        if len(packet) < 24:
            continue
        bth = 8 if packet[1] & 3 == 2 else 48
        if len(packet) < bth + 4:
            continue
        mine = by_pkey.get(int.from_bytes(packet[bth + 2:bth + 4], "big") & 0x7FFF)
        if any(bytes([0xA0 + n]) * 40 in packet for n in range(len(SEGMENTS))):
            wrong += mine is None or foreign(packet, mine)
            if mine is not None:
                seen[SEGMENTS[mine][0]] += 1
    frames = lab.dir / "gateway.pcap.eth.pcap"
    by_vlan = {str(vlan or ""): n for n, (_, vlan, _, _, _) in enumerate(SEGMENTS)}
    out = run("tshark", "-r", frames, "-Y", "icmp", "-T", "fields", "-e", "vlan.id", "-e", "data.data", "-E", "separator=;").stdout
    for line in out.splitlines():
        vlan, _, data = line.partition(";")
        n = by_vlan.get(vlan)
        wrong += n is None or any(f"{0xA0 + m:02x}" * 40 in data for m in range(len(SEGMENTS)) if m != n)
        seen[SEGMENTS[n][0] if n is not None else "office"] += 1
    return {"ok": code["ok"] and not wrong and all(seen.values()), "of_another_segment": wrong, "seen": seen, **{
        k: v for k, v in code.items() if k != "ok"}}


def segments(args, checks):
    in_laboratory(Segments, args, checks, (
        ("segment_pings", check_pings),
        ("segment_own_addresses", check_own_addresses),
        ("segment_tables", check_tables),
        ("segment_offloads", check_offloads),
        ("segment_stranger", check_stranger),
        ("segment_series", check_series),
        ("segment_capture", check_capture),
    ))
