"""What hosts of both sides send each other."""

import pytest
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import ping

pytestmark = [pytest.mark.netns, pytest.mark.core]


def test_ping_to_infiniband(gateway):
    assert ping(gateway.eth, IB_IP, 56)["ok"]
    assert ping(gateway.eth, IB_IP, 1472)["ok"]


def test_ping_to_ethernet(gateway):
    assert ping(gateway.ib, ETH_IP, 56)["ok"]
    assert ping(gateway.ib, ETH_IP, 1472)["ok"]
