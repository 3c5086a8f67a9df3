"""A gateway keeps the hosts that it knows over a restart, in a segment that has no subnets to query.

The hosts are silent: none of them sends a packet between the exit of the gateway and the ping. The InfiniBand
host has the Ethernet host at a queue pair that is gone.
"""

import socket

import pytest
from testbed.frames import EVERYONE
from testbed.pings import back_within
from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping

pytestmark = pytest.mark.netns

# Promised by the gateway: seconds until silent hosts are reached.
PROMISE = 3.0
# A neighbor entry of the Ethernet host is not verified for so long that no test waits for it.
AGELESS_MS = 24 * 3600 * 1000
ETH_P_ARP = 0x0806


class Keeping(Topology):
    """A single gateway without an address and subnets, with a state directory."""

    @property
    def hosts_file(self):
        return self.dir / "state" / "hosts"

    def gateway_config(self):
        (self.dir / "state").mkdir()
        own, directory = f'address = "{GW_IP}/{PREFIX}"\n', f'state-directory = "{self.dir}/state"\n'
        config = super().gateway_config()
        assert own in config
        return config.replace(own, directory)

    def namespaces_up(self):
        super().namespaces_up()
        run("sysctl", "-qw", f"net.ipv4.neigh.eth0.base_reachable_time_ms={AGELESS_MS}", netns=self.eth)

    def kept(self):
        """The addresses in the file."""
        lines = self.hosts_file.read_text().splitlines() if self.hosts_file.exists() else []
        return {line.split()[0] for line in lines}

    def up(self):
        super().up()
        self.wait_for("both hosts to be kept", lambda: {ETH_IP, IB_IP} <= self.kept())

    def end_gateway(self, how):
        if how == "killed":
            self.kill(self.gateway)
        else:
            self.stop_gateway()


class Announcements:
    """Announcements of a host that arrive at the Ethernet host."""

    def __init__(self, topology, ip):
        self.address, self.count = socket.inet_aton(ip), 0
        self.socket = socket_in(topology.eth, socket.AF_PACKET, socket.SOCK_RAW)
        self.socket.bind(("eth0", ETH_P_ARP))
        self.socket.setblocking(False)

    def heard(self):
        """How many have arrived so far."""
        while True:
            try:
                frame = self.socket.recv(2048)
            except BlockingIOError:
                return self.count
            self.count += frame[:6] == EVERYONE and frame[28:32] == frame[38:42] == self.address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


@pytest.mark.core
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_silent_hosts_are_reached_after_a_restart(start, how):
    topology = start(Keeping)
    for netns, target in ((topology.ib, ETH_IP), (topology.eth, IB_IP)):
        topology.end_gateway(how)
        with Announcements(topology, IB_IP) as announcements:
            topology.start_gateway()
            # Each host is announced twice on the other side, a second apart. The proof of the Ethernet host
            # takes no longer.
            topology.wait_for("two announcements of the InfiniBand host", lambda a=announcements: a.heard() >= 2)
        assert first_ping(netns, target)
        topology.wait_for("the report of known hosts", lambda: "2 of 2 known hosts answered" in topology.gateway.text())


@pytest.mark.parametrize("what", ["damaged", "missing"])
def test_a_gateway_without_its_file_starts(start, what):
    """A damaged file is ignored with a warning that names it; the gateway writes a new one."""
    topology = start(Keeping)
    topology.end_gateway("stopped")
    if what == "damaged":
        data = bytearray(topology.hosts_file.read_bytes())
        data[len(data) // 2] ^= 1
        topology.hosts_file.write_bytes(data)
    else:
        topology.hosts_file.unlink()
    topology.flush_neighbours()
    topology.start_gateway()
    topology.wait_for("the gateway to forward", topology.link_up)
    assert first_ping(topology.eth, IB_IP)
    warnings = [line for line in topology.gateway.text().splitlines() if f"{topology.hosts_file}: the list" in line]
    assert len(warnings) == (what == "damaged"), topology.gateway.text()
    topology.wait_for("both hosts to be kept", lambda: {ETH_IP, IB_IP} <= topology.kept())


def test_check_reports_a_state_directory_in_use(start):
    """`--check` names the gateway that uses the directory, as a second start would, and none once it has
    exited."""
    topology = start(Keeping)
    report = f"uses {topology.dir}/state as its state directory"

    def check():
        return run(topology.bin / "ipoib-fwd", "--check", "--config", topology.dir / "gateway.toml", netns=topology.gw,
                   check=False)

    out = check()
    assert out.returncode == 1
    assert report in out.stdout
    topology.end_gateway("stopped")
    assert report not in check().stdout


@pytest.mark.timing
@pytest.mark.parametrize("side", ["ethernet", "infiniband"])
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_silent_hosts_are_reached_soon_after_a_restart(start, figures, how, side):
    """A ping from one side is answered within three seconds after the gateway forwards."""
    topology = start(Keeping)
    topology.end_gateway(how)
    topology.start_gateway()
    topology.wait_for("the gateway to forward", topology.link_up)
    netns, target = {"ethernet": (topology.eth, IB_IP), "infiniband": (topology.ib, ETH_IP)}[side]
    seconds = back_within(netns, target)
    figures(seconds=seconds)
    assert seconds < PROMISE
