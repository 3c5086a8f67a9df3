"""What a gateway with several ports and devices tells by its control socket: every row its own port's, and every segment's its own."""

import ipaddress
import json
import struct

import ibwire
from checks.laboratory import grown
from stage.lab import ETH_IP, GW_IP, IB_IP
from stage.programs import Failed, run
from stage.traffic import ping

# More pings than a segment without any sends hellos meanwhile, three a second.
BAD, REQUESTS, PINGS = 7, 3, 25


def rows_of(lab, *words):
    """The InfiniBand ports' rows by name."""
    return {f"{p['device']}/{p['port']}": p for p in lab.ctl("links", *words)["infiniband_ports"]}


def on_port(lab, name):
    return [s for s in lab.segments if f"{s.device}/{s.port}" == name]


def check_rows(lab):
    """Each port's row tells of its own links and addresses, and with a segment's name only of that segment's ports."""
    wrong, links = [], lab.ctl("links")
    rows = rows_of(lab)
    for name, row in rows.items():
        segments = [s for s in links["segments"] if s["infiniband"] == name]
        if row["links"] != len(on_port(lab, name)) or row["links_up"] != row["links"] or row["port_state"] != "active" or not row["lid"]:
            wrong.append(row)
        # A link's address ends with its port's GID; that of a port with one link is told beside it.
        if len(segments) == 1 and row["addresses"] != segments[0]["addresses"] or len(segments) > 1 and row["addresses"]:
            wrong.append({name: row["addresses"]})
        gid = ipaddress.ip_address(row["gid"]).packed
        for address in " ".join(s["addresses"] for s in segments).split():
            if bytes.fromhex(address.replace(":", ""))[4:] != gid:
                wrong.append({name: address, "gid": row["gid"]})
    for s in lab.segments:
        one = lab.ctl("links", s.name)
        end = one["infiniband"]
        told = (one["ethernet"]["port"], f"{end['device']}/{end['port']}", [r["segment"] for r in one["segments"]])
        if told != (f"net_af_packet{s.ethernet}", f"{s.device}/{s.port}", [s.name]) or "devices" in one:
            wrong.append({s.name: told})
    macs = {p["port"]: p["mac"] for p in links["ethernet_ports"]}
    if len(set(macs.values())) != 2 or {"ethernet", "infiniband"} & set(links):
        wrong.append(sorted(links))
    return {"ok": not wrong and len(rows) == len(lab.cables), "wrong": wrong}


def intrude(lab, row):
    """Packets from the fabric to one port: some that its device drops, and requests for connections that are rejected."""
    intruder = ibwire.Intruder(lab.far, lab.near)
    intruder.start()
    try:
        if not intruder.wait_active():
            raise Failed(f"the intruder's port is in state {intruder.state}")
        lab.wait_for("the way to the gateway", lambda: not is_silent(lab, intruder, row), 20)
        before = lab.ctl("links")
        for _ in range(BAD):
            whole = ibwire.ud(row["lid"], intruder.lid, 1, 1, ibwire.GSI_QKEY, bytes(256))[:-6] + b"\x01\x02\x03\x04"
            intruder.send(whole + ibwire.vcrc(whole))
        for n in range(REQUESTS):
            intruder.send(request(intruder, row, n))

        def are_counted():
            now = lab.ctl("links")
            return (rejected(now) - rejected(before) >= REQUESTS
                    and now["device_drops"].get("icrc", 0) - before["device_drops"].get("icrc", 0) >= BAD)

        lab.wait_for("the packets", are_counted, 20)
        return before, lab.ctl("links")
    finally:
        intruder.close()


def is_silent(lab, intruder, row):
    before = rejected(lab.ctl("links"))
    intruder.send(request(intruder, row, 0x100))
    return rejected(lab.ctl("links")) == before


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


def check_counts(lab):
    """What befalls the second port is counted at its row and once in all, and what its device drops once, whatever its ports."""
    target = "soft0/2"
    before, after = intrude(lab, rows_of(lab)[target])
    by_name = [{f"{p['device']}/{p['port']}": p["rejects_sent"] for p in told["infiniband_ports"]} for told in (before, after)]
    rejects = grown(by_name[1], by_name[0])
    all_rejects = rejected(after) - rejected(before)
    devices = [{d["device"]: d["drops"].get("icrc", 0) for d in told["devices"]} for told in (before, after)]
    dropped = grown(devices[1], devices[0])
    all_dropped = after["device_drops"].get("icrc", 0) - before["device_drops"].get("icrc", 0)
    ok = list(rejects) == [target] and rejects[target] == all_rejects >= REQUESTS and dropped == {"soft0": BAD} and all_dropped == BAD
    return {"ok": ok, "rejects": rejects, "of_all": all_rejects, "icrc": dropped, "icrc_of_all": all_dropped}


def check_stats(lab):
    """What passes in a segment, and what is dropped there, is counted there, on some worker, and nowhere else."""
    wrong = []
    for s in lab.segments:
        before = {r["segment"]: r for r in lab.ctl("stats")["segments"]}
        one = lab.ctl("stats", s.name)
        pings = ping(s.eth, IB_IP, 56, count=PINGS)["received"]
        after = {r["segment"]: r for r in lab.ctl("stats")["segments"]}
        more = {name: grown(after[name], before[name]).get("to_infiniband_packets", 0) for name in after}
        of_one = lab.ctl("stats", s.name)
        here = of_one["traffic"]["to_infiniband"]["packets"] - one["traffic"]["to_infiniband"]["packets"]
        by_worker = sum(r["to_infiniband_packets"] for r in of_one["workers"])
        others = [n for name, n in more.items() if name != s.name]
        if pings != PINGS or more[s.name] < PINGS or here < PINGS or by_worker < of_one["traffic"]["to_infiniband"]["packets"]:
            wrong.append({s.name: [pings, more, here, by_worker]})
        # Hosts ask for each other now and then.
        if any(n >= PINGS for n in others):
            wrong.append({s.name: more})
    return {"ok": not wrong, "wrong": wrong}


def check_lists(lab):
    """Connections, hosts, groups and GIDs of all segments, ports and devices, and of each alone."""
    wrong, names = [], {s.name for s in lab.segments}
    for what, key in (("connections", "connections"), ("neighbours", "infiniband"), ("neighbours", "ethernet"), ("groups", "groups")):
        everything = lab.ctl(what)[key]
        if {r["segment"] for r in everything} != names:
            wrong.append({what: sorted({r["segment"] for r in everything})})
        for s in lab.segments:
            alone = lab.ctl(what, s.name)[key]
            if not alone or {r["segment"] for r in alone} != {s.name}:
                wrong.append({f"{what} {s.name}": alone})
    # Connections of both directions in each segment, each by a queue pair of its own on its device.
    rows = lab.ctl("connections")["connections"]
    for device in {s.device for s in lab.segments}:
        qpns = [r["qpn"] for r in rows if r["segment"] in {s.name for s in lab.segments if s.device == device} and r["qpn"]]
        if len(qpns) != len(set(qpns)):
            wrong.append({device: qpns})
    hosts = {n["segment"]: n["address"] for n in lab.ctl("neighbours")["ethernet"] if n["hardware_address"]}
    if hosts != dict.fromkeys(names, ETH_IP):
        wrong.append(hosts)
    wrong += wrong_gids(lab)
    return {"ok": not wrong, "wrong": wrong}


def wrong_gids(lab):
    """Where each device's GIDs are not told as its own."""
    told = lab.ctl("gids")
    own = {name: row["gid"] for name, row in rows_of(lab).items()}
    first = {f"{g['device']}/{g['port']}": str(ipaddress.ip_address(g["gid"])) for g in told["gids"] if g["index"] == 0}
    wrong = [] if first == {k: str(ipaddress.ip_address(v)) for k, v in own.items()} else [first, own]
    if [d["device"] for d in told["devices"]] != ["soft0", "soft1"] or len({d["shared"] for d in told["devices"]}) != 2:
        wrong.append(told["devices"])
    out = run(lab.bin / "ipoib-fwd", "gids", "--json", "--socket", lab.dir / "control.sock", timeout=30).stdout
    listed = {(g["device"], g["port"]) for g in json.loads(out)["gids"]}
    if listed != {(d, p) for d, p, _ in lab.cables}:
        wrong.append(sorted(listed))
    return wrong


def check_text(lab):
    """For people the answers are tables in which every port, device and segment has its name."""
    wrong = []
    ports = {f"net_af_packet{n}" for n in (0, 1)} | {"soft0", "soft1"}
    names = {s.name for s in lab.segments}
    for what, words in (("links", ports | names), ("stats", names), ("connections", names), ("neighbours", names | {IB_IP, ETH_IP}),
                        ("groups", names), ("gids", {"soft0", "soft1"})):
        text = lab.ask(what).stdout
        missing = sorted(word for word in words if word not in text)
        if missing or text.lstrip().startswith("{"):
            wrong.append({what: missing})
    out = run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "links", "offce", check=False, timeout=30)
    if not out.returncode or "office" not in out.stderr:
        wrong.append(out.stderr)
    # Its own address in each segment is a host's like others: asked on both sides before.
    if not all(ping(s.eth, GW_IP, 56, count=1)["ok"] for s in lab.segments):
        wrong.append("own addresses")
    return {"ok": not wrong, "wrong": wrong}


PORT_ROWS = (("rows", check_rows), ("counts", check_counts), ("stats", check_stats), ("lists", check_lists), ("text", check_text))
