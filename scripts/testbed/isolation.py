"""Isolation of a run: mounts and network namespaces of its own."""

import ctypes
import os
from pathlib import Path

from testbed.programs import TestbedError, run

# EAL keeps a directory for each file prefix here, also after it has exited.
EAL = Path("/var/run/dpdk")
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_NETWORK = 0x0002_0000, 0x4000_0000
# Bytes of shared memory that a topology needs: the rings of a few software cables and the captures' queues.
SHARED_MEMORY = 256 << 20


def isolate():
    """Moves this process into mount and network namespaces of its own.

    Names of network namespaces, interfaces, shared memory and EAL's directories are private from here on and
    disappear with the process, so that several runs can go on at once.
    """
    if os.geteuid() != 0:
        raise TestbedError("network namespaces need root: run this command with sudo")
    if LIBC.unshare(NEW_MOUNTS | NEW_NETWORK):
        error = os.strerror(ctypes.get_errno())
        raise TestbedError(f"unshare: {error}; in a container, run it with --privileged or --cap-add SYS_ADMIN,NET_ADMIN")
    run("mount", "--make-rprivate", "/")
    for folder, mode in (("/run/netns", "755"), (EAL, "755"), ("/dev/shm", "1777")):
        os.makedirs(folder, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", f"mode={mode}", "ipoib-fwd", folder)
    room = os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize
    if room < SHARED_MEMORY:
        raise TestbedError(f"/dev/shm has room for {room >> 20} MiB; {SHARED_MEMORY >> 20} MiB are needed: free some memory")
    run("ip", "link", "set", "lo", "up")
