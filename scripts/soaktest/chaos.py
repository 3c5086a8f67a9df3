"""Random faults of a gateway and its network, under traffic."""

import json
import os
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path

from soaktest.common import DESCRIPTOR_NOISE, ETH, IB, MEMORY_NOISE, RECOVERED, recovery, report, say
from soaktest.faults import Faults
from soaktest.topology import OFFICE, ChaosTopology
from testbed.programs import Process
from testbed.topology import ETH_IP, IB_IP
from testbed.traffic import LATE


def sample(lab):
    """Returns the memory, threads and descriptors of the gateway."""
    pid = lab.gateway.popen.pid
    status = Path(f"/proc/{pid}/status").read_text()

    def value(name):
        return int(re.search(rf"^{name}:\s+(\d+)", status, re.M)[1])

    return {"anonymous_kib": value("RssAnon"), "huge_kib": value("HugetlbPages"), "shared_kib": value("RssShmem"),
            "threads": value("Threads"), "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "maps": len(Path(f"/proc/{pid}/maps").read_text().splitlines())}


def traffic_of(processes):
    """Stops each ping; returns the number of its requests and replies."""
    result = {}
    for name, process in processes.items():
        process.popen.send_signal(signal.SIGINT)
        process.popen.wait(LATE)
        process.stop(1)
        m = re.search(r"(\d+) packets transmitted, (\d+) received", process.text())
        result[name] = {"sent": int(m[1]), "answered": int(m[2])} if m else None
    return result


def chaos(args):
    """Injects faults for `args.seconds`, and checks recovery and growth."""
    chance, samples, wrong = random.Random(args.seed), [], []
    made, took = Counter(), {}
    lab = ChaosTopology(args)
    faults = Faults(lab, chance)
    try:
        lab.up()
        traffic = {name: Process("ping", ["ping", "-n", "-q", "-i", "0.01", "-s", 1400, target], netns, lab.dir / f"traffic-{name}.log")
                   for name, netns, target in (("to_infiniband", ETH, IB_IP), ("to_ethernet", IB, ETH_IP))}
        begin = reported = time.monotonic()
        while (now := time.monotonic()) < begin + args.seconds:
            name, pairs = faults.draw()
            made[name] += 1
            if pairs:
                again = recovery(lab, time.monotonic(), RECOVERED, pairs)
                took.setdefault(name, []).append(RECOVERED if again is None else again)
                if again is None:
                    wrong.append(f"{now - begin:.0f} s: after {name}, not all of {pairs} recovered within {RECOVERED} s")
                    say(wrong[-1])
                    say(json.dumps([lab.ctl(what) for what in ("links", "neighbours", "connections")]))
                    lab.print_diagnostics()
            lab.check_alive()
            samples.append((now - begin, sample(lab)))
            if now - reported >= 20:
                reported = now
                say(f"chaos: {now - begin:.0f} of {args.seconds} s, {made.total()} faults, {len(wrong)} failures, {samples[-1][1]}")
        pinged = traffic_of(traffic)
        pairs = faults.restore()
        again = recovery(lab, time.monotonic(), RECOVERED, pairs)
        time.sleep(2)
        state = lab.ctl("stats")
        counters = lab.ctl("links", OFFICE)["link_counters"]
        opened = {k: v for k, v in counters.items() if k.startswith("connections_")}
        code, outstanding = lab.ended()
        memory = "hugepages" if lab.hugepages and lab.hugepages.number else "ordinary pages"
    finally:
        lab.close()
    quarter = [s for at, s in samples if args.seconds / 4 <= at <= args.seconds / 2] or [samples[0][1]]
    last = [s for at, s in samples if at >= args.seconds * 3 / 4] or [samples[-1][1]]
    most = {name: (max(s[name] for s in quarter), max(s[name] for s in last)) for name in quarter[0]}
    flat = (most["anonymous_kib"][1] <= most["anonymous_kib"][0] + MEMORY_NOISE
            and most["descriptors"][1] <= most["descriptors"][0] + DESCRIPTOR_NOISE
            and most["huge_kib"][1] <= most["huge_kib"][0]
            and most["threads"][1] <= most["threads"][0] + 1)
    recovered = {name: {"number": len(all_of), "median": round(sorted(all_of)[len(all_of) // 2], 2), "longest": round(max(all_of), 2)}
                 for name, all_of in sorted(took.items())}
    ok = flat and again is not None and code == 0 and outstanding == 0 and not wrong
    return report("chaos", ok, seed=args.seed, seconds=args.seconds, faults=made.total(), of_each=dict(sorted(made.items())),
                  recovered_seconds=recovered, within=RECOVERED, wrong=wrong[:10], reaches_at_the_end=again is not None, pings=pinged,
                  connections=opened, buffers_in=memory, most_in_second_and_last_quarter=most, buffers_outstanding=outstanding,
                  exit_code=code, uptime=state["process"])
