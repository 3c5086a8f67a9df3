"""An Ethernet host, an InfiniBand host and the gateway between them, each in a network namespace of its
own."""

import itertools
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from testbed import ethport, ibwire
from testbed.hugepages import HugepageReservation
from testbed.programs import DEADLINE, Process, TestbedError, run, wait_for
from testbed.traffic import ping

ETH_IP, IB_IP, GW_IP, PREFIX = "10.77.0.1", "10.77.0.2", "10.77.0.254", 24
HUGEPAGES_WANTED = 384
# How much of a capture is kept: files, and bytes of each.
CAPTURE_LIMITS = ["--capture-files", 4, "--capture-size", 16 << 20]
NUMBERS = itertools.count(1)


class Topology:
    """Three network namespaces, the software fabric and the gateway. `close` removes all of it.

    Subclasses change the class attributes, the configurations and `namespaces_up`. Every instance has names
    of its own: `eth`, `gw` and `ib` are its network namespaces, `dir` is its directory.
    """

    # The gateway's Ethernet port, further ones, and more options of both programs.
    kind = ethport.AF_PACKET
    vdev, vdevs, more, more_of_fabric = kind.vdev(0, "gw0"), (), (), ()
    # Command line in front of the fabric's.
    fabric_prefix = ()
    # Bytes of a packet buffer; None for the default. A port on a kernel interface has frames as long as that.
    data_room = None
    # Datagrams of the fabric fit a packet buffer.
    fabric_mtu = 4096
    # Worker lcores; they share the processors that there are.
    workers = 1
    # A second link of the fabric, over UDP, for a port that misbehaves (`ibwire.Intruder`).
    intruder = False
    # Whether the gateway writes GID tables.
    gids = False
    # Whether both programs capture their packets from the start to explain a failure; None: if the tests run
    # with --captured.
    captured = None
    # Buffers in hugepages if there is room for them; False: in ordinary pages.
    hugepages_wanted = True
    # Whether the gateway of this topology can be stopped and must account for its buffers.
    single_gateway = True

    def __init__(self, programs, *, tag=None, keep=False, report=print):
        """`programs` is the directory with the programs; `tag` begins all names, unique by default; `report`
        takes a line of progress."""
        self.bin, self.keep, self.report = Path(programs).resolve(), keep, report
        tag = tag or f"t{os.getpid()}-{next(NUMBERS)}"
        self.tag, self.eth, self.gw, self.ib = tag, f"{tag}-eth", f"{tag}-gw", f"{tag}-ib"
        self.dir = Path(tempfile.mkdtemp(prefix=f"ipoib-fwd-{tag}-"))
        self.link, self.socket = self.dir / "gw.sock", self.dir / "control.sock"
        self.processes, self.namespaces = [], []
        self.hugepages = None
        self.memory = self.fabric = self.gateway = None
        if self.intruder:
            [(self.far, self.near)] = ibwire.intruder_pairs(1)

    # -- building

    def namespace(self, name):
        """Adds a network namespace, without IPv6: captures have nothing but the test's own traffic."""
        run("ip", "netns", "add", name)
        self.namespaces.append(name)
        run("sysctl", "-eqw", "net.ipv6.conf.default.disable_ipv6=1", netns=name)
        run("ip", "link", "set", "lo", "up", netns=name)

    def namespaces_up(self):
        for name in (self.eth, self.gw, self.ib):
            self.namespace(name)
        self.cable(self.eth, "eth0", self.gw, "gw0")
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)

    def cable(self, one, dev, other, peer):
        """A wire between two network namespaces, with an interface at each end."""
        run("ip", "link", "add", dev, "netns", one, "type", "veth", "peer", "name", peer, "netns", other)
        # A wire carries finished packets: no checksum or segmentation is left to the other end.
        for netns, end in ((one, dev), (other, peer)):
            run("ethtool", "-K", end, "rx", "off", "tx", "off", "tso", "off", "gso", "off", "gro", "off", netns=netns)
            run("ip", "link", "set", end, "mtu", "1500", "up", netns=netns)

    def switch(self, *ends):
        """A switch in the gateway's namespace, with a wire to an interface (network namespace, name) at each
        end."""
        run("ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=self.gw)
        run("ip", "link", "set", "br0", "up", netns=self.gw)
        for number, (netns, dev) in enumerate(ends):
            self.cable(netns, dev, self.gw, f"port{number}")
            run("ip", "link", "set", f"port{number}", "master", "br0", netns=self.gw)

    def memory_options(self):
        """Reserves hugepages for the run; without enough memory for them the buffers are in ordinary
        pages."""
        if self.hugepages_wanted:
            self.hugepages = HugepageReservation(HUGEPAGES_WANTED)
            if self.hugepages.number:
                return ["--in-memory"]
            self.report("no room for hugepages: packet buffers are in ordinary pages (--no-huge)")
        return ["--no-huge", "--no-shconf", "-m", "512"]

    def use(self, port):
        """Makes the gateway's Ethernet port one of a kind of `ethport`."""
        self.kind = port
        self.vdev = port.vdev(0, "gw0")
        if (self.data_room or port.data_room) > port.data_room or port.data_room < self.fabric_mtu:
            self.data_room, self.fabric_mtu = port.data_room, 2048

    def start(self):
        """Builds the namespaces and starts both programs, without waiting for them."""
        self.namespaces_up()
        self.memory = self.memory_options()
        (self.dir / "fabric.toml").write_text(self.fabric_config())
        (self.dir / "gateway.toml").write_text(self.gateway_config())
        self.start_fabric()
        self.start_gateway()

    def up(self):
        """Starts it, and waits for a packet and for connections in both directions."""
        self.start()
        self.wait_for("the first packet through the gateway", lambda: ping(self.eth, IB_IP, 56, count=1)["ok"])
        self.wait_connected()

    def fabric_config(self):
        intruder = ""
        if self.intruder:
            near, far = ("%s:%d" % a for a in (self.near, self.far))
            intruder = f'\n[[link]]\nname = "intruder"\nurl = "udp:{near}-{far}"\n'
        return f"""\
# One switch, one link to the gateway, one InfiniBand host.
[fabric]
mtu = {self.fabric_mtu}

[[link]]
name = "gateway"
url = "shm:{self.link}"

[[host]]
name = "host1"
netns = "{self.ib}"
tun = "ib0"
address = "{IB_IP}/{PREFIX}"
mtu = 65520
mode = "connected"
{intruder}"""

    def gateway_config(self):
        gids = f'gids = "{self.dir}/gids"\n' if self.gids else ""
        buffers = f"\n[buffers]\ndata-room = {self.data_room}\n" if self.data_room else ""
        return f"""\
[gateway]
{gids}address = "{GW_IP}/{PREFIX}"
control-socket = "{self.socket}"
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
{buffers}"""

    def capture(self, name):
        """Options by which a program captures its packets."""
        return ["--capture", self.dir / name, *CAPTURE_LIMITS] if self.captured else []

    def background(self, name, argv, netns=None):
        """Starts a program that ends with the topology; its output is in a file of its own."""
        process = Process(name, argv, netns, self.dir / f"{name.replace(' ', '-')}-{next(NUMBERS)}.log")
        self.processes.append(process)
        return process

    def start_fabric(self):
        self.fabric = self.background("ibfab", [*self.fabric_prefix, self.bin / "ibfab", "--config", self.dir / "fabric.toml",
                                                *self.capture("fabric.pcap"), *self.more_of_fabric])

    def lcores(self):
        """Lcore 0 is the control lcore, each other one a worker, on a processor of its own as far as there
        are any."""
        if self.workers == 1:
            return ["-l", "0-1"]
        processors = sorted(os.sched_getaffinity(0))
        return ["--lcores", ",".join(f"{n}@{processors[n % len(processors)]}" for n in range(self.workers + 1))]

    def vdev_options(self):
        """Options that name the Ethernet ports, each with a queue for each worker."""
        for vdev in (self.vdev, *self.vdevs):
            queues = f",qpairs={self.workers}" if self.workers > 1 and "af_packet" in vdev else ""
            yield from ("--vdev", vdev + queues)

    def gateway_command(self):
        return [self.bin / "ipoib-fwd", *self.lcores(), "--no-pci", *self.memory, "--file-prefix", self.tag,
                *self.vdev_options(), "--", "--config", self.dir / "gateway.toml",
                "--report", self.dir / "report.json", *self.capture("gateway.pcap"), *self.more]

    def start_gateway(self):
        self.started_at = time.monotonic()
        self.gateway = self.background("ipoib-fwd", self.gateway_command(), self.gw)

    # -- looking at it

    def ctl_text(self, *arguments, check=True):
        """Returns the output of `ipoib-fwd ctl`."""
        return run(self.bin / "ipoib-fwd", "ctl", "--socket", self.socket, *arguments, check=check)

    def ctl(self, *arguments):
        """The JSON answer of `ipoib-fwd ctl`."""
        return json.loads(self.ctl_text(*arguments, "--json").stdout)

    def drops(self):
        """Dropped packets by reason."""
        return self.ctl("stats")["drops"]

    def buffers_in_use(self):
        return self.ctl("stats")["buffers"]["in_use"]

    def link_up(self):
        """Whether the gateway forwards; no packet is sent for it."""
        try:
            links = self.ctl("links")
            return links["infiniband"].get("link") == "up" and links["gateway"]["role"] == "forwarding"
        except TestbedError:
            return False

    def check_alive(self):
        for p in self.processes:
            if not p.alive():
                raise TestbedError(f"{p.name} exited with code {p.popen.returncode}:\n{p.text()[-4000:]}")

    def wait_for(self, what, ready, seconds=DEADLINE):
        """Polls `ready` until it returns something true, as long as all programs run."""
        def ready_and_alive():
            self.check_alive()
            return ready()

        return wait_for(what, ready_and_alive, seconds)

    def wait_connected(self):
        """Waits for connections in both directions between the gateway and the InfiniBand host."""
        self.wait_for("connections in both directions", lambda: self.ctl("connections").get("established_both_ways"))

    def wait_hosts(self, count=1):
        """Waits until the fabric's hosts can answer a first packet."""
        self.wait_for("the InfiniBand hosts' links", lambda: self.fabric.text().count("link up") >= count)

    def flush_neighbours(self):
        """The hosts of both sides forget each other."""
        for netns in (self.eth, self.ib):
            run("ip", "neigh", "flush", "all", netns=netns)

    # -- taking down

    def forget(self, process):
        """From now on this program may exit."""
        if process in self.processes:
            self.processes.remove(process)

    def kill(self, process):
        """SIGKILL: the program has no chance to say anything."""
        process.kill()
        self.forget(process)

    def stop_gateway(self):
        """Stops the gateway in order, and checks that it returns all buffers."""
        self.forget(self.gateway)
        code = self.gateway.stop()
        path = self.dir / "report.json"
        if code != 0 or not path.exists():
            log = self.gateway.text()[-4000:]
            raise TestbedError(f"the gateway exited with code {code} and {'a' if path.exists() else 'no'} report:\n{log}")
        outstanding = json.loads(path.read_text())["buffers_outstanding"]
        if outstanding > self.kind.keeps:
            raise TestbedError(f"{outstanding} packet buffers are missing after the gateway's exit; the driver keeps {self.kind.keeps}")
        return outstanding

    def close(self):
        """Ends all programs and removes all namespaces and files; the first program that cannot be stopped is
        raised at the end."""
        error = None
        for p in reversed(self.processes):
            try:
                p.stop()
            except TestbedError as failure:
                error = error or failure
        for name in self.namespaces:
            for pid in run("ip", "netns", "pids", name, check=False).stdout.split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except (ProcessLookupError, ValueError):
                    pass
            run("ip", "netns", "del", name, check=False)
        if self.hugepages:
            self.hugepages.release()
        if self.keep:
            self.report(f"files kept in {self.dir}")
        else:
            shutil.rmtree(self.dir, ignore_errors=True)
        if error:
            raise error
