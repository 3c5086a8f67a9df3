"""`ipoib-fwd metrics`, the exporter of a gateway's metrics, and a reader of what it serves."""

import re
import socket
import urllib.error
import urllib.request

from testbed.programs import DEADLINE, Process, TestbedError, wait_for

SAMPLE = re.compile(r'^(\w+)(?:\{(.*)\})? (\S+)$')


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(port, path="/metrics", accept="*/*"):
    """Status, content type and text of an HTTP answer."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def samples(text):
    """Values by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            found[name, labels or ""] = float(value)
    return found


def total(values, name, label):
    """The sum of a metric over the label sets that contain `label`."""
    return sum(value for (n, labels), value in values.items() if n == name and label in labels)


class Exporter:
    """The exporter for a gateway's control socket."""

    def __init__(self, topology, path=None, port=None):
        self.port = port or free_port()
        line = [topology.bin / "ipoib-fwd", "metrics", "--listen", f"127.0.0.1:{self.port}", "--socket", path or topology.socket]
        self.process = Process("metrics", line, None, topology.dir / f"metrics-{self.port}.log")
        try:
            wait_for("the exporter", self.listens)
        except BaseException:
            self.process.stop()
            raise

    def listens(self):
        if not self.process.alive():
            raise TestbedError(f"metrics: {self.process.text()}")
        return "at http://" in self.process.text()

    def values(self):
        """All values by name and labels."""
        return samples(get(self.port)[2])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stop()
