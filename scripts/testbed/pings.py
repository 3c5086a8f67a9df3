"""Pings in the background, and how long a host takes to be reachable again."""

import signal
import time

from testbed.programs import DEADLINE, Process, TestbedError, run, wait_for
from testbed.traffic import LATE, answered

# Answers by which a path is known to work: more than one that was in flight.
ENOUGH = 3


class Pings:
    """`ping` in the background, with a line for each answer."""

    def __init__(self, netns, target, interval, log):
        self.process = Process("ping", ["ping", "-n", "-i", interval, target], netns, log)

    def answers(self):
        """The sequence numbers that were answered so far."""
        return answered(self.process.text())

    def wait_answers(self, count=ENOUGH, seconds=LATE):
        """Waits until `count` more requests are answered."""
        had = len(self.answers())

        def came():
            if not self.process.alive():
                raise TestbedError(f"ping has exited:\n{self.process.text()[-500:]}")
            return len(self.answers()) >= had + count

        try:
            wait_for("answers to pings", came, seconds, interval=0.05)
        except TestbedError as error:
            raise TestbedError(f"{error}\n{self.process.text()[-500:]}") from None

    def end(self):
        """Ends ping once answers come; returns the requests up to the last answered one, and how many of
        those were not answered.

        `ping` does not wait for answers after it is interrupted, so what follows the last answer does not
        count. Without any answer this raises TestbedError: nothing is lost where nothing is sent.
        """
        self.wait_answers()
        self.process.popen.send_signal(signal.SIGINT)
        self.process.wait()
        numbers = self.answers()
        return {"sent": max(numbers), "lost": max(numbers) - len(numbers)}

    def stop(self):
        self.process.stop(1)


def back_within(netns, target, seconds=DEADLINE):
    """Seconds until a ping is answered; raises TestbedError after `seconds`."""
    start = time.monotonic()
    while run("ping", "-n", "-q", "-c", 1, "-W", 1, target, netns=netns, check=False).returncode:
        if time.monotonic() - start > seconds:
            raise TestbedError(f"{target} does not answer within {seconds} s")
    return round(time.monotonic() - start, 2)
