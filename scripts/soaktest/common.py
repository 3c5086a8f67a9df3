"""Topologies, limits and reports that the soak tests share."""

import json
import sys
import time
from pathlib import Path

from testbed import diagnostics
from testbed.programs import run
from testbed.topology import ETH_IP, IB_IP, Topology

ROOT = Path(__file__).resolve().parents[2]
# Network namespaces of the topologies. A run has its own mount namespace, so fixed names do not collide.
TAG = "soak"
ETH, GW, IB = f"{TAG}-eth", f"{TAG}-gw", f"{TAG}-ib"
# Seconds within which everything works again after a process has died.
RECOVERED = 20.0
# Permitted growth from the second quarter of a run to the last one: memory in KiB, and descriptors.
# In the first quarter the gateway touches its tables and rings for the first time.
MEMORY_NOISE, DESCRIPTOR_NOISE = 2048, 2


def say(text):
    print(f"soak: {text}", file=sys.stderr, flush=True)


def report(name, ok, **figures):
    print(json.dumps({"run": name, "ok": ok, "date": time.strftime("%Y-%m-%d", time.gmtime()), **figures}), flush=True)
    return 0 if ok else 1


class Soak(Topology):
    """The base topology of soak tests; the gateway writes a GID table."""

    gids = True

    def __init__(self, args):
        super().__init__(args.bin, tag=TAG, keep=args.keep, report=say)

    def print_diagnostics(self):
        for title, text in diagnostics.sections(self):
            say(f"{title}\n{text}")

    def ended(self):
        """Stops the gateway; returns its exit code and the number of missing buffers."""
        self.forget(self.gateway)
        code = self.gateway.stop()
        return code, json.loads((self.dir / "report.json").read_text())["buffers_outstanding"]


class KillableSoak(Soak):
    """The plain topology; the gateway writes captures, a report and a GID table."""

    def __init__(self, args):
        super().__init__(args)
        self.number = 0

    def capture(self, name):
        """Captures for the gateway only; file names start with the number of its life."""
        if not name.startswith("gateway"):
            return []
        self.number += 1
        return ["--capture", self.dir / f"{self.number}-{name}"]

    def captures(self):
        """Returns the capture files by the number of the life: both sides, and the files after a full one."""
        found = {}
        for path in self.dir.glob("*-gateway.pcap*"):
            found.setdefault(int(path.name.partition("-")[0]), []).append(path)
        return found


def recovery(lab, begin, seconds, pairs=((ETH, IB_IP), (IB, ETH_IP))):
    """Returns the seconds until a ping between all pairs succeeds, or None after a timeout."""
    for netns, target in pairs:
        while run("ping", "-n", "-q", "-c", 1, "-W", 1, target, netns=netns, check=False).returncode:
            if time.monotonic() - begin > seconds:
                return None
            # Without an interface the ping fails immediately.
            time.sleep(0.02)
    return time.monotonic() - begin
