"""Operation of a gateway: control socket, statistics, processors and memory, and exit."""

import collections
import contextlib
import json
import os
import random
import signal
import socket
from pathlib import Path

import pytest
from testbed.follower import control_client
from testbed.programs import TestbedError
from testbed.threads import threads
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import ping

pytestmark = pytest.mark.netns


class WithGids(Topology):
    gids = True


def test_lcores_and_hugepages(gateway):
    """Control lcore and worker stay on their processors, and packets are in hugepages if there are any."""
    pid = gateway.gateway.pid
    found = threads(pid)
    assert found[pid]["Cpus_allowed_list"] == "0"
    assert [t["Cpus_allowed_list"] for t in found.values() if "worker" in t["Name"]] == ["1"]
    in_hugepages = int(found[pid]["HugetlbPages"].split()[0]) << 10
    if "--in-memory" in gateway.memory:
        # The buffers alone: each takes 4 KiB and more.
        buffers = gateway.ctl("stats")["buffers"]
        assert in_hugepages >= (buffers["in_use"] + buffers["available"]) * 4096
    else:
        assert in_hugepages == 0


@pytest.mark.core
def test_ctl_answers(start):
    """Each command answers in JSON and in text, with the hosts and connections that there are."""
    topology = start(WithGids)
    for netns, target in ((topology.eth, IB_IP), (topology.ib, ETH_IP)):
        assert ping(netns, target, 56, count=3)["ok"]
    for command, key in (("stats", "traffic"), ("links", "infiniband"), ("neighbours", "infiniband"),
                         ("connections", "connections"), ("groups", "groups")):
        assert topology.ctl(command).get(key), command
        text = topology.ctl_text(command).stdout
        assert len(text.splitlines()) >= 2 and "{" not in text and "[" not in text, text
    link = topology.ctl("links")["infiniband"]
    assert (link.get("port_state"), link.get("link"), link.get("mtu"), link.get("mode")) == ("active", "up", 4096, "connected")
    neighbors = topology.ctl("neighbours")
    assert {side: {row["address"] for row in neighbors[side]} for side in ("infiniband", "ethernet")} == {
        "infiniband": {IB_IP}, "ethernet": {ETH_IP}}
    connections = topology.ctl("connections")["connections"]
    assert collections.Counter(c["passive"] for c in connections if c["state"] == "live") == {True: 1, False: 1}, connections


def test_pages(gateway):
    """A list comes in pages of the size that was requested; together they are the list that `ctl` prints."""
    whole = gateway.ctl("groups")
    assert "next" not in whole
    rows, after = [], ""
    with control_client(gateway.socket) as client:
        while after is not None:
            client.send(f"/groups,limit=5{after}".encode())
            page = json.loads(client.recv(1 << 20))["/groups"]
            assert len(page["groups"]) <= 5
            rows += page["groups"]
            after = page["next"] and f",after={page['next']}"
        client.send(b"/groups,limit=0")
        assert "1 to 2048 rows" in json.loads(client.recv(1 << 20))["error"]
    assert [row["mgid"] for row in rows] == [row["mgid"] for row in whole["groups"]]
    assert len(rows) > 10


def test_unknown_ctl_command(gateway):
    out = gateway.ctl_text("nonsense", check=False)
    assert out.returncode != 0
    assert "panicked" not in out.stderr
    assert "nonsense" in out.stderr


def test_hostile_clients_of_the_control_socket(start):
    """Random requests, and more idle clients than it has room for."""
    topology, chance = start(WithGids), random.Random(3)

    def client():
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.settimeout(2)
        try:
            s.connect(str(topology.socket))
        except OSError:
            # The gateway may refuse it.
            pass
        return s

    for _ in range(50):
        with client() as s:
            try:
                s.send(chance.choice([b"/" + chance.randbytes(chance.randrange(1000)), b"", b"/mode,", b"/stats," + b"x" * 900,
                                      chance.randbytes(4000)]))
            except OSError:
                pass
    idle = [client() for _ in range(40)]
    forwards = ping(topology.eth, IB_IP, 56)
    for s in idle:
        s.close()
    assert forwards["ok"], forwards

    def answers():
        try:
            return "traffic" in topology.ctl("stats")
        except TestbedError:
            # It has not noticed yet that they are gone.
            return False

    topology.wait_for("an answer", answers)


def test_statistics_every_second(start):
    topology = start(Topology, more=("--stats", "1"))
    lines = lambda: topology.gateway.text().count("\nto IB: RC ")
    before = lines()
    topology.wait_for("three more lines", lambda: lines() >= before + 3)


class IntoPipe(Topology):
    """The gateway's output and log go into a pipe, which is read only when `read` is called."""

    def start_gateway(self):
        path = self.dir / "output"
        os.mkfifo(path)
        self.pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        super().start_gateway()

    def gateway_command(self):
        return ["sh", "-c", 'exec "$@" > "$0" 2>&1', self.dir / "output", *super().gateway_command()]

    def fill(self):
        for piece in (b"x" * 4096, b"\n"):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(self.pipe, piece)

    def read(self):
        text = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                text += os.read(self.pipe, 1 << 16)
        return text.decode(errors="replace")


def test_nobody_reads_the_log(start):
    """A pipe that takes no more bytes holds neither the control lcore nor the gateway's end up; what is lost
    is reported later."""
    topology = start(IntoPipe, more=("--stats", "1"))
    topology.fill()
    for mode in ("datagram", "connected") * 3:
        # Each switch is logged, and statistics are due meanwhile.
        assert topology.ctl("mode", mode)["mode"] == mode
    topology.read()
    topology.ctl("mode", "datagram")
    text = ""

    def reported():
        nonlocal text
        text += topology.read()
        return "entries of the log that are lost: " in text and "\nto IB: " in text

    topology.wait_for("a report of what was lost, and statistics again", reported)
    os.close(topology.pipe)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_stop_of_the_gateway(gateway, how):
    """It closes everything in time, and returns all buffers (`stop_gateway` looks)."""
    gateway.gateway.popen.send_signal(how)
    assert gateway.gateway.wait() == 0
    gateway.stop_gateway()
    log = Path(gateway.gateway.log).read_text(errors="replace")
    assert "panicked" not in log
    assert "could be closed in time" not in log
    # Every link goes down when the gateway stops; that is no warning.
    assert not [line for line in log.splitlines() if "WARN" in line and "link down" in line]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_stop_of_the_fabric(gateway, how):
    gateway.forget(gateway.fabric)
    gateway.fabric.popen.send_signal(how)
    assert gateway.fabric.wait() == 0
    gateway.fabric.stop()
    assert "panicked" not in gateway.fabric.text()
