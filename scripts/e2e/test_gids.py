"""GID tables of a gateway: listed, shared and followed; and a subnet that gets another prefix under
traffic."""

import contextlib
import ipaddress
import json
import re
import signal
import subprocess

import pytest
from testbed.pings import Pings, back_within
from testbed.programs import DEADLINE, TestbedError, run
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import ping

pytestmark = pytest.mark.netns

PREFIX, OTHER = "fe80:0000:0000:0000", "fec0:0000:0000:0007"
# Seconds between two pings, and how many of them a change of the prefix may cost: those of two seconds.
INTERVAL, MOST_LOST = 0.02, 100


class Gids(Topology):
    gids = True

    @property
    def table(self):
        """Options that read the shared table."""
        return "--shared", self.dir / "gids"

    def list_gids(self, *arguments, source=None, check=True):
        source = ("--socket", self.socket) if source is None else source
        return run(self.bin / "ipoib-fwd", "gids", *source, *arguments, check=check)

    def rows(self, *arguments, source=None):
        return json.loads(self.list_gids("--json", *arguments, source=source).stdout)["gids"]

    @contextlib.contextmanager
    def watch(self, *arguments):
        """`ipoib-fwd gids --watch` once it has printed its first line."""
        watch = subprocess.Popen([str(a) for a in (self.bin / "ipoib-fwd", "gids", *arguments, "--watch")],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            watch.stdout.readline()
            yield watch
        finally:
            watch.kill()
            watch.wait()
            watch.stdout.close()
            watch.stderr.close()

    def set_prefix(self, prefix):
        """Changes the subnet's prefix in the fabric's configuration, and reloads that."""
        file = self.dir / "fabric.toml"
        text = re.sub(r"(?m)^prefix = .*\n", "", file.read_text())
        short = prefix.replace("0000", "0").replace(":000", ":")
        file.write_text(text.replace("[fabric]\n", f'[fabric]\nprefix = "{short}::"\n'))
        self.fabric.popen.send_signal(signal.SIGHUP)

    def wait_recovered(self):
        """Connections carry packets in both directions again."""
        back_within(self.eth, IB_IP)
        back_within(self.ib, ETH_IP)

        def connected():
            ping(self.eth, IB_IP, 56, count=2, wait=1)
            ping(self.ib, ETH_IP, 56, count=2, wait=1)
            return self.ctl("connections").get("established_both_ways")

        self.wait_for("connections in both directions", connected)
        assert ping(self.eth, IB_IP, 56)["ok"]

    def uses(self, prefix):
        """Whether the InfiniBand host or a connection has a GID of that prefix; None while the host or any
        connection is missing."""
        neighbours = {n["address"]: n["hardware_address"] for n in self.ctl("neighbours")["infiniband"]}
        peers = {c["peer"] for c in self.ctl("connections")["connections"] if c["state"] == "live"}
        text = " ".join([neighbours.get(IB_IP) or "", *peers])
        return (prefix.replace(":", "") in re.sub(r"[:.\- ]", "", text)) if peers and ":" in text else None


@pytest.fixture
def topology(start):
    return start(Gids)


@pytest.mark.core
def test_list(topology):
    """The gateway's device is listed by the control socket and by the shared table, for people and for
    programs."""
    rows = topology.rows()
    assert rows
    first = rows[0]
    assert (first["device"], first["port"], first["index"], first["type"]) == ("soft0", 1, 0, "IB")
    assert ipaddress.ip_address(first["gid"]) == ipaddress.ip_address(topology.ctl("links")["infiniband"]["gid"])
    assert first["gid"].startswith(PREFIX)
    text = topology.list_gids().stdout
    header, row, *_ = text.splitlines()
    assert header.split() == ["DEV", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV"]
    assert first["gid"] in row
    assert "\x1b" not in text, "colours without a terminal"
    assert len(topology.rows("--device", "soft0")) == len(rows)
    shared = topology.rows(source=topology.table)
    assert [(r["port"], r["index"], r["gid"]) for r in shared] == [(r["port"], r["index"], r["gid"]) for r in rows]


def test_list_errors(topology):
    """The error names the thing that cannot be listed."""
    for source, arguments, word in ((None, ("--device", "soft7"), "soft0"), (("--shared", "/dev/null"), (), "/dev/null"),
                                    (("--socket", topology.dir / "none.sock"), (), "none.sock")):
        out = topology.list_gids(*arguments, source=source, check=False)
        assert out.returncode == 1, out
        assert word in out.stderr
        assert "panicked" not in out.stderr


@pytest.mark.parametrize("how", ["pipe", "interrupt"])
def test_watch_ends(topology, how):
    """A watch exits without a message when its reader goes away, and when it is interrupted."""
    with topology.watch("--socket", topology.socket) as watch:
        if how == "pipe":
            watch.stdout.close()
            assert watch.wait(DEADLINE) == 0
        else:
            watch.send_signal(signal.SIGINT)
            watch.wait(DEADLINE)
        assert not watch.stderr.read()


def change_prefix(topology, old, new):
    """Changes the prefix while packets flow: everything that named the old GIDs moves.

    Returns the pings that were lost meanwhile.
    """
    pings = Pings(topology.eth, IB_IP, INTERVAL, topology.dir / f"pings-{new[:4]}.log")
    watch = topology.background("watch", [topology.bin / "ipoib-fwd", "gids", "--socket", topology.socket, "--watch", "--json"])
    try:
        topology.wait_for("the watch", lambda: "present" in watch.text())
        pings.wait_answers()
        topology.set_prefix(new)
        topology.wait_for("the new prefix", lambda: all(r["gid"].startswith(new) for r in topology.rows()))
        topology.wait_recovered()
        lost = pings.end()
        topology.wait_for("the watch to report it", lambda: any(event == "added" for event, _ in events_of(watch)))
    finally:
        pings.stop()
        topology.forget(watch)
        watch.stop()
    assert events_of(watch) == [("removed", old), ("added", new)]
    topology.wait_for("the neighbour and connections under the new prefix", lambda: topology.uses(old) is False)
    return lost


def events_of(watch):
    """Changes of the first entry that a watch has printed: (event, prefix)."""
    # Whole lines.
    rows = [json.loads(line) for line in watch.text().rpartition("\n")[0].splitlines() if line.startswith("{")]
    return [(row["event"], row["gid"][:19]) for row in rows if row["index"] == 0 and row["event"] != "present"]


@pytest.mark.core
def test_subnet_prefix_changes(topology, figures):
    """The subnet manager gives the subnet another prefix, and the first one again."""
    figures(away=change_prefix(topology, PREFIX, OTHER), back=change_prefix(topology, OTHER, PREFIX))
    assert topology.ctl("links")["link_counters"]["gid_changes"] == 2


@pytest.mark.timing
def test_subnet_prefix_changes_within_time(topology, figures):
    away, back = change_prefix(topology, PREFIX, OTHER), change_prefix(topology, OTHER, PREFIX)
    figures(away=away, back=back)
    assert away["lost"] <= MOST_LOST
    assert back["lost"] <= MOST_LOST


def test_dead_maintainer(topology):
    """The shared table of a gateway that was killed stays, and is reported as stale; the next gateway
    continues it."""
    pid = topology.gateway.pid
    with topology.watch(*topology.table) as watch:
        topology.kill(topology.gateway)
        try:
            error = watch.communicate(timeout=DEADLINE)[1]
        except subprocess.TimeoutExpired:
            raise TestbedError("gids --shared --watch does not notice that the gateway is dead") from None
    assert watch.returncode == 1
    assert str(pid) in error
    assert "gone" in error
    stale = topology.list_gids(source=topology.table, check=False)
    assert stale.returncode == 1
    assert "soft" not in stale.stderr
    assert "fe80" in stale.stdout
    topology.start_gateway()
    topology.wait_for("the next gateway", lambda: topology.list_gids(source=topology.table, check=False).returncode == 0)
    topology.wait_recovered()
