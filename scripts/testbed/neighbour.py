"""InfiniBand hosts of a test's own, on the second link of the fabric (`Topology.intruder`), which say what they are made to say."""

import socket
import struct

from testbed import ibwire
from testbed.ibhosts import ARP, IPV4, QKEY, Hosts
from testbed.programs import DEADLINE, TestbedError

QPN = 5
HOSTS_GUID = 0x02_00_00_00_00_00_BA_E0


def gateway_address(topology):
    """The gateway's LID, and its link-layer address of 20 bytes."""
    links = topology.ctl("links")["infiniband"]
    return links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))


class Neighbour(ibwire.Intruder):
    """An InfiniBand host that sends ARP requests when it is made to, and answers none. A context manager."""

    def __init__(self, topology):
        super().__init__(topology.far, topology.near)
        self.gateway, self.address = gateway_address(topology)

    def __enter__(self):
        self.start()
        if not self.wait_active(DEADLINE):
            self.close()
            raise TestbedError(f"the neighbour's port is in state {self.state} after {DEADLINE} s")
        return self

    def __exit__(self, *_):
        self.close()

    def own(self):
        """Its link-layer address."""
        return struct.pack(">IQQ", QPN, 0xFE80 << 48, self.guid + 1)

    def request(self, sender, target):
        """An ARP request for `target` from `sender`, to the gateway alone."""
        body = struct.pack(">HHBBH", 32, IPV4, 20, 4, 1) + self.own() + socket.inet_aton(sender) + bytes(20)
        message = struct.pack(">HH", ARP, 0) + body + socket.inet_aton(target)
        qpn = int.from_bytes(self.address[1:4], "big")
        self.send(ibwire.ud(self.gateway, self.lid, qpn, QPN, QKEY, message))


class FabricHosts(Hosts):
    """`Hosts` that have joined the broadcast group. A context manager."""

    def __init__(self, topology, addresses, manners="take"):
        super().__init__(topology.far, topology.near, HOSTS_GUID, addresses, gateway_address(topology), manners)

    def __enter__(self):
        self.start()
        if not self.wait_active(DEADLINE) or not self.join_group(DEADLINE):
            self.close()
            raise TestbedError(f"the hosts' port is in state {self.state}, the LID of the broadcast group is {self.broadcast_lid}")
        return self

    def __exit__(self, *_):
        self.close()
