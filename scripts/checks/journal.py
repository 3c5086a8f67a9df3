"""What the gateway logs as a service: entries of the journal (systemd's own) with fields, under its filters of system calls."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from checks.laboratory import Laboratory, in_laboratory
from demo import ETH, GW, IB_IP, Process, ping, say

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
            try:
                os.kill(int(pid.read_text()), signal.SIGTERM)
            except ProcessLookupError:
                pass
            time.sleep(0.5)

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
    wanted, events, end = {"up", "reload", "connection-up", "connection-down", "role"}, {}, time.monotonic() + 10
    # journald writes when it comes to it.
    while not wanted <= events.keys() and time.monotonic() < end:
        time.sleep(0.5)
        entries = lab.entries()
        events = {e["IPOIB_FWD_EVENT"]: e for e in entries if "IPOIB_FWD_EVENT" in e}
    up = events.get("up", {})
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
    ok = (not wrong and not past and alive and goes_on and wanted <= set(events)
          and up.get("IPOIB_FWD_SEGMENT") == "default" and up.get("MESSAGE") == "default: InfiniBand link up" and up.get("PRIORITY") == "6"
          and up.get("_TRANSPORT") == "journal" and Path(up.get("CODE_FILE", "")).suffix == ".rs")
    return {"ok": bool(ok), "entries": len(entries), "events": sorted(events), "wrong": wrong[:2], "past_the_journal": past[:2],
            "goes_on": goes_on, "up": {k: v for k, v in up.items() if not k.startswith("_")}}


CHECKS = (("journal_fields", check_journal),)


def journal(args, checks):
    if not Path(DAEMON).exists() or not shutil.which("journalctl"):
        # A machine without systemd: what an entry looks like is in the unit tests.
        if checks.wanted_of("journal"):
            say(f"no {DAEMON}: left out")
        return
    in_laboratory(JournalLaboratory, args, checks, CHECKS)
