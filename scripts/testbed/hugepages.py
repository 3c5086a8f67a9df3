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
# Reserves hugepages, and releases them when its standard input ends: when every process that could still use
# them has exited.
JANITOR = """
import sys
sys.path.insert(0, sys.argv[1])
from testbed.hugepages import reserve
number = int(sys.argv[2])
reserved = reserve(number)
try:
    print(reserved, flush=True)
    sys.stdin.read()
finally:
    if reserved:
        reserve(-number)
"""


def reserve(number):
    """Reserves `number` more hugepages of 2 MiB, or releases them if it is negative.

    False, and no change, if there is no room for all.
    """
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
    """Hugepages that are released by `release`, or when this process exits, even by SIGKILL.

    `number` is 0 if there is no room for them.
    """

    def __init__(self, number):
        # Neither a signal to the process group nor the end of the terminal reaches the janitor.
        self.janitor = subprocess.Popen([sys.executable, "-c", JANITOR, str(SCRIPTS), str(number)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, cwd="/", text=True)
        # An error of the janitor, such as a read-only /sys, leaves no answer.
        self.number = number if self.janitor.stdout.readline().strip() == "True" else 0

    def release(self):
        self.janitor.stdin.close()
        self.janitor.wait()
        self.janitor.stdout.close()
        self.number = 0
