"""The command line of `scripts/test`."""

import argparse
import os
import signal
import sys
from pathlib import Path

from runner import default, full, quick
from runner.step import need_root, stop_running


def own_arguments(arguments):
    """Returns the arguments of the user: `scripts/test` puts its own option before them."""
    return arguments[2:] if arguments[:1] == ["--setup-seconds"] else arguments


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/test", description="Tests the tree. Without options, runs what continuous integration runs, from setup to the "
        "kernel's own ib_ipoib in a virtual machine; takes about 20 minutes on two cores, and needs root on Debian 12.")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--quick", nargs="*", metavar="CRATE",
                      help="run format, prose, lints and tests of the crates that changed since the upstream branch, or of the named ones")
    kind.add_argument("--full", nargs="*", metavar="PART", help="run slow tests and measurements by parts: all, or the named ones")
    kind.add_argument("--list", action="store_true", help="list the parts of --full with their usual or maximum durations")
    parser.add_argument("--json", metavar="FILE", help="with --full: write all results to FILE")
    parser.add_argument("--setup-seconds", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.json and args.full is None:
        parser.error("--json needs --full")

    def interrupted(number, _frame):
        raise KeyboardInterrupt(signal.Signals(number).name)

    # Also if the shell ignores SIGINT, as for background jobs.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        if args.list:
            return full.list_parts()
        if args.quick is not None:
            return quick.run(args.quick)
        need_root(own_arguments(sys.argv[1:]))
        if args.full is not None:
            # The path is relative to the directory of the user, not to the tree.
            return full.run(args.full, args.json and Path(os.environ.get("CALLED_FROM", "."), args.json).resolve())
        return default.run(args.setup_seconds)
    except KeyboardInterrupt:
        stop_running()
        sys.exit("test: interrupted")


if __name__ == "__main__":
    sys.exit(main())
