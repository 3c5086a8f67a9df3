"""The service of GID tables: readers see addresses come and go, outlive the service, and read whole tables
only."""

import os
import shutil
import signal
import stat
import time

import pytest
from testbed.gid_service import DEVICE, OTHER, GidService
from testbed.programs import cpu_seconds, run

pytestmark = pytest.mark.netns

# A reader looks whether the directory of tables is there at this interval, in seconds.
DIRECTORY_INTERVAL = 2
KILLS = 12
# Entries of a table.
CAPACITY = 128


@pytest.fixture
def service(start):
    return start(GidService)


@pytest.mark.core
def test_follow(service):
    """A reader sees addresses come and go, of interfaces on top of the ports, too; only the service may write
    the tables."""
    service.address("add", "10.91.0.1/24")
    process = service.serve()
    reader = service.follow("follow")
    service.address("add", "10.91.0.2/24")
    service.address("add", "10.91.1.1/24", "gs1")
    reader.wait("added", DEVICE, "10.91.0.2")
    reader.wait("added", OTHER, "10.91.1.1")
    service.address("del", "10.91.0.1/24")
    # The kernel removes further addresses of the same network with the first one.
    reader.wait("removed", DEVICE, "10.91.0.1")
    service.address("replace", "10.91.0.2/24")
    run("ip", "link", "add", "link", "gs0", "name", "gsm", "type", "macvlan", netns=service.gw)
    service.address("add", "10.91.7.1/24", "gsm")
    reader.wait("added", DEVICE, "10.91.7.1")
    service.wait_for("the address that was replaced", lambda: "10.91.0.2" in service.addresses().values())
    rows = service.rows()
    seen = {row["ipv4"]: (row["device"], row["netdev"], row["vlan"], row["type"]) for row in rows if row["ipv4"]}
    assert seen == {"10.91.0.2": (DEVICE, "gs0", None, "RoCE v2"), "10.91.7.1": (DEVICE, "gsm", None, "RoCE v2"),
                    "10.91.1.1": (OTHER, "gs1", None, "RoCE v2")}
    own = [row for row in rows if row["index"] == 0]
    assert [row["device"] for row in own] == [DEVICE, OTHER]
    assert all(row["default"] and row["gid"].startswith("fe80:") for row in own), own
    assert {row["device"] for row in service.rows("--device", OTHER)} == {OTHER}
    lines = service.gids().stdout.splitlines()
    assert lines[0].split()[0] == "DEV"
    assert [line for line in lines if line.split()[0] == DEVICE and "10.91.0.2" in line], lines
    assert f"+ {DEVICE} 1 " in process.text()
    assert "10.91.0.2" in process.text()
    run("ip", "link", "del", "gsm", netns=service.gw)
    reader.wait("removed", DEVICE, "10.91.7.1")
    assert stat.S_IMODE((service.tables / DEVICE).stat().st_mode) == 0o644
    assert stat.S_IMODE(service.tables.stat().st_mode) == 0o755
    assert service.stop(process) == 0


@pytest.mark.timing
def test_idle_cpu(service, figures):
    """The service waits for events instead of polling."""
    process = service.serve()
    before = cpu_seconds(process.pid)
    time.sleep(1)
    used = cpu_seconds(process.pid) - before
    figures(cpu_seconds=used)
    assert used < 0.2


@pytest.mark.core
def test_restart(service):
    """Readers of a killed service are notified and continue with the next one: entries keep their indices,
    and what has changed meanwhile is reported as a change.
    """
    for address in ("10.92.1.1/24", "10.92.2.1/24", "10.92.3.1/24"):
        service.address("add", address)
    first = service.serve()
    readers = [service.follow("one"), service.follow("two", "--device", DEVICE)]
    service.wait_for("all addresses", lambda: len(service.addresses()) == 3)
    before = service.addresses()
    service.kill(first)
    for reader in readers:
        reader.wait("stale")
    why = readers[0].events("stale")[0]["why"]
    assert str(first.pid) in why
    assert "stale" in why
    stale = service.gids(check=False)
    assert stale.returncode == 1
    assert DEVICE in stale.stdout
    # While no service runs, one address goes and another one comes, and nothing of it is in the table.
    service.address("del", "10.92.2.1/24")
    service.address("add", "10.92.9.1/24")
    assert service.addresses(check=False) == before
    second = service.serve()
    for reader in readers:
        reader.wait("current")
        reader.wait("added", DEVICE, "10.92.9.1")
        reader.wait("removed", DEVICE, "10.92.2.1")
    kept = {index: ip for index, ip in before.items() if ip != "10.92.2.1"}
    assert kept.items() <= service.addresses().items()
    changes = sorted((event["event"], event.get("ipv4")) for event in readers[1].events("added", "removed"))
    assert changes == [("added", "10.92.9.1"), ("removed", "10.92.2.1")]
    service.check_alive()
    for reader in readers:
        reader.kill()
    assert service.stop(second) == 0
    last = service.gids(check=False)
    assert last.returncode == 1
    assert "stale" in last.stderr


def test_directory_removed(service):
    """The tables are removed with the service, as `systemctl stop` does it: readers continue with the files
    of the next one."""
    service.address("add", "10.96.1.1/24")
    first = service.serve()
    reader = service.follow("away")
    assert service.stop(first) == 0
    reader.wait("stale")
    shutil.rmtree(service.tables)
    # Nothing shows that the reader has looked for the directory. One that has not by then must continue, too.
    time.sleep(DIRECTORY_INTERVAL + 0.5)
    nowhere = service.gids(check=False)
    assert nowhere.returncode == 1
    assert "systemctl start ipoib-gids" in nowhere.stderr
    service.address("add", "10.96.2.1/24")
    service.serve()
    reader.wait("current")
    reader.wait("added", DEVICE, "10.96.2.1")
    service.check_alive()
    # An empty new file does not mean that addresses went.
    assert not reader.events("removed")


def test_killed_again_and_again(service):
    """Killed while addresses change: a reader sees whole tables only, and in the end the right one."""
    process = service.serve()
    reader = service.follow("steady", "--device", DEVICE)
    for n in range(KILLS):
        service.address("add", f"10.93.{n}.1/24")
        if n % 2:
            # Other kills find the service in the middle of the change.
            time.sleep(0.03)
        service.kill(process)
        rows = service.rows("--device", DEVICE, check=False)
        assert len({row["index"] for row in rows}) == len(rows), rows
        assert rows[0]["index"] == 0, rows
        process = service.serve()
    wanted = {f"10.93.{n}.1" for n in range(KILLS)}
    service.wait_for("all addresses", lambda: wanted <= set(service.addresses().values()))
    service.wait_for("the reader to see them", lambda: wanted <= {event["ipv4"] for event in reader.events("present", "added")})
    assert not reader.events("removed")
    service.check_alive()


def test_second_service(service):
    """There is one service for a directory: the second one is refused with the first one's process ID, and
    readers notice nothing."""
    first = service.serve()
    second = run(*service.command(), netns=service.gw, check=False)
    assert second.returncode == 1
    assert f"process {first.pid}" in second.stderr
    assert "--dir" in second.stderr
    assert service.gids(check=False).returncode == 0
    # A reader that stops in the middle, or dies, does not disturb the service.
    reader = service.follow("frozen")
    reader.process.popen.send_signal(signal.SIGSTOP)
    service.address("add", "10.94.0.1/24")
    service.wait_for("an address while a reader is stopped", lambda: "10.94.0.1" in service.addresses().values())
    reader.kill()
    assert service.stop(first) == 0
    assert "ended" in first.text()


def refused(service, *arguments, words):
    """`ipoib-fwd gids` fails with a message that contains these words."""
    out = service.gids(*arguments, check=False)
    assert out.returncode in (1, 2), out
    for word in words:
        assert word in out.stderr
    assert "panicked" not in out.stderr


def test_hostile_directories(service):
    """Directories that others may write, symbolic links and missing directories are refused."""
    writable, link = service.dir / "open", service.dir / "link"
    writable.mkdir()
    writable.chmod(0o777)
    link.symlink_to(writable)
    for options in (("--serve", "--dir"), ("--from",)):
        refused(service, *options, writable, words=["chmod go-w"])
        refused(service, *options, link, words=["symbolic link"])
    refused(service, "--from", service.dir / "none", words=["none", "ipoib-gids"])
    refused(service, "--serve", "--dir", service.dir / "none/none", words=["none/none"])


def test_hostile_names(service):
    """Names that no interface has, one name twice, and more interfaces than there may be are refused."""
    for name in ("a/b", "", "averylonginterfacename", "a b", ".."):
        refused(service, "--serve", "--dir", service.tables, "--roce", name, words=["--roce"])
    refused(service, "--serve", "--dir", service.tables, "--roce", "gs0", "--roce", "gs0", words=["twice"])
    many = [word for n in range(33) for word in ("--roce", f"x{n}")]
    refused(service, "--serve", "--dir", service.tables, *many, words=["32"])


def test_hostile_files(service):
    """A process of the same user has left files at the path of a table.

    The service replaces invalid files, follows no link, and removes the table of a device that is gone."""
    service.stop(service.serve())
    table = service.tables / DEVICE
    for bad in (b"", b"x" * 100, os.urandom(8192), table.read_bytes()[:4096]):
        table.write_bytes(bad)
        refused(service, "--from", service.tables, "--device", DEVICE, words=["GID table"])
        process = service.serve()
        assert service.rows("--device", DEVICE), f"{len(bad)} bytes were not replaced: {process.text()[-300:]}"
        service.stop(process)
    table.unlink()
    target = service.dir / "target"
    target.write_bytes(b"precious")
    table.symlink_to(target)
    out = run(*service.command(), netns=service.gw, check=False)
    assert out.returncode == 1
    assert DEVICE in out.stderr
    assert target.read_bytes() == b"precious"
    table.unlink()
    shutil.copy(service.tables / OTHER, service.tables / "mlx5_9")
    service.serve()
    assert not (service.tables / "mlx5_9").exists()
    assert not (service.tables / "mlx5_9.lock").exists()


def test_full_table(service):
    """Addresses for which a table has no room wait until there is some.

    Without its directory the service exits.
    """
    for first in (0, 70):
        # The kernel answers a batch of them at once.
        lines = "".join(f"addr add 10.95.{n}.1/24 dev gs0\n" for n in range(first, first + 70))
        run("ip", "-batch", "-", netns=service.gw, input=lines)
    process = service.serve()
    assert len(service.rows("--device", DEVICE)) == CAPACITY
    assert "is full" in process.text()
    assert "more changes wait" in process.text()
    for n in range(100):
        service.address("del", f"10.95.{n}.1/24")
    wanted = {f"10.95.{n}.1" for n in range(100, 140)}
    service.wait_for("the addresses that waited", lambda: set(service.addresses().values()) == wanted)
    service.check_alive()
    # Readers do not find the tables of a directory that is gone: the service exits, so that its manager
    # starts it again.
    service.forget(process)
    shutil.rmtree(service.tables)
    assert process.wait() == 1
    assert "was removed" in process.text()
