"""What programs log as services: entries of the journal (systemd's own, or a socket in its place) with fields; the gateway under its
filters of system calls."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from checks.laboratory import Failed, Laboratory, in_laboratory, left_out
from stage.lab import ETH, GW, IB_IP, say
from stage.programs import Process
from stage.traffic import ping

DAEMON = "/usr/lib/systemd/systemd-journald"
# In a namespace of its own for mounts: a journal, and standard error as its stream, as far as the environment tells. That is a file,
# so that what goes past the journal is seen.
AS_SERVICE = """set -e
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


def runs(pid):
    """A zombie has closed all it had."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class JournalLaboratory(Laboratory):
    """Whose gateway has a journal."""

    def __init__(self, args):
        super().__init__(args, intruder=False)
        (self.dir / "journal").mkdir()

    def start_gateway(self):
        line = [self.bin / "ipoib-fwd", *self.lcores(), "--no-pci", *self.memory, "--file-prefix", "gwdemo", *self.vdev_words(), "--",
                "--config", self.dir / "gateway.toml", "--report", self.dir / "report.json"]
        say("gateway with a journal: " + " ".join(str(a) for a in line))
        self.started_at = time.monotonic()
        inside = ["unshare", "-m", "--propagation", "private", "sh", "-c", AS_SERVICE, DAEMON, self.dir, GW, *line]
        self.gateway = Process("ipoib-fwd", inside, None, self.dir / "gateway.log")
        self.processes.append(self.gateway)

    def entries(self):
        out = subprocess.run(["journalctl", "-D", str(self.dir / "journal"), "-o", "json", "-q", "SYSLOG_IDENTIFIER=ipoib-fwd"],
                             capture_output=True, text=True, timeout=20)
        return [json.loads(line) for line in out.stdout.splitlines()]

    def journal_stops(self):
        pid = self.dir / "journald.pid"
        if pid.exists():
            number = int(pid.read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)
            # While it writes what it has it takes entries, and nobody sees them.
            end = time.monotonic() + 60
            while runs(number) and time.monotonic() < end:
                time.sleep(0.05)

    def close(self):
        self.journal_stops()
        super().close()


def check_journal(lab):
    """Entries have text, priority, place and, of what is a segment's, its name and a name of what happened; nothing goes past the
    journal; the gateway goes on, with lines on standard error, when that is gone."""
    before = lab.gateway.text()
    lab.ctl("reload")
    lab.ctl("mode", "datagram")
    lab.ctl("mode", "connected")
    ping(ETH, IB_IP, 56, count=2)
    wanted, events, up, end = {"up", "reload", "connection-up", "connection-down", "role"}, set(), {}, time.monotonic() + 30
    # journald writes when it comes to it.
    while not (wanted <= events and up) and time.monotonic() < end:
        time.sleep(0.5)
        entries = lab.entries()
        events = {e["IPOIB_FWD_EVENT"] for e in entries if "IPOIB_FWD_EVENT" in e}
        # The Ethernet port's, which is no segment's, comes before it or after it.
        up = next((e for e in entries if e.get("IPOIB_FWD_EVENT") == "up" and "IPOIB_FWD_SEGMENT" in e), {})
    fields = {"MESSAGE", "PRIORITY", "CODE_FILE", "CODE_LINE", "TARGET"}
    wrong = [e for e in entries if not fields <= e.keys() or "segment=" in e["MESSAGE"]]
    past = [line for line in lab.gateway.text().splitlines() if " INFO " in line or " WARN " in line]
    alive = lab.gateway.alive()
    lab.journal_stops()
    # Nobody takes entries any more.
    lab.ctl("reload")
    lab.ctl("set", "log", "debug")
    after = lab.gateway.text()[len(before):]
    goes_on = lab.gateway.alive() and "set: log is debug" in after
    ok = (not wrong and not past and alive and goes_on and wanted <= events
          and up.get("IPOIB_FWD_SEGMENT") == "default" and up.get("MESSAGE") == "default: InfiniBand link up" and up.get("PRIORITY") == "6"
          and up.get("_TRANSPORT") == "journal" and Path(up.get("CODE_FILE", "")).suffix == ".rs")
    return {"ok": bool(ok), "entries": len(entries), "events": sorted(events), "wrong": wrong[:2], "past_the_journal": past[:2],
            "goes_on": goes_on, "up": {k: v for k, v in up.items() if not k.startswith("_")}}


# The directory of a journal's socket in its place, and standard error as its stream.
WITH_STAND = """set -e
dir=$1; shift
mount -t tmpfs none /run
mkdir -p /run/systemd/journal
mount --bind "$dir" /run/systemd/journal
JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2)
export JOURNAL_STREAM
exec "$@"
"""


class Stand:
    """A socket in the journal's place, for one program."""

    def __init__(self, directory, program, line):
        self.program, self.directory, self.entries = program, directory / f"{program}-stand", []
        self.directory.mkdir()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(self.directory / "socket"))
        inside = ["unshare", "-m", "--propagation", "private", "sh", "-c", WITH_STAND, "stand", self.directory, *line]
        self.process = Process(program, inside, None, directory / f"{program}.log")

    def wait(self, text, seconds=60):
        """The next entry whose text begins so."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                lines = self.socket.recv(1 << 17).decode().splitlines()
            except TimeoutError:
                break
            entry = dict(line.split("=", 1) for line in lines if line)
            self.entries.append(entry)
            if entry.get("MESSAGE", "").startswith(text):
                return entry
        raise Failed(f"{self.program}: no entry {text!r} within {seconds} s; there are {self.entries[-5:]}; {self.process.text()[-500:]}")

    def close(self):
        self.process.stop()
        self.socket.close()


def check_programs(args):
    """ibfab and softhca: entries with priority, place and fields of their names; the level by configuration, option, SIGHUP and
    environment; nothing goes past the journal but the error of an end."""
    directory, stands, programs = Path(tempfile.mkdtemp(prefix="ipoib-fwd-e2e-")), [], Path(args.bin).resolve()
    fabric = directory / "fabric.toml"

    def start(program, *words, before=()):
        stands.append(Stand(directory / str(len(stands)), program, [*before, programs / program, *words]))
        return stands[-1]

    for n in range(4):
        (directory / str(n)).mkdir()
    try:
        fabric.write_text('[fabric]\nlog = "info"\n')
        ibfab = start("ibfab", "--config", fabric)
        runs = ibfab.wait("fabric runs")
        fabric.write_text('[fabric]\nlog = "loud"\n')
        os.kill(ibfab.process.popen.pid, signal.SIGHUP)
        refused = ibfab.wait("the configuration stays as it was")
        fabric.write_text('[fabric]\nlog = "error"\n')
        os.kill(ibfab.process.popen.pid, signal.SIGHUP)
        time.sleep(1)
        fabric.write_text('[fabric]\nlog_filter = "ibfab=info"\n')
        os.kill(ibfab.process.popen.pid, signal.SIGHUP)
        again = ibfab.wait("configuration read again")
        # At "error" nothing was said of that reading.
        heard = sum(e.get("MESSAGE", "").startswith("configuration read again") for e in ibfab.entries)
        softhca = start("softhca", "--socket", directory / "hca.sock", "--log", "info")
        waits = softhca.wait("waiting for a client at")
        quiet = start("softhca", "--socket", directory / "quiet.sock", "--log", "debug", before=["env", "SOFTHCA_LOG=error"])
        ended = start("softhca", "--socket", directory / "none/hca.sock")
        code = ended.process.popen.wait(60)
        time.sleep(0.5)
        quiet.process.popen.terminate()
        quiet.process.popen.wait(60)
        quiet.socket.setblocking(False)
        # The look for a journal is an empty entry.
        loud = []
        with contextlib.suppress(BlockingIOError):
            while True:
                loud += [part for part in [quiet.socket.recv(1 << 17).strip()] if part]
        fields = {"PRIORITY": "6", "SYSLOG_IDENTIFIER": "ibfab", "IBFAB_SWITCHES": "1", "TARGET": "ibfab::program"}
        wrong = [f"{name}: {runs.get(name)}" for name, value in fields.items() if runs.get(name) != value]
        said = ended.process.text()
        checks = {"fields": not wrong, "place": runs["CODE_FILE"].endswith(".rs") and int(runs["CODE_LINE"]) > 0,
                  "error": refused["PRIORITY"] == "3" and "fabric.toml:2:7" in refused["MESSAGE"],
                  "again": heard == 1 and again["PRIORITY"] == "6",
                  "softhca": waits["SYSLOG_IDENTIFIER"] == "softhca" and waits["PRIORITY"] == "6",
                  "environment": not loud, "end": code == 1 and said.startswith("<3>softhca: ") and said.count("No such file") == 1,
                  "past": not any(stand.process.text() for stand in stands if stand is not ended)}
        return {"ok": all(checks.values()), **checks, "wrong": wrong, "entry": runs, "said": said, "loud": loud}
    finally:
        for stand in stands:
            stand.close()
        shutil.rmtree(directory, ignore_errors=True)


CHECKS = (("journal_fields", check_journal),)


def journal(args, checks):
    checks.run("journal_programs", lambda: check_programs(args))
    if not Path(DAEMON).exists() or not shutil.which("journalctl"):
        # A machine without systemd: what an entry looks like is in the unit tests.
        checks.run("journal_fields", lambda: left_out(f"there is no {DAEMON}, or no journalctl, here"))
        return
    in_laboratory(JournalLaboratory, args, checks, CHECKS)
