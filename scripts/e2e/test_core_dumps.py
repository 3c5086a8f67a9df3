"""Packets in a gateway's core dump: a real dump, which the kernel writes when the gateway aborts."""

import contextlib
import fcntl
import mmap
import os
import shutil
import signal
import struct
from pathlib import Path

import pytest
from testbed.frames import ethernet_socket
from testbed.isolation import EAL
from testbed.programs import run
from testbed.topology import IB_IP, Topology
from testbed.traffic import ping

pytestmark = pytest.mark.netns

# Where the kernel writes a core dump: one setting for the whole host, even in a container.
PATTERN = Path("/proc/sys/kernel/core_pattern")
# Held while the setting must stay as it is.
LOCK = "/run/lock/ipoib-fwd-core-pattern.lock"
# A VLAN of no segment: its frames are in the packet buffers and are dropped, and nothing else reads them.
FOREIGN_VLAN, FRAMES = 4000, 8
PT_LOAD = 1


@contextlib.contextmanager
def cores_in_working_directory():
    """A core dump is a file in the working directory of the process.

    Where it is elsewhere (a collector, another directory), this changes the host's setting until the end;
    false if it cannot be changed.
    """
    os.makedirs(os.path.dirname(LOCK), exist_ok=True)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = PATTERN.read_text()
        if before.strip() and before[0] not in "|/@":
            yield True
            return
        try:
            PATTERN.write_text("core\n")
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            PATTERN.write_text(before)


@pytest.fixture
def cores():
    """Core dumps can be written."""
    with cores_in_working_directory() as possible:
        missing = None if possible else f"{PATTERN} leads elsewhere and cannot be written"
        if possible and run("prlimit", "--core=unlimited", "--", "true", check=False).returncode:
            missing = "core dumps are forbidden here: ulimit -Hc"
        if missing:
            assert not os.environ.get("CI"), missing
            pytest.skip(missing)
        yield


class Dumping(Topology):
    """The gateway may dump core, into a directory of its own.

    Its buffers are in ordinary pages: a core dump has shared hugepages only where the system is configured
    so.
    """

    cores = None

    def memory_options(self):
        return ["--no-huge", "--no-shconf", "-m", "256"]

    def gateway_config(self):
        line = f'cores = "{self.cores}"\n' if self.cores else ""
        return super().gateway_config().replace("[gateway]\n", f"[gateway]\n{line}", 1)

    def gateway_command(self):
        """As always, but for the working directory and the limit."""
        self.dumps = self.dir / "cores"
        self.dumps.mkdir()
        return ["env", f"--chdir={self.dumps}", "prlimit", "--core=unlimited", "--", *super().gateway_command()]

    def close(self):
        super().close()
        # EAL leaves it where the gateway aborts.
        shutil.rmtree(EAL / self.tag, ignore_errors=True)

    def carry(self, mark):
        """Hosts exchange pings with the mark in them."""
        result = ping(self.eth, IB_IP, 1400, more=("-p", mark.hex()))
        assert result["ok"], result

    def drop(self, mark):
        """The gateway drops frames with the mark in them."""
        before = self.drops().get("vlan-unknown", 0)
        raw, gateway, _ = ethernet_socket(self)
        with raw:
            for _ in range(FRAMES):
                raw.send(gateway + bytes.fromhex("020000000001") + struct.pack(">HHH", 0x8100, FOREIGN_VLAN, 0x0800) + mark * 80)
        self.wait_for("the frames to be dropped", lambda: self.drops().get("vlan-unknown", 0) >= before + FRAMES)

    def buffers(self):
        """Address ranges of the packet buffers: EAL's memory without hugepages is a file in memory."""
        lines = [line.split() for line in Path(f"/proc/{self.gateway.pid}/maps").read_text().splitlines()]
        found = [tuple(int(word, 16) for word in fields[0].split("-")) for fields in lines if "memfd:nohuge" in "".join(fields[5:])]
        assert found, lines
        return found

    def abort(self):
        """Aborts the gateway; returns the signal that ended it, and its core dumps."""
        self.check_alive()
        self.forget(self.gateway)
        self.gateway.popen.send_signal(signal.SIGABRT)
        code = self.gateway.wait()
        self.gateway.stop()
        return -code, sorted(self.dumps.iterdir())


def loaded(core):
    """Address ranges of which the core dump has contents."""
    assert core[:5] == b"\x7fELF\x02", "no ELF file of 64 bits"
    (at,), (size, count) = struct.unpack_from("<Q", core, 32), struct.unpack_from("<HH", core, 54)
    heads = [struct.unpack_from("<IIQQQQQQ", core, at + n * size) for n in range(count)]
    return [(address, address + in_file) for kind, _, _, address, _, in_file, _, _ in heads if kind == PT_LOAD and in_file]


def dump(topology):
    """The signal that ended an aborted gateway, its core dumps, and what the first one contains: bytes of
    packet buffers, the mark of carried packets and that of dropped ones.
    """
    carried, dropped = os.urandom(16), os.urandom(16)
    topology.carry(carried)
    topology.drop(dropped)
    buffers = topology.buffers()
    number, files = topology.abort()
    if not files:
        return number, 0, None
    with files[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as core:
        shared = sum(max(0, min(end, to) - max(begin, at)) for begin, end in loaded(core) for at, to in buffers)
        return number, len(files), (shared, core.find(carried) >= 0, core.find(dropped) >= 0)


def test_no_core_by_default(start, cores):
    assert dump(start(Dumping)) == (signal.SIGABRT, 0, None)


@pytest.mark.core
def test_lean_core(start, cores):
    """It contains no packet buffer, and nothing that was in one alone."""
    number, files, (buffer_bytes, _, dropped) = dump(start(Dumping, cores="lean"))
    assert (number, files) == (signal.SIGABRT, 1)
    assert buffer_bytes == 0
    assert not dropped


def test_full_core(start, cores, figures):
    """It contains packet buffers, with the packets in them."""
    number, files, (buffer_bytes, carried, dropped) = dump(start(Dumping, cores="full"))
    figures(buffer_bytes=buffer_bytes)
    assert (number, files) == (signal.SIGABRT, 1)
    assert buffer_bytes > 0
    assert carried and dropped
