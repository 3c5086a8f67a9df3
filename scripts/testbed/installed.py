#!/usr/bin/env python3
"""The demo's traffic through an installed gateway that a service manager has started; the hosts' network
namespaces are gwdemo-eth and gwdemo-ib.

The last line is a summary.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo import TO_ETH, TO_IB, Demo
from testbed.programs import TestbedError, run
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import iperf, traffic

SECONDS = 1
# TCP connections of one direction at a time.
FLOWS = 32


class Installed(Topology):
    """Hosts, fabric and gateway that exist; nothing of it is started or stopped here."""

    eth, ib = "gwdemo-eth", "gwdemo-ib"

    def __init__(self):
        self.dir, self.processes = Path(tempfile.mkdtemp(prefix="ipoib-fwd-installed-")), []

    def ctl(self, *arguments):
        return json.loads(run("ipoib-fwd", "ctl", *arguments, "--json").stdout)


def flows(topology, from_ns, to_ns, target):
    got = iperf(topology, from_ns, to_ns, target, SECONDS, FLOWS)
    return got["bits_per_second"] > 0, f"{got['bits_per_second'] * 1e-9:.2f} Gbit/s", got


def carry(demo):
    """All checks of the demo's that do not start or stop anything."""
    t = demo.topology
    demo.check("arp", "address resolution, both directions", demo.addresses)
    demo.check("ping_eth_to_ib", f"ping, {TO_IB}", lambda: demo.pings(t.eth, IB_IP))
    demo.check("ping_ib_to_eth", f"ping, {TO_ETH}", lambda: demo.pings(t.ib, ETH_IP))
    demo.check("ping_fragments", "fragments, both directions", demo.fragments)
    t.wait_connected()
    before = traffic(t)
    demo.check("file_eth_to_ib", f"file, {TO_IB}", lambda: demo.file(TO_IB, t.eth, t.ib, IB_IP))
    demo.check("file_ib_to_eth", f"file, {TO_ETH}", lambda: demo.file(TO_ETH, t.ib, t.eth, ETH_IP))
    demo.check("iperf_eth_to_ib", f"TCP {SECONDS} s, {TO_IB}", lambda: demo.throughput(TO_IB, t.eth, t.ib, IB_IP))
    demo.check("iperf_ib_to_eth", f"TCP {SECONDS} s, {TO_ETH}", lambda: demo.throughput(TO_ETH, t.ib, t.eth, ETH_IP))
    demo.check("connected_mode", "connected mode", lambda: demo.connected_mode(before))
    demo.check("flows_eth_to_ib", f"{FLOWS} flows, {TO_IB}", lambda: flows(t, t.eth, t.ib, IB_IP))
    demo.check("flows_ib_to_eth", f"{FLOWS} flows, {TO_ETH}", lambda: flows(t, t.ib, t.eth, ETH_IP))


def main():
    topology, error = Installed(), None
    demo = Demo(topology, argparse.Namespace(seconds=SECONDS))
    try:
        carry(demo)
    except TestbedError as failure:
        error = str(failure)
    finally:
        shutil.rmtree(topology.dir)
    failed = [check["name"] for check in demo.checks if not check["ok"]] + ([error] if error else [])
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    rates = [round(check["bits_per_second"] / 1e9, 2) for check in demo.checks if "bits_per_second" in check]
    print(f"{len(demo.checks)} checks; Gbit/s of one flow each way {rates[:2]}, of {FLOWS} {rates[2:]}")


if __name__ == "__main__":
    main()
