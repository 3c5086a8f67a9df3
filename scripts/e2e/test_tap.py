"""The gateway's Ethernet port wakes it by receive interrupts, and idle workers leave the processor to others:
net_tap with idle = "sleep".

    eth0 ─ w0 ─ wire ─ dtap0 ─ net_tap0 ─ gateway
"""

import time

import pytest
from testbed import wire
from testbed.programs import cpu_seconds, run
from testbed.threads import threads
from testbed.topology import ETH_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping

pytestmark = pytest.mark.netns

# A worker that sleeps takes a few hundredths of a processor, one that spins takes all of it.
CPU_SHARE = 0.33
SECONDS = 3
# A worker sleeps for 2 ms at most. One that an event wakes again and again does not sleep at all.
SLEEPS = 50


class Tap(Topology):
    """Starts without a packet between the hosts."""

    vdev = "net_tap0,iface=dtap0"

    def namespaces_up(self):
        for name in (self.eth, self.gw, self.ib):
            self.namespace(name)
        self.cable(self.eth, "eth0", self.gw, "w0")
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)

    def up(self):
        self.start()
        self.wait_for("both links", lambda: self.link_up() and self.ctl("links")["ethernet"]["link"] == "up")
        self.wait_hosts()
        wire.start(self, self.gw, "w0", "dtap0")
        self.flush_neighbours()

    def sleeps(self):
        """How often each worker's thread has slept so far."""
        return {tid: int(t["voluntary_ctxt_switches"]) for tid, t in threads(self.gateway.pid).items() if "worker" in t["Name"]}

    def wait_idle(self):
        """Waits until every worker sleeps again and again."""
        before = self.sleeps()
        assert len(before) == self.workers, before
        self.wait_for("all workers to sleep", lambda: all(n - before[tid] >= SLEEPS for tid, n in self.sleeps().items()))


class TapOfTwoWorkers(Tap):
    workers = 2


@pytest.fixture(params=[Tap, TapOfTwoWorkers])
def tap(request, start):
    return start(request.param)


def test_first_ping_to_infiniband(start):
    tap = start(Tap)
    assert first_ping(tap.eth, IB_IP)


@pytest.mark.core
def test_first_ping_to_ethernet(start):
    tap = start(TapOfTwoWorkers)
    assert first_ping(tap.ib, ETH_IP)


def test_port_wakes_by_interrupt(start):
    tap = start(Tap)
    assert tap.ctl("links")["ethernet"]["woken_by"] == "rx-interrupt"
    assert "net_tap0 (wakes by rx-interrupt)" in tap.gateway.text()


def test_sleeping_workers_wake(tap):
    """Without traffic every worker sleeps, and the first packet in each direction arrives all the same."""
    tap.wait_idle()
    assert first_ping(tap.eth, IB_IP)
    assert first_ping(tap.ib, ETH_IP)


@pytest.mark.timing
def test_idle_cpu(tap, figures):
    """Without traffic the gateway takes little of a processor."""
    tap.wait_idle()
    pid, slept = tap.gateway.pid, tap.sleeps()
    before, begin = cpu_seconds(pid), time.monotonic()
    time.sleep(SECONDS)
    share = (cpu_seconds(pid) - before) / (time.monotonic() - begin)
    sleeps = [n - slept[tid] for tid, n in tap.sleeps().items()]
    figures(cpu_share=round(share, 4), sleeps=sleeps)
    assert share < CPU_SHARE
    assert min(sleeps) >= SLEEPS
