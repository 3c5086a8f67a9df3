"""`--check`: what it says of good and bad configurations.

And a gateway that starts from what `init` wrote.
"""

import contextlib
import json
import os
import pathlib
import subprocess

import pytest
from testbed.programs import DEADLINE, run
from testbed.traffic import answered

pytestmark = pytest.mark.netns

FABRIC = pathlib.Path(__file__).resolve().parents[2] / "examples/fabric.toml"

GOOD = """[gateway]
address = "10.77.0.254/24"
control-socket = ""
[ethernet]
port = "net_null0"
[infiniband.soft]
ports = [{ link = "udp:127.0.0.1:0-127.0.0.1:9" }]
"""

# Four of its lines are wrong; a start reports only the first of them.
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

# A gateway with networks, /run and processes of its own: the Ethernet host is on the interface that it makes,
# the InfiniBand host is ibfab's.
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
ipoib-fwd $EAL --no-shconf --file-prefix {prefix} -- --config first.toml >gateway.log 2>&1 &
for _ in $(seq 600); do
    ipoib-fwd ctl links --json 2>/dev/null | grep -q '"role": *"forwarding"' && break
    sleep 0.2
done
# The interface has the port's own address, so the host is on a bridge with another one.
ip link add bridge0 address 02:00:00:00:00:77 type bridge
ip link set ipoib-gw0 master bridge0
ip link set ipoib-gw0 up
ip link set bridge0 up
ip address add 10.77.0.1/24 dev bridge0
ping -c 3 -w 120 10.77.0.2
code=0; ipoib-fwd $EAL -- --check --json --config first.toml > while.json || code=$?
[ $code = 1 ]
grep -q control-socket-occupied while.json
"""


@pytest.fixture
def program(programs):
    return programs / "ipoib-fwd"


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.toml"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text(BAD)
    return path


def check(program, *arguments, eal=EAL):
    """The result of `--check` with EAL's arguments."""
    return run(program, *eal, "--", "--check", *arguments, check=False)


@pytest.mark.core
def test_good_configuration(program, good):
    """Hugepages that are not used are a warning; nothing keeps the gateway from starting, and the check
    leaves no files."""
    before = sorted(good.parent.iterdir())
    out = check(program, "--config", good)
    assert out.returncode == 3, out.stdout
    assert "warning[hugepages-unused]" in out.stdout
    assert "error[" not in out.stdout
    assert out.stderr == ""
    alone = run(program, "--check", "--config", good, check=False)
    assert alone.returncode == 0, alone.stdout
    assert "note[eal-missing]" in alone.stdout
    assert sorted(good.parent.iterdir()) == before


@pytest.mark.core
def test_bad_configuration(program, bad):
    """Each error has its location and a fix; all of them are reported at once."""
    out = check(program, "--config", bad, eal=("-l", "0,1,999", *EAL[2:]))
    assert out.returncode == 1, out.stdout
    for text in ("bad.toml:2:1", "did you mean `address`?", "bad.toml:4:8", "bad.toml:6:7", "bad.toml:9:19",
                 "error[lcore-offline]", "error[ethernet-unknown]", "did you mean net_null0?", "error[control-socket-occupied]",
                 "3 | control-socket = \"/proc/version\"", "  = help: "):
        assert text in out.stdout
    assert "panicked" not in out.stderr
    assert "\x1b" not in out.stdout


def test_json(program, bad):
    """The findings as JSON are those of the text, in the same order."""
    text = check(program, "--config", bad)
    out = check(program, "--json", "--config", bad)
    document = json.loads(out.stdout)
    codes = [line.split("[")[1].split("]")[0] for line in text.stdout.splitlines() if line.startswith(("error[", "warning[", "note["))]
    assert [finding["code"] for finding in document["findings"]] == codes
    errors = sum(finding["severity"] == "error" for finding in document["findings"])
    assert document["errors"] == errors > 0
    assert out.returncode == text.returncode == 1


def terminal_output(line, **environment):
    """The exit code of a program on a pseudo-terminal, and what it printed there."""
    ours, theirs = os.openpty()
    try:
        done = subprocess.run([str(a) for a in line], stdout=theirs, timeout=DEADLINE, env={**os.environ, **environment}, check=False)
    finally:
        os.close(theirs)
    text = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        # EIO is the end: nothing has the other side open any more.
        while more := terminal.read(1 << 16):
            text += more
    return done.returncode, text.decode()


def test_colours_on_terminal(program, good):
    """On a terminal the findings have colours, unless NO_COLOR is set."""
    line = (program, *EAL, "--", "--check", "--config", good)
    code, text = terminal_output(line, NO_COLOR="")
    assert code == 3
    assert "\x1b[1;33mwarning[" in text
    code, text = terminal_output(line, NO_COLOR="1")
    assert code == 3
    assert "warning[" in text
    assert "\x1b" not in text


def test_priorities_for_journal(program, bad):
    """Where standard error is the journal's stream each line starts with the priority of its finding; nothing
    else changes."""
    results = {}
    for name, offset in (("plain", None), ("journal", 0), ("other", 1)):
        path = bad.parent / f"{name}.out"
        with open(path, "wb") as out:
            status = os.fstat(out.fileno())
            stream = "" if offset is None else f"{status.st_dev}:{status.st_ino + offset}"
            line = [str(a) for a in (program, *EAL, "--", "--check", "--config", bad)]
            code = subprocess.run(line, stdout=out, stderr=out, timeout=DEADLINE, env={**os.environ, "JOURNAL_STREAM": stream}).returncode
        results[name] = code, path.read_text().splitlines()
    assert results["plain"] == results["other"]
    (code, plain), (journal_code, lines) = results["plain"], results["journal"]
    assert code == journal_code == 1
    errors = [line for line in lines if line[3:].startswith("error[")]
    assert len(errors) >= 4, lines
    assert [line for line in errors if not line.startswith("<3>")] == []
    assert [line for line in lines if line[3:].startswith("warning[") and not line.startswith("<4>")] == []
    assert [line[3:] for line in lines] == [line for line in plain if line]
    assert not plain[0].startswith("<")


def test_fifo_as_configuration(program, tmp_path):
    """A configuration that is no regular file is refused at once, by the check and by a start."""
    fifo = tmp_path / "fifo.toml"
    os.mkfifo(fifo)
    # A program that opened it for reading would block until the deadline.
    out = check(program, "--config", fifo)
    assert out.returncode == 1, out.stdout
    assert "error[config-unreadable]" in out.stdout
    assert "not a regular file" in out.stdout
    started = run(program, *EAL, "--", "--config", fifo, check=False)
    assert started.returncode == 1, started.stderr
    assert "not a regular file" in started.stderr


def test_gateway_from_init(program, tmp_path):
    """The files that `init` writes start a gateway that carries packets; while it runs the check finds its
    control socket."""
    script = f"export PATH={program.parent}:$PATH\n" + FIRST.format(directory=tmp_path, fabric=FABRIC, prefix=tmp_path.name)
    done = run("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script,
               check=False, timeout=4 * DEADLINE)
    logs = {log.name: log.read_text(errors="replace")[-1500:] for log in tmp_path.glob("*.log")}
    assert done.returncode == 0, (done.stdout[-4000:], done.stderr[-4000:], logs)
    assert len(answered(done.stdout, first=3)) == 3, done.stdout[-4000:]
