"""Soak and chaos tests of the gateway.

Each run reports its progress, then prints one line of JSON: the measured values, and whether they are within
the limits.

kills        Kills random processes (gateway, fabric, exporter, GID service, softhca) with SIGKILL under
             traffic, and restarts them. Within 20 s, packets pass in both directions, the exporter answers,
             and a guest of the softhca (vfio-user, without a virtual machine) is reachable through the
             gateway.
             A reader of the GID tables has seen every change. The files of the processes are intact.
chaos        Injects random faults under traffic: mode changes, reloads of segments, routes and keys, changes
             by the subnet manager, a new subnet manager, lost hosts, addresses that change sides, link
             failures, control clients. All hosts reach each other within 20 s of each severe fault.
             Memory, descriptors, hugepages and buffers do not grow.
crowd        Opens and closes connections of a real gateway with a crowd of hosts (ibcrowd) on a port of the
             software fabric. The hosts close them, or the gateway does: its mode or a host's address
             changes, or it needs a slot. At the end of its life each crowd is killed. Some connections
             carry packets. Connections, buffers and descriptors are as after the first tenth of the run,
             memory as after half of it.
connections  Opens and closes connections on the simulated fabric. Tables, timers and memory do not grow
             (a test of the crate ipoib).
simulated    Simulates a day of the fabric in minutes: hosts, addresses, ports, the subnet manager, modes,
             reloads. Each hour all hosts reach each other, and nothing is left behind (a test of the crate
             ipoib). Then simulates a day of a pair of gateways. Hosts come, go, move and lie. Gateways are
             killed, drained and cut off. Each hour one gateway forwards and knows where all honest hosts
             are, and nothing is left behind (a test of the crate ipoib-fwd).
fuzz         Runs libFuzzer on each target, from its corpus. Needs cargo-fuzz, which builds in fuzz/target
             or --target-dir.
"""

import argparse
import os
import signal
import sys

from soaktest.chaos import chaos
from soaktest.common import ROOT
from soaktest.crowd import crowd
from soaktest.fuzz import fuzz
from soaktest.kills import kills
from soaktest.simulated import connections, simulated
from testbed.isolation import isolate
from testbed.programs import TestbedError, interruptible


def main():
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = parser.add_subparsers(dest="run", required=True)
    for name, what, body in (("kills", "kill processes under traffic", kills), ("chaos", "inject random faults under traffic", chaos),
                             ("crowd", "open and close connections of a real gateway", crowd)):
        one = runs.add_parser(name, help=what)
        one.add_argument("--bin", metavar="DIR", default="target/release", help="directory of the programs (target/release)")
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--keep", action="store_true", help="keep logs and configuration")
        one.set_defaults(body=body, testbed=True)
        if name == "kills":
            one.add_argument("number", nargs="?", type=int, default=200, help="number of kills (200)")
        elif name == "crowd":
            one.add_argument("number", nargs="?", type=int, default=1_000_000, help="number of connections (1,000,000)")
        else:
            one.add_argument("seconds", nargs="?", type=int, default=3600, help="duration (3600)")
    one = runs.add_parser("connections", help="open and close connections on the simulated fabric")
    one.add_argument("number", nargs="?", type=int, default=1_000_000, help="number of connections (1,000,000)")
    one.add_argument("--release", action="store_true", help="build the test in the release profile")
    one.set_defaults(body=connections, testbed=False)
    one = runs.add_parser("simulated", help="simulate hours of a fabric and of a pair of gateways")
    one.add_argument("hours", nargs="?", type=int, default=24, help="simulated hours (24)")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--release", action="store_true", help="build the test in the release profile")
    one.set_defaults(body=simulated, testbed=False)
    one = runs.add_parser("fuzz", help="run libFuzzer on each target")
    one.add_argument("seconds", type=int, help="duration of all targets together")
    one.add_argument("targets", nargs="*", metavar="TARGET", help="run these targets only")
    one.add_argument("--program", metavar="FILE", help="a built target `every`")
    one.add_argument("--target-dir", default=str(ROOT / "fuzz/target"))
    one.set_defaults(body=fuzz, testbed=False)
    args = parser.parse_args()
    os.nice(5)
    if args.testbed:
        if os.geteuid():
            sys.exit("soak: network namespaces need root. Run: sudo scripts/soak")
        interruptible()
    try:
        if args.testbed:
            isolate()
        sys.exit(args.body(args))
    except TestbedError as e:
        sys.exit(f"soak: {args.run}: {e}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
