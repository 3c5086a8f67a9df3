#!/usr/bin/env python3
"""Benchmarks of the whole gateway and its peers: iperf3 between two hosts, through a device under test.

gateway-tcp   TCP, one and eight streams, in both directions
gateway-udp   datagrams of 1,400 bytes, as fast as iperf3 sends them
gateway-pps   datagrams of 18 bytes
gateway-idle  processor time without traffic, then 20 pings a second; the workers sleep when idle
gateway-connections
              connections that the gateway opens and accepts per second: 1,000 hosts on one port of the fabric
              (ibcrowd)

The devices under test are the gateway (the demo's topology: net_af_packet on a veth, ibfab), dpdk-testpmd in
mode io between two ports of the same kind, and Linux routing. None of them uses offloads. They alternate, in
forward and then in reverse order.

Each rate comes with the processor time per packet of each process (total, user, kernel) and of iperf3 at both
ends, and with the load of the machine. Lost packets are counted in the kernel's rings of AF_PACKET or AF_XDP,
in the gateway, and at the interfaces.

The connection and idle benchmarks have no peer. With --port both, the gateway and dpdk-testpmd alternate
between both kinds of ports. With --older, the gateway of another build alternates with all of them, and the
results have the ratio to it: this shows the effect of an upgrade.
"""

import argparse
import collections
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from testbed import crowd, ethport, ibcrowd
from testbed.frames import ethernet_socket, ipv4, send_paced
from testbed.isolation import isolate
from testbed.programs import Process, TestbedError, cpu_split, interruptible, run
from testbed.rings import Rings
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import ping

# Network namespaces of the topologies. A run has its own mount namespace, so fixed names do not collide.
TAG = "bench"
ETH, GW, IB = f"{TAG}-eth", f"{TAG}-gw", f"{TAG}-ib"
# The kind of Ethernet port; docs/dev/optimization-log.md gives the reasons.
PORT = ethport.AF_PACKET.kind
STREAMS = ("gateway-tcp", "gateway-udp", "gateway-pps")
NAMES = (*STREAMS, "gateway-idle", "gateway-connections")
# Pings of a gateway-idle run, and seconds between them.
PINGS, BETWEEN = 100, 0.05
# Value of --port: the gateway and dpdk-testpmd with each kind of ports, alternately.
BOTH = "both"
# Programs that the directory of --older must contain.
PROGRAMS = ("ipoib-fwd", "ibfab")
# Units of results without a ratio: counts that should be zero.
COUNTS = ("packets", "segments")
ROUTED_IP = "10.78.0.2"
# The processor of the only worker lcore.
WORKER = 1


def thread_seconds(task):
    """Returns the processor time of a thread, by the kernel's nanoseconds: its ticks are coarse."""
    return int((task / "schedstat").read_text().split()[0]) / 1e9


class BenchTopology(Topology):
    """A topology with the programs of one build and one kind of Ethernet port."""

    def __init__(self, args):
        super().__init__(args.bin, tag=TAG)
        self.args = args


class GatewayTopology(BenchTopology):
    """The topology of the demo, with a send queue of the host as long as a TCP sender's window.

    A shorter queue would drop packets that have already cost processor time.
    """

    name, target = "gateway", IB_IP
    data_room = 8192
    # Send queues of 2,048 entries need memory, so the maximum of connections is lower.
    more_of_infiniband = "max-connections = 256\nconnection-send-depth = 2048\n"
    # ibfab represents a fabric and a host, which do not use the worker's processor. On the same processor,
    # both would get half of it.
    is_apart = True

    def __init__(self, args):
        super().__init__(args)
        self.use(args.port)
        others = sorted(os.sched_getaffinity(0) - {WORKER})
        if self.is_apart and others:
            self.fabric_prefix = ["taskset", "-c", ",".join(str(processor) for processor in others)]

    def gateway_config(self):
        return super().gateway_config().replace("[infiniband]\n", f"[infiniband]\n{self.more_of_infiniband}", 1)

    def ready(self):
        self.wait_for("packets", lambda: ping(ETH, IB_IP, 56, count=1, wait=0.5)["ok"])
        self.wait_connected()

    def busy(self):
        return {"ipoib-fwd": self.gateway.pid, "ibfab": self.fabric.pid}

    def lost(self):
        return {f"gateway.{reason}": number for reason, number in self.ctl("stats")["drops"].items()}


class ConnectionsTopology(GatewayTopology):
    """The topology of the demo, with a port of hosts that each have a connection in each direction."""

    hosts = 1000
    # Half of the connections are for those that hosts open, and one port may have a quarter of these.
    more_of_infiniband = f"max-connections = {8 * hosts + 60}\n"
    # The load is on the control lcore, which has another processor than the worker.
    is_apart = False

    def use(self, port):
        super().use(port)
        if port is ethport.AF_PACKET:
            # Room for a burst of frames to all hosts.
            self.vdev += ",framecnt=4096"

    def fabric_config(self):
        return super().fabric_config() + ibcrowd.link(self)

    def gateway_config(self):
        return super().gateway_config().replace(f"{GW_IP}/{PREFIX}", f"{GW_IP}/12")

    def measure(self, add):
        with ibcrowd.Crowd(self, self.hosts, crowd.address(1, net=76), ETH_IP, programs=Path(self.args.hosts)) as hosts:
            hosts.report("known")
            raw, gateway, own = ethernet_socket(self)
            with raw:
                to = (crowd.address(n + 1, net=76) for n in range(self.hosts))
                frames = [gateway + own + b"\x08\x00" + ipv4(bytes(26), dst=ip) for ip in to]
                for name, own_work in (("active", lambda: send_paced(raw.send, frames, 64, 0.0005)), ("passive", lambda: None)):
                    before = self.control_seconds()
                    own_work()
                    made = hosts.report(name)
                    add(name, "connections/s", made["connections"] / made["seconds"])
                    add(f"{name}.cpu.control", "us/connection", (self.control_seconds() - before) * 1e6 / made["connections"])
            self.wait_for("connections", lambda: min(self.live_connections().values()) >= self.hosts)

    def live_connections(self):
        """Returns the number of live connections by direction."""
        live = [c for c in self.ctl("connections")["connections"] if c["state"] == "live"]
        return {"passive": sum(c["passive"] for c in live), "active": sum(not c["passive"] for c in live)}

    def control_seconds(self):
        """Returns the processor time of the control lcore, which is the first thread of the program."""
        pid = self.gateway.pid
        return thread_seconds(Path(f"/proc/{pid}/task/{pid}"))


class OlderTopology(GatewayTopology):
    """The gateway's topology with the programs of another build."""

    name = "older"


class OlderConnectionsTopology(ConnectionsTopology):
    """The connections topology with the programs of another build."""

    name = "older"


OLDER = (OlderTopology, OlderConnectionsTopology)


class PeerTopology(BenchTopology):
    """Two veth pairs with a peer between them."""

    def namespaces_up(self):
        super().namespaces_up()
        self.cable(IB, "ib0", GW, "gw1")

    def start(self):
        self.namespaces_up()
        self.between()

    def ready(self):
        self.wait_for("packets", lambda: ping(ETH, self.target, 56, count=1, wait=0.5)["ok"])

    def busy(self):
        return {}

    def lost(self):
        return {}


class TestpmdTopology(PeerTopology):
    """dpdk-testpmd in mode io."""

    name, target = "testpmd", IB_IP

    def between(self):
        run("ip", "addr", "add", f"{IB_IP}/{PREFIX}", "dev", "ib0", netns=IB)
        port = self.args.port
        vdevs = [word for n in (0, 1) for word in ("--vdev", port.testpmd_vdev(n, f"gw{n}"))]
        line = ["dpdk-testpmd", "-l", "0-1", "--no-pci", "--no-huge", "-m", "768", "--no-telemetry", "--file-prefix", "gwtestpmd", *vdevs,
                "--", "--total-num-mbufs=16384", f"--mbuf-size={port.testpmd_buffers()}", "--forward-mode=io", "--auto-start",
                "--stats-period=3600"]
        self.testpmd = self.background("dpdk-testpmd", line, GW)

    def busy(self):
        return {"dpdk-testpmd": self.testpmd.pid}


class RoutingTopology(PeerTopology):
    """Linux routing; it runs in the context of the sender."""

    name, target = "routing", ROUTED_IP

    def between(self):
        run("ip", "addr", "add", f"{ROUTED_IP}/{PREFIX}", "dev", "ib0", netns=IB)
        for dev, address in (("gw0", "10.77.0.254"), ("gw1", "10.78.0.254")):
            run("ip", "addr", "add", f"{address}/{PREFIX}", "dev", dev, netns=GW)
        run("sysctl", "-qw", "net.ipv4.ip_forward=1", netns=GW)
        run("ip", "route", "add", "default", "via", "10.77.0.254", netns=ETH)
        run("ip", "route", "add", "default", "via", "10.78.0.254", netns=IB)


def interface_drops():
    """Returns the frames that interfaces of the three namespaces dropped."""
    drops = {}
    for netns in (ETH, GW, IB):
        for link in json.loads(run("ip", "-j", "-s", "link", netns=netns).stdout):
            stats = link.get("stats64", {})
            number = stats.get("rx", {}).get("dropped", 0) + stats.get("tx", {}).get("dropped", 0)
            drops[f"{netns.rsplit('-', 1)[-1]}.{link['ifname']}"] = number
    return drops


def iperf(lab, options, seconds, back):
    server = Process("iperf3", ["iperf3", "-s", "-1"], IB, lab.dir / "iperf3.log")
    try:
        lab.wait_for("iperf3's server", lambda: run("ss", "-Hltn", "sport", "=", ":5201", netns=IB).stdout.strip())
        done = run("iperf3", "-J", "-c", lab.target, "-t", seconds, *options, *(["-R"] if back else []), netns=ETH, timeout=seconds + 40)
        return json.loads(done.stdout)["end"]
    finally:
        server.stop(2)


def arrived(netns, dev):
    """Returns the packets that an interface has delivered to its host."""
    return json.loads(run("ip", "-j", "-s", "link", "show", dev, netns=netns).stdout)[0]["stats64"]["rx"]["packets"]


def machine_seconds():
    """Returns the processor time of the machine, and its idle part (idle, iowait)."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]


def measure(lab, name, seconds, add):
    """Runs a benchmark through a lab; `add` takes part, unit and value."""
    for streams in (1, 8):
        for direction, back in (("eth-ib", False), ("ib-eth", True)):
            options = ["-P", streams]
            if name != "gateway-tcp":
                options += ["-u", "-b", 0, "-l", 1400 if name == "gateway-udp" else 18]
            far = (ETH, "eth0") if back else (IB, "ib0")
            processes = lab.busy()
            rings = {k: Rings(pid) for k, pid in processes.items()}
            before, came = {k: cpu_split(pid) for k, pid in processes.items()}, arrived(*far)
            lost = collections.Counter(lab.lost()) + collections.Counter(interface_drops())
            all_before, idle_before = machine_seconds()
            end = iperf(lab, options, seconds, back)
            all_after, idle_after = machine_seconds()
            part = f"{direction}-{streams}"
            if name == "gateway-tcp":
                packets = end["sum_received"]["bytes"] / 1448
                add(part, "Gbit/s", end["sum_received"]["bits_per_second"] / 1e9)
                add(f"{part}.retransmits", "segments", end["sum_sent"].get("retransmits", 0))
            else:
                # Packets at the far host's interface: the gateway also carried those that iperf3 was too slow
                # for.
                packets = arrived(*far) - came
                add(part, "kpps", packets / end["sum"]["seconds"] / 1e3)
                add(f"{part}.lost", "percent", end["sum"]["lost_percent"])
            for k, pid in processes.items():
                user, kernel = (now - then for now, then in zip(cpu_split(pid), before[k]))
                add_cpu(add, f"{part}.cpu.{k}", user, kernel, packets)
                add(f"{part}.ring-drops.{k}", "packets", rings[k].losses())
            # In percent of the time that iperf3 measured; "remote" is the far end.
            for k, end_of in (("iperf3-sends", "remote" if back else "host"), ("iperf3-receives", "host" if back else "remote")):
                user, kernel = (end["cpu_utilization_percent"][f"{end_of}_{kind}"] / 100 * seconds for kind in ("user", "system"))
                add_cpu(add, f"{part}.cpu.{k}", user, kernel, packets)
            add(f"{part}.cpu.machine", "percent", 100 - 100 * (idle_after - idle_before) / (all_after - all_before))
            after = collections.Counter(lab.lost()) + collections.Counter(interface_drops())
            add(f"{part}.other-drops", "packets", sum((after - lost).values()))


def add_cpu(add, part, user, kernel, packets):
    for what, used in (("", user + kernel), (".user", user), (".kernel", kernel)):
        add(part + what, "us/packet", used * 1e6 / packets if packets else 0)


def idle(lab, seconds, add):
    """Measures processor time without traffic, then the round-trip time of pings."""
    def used():
        return {name: sum(thread_seconds(task) for task in Path(f"/proc/{pid}/task").iterdir()) for name, pid in lab.busy().items()}

    # Queries of the start and their answers have passed.
    time.sleep(2)
    before, begin = used(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - begin
    for name, cpu in used().items():
        add(f"cpu.{name}", "percent", 100 * (cpu - before[name]) / took)
    # Each ping wakes an idle gateway. A missing answer counts as the timeout of ping.
    text = run("ping", "-n", "-c", PINGS, "-i", BETWEEN, "-W", 1, lab.target, netns=ETH, check=False, timeout=60).stdout
    times = sorted(float(ms) for ms in re.findall(r"time=([0-9.]+) ms", text))
    times += [1000.0] * (PINGS - len(times))
    for part, at in (("ping-50", PINGS // 2), ("ping-99", PINGS * 99 // 100)):
        add(part, "ms", times[at])


def machine():
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return f"{len(os.sched_getaffinity(0))} x {model[1] if model else 'unknown processor'}, Linux {platform.release()}"


def peer_of(lab):
    """Returns the peer of a gateway: dpdk-testpmd with the same kind of ports."""
    return lab.replace("gateway", "testpmd", 1) if lab.startswith("gateway") else None


def older_of(lab):
    """Returns the lab with the programs of --older."""
    return lab.replace("gateway", OlderTopology.name, 1) if lab.startswith("gateway") else None


def report(values):
    """Returns rows like those of the other benchmarks, with testpmd and the older gateway as peers."""
    rows = []
    for (name, lab, part, unit), got in values.items():
        peer = values.get((name, peer_of(lab), part, unit)) if unit in ("Gbit/s", "kpps") else None
        middle = statistics.median(got)
        peer_middle = statistics.median(peer) if peer else None
        older = values.get((name, older_of(lab), part, unit))
        before = statistics.median(older) if older else None
        rows.append({"name": f"{name}.{lab}.{part}", "unit": unit, "min": min(got), "median": middle, "max": max(got), "runs": len(got),
                     "peer": "dpdk-testpmd io, the same ports" if peer else None, "peer_min": min(peer) if peer else None,
                     "peer_median": peer_middle, "peer_max": max(peer) if peer else None, "peer_runs": len(peer) if peer else None,
                     "ratio": middle / peer_middle if peer_middle else None,
                     "older_min": min(older) if older else None, "older_median": before, "older_max": max(older) if older else None,
                     "older_runs": len(older) if older else None,
                     "older_ratio": middle / before if before and unit not in COUNTS else None})
    return rows


def streams(names):
    return [name for name in names if name in STREAMS]


def one_run(args, topology_class, port, values):
    programs = args.older if topology_class in OLDER else args.bin
    lab = topology_class(argparse.Namespace(bin=programs, hosts=args.bin, port=port))
    both = args.port == BOTH and topology_class in (GatewayTopology, OlderTopology, TestpmdTopology)
    name_of_lab = f"{lab.name}-{port.kind}" if both else lab.name
    try:
        lab.start()
        lab.ready()
        if isinstance(lab, ConnectionsTopology):
            lab.measure(lambda part, unit, value: values["gateway-connections", name_of_lab, part, unit].append(round(value, 4)))
            return
        # Idle comes first: after traffic, the gateway would still be closing connections.
        if "gateway-idle" in args.names:
            idle(lab, args.seconds, lambda part, unit, value: values["gateway-idle", name_of_lab, part, unit].append(round(value, 4)))
        for name in streams(args.names):
            measure(lab, name, args.seconds,
                    lambda part, unit, value, name=name: values[name, name_of_lab, part, unit].append(round(value, 4)))
    except (TestbedError, KeyError) as error:
        if not isinstance(lab, OLDER):
            raise
        what = f"its answers lack {error}" if isinstance(error, KeyError) else error
        raise TestbedError(f"--older {programs} cannot be compared: {what}\n"
                           "bench: it runs with the configuration and the options of this version's demo (scripts/demo). A version "
                           "that does not know them is too old: name the programs of a later one, or omit --older") from None
    finally:
        lab.close()


def labs_of_round(args, ports):
    """Returns the labs of each round with their ports."""
    labs = []
    if streams(args.names) or "gateway-idle" in args.names:
        gateways = (GatewayTopology, OlderTopology) if args.older else (GatewayTopology,)
        labs += [(lab, port) for port in ports for lab in (*gateways, TestpmdTopology)] + [(RoutingTopology, ports[0])]
    if "gateway-connections" in args.names:
        labs += [(lab, ports[0]) for lab in ((ConnectionsTopology, OlderConnectionsTopology) if args.older else (ConnectionsTopology,))]
    return labs


def ports_of(args):
    def say(text):
        print(f"bench: {text}", file=sys.stderr, flush=True)

    try:
        if args.port != BOTH:
            return [ethport.choose(args.port, PORT, say)]
        return [ethport.choose(kind, None, say) for kind in ethport.KINDS]
    except ethport.NoPort as error:
        sys.exit(f"bench: {error}")


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES) + " (default: all)")
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE")
    parser.add_argument("--plots", metavar="DIR", help="write a plot of each benchmark as SVG into DIR")
    parser.add_argument("--quick", action="store_true", help="two runs of one second each, which only show that the benchmark works")
    parser.add_argument("--port", choices=[*sorted(ethport.KINDS), BOTH],
                        help=f"kind of the Ethernet ports of gateway and dpdk-testpmd, or both alternately (default {PORT})")
    parser.add_argument("--runs", type=int, help="number of alternating runs of each (default 10)")
    parser.add_argument("--seconds", type=int, help="seconds of each run of iperf3 (default 3)")
    parser.add_argument("--bin", metavar="DIR", default="target/release", help="directory of the programs (default target/release)")
    parser.add_argument("--older", metavar="DIR", help="directory of another build, whose gateway alternates with the others")
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; the benchmarks are {', '.join(NAMES)}")
    args.names = args.names or list(NAMES)
    missing = [program for program in PROGRAMS if not (Path(args.older) / program).is_file()] if args.older else None
    if missing:
        parser.error(f"--older {args.older} has no {', no '.join(missing)}: name a folder with both, such as target/release of an older "
                     f"checkout after cargo build --release -p {' -p '.join(PROGRAMS)}")
    runs = (2 if args.quick else 10) if args.runs is None else args.runs
    args.seconds = (1 if args.quick else 3) if args.seconds is None else args.seconds
    if not 1 <= runs <= 1000 or not 1 <= args.seconds <= 600:
        parser.error("--runs takes 1 to 1000, --seconds 1 to 600")
    interruptible()
    values = collections.defaultdict(list)
    # Load of other programs: from here on the benchmark adds its own.
    load = os.getloadavg()[0]
    try:
        isolate()
    except TestbedError as error:
        sys.exit(f"bench: {error}")
    labs = labs_of_round(args, ports_of(args))
    print(machine(), flush=True)
    try:
        for number in range(1, runs + 1):
            for topology_class, port in labs if number % 2 else reversed(labs):
                what = " (connections)" if issubclass(topology_class, ConnectionsTopology) else ""
                print(f"bench: run {number} of {runs}: {topology_class.name}{what}, {port.kind}", file=sys.stderr, flush=True)
                one_run(args, topology_class, port, values)
    except (TestbedError, KeyError, ValueError, subprocess.SubprocessError) as error:
        sys.exit(f"bench: {error}")
    except KeyboardInterrupt:
        sys.exit("bench: interrupted")
    rows = report(values)
    print(f"{'name':58} {'runs':>4} {'min':>10} {'median':>10} {'max':>10}  unit")
    for row in rows:
        ratios = f"  ratio {row['ratio']:.3f}" if row["ratio"] else ""
        if row["older_ratio"]:
            ratios += f"  older {row['older_min']:.3f} / {row['older_median']:.3f} / {row['older_max']:.3f}, ratio {row['older_ratio']:.3f}"
        print(f"{row['name']:58} {row['runs']:>4} {row['min']:>10.3f} {row['median']:>10.3f} {row['max']:>10.3f}  {row['unit']}{ratios}")
    if args.quick:
        print("quick: the runs are too few and too short for results; they only show that the benchmark works")
    if load > 0.5:
        print(f"warning: load average {load:.2f} at the start disturbs the values, and the ratios less so, as the runs alternate")
    about = f"{'quick, ' if args.quick else ''}{runs} runs of {args.seconds} s, {machine()}, load average {load:.1f}"
    results = {"machine": machine(), "seconds": args.seconds, "quick": args.quick, "load": load, "results": rows}
    results = json.dumps({**results, "about": about}, indent=2) + "\n"
    if args.json:
        Path(args.json).write_text(results)
    if args.plots:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(results)
            file.flush()
            subprocess.run([Path(args.bin) / "bench", "--bars", file.name, "--plots", args.plots], check=True)


if __name__ == "__main__":
    main()
