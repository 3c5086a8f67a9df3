"""An Ethernet host, an InfiniBand host and the gateway between them, each in a network namespace."""

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import ethport
from stage.apart import more_hugepages
from stage.programs import Failed, Process, run

ETH, GW, IB = "gwdemo-eth", "gwdemo-gw", "gwdemo-ib"
ETH_IP, IB_IP, GW_IP, PREFIX = "10.77.0.1", "10.77.0.2", "10.77.0.254", 24
# The kind of Ethernet port: docs/benchmarks.md says why this one.
PORT = "af-packet"
# As much of a capture as may be kept.
MOST_CAPTURED = ["--capture-files", 64, "--capture-size", 64 << 20]
HUGEPAGES_WANTED = 384


def say(text):
    print(f"demo: {text}", flush=True)


class Lab:
    """The three namespaces and two programs; leaves nothing behind."""

    # The gateway's Ethernet port, further ones, and more of its options; more of the fabric's.
    kind = ethport.AF_PACKET
    vdev, vdevs, more, more_of_fabric = kind.vdev(0, "gw0"), (), (), ()
    # What starts the fabric.
    fabric_by = ()
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
        self.fabric = Process("ibfab", [*self.fabric_by, self.bin / "ibfab", "--config", self.dir / "fabric.toml",
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


def gateway_pid(lab):
    """`ip netns exec` replaces itself by the program, so the process is ours."""
    return lab.gateway.popen.pid
