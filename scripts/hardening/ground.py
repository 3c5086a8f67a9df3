"""What long runs have in common: topologies, what is promised of a death, how it goes on."""

import json
import sys
import time
from pathlib import Path

from testbed import diagnostics
from testbed.programs import run
from testbed.topology import ETH_IP, IB_IP, Topology

ROOT = Path(__file__).resolve().parents[2]
# The network namespaces of the topologies: a run is alone in a mount namespace, so their names are always the same.
TAG = "harden"
ETH, GW, IB = f"{TAG}-eth", f"{TAG}-gw", f"{TAG}-ib"
# What is promised of a death.
RECOVERED = 20.0
# What memory may grow by from the second quarter of a run to the last one, KiB, and descriptors. In the first one tables and rings are
# touched for the first time.
MEMORY_NOISE, DESCRIPTOR_NOISE = 2048, 2


def say(text):
    print(f"harden: {text}", file=sys.stderr, flush=True)


def report(name, ok, **figures):
    print(json.dumps({"run": name, "ok": ok, "date": time.strftime("%Y-%m-%d", time.gmtime()), **figures}), flush=True)
    return 0 if ok else 1


class Soak(Topology):
    """A topology for a long run, which writes a GID table."""

    gids = True

    def __init__(self, args):
        super().__init__(args.bin, tag=TAG, keep=args.keep, report=say)

    def print_diagnostics(self):
        for title, text in diagnostics.sections(self):
            say(f"{title}\n{text}")

    def ended(self):
        """Stops the gateway; returns its exit code and how many buffers are missing."""
        self.forget(self.gateway)
        code = self.gateway.stop()
        return code, json.loads((self.dir / "report.json").read_text())["buffers_outstanding"]


class Hardening(Soak):
    """The plain topology, in which the gateway writes all that it can write: a capture, a report, a GID table."""

    def __init__(self, args):
        super().__init__(args)
        self.number = 0

    def capture(self, name):
        """Of the gateway alone: files whose names begin with the number of its life."""
        if not name.startswith("gateway"):
            return []
        self.number += 1
        return ["--capture", self.dir / f"{self.number}-{name}"]

    def captures(self):
        """The files of each life by its number: packets of either side, and those that followed when one was full."""
        found = {}
        for path in self.dir.glob("*-gateway.pcap*"):
            found.setdefault(int(path.name.partition("-")[0]), []).append(path)
        return found


def goes_again(lab, begin, seconds, pairs=((ETH, IB_IP), (IB, ETH_IP))):
    """Seconds until a ping goes both ways, or between all these; none if that takes too long."""
    for netns, target in pairs:
        while run("ping", "-n", "-q", "-c", 1, "-W", 1, target, netns=netns, check=False).returncode:
            if time.monotonic() - begin > seconds:
                return None
            # Where there is no interface it fails at once.
            time.sleep(0.02)
    return time.monotonic() - begin
