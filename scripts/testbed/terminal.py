"""A program behind a pseudo-terminal: what it draws, keys, signals, and whether it leaves the terminal as it
found it."""

import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import termios
import time

from testbed.programs import DEADLINE, TestbedError

# Columns and lines.
SMALL, LARGE = (80, 24), (200, 60)
# Output of crossterm: positions of the cursor, modes, attributes, and characters.
SEQUENCES = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|\x1b([()].|.)|([^\x1b])", re.S)
# An escape sequence that has not ended yet.
UNFINISHED = re.compile(r"\x1b(\[\??[\d;]*|[()])?\Z")
ENTER, LEAVE, SHOW, HIDE = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h", "\x1b[?25l"
# The system call write of x86-64.
WRITE = "1"


class Screen:
    """As much of a terminal as the program uses."""

    def __init__(self, size):
        self.columns, self.rows = size
        self.row, self.column, self.unfinished = 0, 0, ""
        self.clear()

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.rows)]

    def feed(self, text):
        # A read ends anywhere, also within an escape sequence.
        text = self.unfinished + text
        end = cut.start() if (cut := UNFINISHED.search(text)) else len(text)
        text, self.unfinished = text[:end], text[end:]
        for private, numbers, letter, _, printed in SEQUENCES.findall(text):
            if printed:
                self.put(printed)
            elif letter == "H" and not private:
                self.row, self.column = (int(n or 1) - 1 for n in (numbers or "1;1").split(";"))
            elif letter == "J" and not private:
                self.clear()

    def put(self, printed):
        if printed == "\r":
            self.column = 0
        elif printed == "\n":
            self.row = min(self.row + 1, self.rows - 1)
        elif self.row < self.rows and self.column < self.columns:
            self.cells[self.row][self.column] = printed
            self.column += 1
        else:
            raise TestbedError(f"drawn outside of the terminal: {printed!r} at {self.row}, {self.column}")

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


class Terminal:
    """A program behind a pseudo-terminal. `blocked` are signals that it starts with blocked."""

    def __init__(self, line, blocked=(), size=SMALL):
        ready, release = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            # Until the terminal has its size.
            os.close(release)
            os.read(ready, 1)
            os.environ["TERM"] = "xterm-256color"
            signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            os.execv(line[0], [str(a) for a in line])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.before = termios.tcgetattr(self.fd)
        os.close(ready)
        os.close(release)
        self.screen, self.bytes, self.code = Screen(size), b"", None
        self.drawn = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.hang_up()

    def read(self, seconds=0.1):
        """Draws what the program has written, or writes in that time; false if the program has closed the
        terminal."""
        ready, _, _ = select.select([self.fd], [], [], seconds)
        try:
            self.bytes += os.read(self.fd, 65536) if ready else b""
        except OSError:
            return False
        # An incomplete character is drawn with its rest.
        text = self.output()
        self.screen.feed(text[self.drawn:])
        self.drawn = len(text)
        return True

    def output(self):
        return self.bytes.decode(errors="ignore")

    def words(self):
        """The page as it is, and with its lines joined: sentences are wrapped somewhere."""
        text = self.screen.text()
        return text + " ".join(text.split())

    def wait_until(self, what, suits):
        """Waits for a complete page whose text suits; returns that text."""
        end = time.monotonic() + DEADLINE
        while True:
            self.read()
            # Every page ends with the cursor hidden.
            text = self.screen.text()
            if self.output().endswith(HIDE) and suits(text):
                return text
            if time.monotonic() > end:
                raise TestbedError(f"{what}: not seen within {DEADLINE} s:\n{text}")

    def wait(self, what, *wanted, without=()):
        """Waits for a page that has all wanted words and none of the others."""
        def suits(_):
            words = self.words()
            return all(word in words for word in wanted) and not any(word in words for word in without)

        return self.wait_until(what, suits)

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def send(self, number):
        os.kill(self.pid, number)

    def hang_up(self):
        """Closes the terminal."""
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None

    def blocked_in_write(self):
        """Whether the program sleeps in a write, which the terminal does not take."""
        proc = pathlib.Path(f"/proc/{self.pid}")
        asleep = (proc / "stat").read_text().rsplit(")", 1)[1].split()[0] == "S"
        return asleep and (proc / "syscall").read_text().split()[0] == WRITE

    def pending(self, number):
        """Whether a signal has not been delivered yet."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        sets = re.findall(r"^(?:SigPnd|ShdPnd):\s+(\w+)", status, re.M)
        return any(int(pending, 16) >> number - 1 & 1 for pending in sets)

    def exited(self, reading=True):
        """Waits for the program to exit; returns its exit code."""
        end = time.monotonic() + DEADLINE
        while self.code is None:
            if self.fd is None or not reading:
                time.sleep(0.02)
            else:
                self.read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                raise TestbedError(f"the program is still running after {DEADLINE} s:\n{self.screen.text()}")
        return self.code

    def left(self):
        """Waits for the program to exit; returns its exit code, and whether it left the alternate screen,
        showed the cursor and restored the terminal's modes.
        """
        self.exited()
        while self.read(0) and select.select([self.fd], [], [], 0)[0]:
            pass
        text = self.output()
        tail = text[text.rfind(ENTER):]
        return {"code": self.code, "left": LEAVE in tail, "cursor": SHOW in tail,
                "modes": termios.tcgetattr(self.fd)[:4] == self.before[:4]}
