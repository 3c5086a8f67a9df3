"""`ipoib-fwd top` on terminals of two sizes: keys, signals, a gateway in trouble, a terminal that goes away;
and one page as text."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest
from testbed.programs import DEADLINE, TestbedError, run
from testbed.terminal import LARGE, SMALL, Terminal
from testbed.topology import IB_IP
from testbed.traffic import traffic

pytestmark = pytest.mark.netns

# Result of `Terminal.left` after an orderly exit.
IN_ORDER = {"code": 0, "left": True, "cursor": True, "modes": True}
# Pings while the view is paused, of 50 a second.
WHILE_PAUSED = 100


def top(topology, *arguments, path=None, **more):
    return Terminal([topology.bin / "ipoib-fwd", "top", "--socket", path or topology.socket, *arguments], **more)


@pytest.fixture
def no_gateway(start):
    """A topology that is not started: its control socket does not exist."""
    return start(up=False)


@pytest.fixture
def busy(gateway):
    """The plain topology, with pings through it."""
    gateway.background("ping", ["ping", "-n", "-q", "-i", "0.02", IB_IP], gateway.eth)
    return gateway


def test_views_and_keys(busy):
    """Rates move; views and keys do what the help says; q leaves the terminal as it was."""
    with top(busy, "--interval", "0.2") as view:
        view.wait("the overview", "[overview]", "from Ethernet", "forwarding up", "Workers", "q quit", "every 0.2 s")
        view.wait_until("traffic", re.compile(r"from Ethernet +([1-9]\d*\.?\d*)").search)
        view.press("\t")
        view.wait("segments", "[segments]", "P_Key 0xffff", "other gateways", "Drops")
        view.press("\x1b[C")
        view.wait("workers", "[workers]", "iter/s", "iterations, last second", "Buffers")
        view.press("4")
        view.wait("connections", "[connections]", "2 live", "peer", "10.77.0.2")
        view.press("+")
        view.wait("a longer interval", "every 0.5 s")
        view.press("?")
        view.wait("help", "pause, resume")
        view.press("x1")
        view.wait("the overview", "[overview]", without=("pause, resume",))
        view.press("q")
        assert view.left() == IN_ORDER


def test_pause(busy):
    """A paused view does not move, and continues at the next key."""
    def forwarded():
        return traffic(busy)["eth_receive"]["packets"]

    with top(busy, "--interval", "0.2") as view:
        view.wait("the overview", "from Ethernet", "q quit")
        view.press("p")
        paused = view.wait("a pause", "PAUSED")
        # Several intervals' worth of packets.
        before = forwarded()
        busy.wait_for("packets", lambda: forwarded() >= before + WHILE_PAUSED)
        # Output of the meantime comes before the help.
        view.press("?")
        view.wait("help", "pause, resume")
        view.press("x")
        assert view.wait("the overview", "from Ethernet", without=("pause, resume",)) == paused
        view.press("p")
        assert view.wait("the overview to go on", "from Ethernet", without=("PAUSED",)) != paused
        view.press("q")
        assert view.left() == IN_ORDER


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_restores_terminal(no_gateway, number):
    with top(no_gateway) as view:
        view.wait("a page", "NO ANSWER")
        view.send(number)
        assert view.left() == IN_ORDER


def test_large_terminal(gateway, figures):
    """On a large terminal a view has more than a small one has room for, and nothing is drawn outside of
    it."""
    with top(gateway, "--interval", "0.2", size=LARGE) as view:
        for key, name, *wanted in (("1", "overview", "from Ethernet", "Workers"), ("2", "segments", "P_Key 0xffff", "Drops"),
                                   ("3", "workers", "iter/s", "Buffers"), ("4", "connections", "live", "peer")):
            view.press(key)
            lines = view.wait(f"{name} in full", f"[{name}]", "q quit", *wanted).splitlines()
            figures(**{name: max(map(len, lines))})
            # The last line is the terminal's last one, and some line is longer than a small terminal's.
            assert "q quit" in lines[-1], name
            assert max(map(len, lines)) > SMALL[0], name
        view.press("q")
        assert view.left() == IN_ORDER


@pytest.mark.core
def test_one_page_as_text(gateway):
    """One page as text, in the requested size."""
    for name, wanted in (("overview", "Workers"), ("segments", "P_Key"), ("workers", "iter/s"), ("connections", "live")):
        for width, height in (SMALL, LARGE):
            page = run(gateway.bin / "ipoib-fwd", "top", "--socket", gateway.socket, "--once", "--interval", "0.2", "--view", name,
                       "--width", width, "--height", height).stdout
            assert wanted in page
            assert "\x1b" not in page
            assert len(page.splitlines()) == height
            assert max(map(len, page.splitlines())) <= width


@pytest.mark.parametrize("arguments, message", [
    ((), "ipoib-fwd ctl stats"),
    (("--once",), "is the gateway running"),
    (("--interval", "0"), "between 0.1 and 3600"),
    (("--width", "100"), "--once"),
], ids=("no-terminal", "no-gateway", "interval", "width"))
def test_refusals(no_gateway, arguments, message):
    """Without a terminal, without a gateway and with wrong arguments it exits, and the message says what to
    do."""
    done = run(no_gateway.bin / "ipoib-fwd", "top", "--socket", no_gateway.socket, *arguments, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode != 0
    assert message in done.stderr


@contextlib.contextmanager
def listening(path):
    """A mock of a gateway's socket that does not answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(path))
        # Clients that have given up stay in the backlog.
        server.listen(1024)
        server.settimeout(DEADLINE)
        yield server
    path.unlink()


def answer_nonsense(server):
    """Answers a client that is there, if it has not given up yet."""
    server.settimeout(0.1)
    with contextlib.suppress(OSError):
        client, _ = server.accept()
        with client:
            client.send(json.dumps({"version": "\x1b[2J", "max_output_len": 4096}).encode())
            client.settimeout(1)
            if client.recv(4096):
                client.send(json.dumps({"/stats": {"process\x1b[31m": 7}}).encode())


def test_gateway_in_trouble(gateway, tmp_path):
    """A gateway that is not there, one that does not answer, one that answers nonsense: the view says so, and
    goes on when the real one is there.

    Control characters of an answer do not reach the terminal.
    """
    # A short path: a small terminal has room for three lines of a message.
    path = tmp_path / "top.sock"
    with top(gateway, "--interval", "0.2", path=path) as view:
        view.wait("no gateway", "NO ANSWER", "is the gateway running")
        with listening(path) as server:
            view.wait("no answer", "did not answer in time")
            end = time.monotonic() + DEADLINE
            while "not a gateway" not in view.words():
                if time.monotonic() > end:
                    raise TestbedError(f"nonsense is not reported:\n{view.screen.text()}")
                answer_nonsense(server)
                view.read()
        os.symlink(gateway.socket, path)
        view.wait("the real gateway", "from Ethernet", "iterations", without=("NO ANSWER",))
        assert "\x1b[31m7" not in view.output()
        view.press("\x03")
        assert view.left() == IN_ORDER


def test_keys_while_gateway_does_not_answer(no_gateway):
    """A key changes the view while an answer is awaited."""
    with listening(no_gateway.socket) as server, top(no_gateway, "--interval", "0.2") as view:
        end = time.monotonic() + DEADLINE
        for key, name in [("3", "[workers]"), ("2", "[segments]")] * 1000:
            client, _ = server.accept()
            with client:
                view.press(key)
                view.wait("another view", name)
                client.setblocking(False)
                try:
                    # A client that has given up has hung up: then the machine was too slow, and the test
                    # tries again.
                    client.recv(4096)
                except BlockingIOError:
                    break
                assert time.monotonic() < end, "keys have no effect before an answer is given up"


@pytest.mark.parametrize("keys", ["3", "3\x1b["], ids=("plain", "within-escape-sequence"))
def test_terminal_gone(no_gateway, keys):
    """A terminal that goes away ends it without a signal, also in the middle of an escape sequence."""
    with top(no_gateway, "--interval", "0.1", blocked=[signal.SIGHUP]) as view:
        view.wait("a page", "NO ANSWER")
        view.press(keys)
        # It has read all of the keys: they arrived together.
        view.wait("another view", "[workers]")
        view.hang_up()
        assert view.exited() == 0


def test_signal_within_escape_sequence(no_gateway):
    with top(no_gateway, "--interval", "0.1") as view:
        view.wait("a page", "NO ANSWER")
        view.press("3\x1b[")
        view.wait("another view", "[workers]")
        view.send(signal.SIGTERM)
        assert view.left() == IN_ORDER


def test_second_signal_ends_blocked_program(no_gateway):
    """Where the terminal takes nothing any more, a second SIGTERM ends it."""
    with top(no_gateway, "--interval", "0.1") as view:
        view.wait("a page", "NO ANSWER")
        end = time.monotonic() + DEADLINE
        # Pages that nobody reads, until there is no room for more.
        looks = 0
        while looks < 20:
            view.press("?")
            time.sleep(0.01)
            looks = looks + 1 if view.blocked_in_write() else 0
            assert time.monotonic() < end, "it is not blocked by a full terminal"
        view.send(signal.SIGTERM)
        no_gateway.wait_for("the signal to be delivered", lambda: not view.pending(signal.SIGTERM))
        view.send(signal.SIGTERM)
        assert view.exited(reading=False) == -signal.SIGTERM
