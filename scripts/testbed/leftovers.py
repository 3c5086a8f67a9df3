"""Leftovers of a test on the machine, of which there must be none."""

import json
import os
import tempfile
import time
from pathlib import Path

from testbed.programs import DEADLINE, run

# The mount of `ip netns` on its own directory stays.
KEPT_MOUNTS = ("/run/netns",)
# In the environment of everything that this process starts.
MARK = "IPOIB_FWD_TEST"


def names(folder):
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def mounts():
    """Mounts that this process sees, by their IDs."""
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {number: point for number, _, _, _, point, *_ in lines if not point.startswith(KEPT_MOUNTS)}


def processes():
    """Running processes that this one has started, directly or not."""
    found, mark = set(), f"{MARK}={os.getpid()}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(f"{process.name} ({(process / 'comm').read_text().strip()})")
        except OSError:
            # It has exited.
            pass
    return found


def inventory():
    """Everything of the kinds that tests make, by kind.

    Processes that are started from now on belong to this one.
    """
    os.environ[MARK] = str(os.getpid())
    found = {
        "process": processes(),
        "network namespace": names("/run/netns"),
        "interface": {link["ifname"] for link in json.loads(run("ip", "-json", "link", "show").stdout)},
        "file in /dev/shm": names("/dev/shm"),
        f"file in {tempfile.gettempdir()}": names(tempfile.gettempdir()),
    }
    return {"mount": mounts(), **{kind: {name: name for name in these} for kind, these in found.items()}}


def left_behind(before, seconds=DEADLINE):
    """Returns everything that has appeared since the inventory `before` and does not disappear."""
    end = time.monotonic() + seconds
    while True:
        left = [f"{kind} {name}" for kind, now in inventory().items() for key, name in sorted(now.items()) if key not in before[kind]]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)
