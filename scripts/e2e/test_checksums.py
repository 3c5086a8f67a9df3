"""An Ethernet host leaves TCP and UDP checksums to its interface: the gateway samples, and names the host and
the remedy."""

import socket

import pytest
from testbed.follower import Follower
from testbed.programs import run
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# Any port: the InfiniBand host drops the datagrams before it looks for a listener.
PORT = 7000


def send_until(gateway, what, ready):
    """Sends datagrams from the Ethernet host until `ready` returns something true, and returns that."""
    with socket_in(gateway.eth, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        def sent():
            sender.sendto(b"hello", (IB_IP, PORT))
            return ready()

        return gateway.wait_for(what, sent)


@pytest.mark.core
def test_offload_left_on(gateway):
    """With TX checksum offload at the end of a veth ping works; an event, the log, `links` and a metric
    report that TCP and UDP fail."""
    port = gateway.ctl("links")["ethernet"]
    assert (port["partial_checksums"], port["warning"]) == (0, None)
    run("ethtool", "-K", "eth0", "tx", "on", netns=gateway.eth)
    with Follower(gateway, "alarm", "--json") as alarms:
        send_until(gateway, "a partial checksum", lambda: gateway.ctl("links")["ethernet"]["partial_checksums"])
        alarms.wait_event("alarm", "checksum-offload")
        [event] = [e for e in alarms.events() if e["what"] == "checksum-offload"]
    assert (event["address"], event["port"]) == (ETH_IP, port["port"])
    assert "ethtool -K" in gateway.gateway.text()
    assert ETH_IP in gateway.ctl("links")["ethernet"]["warning"]
    assert f'ipoib_fwd_ethernet_port_partial_checksums_total{{port="{port["port"]}"}}' in gateway.ctl_text("metrics").stdout
    assert ping(gateway.eth, IB_IP, 56, count=1)["ok"]
