"""The live view as somebody at a terminal has it, a small one or a large one: a pseudo-terminal, keys, signals; and one page as text."""

import fcntl
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time

from checks.laboratory import Failed
from stage.lab import ETH, IB_IP
from stage.programs import Process, run

# Columns and lines.
SMALL, LARGE = (80, 24), (200, 60)
# What crossterm writes: where the cursor goes, modes, attributes; and what a terminal prints.
WORDS = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b([()].|.)|([^\x1b])", re.S)
# What begins with an escape and ends before it does.
UNFINISHED = re.compile(r"\x1b(\[\??[\d;]*|[()])?\Z")
ENTER, LEAVE, SHOW = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


class Screen:
    """As much of a terminal as the program uses."""

    def __init__(self, size):
        self.columns, self.rows = size
        self.row, self.column, self.unfinished = 0, 0, ""
        self.clear()

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.rows)]

    def feed(self, text):
        # A read ends anywhere, within an escape sequence too.
        text = self.unfinished + text
        end = cut.start() if (cut := UNFINISHED.search(text)) else len(text)
        text, self.unfinished = text[:end], text[end:]
        for private, numbers, letter, _, printed in WORDS.findall(text):
            if printed:
                if printed == "\r":
                    self.column = 0
                elif printed == "\n":
                    self.row = min(self.row + 1, self.rows - 1)
                elif self.row < self.rows and self.column < self.columns:
                    self.cells[self.row][self.column] = printed
                    self.column += 1
                else:
                    raise Failed(f"drawn outside of the terminal: {printed!r} at {self.row}, {self.column}")
            elif letter == "H" and not private:
                at = [int(n or 1) - 1 for n in (numbers or "1;1").split(";")]
                self.row, self.column = at
            elif letter == "J" and not private:
                self.clear()

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


class Terminal:
    """ipoib-fwd top behind a pseudo-terminal."""

    def __init__(self, lab, *words, blocked=(), size=SMALL):
        line = [lab.bin / "ipoib-fwd", "top", *words]
        waits, goes = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Until the terminal is as it is to be.
            os.close(goes)
            os.read(waits, 1)
            os.environ["TERM"] = "xterm-256color"
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            os.execv(line[0], [str(word) for word in line])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(self.fd)
        os.close(waits)
        os.close(goes)
        self.screen, self.bytes, self.code = Screen(size), b"", None
        self.drawn = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.fd is not None:
            os.close(self.fd)

    def read(self, seconds):
        ready, _, _ = select.select([self.fd], [], [], seconds)
        try:
            self.bytes += os.read(self.fd, 65536) if ready else b""
        except OSError:
            return False
        # What ends within a character is drawn with the rest of it.
        text = self.bytes.decode(errors="ignore")
        self.screen.feed(text[self.drawn:])
        self.drawn = len(text)
        return True

    def wait(self, what, *wanted, seconds=30, without=()):
        end = time.monotonic() + seconds
        while True:
            self.read(0.1)
            text = self.screen.text()
            # Sentences are broken into lines somewhere.
            words = text + " ".join(text.split())
            if all(word in words for word in wanted) and not any(word in words for word in without):
                return text
            if time.monotonic() > end:
                raise Failed(f"top: {what}: not seen within {seconds} s:\n{text}")

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def hang_up(self):
        os.close(self.fd)
        self.fd = None

    def exited(self, seconds=10):
        """The exit code."""
        end = time.monotonic() + seconds
        while self.code is None:
            if self.fd is None:
                time.sleep(0.05)
            else:
                self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise Failed(f"top: no end within {seconds} s")
        return self.code

    def ended(self, seconds=10):
        """The exit code; what it has left of the terminal is right."""
        self.exited(seconds)
        while self.read(0) and select.select([self.fd], [], [], 0)[0]:
            pass
        text = self.bytes.decode(errors="ignore")
        tail = text[text.rfind(ENTER):]
        return {"code": self.code, "left": LEAVE in tail, "cursor": SHOW in tail,
                "modes": termios.tcgetattr(self.fd)[:4] == self.before[:4]}


def good(end):
    return end == {"code": 0, "left": True, "cursor": True, "modes": True}


def check_keys(lab):
    """Figures move, views and keys do what they say, q gives the terminal back."""
    wrong = []
    traffic = Process("ping", ["ping", "-n", "-q", "-i", "0.02", IB_IP], ETH, lab.dir / "top-ping.log")
    try:
        with Terminal(lab, "--socket", lab.dir / "control.sock", "--interval", "0.2") as top:
            first = top.wait("the overview", "[overview]", "from Ethernet", "forwarding up", "Workers", "q quit", "every 0.2 s")
            moving = re.compile(r"from Ethernet +([1-9]\d*\.?\d*)")
            end = time.monotonic() + 20
            while not moving.search(top.screen.text()):
                if time.monotonic() > end:
                    raise Failed(f"top: no traffic is seen:\n{top.screen.text()}")
                top.read(0.1)
            top.press("\t")
            top.wait("segments", "[segments]", "P_Key 0xffff", "other gateways", "Drops")
            top.press("\x1b[C")
            top.wait("workers", "[workers]", "turns/s", "busy turns, last second", "Buffers")
            top.press("4")
            top.wait("connections", "[connections]", "2 live", "peer", "10.77.0.2")
            top.press("+")
            top.wait("a longer interval", "every 0.5 s")
            top.press("?")
            top.wait("help", "pause, and go on")
            top.press("x1p")
            top.wait("a pause", "PAUSED", "[overview]")
            # The rest of the page.
            while select.select([top.fd], [], [], 0.5)[0]:
                top.read(0)
            still = top.screen.text()
            time.sleep(1)
            top.read(0.1)
            if top.screen.text() != still:
                wrong.append("what was paused went on")
            top.press("p")
            top.wait("it to go on", "of 0.", without=("PAUSED",))
            top.press("q")
            end = top.ended()
            if not good(end):
                wrong.append(f"q: {end}")
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            with Terminal(lab, "--socket", lab.dir / "control.sock") as top:
                top.wait("the overview", "from Ethernet")
                os.kill(top.pid, number)
                end = top.ended()
                if not good(end):
                    wrong.append(f"{number.name}: {end}")
    finally:
        traffic.stop()
    return {"ok": not wrong, "lines": len(first.splitlines()), "wrong": wrong}


def check_large(lab):
    """On a large terminal a view has all of it, and what a small one has no room for; drawn outside of it is nothing."""
    wrong, lines = [], {}
    with Terminal(lab, "--socket", lab.dir / "control.sock", "--interval", "0.2", size=LARGE) as top:
        for key, view, *wanted in (("1", "overview", "from Ethernet", "Workers"), ("2", "segments", "P_Key 0xffff", "Drops"),
                                   ("3", "workers", "turns/s", "Buffers"), ("4", "connections", "live", "peer")):
            top.press(key)
            text = top.wait(f"{view} in full", f"[{view}]", "q quit", *wanted)
            lines[view] = max(map(len, text.splitlines()))
            # Its last line is the terminal's, and it goes to its right side somewhere.
            if "q quit" not in text.splitlines()[-1] or lines[view] <= SMALL[0]:
                wrong.append(f"{view}:\n{text}")
        top.press("q")
        end = top.ended()
        if not good(end):
            wrong.append(f"q: {end}")
    return {"ok": not wrong, "longest_lines": lines, "wrong": wrong}


def check_once(lab):
    """One page as text, in the size that was asked for; without a terminal or a gateway the remedy."""
    wrong, ours = [], ["--socket", lab.dir / "control.sock"]
    for view, wanted in (("overview", "Workers"), ("segments", "P_Key"), ("workers", "turns/s"), ("connections", "live")):
        for width, height in (SMALL, LARGE):
            shown = run(lab.bin / "ipoib-fwd", "top", *ours, "--once", "--interval", "0.2", "--view", view,
                        "--width", width, "--height", height).stdout
            lines = shown.splitlines()
            if wanted not in shown or "\x1b" in shown or len(lines) != height or max(map(len, lines)) > width:
                wrong.append(f"{view} {width}x{height}:\n{shown}")
    for words, said in ((ours, "ipoib-fwd ctl stats"), (["--once", "--socket", lab.dir / "nobody.sock"], "is the gateway running"),
                        (["--interval", "0"], "between 0.1 and 3600"), (["--width", "100"], "--once")):
        done = run(lab.bin / "ipoib-fwd", "top", *words, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 0 or said not in done.stderr:
            wrong.append(f"{words}: {done.returncode} {done.stderr}")
    return {"ok": not wrong, "wrong": wrong}


def check_trouble(lab):
    """A gateway that is not there, one that does not answer, one that answers nonsense: told of, and found again."""
    path, wrong = lab.dir / "top.sock", []
    with Terminal(lab, "--socket", path, "--interval", "0.2") as top:
        top.wait("that nobody is there", "NO ANSWER", "is the gateway running")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.bind(str(path))
            silent.listen(8)
            top.wait("that it is waited for", "did not answer in time")
            # Keys are answered meanwhile.
            top.press("3")
            top.wait("another view", "[workers]", seconds=2)
            silent.settimeout(20)
            end = time.monotonic() + 30
            while "no gateway" not in top.screen.text():
                if time.monotonic() > end:
                    raise Failed(f"top: nonsense is not told of:\n{top.screen.text()}")
                try:
                    client, _ = silent.accept()
                    with client:
                        client.send(b'{"version": "\\u001b[2J", "max_output_len": 4096}')
                        client.settimeout(1)
                        if client.recv(4096):
                            client.send(b'{"/stats": {"process\\u001b[31m": 7}}')
                except OSError:
                    pass
                top.read(0.1)
        os.unlink(path)
        os.symlink(lab.dir / "control.sock", path)
        top.wait("the real one", "turns/s", "busy turns", without=("NO ANSWER",))
        if "\x1b[31m7" in top.bytes.decode(errors="ignore"):
            wrong.append("foreign bytes reached the terminal")
        top.press("\x03")
        end = top.ended()
        if not good(end):
            wrong.append(f"Ctrl-C: {end}")
    path.unlink()
    return {"ok": not wrong, "wrong": wrong}


def check_gone(lab):
    """A terminal that goes away ends it without a signal, also within half an escape sequence, in which a signal ends it, too; so does a
    second one where the terminal takes nothing."""
    wrong, words = [], ["--socket", lab.dir / "nobody.sock", "--interval", "0.1"]
    for half in ("", "\x1b["):
        with Terminal(lab, *words, blocked=[signal.SIGHUP]) as top:
            top.wait("that nobody is there", "NO ANSWER")
            top.press(half)
            top.read(0.3)
            top.hang_up()
            try:
                if top.exited() != 0:
                    wrong.append(f"gone after {half!r}: {top.code}")
            except Failed as error:
                wrong.append(f"gone after {half!r}: {error}")
    with Terminal(lab, *words) as top:
        top.wait("that nobody is there", "NO ANSWER")
        top.press("\x1b[")
        top.read(0.3)
        os.kill(top.pid, signal.SIGTERM)
        end = top.ended()
        if not good(end):
            wrong.append(f"SIGTERM after half an escape sequence: {end}")
    with Terminal(lab, *words) as top:
        top.wait("that nobody is there", "NO ANSWER")
        # Pages that nobody reads, until there is no room for more.
        for _ in range(300):
            top.press("?")
            time.sleep(0.01)
        os.kill(top.pid, signal.SIGTERM)
        # What is not read is not read by `exited` either.
        held, top.fd = top.fd, None
        try:
            top.exited(0.5)
            wrong.append(f"nothing held it up: {top.code}")
        except Failed:
            os.kill(top.pid, signal.SIGTERM)
            if top.exited() != -signal.SIGTERM:
                wrong.append(f"a second SIGTERM: {top.code}")
        finally:
            top.fd = held
    return {"ok": not wrong, "wrong": wrong}
