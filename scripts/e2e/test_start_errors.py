"""A start that must fail: one line that says what is wrong, where, and how to fix it."""

import os
import re
import tempfile
import time
from pathlib import Path

import pytest
from testbed.hugepages import HUGEPAGES
from testbed.programs import run
from testbed.topology import Topology

pytestmark = pytest.mark.netns

# Seconds within which a start fails.
WITHIN = 15
NO_DEVICE = "no RDMA device"
SMALL = ["--no-pci", "--no-huge", "--no-shconf", "-m", "256", "--file-prefix", f"err{os.getpid()}", "--vdev", "net_null0"]
BASE = """\
[gateway]
address = "10.77.0.254/24"
control-socket = ""
[ethernet]
port = "net_null0"
[infiniband]
driver = "soft"
[infiniband.soft]
ports = [{ link = "udp:127.0.0.1:0-127.0.0.1:9" }]
"""
# Two segments that are good, in lines 9 and 14.
SEGMENTS = BASE.replace('address = "10.77.0.254/24"\n', "") + """\
[[segment]]
name = "one"
vlan = 100
pkey = 0x8001
address = "10.77.0.254/24"
[[segment]]
name = "two"
vlan = 200
pkey = 0x8002
address = "10.77.0.254/24"
[[segment.route]]
to = "0.0.0.0/0"
via = "10.77.0.1"
"""
# A segment on a software device whose cable has an address at its end that this host does not have.
SECOND_DEVICE = """[[infiniband.soft-device]]
ports = [{ link = "udp:203.0.113.1:9-203.0.113.2:9" }]
name = "far"
[[segment]]
device = "far"
name = "one\""""


def gateway(config=BASE, lcores=("-l", "0-1"), options=SMALL, more=(), name="bad.toml"):
    """A case: the arguments of the gateway; CONFIG is the path of a file with the configuration."""
    return ["ipoib-fwd", *lcores, *options, "--", "--config", "CONFIG", *more], config, name


def with_(old, new, base=BASE):
    assert old in base
    return gateway(base.replace(old, new))


def segments(old, new):
    return with_(old, new, SEGMENTS)


def fabric(config):
    return ["ibfab", "--config", "CONFIG"], config, "bad.toml"


# name -> (case, regular expressions that the line matches)
CASES = {
    "core_mask": (gateway(lcores=("-c", "0xf1")), ("CPU|cpu|lcore", "online")),
    "core_list": (gateway(lcores=("-l", "0-999")), ("CPU|cpu|lcore", "online")),
    "core_garbage": (gateway(lcores=("-l", "zero")), ("-l", "zero")),
    "no_worker": (gateway(lcores=("-l", "0")), ("lcore", "-l 0[-,]1")),
    "unknown_port": (with_("net_null0", "net_nul7"), (r"bad\.toml:5:1", "net_nul7", "net_null0")),
    "unknown_driver": (gateway(options=[*SMALL[:-1], "net_nulll0"]), ("net_nulll0", "net_null")),
    "unknown_interface": (gateway(options=[*SMALL[:-1], "net_af_packet0,iface=nosuch0"]), ("nosuch0|net_af_packet0",)),
    "unknown_user": (with_("[gateway]\n", '[gateway]\nuser = "no-such-user"\n'), (r"bad\.toml:2:1", "no-such-user", "adduser --system")),
    "kept_user": (with_("[gateway]\n", '[gateway]\nuser = "nobody"\nprivileges = "keep"\n'),
                  (r"bad\.toml:2:8", "keeps its privileges", 'privileges = "drop"')),
    "unknown_key": (with_("address", "adress"), (r"bad\.toml:2:1", "adress", "did you mean `address`")),
    "unknown_section": (with_("[ethernet]", "[ehternet]"), (r"bad\.toml:4", "ehternet", "ethernet")),
    "wrong_type": (with_('"soft"', "7"), (r"bad\.toml:7",)),
    "bad_address": (with_("10.77.0.254/24", "10.77.0.254/44"), (r"bad\.toml:2",)),
    "segment_twice": (segments('"two"', '"one"'), (r"bad\.toml:15:8", r"`one` \(line 9\)", "another name")),
    "segment_vlan_twice": (segments("200", "100"), (r"bad\.toml:16:8", "VLAN 100", "`one`", "another vlan")),
    "segment_limited_pkey": (segments("0x8002", "0x0002"), (r"bad\.toml:17:8", "limited", "write 0x8002")),
    "segment_port": (segments("0x8002", "0x8002\nport = 2"), (r"bad\.toml:18:8", "`soft0`", "no port 2", "count from 1")),
    "segment_ethernet": (segments("vlan = 200", 'vlan = 200\nethernet = "net_null7"'),
                         (r"bad\.toml:17:1", "net_null7", "available: net_null0")),
    "segment_device": (segments("vlan = 200", 'vlan = 200\ndevice = "soft7"'), (r"bad\.toml:17:10", "`soft7`", "the devices are soft0")),
    "soft_device_cable": (segments('[[segment]]\nname = "one"', SECOND_DEVICE), (r"bad\.toml:10:1", r"203\.0\.113\.1")),
    "segment_route": (segments('10.77.0.1"', '10.78.0.1"'), (r"bad\.toml:21:7", "unreachable router", r"10\.77\.0\.0/24")),
    "no_config": (gateway(config=None), (r"bad\.toml", "--config")),
    "bad_link_url": (with_("udp:", "tcp:"), ("tcp:", "shm:", "udp:")),
    "hca_driver_without_soft": (gateway(BASE[:BASE.index("[infiniband]")], more=("--hca-driver", "soft")),
                                (r"\[infiniband\.soft\]", "ports")),
    "hca_driver_mlx5_without_device": (gateway(more=("--hca-driver", "mlx5")),
                                       (r"bad\.toml:\d+:\d+", "RDMA device", "modprobe mlx5_ib"), NO_DEVICE),
    "hca_driver_verbs_without_device": (gateway(more=("--hca-driver", "verbs")),
                                        (r"bad\.toml:\d+:\d+", "RDMA device", "modprobe mlx5_ib"), NO_DEVICE),
    "no_separator": ((["ipoib-fwd", "--config", "CONFIG"], BASE, "good.toml"), ("--",)),
    "fabric_unknown_key": (fabric('[[link]]\nname = "x"\nulr = "y"\n'), (r"bad\.toml:3", "ulr", "url")),
    "fabric_bad_url": (fabric('[[link]]\nname = "x"\nurl = "udp:1"\n'), ("udp:1",)),
    "fabric_no_config": (fabric(None), (r"bad\.toml",)),
    "gids_nothing": ((["ipoib-fwd", "gids"], None, ""), ("RDMA device", "--socket"), NO_DEVICE),
    "gids_not_shared_memory": (with_("[gateway]\n", '[gateway]\ngids = "/proc/version"\n'), (r"gateway\.gids", "/proc/version")),
    "ctl_nobody": ((["ipoib-fwd", "ctl", "--socket", "CONFIG", "stats"], None, "none.sock"), (r"none\.sock",)),
}


def refused(argv, *expressions, program=None, netns=None):
    """Runs a program that must exit with code 1 and one line of its own which matches all expressions,
    without a panic."""
    done = run(*argv, netns=netns, check=False)
    text, program = done.stdout + done.stderr, program or Path(argv[0]).name
    assert "panicked" not in text
    lines = [line for line in text.splitlines() if line.startswith(f"{program}: ")]
    assert done.returncode == 1 and len(lines) == 1, (done.returncode, text)
    for expression in expressions:
        assert re.search(expression, lines[0]), (expression, lines[0])


def needs_no_device():
    if any(Path("/sys/class/infiniband").glob("*")) or Path("/run/ipoib-fwd.sock").exists():
        pytest.skip("this host has an RDMA device or a running gateway")


def check(programs, argv, config, name, expressions):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        if config is not None:
            path.write_text(config)
        refused([programs / argv[0], *(path if argument == "CONFIG" else argument for argument in argv[1:])], *expressions)


@pytest.mark.core
def test_start_errors(programs):
    """The most frequent kinds, in one go."""
    for name in ("core_list", "no_worker", "unknown_port", "unknown_key", "wrong_type", "segment_twice", "no_config", "ctl_nobody"):
        case, expressions = CASES[name]
        check(programs, *case, expressions)


@pytest.mark.parametrize("name", CASES)
def test_start_error(programs, name):
    case, expressions, *needs = CASES[name]
    if needs:
        needs_no_device()
    check(programs, *case, expressions)


@pytest.mark.timing
def test_start_errors_come_in_time(programs, figures):
    """No start waits for anything before it fails."""
    slowest = 0.0
    for case, expressions, *needs in CASES.values():
        if not needs:
            begin = time.monotonic()
            check(programs, *case, expressions)
            slowest = max(slowest, time.monotonic() - begin)
    figures(slowest=round(slowest, 2))
    assert slowest < WITHIN


def test_start_without_hugepages(programs):
    """The gateway does not see those that there are: other programs may need them."""
    options = [*SMALL[:1], "--in-memory", *SMALL[5:]]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "good.toml"
        path.write_text(BASE)
        hidden = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {HUGEPAGES.parents[1]} && exec "$0" "$@"']
        refused([*hidden, programs / "ipoib-fwd", "-l", "0-1", *options, "--", "--config", path],
                "hugepages", "nr_hugepages|--no-huge", program="ipoib-fwd")


def test_second_gateway_on_a_control_socket(start):
    """The first one is not disturbed."""
    topology = start(Topology, gids=True)
    path = topology.dir / "second.toml"
    text = topology.gateway_config().replace("net_af_packet0", "net_null0").replace(f'gids = "{topology.dir}/gids"\n', "")
    path.write_text(text.replace(f"shm:{topology.link}", "udp:127.0.0.1:0-127.0.0.1:9"))
    refused([topology.bin / "ipoib-fwd", "-l", "0-1", *SMALL, "--", "--config", path], r"control\.sock")
    assert "traffic" in topology.ctl("stats")
