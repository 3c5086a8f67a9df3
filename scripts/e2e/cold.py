"""The very first packet: laboratories in which nothing has been sent before, and hosts that were silent for long. One packet,
no second attempt."""

import socket
import time

from checks.laboratory import Laboratory, grown, socket_in
from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.programs import Failed, run
from stage.traffic import check_fragments, ping

# A neighbour that nobody uses is forgotten after this long.
IDLE_SECONDS = 2
PORT = 7007


class ColdLaboratory(Laboratory):
    """Comes up without a packet between the hosts."""

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def lcores(self):
        # The other of EAL's words for the same two.
        return ["-c", "0x3"]

    def gateway_config(self):
        return super().gateway_config().replace("[infiniband]\n", f"[infiniband]\nneighbour-idle-seconds = {IDLE_SECONDS}\n", 1)

    def up(self):
        self.start()
        self.wait_for("the gateway's links", self.ctl_up, 20)
        self.hosts_up()

    def ctl_up(self):
        try:
            links = self.ctl("links")
        except Failed:
            return False
        up = links["infiniband"].get("link") == "up" and links["ethernet"]["link"] == "up"
        # It listens for other gateways before it forwards.
        return up and links["gateway"]["role"] == "forwarding"

    def forgotten(self):
        """True if the gateway knows no InfiniBand host."""
        return not self.ctl("neighbours")["infiniband"]


class SmallDatagrams(ColdLaboratory):
    """A fabric whose datagrams are shorter than Ethernet's frames."""

    def fabric_config(self):
        return super().fabric_config().replace("mtu = 4096", "mtu = 1024")

    def gateway_config(self):
        return super().gateway_config().replace("mtu = 4096", "mtu = 1024")


class LongBuffers(ColdLaboratory):
    """Buffers, and with them frames of the Ethernet port, for what the kernel joins from fragments."""

    data_room = 16384


def with_laboratory(args, body, make=ColdLaboratory):
    lab = make(args)
    try:
        lab.up()
        for netns in (ETH, IB):
            run("ip", "neigh", "flush", "all", netns=netns)
        result = body(lab)
        if not result["ok"]:
            result["drops"] = {k: v for k, v in lab.ctl("stats")["drops"].items() if v}
            result["log"] = lab.gateway.text()[-1500:]
        return result
    finally:
        lab.close()


def one(netns, target):
    return ping(netns, target, 56, count=1, wait=3)


def static_way(lab):
    """The Ethernet host knows the way and asks nobody: its first packet meets a gateway that knows nobody."""
    mac = lab.ctl("links")["ethernet"]["mac"]
    run("ip", "neigh", "replace", IB_IP, "lladdr", mac, "dev", "eth0", "nud", "permanent", netns=ETH)


def idle(lab):
    static_way(lab)
    before = one(ETH, IB_IP)
    lab.wait_for("the gateway to forget the InfiniBand host", lab.forgotten, 90)
    after = one(ETH, IB_IP)
    return {"ok": before["ok"] and after["ok"], "cold": before, "after_silence": after}


def by_connection_only(lab):
    """A packet that fits no datagram waits for the connection, and is not answered "too big" meanwhile."""
    results = {}
    for way, netns, target in (("to_infiniband", ETH, IB_IP), ("to_ethernet", IB, ETH_IP)):
        out = run("ping", "-n", "-c", 1, "-W", 3, "-M", "do", "-s", 1400, target, netns=netns, check=False).stdout
        results[way] = "1 received" in out
        results["too_big"] = results.get("too_big", False) or "needed" in out
    sent = lab.ctl("stats")["traffic"]["ib_ud_unicast_transmit"]["packets"]
    return {"ok": results == {"to_infiniband": True, "to_ethernet": True, "too_big": False} and sent == 0, **results, "by_datagram": sent}


def group_larger_than_a_datagram(lab):
    """A packet to all that fits no datagram is cut, or dropped and counted if it must not be."""
    came, dropped = {}, {}
    for name, discover in (("may_be_cut", 0), ("must_not_be_cut", 2)):
        before = lab.ctl("stats")["drops"]
        with socket_in(IB, socket.AF_INET, socket.SOCK_DGRAM) as receiver, \
                socket_in(ETH, socket.AF_INET, socket.SOCK_DGRAM) as sender:
            receiver.bind(("0.0.0.0", PORT))
            receiver.settimeout(10 if discover == 0 else 1)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            # IP_MTU_DISCOVER: whether the packet says "don't fragment".
            sender.setsockopt(socket.IPPROTO_IP, 10, discover)
            sender.sendto(bytes(range(200)) * 7, ("10.77.0.255", PORT))
            try:
                came[name] = receiver.recv(2000) == bytes(range(200)) * 7
            except TimeoutError:
                came[name] = False
        dropped[name], end = {}, time.monotonic() + 10
        while discover and not dropped[name] and time.monotonic() < end:
            time.sleep(0.1)
            dropped[name] = grown(lab.ctl("stats")["drops"], before)
        dropped[name] = grown(lab.ctl("stats")["drops"], before)
    ok = came == {"may_be_cut": True, "must_not_be_cut": False} and dropped == {"may_be_cut": {}, "must_not_be_cut": {"too-big": 1}}
    return {"ok": ok, "came": came, "dropped": dropped}


def datagram(lab):
    static_way(lab)
    with socket_in(IB, socket.AF_INET, socket.SOCK_DGRAM) as receiver, \
            socket_in(ETH, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind((IB_IP, PORT))
        receiver.settimeout(10)
        begin = time.monotonic()
        sender.sendto(b"the only one", (IB_IP, PORT))
        try:
            got = receiver.recv(100)
        except TimeoutError:
            got = b""
    return {"ok": got == b"the only one", "ms": round((time.monotonic() - begin) * 1e3, 1)}


def cold(args, checks):
    for name, body, make in (
        ("cold_ping_eth_to_ib", lambda lab: one(ETH, IB_IP), ColdLaboratory),
        ("cold_ping_ib_to_eth", lambda lab: one(IB, ETH_IP), ColdLaboratory),
        ("cold_ping_after_silence", idle, ColdLaboratory),
        ("cold_datagram", datagram, ColdLaboratory),
        ("cold_larger_than_a_datagram", by_connection_only, SmallDatagrams),
        ("cold_fragments", check_fragments, LongBuffers),
        ("cold_group_larger_than_a_datagram", group_larger_than_a_datagram, SmallDatagrams),
    ):
        checks.run(name, lambda body=body, make=make: with_laboratory(args, body, make))
