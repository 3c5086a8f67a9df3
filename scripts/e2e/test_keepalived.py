"""keepalived decides which gateway of a pair forwards, by the example configuration that comes with the
packages."""

import os
import re
import shutil

import pytest
from testbed.keepalived import BACKUP, MASTER, NOTIFY, KeepalivedPair
from testbed.meanwhile import under_datagrams

pytestmark = pytest.mark.netns

BROKEN = re.compile(r".*(?:script.*exited due to signal|No such file|Unknown keyword).*")


@pytest.fixture
def pair(start):
    if not shutil.which("keepalived"):
        if os.environ.get("CI"):
            pytest.fail("keepalived is not installed: run scripts/setup")
        pytest.skip("keepalived is not installed")
    return start(KeepalivedPair)


def move_by_keepalived(pair):
    """keepalived's master forwards: at the start, after a keepalived is stopped, after it is back, and while
    a gateway is drained.

    Returns what traffic noticed of the second and the third change.
    """
    for name in pair.own_ns:
        pair.start_keepalived(name)
    pair.wait_for("a master", lambda: "Entering MASTER STATE" in pair.keepalived["a"].text())
    pair.wait_settled(forwarder="a")

    def stop_and_start():
        pair.stop_keepalived("a")
        pair.wait_settled(forwarder="b")
        pair.start_keepalived("a")
        pair.wait_settled(forwarder="a")

    result = under_datagrams(pair, stop_and_start)
    # A drained gateway is not healthy: the other machine becomes the master.
    pair.drain("a")
    pair.wait_for("the other master", lambda: "Entering MASTER STATE" in pair.keepalived["b"].text().rsplit("BACKUP", 1)[-1])
    assert pair.role("b") == "forwarding"
    pair.drain("a", "--undo")
    pair.wait_settled(forwarder="a")
    pair.wait_for("the priorities of both", lambda: [pair.state(name)["priority"] for name in ("a", "b")] == [MASTER, BACKUP])
    for process in pair.keepalived.values():
        assert not BROKEN.findall(process.text()), process.name
    return result


@pytest.mark.slow
def test_master_forwards(pair, figures):
    result = move_by_keepalived(pair)
    figures(**result)
    assert result["ok"], result


@pytest.mark.slow
@pytest.mark.timing
def test_change_of_master_loses_nothing(pair, figures):
    result = move_by_keepalived(pair)
    figures(**result)
    assert result["ok"], result
    assert result["lost"] == 0, result
    datagrams = result["datagrams"]
    assert datagrams["longest_gap_ms"] < 500 + datagrams["run_delay_ms"], datagrams


def test_notify_script(pair):
    """While the gateway does not answer the script tries again; a later notification ends an earlier one, and
    the last one holds."""
    assert os.access(NOTIFY, os.X_OK)
    pair.wait_settled()
    path, aside = pair.control_socket("a"), pair.dir / "a-aside.sock"
    path.rename(aside)

    def notify(state):
        process = pair.notify("a", state)
        pair.wait_for(f"the notification {state}", lambda: pair.last_notification("a") == process.pid)
        return process

    master = notify("MASTER")
    fault = notify("FAULT")
    assert master.wait() == 0
    assert fault.alive()
    # It tries once.
    assert notify("STOP").wait() == 1
    assert fault.wait() == 0
    backup = notify("BACKUP")
    pair.wait_for("an attempt that fails", lambda: backup.text())
    aside.rename(path)
    assert backup.wait() == 0
    assert pair.state("a")["priority"] == BACKUP
