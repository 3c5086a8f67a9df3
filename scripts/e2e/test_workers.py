"""Two workers, each with its own queues, IPoIB address and connections, on processors that they may have to
share."""

import socket

import pytest
from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping, ping, send_file, traffic

pytestmark = pytest.mark.netns

# Further Ethernet hosts, so that both workers answer for some.
FURTHER = [f"10.77.0.{n}" for n in range(10, 26)]
FLOWS, ROUNDS, PORT = 64, 20, 7020


class TwoWorkers(Topology):
    """Starts without a packet between the hosts."""

    workers = 2

    def up(self):
        self.start()
        self.wait_for("the InfiniBand link", self.link_up)
        self.wait_hosts()
        for address in FURTHER:
            run("ip", "addr", "add", f"{address}/{PREFIX}", "dev", "eth0", netns=self.eth)


@pytest.fixture
def two(start):
    return start(TwoWorkers)


def ask_all(two):
    """The InfiniBand host reaches every Ethernet host, and the first of them reaches it."""
    lost = [address for address in (ETH_IP, *FURTHER) if not ping(two.ib, address, 56, count=2)["ok"]]
    assert not lost
    assert ping(two.eth, IB_IP, 56, count=2)["ok"]
    two.wait_for("connections of both workers", lambda: {c["worker"] for c in two.ctl("connections")["connections"]
                                                         if c["passive"] and c["state"] == "live"} == {0, 1})


def test_first_pings(two):
    assert first_ping(two.eth, IB_IP)
    assert first_ping(two.ib, ETH_IP)


def test_ping_to_infiniband(two):
    for size in (56, 1472):
        result = ping(two.eth, IB_IP, size)
        assert result["ok"], result


def test_ping_to_ethernet(two):
    for size in (56, 1472):
        result = ping(two.ib, ETH_IP, size)
        assert result["ok"], result


def test_addresses(two, figures):
    """Each worker has an address of its own, and InfiniBand hosts reach some Ethernet hosts at each."""
    ask_all(two)
    addresses = two.ctl("links")["infiniband"]["addresses"].split()
    figures(addresses=addresses)
    assert len(set(addresses)) == 2, addresses


def test_files(two, figures):
    """Files in both directions, which go by connections."""
    ask_all(two)
    before = traffic(two)
    paths = ((two.eth, two.ib, IB_IP), (two.ib, two.eth, FURTHER[0]), (two.ib, two.eth, FURTHER[1]))
    files = [send_file(two, *path) for path in paths]
    after = traffic(two)
    moved = {k: after[k]["packets"] - before[k]["packets"] for k in ("ib_rc_receive", "ib_rc_transmit")}
    figures(packets=moved, seconds=[f["seconds"] for f in files])
    assert all(f["ok"] for f in files), files
    assert all(moved.values()), moved


@pytest.mark.core
def test_flows_spread(two, figures):
    """Each worker receives some of many flows, in both directions, and no packet is lost."""
    ask_all(two)

    def received(name):
        return [w[f"{name}_packets"] for w in two.ctl("stats")["workers"]]

    shares = {}
    for netns, targets, name in ((two.eth, [IB_IP], "eth_receive"), (two.ib, FURTHER, "ib_rc_receive")):
        senders = [socket_in(netns, socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
        before = received(name)
        try:
            for number in range(1, ROUNDS + 1):
                for n, sender in enumerate(senders):
                    # Not connected: the socket would report an error of the last packet instead of sending.
                    sender.sendto(b"one of many", (targets[n % len(targets)], PORT))
                # A round has room in every queue on the path.
                two.wait_for(f"round {number} of {name}", lambda n=number: sum(received(name)) - sum(before) >= n * FLOWS)
        finally:
            for sender in senders:
                sender.close()
        shares[name] = [after - was for was, after in zip(before, received(name))]
    figures(by_worker=shares)
    assert all(min(share) > 0 for share in shares.values()), shares
