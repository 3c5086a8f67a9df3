#!/usr/bin/env python3
"""The gateway where it hurts: captures, packets that do not fit, mode switches, hostile packets on both sides, killed
peers, operators' errors. Works on the demo's laboratory (scripts/demo.py) and leaves nothing behind."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

import demo
from checks.captures import captures
from checks.cold import cold
from checks.deaths import check_fabric_killed, check_fabric_stopped, check_gateway_killed
from checks import gids
from checks.frames import check_hostile_frames, check_odd_sizes, check_overlong_fragment, check_random_frames
from checks.intruders import check_hostile_packets
from checks.laboratory import Checks, Laboratory, check_stop, say
from checks.operators import check_ctl, check_no_leak, check_second_gateway, check_socket, check_stats_lines, operator_errors
from checks.pair import pair
from checks.reload import reload
from checks.routers import routers
from checks.segments import segments
from checks.owners import (check_claim_from_ethernet, check_claim_from_infiniband, check_move_to_ethernet,
                           check_move_to_infiniband)
from checks.sizes import check_fragments, check_mode_switch, check_to_all, check_too_big, check_ud_limits
from checks.workers import workers
from demo import ETH, ETH_IP, IB, IB_IP, Failed

LOCK_PATIENCE = 180


def hard(args, checks):
    """Everything that one laboratory after another need not be built for."""
    lab = Laboratory(args)
    try:
        lab.up()
        for name, body in (
            ("to_all_eth_to_ib", lambda: check_to_all(ETH, IB, ETH_IP)),
            ("to_all_ib_to_eth", lambda: check_to_all(IB, ETH, IB_IP)),
            ("too_big_answered", lambda: check_too_big(lab)),
            ("mode_switch", lambda: check_mode_switch(lab)),
            ("ctl_answers", lambda: check_ctl(lab)),
            ("ctl_hostile", lambda: check_socket(lab)),
            ("error_second_gateway", lambda: check_second_gateway(lab)),
            ("gids_list", lambda: gids.check_list(lab)),
            ("gids_watch_ends", lambda: gids.check_watch_ends(lab)),
            ("gids_prefix_changed", lambda: gids.check_prefix(lab)),
            ("gids_dead_maintainer", lambda: gids.check_dead_maintainer(lab)),
            ("owner_claim_from_ethernet", lambda: check_claim_from_ethernet(lab)),
            ("owner_claim_from_infiniband", lambda: check_claim_from_infiniband(lab)),
            ("owner_move_to_ethernet", lambda: check_move_to_ethernet(lab)),
            ("owner_move_to_infiniband", lambda: check_move_to_infiniband(lab)),
            ("hostile_frames", lambda: check_hostile_frames(lab)),
            ("hostile_sizes", lambda: check_odd_sizes(lab)),
            ("hostile_random_frames", lambda: check_random_frames(lab)),
            ("hostile_packets", lambda: check_hostile_packets(lab)),
            ("died_fabric_stopped", lambda: check_fabric_stopped(lab)),
            ("died_fabric_killed", lambda: check_fabric_killed(lab)),
            ("died_gateway_killed", lambda: check_gateway_killed(lab)),
            ("stats_lines", lambda: check_stats_lines(lab)),
            ("fragments_eth_to_ib", lambda: check_fragments(lab, ETH, IB_IP)),
            ("fragments_ib_to_eth", lambda: check_fragments(lab, IB, ETH_IP)),
            ("datagram_mode", lambda: check_ud_limits(lab)),
            ("hostile_fragment", lambda: check_overlong_fragment(lab)),
            ("stop_no_leak", lambda: check_no_leak(lab)),
            ("stop_fabric", lambda: check_stop(lab, "ibfab", lab.fabric, signal.SIGTERM)),
        ):
            checks.run(name, body, lab)
    except Failed:
        lab.say_last_words()
        raise
    finally:
        lab.close()


def main():
    parser = argparse.ArgumentParser(prog="scripts/e2e.py", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the checks and their figures to FILE")
    parser.add_argument("--bin", metavar="DIR", default="target/release", help="where the programs are")
    parser.add_argument("--keep", action="store_true", help="keep logs, configuration and captures")
    parser.add_argument("only", nargs="*", metavar="NAME", help="only checks whose names begin so")
    args = parser.parse_args()
    args.capture = False
    lock = demo.take_lock(LOCK_PATIENCE)
    if lock is None:
        sys.exit("e2e: another laboratory has been running on this machine for minutes; wait for it to end")

    def interrupted(signum, _frame):
        raise KeyboardInterrupt(signal.Signals(signum).name)

    # Also where the shell has it ignored, as for jobs in the background.
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    checks, error, begin = Checks(args.only), None, time.monotonic()
    try:
        for part in (operator_errors, captures, cold, routers, segments, reload, workers, hard, pair):
            try:
                part(args, checks)
            except Failed as e:
                error = f"{part.__name__}: {e}"
                say(f"FAILED {error}")
    except KeyboardInterrupt:
        error = "interrupted"
    if args.json:
        document = {"checks": checks.results}
        if error:
            document["error"] = error
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    failed = [r["name"] for r in checks.results if not r["ok"]]
    if failed or error:
        sys.exit(f"e2e: FAILED: {', '.join(failed)} {error or ''}")
    if not checks.results:
        sys.exit(f"e2e: no check has a name that begins with {' or '.join(args.only)}")
    say(f"all {len(checks.results)} checks passed in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
