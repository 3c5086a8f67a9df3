"""Privileges of a running gateway, as the kernel reports them for each of its threads."""

import grp
import json
import os
import pathlib
import pwd
import signal
import socket
import stat

import pytest
from testbed.programs import run
from testbed.services import Services
from testbed.threads import own_filters, threads, with_capabilities

pytestmark = pytest.mark.netns

PACKAGING = pathlib.Path(__file__).parents[2] / "packaging"
# SIGHUP, SIGINT and SIGTERM, as bits of a signal mask.
CONTROL_SIGNALS = 0x4003


@pytest.fixture
def services(start):
    return start(Services, up=False)


@pytest.mark.core
def test_threads_without_capabilities(gateway):
    """With a kernel interface and the software device no thread needs a capability, and none has one, DPDK's
    neither."""
    found = threads(gateway.gateway.pid)
    assert len(found) >= 3
    assert with_capabilities(found) == {}
    assert [t["Name"] for t in found.values() if t["NoNewPrivs"] != "1"] == []
    # One filter for all threads, and another one on workers and on the thread that writes captures.
    for t in found.values():
        filters = 2 if "worker" in t["Name"] or t["Name"] == "captures" else 1
        assert (t["Seccomp"], int(t["Seccomp_filters"])) == ("2", own_filters() + filters), t["Name"]
    lines = [line for line in gateway.gateway.text().splitlines() if "privileges: the control lcore keeps no capability" in line]
    assert len(lines) == 1


def bounded():
    """A command line that starts a program with the unit's capabilities under the example that sets a
    user."""
    units = (PACKAGING / "systemd/ipoib-fwd.service", PACKAGING / "examples/user.conf")
    lines = [line.partition("=") for unit in units for line in unit.read_text().splitlines()]
    names = [name for key, _, value in lines if key == "CapabilityBoundingSet" for name in value.split()]
    return ["setpriv", "--bounding-set", ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names)]), "--"]


def test_user(services):
    """With the capabilities of the unit and the example, all threads of the gateway change to its own user.

    The control socket belongs to the group. Reload and stop still work. The gateway replaces a socket that a
    killed gateway has left.
    """
    nobody = pwd.getpwnam("nobody")
    group = grp.getgrgid(nobody.pw_gid)
    own = services.dir / "own"
    control = own / "control.sock"
    services.dir.chmod(0o711)
    # As ExecStartPre of the example does, for the first time and again.
    for _ in range(2):
        run(*bounded(), "install", "-d", "-o", "nobody", "-g", group.gr_name, "-m", "0750", own)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(control))
    control.chmod(0o600)
    os.chown(control, nobody.pw_uid, group.gr_gid)
    services.socket = control
    services.write_gateway_config(gateway=f'user = "nobody"\ngroup = "{group.gr_name}"\ncores = "lean"\n')
    gateway, manager = services.managed_gateway(prefix=bounded())
    manager.wait("READY=1")
    found = threads(gateway.pid)
    uid, gid = (" ".join([str(n)] * 4) for n in (nobody.pw_uid, group.gr_gid))
    assert [t["Name"] for t in found.values() if (t["Uid"], t["Gid"], t["Groups"]) != (uid, gid, "")] == []
    assert with_capabilities(found) == {}
    status = control.stat()
    assert (oct(stat.S_IMODE(status.st_mode)), status.st_uid, status.st_gid) == ("0o660", nobody.pw_uid, group.gr_gid)
    services.ctl("reload")
    # A member of the group may use the socket; another user may not.
    ask = [services.bin / "ipoib-fwd", "ctl", "--socket", control, "stats", "--json"]
    member = run("setpriv", "--reuid", 4242, f"--regid={group.gr_gid}", "--clear-groups", *ask)
    assert "buffers" in json.loads(member.stdout)
    other = run("setpriv", "--reuid", 4242, "--regid=4242", "--clear-groups", *ask, check=False)
    assert other.returncode == 1, other.stderr
    gateway.popen.send_signal(signal.SIGTERM)
    assert gateway.wait() == 0
    assert list(own.iterdir()) == []


def test_privileges_kept(services):
    """With `privileges = "keep"` the gateway keeps all capabilities."""
    services.write_gateway_config(gateway='privileges = "keep"\n')
    gateway, manager = services.managed_gateway()
    manager.wait("READY=1")
    ours = next(iter(threads("self").values()))["CapPrm"]
    assert {t["CapPrm"] for t in threads(gateway.pid).values()} == {ours}


def test_filters_with_many_workers(services):
    """Nine workers start under their filters: glibc's allocator queries the number of processors when
    threads outnumber its arenas."""
    # Queues small enough for nine workers' in the memory there is.
    services.write_gateway_config(ethernet="rx-descriptors = 64\ntx-descriptors = 64\n",
                                  infiniband="ud-send-depth = 64\nud-receive-depth = 64\nsrq-depth = 64\nmax-connections = 32\n"
                                             "connection-send-depth = 4\n")
    gateway, manager = services.managed_gateway("0@0,(1-9)@1")
    manager.wait("READY=1")
    workers = [t for t in threads(gateway.pid).values() if "worker" in t["Name"]]
    assert [t["Seccomp"] for t in workers] == ["2"] * 9
    # These signals are the control lcore's.
    assert [t["SigBlk"] for t in workers if int(t["SigBlk"], 16) & CONTROL_SIGNALS != CONTROL_SIGNALS] == []
    lines = [line for line in gateway.text().splitlines() if 'seccomp = "auto": the lists were tried' in line]
    assert len(lines) == 1
    gateway.popen.send_signal(signal.SIGTERM)
    assert gateway.wait() == 0
