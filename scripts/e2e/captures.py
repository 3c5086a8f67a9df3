"""What is on the wire: captures of both programs, read by tshark and by us."""

import collections
import contextlib
import os
import signal
import struct
import threading
import time

import ibwire
from checks.laboratory import Laboratory, check_stop, number, packets
from stage.lab import ETH, ETH_IP, GW_IP, IB, IB_IP
from stage.programs import Failed, run
from stage.traffic import check_file, ping
from stage.transfer import FILE_PORT


def tshark(path, *more):
    # Payload of the file transfer is no protocol.
    out = run("tshark", "-n", "-r", path, "-d", f"tcp.port=={FILE_PORT},data", *more, timeout=60, check=False)
    if out.returncode:
        raise Failed(f"tshark: {out.stderr.strip()[-500:]}")
    return out.stdout.splitlines()


def table(path, condition, *fields):
    words = [w for f in fields for w in ("-e", f)]
    return [dict(zip(fields, line.split("\t"))) for line in
            tshark(path, "-Y", condition, "-T", "fields", "-E", "occurrence=f", *words)]


# Retries that the gateway's connections have; the hosts' have none.
RETRIES, RNR_RETRIES = 2, 5


class CaptureLaboratory(Laboratory):
    def __init__(self, args):
        super().__init__(args, intruder=False)

    def gateway_config(self):
        retries = f"[infiniband]\nretry-count = {RETRIES}\nrnr-retry = {RNR_RETRIES}\n"
        return super().gateway_config().replace("[infiniband]\n", retries, 1)


def check_dissected(lab, name):
    bad = tshark(lab.dir / name, "-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number", "-e", "frame.protocols")
    total = len(tshark(lab.dir / name, "-T", "fields", "-e", "frame.number"))
    return {"ok": not bad and total > 50, "packets": total, "malformed": len(bad), "first": bad[:3]}


def check_crcs(lab, name):
    total = icrc = vcrc = 0
    for _, packet in ibwire.read_erf(lab.dir / name)[:4000]:
        total += 1
        vcrc += ibwire.vcrc(packet[:-2]) != packet[-2:]
        icrc += ibwire.icrc(packet[:-6]) != packet[-6:-2]
    return {"ok": total > 50 and not icrc and not vcrc, "packets": total, "wrong_icrc": icrc, "wrong_vcrc": vcrc}


CM = "infiniband.cm."


def check_handshake(lab):
    """Both connections, as tshark reads them: each REQ with its REP and RTU, and what the IPoIB drafts want in them."""
    path = lab.dir / "gateway.pcap"
    # Comm ids and private data come from the bytes: tshark has no field for some of them.
    seen = {}
    for frame, (_, packet) in enumerate(ibwire.read_erf(path), 1):
        if len(packet) == 290 and packet[8] == 100 and packet[28 + 1] == 7:
            mad = packet[28:284]
            seen.setdefault(struct.unpack_from(">H", mad, 16)[0], []).append((frame, packet, mad[24:]))
    fields = [CM + "req." + f for f in ("serviceid", "localqpn", "startpsn", "pkey", "pppmtu", "srq", "rnrretrcount",
                                        "retrcount", "transpsvctype")]
    requests = table(path, "infiniband.cm.req", "frame.number", "infiniband.lrh.slid", *fields)
    replies = table(path, "infiniband.cm.rep", "frame.number", CM + "rep.localqpn", CM + "rep.startpsn", CM + "rep.srq")
    addresses = [n["hardware_address"] for n in lab.neighbours["infiniband"]] + [lab.own_address]
    qpns = {int(a.replace(":", "")[2:8], 16) for a in addresses}
    wrong, found = [], []

    def expect(what, got, want):
        if got != want:
            wrong.append(f"{what}: {got}, not {want}")

    reps = {struct.unpack_from(">I", b, 4)[0]: (f, p, b) for f, p, b in seen.get(0x13, [])}
    # In datagram mode nobody listens.
    rejected = {struct.unpack_from(">I", b, 4)[0] for _, _, b in seen.get(0x12, [])}
    rtus = {struct.unpack_from(">II", b, 0) for _, _, b in seen.get(0x14, [])}
    data = [p for _, p in ibwire.read_erf(path) if p[8] == 4]
    for req in requests:
        frame, packet, body = next(r for r in seen[0x10] if r[0] == int(req["frame.number"]))
        comm = struct.unpack_from(">I", body)[0]
        if comm in rejected:
            continue
        if comm not in reps:
            wrong.append(f"REQ in frame {frame} has no REP")
            continue
        rep_frame, rep_packet, rep = reps[comm]
        rep_fields = next(r for r in replies if int(r["frame.number"]) == rep_frame)
        rep_comm = struct.unpack_from(">I", rep)[0]
        expect("RTU", (comm, rep_comm) in rtus, True)
        service = number(req[CM + "req.serviceid"])
        expect("service id's prefix", service >> 24, 0x10 << 32)
        expect("service id's QPN is one of the addresses'", service & 0xFFFFFF in qpns, True)
        expect("P_Key", number(req[CM + "req.pkey"]), 0xFFFF)
        expect("path MTU (5 = 4096)", number(req[CM + "req.pppmtu"]), 5)
        retries = number(req[CM + "req.retrcount"]), number(req[CM + "req.rnrretrcount"])
        of_gateway = number(req["infiniband.lrh.slid"]) == lab.own_lid
        expect("retries and RNR retries", retries, (RETRIES, RNR_RETRIES) if of_gateway else (0, 0))
        expect("service type RC", number(req[CM + "req.transpsvctype"]), 0)
        expect("SRQ in REQ and REP", (req[CM + "req.srq"], rep_fields[CM + "rep.srq"]), ("0x01", "0x01"))
        # Private data: our UD QPN and receive MTU; 65,524 is 65,520 and the encapsulation header.
        for what, private in (("REQ", body[140:148]), ("REP", rep[36:44])):
            qpn, mtu = struct.unpack(">II", private)
            expect(f"{what}'s private QPN is one of the addresses'", qpn in qpns, True)
            expect(f"{what}'s private MTU", mtu, 65524)
        # The starting PSN in the REP is where the opener begins to send (IBA 12.7.31). Two ports may have a queue pair of one number.
        (to, psn) = number(rep_fields[CM + "rep.localqpn"]), number(rep_fields[CM + "rep.startpsn"])
        first = next((p for p in data if p[2:4] == rep_packet[6:8] and struct.unpack_from(">I", p, 12)[0] & 0xFFFFFF == to), None)
        if first is None:
            wrong.append(f"no data to QP {to:#x}")
            continue
        expect("PSN of the first data", struct.unpack_from(">I", first, 16)[0] & 0xFFFFFF, psn)
        found.append({"service_id": f"{service:#018x}", "qpn": req[CM + "req.localqpn"], "peer_qpn": f"{to:#08x}",
                      "start_psn": psn, "retries": retries, "slid": req["infiniband.lrh.slid"]})
    ways = {f["slid"] for f in found}
    expect("openers", len(ways), 2)
    expect("DREQ and DREP at the end", (len(seen.get(0x15, [])) > 0, len(seen.get(0x16, [])) > 0), (True, True))
    return {"ok": not wrong, "connections": found, "wrong": wrong,
            "messages": {f"{k:#x}": len(v) for k, v in sorted(seen.items())}}


def check_data(lab):
    path = lab.dir / "gateway.pcap"
    opcodes = collections.Counter(number(l) for l in tshark(path, "-T", "fields", "-e", "infiniband.bth.opcode"))
    # From the bytes: LRH, BTH, encapsulation header, IPv4. tshark takes some connections' data for SDP's, by their numbers.
    in_rc = sum(p[1] & 3 == 2 and p[8] == 4 and p[20:24] == b"\x08\0\0\0" and p[24] >> 4 == 4
                for _, p in ibwire.read_erf(path) if len(p) > 24)
    arp = len(tshark(path, "-Y", "infiniband.bth.opcode == 100 && arp", "-T", "fields", "-e", "frame.number"))
    by_ud = len(tshark(path, "-Y", "infiniband.bth.opcode == 100 && icmp", "-T", "fields", "-e", "frame.number"))
    leaves = table(path, "infiniband.mad.mgmtclass == 3 && infiniband.mad.method == 0x15", "infiniband.mad.attributeid")
    ok = in_rc > 100 and opcodes[17] > 10 and arp > 1 and by_ud > 0 and any(
        number(l["infiniband.mad.attributeid"]) == 0x38 for l in leaves)
    return {"ok": ok, "rc_send_only_with_ip": in_rc, "acknowledges": opcodes[17], "rc_first_middle_last":
            [opcodes[0], opcodes[1], opcodes[2]], "arp": arp, "icmp_by_ud": by_ud, "member_record_delete": len(leaves)}


def check_ethernet_capture(lab):
    path = lab.dir / "gateway.pcap.eth.pcap"
    lines = tshark(path, "-T", "fields", "-e", "frame.protocols")
    bad = tshark(path, "-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number")
    kinds = collections.Counter("arp" if "arp" in l else "icmp" if "icmp" in l else "tcp" if "tcp" in l else "other"
                                for l in lines)
    return {"ok": not bad and kinds["arp"] > 0 and kinds["icmp"] > 10 and kinds["tcp"] > 100, "malformed": len(bad),
            **kinds}


def check_disk_hangs(args):
    """A capture into a pipe that somebody has open and nobody reads: the gateway's connections are made, it answers, says what is missing,
    and ends in time."""
    args.capture = True
    lab = CaptureLaboratory(args)
    pipe = lab.dir / "gateway.pcap"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDWR)
    try:
        lab.up()
        capture = {}

        def stalls():
            # More than the rings hold.
            check_file(lab, ETH, IB, IB_IP)
            capture.update(lab.ctl("capture"))
            return capture["missing"] > 0 and capture.get("disk_silent_ms", 0) > 1000

        lab.wait_for("packets that the capture misses", stalls, 60)
        # Handshakes, while the thread waits for the disk.
        lab.ctl("mode", "datagram")
        lab.ctl("mode", "connected")
        begin = time.monotonic()
        pinged = ping(ETH, IB_IP, 56, count=20)
        lab.wait_for("connections both ways", lambda: lab.ctl("connections").get("established_both_ways"), 30)
        took = time.monotonic() - begin
        answers = []
        for _ in range(50):
            begin = time.monotonic()
            lab.ctl("capture")
            answers.append(time.monotonic() - begin)
        metric = [int(line.split()[-1]) for line in run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "metrics")
                  .stdout.splitlines() if line.startswith('ipoib_fwd_capture_packets_total{outcome="missing"}')]
        said = [line for line in lab.gateway.text().splitlines() if "takes nothing" in line]
        begin = time.monotonic()
        code = lab.gateway.stop(grace=30)
        ended = time.monotonic() - begin
        lab.processes.remove(lab.gateway)
        late = "its disk has not taken what was left" in lab.gateway.text()
        ok = (pinged["ok"] and code == 0 and ended < 18 and late and len(said) == 1 and len(metric) == 1
              and metric[0] >= capture["missing"] and max(answers) < 5)
        return {"ok": ok, "missing": capture["missing"], "metric": metric, "silent_ms": capture["disk_silent_ms"], "ping": pinged,
                "connections_after": round(took, 2), "slowest_answer": round(max(answers), 3), "said": said, "exit": code,
                "ended_after": round(ended, 2), "late_said": late}
    finally:
        lab.close()
        os.close(held)
        args.capture = False


class BoundedLaboratory(CaptureLaboratory):
    """Captures of both programs that are full soon."""

    FILES, SIZE = 2, 64 << 10

    def capture(self, name):
        return ["--capture", self.dir / name, "--capture-files", self.FILES, "--capture-size", self.SIZE]

    def on_disk(self, name):
        """Bytes of each file of a capture, of one moment: none if a file has come or gone meanwhile."""
        before, sizes = set(self.dir.glob(f"{name}*")), {}
        for path in before:
            with contextlib.suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        return sizes if before == set(self.dir.glob(f"{name}*")) else {}


def check_bounded(args):
    """Captures from the start on, under a file transfer: never more on disk than ordered, over a restart, too; tshark reads each file."""
    lab = BoundedLaboratory(args)
    # InfiniBand and Ethernet packets of the gateway.
    most, highest, names = 2 * lab.FILES * lab.SIZE, 0, set()
    done = threading.Event()

    def watch():
        nonlocal highest
        while not done.wait(0.001):
            sizes = lab.on_disk("gateway.pcap")
            names.update(sizes)
            highest = max(highest, sum(sizes.values()))

    watcher = threading.Thread(target=watch)
    try:
        lab.up()
        watcher.start()
        sent = [check_file(lab, ETH, IB, IB_IP, 2 << 20)["ok"]]
        before = lab.ctl("capture")
        again = lab.gateway.stop(grace=20)
        lab.processes.remove(lab.gateway)
        stale = lab.on_disk("gateway.pcap")
        lab.start_gateway()
        lab.wait_for("a ping after the restart", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 30)
        fresh = lab.on_disk("gateway.pcap")
        sent.append(check_file(lab, IB, ETH, ETH_IP, 2 << 20)["ok"])
        told = []

        def all_told():
            # While one follows another there is one less.
            told[:] = lab.ctl("capture")["files"]
            return len(told) == 2 * lab.FILES

        lab.wait_for("as many files as ordered", all_told, 20)
        ends = lab.gateway.stop(grace=20), lab.fabric.stop(grace=20)
        lab.processes.clear()
        done.set()
        watcher.join()
        first = {"gateway.pcap", "gateway.pcap.1", "gateway.pcap.eth.pcap"}
        there = {**lab.on_disk("gateway.pcap"), **lab.on_disk("fabric.pcap")}
        read = {name: len(tshark(lab.dir / name, "-T", "fields", "-e", "frame.number")) for name in there}
        bad = [name for name in there if tshark(lab.dir / name, "-Y", "_ws.malformed", "-T", "fields", "-e", "frame.number")]
        ok = (all(sent) and before["state"] == "captures" and again == 0 and ends == (0, 0) and 0 < highest <= most
              and len(stale) == 2 * lab.FILES and not set(stale) & (set(fresh) - first)
              and max(there.values()) <= lab.SIZE and len(there) == 3 * lab.FILES and len(told) == 2 * lab.FILES
              and min(read.values()) > 0 and not bad)
        return {"ok": ok, "sent": sent, "highest": highest, "most": most, "files_seen": len(names), "left": there, "packets": read,
                "malformed": bad, "stale": sorted(stale), "fresh": sorted(fresh), "told": told, "exits": [again, *ends]}
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join()
        lab.close()


def captures(args, checks):
    checks.run("capture_bounded", lambda: check_bounded(args))
    checks.run("capture_disk_hangs", lambda: check_disk_hangs(args))
    if not checks.wanted("capture_stop", "capture_dissected", "capture_crcs", "capture_handshake", "capture_data", "capture_ethernet"):
        return
    args.capture = True
    lab = CaptureLaboratory(args)
    try:
        lab.up()
        for netns, target in ((ETH, IB_IP), (IB, ETH_IP)):
            ping(netns, target, 1400, count=20)
        # More than the path MTU: first, middle and last packets.
        ping(IB, GW_IP, 8000, count=3)
        check_file(lab, ETH, IB, IB_IP, 2 << 20)
        lab.ctl("mode", "datagram")
        datagrams = lambda: packets(lab.ctl("stats")["traffic"], "ib_ud_unicast_transmit")
        before = datagrams()
        lab.wait_for("pings by datagram", lambda: ping(ETH, IB_IP, 56, count=5)["ok"] and datagrams() > before, 20)
        lab.neighbours = lab.ctl("neighbours")
        link = lab.ctl("links")["infiniband"]
        lab.own_address, lab.own_lid = link["addresses"].split(" ")[0], link["lid"]
        lab.ctl("mode", "connected")
        ping(ETH, IB_IP, 56, count=1)
        # No handshake is cut off by the end, and each connection has carried something.
        lab.wait_for("connections both ways", lambda: lab.ctl("connections").get("established_both_ways"), 30)
        ping(ETH, IB_IP, 56, count=5)
        checks.run("capture_stop_gateway", lambda: check_stop(lab, "gateway", lab.gateway, signal.SIGTERM))
        checks.run("capture_stop_fabric", lambda: check_stop(lab, "ibfab", lab.fabric, signal.SIGINT))
        for name in ("gateway.pcap", "fabric.pcap"):
            checks.run(f"capture_dissected_{name.split('.')[0]}", lambda name=name: check_dissected(lab, name))
            checks.run(f"capture_crcs_{name.split('.')[0]}", lambda name=name: check_crcs(lab, name))
        checks.run("capture_handshake", lambda: check_handshake(lab))
        checks.run("capture_data", lambda: check_data(lab))
        checks.run("capture_ethernet", lambda: check_ethernet_capture(lab))
    finally:
        lab.close()
        args.capture = False
