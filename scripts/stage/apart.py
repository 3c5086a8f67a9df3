"""What a run has for itself: namespaces of its own, and hugepages beside those of others."""

import ctypes
import fcntl
import os
from pathlib import Path

from stage.programs import Failed, run

# Held by who changes how many hugepages there are.
LOCK = "/run/lock/ipoib-fwd-hugepages.lock"
HUGEPAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
# Where EAL keeps a directory for each prefix, also when it has ended.
EAL = Path("/var/run/dpdk")
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_NETWORK = 0x0002_0000, 0x4000_0000


def set_apart():
    """From now on the names of network namespaces, the interfaces of this one, mounts, shared memory and EAL's directories are nobody
    else's, and end with the program: labs run beside each other, each with the same names."""
    if LIBC.unshare(NEW_MOUNTS | NEW_NETWORK):
        raise Failed(f"unshare: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")
    for folder, mode in (("/run/netns", "755"), (EAL, "755"), ("/dev/shm", "1777")):
        os.makedirs(folder, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", f"mode={mode}", "ipoib-fwd", folder)
    run("ip", "link", "set", "lo", "up")


def more_hugepages(number):
    """So many more of them are reserved, or fewer: false if there is no room for all, and then as many as before."""
    os.makedirs(os.path.dirname(LOCK), exist_ok=True)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = int(HUGEPAGES.read_text())
        HUGEPAGES.write_text(str(max(0, before + number)))
        if number > 0 and int(HUGEPAGES.read_text()) < before + number:
            HUGEPAGES.write_text(str(before))
            return False
        return True
