#!/usr/bin/env python3
"""The demo's traffic by a gateway that somebody else has started, as a service manager has: hosts are in namespaces of the demo's names."""

import json
import shutil
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stage.lab import ETH, ETH_IP, IB, IB_IP, Lab
from stage.programs import Failed, run
from stage.traffic import carried, check_iperf, checker

SECONDS = 1
# Hosts of one side that talk at once.
FLOWS = 32


class Installed(Lab):
    """Hosts, fabric and gateway that are there; none of them is ours to end."""

    # As the gateway's configuration says.
    data_room = 8192

    def __init__(self):
        self.dir, self.processes = Path(tempfile.mkdtemp(prefix="ipoib-fwd-installed-")), []

    def ctl(self, *words):
        return json.loads(run("ipoib-fwd", "ctl", *words, "--json", timeout=30).stdout)


def main():
    lab, results, error = Installed(), [], None
    try:
        check = checker(lab, results, figures_only=True)
        carried(lab, check, SECONDS)
        for way, one, other, target in (("eth_to_ib", ETH, IB, IB_IP), ("ib_to_eth", IB, ETH, ETH_IP)):
            check(f"flows_{way}", lambda: check_iperf(lab, one, other, target, SECONDS, 1_000_000_000, FLOWS), figure=True)
    except Failed as e:
        error = str(e)
    finally:
        shutil.rmtree(lab.dir)
    failed = [r["name"] for r in results if not r["ok"]] + ([error] if error else [])
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    rates = [round(r["bits_per_second"] / 1e9, 2) for r in results if "bits_per_second" in r]
    print(f"{len(results)} checks; Gbit/s of one flow each way {rates[:2]}, of {FLOWS} {rates[2:]}")


if __name__ == "__main__":
    main()
