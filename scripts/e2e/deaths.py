"""Peers that die, and what comes back."""

import signal
import time

from checks.laboratory import back_within
from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.traffic import ping


# As long as anything that was killed may be away.
WITHIN = 20


def recovered(lab, seconds=WITHIN):
    first, second = back_within(seconds, ETH, IB_IP), None
    if first is not None:
        second = back_within(seconds, IB, ETH_IP)
    both = None
    if second is not None:
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            ping(ETH, IB_IP, 56, count=2, wait=1)
            ping(IB, ETH_IP, 56, count=2, wait=1)
            if lab.ctl("connections").get("established_both_ways"):
                both = round(time.monotonic() - begin, 2)
                break
    after = ping(ETH, IB_IP, 56)
    ok = None not in (first, second, both) and first + second <= seconds and after["ok"]
    return {"ok": ok, "eth_to_ib_after": first, "ib_to_eth_after": second, "connected_after": both, "within": seconds,
            "ping": after["received"]}


def check_fabric_killed(lab):
    lab.lose(lab.fabric)
    time.sleep(1)
    lab.alive()
    lab.start_fabric()
    return recovered(lab)


def check_fabric_stopped(lab):
    lab.fabric.popen.send_signal(signal.SIGSTOP)
    try:
        time.sleep(3)
    finally:
        lab.fabric.popen.send_signal(signal.SIGCONT)
    return recovered(lab)


def check_gateway_killed(lab):
    lab.lose(lab.gateway)
    time.sleep(0.5)
    lab.start_gateway()
    begin = time.monotonic()
    back = back_within(WITHIN, IB, ETH_IP)
    rest = recovered(lab)
    return {**rest, "ok": rest["ok"] and back is not None and back <= WITHIN, "ib_host_after": back,
            "seconds": round(time.monotonic() - begin, 2)}
