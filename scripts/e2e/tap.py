"""The gateway's Ethernet port is one that wakes by receive interrupts, and the gateway leaves the processor to others: net_tap with
idle = "sleep", with one worker and with two.

    eth0 ─ w0 ─ wire ─ dtap0 ─ net_tap0 ─ gateway
"""

import sys
import time
from pathlib import Path

from checks.cold import ColdLaboratory, one
from checks.laboratory import in_laboratory, stopped
from stage.lab import ETH, ETH_IP, GW, IB, IB_IP, PREFIX, gateway_pid
from stage.programs import Process, cpu_seconds, run
from stage.traffic import ping

# Who rests takes a few hundredths on any processor of today; one that spins takes all that it is given.
MOST_OF_A_CORE = 0.33
# A rest ends after 2 ms at most: some 1,500 in this time. Who is woken by what does not go away has none.
SECONDS, RESTS = 3, 50


class Tap(ColdLaboratory):
    vdev = "net_tap0,iface=dtap0"

    def namespaces_up(self):
        for name in (ETH, GW, IB):
            self.namespace(name)
        self.cable(ETH, "eth0", GW, "w0")
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=ETH)

    def lcores(self):
        return super().lcores() if self.workers == 1 else super(ColdLaboratory, self).lcores()

    def up(self):
        super().up()
        wire = Process("wire", [sys.executable, Path(__file__).parent / "wire.py", "w0", "dtap0"], GW, self.dir / "wire.log")
        self.processes.append(wire)
        self.wait_for("a wire", lambda: "ready" in wire.text(), 30)


class TapOfTwoWorkers(Tap):
    workers = 2


def check_woken_by(lab):
    """The port is told of as one that wakes."""
    told = lab.ctl("links")["ethernet"]["woken_by"]
    return {"ok": told == "rx-interrupt" and "net_tap0 (wakes by rx-interrupt)" in lab.gateway.text(), "woken_by": told}


def rests(pid):
    """How often each worker's thread has waited so far."""
    counts = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        if "worker" in status["Name"]:
            counts[task.name] = int(status["voluntary_ctxt_switches"])
    return counts


def check_idle(lab):
    """Without traffic every worker rests; then the first packets either way come through."""
    pid = gateway_pid(lab)
    before, waited, begin = cpu_seconds(pid), rests(pid), time.monotonic()
    time.sleep(SECONDS)
    used = (cpu_seconds(pid) - before) / (time.monotonic() - begin)
    times = [count - waited[task] for task, count in rests(pid).items()]
    woken = ping(ETH, IB_IP, 56, count=1, wait=3)["ok"] and ping(IB, ETH_IP, 56, count=1, wait=3)["ok"]
    ok = used < MOST_OF_A_CORE and len(times) == lab.workers and min(times) >= RESTS and woken
    return {"ok": ok, "of_a_core": round(used, 4), "less_than": MOST_OF_A_CORE, "rests": times, "packets": woken}


def tap(args, checks):
    in_laboratory(Tap, args, checks, (
        ("tap_cold_ping_eth_to_ib", lambda _: one(ETH, IB_IP)),
        ("tap_woken_by", check_woken_by),
        ("tap_idle", check_idle),
        ("tap_stop_no_leak", stopped),
    ))
    in_laboratory(TapOfTwoWorkers, args, checks, (
        ("tap_two_workers_cold_ping_ib_to_eth", lambda _: one(IB, ETH_IP)),
        ("tap_two_workers_idle", check_idle),
    ))
