"""Tests of the crates ipoib and ipoib-fwd with a configurable duration."""

import os
import re
import subprocess

from soaktest.common import ROOT, report


def run_test(args, package, test, environment, results):
    """Runs a test; returns whether it passed, and the values in its output line `figure:`."""
    done = subprocess.run(["cargo", "test", "--locked", "-p", package, *(["--release"] if args.release else []), "--lib", "--",
                           "--exact", test, "--nocapture"],
                          cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False)
    m = re.search(f"figure: {results}", done.stdout)
    return done.returncode == 0 and bool(m), {k: int(v) for k, v in m.groupdict().items()} if m else {}


MEMORY = r"memory (?P<memory_kib_before>\d+) KiB then (?P<memory_kib_after>\d+) KiB"


def connections(args):
    """Opens and closes connections on the simulated fabric."""
    ok, values = run_test(args, "ipoib", "link::tests::cycles::connections_made_and_ended_again_and_again_leave_nothing",
                          {"CONNECTION_CYCLES": str(args.number)},
                          rf"(?P<connections>\d+) connections made and ended in (?P<seconds>\d+) s, {MEMORY}")
    return report("connections", ok, **values)


def simulated(args):
    """Simulates hours of a fabric, then of a pair of gateways."""
    environment = {"SIMULATED_HOURS": str(args.hours), "SIMULATED_SEED": str(args.seed)}
    links, of_links = run_test(args, "ipoib", "link::tests::day::a_day_on_which_nothing_stays_as_it_is_leaves_nothing", environment,
                               rf"(?P<hours>\d+) hours, (?P<upsets>\d+) upsets, (?P<reloads>\d+) reloads, "
                               rf"(?P<links_added_again>\d+) links added again, (?P<boots>\d+) boots, "
                               rf"(?P<connections>\d+) connections, {MEMORY}")
    pair, of_pair = run_test(args, "ipoib-fwd", "segment::tests::day::a_day_of_a_pair_under_constant_change_leaves_no_state",
                             environment,
                             r"(?P<hours>\d+) hours in (?P<seconds>\d+) s, (?P<upsets>\d+) upsets, (?P<gateways>\d+) gateways, "
                             r"(?P<arp_packets>\d+) ARP packets, (?P<hellos>\d+) hellos, (?P<takeovers>\d+) takeovers, "
                             r"(?P<moves>\d+) moves, (?P<conflicts>\d+) conflicts, (?P<held_down>\d+) held down, "
                             r"(?P<packets>\d+) packets at once, (?P<packets_waited>\d+) waited, (?P<packets_in_vain>\d+) in vain")
    return report("simulated", links and pair, links=of_links, pair=of_pair)
