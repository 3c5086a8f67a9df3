"""Hugepages: reserved beyond those that the machine has, and released however the run ends."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

# Held while the number of reserved hugepages changes.
LOCK = "/run/lock/ipoib-fwd-hugepages.lock"
HUGEPAGES = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
SCRIPTS = Path(__file__).resolve().parents[1]
# Releases hugepages when its standard input ends: when every process that could still use them has exited.
JANITOR = "import sys; sys.stdin.read(); sys.path.insert(0, sys.argv[1]); " \
          "from testbed.hugepages import reserve; reserve(-int(sys.argv[2]))"


def reserve(number):
    """Reserves `number` more hugepages of 2 MiB, or releases them if it is negative. False, and no change, if there is no room for all."""
    os.makedirs(os.path.dirname(LOCK), exist_ok=True)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = int(HUGEPAGES.read_text())
        HUGEPAGES.write_text(str(max(0, before + number)))
        if number > 0 and int(HUGEPAGES.read_text()) < before + number:
            HUGEPAGES.write_text(str(before))
            return False
        return True


class HugepageReservation:
    """Hugepages that are released by `release`, or when this process exits, even by SIGKILL. `number` is 0 if there is no room for them."""

    def __init__(self, number):
        self.number = 0
        try:
            if not reserve(number):
                return
        except OSError:
            return
        self.number = number
        # Neither a signal to the process group nor the end of the terminal reaches the janitor.
        self.janitor = subprocess.Popen([sys.executable, "-c", JANITOR, str(SCRIPTS), str(number)], stdin=subprocess.PIPE,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/")

    def release(self):
        if self.number:
            self.janitor.stdin.close()
            self.janitor.wait()
            self.number = 0
