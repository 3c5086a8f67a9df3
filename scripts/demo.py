#!/usr/bin/env python3
"""Carries packets between an Ethernet host and an InfiniBand host through the gateway, on this machine.

One network namespace holds an Ethernet host (veth, MTU 1500), one an InfiniBand host (a TUN interface of the
software fabric, IP MTU 65520), one the gateway. Both hosts are in one IP subnet, and everything between them
goes through the gateway. The demo fails only if a check fails; no check has a limit on rate or time.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from testbed import diagnostics, ethport
from testbed.hugepages import HugepageReservation
from testbed.programs import TestbedError, cpu_seconds, interruptible, run
from testbed.supervisor import supervised
from testbed.topology import ETH_IP, GW_IP, HUGEPAGES_WANTED, IB_IP, Topology
from testbed.traffic import FILE_BYTES, iperf, packets, ping, send_file, traffic

ROOT = Path(__file__).resolve().parents[1]
TO_IB, TO_ETH = "Ethernet -> InfiniBand", "InfiniBand -> Ethernet"
# Seconds between two lines of progress where there is no terminal.
PROGRESS = 15


class DemoTopology(Topology):
    """The plain topology, with optional captures and with hugepages that the supervisor has reserved."""

    hugepages_reserved = False

    def memory_options(self):
        if self.hugepages_reserved:
            return ["--in-memory"]
        self.report("  note  no room for hugepages: packet buffers are in ordinary pages (--no-huge)")
        return ["--no-huge", "--no-shconf", "-m", "512"]


class Demo:
    """The checks, which print a line each, and the measurements for the table at the end."""

    def __init__(self, topology, args):
        self.topology, self.args = topology, args
        self.checks, self.measurements = [], []
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.ok, self.bad = ("\033[32mok\033[0m", "\033[31mFAILED\033[0m") if colour else ("ok", "FAILED")

    def check(self, name, title, body):
        """Runs a check, which returns whether it passed, a short text, and values for the JSON document."""
        self.topology.check_alive()
        try:
            ok, text, values = body()
        except (TestbedError, ValueError, KeyError, OSError) as error:
            ok, text, values = False, f"{type(error).__name__}: {error}", {"error": str(error)}
        self.checks.append({"name": name, "ok": bool(ok), **values})
        print(f"  {self.ok if ok else self.bad}  {title:<38} {text}", flush=True)
        return ok

    def measured(self, title, value):
        self.measurements.append((title, value))

    # -- the checks

    def first_packet(self):
        wait = 0.2

        def through():
            nonlocal wait
            # The kernel repeats an ARP request only once a second. A busy machine takes longer to answer.
            run("ip", "neigh", "flush", "all", netns=self.topology.eth)
            answered = ping(self.topology.eth, IB_IP, 56, count=1, wait=wait)["ok"]
            wait = min(2 * wait, 10)
            return answered

        self.topology.wait_for("the first packet through the gateway", through)
        seconds = round(time.monotonic() - self.topology.started_at, 1)
        self.measured("start to first packet", f"{seconds} s")
        return True, f"{seconds} s after the start", {"seconds": seconds}

    def addresses(self):
        """Each side has the translated address of the other side's host."""
        t = self.topology
        run("ip", "neigh", "flush", "all", netns=t.eth)
        ping(t.eth, IB_IP, 56, count=2)
        ping(t.ib, ETH_IP, 56, count=2)
        seen = json.loads(run("ip", "-j", "neigh", "show", IB_IP, netns=t.eth).stdout or "[]")
        seen = next((n["lladdr"] for n in seen if n.get("lladdr")), None)
        table = t.ctl("neighbours")
        known = {side: next((n["hardware_address"] for n in table.get(side, []) if n["address"] == ip), None)
                 for side, ip in (("infiniband", IB_IP), ("ethernet", ETH_IP))}
        own = json.loads(run("ip", "-j", "link", "show", "eth0", netns=t.eth).stdout)[0]["address"]
        gateway = t.ctl("links")["ethernet"]["mac"]
        octets = len(bytes.fromhex(re.sub(r"[:-]", "", known["infiniband"] or "")))
        ok = seen == gateway and octets == 20 and known["ethernet"] == own
        return ok, f"{IB_IP} is at {seen} (the gateway); its own address has {octets} bytes", {"seen_on_ethernet": seen, **known}

    def pings(self, netns, target):
        small, large = ping(netns, target, 56), ping(netns, target, 1472)
        received = small["received"] + large["received"]
        text = f"{received} of 40, {small.get('rtt_avg_ms', '?')} ms"
        return small["ok"] and large["ok"], text, {"small": small, "large": large}

    def fragments(self):
        """Sends a packet of several frames in each direction."""
        t = self.topology
        got = {}
        for direction, netns, target in (("to_infiniband", t.eth, IB_IP), ("to_ethernet", t.ib, ETH_IP)):
            got[direction] = ping(netns, target, 8000, count=1, wait=60, more=("-M", "dont"))["ok"]
        return all(got.values()), f"{sum(got.values())} of 2 packets of 8,000 bytes", got

    def file(self, direction, from_ns, to_ns, target):
        sent = send_file(self.topology, from_ns, to_ns, target)
        gigabits = sent["bytes"] * 8e-9 / max(sent["seconds"], 1e-3)
        same = "equal" if sent["sha256_sent"] == sent["sha256_received"] else "DIFFERENT"
        self.measured(f"file, {direction}", f"{gigabits:.2f} Gbit/s")
        return sent["ok"], f"{FILE_BYTES >> 20} MiB, SHA-256 {same}", sent

    def throughput(self, direction, from_ns, to_ns, target):
        got = iperf(self.topology, from_ns, to_ns, target, self.args.seconds)
        retransmitted = 100 * got["retransmits"] / max(1, got["segments"])
        gigabits = f"{got['bits_per_second'] * 1e-9:.2f} Gbit/s"
        self.measured(f"TCP, {direction}", f"{gigabits}, {retransmitted:.2f} % of the segments retransmitted")
        return got["bits_per_second"] > 0, gigabits, got

    def connected_mode(self, before):
        """Traffic since `before` used connections, or UD while a busy machine lost one."""
        after = traffic(self.topology)
        rc, ud = ("ib_rc_transmit", "ib_rc_receive"), ("ib_ud_unicast_transmit", "ib_ud_unicast_receive")
        moved = {k: packets(after, k) - packets(before, k) for k in rc + ud}
        over_rc, over_ud = (sum(moved[k] for k in transport) for transport in (rc, ud))
        ok = moved["ib_rc_transmit"] > 0 and moved["ib_rc_receive"] > 0
        return ok, f"{over_rc:,} packets by RC, {over_ud:,} by UD", moved

    def workers(self):
        workers = self.topology.ctl("stats")["workers"]
        shares = [w["eth_receive_packets"] for w in workers]
        return len(workers) == self.topology.workers and sum(shares) > 0, f"received from Ethernet: {shares}", {"eth_receive": shares}

    def stopped(self):
        outstanding = self.topology.stop_gateway()
        return True, "the gateway stopped and returned all packet buffers", {"buffers_outstanding": outstanding}

    def idle(self):
        """CPU share of a gateway without traffic."""
        pid = self.topology.gateway.pid
        before, begin = cpu_seconds(pid), time.monotonic()
        time.sleep(3)
        share = (cpu_seconds(pid) - before) / (time.monotonic() - begin)
        self.measured("CPU of the idle gateway", f"{100 * share:.1f} % of a core")

    def run(self):
        t, args = self.topology, self.args
        self.check("start_to_first_packet", "first packet", self.first_packet)
        self.check("arp", "address resolution, both directions", self.addresses)
        self.check("ping_eth_to_ib", f"ping, {TO_IB}", lambda: self.pings(t.eth, IB_IP))
        self.check("ping_ib_to_eth", f"ping, {TO_ETH}", lambda: self.pings(t.ib, ETH_IP))
        if t.data_room:
            self.check("ping_fragments", "fragments, both directions", self.fragments)
        t.wait_connected()
        before = traffic(t)
        self.check("file_eth_to_ib", f"file, {TO_IB}", lambda: self.file(TO_IB, t.eth, t.ib, IB_IP))
        self.check("file_ib_to_eth", f"file, {TO_ETH}", lambda: self.file(TO_ETH, t.ib, t.eth, ETH_IP))
        self.check("iperf_eth_to_ib", f"TCP {args.seconds} s, {TO_IB}", lambda: self.throughput(TO_IB, t.eth, t.ib, IB_IP))
        self.check("iperf_ib_to_eth", f"TCP {args.seconds} s, {TO_ETH}", lambda: self.throughput(TO_ETH, t.ib, t.eth, ETH_IP))
        self.check("connected_mode", "connected mode", lambda: self.connected_mode(before))
        if t.workers > 1:
            self.check("workers", "packets of all workers", self.workers)
        self.idle()
        if args.shell:
            self.shell()
        if all(check["ok"] for check in self.checks):
            self.check("no_leak", "stop", self.stopped)

    def shell(self):
        """Runs a shell while the hosts are up."""
        t = self.topology
        ctl = f"--socket {t.socket}"
        print(f"""
The network is up. Exit this shell to remove it.

  ip netns exec {t.eth} ping {IB_IP}                  from the Ethernet host to the InfiniBand host
  ip netns exec {t.ib} ping {ETH_IP}                  from the InfiniBand host to the Ethernet host
  ip netns exec {t.eth} tcpdump -ni eth0 -c 10 arp or icmp   capture on the Ethernet wire (start a ping with &)
  ipoib-fwd ctl {ctl} stats        counters; also: links, neighbours, connections, help
  ipoib-fwd top {ctl}              live view
""", flush=True)
        environment = {**os.environ, "PATH": f"{t.bin}:{os.environ['PATH']}", "PS1": "demo# "}
        subprocess.run(["bash", "--norc"], env=environment, cwd=ROOT, check=False)
        t.check_alive()


def build():
    """Builds the programs, with cargo's own progress on a terminal and a line every few seconds elsewhere."""
    command = ["cargo", "build", "--release", "--locked", "-p", "ipoib-fwd", "-p", "ibfab"]
    begin = time.monotonic()
    if sys.stderr.isatty():
        print("demo: building (about two and a half minutes the first time)", flush=True)
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            raise TestbedError(f"{' '.join(command)} failed (above)")
        return time.monotonic() - begin
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        environment = {**os.environ, "CARGO_TERM_PROGRESS_WHEN": "always", "CARGO_TERM_PROGRESS_WIDTH": "80", "CARGO_TERM_COLOR": "never"}
        cargo = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, env=environment)
        try:
            while True:
                try:
                    code = cargo.wait(PROGRESS)
                    break
                except subprocess.TimeoutExpired:
                    log.seek(0)
                    far = re.findall(r"(\d+)/(\d+)", log.read()[-400:])
                    steps = f"{far[-1][0]} of {far[-1][1]} crates, " if far else ""
                    print(f"demo: building, {steps}{time.monotonic() - begin:.0f} s", flush=True)
        finally:
            if cargo.poll() is None:
                cargo.terminate()
                cargo.wait()
        if code:
            log.seek(0)
            raise TestbedError(f"{' '.join(command)} failed:\n" + "\n".join(log.read().splitlines()[-30:]))
    return time.monotonic() - begin


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the checks and their values to FILE")
    parser.add_argument("--seconds", metavar="N", type=int, default=5, help="seconds of iperf3 in each direction (default 5)")
    parser.add_argument("--shell", action="store_true", help="keep the network up after the checks and open a shell in it")
    parser.add_argument("--workers", metavar="N", type=int, default=1, help="worker lcores, which share the processors (default 1)")
    ethport.add_option(parser, ethport.AF_PACKET.kind)
    parser.add_argument("--capture", action="store_true", help="capture packets in both programs (implies --keep)")
    parser.add_argument("--keep", action="store_true", help="keep logs, configuration and captures")
    parser.add_argument("--bin", metavar="DIR", help="use the programs in DIR instead of building them")
    args = parser.parse_args()
    if not 1 <= args.seconds <= 600:
        parser.error("--seconds takes 1 to 600")
    if not 1 <= args.workers <= 16:
        parser.error("--workers takes 1 to 16")
    if args.workers > 1 and args.port == ethport.AF_XDP.kind:
        parser.error("--port af-xdp takes one worker: an AF_XDP socket owns a queue of the interface, and veth has one here")
    args.keep |= args.capture
    # Paths are relative to the directory of the user, not to the tree.
    called_from = Path(os.environ.get("CALLED_FROM", "."))
    args.json, args.bin = (path and str((called_from / path).resolve()) for path in (args.json, args.bin))
    if args.json and not Path(args.json).parent.is_dir():
        parser.error(f"--json: no such directory: {Path(args.json).parent}")
    return args


def demonstrate(args, hugepages):
    """Runs the demo in its own namespaces; returns the exit code."""
    interruptible()
    # This /dev/shm is private, so files disappear with the namespaces.
    tempfile.tempdir = None if args.keep else "/dev/shm"
    port = ethport.choose(args.port, ethport.AF_PACKET.kind, lambda text: print(f"  note  {text}"))
    topology = DemoTopology(args.bin or ROOT / "target/release", tag="demo", keep=args.keep)
    topology.hugepages_reserved, topology.captured, topology.workers = hugepages, args.capture, args.workers
    # Buffers for more workers would not fit the reserved memory.
    topology.data_room = 8192 if args.workers <= 2 else None
    topology.use(port)
    demo, error = Demo(topology, args), None
    print(f"\n  {ETH_IP} (Ethernet) <-> gateway {GW_IP} <-> {IB_IP} (InfiniBand)\n", flush=True)
    try:
        topology.start()
        demo.run()
    except TestbedError as failure:
        error = str(failure)
    except KeyboardInterrupt:
        error = "interrupted"
    failed = [check["name"] for check in demo.checks if not check["ok"]]
    if failed or error not in (None, "interrupted"):
        for title, text in diagnostics.sections(topology):
            print(f"\n--- {title}\n{text}", flush=True)
    topology.close()
    if args.json:
        document = {"checks": demo.checks, **({"error": error} if error else {})}
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if error:
        print(f"demo: {error}", file=sys.stderr)
        return 130 if error == "interrupted" else 1
    if failed:
        print(f"demo: failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    print("\n" + "\n".join(f"  {title:<30} {value}" for title, value in demo.measurements))
    print(f"""
It works: all {len(demo.checks)} checks passed.

  scripts/demo --shell        the same network with a shell in it: ping, capture, watch `top`
  docs/install.md             from bare metal to forwarding
  scripts/test --quick        if you want to change something
""")
    return 0


def main():
    args = arguments()
    if os.geteuid() != 0:
        sys.exit("demo: network namespaces need root. Run: sudo scripts/demo")
    try:
        interruptible()
        if not args.bin:
            print(f"demo: programs built in {build():.0f} s", flush=True)
        reservation = HugepageReservation(HUGEPAGES_WANTED)
        code = supervised(lambda: demonstrate(args, reservation.number > 0))
        reservation.release()
    except (TestbedError, ethport.NoPort) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")
    sys.exit(code if code >= 0 else 1)


if __name__ == "__main__":
    main()
