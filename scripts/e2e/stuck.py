#!/usr/bin/env python3
"""stuck.py PID: one worker of that gateway alone stands still, until somebody has killed the gateway for it."""

import os
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checks.service import WALL, standing_still, worker_of
from stage.programs import Failed

# Of which the service manager's watchdog takes ten.
PATIENCE = 90


def main(pid):
    thread = worker_of(pid)
    with standing_still(pid, thread):
        begin = time.monotonic()
        # A thread that is traced is gone only when who traces it has heard of that.
        while os.waitpid(thread, WALL | os.WNOHANG)[0] == 0:
            if time.monotonic() - begin > PATIENCE:
                raise Failed(f"nobody has killed the gateway in {PATIENCE} s")
            time.sleep(0.05)
        print(f"killed after {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except Failed as failed:
        sys.exit(f"stuck: {failed}")
