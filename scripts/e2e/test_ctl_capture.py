"""`ctl capture`: packets of a running gateway, as requested and no others, bounded on disk."""

import collections
import pathlib

import pytest
from testbed.programs import run
from testbed.threads import own_filters, threads, with_capabilities
from testbed.topology import GW_IP, IB_IP, Topology
from testbed.traffic import ping
from testbed.tshark import frame_numbers, tshark

pytestmark = pytest.mark.netns


class WithCaptures(Topology):
    """The gateway has a directory for captures."""

    # `ctl capture` and `--capture` exclude each other.
    captured = False

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.captures = self.dir / "captures"
        self.captures.mkdir(mode=0o700)

    def gateway_config(self):
        return super().gateway_config().replace("[gateway]\n", f'[gateway]\ncaptures = "{self.captures}"\n', 1)

    def refuses(self, *arguments):
        """Whether `ctl capture` refuses these arguments; the result explains why not."""
        out = self.ctl_text("capture", *arguments, check=False)
        return out.returncode == 1 and "panicked" not in out.stderr, out

    def wait_captured(self, packets):
        self.wait_for(f"{packets} captured packets", lambda: self.ctl("capture")["packets"] >= packets)


@pytest.fixture
def topology(start):
    return start(WithCaptures)


def test_refused_captures(topology):
    """Names that are paths and wrong filters are refused, and leave no files."""
    for name in ("../x", "/etc/x", "..", ".hidden", "x" * 65, "a\nb"):
        refused, out = topology.refuses("start", name)
        assert refused, (name, out)
    for word in ("size=1", "files=65", "proto=ipx", "host=::1", "nonsense"):
        refused, out = topology.refuses("start", "refused", word)
        assert refused, (word, out)
    refused, out = topology.refuses("stop")
    assert refused, out
    assert list(topology.captures.iterdir()) == []


def test_thread_that_writes_captures(topology):
    """A thread of its own writes, with a filter of its own, without capabilities, and on no worker's
    processor."""
    found = list(threads(topology.gateway.pid).values())
    [own] = [t for t in found if t["Name"] == "captures"]
    assert with_capabilities({0: own}) == {}
    assert own["Cpus_allowed_list"] not in {t["Cpus_allowed_list"] for t in found if "worker" in t["Name"]}
    assert (own["Seccomp"], int(own["Seccomp_filters"])) == ("2", own_filters() + 2)


@pytest.mark.core
def test_filtered_capture(topology):
    """Only the packets that the filter selects, whole, in a file of one's own; one capture at a time;
    existing files are kept."""
    topology.ctl("capture", "start", "icmp", "proto=icmp", f"host={IB_IP}")
    refused, out = topology.refuses("start", "second")
    assert refused, out
    pinged = ping(topology.eth, IB_IP, 56, count=10)
    assert pinged["ok"]
    # Another host's, and ARP.
    assert ping(topology.ib, GW_IP, 56, count=3)["ok"]
    run("ip", "neigh", "flush", "all", netns=topology.eth)
    last = ping(topology.eth, IB_IP, 56, count=1)
    assert last["ok"]
    # Each request and its answer.
    packets = 2 * (pinged["sent"] + last["sent"])
    topology.wait_captured(packets)
    capture = topology.ctl("capture", "stop")
    assert (capture["packets"], capture["missing"]) == (packets, 0)
    refused, out = topology.refuses("start", "icmp")
    assert refused, out
    [file] = capture["files"]
    protocols = collections.Counter(tshark(file, "-T", "fields", "-e", "frame.protocols"))
    assert sum(protocols.values()) == packets, protocols
    assert frame_numbers(file, "_ws.malformed or !icmp or icmp.checksum.status == 0") == []
    assert oct(pathlib.Path(file).stat().st_mode & 0o777) == "0o600"


def test_number_of_packets(topology):
    """A capture of one direction stops after the requested number of packets."""
    topology.ctl("capture", "start", "few", "direction=in", "packets=5")
    assert ping(topology.eth, IB_IP, 56, count=8)["ok"]
    topology.wait_for("the end of the capture", lambda: topology.ctl("capture")["state"] == "has what was ordered")
    assert len(frame_numbers(topology.ctl("capture")["files"][0])) == 5


def test_bounded_files(topology, figures):
    """The oldest file is removed at the limit, and no file is larger than its limit."""
    topology.ctl("capture", "start", "many", "files=2", "size=65536")
    run("ping", "-n", "-q", "-c", 200, "-i", 0.005, "-s", 1400, IB_IP, netns=topology.eth)
    topology.wait_captured(400)
    capture = topology.ctl("capture", "stop")
    assert capture["missing"] == 0
    # Its first file is gone, later ones are there.
    refused, out = topology.refuses("start", "many")
    assert refused, out
    files = sorted(path for path in topology.captures.iterdir() if path.name.startswith("many."))
    assert len(files) == 2
    assert max(path.stat().st_size for path in files) <= 65536
    read = sum(len(frame_numbers(path)) for path in files)
    figures(packets=capture["packets"], read=read)
    assert 0 < read < 100
