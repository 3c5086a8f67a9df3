"""The gateway's Ethernet port is an AF_XDP socket on a veth pair."""

from checks.laboratory import Laboratory, in_laboratory, stopped
from demo import ETH, ETH_IP, IB, IB_IP, check_file, check_fragments, ping

SIZE = 8 << 20
# Of the driver's.
FILL_QUEUE = 2048


class XdpLaboratory(Laboratory):
    """Buffers are at most a page with their headers, and so datagrams of the fabric are shorter. A system call that is on no thread's list
    ends the gateway."""

    vdev = "net_af_xdp0,iface=gw0"
    data_room = 2048

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def fabric_config(self):
        return super().fabric_config().replace("mtu = 4096", "mtu = 2048", 1)

    def gateway_config(self):
        text = super().gateway_config().replace('gw.sock", mtu = 4096', 'gw.sock", mtu = 2048')
        return text.replace("[gateway]\n", '[gateway]\nseccomp = "kill"\n', 1)


def check_both_ways(lab):
    """Pings, packets of several fragments and files both ways; a worker that sleeps is woken by the socket."""
    links = lab.ctl("links")["ethernet"]
    pings = [ping(netns, target, size)["ok"] for netns, target in ((ETH, IB_IP), (IB, ETH_IP)) for size in (56, 1472)]
    fragments = check_fragments(lab)
    files = [check_file(lab, *way, SIZE) for way in ((ETH, IB, IB_IP), (IB, ETH, ETH_IP))]
    ok = all(pings) and fragments["ok"] and all(file["ok"] for file in files) and links["woken_by"] == "socket"
    return {"ok": ok, "pings": pings, "fragments": fragments, "files": files, "woken_by": links["woken_by"]}


def check_stop(lab):
    """The gateway ends when it is asked to. The driver of DPDK 22.11 never gives the buffers in its fill queue back: no others are away."""
    result = stopped(lab)
    return {**result, "ok": result["exit_code"] == 0 and result["buffers_outstanding"] <= FILL_QUEUE + 1}


def xdp(args, checks):
    in_laboratory(XdpLaboratory, args, checks, (("ports_xdp_both_ways", check_both_ways), ("ports_xdp_stop", check_stop)))
