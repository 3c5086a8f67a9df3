#!/usr/bin/env python3
"""The main job, for real: an Ethernet host, an InfiniBand host, and the gateway between them.

One network namespace holds an Ethernet host (veth, MTU 1500), one an InfiniBand host (a TUN interface of the software
fabric, IP MTU 65520), one the gateway. Both hosts are in one IP subnet. Everything goes through the gateway.
"""

import argparse
import ctypes
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ethport

# Held by who changes how many hugepages there are.
LOCK = "/run/lock/ipoib-fwd-hugepages.lock"
ETH, GW, IB = "gwdemo-eth", "gwdemo-gw", "gwdemo-ib"
# The kind of Ethernet port: docs/benchmarks.md says why this one.
PORT = "af-packet"
ETH_IP, IB_IP, GW_IP, PREFIX = "10.77.0.1", "10.77.0.2", "10.77.0.254", 24
FILE_BYTES = 64 << 20
# As much of a capture as may be kept.
MOST_CAPTURED = ["--capture-files", 64, "--capture-size", 64 << 20]
HUGEPAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
HUGEPAGES_WANTED = 384
# Where EAL keeps a directory for each prefix, also when it has ended.
EAL = Path("/var/run/dpdk")
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_NETWORK = 0x0002_0000, 0x4000_0000


class Failed(Exception):
    """A step of the demo could not be done."""


def say(text):
    print(f"demo: {text}", flush=True)


def set_apart():
    """From now on the names of network namespaces, the interfaces of this one, mounts, shared memory and EAL's directories are nobody
    else's, and end with the program: labs run beside each other, each with the same names."""
    if LIBC.unshare(NEW_MOUNTS | NEW_NETWORK):
        raise Failed(f"unshare: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")
    for folder, mode in (("/run/netns", "755"), (EAL, "755"), ("/dev/shm", "1777")):
        os.makedirs(folder, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", f"mode={mode}", "ipoib-fwd", folder)
    run("ip", "link", "set", "lo", "up")


def more_hugepages(number):
    """So many more of them are reserved, or fewer: false if there is no room for all, and then as many as before."""
    os.makedirs(os.path.dirname(LOCK), exist_ok=True)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = int(HUGEPAGES.read_text())
        HUGEPAGES.write_text(str(max(0, before + number)))
        if number > 0 and int(HUGEPAGES.read_text()) < before + number:
            HUGEPAGES.write_text(str(before))
            return False
        return True


def interruptible():
    """Signals that end the program become an exception, so that what was built is taken down."""
    def interrupted(signum, _frame):
        raise KeyboardInterrupt(signal.Signals(signum).name)

    # Also where the shell has it ignored, as for jobs in the background.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)


def run(*argv, netns=None, check=True, timeout=60, **more):
    argv = [str(a) for a in argv]
    if netns:
        argv = ["ip", "netns", "exec", netns, *argv]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, **more)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(argv)}: no end after {timeout} s") from None
    if check and done.returncode:
        raise Failed(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done


class Process:
    """A program in the background, with its output in a file."""

    def __init__(self, name, argv, netns, log):
        self.name, self.log = name, log
        argv = [str(a) for a in argv]
        if netns:
            argv = ["ip", "netns", "exec", netns, *argv]
        self.out = open(log, "wb")
        self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT,
                                      start_new_session=True)

    def alive(self):
        return self.popen.poll() is None

    def text(self):
        return Path(self.log).read_text(errors="replace")

    def stop(self, grace=10):
        """SIGTERM, then SIGKILL to what is left; returns the exit code."""
        if self.alive():
            self.popen.terminate()
            try:
                self.popen.wait(grace)
            except subprocess.TimeoutExpired:
                os.killpg(self.popen.pid, signal.SIGKILL)
                try:
                    self.popen.wait(grace + 10)
                except subprocess.TimeoutExpired:
                    raise Failed(f"{self.name}: still there after SIGKILL") from None
        self.out.close()
        return self.popen.returncode


class Lab:
    """The three namespaces and two programs; leaves nothing behind."""

    # The gateway's Ethernet port, further ones, and more of its options; more of the fabric's.
    kind = ethport.AF_PACKET
    vdev, vdevs, more, more_of_fabric = kind.vdev(0, "gw0"), (), (), ()
    # Bytes of a packet buffer, if not as many as by default. A port on a kernel's interface has frames as long, and takes what the kernel
    # has joined from fragments as far as it fits.
    data_room = None
    # Datagrams of the fabric fit a packet buffer.
    fabric_mtu = 4096
    # Worker lcores; they share the processors that there are.
    workers = 1

    def __init__(self, args):
        self.args = args
        self.bin = Path(args.bin).resolve()
        self.dir = Path(tempfile.mkdtemp(prefix="ipoib-fwd-demo-"))
        self.processes, self.namespaces = [], []
        self.hugepages = 0
        self.fabric = self.gateway = None

    # -- building up

    def namespace(self, name):
        """A network namespace of ours."""
        run("ip", "netns", "add", name)
        self.namespaces.append(name)
        # Nothing but the traffic of the checks: no IPv6 router solicitations in the captures.
        run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1", netns=name)
        run("ip", "link", "set", "lo", "up", netns=name)

    def namespaces_up(self):
        for name in (ETH, GW, IB):
            self.namespace(name)
        self.cable(ETH, "eth0", GW, "gw0")
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=ETH)

    def cable(self, one, dev, other, peer):
        """A wire between two network namespaces, with an interface at each end."""
        run("ip", "link", "add", dev, "netns", one, "type", "veth", "peer", "name", peer, "netns", other)
        # A real wire carries finished packets: no checksum or segmentation is left to the other end.
        for netns, end in ((one, dev), (other, peer)):
            run("ethtool", "-K", end, "rx", "off", "tx", "off", "tso", "off", "gso", "off", "gro", "off", netns=netns)
            run("ip", "link", "set", end, "mtu", "1500", "up", netns=netns)

    def hugepages_up(self):
        """Reserves hugepages for the run, beside those that there are; without enough memory the buffers live in ordinary pages."""
        try:
            if more_hugepages(HUGEPAGES_WANTED):
                self.hugepages = HUGEPAGES_WANTED
                return ["--in-memory"]
        except OSError:
            pass
        say("no room for hugepages here: the gateway's buffers live in ordinary pages (--no-huge)")
        return ["--no-huge", "--no-shconf", "-m", "512"]

    def use(self, port):
        """Has the gateway's Ethernet port be of a kind of `ethport`."""
        self.kind = port
        self.vdev = port.vdev(0, "gw0")
        if (self.data_room or port.data_room) > port.data_room or port.data_room < self.fabric_mtu:
            self.data_room, self.fabric_mtu = port.data_room, 2048

    def start(self):
        self.namespaces_up()
        self.memory = self.hugepages_up()
        self.link = self.dir / "gw.sock"
        (self.dir / "fabric.toml").write_text(self.fabric_config())
        (self.dir / "gateway.toml").write_text(self.gateway_config())
        self.start_fabric()
        self.start_gateway()

    def fabric_config(self):
        return f"""\
# One switch, one link to the gateway, one InfiniBand host.
[fabric]
mtu = {self.fabric_mtu}

[[link]]
name = "gateway"
url = "shm:{self.link}"

[[host]]
name = "host1"
netns = "{IB}"
tun = "ib0"
address = "{IB_IP}/{PREFIX}"
mtu = 65520
mode = "connected"
"""

    def gateway_config(self):
        return f"""\
[gateway]
address = "{GW_IP}/{PREFIX}"
control-socket = "{self.dir}/control.sock"
idle = "sleep"

[ethernet]
port = "{self.vdev.split(',')[0]}"
mtu = 1500

[infiniband]
driver = "soft"
port = 1
mode = "connected"

[infiniband.soft]
ports = [{{ link = "shm:{self.link}", mtu = {self.fabric_mtu} }}]
""" + (f"\n[buffers]\ndata-room = {self.data_room}\n" if self.data_room else "")

    def capture(self, name):
        return ["--capture", self.dir / name, *MOST_CAPTURED] if self.args.capture else []

    def start_fabric(self):
        self.fabric = Process("ibfab", [self.bin / "ibfab", "--config", self.dir / "fabric.toml",
                                        *self.capture("fabric.pcap"), *self.more_of_fabric], None, self.dir / "ibfab.log")
        self.processes.append(self.fabric)

    def lcores(self):
        """Lcore 0 controls, each other one works, on its own processor as far as there are any."""
        if self.workers == 1:
            return ["-l", "0-1"]
        processors = sorted(os.sched_getaffinity(0))
        return ["--lcores", ",".join(f"{n}@{processors[n % len(processors)]}" for n in range(self.workers + 1))]

    def vdev_words(self):
        """Options that name the Ethernet ports, each with a queue for each worker."""
        for vdev in (self.vdev, *self.vdevs):
            queues = f",qpairs={self.workers}" if self.workers > 1 and "af_packet" in vdev else ""
            yield from ("--vdev", vdev + queues)

    def start_gateway(self):
        line = [self.bin / "ipoib-fwd", *self.lcores(), "--no-pci", *self.memory, "--file-prefix", "gwdemo",
                *self.vdev_words(), "--", "--config", self.dir / "gateway.toml",
                "--report", self.dir / "report.json", *self.capture("gateway.pcap"), *self.more]
        say("gateway: " + " ".join(str(a) for a in line))
        self.started_at = time.monotonic()
        self.gateway = Process("ipoib-fwd", line, GW, self.dir / "gateway.log")
        self.processes.append(self.gateway)

    # -- looking at it

    def ctl(self, *words):
        out = run(self.bin / "ipoib-fwd", "ctl", "--socket", self.dir / "control.sock", *words, "--json", timeout=30)
        return json.loads(out.stdout)

    def alive(self):
        for p in self.processes:
            if not p.alive():
                raise Failed(f"{p.name} has ended with code {p.popen.returncode}:\n{p.text()[-4000:]}")

    def wait_for(self, what, ready, seconds=15.0):
        end = time.monotonic() + seconds
        while True:
            self.alive()
            if ready():
                return
            if time.monotonic() > end:
                raise Failed(f"{what}: not within {seconds:.0f} s")
            time.sleep(0.02)

    # -- tearing down

    def close(self):
        for p in reversed(self.processes):
            p.stop()
        for name in self.namespaces:
            pids = run("ip", "netns", "pids", name, check=False).stdout.split()
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except (ProcessLookupError, ValueError):
                    pass
            run("ip", "netns", "del", name, check=False)
        if self.hugepages:
            more_hugepages(-self.hugepages)
            self.hugepages = 0
        if self.args.keep:
            say(f"files kept in {self.dir}")
        else:
            shutil.rmtree(self.dir, ignore_errors=True)


# -- the checks

# How long the last answers of a ping are waited for, in seconds.
LATE = 10


def answered(text, first=None):
    """The numbers of packets that ping's lines tell an answer of, each once; of the first so many."""
    numbers = {int(n) for n in re.findall(r"bytes from .* icmp_seq=(\d+) ", text)}
    return {n for n in numbers if first is None or n <= first}


def ping(netns, target, size, count=20, interval=0.02, wait=None, more=()):
    """Of `count` packets how many were answered. With `wait` there are no more packets than those, and once there was an answer ping waits
    for the last one no longer than an interval, or twice the longest time so far, whatever it is told. Without, it asks on until as many
    answers have come, and what is late is not taken for lost: `sent` is more than `count` then."""
    patience = ("-W", wait or 2) if wait or count == 1 else ("-w", math.ceil(count * interval) + LATE)
    out = run("ping", "-n", "-c", count, "-i", interval, *patience, "-s", size, *more, target, netns=netns, check=False,
              timeout=60).stdout
    m = re.search(r"(\d+) packets transmitted", out)
    rtt = re.search(r"= ([\d.]+)/([\d.]+)/([\d.]+)", out)
    sent, received = int(m[1]) if m else count, len(answered(out, first=count))
    result = {"size": size, "sent": sent, "received": received, "ok": received == count}
    if rtt:
        result.update(rtt_min_ms=float(rtt[1]), rtt_avg_ms=float(rtt[2]), rtt_max_ms=float(rtt[3]))
    return result


def check_ping(netns, target):
    small, large = ping(netns, target, 56), ping(netns, target, 1472)
    return {"ok": small["ok"] and large["ok"], "small": small, "large": large}


def check_fragments(lab):
    """One packet each way that takes several frames; fragments are put together by the Ethernet port's kernel or the host."""
    got = {}
    for way, netns, target in (("to_infiniband", ETH, IB_IP), ("to_ethernet", IB, ETH_IP)):
        out = run("ping", "-n", "-q", "-c", 1, "-W", 3, "-M", "dont", "-s", 8000, target, netns=netns, check=False).stdout
        got[way] = " 1 received" in out
    return {"ok": all(got.values()), **got, "truncated": lab.ctl("stats")["drops"].get("truncated", 0)}


def check_arp(lab):
    """Both sides learn each other's address through the gateway's translation."""
    run("ip", "neigh", "flush", "all", netns=ETH)
    ping(ETH, IB_IP, 56, count=2)
    neigh = json.loads(run("ip", "-j", "neigh", "show", IB_IP, netns=ETH).stdout or "[]")
    seen_on_ethernet = next((n.get("lladdr") for n in neigh if n.get("lladdr")), None)
    ping(IB, ETH_IP, 56, count=2)
    table = lab.ctl("neighbours")
    ib = [n for n in table.get("infiniband", []) if n["address"] == IB_IP]
    eth = [n for n in table.get("ethernet", []) if n["address"] == ETH_IP]
    mac = json.loads(run("ip", "-j", "link", "show", "eth0", netns=ETH).stdout)[0]["address"]
    ok = bool(seen_on_ethernet and ib and len(bytes.fromhex(re.sub(r"[:-]", "", ib[0]["hardware_address"]))) == 20
              and eth and eth[0]["hardware_address"] == mac)
    return {"ok": ok, "ib_host_seen_on_ethernet_as": seen_on_ethernet,
            "ib_host_hardware_address": ib[0]["hardware_address"] if ib else None,
            "ethernet_host_hardware_address": eth[0]["hardware_address"] if eth else None}


FILE_PORT = 7001


def file_receiver():
    """Runs inside a namespace: takes one connection and prints what came."""
    server = socket.create_server(("0.0.0.0", FILE_PORT))
    print("listening", flush=True)
    server.settimeout(30)
    conn, _ = server.accept()
    conn.settimeout(30)
    digest, total = hashlib.sha256(), 0
    while chunk := conn.recv(1 << 20):
        digest.update(chunk)
        total += len(chunk)
    print(json.dumps({"sha256": digest.hexdigest(), "bytes": total}), flush=True)


def file_sender(target, path):
    """Runs inside a namespace: sends a file."""
    with socket.create_connection((target, FILE_PORT), timeout=30) as conn, open(path, "rb") as f:
        conn.sendfile(f)


def check_file(lab, from_ns, to_ns, target, size=FILE_BYTES):
    path = lab.dir / "random"
    digest = hashlib.sha256()
    with open(path, "wb") as f:
        for _ in range(size >> 20):
            block = os.urandom(1 << 20)
            digest.update(block)
            f.write(block)
    me = [sys.executable, os.path.abspath(__file__)]
    receiver = Process("receiver", [*me, "--receive-file"], to_ns, lab.dir / "receiver.log")
    try:
        lab.wait_for("the file's receiver", lambda: "listening" in receiver.text(), 30)
        begin = time.monotonic()
        run(*me, "--send-file", target, path, netns=from_ns, timeout=120)
        receiver.popen.wait(60)
        seconds = time.monotonic() - begin
        lines = receiver.text().splitlines()
        got = json.loads(lines[1]) if len(lines) > 1 else {"sha256": None, "bytes": 0}
    finally:
        receiver.stop(1)
    return {"ok": got["sha256"] == digest.hexdigest() and got["bytes"] == size, "bytes": got["bytes"],
            "sha256_sent": digest.hexdigest(), "sha256_received": got["sha256"], "seconds": round(seconds, 3)}


def check_iperf(lab, from_ns, to_ns, target, seconds, least, flows=1):
    server = Process("iperf3", ["iperf3", "-s", "-1"], to_ns, lab.dir / "iperf3.log")
    try:
        lab.wait_for("iperf3's server", lambda: "listening" in run(
            "ss", "-Hltn", "sport", "=", ":5201", netns=to_ns).stdout.replace("LISTEN", "listening"), 30)
        out = json.loads(run("iperf3", "-J", "-c", target, "-t", seconds, "-P", flows, netns=from_ns, timeout=seconds + 30).stdout)
    finally:
        server.stop(2)
    bits = out["end"]["sum_received"]["bits_per_second"]
    segments = out["end"]["sum_sent"]["bytes"] / 1448
    retransmits = out["end"]["sum_sent"].get("retransmits", 0)
    # More than one in a hundred would be a storm.
    return {"ok": bits >= least and retransmits < segments / 100, "bits_per_second": round(bits),
            "at_least": least, "retransmits": retransmits, "segments": round(segments)}


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def gateway_pid(lab):
    """`ip netns exec` replaces itself by the program, so the process is ours."""
    return lab.gateway.popen.pid


def check_idle(lab):
    time.sleep(1)
    before, begin = cpu_seconds(gateway_pid(lab)), time.monotonic()
    time.sleep(3)
    used = (cpu_seconds(gateway_pid(lab)) - before) / (time.monotonic() - begin)
    return {"ok": used < 0.05, "of_a_core": round(used, 4), "less_than": 0.05}


def traffic(lab):
    """Packets and bytes by transport, summed over workers."""
    return lab.ctl("stats")["traffic"]


def check_connected(lab, before, after):
    grown = {k: {f: after[k][f] - before[k][f] for f in ("packets", "bytes")} for k in after}
    rc_out, rc_in = grown["ib_rc_transmit"], grown["ib_rc_receive"]
    ud = grown["ib_ud_unicast_transmit"]["packets"] + grown["ib_ud_unicast_receive"]["packets"]
    ok = rc_out["packets"] > 0 and rc_in["packets"] > 0 and ud == 0
    return {"ok": ok, "rc_transmit": rc_out, "rc_receive": rc_in, "ud_unicast_data_packets": ud}


def check_workers(lab):
    """How packets have spread over the workers."""
    workers = lab.ctl("stats")["workers"]
    shares = {name: [w[f"{name}_packets"] for w in workers] for name in
              ("eth_receive", "eth_transmit", "ib_rc_receive", "ib_rc_transmit")}
    return {"ok": len(workers) == lab.workers and sum(shares["eth_receive"]) > 0, **shares}


def checker(lab, results, figures_only):
    """What runs a check, prints it and keeps it."""
    def check(name, body, figure=False):
        say(f"{name} …")
        try:
            result = body()
        except Failed as e:
            result = {"ok": False, "error": str(e)}
        if figure and figures_only and "error" not in result:
            # A busy machine says nothing about the gateway's speed.
            result = {**result, "ok": True, "goal_met": result["ok"]}
        results.append({"name": name, **result})
        figures = {k: v for k, v in result.items() if k != "ok"}
        say(f"{name}: {'ok' if result['ok'] else 'FAILED'} {json.dumps(figures)}")
        lab.alive()
        return result

    return check


def carried(lab, check, seconds):
    """What hosts send each other by a gateway that runs."""
    check("arp", lambda: check_arp(lab))
    check("ping_eth_to_ib", lambda: check_ping(ETH, IB_IP))
    check("ping_ib_to_eth", lambda: check_ping(IB, ETH_IP))
    if lab.data_room:
        check("ping_fragments", lambda: check_fragments(lab))
    lab.wait_for("connections both ways", lambda: lab.ctl("connections").get("established_both_ways"), 15)
    before = traffic(lab)
    check("file_eth_to_ib", lambda: check_file(lab, ETH, IB, IB_IP))
    check("file_ib_to_eth", lambda: check_file(lab, IB, ETH, ETH_IP))
    gigabit = 1_000_000_000
    check("iperf_eth_to_ib", lambda: check_iperf(lab, ETH, IB, IB_IP, seconds, gigabit), figure=True)
    check("iperf_ib_to_eth", lambda: check_iperf(lab, IB, ETH, ETH_IP, seconds, gigabit), figure=True)
    # Workers that share a processor keep each other from their queues; hosts that do not send again then lose a connection for a while.
    check("connected_mode", lambda: check_connected(lab, before, traffic(lab)), figure=lab.workers > 1)


def demo(args, lab, results):
    check = checker(lab, results, args.figures_only)
    lab.start()

    def first_packet():
        def through():
            # The kernel asks once a second; the gateway shall not wait for that.
            run("ip", "neigh", "flush", "all", netns=ETH)
            return ping(ETH, IB_IP, 56, count=1, wait=0.2)["ok"]

        lab.wait_for("the first packet through the gateway", through, 20)
        seconds = time.monotonic() - lab.started_at
        return {"ok": seconds < 3, "seconds": round(seconds, 3), "less_than": 3}

    check("start_to_first_packet", first_packet, figure=True)
    carried(lab, check, args.seconds)
    if lab.workers > 1:
        check("workers", lambda: check_workers(lab))
    check("idle_cpu", lambda: check_idle(lab), figure=True)
    print(run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "stats").stdout, flush=True)

    def stopped():
        code = lab.gateway.stop()
        lab.processes.remove(lab.gateway)
        report = lab.dir / "report.json"
        if not report.exists():
            raise Failed(f"the gateway left no report:\n{lab.gateway.text()[-4000:]}")
        outstanding = json.loads(report.read_text())["buffers_outstanding"]
        kept = {"at_most_of_the_driver": lab.kind.keeps} if lab.kind.keeps else {}
        return {"ok": code == 0 and outstanding <= lab.kind.keeps, "buffers_outstanding": outstanding, **kept, "exit_code": code}

    check("no_leak", stopped)
    tail = lab.gateway.text().strip().splitlines()[-40:]
    print("\n".join(tail), flush=True)


def main():
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the checks and their figures to FILE")
    parser.add_argument("--seconds", metavar="N", type=int, default=5, help="seconds of iperf3 each way (default 5)")
    parser.add_argument("--workers", metavar="N", type=int, default=1,
                        help="worker lcores, which share the processors that there are (default 1)")
    ethport.add_option(parser, PORT)
    parser.add_argument("--figures-only", action="store_true",
                        help="print throughput, times and CPU without failing when they miss their goals: for busy machines")
    parser.add_argument("--capture", action="store_true", help="capture packets on both programs (implies --keep)")
    parser.add_argument("--keep", action="store_true", help="keep logs, configuration and captures")
    parser.add_argument("--bin", metavar="DIR", default="target/release", help="where the programs are")
    parser.add_argument("--receive-file", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--send-file", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.receive_file:
        return file_receiver()
    if args.send_file:
        return file_sender(*args.send_file)
    if not 1 <= args.seconds <= 600:
        parser.error("--seconds takes 1 to 600")
    if not 1 <= args.workers <= 16:
        parser.error("--workers takes 1 to 16")
    if args.workers > 1 and args.port == ethport.AF_XDP.kind:
        parser.error("--port af-xdp takes one worker: a queue of its own at the interface is what such a socket is, and veth has one here")
    args.keep |= args.capture

    interruptible()
    results, error = [], None
    try:
        set_apart()
        port = ethport.choose(args.port, PORT, say)
    except (Failed, ethport.NoPort) as e:
        sys.exit(f"demo: {e}")
    lab = Lab(args)
    lab.workers = args.workers
    # Buffers for more workers would not fit the memory that is asked for.
    lab.data_room = 8192 if args.workers <= 2 else None
    lab.use(port)
    try:
        demo(args, lab, results)
    except Failed as e:
        error = str(e)
    except KeyboardInterrupt:
        error = "interrupted"
    finally:
        # A second Ctrl-C must not leave half of it behind.
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, signal.SIG_IGN)
        lab.close()
    if args.json:
        document = {"checks": results}
        if error:
            document["error"] = error
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if error:
        sys.exit(f"demo: {error}")
    failed = [r["name"] for r in results if not r["ok"]]
    if failed:
        sys.exit(f"demo: failed: {', '.join(failed)}")
    say(f"all {len(results)} checks passed")
    return None


if __name__ == "__main__":
    main()
