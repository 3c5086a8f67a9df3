"""Programs that are run to their end, or go on in the background; signals that end ours."""

import os
import signal
import subprocess
from pathlib import Path


class Failed(Exception):
    """A step of the demo could not be done."""


def run(*argv, netns=None, check=True, timeout=60, **more):
    argv = [str(a) for a in argv]
    if netns:
        argv = ["ip", "netns", "exec", netns, *argv]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, **more)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(argv)}: no end after {timeout} s") from None
    if check and done.returncode:
        raise Failed(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done


class Process:
    """A program in the background, with its output in a file."""

    def __init__(self, name, argv, netns, log):
        self.name, self.log = name, log
        argv = [str(a) for a in argv]
        if netns:
            argv = ["ip", "netns", "exec", netns, *argv]
        self.out = open(log, "wb")
        self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT,
                                      start_new_session=True)

    def alive(self):
        return self.popen.poll() is None

    def text(self):
        return Path(self.log).read_text(errors="replace")

    def stop(self, grace=10):
        """SIGTERM, then SIGKILL to what is left; returns the exit code."""
        if self.alive():
            self.popen.terminate()
            try:
                self.popen.wait(grace)
            except subprocess.TimeoutExpired:
                os.killpg(self.popen.pid, signal.SIGKILL)
                try:
                    self.popen.wait(grace + 10)
                except subprocess.TimeoutExpired:
                    raise Failed(f"{self.name}: still there after SIGKILL") from None
        self.out.close()
        return self.popen.returncode


def cpu_split(pid):
    """Seconds of a processor: the program's own, and the kernel's for it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return tuple(int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])


def cpu_seconds(pid):
    return sum(cpu_split(pid))


def interruptible():
    """Signals that end the program become an exception, so that what was built is taken down."""
    def interrupted(signum, _frame):
        raise KeyboardInterrupt(signal.Signals(signum).name)

    # Also where the shell has it ignored, as for jobs in the background.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
