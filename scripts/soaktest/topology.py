"""The topology of `scripts/soak chaos`.

Hosts around one gateway can fail. The subnet manager of the fabric can be reconfigured or replaced.

      ETH ──┐                                   ┌── IB
    guest ──┼─ bridge ── gateway ── fabric (SM) ┼── host of the partition `storage`
 VLAN 100 ──┘                                   └── annex ── guest       (annex: an ibfab without a subnet manager)
"""

import signal
import sys

from soaktest.common import ETH, GW, IB, TAG, Soak
from testbed import tagger
from testbed.programs import TestbedError, run
from testbed.reloads import segment
from testbed.segments import SEGMENTS
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX

BRIDGE, ETH_GUEST, IB_GUEST = f"{TAG}-bridge", f"{TAG}-guest", f"{TAG}-ibguest"
ETH_GUEST_IP, IB_GUEST_IP = "10.77.0.3", "10.77.0.4"
OFFICE, STORAGE = (segment.name for segment in SEGMENTS[:2])
VLAN, PKEY = SEGMENTS[1].vlan, SEGMENTS[1].pkey
STORAGE_ETH, STORAGE_IB = (f"{netns}{SEGMENTS[1].suffix}" for netns in (ETH, IB))
# Q_Key of the broadcast group under the first subnet manager.
QKEY = 0x0B1B


def host(name, netns, pkey):
    """Returns an InfiniBand host of a partition for the configuration of the fabric."""
    return f"""
[[host]]
name = "{name}"
netns = "{netns}"
tun = "ib0"
pkey = {pkey:#x}
address = "{IB_IP}/{PREFIX}"
mtu = 65520
mode = "connected"
"""


class ChaosTopology(Soak):
    """The state of the gateway and of the fabric, and the configurations for it."""

    # The link to the annex.
    intruder = True

    def __init__(self, args):
        super().__init__(args)
        self.annex = None
        # State of the gateway: second segment, route and subnet behind hosts, MTU of the first segment,
        # keys of [infiniband].
        self.has_storage, self.has_route, self.mtu, self.keys = True, False, 1500, {}
        # State of the fabric: the order of its ports, and the settings that its subnet manager distributes.
        self.turned, self.member, self.prefix, self.qkey, self.group_mtu = False, True, "fe80::", QKEY, 4096
        self.guest_ip = IB_GUEST_IP

    # -- setup

    def namespaces_up(self):
        for name in (ETH, GW, IB, BRIDGE, ETH_GUEST, IB_GUEST, STORAGE_ETH, STORAGE_IB):
            self.namespace(name)
        run("ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=BRIDGE)
        run("ip", "link", "set", "br0", "up", netns=BRIDGE)
        for netns, dev, end in ((ETH, "eth0", "to-host"), (GW, "gw0", "to-gateway"), (ETH_GUEST, "eth0", "to-guest")):
            self.cable(netns, dev, BRIDGE, end)
            run("ip", "link", "set", end, "master", "br0", netns=BRIDGE)
        for netns, ip in ((ETH, ETH_IP), (ETH_GUEST, ETH_GUEST_IP)):
            run("ip", "addr", "add", f"{ip}/{PREFIX}", "dev", "eth0", netns=netns)
        arguments = ("eth0", VLAN, STORAGE_ETH, f"{ETH_IP}/{PREFIX}")
        process = self.background("tagger", [sys.executable, tagger.__file__, *arguments], ETH)
        self.wait_for("the host of the VLAN", lambda: "ready" in process.text())

    def start_fabric(self):
        (self.dir / "fabric.toml").write_text(self.fabric_config())
        super().start_fabric()

    def start_annex(self):
        near, far = ("%s:%d" % a for a in (self.near, self.far))
        (self.dir / "annex.toml").write_text(f"""\
[fabric]
mtu = {self.fabric_mtu}
name = "annex"

[[link]]
name = "fabric"
url = "udp:{far}-{near}"

[[host]]
name = "guest"
netns = "{IB_GUEST}"
tun = "ib0"
address = "{self.guest_ip}/{PREFIX}"
mtu = 65520
mode = "connected"
""")
        self.annex = self.background("annex", [self.bin / "ibfab", "--config", self.dir / "annex.toml", "--sm", "none"])

    def up(self):
        self.start()
        self.start_annex()
        self.wait_for("both segments", self.at_work)

    # -- configuration of the gateway

    def base(self):
        keys = "".join(f"{key} = {value}\n" for key, value in self.keys.items())
        return super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "").replace(
            "[infiniband]\n", f"[infiniband]\n{keys}", 1)

    def gateway_config(self):
        more = f"mtu = {self.mtu}\n"
        if self.has_route:
            more += f'subnets = ["10.79.0.0/24"]\n[[segment.route]]\nto = "10.99.0.0/24"\nvia = "{IB_IP}"\n'
        return self.base() + segment(OFFICE, more=more) + (segment(STORAGE) if self.has_storage else "")

    def reload(self):
        """Writes the configuration, and reloads the gateway."""
        (self.dir / "gateway.toml").write_text(self.gateway_config())
        return self.ctl("reload")

    def at_work(self):
        """Returns true if exactly the configured segments are up and forward."""
        try:
            rows = {row["segment"]: row for row in self.ctl("links")["segments"]}
        except TestbedError:
            return False
        wanted = {OFFICE, STORAGE} if self.has_storage else {OFFICE}
        return set(rows) == wanted and all(r["link"] == "up" and r.get("role") == "forwarding" for r in rows.values())

    # -- configuration of the fabric

    def fabric_config(self):
        near, far = ("%s:%d" % a for a in (self.near, self.far))
        hosts = host(OFFICE, IB, 0xFFFF) + host(STORAGE, STORAGE_IB, PKEY)
        links = {"gateway": f"shm:{self.link}", "annex": f"udp:{near}-{far}"}
        names = sorted(links, reverse=not self.turned)
        members = '"all"' if self.member else '"all", "gateway=limited"'
        return (f'[fabric]\nmtu = {self.fabric_mtu}\nprefix = "{self.prefix}"\n'
                + "".join(f'\n[[link]]\nname = "{name}"\nurl = "{links[name]}"\ntrunk = {str(name == "annex").lower()}\n'
                          for name in names) + hosts
                + f'\n[[partition]]\nname = "{OFFICE}"\npkey = 0xffff\nqkey = {self.qkey}\nmtu = {self.group_mtu}\nmembers = [{members}]\n'
                + f'\n[[partition]]\nname = "{STORAGE}"\npkey = {PKEY:#x}\nmembers = ["gateway", "{STORAGE}"]\n')

    def manage(self):
        """Writes the configuration of the fabric, and makes the subnet manager read it."""
        (self.dir / "fabric.toml").write_text(self.fabric_config())
        self.fabric.popen.send_signal(signal.SIGHUP)
