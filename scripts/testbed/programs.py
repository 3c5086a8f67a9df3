"""Programs: run to their end, or in the background with their output in a file; CPU time; signals that
interrupt a run."""

import os
import signal
import subprocess
import time
from pathlib import Path

# Seconds that another process may take for anything, on a machine that is busy with other work.
DEADLINE = 120


class TestbedError(Exception):
    """Something that the run needs did not happen."""

    # pytest would take the class for tests.
    __test__ = False


def run(*argv, netns=None, check=True, timeout=DEADLINE, **more):
    """Runs a program to its end, in a network namespace if one is named; its output is in the result."""
    argv = [str(a) for a in argv]
    if netns:
        argv = ["ip", "netns", "exec", netns, *argv]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, **more)
    except subprocess.TimeoutExpired:
        raise TestbedError(f"{' '.join(argv)}: still running after {timeout} s") from None
    except FileNotFoundError:
        raise TestbedError(f"{argv[0]} is not installed: run scripts/setup") from None
    if check and done.returncode:
        raise TestbedError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done


def wait_for(what, ready, seconds=DEADLINE, interval=0.02):
    """Polls `ready` until it returns something true, and returns that."""
    end = time.monotonic() + seconds
    while True:
        if result := ready():
            return result
        if time.monotonic() > end:
            raise TestbedError(f"{what}: not within {seconds:.0f} s")
        time.sleep(interval)


class Process:
    """A program in the background, with its output in a file."""

    def __init__(self, name, argv, netns, log):
        self.name, self.log = name, log
        argv = [str(a) for a in argv]
        if netns:
            argv = ["ip", "netns", "exec", netns, *argv]
        self.out = open(log, "wb")
        try:
            self.popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.out, stderr=subprocess.STDOUT,
                                          start_new_session=True)
        except FileNotFoundError:
            raise TestbedError(f"{argv[0]} is not there: build it, or run scripts/setup") from None

    @property
    def pid(self):
        """The program's own: `ip netns exec` replaces itself by it."""
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def text(self):
        return Path(self.log).read_text(errors="replace")

    def wait(self, seconds=DEADLINE):
        """Waits for the program to exit; returns its exit code."""
        try:
            return self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise TestbedError(f"{self.name}: still running after {seconds} s") from None

    def stop(self, grace=DEADLINE):
        """SIGTERM, then SIGKILL to what is left after `grace` seconds; returns the exit code."""
        if self.alive():
            self.popen.terminate()
            try:
                self.popen.wait(grace)
            except subprocess.TimeoutExpired:
                self.kill()
        self.out.close()
        return self.popen.returncode

    def kill(self):
        """SIGKILL to the program and its children."""
        try:
            os.killpg(self.popen.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.wait()
        self.out.close()


def cpu_split(pid):
    """Seconds of CPU time in user mode and in the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return tuple(int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])


def cpu_seconds(pid):
    return sum(cpu_split(pid))


def interruptible():
    """The first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt, so that everything is taken down; later
    ones do not disturb that."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupted(signum, _frame):
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(signum).name)

    # Also where the shell ignores it, as for jobs in the background.
    for number in signals:
        signal.signal(number, interrupted)
