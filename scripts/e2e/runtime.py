"""What an operator does to a gateway that runs: follows what happens, asks it by DPDK's own script."""

import collections
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

from checks.captures import tshark
from checks.laboratory import Laboratory, back_within, in_laboratory
from checks.privileges import threads, with_any
from stage.lab import ETH, ETH_IP, GW_IP, IB, IB_IP
from stage.programs import Failed, run
from stage.traffic import ping

# An address of the Ethernet host that the gateway has not heard of.
NEWCOMER = "10.77.0.77"


class Follower:
    """`ipoib-fwd ctl events`, and the lines that it has printed."""

    command = "events"

    def __init__(self, lab, *words, path=None):
        """`path`: the gateway's control socket, where there are several."""
        path = path or lab.dir / "control.sock"
        ctl = [lab.bin / "ipoib-fwd", "ctl", "--socket", path]
        line = [*ctl, self.command, *words]
        self.file = lab.dir / f"{self.command}-{time.monotonic_ns()}"
        before = connected(path)
        with open(self.file, "wb") as out:
            self.popen = subprocess.Popen([str(w) for w in line], stdout=out, stderr=subprocess.PIPE, text=True)
        lab.wait_for(f"ctl {self.command} to be connected", lambda: connected(path) - before or self.popen.poll() is not None, 10)
        # Greeting, request and first answer: each time that it waits, the gateway has a turn that serves it before it serves us.
        for _ in range(3):
            lab.wait_for(f"ctl {self.command} to wait", self.waits, 10)
            run(*ctl, "links")
        lab.wait_for(f"ctl {self.command} to wait", self.waits, 10)

    def waits(self):
        """It sleeps, or has ended."""
        return self.popen.poll() is not None or Path(f"/proc/{self.popen.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"

    def text(self):
        return self.file.read_text()

    def told(self, lab, what, seconds=5):
        """Ends it once it has told of this, or has not in so long: all that it has told, with `--json`."""
        try:
            # An event is printed after it has happened.
            lab.wait_for(f"ctl {self.command} to tell {what}", lambda: f'"{what}"' in self.text(), seconds)
        except Failed:
            pass
        return [json.loads(line) for line in self.end()[0]]

    def end(self, how=signal.SIGTERM):
        """What it has printed, its exit code and its last words; how: None if it ends by itself."""
        if how:
            self.popen.send_signal(how)
        try:
            _, err = self.popen.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            raise Failed(f"ctl {self.command} does not end") from None
        return self.text().splitlines(), self.popen.returncode, err.strip()


def connected(path):
    """The clients of a control socket, by the kernel's table: each has an end there with the socket's path, and a number."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f" {path}")]
    return {words[6] for words in lines if words[5] == "03"}


def check_told(lab):
    """Link, role, connection, address and reload, to several clients at once, each with the kinds that it wants."""
    everything, lines, some = Follower(lab, "--json"), Follower(lab), Follower(lab, "link,reload", "--json")
    run("ip", "addr", "add", f"{NEWCOMER}/24", "dev", "eth0", netns=ETH)
    try:
        run("ping", "-n", "-q", "-c", 1, "-W", 2, "-I", NEWCOMER, IB_IP, netns=ETH, check=False)
    finally:
        run("ip", "addr", "del", f"{NEWCOMER}/24", "dev", "eth0", netns=ETH)
    lab.ctl("reload")
    lab.ctl("mode", "datagram")
    lab.ctl("mode", "connected")
    run("ip", "link", "set", "eth0", "down", netns=ETH)
    try:
        lab.wait_for("the cable to be missed", lambda: lab.ctl("links")["ethernet"]["link"] == "down", 15)
        time.sleep(2)
    finally:
        run("ip", "link", "set", "eth0", "up", netns=ETH)
    back = back_within(10, ETH, IB_IP)
    lab.wait_for("connections both ways", lambda: lab.ctl("connections").get("established_both_ways"), 10)
    wanted = {("address", "learnt"), ("reload", "done"), ("connection", "down"), ("connection", "up"), ("link", "down"),
              ("link", "up"), ("role", "forwarding")}
    try:
        # An event is printed after it has happened.
        lab.wait_for("all events", lambda: all(f'"{what}"' in everything.text() for _, what in wanted), 5)
    except Failed:
        pass
    told = [json.loads(line) for line in everything.end()[0]]
    end = time.monotonic() + 10
    while len(lines.text().splitlines()) < len(told) and time.monotonic() < end:
        time.sleep(0.05)
    seen = {(e["kind"], e["what"]) for e in told}
    new = [e for e in told if e.get("address") == NEWCOMER]
    as_lines, of_some = lines.end()[0], [json.loads(line) for line in some.end()[0]]
    fine = all(len(line.split()) >= 5 and line.split()[0].endswith("Z") for line in as_lines)
    ok = (wanted <= seen and new and fine and len(as_lines) >= len(told) > len(of_some) > 0 and back is not None
          and {e["kind"] for e in of_some} == {"link", "reload"}
          and [e["time"] for e in told] == sorted(e["time"] for e in told))
    return {"ok": bool(ok), "missing": sorted(wanted - seen), "events": len(told), "of_some": len(of_some), "as_lines": len(as_lines),
            "first": as_lines[:3]}


def message(path, *requests):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(10)
    s.connect(str(path))
    s.recv(1 << 20)
    for request in requests:
        s.send(request)
    return s


RELOADS = 1500


def check_slow_reader(lab):
    """A client that does not read loses events, is told how many, and holds nobody up."""
    path = lab.dir / "control.sock"
    lazy = message(path, b"/events,reload")
    asker, longest = message(path), 0.0
    for _ in range(RELOADS):
        begin = time.monotonic()
        asker.send(b"/reload")
        asker.recv(1 << 20)
        longest = max(longest, time.monotonic() - begin)
    asker.close()
    read, lost = 0, 0
    try:
        while True:
            # All of them; and then no more.
            lazy.settimeout(10 if read + lost < RELOADS else 0.5)
            event = json.loads(lazy.recv(1 << 20))["/events"]
            read += event.get("what") == "done"
            lost += event.get("lost", 0)
    except TimeoutError:
        pass
    # It goes on with the next one.
    lab.ctl("reload")
    lazy.settimeout(5)
    after = json.loads(lazy.recv(1 << 20))["/events"]["what"]
    lazy.close()
    ok = lost > 0 and read + lost == RELOADS and after == "done" and longest < 2
    return {"ok": ok, "read": read, "lost": lost, "after": after, "longest_answer_seconds": round(longest, 3)}


def check_hostile(lab):
    """Words that are no kinds, followers without end, clients that ask while they follow."""
    path, wrong = lab.dir / "control.sock", []
    for request in (b"/events,storm", b"/events,link,", b"/events," + b"link," * 190, b"/events,\xff"):
        with message(path, request) as s:
            answer = json.loads(s.recv(1 << 20))
            if "error" not in answer:
                wrong.append(f"{request[:30]}: {answer}")
    followers, refused = [], 0
    for _ in range(10):
        s = message(path, b"/events")
        refused += "error" in json.loads(s.recv(1 << 20))
        followers.append(s)
    if refused != 2:
        wrong.append(f"{refused} of 10 followers were refused")
    followers[0].send(b"/help,events")
    if "/help" not in json.loads(followers[0].recv(1 << 20)):
        wrong.append("a follower's question is not answered")
    for s in followers:
        s.close()
    lab.ctl("stats")
    out = run(lab.bin / "ipoib-fwd", "ctl", "--socket", path, "events", "strom", check=False)
    if out.returncode != 2 or "possible values" not in out.stderr:
        wrong.append(f"{out.returncode}: {out.stderr}")
    return {"ok": not wrong, "wrong": wrong}


def settings(lab):
    return {row["key"]: row for row in lab.ctl("set")["settings"]}


def check_set(lab):
    """Each key takes what it may be and refuses the rest; what was set is at work, survives a reload of the same file, and not
    one of another."""
    wrong, log = [], lab.dir / "gateway.log"

    def expect(what, got, wanted):
        if got != wanted:
            wrong.append(f"{what}: {got}, not {wanted}")

    def refused(*words):
        out = run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "set", *words, check=False)
        return out.returncode, out.stderr

    expect("keys", sorted(settings(lab)), ["idle", "log", "log-filter", "mode", "priority", "receive-mtu"])
    for key, value in (("mode", "datagram"), ("mode", "connected"), ("idle", "pause"), ("log", "debug"),
                       ("log-filter", "ipoib_fwd::segment=warn,endpoint=debug"), ("receive-mtu", 2044)):
        expect(key, str(lab.ctl("set", key, value)["value"]), str(value))
        expect(f"{key} in the list", str(settings(lab)[key]["value"]), str(value))
    # New connections are made with the receive MTU: a large packet comes in pieces, or after the peer has fragmented it.
    lab.ctl("set", "mode", "datagram")
    lab.ctl("set", "mode", "connected")
    lab.wait_for("connections both ways", lambda: ping(ETH, IB_IP, 56, count=1)["ok"] and ping(IB, ETH_IP, 56, count=1)["ok"]
                 and lab.ctl("connections").get("established_both_ways"), 10)
    # One module says more than the rest.
    lab.ctl("set", "log-filter", "")
    lab.ctl("set", "log", "error")
    lines = len(log.read_text(errors="replace").splitlines())
    lab.ctl("set", "idle", "poll")
    lab.ctl("mode", "datagram")
    lab.ctl("set", "log-filter", "ipoib_fwd::gateway::control::set=info")
    lab.ctl("mode", "connected")
    lab.ctl("set", "idle", "pause")
    said = log.read_text(errors="replace").splitlines()[lines:]
    expect("lines of the log", [line.split("set: ")[-1] for line in said],
           ["log-filter is ipoib_fwd::gateway::control::set=info", "mode is connected", "idle is pause"])
    lab.ctl("set", "log", "debug")
    for words, code, word in ((("receive-mtu", "65521"), 1, "it may be"), (("receive-mtu", "575"), 1, "it may be"),
                              (("log", "loud"), 1, "it may be"), (("log-filter", "[x{y=(a*)*}]=debug"), 1, "it may be"),
                              (("lgo", "debug"), 2, "log"), (("idle", ""), 1, "it may be")):
        got, text = refused(*words)
        expect(f"code of {words}", (got, word in text), (code, True))
    lab.ctl("reload")
    kept = {key: row["value"] for key, row in settings(lab).items()}
    expect("after a reload", (kept["idle"], kept["log"], kept["receive-mtu"]), ("pause", "debug", 2044))
    config = lab.dir / "gateway.toml"
    before = config.read_text()
    config.write_text(before.replace("[gateway]\n", '[gateway]\nlog = "warn"\n', 1).replace('idle = "sleep"', 'idle = "poll"'))
    lab.ctl("reload")
    kept = {key: row["value"] for key, row in settings(lab).items()}
    expect("after the file has changed", (kept["idle"], kept["log"], kept["log-filter"], kept["receive-mtu"]), ("poll", "warn", "", 2044))
    config.write_text(before)
    lab.ctl("reload")
    lab.ctl("set", "receive-mtu", 65520)
    return {"ok": not wrong, "wrong": wrong}


def check_clear(lab):
    """`since` counts from `clear` on; `stats` and `metrics` never go back."""
    ping(ETH, IB_IP, 56, count=5)
    way = lambda answer: answer["traffic"]["eth_receive"]["packets"]
    metric = lambda: sum(float(line.split()[-1]) for line in lab.ask("metrics").stdout.splitlines()
                         if line.startswith("ipoib_fwd_segment_packets_total"))
    stats, figures = way(lab.ctl("stats")), metric()
    cleared = lab.ctl("clear")
    first = lab.ctl("since")
    ping(ETH, IB_IP, 56, count=5)
    then, after, later = lab.ctl("since"), way(lab.ctl("stats")), metric()
    of_segment = lab.ctl("since", "default")
    whole = lab.ctl("stats", "default")["traffic"]["to_infiniband"]["packets"]
    by_worker = sum(row["to_infiniband_packets"] for row in of_segment["workers"])
    lab.ctl("clear", "latency")
    last = lab.ctl("since")
    ok = (cleared == {"counters": True, "latency": True} and way(first) <= 2 and stats >= 5 and 5 <= way(then) <= after - stats
          and later > figures and way(last) >= way(then) and last["for_ms"]["latency"] < last["for_ms"]["counters"]
          and then["segments"][0]["to_infiniband_packets"] >= 5 and of_segment["segment"] == "default"
          and 5 <= of_segment["traffic"]["to_infiniband"]["packets"] == by_worker <= whole - 5)
    return {"ok": bool(ok), "of_segment": by_worker, "before": stats, "since": way(then), "after": after, "metrics": [figures, later]}


# Frames that the ring of a port has by default.
RING = 2048


def check_losses(lab):
    """While the gateway stands still the ring of its port gets full: what the kernel drops is told, once, and the gateway goes on."""
    missed = lambda: lab.ctl("links")["ethernet"]["losses"]["missed"]
    ping(ETH, IB_IP, 56, count=1)
    before = missed()
    lab.gateway.popen.send_signal(signal.SIGSTOP)
    try:
        out = run("ping", "-n", "-q", "-l", 4500, "-c", 4500, "-W", 1, "-w", 4, IB_IP, netns=ETH, check=False).stdout
    finally:
        lab.gateway.popen.send_signal(signal.SIGCONT)
    time.sleep(0.5)
    # As many as it has had the time for.
    sent = int(re.search(r"(\d+) packets transmitted", out)[1])
    lost, again = missed() - before, missed() - before
    metric = [float(line.split()[-1]) for line in lab.ask("metrics").stdout.splitlines()
              if line.startswith("ipoib_fwd_ethernet_port_losses_total") and 'reason="missed"' in line]
    after = ping(ETH, IB_IP, 56, count=5)["received"]
    ok = sent > RING + 500 and sent - RING - 100 <= lost <= sent and again == lost and metric == [before + lost] and after == 5
    return {"ok": ok, "sent": sent, "lost": lost, "again": again, "metric": metric, "ping": after}


class RuntimeLaboratory(Laboratory):
    """With a directory for captures."""

    def __init__(self, args):
        super().__init__(args, intruder=False)
        self.captures = self.dir / "captures"
        self.captures.mkdir(mode=0o700)

    def gateway_config(self):
        return super().gateway_config().replace("[gateway]\n", f'[gateway]\ncaptures = "{self.captures}"\n', 1)


def check_capture(lab):
    """Frames that were ordered and no others, as tshark reads them; bounded on disk; names that are paths, or files that
    are there, are refused."""
    wrong = []

    def refused(what, *words):
        out = run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "capture", *words, check=False)
        if out.returncode != 1 or "panicked" in out.stderr:
            wrong.append(f"{what}: {out.returncode} {out.stderr}")

    def state():
        return lab.ctl("capture")

    for name in ("../x", "/etc/x", "..", ".hidden", "x" * 65, "a\nb"):
        refused(f"name {name!r}", "start", name)
    for word in ("size=1", "files=65", "proto=ipx", "host=::1", "nonsense"):
        refused(word, "start", "refused", word)
    refused("stop of nothing", "stop")
    left = [p.name for p in lab.captures.iterdir()]
    # A thread of its own writes, under a filter of its own, without capabilities, and on no worker's processor.
    found = list(threads(lab.gateway.popen.pid).values())
    own = [t for t in found if t["Name"] == "captures"]
    taken = {t["Cpus_allowed_list"] for t in found if "worker" in t["Name"]}
    before = int(next(iter(threads("self").values()))["Seccomp_filters"])
    alone = len(own) == 1 and not with_any(dict(enumerate(own))) and own[0]["Cpus_allowed_list"] not in taken and (
        own[0]["Seccomp"], int(own[0]["Seccomp_filters"])) == ("2", before + 2)
    lab.ctl("capture", "start", "icmp", "proto=icmp", f"host={IB_IP}")
    refused("a second one", "start", "second")
    pinged = ping(ETH, IB_IP, 56, count=10)
    ping(IB, GW_IP, 56, count=3)
    run("ip", "neigh", "flush", "all", netns=ETH)
    ping(ETH, IB_IP, 56, count=1)
    # Each and its answer.
    frames = 2 * (pinged["sent"] + 1)
    lab.wait_for("each ping and its answer", lambda: state()["packets"] >= frames, 10)
    icmp = lab.ctl("capture", "stop")
    refused("a name that is there", "start", "icmp")
    [file] = icmp["files"]
    kinds = collections.Counter(tshark(file, "-T", "fields", "-e", "frame.protocols"))
    bad = tshark(file, "-Y", "_ws.malformed or !icmp or icmp.checksum.status == 0", "-T", "fields", "-e", "frame.number")
    mode = Path(file).stat().st_mode & 0o777
    # A way only, a number of packets.
    lab.ctl("capture", "start", "few", "direction=in", "packets=5")
    ping(ETH, IB_IP, 56, count=8)
    lab.wait_for("the end of what was ordered", lambda: state()["state"] == "has what was ordered", 5)
    few = len(tshark(state()["files"][0], "-T", "fields", "-e", "frame.number"))
    # More than the files may hold.
    lab.ctl("capture", "start", "many", "files=2", "size=65536")
    run("ping", "-n", "-q", "-c", 200, "-i", 0.005, "-s", 1400, IB_IP, netns=ETH)
    lab.wait_for("each packet and its answer", lambda: state()["packets"] >= 400, 10)
    many = lab.ctl("capture", "stop")
    # Its first file is gone, later ones are there.
    refused("a name of which files are left", "start", "many")
    on_disk = sorted(p for p in lab.captures.iterdir() if p.name.startswith("many."))
    sizes = [p.stat().st_size for p in on_disk]
    read = sum(len(tshark(p, "-T", "fields", "-e", "frame.number")) for p in on_disk)
    ok = (not wrong and not left and alone and not bad and mode == 0o600 and pinged["ok"]
          and icmp["packets"] == sum(kinds.values()) == frames
          and few == 5 and len(on_disk) == 2 and max(sizes) <= 65536 and many["packets"] >= 400 and 0 < read < 100
          and icmp["missing"] == many["missing"] == 0)
    return {"ok": ok, "wrong": wrong, "left": left, "thread": alone, "malformed": bad[:3], "icmp": dict(kinds), "mode": oct(mode),
            "few": few, "sizes": sizes, "many": many["packets"], "read": read}


# Nobody has it.
NOBODY_IP = "10.77.0.99"


def check_trace(lab):
    """A packet's way both ways, by connection and as a datagram, what waits for its way and what is dropped; by filter, bounded."""
    wrong = []

    class Trace(Follower):
        command = "trace"

    def expect(what, ok, got):
        if not ok:
            wrong.append(f"{what}: {got}")

    def rows(trace, how=signal.SIGTERM):
        out, code, _ = trace.end(how)
        told = [json.loads(line) for line in out]
        return [row for row in told if "verdict" in row], told, code

    def wait_told(trace, word):
        """That a row has that word, or not within ten seconds."""
        end = time.monotonic() + 10
        while word not in trace.text() and time.monotonic() < end:
            time.sleep(0.05)

    def one_by_one(count):
        """Pings, each of which has its answer before the next one goes."""
        for _ in range(count):
            ping(ETH, IB_IP, 56, count=1)

    def brief(row):
        return row["step"], row["from"], row["verdict"], (row["lookup"] or {}).get("mode")

    # By connection, with an end by number: two rows for each ping.
    mac = json.loads(run("ip", "-j", "link", "show", "eth0", netns=ETH).stdout)[0]["address"]
    trace = Trace(lab, "--json", "proto=icmp", f"host={IB_IP}", f"mac={mac}", "--count", "4")
    one_by_one(5)
    seen, told, code = rows(trace, how=None)
    ways = collections.Counter(map(brief, seen))
    expect("by connection", ways == {("worker", "Ethernet", "forwarded", "connected"): 2,
                                     ("worker", "InfiniBand", "forwarded", None): 2}, ways)
    expect("end", code == 0 and told[-1].get("end") == "as many as were ordered" and told[-1]["missed"] == 0, (code, told[-1]))
    there = [row for row in seen if row["from"] == "Ethernet"]
    back = [row for row in seen if row["from"] == "InfiniBand"]
    segment = lab.ctl("links")["segments"][0]
    neighbour = next(n for n in lab.ctl("neighbours")["infiniband"] if n["address"] == IB_IP)
    own = {c["qpn"] for c in lab.ctl("connections")["connections"] if not c["passive"]}
    expect("names", all(r["port"] == segment["ethernet"] and r["segment"] == segment["segment"] for r in there)
           and all(r["port"] == segment["infiniband"] for r in back), [there[:1], back[:1]])
    expect("neighbour", all(r["lookup"]["neighbour"] == IB_IP and r["lookup"]["dlid"] == neighbour["dlid"]
                            and r["lookup"]["hardware_address"] == neighbour["hardware_address"] and r["lookup"]["own_qpn"] in own
                            for r in there), there)
    expect("host of Ethernet", all(r["lookup"]["mac"] == mac and r["lookup"]["neighbour"] == ETH_IP and r["mode"] == "connected"
                                   for r in back), back)
    # As datagrams, on lines, by the port of the gateway; the end by time.
    lab.ctl("mode", "datagram")
    ping(ETH, IB_IP, 56, count=1)
    trace = Trace(lab, "proto=icmp", f"at={segment['infiniband']}", f"segment={segment['segment']}", "--seconds", "4")
    one_by_one(3)
    lines, code, _ = trace.end(None)
    qp = f"LID {neighbour['dlid']}, QP "
    expect("lines", code == 0 and sum("datagram, " in line and qp in line and line.endswith("forwarded") for line in lines) == 3
           and "its time is over" in lines[-1], lines)
    lab.ctl("mode", "connected")
    # Nobody has the address: it is handed over, waits, and is dropped when nobody has answered. Another packet is not told of.
    trace = Trace(lab, "--json", f"host={NOBODY_IP}", "proto=icmp")
    run("ip", "neigh", "replace", NOBODY_IP, "lladdr", lab.ctl("links")["ethernet"]["mac"], "dev", "eth0", "nud", "permanent", netns=ETH)
    run("ping", "-n", "-q", "-c", 1, "-W", 1, NOBODY_IP, netns=ETH, check=False)
    ping(ETH, IB_IP, 56, count=2)
    wait_told(trace, "neighbour-unresolved")
    run("ip", "neigh", "del", NOBODY_IP, "dev", "eth0", netns=ETH)
    seen, _, _ = rows(trace)
    steps = [(r["step"], r["verdict"], r["reason"]) for r in seen]
    expect("resolution", steps == [("worker", "to the control lcore", f"no way to {NOBODY_IP} yet"),
                                   ("control lcore", "waits", f"for the address of {NOBODY_IP}, or its path"),
                                   ("control lcore", "dropped", "neighbour-unresolved")]
           and len({r["packet"] for r in seen}) == 1 and seen[-1]["explained"], steps)
    # A drop of the worker's: what it is, and why.
    trace = Trace(lab, "--json", "direction=in")
    run("python3", "-c", "import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(('eth0', 0)); "
        f"s.send(bytes.fromhex('{lab.ctl('links')['ethernet']['mac'].replace(':', '')}') + bytes.fromhex('020000000001') "
        "+ b'\\x81\\x00\\x0f\\xa0\\x08\\x00' + bytes(60))", netns=ETH)
    wait_told(trace, "vlan-unknown")
    seen, _, _ = rows(trace)
    vlan = [r for r in seen if r["reason"] == "vlan-unknown"]
    expect("drop", len(vlan) == 1 and vlan[0]["verdict"] == "dropped" and vlan[0]["vlan"] == 4000 and vlan[0]["segment"] is None, seen)
    # Four at a time, and words that are none; nobody follows when all are gone.
    traces = [Trace(lab, "host=192.0.2.1") for _ in range(4)]
    for words, word in ((["host=192.0.2.1"], "4 clients"), (["hots=1"], "host=ADDRESS"), (["segment=none"], "there are"),
                        (["at=none"], "there are"), (["--count", "0"], "count=1..10000")):
        out = run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "trace", *words, check=False)
        expect(words, out.returncode == 1 and word in out.stderr, (out.returncode, out.stderr))
        if word == "4 clients":
            for t in traces:
                t.end()
            time.sleep(0.5)
    begin = Trace(lab, "--json", "--count", "1")
    ping(ETH, IB_IP, 56, count=1)
    expect("again", rows(begin, how=None)[2] == 0, "")
    return {"ok": not wrong, "wrong": wrong}


SCRIPT = "dpdk-telemetry.py"


def check_dpdk_script(lab):
    """DPDK's own script talks to our socket, and to EAL's for DPDK's commands."""
    place = lab.dir / "dpdk" / "ours"
    place.mkdir(parents=True, exist_ok=True)
    (place / "dpdk_telemetry.v2").symlink_to(lab.dir / "control.sock")

    def asked(prefix, *requests, **more):
        out = subprocess.run([SCRIPT, "-f", prefix], input="".join(f"{r}\n" for r in requests) + "quit\n", text=True,
                             capture_output=True, timeout=20, env={**os.environ, **more})
        if out.returncode:
            raise Failed(f"{SCRIPT}: {out.stderr[-800:]}")
        return [json.loads(line) for line in out.stdout.splitlines()]

    ours = asked("ours", "/", "/help,stats", "/stats", "/links", "/neighbours", "/mode,connected", "/nonsense",
                 RUNTIME_DIRECTORY=str(lab.dir))
    names = ("/", "/help", "/stats", "/links", "/neighbours", "/mode", "/nonsense")
    wrong = [name for name, answer in zip(names, ours, strict=True) if name not in answer]
    stats, nonsense = ours[2].get("/stats") or {}, ours[-1]
    theirs = asked("gwdemo", "/", "/ethdev/list", "/ethdev/stats,0", "/eal/params")
    received = theirs[2].get("/ethdev/stats", {}).get("ipackets", 0)
    ok = (not wrong and "traffic" in stats and nonsense["/nonsense"] is None and "/events" in ours[0]["/"]
          and theirs[1]["/ethdev/list"] == [0] and received > 0)
    return {"ok": ok, "wrong": wrong, "commands": len(ours[0]["/"]), "of_dpdk": len(theirs[0]["/"]), "ethdev_received": received}


def check_end(lab, kill):
    """Who follows learns that the gateway has ended: in order, or without a word."""
    lines, machine = Follower(lab), Follower(lab, "alarm", "--json")
    if kill:
        lab.lose(lab.gateway)
    else:
        lab.gateway.stop()
        lab.processes.remove(lab.gateway)
    results = [f.end(how=None) for f in (lines, machine)]
    codes, words = [code for _, code, _ in results], [err for _, _, err in results]
    stopping = any("gateway: stopping" in line for line in results[0][0])
    lab.start_gateway()
    back = back_within(10, ETH, IB_IP)
    ok = codes == [4 if kill else 3] * 2 and stopping != kill and all("gateway" in w for w in words) and back is not None
    return {"ok": ok, "exit_codes": codes, "said": words[0], "stopping_told": stopping}


CHECKS = (
    ("runtime_events", check_told),
    ("runtime_events_slow_reader", check_slow_reader),
    ("runtime_events_hostile", check_hostile),
    ("runtime_dpdk_telemetry", check_dpdk_script),
    ("runtime_set", check_set),
    ("runtime_clear", check_clear),
    ("runtime_losses", check_losses),
    ("runtime_capture", check_capture),
    ("runtime_trace", check_trace),
    ("runtime_events_end", lambda lab: check_end(lab, kill=False)),
    ("runtime_events_killed", lambda lab: check_end(lab, kill=True)),
)


def runtime(args, checks):
    in_laboratory(RuntimeLaboratory, args, checks, CHECKS)
