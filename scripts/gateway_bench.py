#!/usr/bin/env python3
"""The whole gateway beside its peers: iperf3 between two hosts, through what stands between them.

gateway-tcp   TCP, one and eight streams, both ways
gateway-udp   datagrams of 1,400 bytes, as fast as iperf3 sends them
gateway-pps   datagrams of 18 bytes
gateway-connections
              connections that the gateway makes and accepts, a second: 1,000 hosts on one port of the fabric (ibcrowd)

What stands between is the gateway (the demo's topology: net_af_packet on a veth, ibfab), dpdk-testpmd in mode io between two ports of that
kind, and Linux routing, all with the same offloads, none. They take turns. Beside each rate stand the processor time of each process for a
packet, and where packets were lost: in the kernel's rings of af_packet, in the gateway, at the interfaces. Connections have no peer.
"""

import argparse
import collections
import ctypes
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import checks.crowd
import demo
from checks.frames import ethernet_socket, ipv4, send_paced
from demo import ETH, ETH_IP, GW, GW_IP, IB, IB_IP, PREFIX, Failed, Process, cpu_seconds, run

STREAMS = ("gateway-tcp", "gateway-udp", "gateway-pps")
NAMES = (*STREAMS, "gateway-connections")
ROUTED_IP = "10.78.0.2"
# linux/if_packet.h, asm/unistd_64.h
SOL_PACKET, PACKET_STATISTICS, PIDFD_OPEN, PIDFD_GETFD = 263, 6, 434, 438
LIBC = ctypes.CDLL(None, use_errno=True)


def ring_losses(pid):
    """What af_packet sockets of a process have dropped since this was last asked: (packets, drops). The kernel forgets what it told."""
    packets = drops = 0
    pidfd = LIBC.syscall(PIDFD_OPEN, pid, 0)
    if pidfd < 0:
        return 0, 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
        except OSError:
            continue
        fd = LIBC.syscall(PIDFD_GETFD, pidfd, int(entry.name), 0)
        if fd < 0:
            continue
        told, length = (ctypes.c_uint32 * 4)(), ctypes.c_uint32(16)
        if LIBC.getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, told, ctypes.byref(length)) == 0:
            # Drops are among the packets.
            packets, drops = packets + told[0], drops + told[1]
        os.close(fd)
    os.close(pidfd)
    return packets, drops


class GatewayLab(demo.Lab):
    """The demo's."""

    name, target = "gateway", IB_IP
    data_room = 8192

    def ready(self):
        self.wait_for("packets", lambda: demo.ping(ETH, IB_IP, 56, count=1, wait=0.5)["ok"], 20)
        self.wait_for("connections", lambda: self.ctl("connections").get("established_both_ways"), 15)

    def busy(self):
        return {"ipoib-fwd": self.gateway.popen.pid, "ibfab": self.fabric.popen.pid}

    def lost(self):
        return {f"gateway.{reason}": number for reason, number in self.ctl("stats")["drops"].items()}


class ConnectionsLab(GatewayLab):
    """The demo's, and hosts on a port of the fabric of their own, each of which has a connection from the gateway and one to it."""

    hosts = 1000
    # Frames to all of them at once.
    vdev = "net_af_packet0,iface=gw0,framecnt=4096"

    def fabric_config(self):
        return super().fabric_config() + f'\n[[link]]\nname = "crowd"\nurl = "shm:{self.dir}/crowd.sock"\n'

    def gateway_config(self):
        # Half of the places are for connections that hosts open, and one port may have a quarter of those.
        text = super().gateway_config().replace(f"{GW_IP}/{PREFIX}", f"{GW_IP}/12")
        return text.replace("[infiniband]\n", f"[infiniband]\nmax-connections = {8 * self.hosts + 60}\n", 1)

    def measure(self, add):
        links = self.ctl("links")["infiniband"]
        first = checks.crowd.address(1, net=76)
        log = self.dir / "crowd.log"
        with open(log, "wb") as errors:
            crowd = subprocess.Popen([self.bin / "ibcrowd", "--link", f"shm:{self.dir}/crowd.sock", "--hosts", str(self.hosts),
                                      "--first", first, "--target", ETH_IP, "--gateway", links["addresses"].split(" ")[0],
                                      "--gateway-lid", str(links["lid"])],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
        try:
            def stage(name):
                line = crowd.stdout.readline()
                if not line:
                    counted = {k: v for k, v in self.ctl("links")["link_counters"].items() if v}
                    drops = self.ctl("stats")["drops"]
                    raise Failed(f"{log.read_text(errors='replace')[-2000:].strip()}; the gateway dropped {drops}, counted {counted}")
                told = json.loads(line)
                if told["stage"] != name:
                    raise Failed(f"ibcrowd is at {told}, not {name}")
                return told

            stage("known")
            raw, gateway, own = ethernet_socket(self)
            with raw:
                to = (checks.crowd.address(n + 1, net=76) for n in range(self.hosts))
                frames = [gateway + own + b"\x08\x00" + ipv4(bytes(26), dst=ip) for ip in to]
                for name, own_work in (("active", lambda: send_paced(raw.send, frames, 64, 0.0005)), ("passive", lambda: None)):
                    before = self.control_seconds()
                    own_work()
                    told = stage(name)
                    add(name, "connections/s", told["connections"] / told["seconds"])
                    add(f"{name}.cpu.control", "us/connection", (self.control_seconds() - before) * 1e6 / told["connections"])
            self.wait_for("connections", lambda: min(checks.crowd.connections(self).values()) >= self.hosts, 5)
        finally:
            crowd.stdin.close()
            try:
                crowd.wait(5)
            except subprocess.TimeoutExpired:
                crowd.kill()
                crowd.wait()

    def control_seconds(self):
        """Processor time of the control lcore, which is the program's first thread: the kernel's nanoseconds, as its ticks are coarse."""
        pid = demo.gateway_pid(self)
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


class PeerLab(demo.Lab):
    """Two veths, and something between them."""

    def namespaces_up(self):
        super().namespaces_up()
        self.cable(IB, "ib0", GW, "gw1")

    def start(self):
        self.namespaces_up()
        self.between()

    def ready(self):
        self.wait_for("packets", lambda: demo.ping(ETH, self.target, 56, count=1, wait=0.5)["ok"], 20)

    def busy(self):
        return {}

    def lost(self):
        return {}


class TestpmdLab(PeerLab):
    """dpdk-testpmd, mode io."""

    name, target = "testpmd", IB_IP

    def between(self):
        run("ip", "addr", "add", f"{IB_IP}/{PREFIX}", "dev", "ib0", netns=IB)
        ring = "framesz=16384,blocksz=65536,framecnt=512"
        vdevs = [word for n in (0, 1) for word in ("--vdev", f"net_af_packet{n},iface=gw{n},{ring}")]
        line = ["dpdk-testpmd", "-l", "0-1", "--no-pci", "--no-huge", "-m", "512", "--no-telemetry", "--file-prefix", "gwtestpmd", *vdevs,
                "--", "--total-num-mbufs=8192", "--mbuf-size=16512", "--forward-mode=io", "--auto-start", "--stats-period=3600"]
        self.testpmd = Process("dpdk-testpmd", line, GW, self.dir / "testpmd.log")
        self.processes.append(self.testpmd)

    def busy(self):
        return {"dpdk-testpmd": self.testpmd.popen.pid}


class RoutingLab(PeerLab):
    """The kernel, which works in whoever sends."""

    name, target = "routing", ROUTED_IP

    def between(self):
        run("ip", "addr", "add", f"{ROUTED_IP}/{PREFIX}", "dev", "ib0", netns=IB)
        for dev, address in (("gw0", "10.77.0.254"), ("gw1", "10.78.0.254")):
            run("ip", "addr", "add", f"{address}/{PREFIX}", "dev", dev, netns=GW)
        run("sysctl", "-qw", "net.ipv4.ip_forward=1", netns=GW)
        run("ip", "route", "add", "default", "via", "10.77.0.254", netns=ETH)
        run("ip", "route", "add", "default", "via", "10.78.0.254", netns=IB)


def interface_drops():
    """Frames that interfaces of the three namespaces dropped."""
    drops = {}
    for netns in (ETH, GW, IB):
        for link in json.loads(run("ip", "-j", "-s", "link", netns=netns).stdout):
            stats = link.get("stats64", {})
            number = stats.get("rx", {}).get("dropped", 0) + stats.get("tx", {}).get("dropped", 0)
            drops[f"{netns.rsplit('-', 1)[-1]}.{link['ifname']}"] = number
    return drops


def iperf(lab, words, seconds, back):
    server = Process("iperf3", ["iperf3", "-s", "-1"], IB, lab.dir / "iperf3.log")
    try:
        lab.wait_for("iperf3's server", lambda: run("ss", "-Hltn", "sport", "=", ":5201", netns=IB).stdout.strip(), 5)
        done = run("iperf3", "-J", "-c", lab.target, "-t", seconds, *words, *(["-R"] if back else []), netns=ETH, timeout=seconds + 40)
        return json.loads(done.stdout)["end"]
    finally:
        server.stop(2)


def measure(lab, name, seconds, add):
    """One benchmark through one lab; `add` takes part, unit and value."""
    for streams in (1, 8):
        for way, back in (("eth-ib", False), ("ib-eth", True)):
            words = ["-P", streams]
            if name != "gateway-tcp":
                words += ["-u", "-b", 0, "-l", 1400 if name == "gateway-udp" else 18]
            processes = lab.busy()
            for pid in processes.values():
                ring_losses(pid)
            before = {k: cpu_seconds(pid) for k, pid in processes.items()}
            lost = collections.Counter(lab.lost()) + collections.Counter(interface_drops())
            end = iperf(lab, words, seconds, back)
            part = f"{way}-{streams}"
            if name == "gateway-tcp":
                packets = end["sum_received"]["bytes"] / 1448
                add(part, "Gbit/s", end["sum_received"]["bits_per_second"] / 1e9)
                add(f"{part}.retransmits", "segments", end["sum_sent"].get("retransmits", 0))
            else:
                packets = end["sum"]["packets"] - end["sum"]["lost_packets"]
                add(part, "kpps", packets / seconds / 1e3)
                add(f"{part}.lost", "percent", end["sum"]["lost_percent"])
            for k, pid in processes.items():
                used = cpu_seconds(pid) - before[k]
                add(f"{part}.cpu.{k}", "us/packet", used * 1e6 / packets if packets else 0)
                add(f"{part}.ring-drops.{k}", "packets", ring_losses(pid)[1])
            after = collections.Counter(lab.lost()) + collections.Counter(interface_drops())
            add(f"{part}.other-drops", "packets", sum((after - lost).values()))


def machine():
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{len(os.sched_getaffinity(0))} x {model[1] if model else 'unknown processor'}, Linux {platform.release()}"


def report(values):
    """Rows as the other benchmarks have them; the peer of the gateway's rates is testpmd."""
    rows = []
    for (name, lab, part, unit), got in values.items():
        peer = values.get((name, "testpmd", part, unit)) if lab == "gateway" and unit in ("Gbit/s", "kpps") else None
        middle = statistics.median(got)
        beside = statistics.median(peer) if peer else None
        rows.append({"name": f"{name}.{lab}.{part}", "unit": unit, "min": min(got), "median": middle, "max": max(got),
                     "peer": "dpdk-testpmd io, net_af_packet" if peer else None, "peer_median": beside,
                     "ratio": middle / beside if beside else None})
    return rows


def streams(names):
    return [name for name in names if name in STREAMS]


def one_run(args, lab_class, values):
    lab = lab_class(argparse.Namespace(bin=args.bin, capture=False, keep=False))
    try:
        lab.start()
        lab.ready()
        if isinstance(lab, ConnectionsLab):
            lab.measure(lambda part, unit, value: values["gateway-connections", lab.name, part, unit].append(round(value, 4)))
            return
        for name in streams(args.names):
            measure(lab, name, args.seconds,
                    lambda part, unit, value, name=name: values[name, lab.name, part, unit].append(round(value, 4)))
    finally:
        lab.close()
        demo.forget_eal()


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=NAMES, metavar="NAME", help=", ".join(NAMES) + "; all if none is named")
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE, too")
    parser.add_argument("--plots", metavar="DIR", help="write a plot of each benchmark as SVG into DIR")
    parser.add_argument("--quick", action="store_true", help="two runs of a second each")
    parser.add_argument("--runs", type=int, help="runs of each, in turn (default 10)")
    parser.add_argument("--seconds", type=int, help="seconds of each iperf3 (default 3)")
    parser.add_argument("--bin", default="target/release", help="where the programs are")
    args = parser.parse_args()
    args.names = args.names or list(NAMES)
    runs = args.runs or (2 if args.quick else 10)
    args.seconds = args.seconds or (1 if args.quick else 3)
    if not 1 <= runs <= 1000 or not 1 <= args.seconds <= 600:
        parser.error("--runs takes 1 to 1000, --seconds 1 to 600")
    lock = demo.take_lock(600)
    if lock is None:
        sys.exit("bench: a lab runs on this machine; wait for it to end")
    demo.interruptible()
    values = collections.defaultdict(list)
    labs = [GatewayLab, TestpmdLab, RoutingLab] if streams(args.names) else []
    labs += [ConnectionsLab] if "gateway-connections" in args.names else []
    print(machine(), flush=True)
    try:
        for number in range(1, runs + 1):
            for lab_class in labs:
                what = " (connections)" if lab_class is ConnectionsLab else ""
                print(f"bench: run {number} of {runs}: {lab_class.name}{what}", file=sys.stderr, flush=True)
                one_run(args, lab_class, values)
    except (Failed, KeyError, ValueError, subprocess.SubprocessError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    rows = report(values)
    for row in rows:
        beside = f"  ratio {row['ratio']:.3f}" if row["ratio"] else ""
        print(f"{row['name']:52} {row['min']:>10.3f} {row['median']:>10.3f} {row['max']:>10.3f}  {row['unit']}{beside}")
    if os.getloadavg()[0] > 0.5:
        print(f"warning: load average {os.getloadavg()[0]:.2f}: the figures are disturbed; ratios less so, as runs take turns")
    results = json.dumps({"machine": machine(), "results": rows}, indent=2) + "\n"
    if args.json:
        Path(args.json).write_text(results)
    if args.plots:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(results)
            file.flush()
            subprocess.run([Path(args.bin) / "bench", "--bars", file.name, "--plots", args.plots], check=True)


if __name__ == "__main__":
    main()
