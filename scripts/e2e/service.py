"""What programs tell the service manager that starts them: readiness, status, and signs of life only while everybody turns; and that the
units by which it would start them are well-formed and shut in."""

import contextlib
import ctypes
import json
import os
import re
import shutil
import socket
import tempfile
import time
from pathlib import Path

from checks.laboratory import Failed, LIBC, left_out
from stage.programs import Process, run

UNITS = Path(__file__).parents[2] / "packaging/systemd"
# Of systemd-analyze, ten times the figure that it prints.
EXPOSURE = 40
PTRACE_DETACH, PTRACE_SYSCALL, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 24, 0x4206, 0x4207
# poll, epoll_wait, ppoll, epoll_pwait, epoll_pwait2 of x86-64, in which a worker rests.
POLLS = ("7", "232", "271", "281", "441")
WALL = 0x40000000


def ptrace(request, thread):
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if LIBC.ptrace(request, thread, None, None):
        raise Failed(f"ptrace {request:#x} of thread {thread}: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def standing_still(pid, thread, seconds=20):
    """One thread alone does not turn, as a lock or a loop without end would have it. It stops where it goes to rest: one in the software
    device's turn has its lock, and then the control lcore, too, stands still and says nothing. It always goes on: one that is still
    traced when its process is killed keeps that from ending."""
    end = time.monotonic() + seconds

    def stopped():
        while os.waitpid(thread, WALL | os.WNOHANG)[0] == 0:
            if time.monotonic() > end:
                raise Failed(f"thread {thread} has not gone to rest within {seconds} s")
            time.sleep(0.001)

    ptrace(PTRACE_SEIZE, thread)
    ptrace(PTRACE_INTERRUPT, thread)
    stopped()
    try:
        while Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[0] not in POLLS:
            ptrace(PTRACE_SYSCALL, thread)
            stopped()
        yield
    finally:
        # One that was killed meanwhile, and waited for, is no more.
        if Path(f"/proc/{pid}/task/{thread}").exists():
            ptrace(PTRACE_DETACH, thread)


class Manager:
    """A service manager for one program: its environment, and what it is told."""

    def __init__(self, path, watchdog):
        self.told, self.socket = [], socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.environment = [f"NOTIFY_SOCKET={path}", f"WATCHDOG_USEC={int(watchdog * 1e6)}"]

    def wait(self, wanted, seconds=60):
        """Takes messages until one begins like that; returns it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.socket.settimeout(max(end - time.monotonic(), 0.01))
            try:
                message = self.socket.recv(4096).decode()
            except TimeoutError:
                break
            self.told.append(message)
            if message.startswith(wanted):
                return message
        raise Failed(f"nothing like {wanted} within {seconds} s; told: {self.told[-20:]}")

    def drain(self):
        """Takes all that has been told by now."""
        self.socket.setblocking(False)
        try:
            while True:
                self.told.append(self.socket.recv(4096).decode())
        except BlockingIOError:
            pass

    def count(self, what, seconds):
        """How many such messages come in that time."""
        end, n = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                message = self.socket.recv(4096).decode()
            except TimeoutError:
                break
            self.told.append(message)
            n += message == what
        return n


class Services:
    """A fabric without hosts and a gateway without a network, each with a manager of its own. Nothing comes from that network: net_null
    otherwise gives as many frames as are taken, and the worker never rests."""

    WATCHDOG = 3

    def __init__(self, args):
        self.bin, self.dir, self.processes = Path(args.bin).resolve(), Path(tempfile.mkdtemp(prefix="ipoib-fwd-e2e-")), []
        (self.dir / "fabric.toml").write_text(f'[[link]]\nname = "gateway"\nurl = "shm:{self.dir}/gw.sock"\n')
        (self.dir / "gateway.toml").write_text(
            f'[gateway]\naddress = "10.77.0.254/24"\ncontrol-socket = "{self.dir}/control.sock"\nidle = "sleep"\n'
            '[ethernet]\nport = "net_null0"\n[infiniband]\ndriver = "soft"\n'
            f'[infiniband.soft]\nports = [{{ link = "shm:{self.dir}/gw.sock" }}]\n')

    def start(self, name, argv):
        manager = Manager(self.dir / f"{name}.notify", self.WATCHDOG)
        process = Process(name, ["env", *manager.environment, *argv], None, self.dir / f"{name}.log")
        self.processes.append(process)
        return process, manager

    def fabric(self):
        return self.start("ibfab", [self.bin / "ibfab", "--config", self.dir / "fabric.toml"])

    def gateway(self, lcores="0-1", before=()):
        eal = ["--no-pci", "--no-huge", "--no-shconf", "-m", "256", "--file-prefix", "gwservice", "--vdev", "net_null0,no-rx=1"]
        line = [*before, self.bin / "ipoib-fwd", "--lcores", lcores, *eal, "--", "--config", self.dir / "gateway.toml"]
        return self.start("ipoib-fwd", line)

    def close(self):
        for process in reversed(self.processes):
            process.stop()
        shutil.rmtree(self.dir, ignore_errors=True)


def worker_of(pid):
    for task in Path(f"/proc/{pid}/task").iterdir():
        if "worker" in (task / "comm").read_text():
            return int(task.name)
    raise Failed("the gateway has no worker")


def check_told(args):
    """Ready without a fabric, which is said to be missing; forwarding once it is there; reload; a worker that stands still; the end."""
    services = Services(args)
    try:
        gateway, manager = services.gateway()
        manager.wait("READY=1")
        waiting = next(m for m in reversed(manager.told) if m.startswith("STATUS="))
        socket_words = ("ctl", "--socket", services.dir / "control.sock")
        ctl = lambda *words: run(services.bin / "ipoib-fwd", *socket_words, *words, check=False).returncode
        # It has nothing to hand over: nobody has to take it. It stays out of service until it is put back, the fabric being there or not.
        drained = [ctl("drain"), ctl("health")]
        fabric, of_fabric = services.fabric()
        of_fabric.wait("READY=1")
        of_fabric.wait("WATCHDOG=1")
        manager.wait("STATUS=1 segment: 1 drained")
        drained.append(ctl("drain", "--undo"))
        manager.wait("STATUS=1 segment: 1 forwarding")
        run(services.bin / "ipoib-fwd", "ctl", "--socket", services.dir / "control.sock", "reload")
        manager.wait("RELOADING=1")
        manager.wait("READY=1")
        manager.drain()
        told = len(manager.told)
        with standing_still(gateway.popen.pid, worker_of(gateway.popen.pid)):
            # What it was asked before it stood still it may have passed; nothing after that.
            manager.drain()
            while_still = manager.count("WATCHDOG=1", 3 * services.WATCHDOG)
            if not any(m.startswith("STATUS=worker 0 does not turn") for m in manager.told[told:]):
                manager.wait("STATUS=worker 0 does not turn")
        manager.wait("WATCHDOG=1")
        manager.wait("STATUS=1 segment: 1 forwarding")
        gateway.popen.terminate()
        manager.wait("STOPPING=1")
        code = gateway.popen.wait(20)
        # A manager listens all the time: a socket that is full of signs of life takes no more.
        of_fabric.drain()
        fabric.popen.terminate()
        of_fabric.wait("STOPPING=1")
        ok = code == 0 and while_still <= 1 and "waiting" in waiting and drained == [0, 5, 0]
        return {"ok": ok, "code": code, "drained": drained, "signs_of_life_while_still": while_still, "waiting": waiting}
    except Failed as error:
        raise Failed(f"{error}\n{''.join(p.text()[-1500:] for p in services.processes)}") from None
    finally:
        services.close()


def unexplained(analyze, unit, text):
    """What systemd would rather have taken from it, and of which no comment of the unit says why it is not."""
    judged = json.loads(run(analyze, "security", "--offline=true", "--json=short", unit).stdout)
    missing = []
    for name in (row["name"] for row in judged if row["set"] is False):
        setting, _, value = name.partition("=")
        # A group of calls, capability or family by its own name, or that of any where they are several; else the setting's.
        own = re.match(r"~(@\w+|(?:CAP|AF)_\w*)(?:\((.*)\))?", value)
        words = [own[1] + one for one in (own[2] or "").split("|")] if own else ["AF_XDP" if value == "~\u2026" else setting]
        if not re.search(rf"^#.*(?:{'|'.join(map(re.escape, words))})", text, re.M):
            missing.append(name)
    return missing


def endless(text):
    """True unless what fails at once, each time, comes to the unit's limit of starts."""
    keys = dict(line.partition("=")[::2] for line in text.splitlines() if not line.startswith("#"))
    interval, burst, pause = (int(keys.get(key, 0)) for key in ("StartLimitIntervalSec", "StartLimitBurst", "RestartSec"))
    return not 0 < burst * pause < interval


def check_units(args):
    """systemd's own judgement of the units, with the programs where it looks for them."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return left_out("there is no systemd-analyze here")
    wrong, units = [], sorted(UNITS.glob("*.service"))
    root = Path(tempfile.mkdtemp(prefix="ipoib-fwd-e2e-"))
    try:
        for unit in units:
            # Its programs need not be installed to know whether it is well-formed.
            text = unit.read_text().replace("=/usr/bin/ipoib-fwd", "=/bin/true").replace("=/usr/bin/ibfab", "=/bin/true")
            copy = root / unit.name.replace("@.", "@one.")
            copy.write_text(text)
            said = run(analyze, "verify", "--man=no", "--recursive-errors=no", copy, check=False)
            if said.returncode or said.stderr:
                wrong.append(f"{unit.name}: {said.stderr[-600:]}")
            judged = run(analyze, "security", "--offline=true", f"--threshold={EXPOSURE}", copy, check=False)
            if judged.returncode:
                wrong.append(f"{unit.name}: {(judged.stdout + judged.stderr)[-200:]}")
            if endless(text):
                wrong.append(f"{unit.name}: is started anew for ever")
            # An instance's reasons are those of the unit without instances.
            reasons = text + (UNITS / unit.name.replace("@.", ".")).read_text()
            if missing := unexplained(analyze, copy, reasons):
                wrong.append(f"{unit.name}: no comment says why there is no {', '.join(missing)}")
        return {"ok": len(units) >= 4 and not wrong, "units": len(units), "wrong": wrong}
    finally:
        shutil.rmtree(root, ignore_errors=True)


def command_of(unit, key, replaced, environment):
    """A unit's command line as systemd makes it: a variable that is a word of its own is as many words as it has."""
    [line] = [line.split("=", 1)[1] for line in unit.read_text().splitlines() if line.startswith(f"{key}=")]
    line = line.replace("%i", "two")
    for old, new in replaced:
        line = line.replace(old, str(new))
    words = []
    for word in line.split():
        words += environment[word[1:]].split() if word.startswith("$") else [word]
    return words


def check_before(args):
    """What units do before they start: errors end it, with their remedies, warnings do not; with the arguments of the start."""
    services = Services(args)
    environment = {"EAL": "-l 0-1 --no-pci --no-huge -m 256 --file-prefix gwservice --vdev net_null0",
                   "OPTIONS": "--stats 5 --mode datagram"}
    found = {}
    try:
        # The unit's option stands in place of this one's socket.
        good = (services.dir / "gateway.toml").read_text()
        for unit in sorted(UNITS.glob("ipoib-fwd*.service")):
            replaced = (("/usr/bin", services.bin), ("/etc/ipoib-fwd/two", services.dir / "gateway"), ("/etc/ipoib-fwd", services.dir),
                        ("/run/", f"{services.dir}/run/"))
            before, start = (command_of(unit, key, replaced, environment) for key in ("ExecStartPre", "ExecStart"))
            same = [word for word in before if word not in ("--check", "--warnings-pass")] == start
            (services.dir / "gateway.toml").write_text(good)
            passes = run(*before, check=False)
            plain = run(*[word for word in before if word != "--warnings-pass"], check=False)
            (services.dir / "gateway.toml").write_text(good.replace("address =", "adress =").replace("net_null0", "net_null7"))
            fails = run(*before, check=False)
            told = [word for word in ("gateway.toml:2:1", "did you mean `address`?", "error[ethernet-unknown]") if word not in fails.stdout]
            codes = [passes.returncode, plain.returncode, fails.returncode]
            ok = same and codes == [0, 3, 1] and "warning[hugepages-unused]" in passes.stdout and not told
            found[unit.name] = {"ok": ok, "codes": codes, "same": same, **({} if ok else {"said": passes.stdout + fails.stdout})}
        return {"ok": len(found) == 2 and all(unit["ok"] for unit in found.values()), **found}
    finally:
        services.close()


def service(args, checks):
    checks.run("service_units", lambda: check_units(args))
    checks.run("service_before", lambda: check_before(args))
    checks.run("service_told", lambda: check_told(args))
