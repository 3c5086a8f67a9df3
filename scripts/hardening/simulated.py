"""Tests of the crate ipoib that take as long as they are told to."""

import os
import re
import subprocess

from hardening.ground import ROOT, report


def simulated(args, test, environment, figures):
    """Runs one; the line `figure:` that it prints, by the regular expression."""
    done = subprocess.run(["cargo", "test", "--locked", "-p", "ipoib", *(["--release"] if args.release else []), "--lib", "--",
                           "--exact", f"link::tests::{test}", "--nocapture"],
                          cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False)
    m = re.search(f"figure: {figures}", done.stdout)
    return done.returncode == 0 and bool(m), {k: int(v) for k, v in m.groupdict().items()} if m else {}


MEMORY = r"memory (?P<memory_kib_before>\d+) KiB then (?P<memory_kib_after>\d+) KiB"


def connections(args):
    ok, figures = simulated(args, "cycles::connections_made_and_ended_again_and_again_leave_nothing",
                            {"CONNECTION_CYCLES": str(args.number)},
                            rf"(?P<connections>\d+) connections made and ended in (?P<seconds>\d+) s, {MEMORY}")
    return report("connections", ok, **figures)


def day(args):
    ok, figures = simulated(args, "day::a_day_on_which_nothing_stays_as_it_is_leaves_nothing",
                            {"SIMULATED_HOURS": str(args.hours), "SIMULATED_SEED": str(args.seed)},
                            rf"(?P<hours>\d+) hours, (?P<upsets>\d+) upsets, (?P<reloads>\d+) reloads, "
                            rf"(?P<links_added_again>\d+) links added again, (?P<boots>\d+) boots, "
                            rf"(?P<connections>\d+) connections, {MEMORY}")
    return report("day", ok, **figures)
