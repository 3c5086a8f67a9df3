"""The gateway's Ethernet port is an AF_XDP socket on a veth pair."""

import os

import pytest
from testbed import ethport
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import ping, send_file

pytestmark = [pytest.mark.netns, pytest.mark.core]

FILE_BYTES = 8 << 20


class XdpTopology(Topology):
    """A system call that is on no thread's list kills the gateway."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.use(ethport.AF_XDP)

    def gateway_config(self):
        return super().gateway_config().replace("[gateway]\n", '[gateway]\nseccomp = "kill"\n', 1)


def test_traffic_both_ways(start, figures):
    """Pings, packets of several fragments and files.

    The socket wakes a sleeping worker, and after the stop only the driver has buffers.
    """
    if why := ethport.missing(ethport.AF_XDP):
        assert not os.environ.get("CI"), why
        pytest.skip(why)
    topology = start(XdpTopology)
    assert topology.ctl("links")["ethernet"]["woken_by"] == "socket"
    paths = ((topology.eth, topology.ib, IB_IP), (topology.ib, topology.eth, ETH_IP))
    for source, _, target in paths:
        for size in (56, 1472):
            result = ping(source, target, size)
            assert result["ok"], result
        assert ping(source, target, 8000, count=1, wait=60, more=("-M", "dont"))["ok"], "a packet of several fragments"
    for source, destination, target in paths:
        result = send_file(topology, source, destination, target, FILE_BYTES)
        assert result["ok"], result
    figures(buffers_in_driver=topology.stop_gateway())
