"""Fixtures of the end-to-end tests.

A test requests a topology: the plain one by `gateway`, or another one by `start(CLASS)`. Each has
network namespaces, a directory and names of its own. After the test the gateway is stopped, must account for
all its buffers, and nothing may be left on the machine.
"""

import json
import os
import pathlib
import re
import shutil
import tempfile

import pytest
from testbed import diagnostics, leftovers
from testbed.isolation import isolate
from testbed.programs import TestbedError
from testbed.topology import Topology

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("ipoib-fwd", "ibfab")
TOPOLOGIES = pytest.StashKey()


def pytest_addoption(parser):
    group = parser.getgroup("ipoib-fwd")
    group.addoption("--programs", metavar="DIR", default=str(ROOT / "target/release"), help="the programs (default target/release)")
    group.addoption("--older", metavar="DIR", help="where programs of an older version are, for the upgrade of a pair")
    group.addoption("--captured", action="store_true", help="capture packets from the start in every topology that does not rule it out")
    group.addoption("--failures", metavar="DIR", default=str(ROOT / "target/e2e"), help="where captures and logs of failed tests are kept")


def pytest_configure(config):
    # pytest-xdist's controller runs no tests; each of its workers isolates itself.
    if config.getoption("help", False) or config.getoption("collectonly", False) or getattr(config.option, "numprocesses", None):
        return
    programs = pathlib.Path(config.getoption("--programs"))
    missing = [p for p in PROGRAMS if not (programs / p).is_file()]
    if missing:
        raise pytest.UsageError(f"{programs} has no {', no '.join(missing)}: cargo build --release --locked "
                                "-p ipoib-fwd -p ibfab -p softhca")
    try:
        isolate()
    except TestbedError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(autouse=True)
def tidy():
    """Temporary files go to a directory of the test's own; nothing of any kind is left at its end."""
    # Users other than root reach what is theirs.
    folder = tempfile.mkdtemp(prefix="ipoib-fwd-test-", dir="/tmp")
    os.chmod(folder, 0o711)
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    before = leftovers.inventory()
    yield
    left = leftovers.left_behind(before)
    tempfile.tempdir = None
    os.environ.pop("TMPDIR")
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture
def tmp_path(tidy):
    """A directory for the test's files, in place of pytest's own, which would outlive the test."""
    folder = pathlib.Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def programs(request):
    """The directory with the programs."""
    return pathlib.Path(request.config.getoption("--programs")).resolve()


@pytest.fixture(scope="session")
def older(request):
    """The directory with programs of an older version, or None."""
    path = request.config.getoption("--older")
    return pathlib.Path(path).resolve() if path else None


@pytest.fixture
def figures(record_property):
    """`figures(name=value, ...)` records measured values of a test in the JUnit report."""
    def record(**values):
        for name, value in values.items():
            record_property(name, value if isinstance(value, (int, float, str)) else json.dumps(value, default=str))

    return record


@pytest.fixture
def start(request, tidy, programs):
    """`start(CLASS, up=True, **attributes)` builds a topology and takes it down after the test.

    `up=False` leaves the start to the test; attributes replace those of the class.
    """
    running = request.node.stash[TOPOLOGIES] = []

    def build(make=Topology, up=True, **attributes):
        # A class of its own, so that attributes are there before __init__ looks at them.
        topology = type(make.__name__, (make,), attributes)(programs)
        if request.config.getoption("--captured") and topology.captured is None:
            topology.captured = True
        running.append(topology)
        if up:
            topology.up()
        return topology

    yield build
    errors = []
    for topology in reversed(running):
        try:
            if topology.single_gateway and topology.gateway in topology.processes and not failed(request.node):
                topology.check_alive()
                topology.stop_gateway()
        except TestbedError as error:
            errors.append(str(error))
            errors += [f"--- {title}\n{text}" for title, text in diagnostics.sections(topology, kept_files(request.node))]
        finally:
            topology.close()
    assert not errors, "\n".join(errors)


@pytest.fixture
def gateway(start):
    """The plain topology, with connections in both directions."""
    return start(Topology)


def kept_files(item):
    """Where captures and logs of a failed test are kept."""
    return pathlib.Path(item.config.getoption("--failures")) / re.sub(r"[^\w.-]+", "-", item.nodeid.split("/")[-1])


def failed(item):
    return getattr(item, "call_failed", False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    item.call_failed = True
    keep = kept_files(item)
    shutil.rmtree(keep, ignore_errors=True)
    for topology in item.stash.get(TOPOLOGIES, []):
        if topology.dir.exists():
            report.sections += diagnostics.sections(topology, keep)
