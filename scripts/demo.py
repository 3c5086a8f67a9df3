#!/usr/bin/env python3
"""The main job, for real: an Ethernet host, an InfiniBand host, and the gateway between them.

One network namespace holds an Ethernet host (veth, MTU 1500), one an InfiniBand host (a TUN interface of the software
fabric, IP MTU 65520), one the gateway. Both hosts are in one IP subnet. Everything goes through the gateway.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import ethport
from stage.apart import set_apart
from stage.lab import ETH, IB_IP, PORT, Lab, say
from stage.programs import Failed, interruptible, run
from stage.traffic import carried, check_idle, check_workers, checker, ping


def demo(args, lab, results):
    check = checker(lab, results, args.figures_only)
    lab.start()

    def first_packet():
        def through():
            # The kernel asks once a second; the gateway shall not wait for that.
            run("ip", "neigh", "flush", "all", netns=ETH)
            return ping(ETH, IB_IP, 56, count=1, wait=0.2)["ok"]

        lab.wait_for("the first packet through the gateway", through, 20)
        seconds = time.monotonic() - lab.started_at
        return {"ok": seconds < 3, "seconds": round(seconds, 3), "less_than": 3}

    check("start_to_first_packet", first_packet, figure=True)
    carried(lab, check, args.seconds)
    if lab.workers > 1:
        check("workers", lambda: check_workers(lab))
    check("idle_cpu", lambda: check_idle(lab), figure=True)
    print(run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", "stats").stdout, flush=True)

    def stopped():
        code = lab.gateway.stop()
        lab.processes.remove(lab.gateway)
        report = lab.dir / "report.json"
        if not report.exists():
            raise Failed(f"the gateway left no report:\n{lab.gateway.text()[-4000:]}")
        outstanding = json.loads(report.read_text())["buffers_outstanding"]
        kept = {"at_most_of_the_driver": lab.kind.keeps} if lab.kind.keeps else {}
        return {"ok": code == 0 and outstanding <= lab.kind.keeps, "buffers_outstanding": outstanding, **kept, "exit_code": code}

    check("no_leak", stopped)
    tail = lab.gateway.text().strip().splitlines()[-40:]
    print("\n".join(tail), flush=True)


def main():
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the checks and their figures to FILE")
    parser.add_argument("--seconds", metavar="N", type=int, default=5, help="seconds of iperf3 each way (default 5)")
    parser.add_argument("--workers", metavar="N", type=int, default=1,
                        help="worker lcores, which share the processors that there are (default 1)")
    ethport.add_option(parser, PORT)
    parser.add_argument("--figures-only", action="store_true",
                        help="print throughput, times and CPU without failing when they miss their goals: for busy machines")
    parser.add_argument("--capture", action="store_true", help="capture packets on both programs (implies --keep)")
    parser.add_argument("--keep", action="store_true", help="keep logs, configuration and captures")
    parser.add_argument("--bin", metavar="DIR", default="target/release", help="where the programs are")
    args = parser.parse_args()
    if not 1 <= args.seconds <= 600:
        parser.error("--seconds takes 1 to 600")
    if not 1 <= args.workers <= 16:
        parser.error("--workers takes 1 to 16")
    if args.workers > 1 and args.port == ethport.AF_XDP.kind:
        parser.error("--port af-xdp takes one worker: a queue of its own at the interface is what such a socket is, and veth has one here")
    args.keep |= args.capture

    interruptible()
    results, error = [], None
    try:
        set_apart()
        port = ethport.choose(args.port, PORT, say)
    except (Failed, ethport.NoPort) as e:
        sys.exit(f"demo: {e}")
    lab = Lab(args)
    lab.workers = args.workers
    # Buffers for more workers would not fit the memory that is asked for.
    lab.data_room = 8192 if args.workers <= 2 else None
    lab.use(port)
    try:
        demo(args, lab, results)
    except Failed as e:
        error = str(e)
    except KeyboardInterrupt:
        error = "interrupted"
    finally:
        # A second Ctrl-C must not leave half of it behind.
        for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(s, signal.SIG_IGN)
        lab.close()
    if args.json:
        document = {"checks": results}
        if error:
            document["error"] = error
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    if error:
        sys.exit(f"demo: {error}")
    failed = [r["name"] for r in results if not r["ok"]]
    if failed:
        sys.exit(f"demo: failed: {', '.join(failed)}")
    say(f"all {len(results)} checks passed")


if __name__ == "__main__":
    main()
