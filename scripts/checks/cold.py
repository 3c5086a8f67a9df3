"""The very first packet: laboratories in which nothing has been sent before, and hosts that were silent for long. One packet,
no second attempt."""

import socket
import time

from checks.laboratory import Laboratory, socket_in
from demo import ETH, ETH_IP, IB, IB_IP, Failed, ping, run

# A neighbour that nobody uses is forgotten after this long.
IDLE_SECONDS = 2
PORT = 7007


class ColdLaboratory(Laboratory):
    """Comes up without a packet between the hosts."""

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def gateway_config(self):
        return super().gateway_config().replace("[infiniband]\n", f"[infiniband]\nneighbour-idle-seconds = {IDLE_SECONDS}\n", 1)

    def up(self):
        self.start()
        self.wait_for("the gateway's links", self.ctl_up, 20)
        self.wait_for("the InfiniBand host's link", lambda: "link up" in self.fabric.text(), 10)

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


def with_laboratory(args, body):
    lab = ColdLaboratory(args)
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


def datagram(lab):
    static_way(lab)
    with socket_in(IB, socket.AF_INET, socket.SOCK_DGRAM) as receiver, \
            socket_in(ETH, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        receiver.bind((IB_IP, PORT))
        receiver.settimeout(3)
        begin = time.monotonic()
        sender.sendto(b"the only one", (IB_IP, PORT))
        try:
            got = receiver.recv(100)
        except TimeoutError:
            got = b""
    return {"ok": got == b"the only one", "ms": round((time.monotonic() - begin) * 1e3, 1)}


def cold(args, checks):
    for name, body in (
        ("cold_ping_eth_to_ib", lambda lab: one(ETH, IB_IP)),
        ("cold_ping_ib_to_eth", lambda lab: one(IB, ETH_IP)),
        ("cold_ping_after_silence", idle),
        ("cold_datagram", datagram),
    ):
        checks.run(name, lambda body=body: with_laboratory(args, body))
