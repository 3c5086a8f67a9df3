"""InfiniBand hosts of a test's own, on the second link of the fabric (`Topology.intruder`)."""

from testbed.ibhosts import Hosts
from testbed.programs import DEADLINE, TestbedError

GUID = 0x02_00_00_00_00_00_BA_E0


def gateway_address(topology):
    """The gateway's LID, and its link-layer address of 20 bytes."""
    links = topology.ctl("links")["infiniband"]
    return links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))


class FabricHosts(Hosts):
    """`Hosts` that have joined the broadcast group. A context manager.

    `ask` sends a request from an address, or a claim of it; hosts in `mute` answer none, from the start.
    """

    def __init__(self, topology, addresses, manners="take", mute=()):
        super().__init__(topology.far, topology.near, GUID, addresses, gateway_address(topology), manners)
        self.mute.update(mute)

    def __enter__(self):
        self.start()
        if not self.wait_active(DEADLINE) or not self.join_group(DEADLINE):
            self.close()
            raise TestbedError(f"the hosts' port is in state {self.state}, the LID of the broadcast group is {self.broadcast_lid}")
        return self

    def __exit__(self, *_):
        self.close()
