"""Logs of services: journal entries with fields, in systemd's journal and in a mock socket."""

import contextlib
import ctypes
import json
import os
import pathlib
import select
import shutil
import signal

import pytest
from testbed.isolation import LIBC
from testbed.mailbox import Mailbox
from testbed.programs import DEADLINE, Process, run, wait_for
from testbed.topology import IB_IP, Topology
from testbed.traffic import ping

pytestmark = pytest.mark.netns

DAEMON = "/usr/lib/systemd/systemd-journald"
IN_CLOSE_NOWRITE = 0x10
# In mount namespaces of its own: a journal, and standard error as its stream, as far as the environment says.
# In fact that is a file, so that the test sees what bypasses the journal.
WITH_JOURNAL = """set -e
dir=$1; exec 7< "/run/netns/$2"; shift 2
mount -t tmpfs none /run
mkdir -p /run/systemd/journal /run/log/journal
mount --bind "$dir/journal" /run/log/journal
if [ -d /var/log/journal ]; then mount -t tmpfs none /var/log/journal; umount /var/log/journal; fi
"$0" > "$dir/journald.log" 2>&1 &
echo $! > "$dir/journald.pid"
while [ ! -S /run/systemd/journal/socket ]; do sleep 0.05; done
JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2)
export JOURNAL_STREAM
exec nsenter --net=/proc/self/fd/7 "$@"
"""
# The same with a directory that has a socket in the journal's place.
WITH_SOCKET = """set -e
dir=$1; shift
mount -t tmpfs none /run
mkdir -p /run/systemd/journal
mount --bind "$dir" /run/systemd/journal
JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2)
export JOURNAL_STREAM
exec "$@"
"""
IN_PRIVATE_MOUNTS = ("unshare", "-m", "--propagation", "private", "sh", "-c")


def has_exited(pid):
    """A zombie has closed all that it had."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


class WithJournal(Topology):
    """The gateway has a journal of its own."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        (self.dir / "journal").mkdir()

    def start_gateway(self):
        self.gateway = self.background("ipoib-fwd", [*IN_PRIVATE_MOUNTS, WITH_JOURNAL, DAEMON, self.dir, self.gw, *self.gateway_command()])

    def entries(self):
        out = run("journalctl", "-D", self.dir / "journal", "-o", "json", "-q", "SYSLOG_IDENTIFIER=ipoib-fwd", check=False)
        return [json.loads(line) for line in out.stdout.splitlines()]

    def stop_journal(self):
        path = self.dir / "journald.pid"
        if path.exists():
            pid = int(path.read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            # While it flushes it still takes entries, and nobody sees them.
            wait_for("journald to exit", lambda: has_exited(pid))

    def close(self):
        self.stop_journal()
        super().close()


def test_entries_of_gateway(start, figures):
    """Entries have text, priority and source; those of a segment have its name and the name of the event.

    Nothing bypasses the journal. When that is gone the gateway continues, with lines on standard error.
    """
    if not pathlib.Path(DAEMON).exists() or not shutil.which("journalctl"):
        if os.environ.get("CI"):
            pytest.fail(f"there is no {DAEMON}, or no journalctl")
        pytest.skip(f"there is no {DAEMON}, or no journalctl")
    topology = start(WithJournal)
    log = topology.gateway.text()
    topology.ctl("reload")
    topology.ctl("mode", "datagram")
    topology.ctl("mode", "connected")
    ping(topology.eth, IB_IP, 56, count=2)

    def link_up(entries):
        """The Ethernet port's event, which belongs to no segment, comes before the segment's or after it."""
        return next((e for e in entries if e.get("IPOIB_FWD_EVENT") == "up" and "IPOIB_FWD_SEGMENT" in e), None)

    def complete():
        # journald writes them with a delay.
        entries = topology.entries()
        events = {e["IPOIB_FWD_EVENT"] for e in entries if "IPOIB_FWD_EVENT" in e}
        return entries if {"up", "reload", "connection-up", "connection-down", "role"} <= events and link_up(entries) else None

    entries = topology.wait_for("all events in the journal", complete)
    figures(entries=len(entries))
    for entry in entries:
        assert {"MESSAGE", "PRIORITY", "CODE_FILE", "CODE_LINE", "TARGET"} <= entry.keys(), entry
        assert "segment=" not in entry["MESSAGE"], entry
    up = link_up(entries)
    assert up["IPOIB_FWD_SEGMENT"] == "default"
    assert up["MESSAGE"] == "default: InfiniBand link up"
    assert up["PRIORITY"] == "6"
    assert up["_TRANSPORT"] == "journal"
    assert pathlib.Path(up["CODE_FILE"]).suffix == ".rs"
    assert [line for line in topology.gateway.text().splitlines() if " INFO " in line or " WARN " in line] == []
    topology.check_alive()
    topology.stop_journal()
    # Now entries have no receiver.
    topology.ctl("reload")
    topology.ctl("set", "log", "debug")
    topology.check_alive()
    assert "set: log is debug" in topology.gateway.text()[len(log):]


class Logged(Mailbox):
    """A program with a socket in the journal's place."""

    def __init__(self, directory, number, program, line):
        folder = directory / f"{program}-{number}"
        folder.mkdir()
        super().__init__(folder / "socket")
        self.process = Process(program, [*IN_PRIVATE_MOUNTS, WITH_SOCKET, "sh", folder, *line], None, folder / "log")

    def wait(self, text):
        """The fields of the next entry whose text starts like that."""
        entry = self.wait_suitable(f"{text}...", lambda message: fields(message).get("MESSAGE", "").startswith(text))
        return fields(entry)

    def stop(self):
        """Stops the program; returns all of its entries."""
        self.process.stop()
        return [entry for entry in map(fields, self.close()) if entry]


def fields(message):
    return dict(line.split("=", 1) for line in message.splitlines() if line)


@pytest.fixture
def logged(tmp_path, programs):
    """`logged(program, *arguments, prefix=())` starts a program with a socket in the journal's place."""
    running = []

    def build(program, *arguments, prefix=()):
        running.append(Logged(tmp_path, len(running), program, [*prefix, programs / program, *arguments]))
        return running[-1]

    yield build
    for program in running:
        program.process.stop()
        if program.thread.is_alive():
            program.close()


@contextlib.contextmanager
def read_by_another(path):
    """Waits at its end until a process has read the file and closed it, since the beginning."""
    descriptor = LIBC.inotify_init1(0)
    assert descriptor >= 0
    try:
        assert LIBC.inotify_add_watch(descriptor, ctypes.c_char_p(str(path).encode()), IN_CLOSE_NOWRITE) >= 0
        yield
        assert select.select([descriptor], [], [], DEADLINE)[0], f"{path} was not read within {DEADLINE} s"
    finally:
        os.close(descriptor)


@pytest.mark.core
def test_entries_of_fabric(logged, tmp_path):
    """ibfab: entries with priority, source and fields of its own; the level of the configuration is taken
    again by SIGHUP."""
    config = tmp_path / "fabric.toml"
    config.write_text('[fabric]\nlog = "info"\n')
    ibfab = logged("ibfab", "--config", config)
    running = ibfab.wait("fabric runs")
    expected = {"PRIORITY": "6", "SYSLOG_IDENTIFIER": "ibfab", "IBFAB_SWITCHES": "1", "TARGET": "ibfab::program"}
    assert {name: running.get(name) for name in expected} == expected
    assert running["CODE_FILE"].endswith(".rs")
    assert int(running["CODE_LINE"]) > 0
    config.write_text('[fabric]\nlog = "loud"\n')
    os.kill(ibfab.process.pid, signal.SIGHUP)
    refused = ibfab.wait("the configuration stays as it was")
    assert refused["PRIORITY"] == "3"
    assert "fabric.toml:2:7" in refused["MESSAGE"]
    config.write_text('[fabric]\nlog = "error"\n')
    with read_by_another(config):
        os.kill(ibfab.process.pid, signal.SIGHUP)
    config.write_text('[fabric]\nlog_filter = "ibfab=info"\n')
    os.kill(ibfab.process.pid, signal.SIGHUP)
    assert ibfab.wait("configuration read again")["PRIORITY"] == "6"
    # It prints statistics when it exits, not before.
    assert ibfab.process.text() == ""
    # There is one such entry, of this reading; at level "error" there was none.
    entries = ibfab.stop()
    assert sum(e.get("MESSAGE", "").startswith("configuration read again") for e in entries) == 1, entries


@pytest.mark.core
def test_entries_of_device(logged, tmp_path):
    """softhca: entries with priority at the level of its option."""
    softhca = logged("softhca", "--socket", tmp_path / "hca.sock", "--log", "info")
    waits = softhca.wait("waiting for a client at")
    assert (waits["SYSLOG_IDENTIFIER"], waits["PRIORITY"]) == ("softhca", "6")
    softhca.stop()
    assert softhca.process.text() == ""


def test_level_by_environment(logged, tmp_path):
    """The environment's level takes precedence over the option's."""
    control = tmp_path / "hca.sock"
    softhca = logged("softhca", "--socket", control, "--log", "debug", prefix=["env", "SOFTHCA_LOG=error"])
    wait_for("softhca's socket", control.exists)
    assert softhca.stop() == []
    assert softhca.process.text() == ""


def test_error_at_exit(logged, tmp_path):
    """The error that ends a program is on standard error, once, with its priority."""
    softhca = logged("softhca", "--socket", tmp_path / "none/hca.sock")
    assert softhca.process.wait() == 1
    text = softhca.process.text()
    assert text.startswith("<3>softhca: ")
    assert text.count("No such file") == 1
