"""A step: commands with their output in a log, their result, and the first lines of a failure."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "target/test"
# Seconds between two lines of progress of a step.
HEARTBEAT = 60
# Seconds for a command to clean up after an interrupt.
CLEANUP = 60
# Lines of a failure that the summary shows.
LINES = 40
# Lines of cargo, rustc, nextest, pytest and our own scripts that report a failure.
FAILURES = re.compile(r"^error(\[|:| )|^\s*(TRY \d+ )?(FAIL|SIGABRT|SIGSEGV|TIMEOUT|ABORT) |panicked at|^E  |^ERROR |FAILED|: failed"
                      r"|^Diff in|\.py:\d+:\d+: ")
PRINTING = threading.Lock()


def say(text):
    with PRINTING:
        print(text, flush=True)


@dataclass
class Step:
    """Commands that run one after the other until one fails."""

    name: str
    commands: list
    environment: dict = field(default_factory=dict)
    # Yields the processors to the other lane.
    low_priority: bool = False
    # Steps that must pass before this one.
    needs: tuple = ()
    result: str = "not run"
    seconds: float = 0.0

    @property
    def log(self):
        return LOGS / (re.sub(r"\W+", "-", self.name) + ".log")

    def run(self):
        """Runs the commands and sets `result` to `ok` or `FAILED`."""
        LOGS.mkdir(parents=True, exist_ok=True)
        say(f"== {self.name}")
        begin = time.monotonic()
        with open(self.log, "wb") as log:
            self.result = "ok" if all(self.command(command, log, begin) for command in self.commands) else "FAILED"
        self.seconds = time.monotonic() - begin
        say(f"   {self.name}: {self.result}, {self.seconds:.0f} s")
        if self.result != "ok":
            say("\n".join(f"   | {line}" for line in self.failure()))

    def command(self, command, log, begin):
        command = [str(argument) for argument in command]
        log.write(f"$ {' '.join(command)}\n".encode())
        log.flush()
        if self.low_priority:
            command = ["nice", "-n", "5", *command]
        try:
            process = start(command, log, self.environment)
        except FileNotFoundError:
            log.write(f"error: {command[0]} is not installed: run scripts/setup\n".encode())
            return False
        while True:
            try:
                code = process.wait(HEARTBEAT)
                RUNNING.discard(process)
                return code == 0
            except subprocess.TimeoutExpired:
                say(f"   {self.name}: {time.monotonic() - begin:.0f} s, {self.last_line()}")

    def last_line(self):
        lines = [line for line in self.text()[-4000:].splitlines() if line.strip()]
        return lines[-1].strip()[:100] if lines else "no output yet"

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def failure(self):
        """Returns the lines that report a failure with those after each, or the end of the log."""
        return first_failures(self.text()) if self.result == "FAILED" else []


# Running commands.
RUNNING = set()


def first_failures(text, limit=LINES):
    lines = [line.rstrip() for line in text.splitlines()]
    shown = []
    for at, line in enumerate(lines):
        if FAILURES.search(line) and len(shown) < limit:
            shown += [text for text in lines[at:at + 6] if text and text not in shown]
    return (shown or lines[-20:])[:limit]


def table(rows, headings):
    """Formats rows of text in columns."""
    rows = [headings, *rows]
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(headings))]
    return "\n".join("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def start(command, log, environment=None):
    """Starts a command in its own process group, which `stop_running` stops as a whole.

    If this process is killed, the kernel interrupts the command: Python programs and cargo then clean up and
    exit, and a shell script exits with the command that it waits for.
    """
    command = [str(argument) for argument in command]
    if not shutil.which(command[0], path=f"{os.environ['PATH']}:{ROOT}"):
        raise FileNotFoundError(command[0])
    process = subprocess.Popen(["setpriv", "--pdeathsig", "INT", *command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                               env={**os.environ, **(environment or {})}, start_new_session=True)
    RUNNING.add(process)
    return process


def stop_running():
    """Interrupts all running commands with their children, and gives them time to clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number, seconds in ((signal.SIGINT, CLEANUP), (signal.SIGTERM, CLEANUP), (signal.SIGKILL, None)):
        waiting = [process for process in list(RUNNING) if process.poll() is None]
        for process in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for process in waiting:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)


def need_root(arguments):
    if os.geteuid() != 0:
        sys.exit(f"test: network namespaces and packages need root. Run: {shlex.join(['sudo', 'scripts/test', *arguments])}")
