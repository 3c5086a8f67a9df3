"""Hostile packets in numbers: how they are sent so that none is lost on its path, and that they cost no
buffer."""

import time

from testbed.programs import DEADLINE, TestbedError
from testbed.traffic import packets, traffic

# Most buffers that a worker keeps between pool and receive queues (`STASH`): it takes that number at a time,
# so the number in use varies by it without a leak. Tests send more packets than that to detect a leak.
IN_HAND = 64
OFTEN = 100


def wait_for_buffers(topology, before):
    """Waits until no more buffers are in use than `before`, up to those that a worker keeps."""
    in_use = before

    def returned():
        nonlocal in_use
        in_use = topology.buffers_in_use()
        return in_use <= before + IN_HAND

    try:
        topology.wait_for("the buffers", returned)
    except TestbedError as error:
        raise TestbedError(f"{error}; {before} were in use before, {in_use} are now") from None


def send_watched(topology, send, frames, burst=256):
    """Sends bursts of frames that fit into the port's ring, each when the gateway has taken the last one."""
    received = lambda: packets(traffic(topology), "eth_receive")
    before, sent = received(), 0
    for frame in frames:
        send(frame)
        sent += 1
        if sent == burst:
            end, last = time.monotonic() + DEADLINE, before
            # The port does not take some of them at all: those are few.
            while (now := received()) - before < sent and time.monotonic() < end and not (now == last and now - before > 0.9 * sent):
                last = now
                time.sleep(0.01)
            before, sent = now, 0
