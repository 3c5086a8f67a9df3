"""Two segments of one gateway whose networks are joined by mistake: by a kernel bridge on Ethernet, and by one partition on InfiniBand.

    eth0 ── bridge ──┬── gw0 ─ one ─ soft0/1 ──┬── fabric ── ib0
                     └── gw1 ─ two ─ soft0/2 ──┘
"""

import time

from checks.laboratory import Laboratory, in_laboratory, stopped
from checks.pair import sides
from stage.lab import ETH, ETH_IP, GW, IB, IB_IP, PREFIX
from stage.programs import Failed, run
from stage.traffic import ping

BRIDGE = "gwdemo-bridge"
SENT = 40


class Bridged(Laboratory):
    """Segments of different subnets: strangers to each other."""

    vdev, vdevs = "net_af_packet0,iface=gw0", ("net_af_packet1,iface=gw1",)
    addresses = ("10.77.0.254", "10.78.0.254")
    # The role of who does not forward.
    other = "blocked"

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def namespaces_up(self):
        for name in (ETH, GW, IB, BRIDGE):
            self.namespace(name)
        run("ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=BRIDGE)
        run("ip", "link", "set", "br0", "up", netns=BRIDGE)
        for netns, dev in ((ETH, "eth0"), (GW, "gw0"), (GW, "gw1")):
            self.cable(netns, dev, BRIDGE, f"to-{dev}")
            run("ip", "link", "set", f"to-{dev}", "master", "br0", netns=BRIDGE)
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=ETH)

    def fabric_config(self):
        links = "".join(f'\n[[link]]\nname = "port{n}"\nurl = "shm:{self.dir}/{n}.sock"\n' for n in (1, 2))
        return (f'[fabric]\nmtu = 4096\n{links}\n[[host]]\nname = "host1"\nnetns = "{IB}"\ntun = "ib0"\n'
                f'address = "{IB_IP}/{PREFIX}"\nmtu = 65520\nmode = "connected"\n')

    def gateway_config(self):
        cables = ", ".join(f'{{ link = "shm:{self.dir}/{n}.sock", mtu = 4096 }}' for n in (1, 2))
        segments = "".join(f'\n[[segment]]\nname = "{name}"\nethernet = "net_af_packet{n}"\nport = {n + 1}\n'
                           f'address = "{self.addresses[n]}/{PREFIX}"\n' for n, name in enumerate(("one", "two")))
        return (f'[gateway]\ncontrol-socket = "{self.dir}/control.sock"\nidle = "sleep"\n\n[infiniband]\ndriver = "soft"\n'
                f'max-connections = 64\nsrq-depth = 256\n\n[infiniband.soft]\nports = [{cables}]\n{segments}')

    def roles(self):
        try:
            return tuple(row["role"] for row in self.ctl("links")["segments"])
        except Failed:
            return ()

    def up(self):
        self.start()
        self.wait_for("one segment that forwards, and what the other one is to be",
                      lambda: sorted(self.roles()) == sorted(("forwarding", self.other)), 30)
        # An election, and more.
        time.sleep(2)


class OneSubnet(Bridged):
    """Segments that take each other for two gateways of one segment."""

    addresses = ("10.77.0.254", "10.77.0.253")
    other = "standby"


def counted(lab):
    """Broadcasts, each with a number, sent on both sides: how often they arrived on the other one, and how many came back."""
    eth, ib = sides()
    try:
        for number in range(SENT):
            eth.send(2 * number)
            ib.send(2 * number + 1)
            time.sleep(0.05)
        on_eth, on_ib = eth.count(1, range(1, 2 * SENT, 2)), ib.count(0.5, range(0, 2 * SENT, 2))
    finally:
        eth.close()
        ib.close()
    arrived = {"on_ib": [on_ib.get(2 * n, 0) for n in range(SENT)], "on_eth": [on_eth.get(2 * n + 1, 0) for n in range(SENT)]}
    back = sum(on_eth.get(2 * n, 0) + on_ib.get(2 * n + 1, 0) for n in range(SENT))
    ok = all(times == [1] * SENT for times in arrived.values()) and not back
    return {"ok": ok, **{name: sum(times) for name, times in arrived.items()}, "came_back": back, "sent_each_way": SENT}


def through():
    return ping(ETH, IB_IP, 56, count=1, wait=3)["ok"] and ping(IB, ETH_IP, 56, count=1, wait=3)["ok"]


def check_strangers(lab):
    """One of them forwards, the other is blocked with an alarm; each broadcast passes once."""
    roles, result = lab.roles(), counted(lab)
    log = lab.gateway.text()
    alarm = "two: it meets another segment of this gateway on both sides" in log and "two: role: forwarding" not in log
    loops = lab.ctl("stats")["alarms"]["loops"]
    ok = result["ok"] and roles == ("forwarding", "blocked") and alarm and loops > 0 and through()
    return {**result, "ok": ok, "roles": roles, "alarm": alarm, "loops": loops}


def check_apart(lab):
    """The bridge lets go of one port: both forward again, though they are still together on InfiniBand, which is told."""
    run("ip", "link", "set", "to-gw1", "nomaster", netns=BRIDGE)
    begin = time.monotonic()
    lab.wait_for("both to forward", lambda: lab.roles() == ("forwarding", "forwarding"), 40)
    seconds = round(time.monotonic() - begin, 1)
    told = "of this gateway is on the same network on" in lab.gateway.text()
    result = counted(lab)
    return {**result, "ok": result["ok"] and told and through(), "again_after": seconds, "told": told}


def check_one_subnet(lab):
    """They elect one; each broadcast passes once, and it is told that they meet."""
    roles, result = lab.roles(), counted(lab)
    told = "of this gateway is on the same network on Ethernet" in lab.gateway.text()
    ok = result["ok"] and sorted(roles) == ["forwarding", "standby"] and told and through()
    return {**result, "ok": ok, "roles": roles, "told": told}


def bridged(args, checks):
    in_laboratory(Bridged, args, checks, (
        ("ports_bridged_strangers", check_strangers),
        ("ports_bridged_apart", check_apart),
        ("ports_bridged_stop_no_leak", stopped),
    ))
    in_laboratory(OneSubnet, args, checks, (
        ("ports_bridged_one_subnet", check_one_subnet),
    ))
