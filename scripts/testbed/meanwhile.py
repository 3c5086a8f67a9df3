"""TCP, pings and datagrams in both directions while something happens: what they notice of it."""

import contextlib
import itertools
import json
import sys
import time

from testbed import echo
from testbed.pings import Pings
from testbed.programs import DEADLINE, Process
from testbed.run_delay import RunDelay
from testbed.topology import ETH_IP, IB_IP

NUMBERS = itertools.count(1)
# Seconds between two pings of a direction.
INTERVAL = 0.05
# A client's time to send, which ends by a signal; longer than a test may take.
FOREVER = 3600


class Echo:
    """A client on the Ethernet host and a server on the InfiniBand host (`echo.py`)."""

    def __init__(self, topology, protocol):
        self.client, number = None, next(NUMBERS)
        program = [sys.executable, echo.__file__]
        self.server = Process(f"{protocol} server", [*program, f"{protocol}-server"], topology.ib,
                              topology.dir / f"{protocol}-server-{number}.log")
        try:
            topology.wait_for(f"the {protocol} server", lambda: "listening" in self.server.text())
            self.client = Process(f"{protocol} client", [*program, f"{protocol}-client", IB_IP, FOREVER], topology.eth,
                                  topology.dir / f"{protocol}-client-{number}.log")
            if protocol == "tcp":
                topology.wait_for("the connection", lambda: "connected" in self.client.text() or not self.client.alive())
        except BaseException:
            self.stop()
            raise

    def end(self):
        """Whether the client was content, and what it printed last."""
        if self.client.alive():
            self.client.popen.terminate()
        # The client gives up without further input.
        code = self.client.wait(echo.SILENCE + DEADLINE)
        lines = self.client.text().strip().splitlines()
        return code == 0, json.loads(lines[-1]) if code == 0 else "\n".join(lines[-5:])

    def stop(self):
        for process in filter(None, (self.client, self.server)):
            process.stop(1)


def meanwhile(topology, act, seconds=4):
    """Runs `act` in the middle of TCP and pings in both directions, which go on for `seconds` at least and
    until `act` has returned.

    `ok`: no byte of the TCP connection was lost; pings are answered afterwards, or this raises TestbedError.
    `lost` is the number of pings without an answer in the worse direction, `outage` the time that they cover.
    """
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(stopping(Echo(topology, "tcp")))
        pings = {}
        for name, netns, target in (("eth_to_ib", topology.eth, IB_IP), ("ib_to_eth", topology.ib, ETH_IP)):
            log = topology.dir / f"ping-{name}-{next(NUMBERS)}.log"
            pings[name] = stack.enter_context(stopping(Pings(netns, target, INTERVAL, log)))
        start = time.monotonic()
        for process in pings.values():
            process.wait_answers()
        act()
        # How long it lasts is the caller's wish, not something to wait for.
        time.sleep(max(0.0, start + seconds - time.monotonic()))
        result = {name: process.end() for name, process in pings.items()}
        ok, result["tcp"] = tcp.end()
        lost = max(result[name]["lost"] for name in pings)
        return {"ok": ok, **result, "lost": lost, "outage": round(lost * INTERVAL, 2)}


def under_datagrams(topology, act, seconds=4):
    """As `meanwhile`, with a stream of datagrams as well: `datagrams` is what it noticed.

    `run_delay_ms` in it is for how long, at most, its processes waited for a processor within a second and a
    half.
    """
    with stopping(Echo(topology, "udp")) as udp:
        delay = RunDelay(lambda: [p.pid for p in (*topology.processes, udp.server, udp.client)])
        try:
            result = meanwhile(topology, act, seconds)
            ok, datagrams = udp.end()
        finally:
            waited = delay.stop()
        if ok:
            datagrams["run_delay_ms"] = round(1000 * waited)
        return {**result, "ok": result["ok"] and ok, "datagrams": datagrams}


@contextlib.contextmanager
def stopping(what):
    try:
        yield what
    finally:
        what.stop()
