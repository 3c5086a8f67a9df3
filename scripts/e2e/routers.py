"""Hosts beyond a router of either side: the gateway's routes, with real routers at both ends."""

import re

from checks.laboratory import Laboratory, grown, in_laboratory, stopped
from stage.lab import ETH, ETH_IP, GW_IP, IB, IB_IP, PREFIX
from stage.programs import run
from stage.traffic import ping

# A host behind the Ethernet host, which routes for it, and one behind the InfiniBand host.
FAR_ETH, FAR_IB = "gwdemo-eth2", "gwdemo-ib2"
ETH_NET, FAR_ETH_IP, ETH_ROUTER = "10.88.0.0/24", "10.88.0.2", "10.88.0.1"
IB_NET, FAR_IB_IP, IB_ROUTER = "10.99.0.0/24", "10.99.0.2", "10.99.0.1"


class Routers(Laboratory):
    """The laboratory with a network behind each host. Nobody knows anybody when it is up."""

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def fabric_config(self):
        # The host's interface is a TUN device: its next hop is the fabric's to know.
        return super().fabric_config() + f'gateway = "{ETH_IP}"\n'

    def gateway_config(self):
        text = super().gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "")
        return text + f"""
[[segment]]
address = "{GW_IP}/{PREFIX}"
[[segment.route]]
to = "{ETH_NET}"
via = "{ETH_IP}"
[[segment.route]]
to = "{IB_NET}"
via = "{IB_IP}"
"""

    def namespaces_up(self):
        super().namespaces_up()
        for far in (FAR_ETH, FAR_IB):
            self.namespace(far)
        for near, far, router, host in ((ETH, FAR_ETH, ETH_ROUTER, FAR_ETH_IP), (IB, FAR_IB, IB_ROUTER, FAR_IB_IP)):
            run("sysctl", "-qw", "net.ipv4.ip_forward=1", netns=near)
            run("ip", "link", "add", "far0", "netns", near, "type", "veth", "peer", "name", "near0", "netns", far)
            run("ip", "addr", "add", f"{router}/24", "dev", "far0", netns=near)
            run("ip", "link", "set", "far0", "up", netns=near)
            run("ip", "addr", "add", f"{host}/24", "dev", "near0", netns=far)
            run("ip", "link", "set", "near0", "up", netns=far)
            run("ip", "route", "add", "default", "via", router, netns=far)

    def up(self):
        self.start()
        self.wait_for("the InfiniBand link", self.link_up, 20)
        self.hosts_up()
        run("ip", "route", "add", IB_NET, "via", IB_IP, netns=ETH)
        run("ip", "route", "add", ETH_NET, "via", ETH_IP, netns=IB)


def check_path_mtu(source, target, mtu):
    """A packet that is too big is answered to its source behind the router."""
    run("ip", "route", "flush", "cache", netns=source)
    out = run("ping", "-n", "-c", 3, "-i", "0.3", "-W", 1, "-M", "do", "-s", 3000, target, netns=source, check=False)
    told = re.search(r"mtu ?=? ?(\d+)", out.stdout + out.stderr)
    return {"ok": bool(told and told[1] == str(mtu)), "told": told[0] if told else (out.stdout + out.stderr)[-300:]}


def check_nowhere(lab):
    """What no route leads to is dropped, and counted as that."""
    before = lab.ctl("stats")["drops"]
    run("ip", "route", "add", "10.111.0.0/24", "via", IB_IP, netns=ETH)
    lost = not ping(ETH, "10.111.0.9", 56, count=1, wait=1)["ok"]
    more = grown(lab.ctl("stats")["drops"], before)
    return {"ok": lost and more.get("off-subnet", 0) >= 1, "dropped": more}


def routers(args, checks):
    in_laboratory(Routers, args, checks, (
        # The very first packets, without another try: neither router is known to the gateway.
        ("route_first_packet_to_infiniband", lambda _: ping(FAR_ETH, FAR_IB_IP, 56, count=1, wait=3)),
        ("route_first_packet_to_ethernet", lambda _: ping(FAR_IB, FAR_ETH_IP, 56, count=1, wait=3)),
        ("route_to_infiniband", lambda _: ping(FAR_ETH, FAR_IB_IP, 1400)),
        ("route_to_ethernet", lambda _: ping(FAR_IB, FAR_ETH_IP, 1400)),
        ("route_too_big_told", lambda _: check_path_mtu(IB, FAR_ETH_IP, 1500)),
        ("route_nowhere", check_nowhere),
        ("route_stop_no_leak", stopped),
    ))
