"""The gateway's Ethernet port is an AF_XDP socket on a veth pair."""

import ethport
from checks.laboratory import Laboratory, in_laboratory, stopped
from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.traffic import check_file, check_fragments, ping

SIZE = 8 << 20


class XdpLaboratory(Laboratory):
    """As the demo has it with such a port. A system call that is on no thread's list ends the gateway."""

    def __init__(self, args):
        super().__init__(args, intruder=False)
        self.use(ethport.AF_XDP)

    def gateway_config(self):
        return super().gateway_config().replace("[gateway]\n", '[gateway]\nseccomp = "kill"\n', 1)


def check_both_ways(lab):
    """Pings, packets of several fragments and files both ways; a worker that sleeps is woken by the socket."""
    links = lab.ctl("links")["ethernet"]
    pings = [ping(netns, target, size)["ok"] for netns, target in ((ETH, IB_IP), (IB, ETH_IP)) for size in (56, 1472)]
    fragments = check_fragments(lab)
    files = [check_file(lab, *way, SIZE) for way in ((ETH, IB, IB_IP), (IB, ETH, ETH_IP))]
    ok = all(pings) and fragments["ok"] and all(file["ok"] for file in files) and links["woken_by"] == "socket"
    return {"ok": ok, "pings": pings, "fragments": fragments, "files": files, "woken_by": links["woken_by"]}


def check_stop(lab):
    """The gateway ends when it is asked to. No others are away than those that its port's driver keeps."""
    result = stopped(lab)
    return {**result, "ok": result["exit_code"] == 0 and result["buffers_outstanding"] <= lab.kind.keeps}


def xdp(args, checks):
    in_laboratory(XdpLaboratory, args, checks, (("ports_xdp_both_ways", check_both_ways), ("ports_xdp_stop", check_stop)))
