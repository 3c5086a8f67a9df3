#!/usr/bin/env python3
"""Long runs that try to hurt the gateway. Each tells how it goes on, and ends with one line of JSON: its figures, and whether
they are as promised.

kills        A process drawn by chance (gateway, fabric, exporter, GID service, softhca) is killed (SIGKILL) under traffic, and started
             anew: within 20 s both ways go again, the exporter answers, a reader of GID tables, which goes on, knows all that changed, and
             a guest that has the softhca (attached by vfio-user, without a machine around it) is reached through the gateway; what the
             processes had on disk is whole.
churn        A gateway's day in minutes, under traffic: modes, reloads that change segments, routes and keys, what a subnet manager says and
             another one, hosts that are lost, addresses that change sides, links, control clients. After each of the graver ones all go
             again within 20 s; memory, descriptors, hugepages and buffers stay as they were.
crowd        Connections made and ended by a real gateway, with a crowd of hosts (ibcrowd) on a port of the software fabric: the hosts
             end them, or the gateway does, as its mode or a host's address changes or a place is wanted, or the whole crowd is killed.
             Some carry packets meanwhile. Connections, buffers, descriptors are as after the first tenth, memory as after half.
connections  Connections made and ended on the simulated fabric: tables, timers and memory as before (a test of the crate ipoib).
day          A day of the simulated fabric, in minutes: hosts, addresses, ports, the subnet manager, modes, reloads; each hour all reach
             each other, and nothing is left (a test of the crate ipoib). Then a day of a pair of gateways between simulated hosts: they
             come, go, move and lie, gateways are killed, drained and cut off; each hour one forwards and knows all honest hosts where
             they are, and nothing is left (a test of the crate ipoib-fwd).
fuzz         libFuzzer on each target, from its corpus. Wants cargo-fuzz; `fuzz/target` or --target-dir has what it builds."""

import argparse
import os
import signal
import sys

from hardening.churn import churn
from hardening.crowd import crowd
from hardening.fuzz import fuzz
from hardening.ground import ROOT
from hardening.kills import kills
from hardening.simulated import connections, day
from testbed.isolation import isolate
from testbed.programs import TestbedError, interruptible


def main():
    parser = argparse.ArgumentParser(prog="scripts/harden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    runs = parser.add_subparsers(dest="run", required=True)
    for name, what, body in (("kills", "kill -9 under traffic", kills), ("churn", "a day in minutes", churn),
                             ("crowd", "connections of a real gateway", crowd)):
        one = runs.add_parser(name, help=what)
        one.add_argument("--bin", metavar="DIR", default="target/release", help="where the programs are")
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--keep", action="store_true", help="keep logs and configuration")
        one.set_defaults(body=body, testbed=True)
        if name == "kills":
            one.add_argument("number", nargs="?", type=int, default=200, help="how many (200)")
        elif name == "crowd":
            one.add_argument("number", nargs="?", type=int, default=1_000_000, help="how many (1,000,000)")
        else:
            one.add_argument("seconds", nargs="?", type=int, default=3600, help="how long (3600)")
    one = runs.add_parser("connections", help="made and ended")
    one.add_argument("number", nargs="?", type=int, default=1_000_000, help="how many (1,000,000)")
    one.add_argument("--release", action="store_true", help="build the test with optimisation")
    one.set_defaults(body=connections, testbed=False)
    one = runs.add_parser("day", help="hours of the simulated fabric, and of a pair of gateways")
    one.add_argument("hours", nargs="?", type=int, default=24, help="how many (24)")
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--release", action="store_true", help="build the test with optimisation")
    one.set_defaults(body=day, testbed=False)
    one = runs.add_parser("fuzz", help="libFuzzer on each target")
    one.add_argument("seconds", type=int, help="for all targets together")
    one.add_argument("targets", nargs="*", metavar="TARGET", help="only these")
    one.add_argument("--program", metavar="FILE", help="the target `every`, built before")
    one.add_argument("--target-dir", default=str(ROOT / "fuzz/target"))
    one.set_defaults(body=fuzz, testbed=False)
    args = parser.parse_args()
    os.nice(5)
    if args.testbed:
        if os.geteuid():
            sys.exit("harden: it makes network namespaces and so needs root: sudo scripts/harden")
        interruptible()
    try:
        if args.testbed:
            isolate()
        sys.exit(args.body(args))
    except TestbedError as e:
        sys.exit(f"harden: {args.run}: {e}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
