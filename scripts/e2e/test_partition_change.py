"""The subnet manager takes a partition away from the gateway's port while it runs, and gives it back."""

import signal

import pytest
from testbed.segments import SEGMENTS, Segments
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping

pytestmark = pytest.mark.netns

OFFICE, STORAGE, _ = SEGMENTS


def test_partition_taken_away_and_given_back(start):
    """The segment waits and names its P_Key; other segments forward; the segment recovers automatically."""
    topology = start(Segments)
    path = topology.dir / "fabric.toml"
    complete = path.read_text()
    with_gateway, without = f'members = ["gateway", "{STORAGE.name}"]', f'members = ["{STORAGE.name}"]'
    assert complete.count(with_gateway) == 1

    def change(text):
        path.write_text(text)
        topology.fabric.popen.send_signal(signal.SIGHUP)

    def row():
        [found] = [row for row in topology.ctl("links")["segments"] if row["segment"] == STORAGE.name]
        return found

    change(complete.replace(with_gateway, without))
    topology.wait_for("the segment to wait for its P_Key", lambda: row()["link"] != "up" and "P_Key" in (row()["waits_for"] or ""))
    assert row()["role"] != "forwarding"
    eth, ib = topology.hosts(OFFICE)
    assert ping(eth, IB_IP, 56)["ok"] and ping(ib, ETH_IP, 56)["ok"]
    change(complete)
    topology.wait_for("all segments to forward", topology.all_up)
    for netns, target in zip(topology.hosts(STORAGE), (IB_IP, ETH_IP)):
        topology.wait_for(f"a packet from {netns}", lambda netns=netns, target=target: ping(netns, target, 56, count=1)["ok"])
