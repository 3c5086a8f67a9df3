"""Clients that stay connected to a gateway's control socket: `ipoib-fwd ctl events` and `ctl trace` in the
background, and raw ones."""

import json
import signal
import socket
import subprocess
import time
from pathlib import Path

from testbed.programs import DEADLINE, TestbedError, run


def connections(path):
    """The clients of a control socket, as inode numbers: each accepted connection has the socket's path in
    the kernel's table."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f" {path}")]
    return {fields[6] for fields in lines if fields[5] == "03"}


def control_client(path, *requests):
    """A raw client of a control socket: it has received the greeting and sent these requests."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(DEADLINE)
    client.connect(str(path))
    client.recv(1 << 20)
    for request in requests:
        client.send(request)
    return client


class Follower:
    """`ipoib-fwd ctl events`, and the lines that it has printed. After the constructor it misses no event."""

    command = "events"

    def __init__(self, topology, *arguments, path=None):
        """`path` is the gateway's control socket, where there are several."""
        self.topology, path = topology, path or topology.socket
        ctl = [topology.bin / "ipoib-fwd", "ctl", "--socket", path]
        line = [*ctl, self.command, *arguments]
        self.file = topology.dir / f"{self.command}-{time.monotonic_ns()}"
        before = connections(path)
        with open(self.file, "wb") as out:
            self.popen = subprocess.Popen([str(a) for a in line], stdout=out, stderr=subprocess.PIPE, text=True)
        try:
            topology.wait_for(f"ctl {self.command} to be connected", lambda: connections(path) - before or self.exited())
            # Greeting, request and first answer: the gateway has served this client's before it serves that
            # of `links`.
            for _ in range(3):
                topology.wait_for(f"ctl {self.command} to wait", self.waits)
                run(*ctl, "links", check=False)
            topology.wait_for(f"ctl {self.command} to wait", self.waits)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def exited(self):
        return self.popen.poll() is not None

    def waits(self):
        """It sleeps, or has exited."""
        return self.exited() or Path(f"/proc/{self.popen.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S"

    def text(self):
        return self.file.read_text()

    def wait(self, *words):
        """Waits until it has printed all of these words, and returns what it has printed."""
        def complete():
            exited, text = self.exited(), self.text()
            if all(word in text for word in words):
                return text
            if exited:
                raise TestbedError(f"ctl {self.command} exited without {' and '.join(words)}:\n{text[-2000:]}")
            return None

        return self.topology.wait_for(f"ctl {self.command} to print {' and '.join(words)}", complete)

    def events(self):
        """With `--json`: the events that it has printed so far."""
        return [json.loads(line) for line in self.text().splitlines(keepends=True) if line.endswith("\n")]

    def wait_event(self, kind, name):
        """With `--json`: waits for an event of this kind and name."""
        self.topology.wait_for(f"the event {kind} {name}", lambda: any((e["kind"], e["what"]) == (kind, name) for e in self.events()))

    def events_until(self, *names):
        """With `--json`: waits until it has printed events of all of these names, stops it, and returns all
        events."""
        self.wait(*(f'"{name}"' for name in names))
        return [json.loads(line) for line in self.end()[0]]

    def end(self, how=signal.SIGTERM):
        """The lines that it has printed, its exit code and its standard error.

        `how` is a signal, or None if it exits without one.
        """
        if how:
            self.popen.send_signal(how)
        try:
            _, err = self.popen.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            self.close()
            raise TestbedError(f"ctl {self.command} does not exit:\n{self.text()[-2000:]}") from None
        return self.text().splitlines(), self.popen.returncode, err.strip()

    def close(self):
        """Kills it, if it still runs."""
        if not self.popen.stderr.closed:
            self.popen.kill()
            self.popen.communicate()
