"""Traffic between hosts, and what must have arrived: pings, files, TCP at full speed."""

import hashlib
import json
import math
import os
import re
import sys

from testbed import transfer
from testbed.programs import DEADLINE, Process, run

FILE_BYTES = 64 << 20
# Seconds to wait for the last answers of a ping.
LATE = 60


def answered(text, first=None):
    """The sequence numbers for which ping's output has an answer; with `first` only those up to that
    number."""
    numbers = {int(n) for n in re.findall(r"bytes from .* icmp_seq=(\d+) ", text)}
    return {n for n in numbers if first is None or n <= first}


def ping(netns, target, size, count=20, interval=0.02, wait=None, more=()):
    """How many of `count` echo requests were answered.

    With `wait` no more requests are sent than those, and each answer has that many seconds. Without it ping
    sends until that many answers have come, so that a late answer does not count as lost; `sent` can then
    exceed `count`.
    """
    limit = ("-W", wait or 2) if wait or count == 1 else ("-w", math.ceil(count * interval) + LATE)
    out = run("ping", "-n", "-c", count, "-i", interval, *limit, "-s", size, *more, target, netns=netns, check=False).stdout
    m = re.search(r"(\d+) packets transmitted", out)
    rtt = re.search(r"= ([\d.]+)/([\d.]+)/([\d.]+)", out)
    sent, received = int(m[1]) if m else count, len(answered(out, first=count))
    result = {"size": size, "sent": sent, "received": received, "ok": received == count}
    if rtt:
        result.update(rtt_min_ms=float(rtt[1]), rtt_avg_ms=float(rtt[2]), rtt_max_ms=float(rtt[3]))
    return result


def first_ping(netns, target, size=56):
    """Exactly one echo request, without a second attempt: whether it was answered."""
    return ping(netns, target, size, count=1, wait=DEADLINE // 2)["ok"]


def send_file(topology, from_ns, to_ns, target, size=FILE_BYTES):
    """Sends a file of random bytes over TCP; returns both digests, and how many bytes arrived in which
    time."""
    path = topology.dir / "random"
    digest = hashlib.sha256()
    with open(path, "wb") as f:
        for _ in range(size >> 20):
            block = os.urandom(1 << 20)
            digest.update(block)
            f.write(block)
    program = [sys.executable, transfer.__file__]
    receiver = Process("receiver", [*program, "receive"], to_ns, topology.dir / "receiver.log")
    try:
        topology.wait_for("the file's receiver", lambda: "listening" in receiver.text())
        run(*program, "send", target, path, netns=from_ns, timeout=4 * DEADLINE)
        receiver.wait()
        lines = receiver.text().splitlines()
        got = json.loads(lines[1]) if len(lines) > 1 else {"sha256": None, "bytes": 0, "seconds": 0}
    finally:
        receiver.stop(1)
        path.unlink(missing_ok=True)
    return {"ok": got["sha256"] == digest.hexdigest() and got["bytes"] == size, "bytes": got["bytes"],
            "sha256_sent": digest.hexdigest(), "sha256_received": got["sha256"], "seconds": got["seconds"]}


def iperf(topology, from_ns, to_ns, target, seconds, flows=1):
    """TCP at full speed: what it reached, and how many segments were sent again."""
    server = Process("iperf3", ["iperf3", "-s", "-1"], to_ns, topology.dir / "iperf3.log")
    try:
        topology.wait_for("iperf3's server", lambda: "LISTEN" in run("ss", "-Hltn", "sport", "=", ":5201", netns=to_ns).stdout)
        out = json.loads(run("iperf3", "-J", "-c", target, "-t", seconds, "-P", flows, netns=from_ns, timeout=seconds + DEADLINE).stdout)
    finally:
        server.stop(2)
    sent = out["end"]["sum_sent"]
    return {"bits_per_second": round(out["end"]["sum_received"]["bits_per_second"]), "bytes": sent["bytes"],
            "retransmits": sent.get("retransmits", 0), "segments": round(sent["bytes"] / 1448)}


def traffic(topology):
    """Packets and bytes by transport, summed over workers."""
    return topology.ctl("stats")["traffic"]


def packets(counters, *names):
    """Packets of these rows of `traffic`."""
    return sum(counters[n]["packets"] for n in names)


def grown(after, before):
    """The counters that changed, and by how much."""
    return {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}
