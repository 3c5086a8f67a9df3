"""Before it starts: what --check says of good and bad configurations, and that a gateway starts from what init wrote."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from stage.programs import run
from stage.traffic import answered

GOOD = """[gateway]
address = "10.77.0.254/24"
control-socket = ""
[ethernet]
port = "net_null0"
[infiniband.soft]
ports = [{ link = "udp:127.0.0.1:0-127.0.0.1:9" }]
"""

# Wrong in four lines, of which an ordinary start tells the first.
BAD = """[gateway]
adress = "10.77.0.254/24"
control-socket = "/proc/version"
idle = "never"
[ethernet]
mtu = 99999
port = "net_nul0"
[infiniband.soft]
ports = [{ link = "tcp:1" }]
"""

EAL = ("-l", "0-1", "--no-pci", "--no-huge", "-m", "2048", "--vdev", "net_null0")

# A gateway by itself with networks, /run and processes of its own: Ethernet host on the interface that it makes, InfiniBand host of ibfab.
FIRST = """
set -e
mount -t tmpfs none /run
ip link set lo up
ip netns add ib
cd {directory}
ibfab --config {fabric} >fabric.log 2>&1 &
ipoib-fwd init --output first.toml
cat first.toml first.env
! ipoib-fwd init --output first.toml 2>again.log
grep -q 'is there already' again.log
. ./first.env
code=0; ipoib-fwd $EAL -- --check --config first.toml || code=$?
[ $code != 1 ]
ipoib-fwd $EAL --no-shconf --file-prefix gwfirst -- --config first.toml >gateway.log 2>&1 &
for _ in $(seq 150); do
    ipoib-fwd ctl links --json 2>/dev/null | grep -q '"role": *"forwarding"' && break
    sleep 0.2
done
# The interface has the port's own address, so the host is on a bridge with another one.
ip link add bridge0 address 02:00:00:00:00:77 type bridge
ip link set ipoib-gw0 master bridge0
ip link set ipoib-gw0 up
ip link set bridge0 up
ip address add 10.77.0.1/24 dev bridge0
ping -c 3 -w 40 10.77.0.2
code=0; ipoib-fwd $EAL -- --check --json --config first.toml > while.json || code=$?
[ $code = 1 ]
grep -q control-socket-occupied while.json
"""


def check(gateway, *words, eal=EAL):
    """--check with EAL's arguments, how long it took and what it left of a directory."""
    begin = time.monotonic()
    out = run(gateway, *eal, "--", "--check", *words, check=False, timeout=30)
    return out, round(time.monotonic() - begin, 2)


def check_good(gateway, directory):
    good = directory / "good.toml"
    good.write_text(GOOD)
    before = sorted(directory.iterdir())
    out, seconds = check(gateway, "--config", good)
    alone = run(gateway, "--check", "--config", good, check=False, timeout=30)
    # Without hugepages, which is a warning; nothing keeps it from starting.
    ok = (out.returncode == 3 and "warning[hugepages-unused]" in out.stdout and "error[" not in out.stdout and not out.stderr
          and "note[eal-missing]" in alone.stdout and alone.returncode == 0 and sorted(directory.iterdir()) == before)
    return {"ok": ok, "code": out.returncode, "seconds": seconds, **({} if ok else {"said": out.stdout + alone.stdout})}


def check_bad(gateway, directory):
    bad = directory / "bad.toml"
    bad.write_text(BAD)
    out, seconds = check(gateway, "--config", bad, eal=("-l", "0,1,999", *EAL[2:]))
    wanted = ["bad.toml:2:1", "did you mean `address`?", "bad.toml:4:8", "bad.toml:6:7", "bad.toml:9:19",
              "error[lcore-offline]", "error[ethernet-unknown]", "did you mean net_null0?", "error[control-socket-occupied]",
              "3 | control-socket = \"/proc/version\"", "  = help: "]
    missing = [word for word in wanted if word not in out.stdout]
    ok = out.returncode == 1 and not missing and "panicked" not in out.stderr and "\x1b" not in out.stdout
    return {"ok": ok, "code": out.returncode, "seconds": seconds, "missing": missing, **({} if ok else {"said": out.stdout + out.stderr})}


def check_json(gateway, directory):
    bad = directory / "json.toml"
    bad.write_text(BAD)
    text, _ = check(gateway, "--config", bad)
    out, _ = check(gateway, "--json", "--config", bad)
    document = json.loads(out.stdout)
    codes = [finding["code"] for finding in document["findings"]]
    listed = [line.split("[")[1].split("]")[0] for line in text.stdout.splitlines() if line.startswith(("error[", "warning[", "note["))]
    counted = sum(finding["severity"] == "error" for finding in document["findings"])
    ok = codes == listed and document["errors"] == counted > 0 and out.returncode == text.returncode == 1
    return {"ok": ok, "errors": counted, "codes": codes}


def everything(terminal):
    """What a program that has ended left there, in however many pieces."""
    text = b""
    while select.select([terminal], [], [], 0.3)[0]:
        text += os.read(terminal, 1 << 16)
    return text.decode()


def check_terminal(gateway, directory):
    good = directory / "terminal.toml"
    good.write_text(GOOD)
    ours, theirs = os.openpty()
    try:
        line = [str(word) for word in (gateway, *EAL, "--", "--check", "--config", good)]
        done = subprocess.run(line, stdout=theirs, timeout=30, env={**os.environ, "NO_COLOR": ""}, check=False)
        shown = everything(ours)
        plain = subprocess.run(line, stdout=theirs, timeout=30, env={**os.environ, "NO_COLOR": "1"}, check=False)
        without = everything(ours)
    finally:
        os.close(ours)
        os.close(theirs)
    ok = done.returncode == plain.returncode == 3 and "\x1b[1;33mwarning[" in shown and "\x1b" not in without
    return {"ok": ok, **({} if ok else {"shown": shown, "without": without})}


def check_journal(gateway, directory):
    """Where the journal reads, each line has the priority of its finding in front, and nothing else changes; elsewhere there is none."""
    bad = directory / "journal.toml"
    bad.write_text(BAD)
    said = {}
    for name in ("plain", "journal", "other"):
        with open(directory / f"{name}.out", "wb") as out:
            about = os.fstat(out.fileno())
            stream = {"journal": f"{about.st_dev}:{about.st_ino}", "other": f"{about.st_dev}:{about.st_ino + 1}"}.get(name, "")
            line = [str(word) for word in (gateway, *EAL, "--", "--check", "--config", bad)]
            code = subprocess.run(line, stdout=out, stderr=out, timeout=30, env={**os.environ, "JOURNAL_STREAM": stream}).returncode
        said[name] = (code, (directory / f"{name}.out").read_text().splitlines())
    lines = said["journal"][1]
    errors = [line for line in lines if line[3:].startswith("error[")]
    warnings = [line for line in lines if line[3:].startswith("warning[")]
    ok = (said["plain"] == said["other"] and said["journal"][0] == said["plain"][0] == 1 and len(errors) >= 4
          and all(line.startswith("<3>") for line in errors) and all(line.startswith("<4>") for line in warnings)
          and [line[3:] for line in lines] == [line for line in said["plain"][1] if line] and not said["plain"][1][0].startswith("<"))
    return {"ok": ok, "errors": len(errors), "warnings": len(warnings), **({} if ok else {"said": said})}


def check_fifo(gateway, directory):
    """What is no file is said to be none, at once, by --check and by a start."""
    fifo = directory / "fifo.toml"
    os.mkfifo(fifo)
    out, seconds = check(gateway, "--config", fifo)
    start = run(gateway, *EAL, "--", "--config", fifo, check=False, timeout=20)
    ok = (out.returncode == 1 and "error[config-unreadable]" in out.stdout and "not a regular file" in out.stdout and seconds < 10
          and start.returncode == 1 and "not a regular file" in start.stderr)
    return {"ok": ok, "seconds": seconds, **({} if ok else {"said": out.stdout + start.stderr})}


def check_first(gateway, directory):
    fabric = Path(__file__).resolve().parents[2] / "examples" / "fabric.toml"
    script = f"export PATH={gateway.parent}:$PATH\n" + FIRST.format(directory=directory, fabric=fabric)
    done = run("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script,
               check=False, timeout=120)
    all_three = len(answered(done.stdout, first=3)) == 3
    ok = done.returncode == 0 and all_three
    logs = {log.name: log.read_text(errors="replace")[-1500:] for log in directory.glob("*.log")}
    more = {} if ok else {"code": done.returncode, "said": (done.stdout + done.stderr)[-4000:], **logs}
    return {"ok": ok, "answered": all_three, **more}


def preflight(args, checks):
    if not checks.wanted_of("preflight"):
        return
    gateway = Path(args.bin).resolve() / "ipoib-fwd"
    directory = Path(tempfile.mkdtemp(prefix="ipoib-fwd-e2e-"))
    try:
        for name, body in (("good", check_good), ("bad", check_bad), ("json", check_json), ("terminal", check_terminal),
                           ("journal", check_journal), ("fifo", check_fifo), ("first", check_first)):
            checks.run(f"preflight_{name}", lambda body=body: body(gateway, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
