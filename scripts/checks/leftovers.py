"""What a run leaves on the machine, which is to be nothing."""

import json
import os
import tempfile
import time
from pathlib import Path

from stage.programs import run

# What has been told to end may take so long.
SECONDS = 10
# ip's own mount of the folder of namespaces, which stays for the next one.
OTHERS = ("/run/netns",)
# In the environment of all that this run starts.
MARK = "IPOIB_FWD_CHECKS"


def names(folder, beginning=""):
    try:
        return {name for name in os.listdir(folder) if name.startswith(beginning)}
    except FileNotFoundError:
        return set()


def mounts():
    """Those that this process sees, by their numbers: where they are changes, too, when a directory has another name."""
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {number: point for number, _, _, _, point, *_ in lines if not point.startswith(OTHERS)}


def processes():
    """Those that this run has started."""
    found, mark = set(), f"{MARK}={os.getpid()}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(f"{process.name} ({(process / 'comm').read_text().strip()})")
        except OSError:
            # It has ended meanwhile.
            pass
    return found


def there_is(args):
    """What there is of all that checks make, and what it is called. What is started from now on is known to be of this run."""
    os.environ[MARK] = str(os.getpid())
    called = {
        "process": processes(),
        "network namespace": names("/run/netns"),
        "interface": {link["ifname"] for link in json.loads(run("ip", "-json", "link", "show").stdout)},
        "file in /dev/shm": names("/dev/shm"),
        f"file in {tempfile.gettempdir()}": set() if args.keep else names(tempfile.gettempdir()),
    }
    return {"mount": mounts(), **{kind: {name: name for name in found} for kind, found in called.items()}}


def check_nothing_left(args, before):
    """What has come since, and does not go."""
    end = time.monotonic() + SECONDS
    while True:
        left = [(kind, name) for kind, now in there_is(args).items() for key, name in sorted(now.items()) if key not in before[kind]]
        if not left or time.monotonic() > end:
            break
        time.sleep(0.2)
    return {"ok": not left, "left_behind": [f"{kind} {name}" for kind, name in left]}
