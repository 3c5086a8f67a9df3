"""Reports of programs to the service manager, and the systemd units."""

import json
import os
import pathlib
import re
import shutil
import signal

import pytest
from testbed.programs import run
from testbed.services import Services
from testbed.stuck import stalled
from testbed.threads import worker_thread

pytestmark = pytest.mark.netns

UNITS = pathlib.Path(__file__).parents[2] / "packaging/systemd"
# The most that systemd-analyze may say of a unit: ten times the number that it prints.
EXPOSURE = 40


def unit_files(pattern):
    found = sorted(UNITS.glob(pattern))
    assert found, f"no {pattern} in {UNITS}"
    return found


@pytest.fixture
def services(start):
    return start(Services, up=False)


@pytest.mark.core
def test_readiness_and_status(services):
    """Ready without a fabric, and the status says so; drained; forwarding once the fabric is there; reloaded;
    stopped."""
    gateway, manager = services.managed_gateway()
    manager.wait("READY=1")
    waiting = [m for m in manager.messages[:manager.taken] if m.startswith("STATUS=")][-1]
    assert "waiting" in waiting
    # It has nothing to hand over, so no other gateway has to take it. It stays drained until `--undo`, with a
    # fabric and without.
    assert services.ctl_text("drain", check=False).returncode == 0
    assert services.ctl_text("health", check=False).returncode == 5
    fabric, fabric_manager = services.managed_fabric()
    fabric_manager.wait("READY=1")
    fabric_manager.wait("WATCHDOG=1")
    manager.wait("STATUS=1 segment: 1 drained")
    assert services.ctl_text("drain", "--undo", check=False).returncode == 0
    manager.wait("STATUS=1 segment: 1 forwarding")
    services.ctl("reload")
    manager.wait("RELOADING=1")
    manager.wait("READY=1")
    gateway.popen.send_signal(signal.SIGTERM)
    manager.wait("STOPPING=1")
    assert gateway.wait() == 0
    fabric.popen.send_signal(signal.SIGTERM)
    fabric_manager.wait("STOPPING=1")


def test_watchdog_of_stalled_worker(services):
    """While one worker is stalled the gateway sends no watchdog messages, and its status says why; then it
    forwards again."""
    gateway, manager = services.managed_gateway()
    _, fabric_manager = services.managed_fabric()
    fabric_manager.wait("READY=1")
    manager.wait("STATUS=1 segment: 1 forwarding")
    manager.drain()
    with stalled(gateway.pid, worker_thread(gateway.pid)):
        before = manager.taken
        # The worker may have answered one query before it stalled.
        assert manager.count("WATCHDOG=1", 3 * services.watchdog) <= 1
        if not any(m.startswith("STATUS=worker 0 is stalled") for m in manager.messages[before:]):
            manager.wait("STATUS=worker 0 is stalled")
    manager.wait("WATCHDOG=1")
    manager.wait("STATUS=1 segment: 1 forwarding")
    gateway.popen.send_signal(signal.SIGTERM)
    assert gateway.wait() == 0


def unexplained(analyze, unit, text):
    """Settings that systemd recommends, that the unit does not have, and of which no comment of the unit says
    why."""
    judged = json.loads(run(analyze, "security", "--offline=true", "--json=short", unit).stdout)
    missing = []
    for name in (row["name"] for row in judged if row["set"] is False):
        setting, _, value = name.partition("=")
        # A group of system calls, a capability or an address family by its own name, or that of one of
        # several; else the setting's.
        own = re.match(r"~(@\w+|(?:CAP|AF)_\w*)(?:\((.*)\))?", value)
        words = [own[1] + one for one in (own[2] or "").split("|")] if own else ["AF_XDP" if value == "~\u2026" else setting]
        if not re.search(rf"^#.*(?:{'|'.join(map(re.escape, words))})", text, re.M):
            missing.append(name)
    return missing


def restarts_forever(text):
    """True unless a program that fails at once, each time, reaches the unit's limit of starts."""
    keys = dict(line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#"))
    interval, burst, pause = (int(keys.get(key, 0)) for key in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec"))
    return not 0 < burst * pause < interval


def test_number_of_units():
    assert len(unit_files("*.service")) >= 4


@pytest.mark.parametrize("unit", unit_files("*.service"), ids=lambda unit: unit.name)
def test_unit(unit, tmp_path):
    """systemd finds nothing wrong with a unit and its exposure is low; what it could still restrict has a
    reason."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        if os.environ.get("CI"):
            pytest.fail("there is no systemd-analyze")
        pytest.skip("there is no systemd-analyze")
    # The programs need not be installed to find out whether the unit is well-formed.
    text = unit.read_text().replace("=/usr/bin/ipoib-fwd", "=/bin/true").replace("=/usr/bin/ibfab", "=/bin/true")
    copy = tmp_path / unit.name.replace("@.", "@one.")
    copy.write_text(text)
    verified = run(analyze, "verify", "--man=no", "--recursive-errors=no", copy, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = run(analyze, "security", "--offline=true", f"--threshold={EXPOSURE}", copy, check=False)
    assert judged.returncode == 0, (judged.stdout + judged.stderr)[-200:]
    assert not restarts_forever(text)
    # An instance's reasons are those of the unit without instances.
    reasons = text + (UNITS / unit.name.replace("@.", ".")).read_text()
    assert unexplained(analyze, copy, reasons) == []


def test_exporter_has_no_path_to_the_pair_key():
    """The package's configuration, readable by the exporter's group, is below a path that the exporter's unit
    makes inaccessible."""
    postinst = (UNITS.parent / "debian/ipoib-fwd.postinst").read_text()
    [configuration] = re.findall(r"^configuration=(/.*)$", postinst, re.M)
    unit = (UNITS / "ipoib-metrics.service").read_text()
    hidden = [path.lstrip("-+") for line in re.findall(r"^InaccessiblePaths=(.*)$", unit, re.M) for path in line.split()]
    assert any(pathlib.Path(configuration).is_relative_to(path) for path in hidden)
    # The program itself names no file there.
    [command] = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    assert not any(path in command for path in hidden)


def command_of(unit, key, replaced, environment):
    """The arguments of a unit's command as systemd splits them; a variable may become several arguments."""
    [line] = [line.split("=", 1)[1] for line in unit.read_text().splitlines() if line.startswith(f"{key}=")]
    line = line.replace("%i", "two")
    for old, new in replaced:
        line = line.replace(old, str(new))
    arguments = []
    for argument in line.split():
        arguments += environment[argument[1:]].split() if argument.startswith("$") else [argument]
    return arguments


@pytest.mark.parametrize("unit", unit_files("ipoib-fwd*.service"), ids=lambda unit: unit.name)
def test_check_before_start(services, unit):
    """The unit's check takes the arguments of the start.

    Errors keep the gateway from starting and name a fix; warnings do not.
    """
    environment = {"EAL": f"-l 0-1 --no-pci --no-huge -m 256 --file-prefix {services.tag} --vdev net_null0",
                   "OPTIONS": "--stats 5 --mode datagram"}
    config, good = services.dir / "gateway.toml", services.write_gateway_config()
    replaced = (("/usr/bin", services.bin), ("/etc/ipoib-fwd/two", services.dir / "gateway"), ("/etc/ipoib-fwd", services.dir),
                ("/run/", f"{services.dir}/run/"))
    before, command = (command_of(unit, key, replaced, environment) for key in ("ExecStartPre", "ExecStart"))
    # As RuntimeDirectory= does.
    (services.dir / "run/ipoib-fwd/two").mkdir(parents=True)
    assert [argument for argument in before if argument not in ("--check", "--warnings-pass")] == command
    passes = run(*before, check=False)
    assert passes.returncode == 0, passes.stdout
    assert "warning[hugepages-unused]" in passes.stdout
    strict = run(*[argument for argument in before if argument != "--warnings-pass"], check=False)
    assert strict.returncode == 3, strict.stdout
    config.write_text(good.replace("address =", "adress =").replace("net_null0", "net_null7"))
    fails = run(*before, check=False)
    assert fails.returncode == 1, fails.stdout
    for text in ("gateway.toml:2:1", "did you mean `address`?", "error[ethernet-unknown]"):
        assert text in fails.stdout


def test_units_with_check():
    assert len(unit_files("ipoib-fwd*.service")) == 2
