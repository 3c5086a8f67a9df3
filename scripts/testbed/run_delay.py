"""How long the machine kept processes from running, for promises on time that the machine must not break."""

import glob
import threading
import time
from pathlib import Path


class RunDelay(threading.Thread):
    """Samples for how long threads wait for a processor, as the kernel counts it, and by how much a sleep of
    our own is too long.

    `pids` returns the processes that count.
    """

    INTERVAL, WINDOW = 0.05, 1.5

    def __init__(self, pids):
        super().__init__(daemon=True)
        # By thread: the delay when it was first seen, and the last one.
        self.pids, self.over, self.delays, self.samples = pids, threading.Event(), {}, []
        self.start()

    def run(self):
        before, overslept = time.monotonic(), 0.0
        while not self.over.wait(self.INTERVAL):
            now = time.monotonic()
            overslept, before = overslept + max(0.0, now - before - self.INTERVAL), now
            for pid in self.pids():
                for task in glob.glob(f"/proc/{pid}/task/*/schedstat"):
                    try:
                        delay = int(Path(task).read_text().split()[1]) / 1e9
                        self.delays[task] = (self.delays.get(task, (delay,))[0], delay)
                    except (OSError, IndexError):
                        # It has exited.
                        pass
            self.samples.append((now, overslept + sum(last - first for first, last in self.delays.values())))

    def stop(self):
        """The longest delay within any window of 1.5 s, in seconds."""
        self.over.set()
        self.join()
        most, first = 0.0, 0
        for now, delay in self.samples:
            while now - self.samples[first][0] > self.WINDOW:
                first += 1
            most = max(most, delay - self.samples[first][1])
        return most
