#!/usr/bin/env python3
"""The gateway where it hurts: captures, packets that do not fit, mode switches, hostile packets on both sides, killed
peers, operators' errors. Works on the demo's laboratory (scripts/stage) and leaves nothing behind."""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from checks import gids, metrics, owners, top
from checks.bonded import bonded
from checks.bridged import bridged
from checks.captures import captures
from checks.cold import cold
from checks.cores import cores
from checks.crowd import crowd
from checks.deaths import check_fabric_killed, check_fabric_stopped, check_gateway_killed
from checks.frames import check_hostile_frames, check_odd_sizes, check_overlong_fragment, check_random_frames
from checks.gids_serve import gids_serve
from checks.intruders import check_hostile_packets
from checks.journal import journal
from checks.laboratory import Checks, Laboratory, check_stop, in_laboratory, say
from checks.leftovers import check_nothing_left, there_is
from checks.long import long
from checks.operators import check_ctl, check_no_leak, check_place, check_second_gateway, check_socket, check_stats_lines, operator_errors
from checks.pair import pair
from checks.ports import ports
from checks.preflight import preflight
from checks.privileges import check_threads, privileges
from checks.readme import readme
from checks.reload import reload
from checks.routers import routers
from checks.runtime import runtime
from checks.segments import segments
from checks.service import service
from checks.sizes import check_fragments, check_mode_switch, check_to_all, check_too_big, check_ud_limits
from checks.started import started
from checks.tap import tap
from checks.workers import workers
from checks.xdp import xdp
from stage.apart import set_apart
from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.programs import Failed, interruptible

PROGRAMS = ("ipoib-fwd", "ibfab", "softhca")


def hard(args, checks):
    """Everything that one laboratory after another need not be built for."""
    in_laboratory(Laboratory, args, checks, (
        ("to_all_eth_to_ib", lambda _: check_to_all(ETH, IB, ETH_IP)),
        ("to_all_ib_to_eth", lambda _: check_to_all(IB, ETH, IB_IP)),
        ("too_big_answered", check_too_big),
        ("mode_switch", check_mode_switch),
        ("lcores_and_hugepages", check_place),
        ("privileges_threads", check_threads),
        ("ctl_answers", check_ctl),
        ("ctl_hostile", check_socket),
        ("error_second_gateway", check_second_gateway),
        ("metrics_figures", metrics.check_figures),
        ("metrics_named", metrics.check_named),
        ("metrics_scraped", metrics.check_scraped),
        ("top_keys", top.check_keys),
        ("top_large", top.check_large),
        ("top_once", top.check_once),
        ("top_trouble", top.check_trouble),
        ("top_gone", top.check_gone),
        ("gids_list", gids.check_list),
        ("gids_watch_ends", gids.check_watch_ends),
        ("gids_prefix_changed", gids.check_prefix),
        ("gids_dead_maintainer", gids.check_dead_maintainer),
        ("owner_claim_from_ethernet", owners.check_claim_from_ethernet),
        ("owner_claim_from_infiniband", owners.check_claim_from_infiniband),
        ("owner_move_to_ethernet", owners.check_move_to_ethernet),
        ("owner_move_to_infiniband", owners.check_move_to_infiniband),
        ("owner_claim_within_infiniband", owners.check_claim_within_infiniband),
        ("owner_move_within_infiniband", owners.check_move_within_infiniband),
        ("owner_proxy_answer", owners.check_proxy_answer),
        ("hostile_frames", check_hostile_frames),
        ("hostile_sizes", check_odd_sizes),
        ("hostile_random_frames", check_random_frames),
        ("hostile_packets", check_hostile_packets),
        ("metrics_silence", metrics.check_silence),
        ("died_fabric_stopped", check_fabric_stopped),
        ("died_fabric_killed", check_fabric_killed),
        ("died_gateway_killed", check_gateway_killed),
        ("stats_lines", check_stats_lines),
        ("fragments_eth_to_ib", lambda lab: check_fragments(lab, ETH, IB_IP)),
        ("fragments_ib_to_eth", lambda lab: check_fragments(lab, IB, ETH_IP)),
        ("datagram_mode", check_ud_limits),
        ("fragments_hostile", check_overlong_fragment),
        ("stop_no_leak", check_no_leak),
        ("stop_fabric", lambda lab: check_stop(lab, "ibfab", lab.fabric, signal.SIGTERM)),
    ))


def main():
    parser = argparse.ArgumentParser(prog="scripts/e2e.py", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the checks and their figures to FILE")
    parser.add_argument("--bin", metavar="DIR", default="target/release", help="where the programs are")
    parser.add_argument("--older", metavar="DIR", help="where older programs are, with which a pair's gateways begin (pair_upgrade)")
    parser.add_argument("--keep", action="store_true", help="keep logs, configuration and captures")
    parser.add_argument("only", nargs="*", metavar="NAME", help="only checks whose names begin so")
    args = parser.parse_args()
    args.capture = False
    missing = [program for program in PROGRAMS if not (Path(args.bin) / program).is_file()]
    if missing:
        sys.exit(f"e2e: {args.bin} has no {', no '.join(missing)}: cargo build --release --locked -p {' -p '.join(PROGRAMS)}")
    interruptible()
    try:
        set_apart()
    except Failed as e:
        sys.exit(f"e2e: {e}")
    # All that is made of files is in one place, and what is found in it at the end is this run's.
    place = tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="ipoib-fwd-e2e-")
    # Other users have their way through it to what is theirs.
    os.chmod(place, 0o711)
    before = there_is(args)
    checks, error, begin = Checks(args.only), None, time.monotonic()
    try:
        for part in (readme, operator_errors, preflight, service, privileges, started, cores, captures, cold, routers, segments, ports,
                     bridged, bonded, xdp, tap, long, reload, runtime, journal, workers, crowd, gids_serve, hard, pair):
            try:
                part(args, checks)
            except Failed as e:
                error = f"{part.__name__}: {e}"
                say(f"FAILED {error}")
            except Exception:
                error = f"{part.__name__}: {traceback.format_exc()[-3000:]}"
                say(f"FAILED {error}")
    except KeyboardInterrupt:
        error = "interrupted"
    ran = bool(checks.results)
    checks.run("nothing_left", lambda: check_nothing_left(args, before), always=True)
    if not args.keep:
        shutil.rmtree(place, ignore_errors=True)
    if args.json:
        document = {"checks": checks.results}
        if error:
            document["error"] = error
        Path(args.json).write_text(json.dumps(document, indent=1) + "\n")
    failed = [r for r in checks.results if not r["ok"]]
    if failed or error:
        # Once more, where the eye falls on it, and what shows a log's end alone.
        for result in failed:
            say(f"FAILED {result['name']}: {json.dumps(result)[:4000]}")
        sys.exit(f"e2e: FAILED: {', '.join(r['name'] for r in failed)} {error or ''}")
    if not ran:
        sys.exit(f"e2e: no check has a name that begins with {' or '.join(args.only)}")
    say(f"all {len(checks.results)} checks passed in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
