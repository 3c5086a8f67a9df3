"""The service of GID tables (`ipoib-fwd gids --serve`): on interfaces of a network namespace, with readers that outlive it. It needs no
gateway and no fabric, and no RDMA device: the tables are those of software RoCE ports."""

import contextlib
import json
import os
import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path

from checks.laboratory import Failed
from checks.service import Manager
from stage.programs import Process, run

NETNS = "gwdemo-gids"
DEVICE, OTHER = "roce:gs0", "roce:gs1"
WITHIN = 30


class Room:
    """A network namespace with two interfaces, and a directory for the tables."""

    def __init__(self, args):
        self.bin = Path(args.bin).resolve()
        self.dir = Path(tempfile.mkdtemp(prefix="ipoib-fwd-gids-"))
        self.tables = self.dir / "tables"
        self.processes, self.services = [], 0

    def up(self):
        if Path(f"/run/netns/{NETNS}").exists():
            run("ip", "netns", "del", NETNS)
        run("ip", "netns", "add", NETNS)
        run("sysctl", "-qw", "net.ipv6.conf.default.addr_gen_mode=1", netns=NETNS)
        run("ip", "link", "add", "gs0", "netns", NETNS, "type", "veth", "peer", "name", "gs1", "netns", NETNS)
        for dev in ("gs0", "gs1"):
            run("ip", "link", "set", dev, "up", netns=NETNS)

    def clear(self):
        """Nothing of a check that failed is in the next one's way."""
        for process in self.processes:
            process.stop(1)
        self.processes.clear()
        for dev in ("gs0", "gs1"):
            run("ip", "-4", "addr", "flush", "dev", dev, netns=NETNS)

    def close(self):
        self.clear()
        run("ip", "netns", "del", NETNS, check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def command(self, *words):
        roce = [word for dev in ("gs0", "gs1") for word in ("--roce", dev)]
        return [self.bin / "ipoib-fwd", "gids", "--serve", "--dir", self.tables, *roce, *words]

    def serve(self, manager=None):
        """Starts the service, and waits until it says that it is ready."""
        self.services += 1
        manager = manager or Manager(self.dir / f"notify{self.services}", 60)
        service = Process("gids --serve", ["env", *manager.environment, *self.command()], NETNS, self.dir / f"serve{self.services}.log")
        self.processes.append(service)
        manager.wait("READY=1", 30)
        return service

    def kill(self, process):
        process.popen.kill()
        process.popen.wait()
        process.out.close()
        self.processes.remove(process)

    def gids(self, *words, check=True):
        return run(self.bin / "ipoib-fwd", "gids", "--from", self.tables, *words, netns=NETNS, check=check, timeout=30)

    def rows(self, *words):
        return json.loads(self.gids("--json", *words).stdout)["gids"]

    def follow(self, name, *words):
        """A reader that goes on."""
        command = [self.bin / "ipoib-fwd", "gids", "--from", self.tables, "--watch", "--json", *words]
        reader = Process(name, command, NETNS, self.dir / f"{name}.log")
        self.processes.append(reader)
        wait_for(f"{name} to begin", lambda: "present" in reader.text())
        return reader

    def address(self, what, address, dev="gs0"):
        run("ip", "addr", what, address, "dev", dev, netns=NETNS)


def wait_for(what, ready, seconds=WITHIN):
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.02)


def told(reader):
    # Whole lines.
    return [json.loads(line) for line in reader.text().rpartition("\n")[0].splitlines() if line.startswith("{")]


def has(reader, event, device, ipv4=None):
    return any((line["event"], line["device"], line.get("ipv4")) == (event, device, ipv4) for line in told(reader))


def addresses(rows, device):
    return {row["index"]: row["ipv4"] for row in rows if row["device"] == device and row["ipv4"]}


def check_follow(room):
    """What a reader sees of addresses that come and go, for people and for programs; and who may read and write."""
    room.address("add", "10.91.0.1/24")
    service = room.serve()
    reader = room.follow("follow")
    wrong = []
    room.address("add", "10.91.0.2/24")
    room.address("add", "10.91.1.1/24", "gs1")
    begin = time.monotonic()
    wait_for("an address that came", lambda: has(reader, "added", DEVICE, "10.91.0.2") and has(reader, "added", OTHER, "10.91.1.1"))
    seconds = round(time.monotonic() - begin, 2)
    room.address("del", "10.91.0.1/24")
    # The kernel takes addresses of the same network with the first one.
    wait_for("addresses that went", lambda: has(reader, "removed", DEVICE, "10.91.0.1"))
    room.address("replace", "10.91.0.2/24")
    run("ip", "link", "add", "link", "gs0", "name", "gsm", "type", "macvlan", netns=NETNS)
    room.address("add", "10.91.7.1/24", "gsm")
    wait_for("an address of what lies on the interface", lambda: has(reader, "added", DEVICE, "10.91.7.1"))
    rows = room.rows()
    seen = {row["ipv4"]: (row["device"], row["netdev"], row["vlan"], row["type"]) for row in rows if row["ipv4"]}
    if seen != {"10.91.0.2": (DEVICE, "gs0", None, "RoCE v2"), "10.91.7.1": (DEVICE, "gsm", None, "RoCE v2"),
                "10.91.1.1": (OTHER, "gs1", None, "RoCE v2")}:
        wrong.append(f"seen: {seen}")
    own = [row for row in rows if row["index"] == 0]
    if [row["device"] for row in own] != [DEVICE, OTHER] or not all(row["default"] and row["gid"].startswith("fe80:") for row in own):
        wrong.append(f"own: {own}")
    if any(row["device"] != OTHER for row in room.rows("--device", OTHER)):
        wrong.append("--device")
    lines = room.gids().stdout.splitlines()
    if lines[0].split()[0] != "DEV" or not any(line.split()[0] == DEVICE and "10.91.0.2" in line for line in lines):
        wrong.append(f"text: {lines}")
    if f"+ {DEVICE} 1 " not in service.text() or "10.91.0.2" not in service.text():
        wrong.append(f"log: {service.text()}")
    run("ip", "link", "del", "gsm", netns=NETNS)
    wait_for("an interface that went", lambda: has(reader, "removed", DEVICE, "10.91.7.1"))
    mode = stat.S_IMODE((room.tables / DEVICE).stat().st_mode), stat.S_IMODE(room.tables.stat().st_mode)
    if mode != (0o644, 0o755):
        wrong.append(f"modes: {mode}")
    # It waits for events, and does not ask again and again.
    before = Path(f"/proc/{pid_of(service)}/stat").read_text().split()[13:15]
    time.sleep(1)
    after = Path(f"/proc/{pid_of(service)}/stat").read_text().split()[13:15]
    spent = sum(map(int, after)) - sum(map(int, before))
    room.kill(reader)
    code = service.stop()
    return {"ok": not wrong and code == 0 and spent < 20, "seconds": seconds, "exit_code": code, "ticks_of_an_idle_second": spent,
            "wrong": wrong}


def pid_of(service):
    return service.popen.pid


def check_restart(room):
    """Two readers of a service that is killed are told, and go on with the next one: entries keep their places, and what
    changed meanwhile is told as a change."""
    for address in ("10.92.1.1/24", "10.92.2.1/24", "10.92.3.1/24"):
        room.address("add", address)
    first = room.serve()
    readers = [room.follow("one"), room.follow("two", "--device", DEVICE)]
    places = addresses(room.rows(), DEVICE)
    pid = pid_of(first)
    room.kill(first)
    for reader in readers:
        wait_for("a reader to be told", lambda r=reader: has(r, "stale", DEVICE))
    why = next(line["why"] for line in told(readers[0]) if line["event"] == "stale")
    stale = room.gids(check=False)
    # While nobody serves one address goes and another one comes.
    room.address("del", "10.92.2.1/24")
    room.address("add", "10.92.9.1/24")
    time.sleep(0.3)
    unaware = addresses(json.loads(room.gids("--json", check=False).stdout)["gids"], DEVICE) == places
    begin = time.monotonic()
    second = room.serve()
    for reader in readers:
        wait_for("a reader to go on", lambda r=reader: has(r, "current", DEVICE) and has(r, "added", DEVICE, "10.92.9.1"))
        wait_for("what went meanwhile", lambda r=reader: has(r, "removed", DEVICE, "10.92.2.1"))
    seconds = round(time.monotonic() - begin, 2)
    after = addresses(room.rows(), DEVICE)
    kept = {index: ip for index, ip in places.items() if ip != "10.92.2.1"}
    events = [(line["event"], line.get("ipv4")) for line in told(readers[1]) if line["event"] in ("added", "removed")]
    alive = all(reader.alive() for reader in readers)
    for reader in readers:
        room.kill(reader)
    code = second.stop()
    last = room.gids(check=False)
    ok = (alive and str(pid) in why and "stale" in why and stale.returncode == 1 and DEVICE in stale.stdout and unaware
          and kept.items() <= after.items() and sorted(events) == [("added", "10.92.9.1"), ("removed", "10.92.2.1")]
          and code == 0 and last.returncode == 1 and "stale" in last.stderr)
    return {"ok": ok, "why": why, "places": places, "after": after, "events": events, "seconds": seconds, "exit_code": code,
            "after_the_end": last.stderr.strip()}


def check_away(room):
    """The tables are gone with the service, as where systemctl has stopped it: readers go over to the files of the next one."""
    room.address("add", "10.96.1.1/24")
    first = room.serve()
    reader = room.follow("away")
    code = first.stop()
    wait_for("a reader to be told", lambda: has(reader, "stale", DEVICE))
    shutil.rmtree(room.tables)
    # The directory is looked at every two seconds.
    time.sleep(2.5)
    nowhere = room.gids(check=False)
    room.address("add", "10.96.2.1/24")
    second = room.serve()
    wait_for("a reader to go on", lambda: has(reader, "current", DEVICE) and has(reader, "added", DEVICE, "10.96.2.1"))
    alive = reader.alive()
    # A file that has just been begun is no news of addresses that went.
    removed = [line for line in told(reader) if line["event"] == "removed"]
    room.kill(reader)
    second.stop()
    return {"ok": alive and not removed and code == 0 and nowhere.returncode == 1 and "systemctl start ipoib-gids" in nowhere.stderr,
            "said": nowhere.stderr.strip(), "removed": removed}


def check_kills(room):
    """Killed again and again while addresses change: a reader sees whole tables only, and in the end the right one."""
    service = room.serve()
    reader = room.follow("steady", "--device", DEVICE)
    kills = 12
    for n in range(kills):
        room.address("add", f"10.93.{n}.1/24")
        if n % 2:
            time.sleep(0.03)
        room.kill(service)
        out = room.gids("--json", "--device", DEVICE, check=False)
        rows = json.loads(out.stdout)["gids"]
        if len({row["index"] for row in rows}) != len(rows) or rows[0]["index"] != 0:
            raise Failed(f"no whole table: {rows}")
        service = room.serve()
    wanted = {f"10.93.{n}.1" for n in range(kills)}
    wait_for("all addresses", lambda: wanted <= set(addresses(room.rows(), DEVICE).values()))
    those = lambda: {line["ipv4"] for line in told(reader) if line["event"] in ("present", "added") and line["ipv4"]}
    wait_for("the reader to see them", lambda: wanted <= those())
    seen = those()
    removed = [line for line in told(reader) if line["event"] == "removed"]
    alive = reader.alive()
    room.kill(reader)
    service.stop()
    return {"ok": alive and wanted <= seen and not removed, "kills": kills, "seen": len(seen & wanted), "removed": removed}


def check_second(room):
    """One service a directory: the second one is refused and told of the first, whose readers notice nothing."""
    first = room.serve()
    wrong = []
    second = run(*room.command(), netns=NETNS, check=False, timeout=30)
    if second.returncode != 1 or f"process {pid_of(first)}" not in second.stderr or "--dir" not in second.stderr:
        wrong.append(f"second: {second.returncode} {second.stderr}")
    if room.gids(check=False).returncode:
        wrong.append("the first is disturbed")
    # A reader that stops in the middle, or dies, is nobody's business.
    reader = room.follow("frozen")
    reader.popen.send_signal(signal.SIGSTOP)
    room.address("add", "10.94.0.1/24")
    wait_for("an address in spite of a reader that stands still", lambda: "10.94.0.1" in addresses(room.rows(), DEVICE).values())
    room.kill(reader)
    begin = time.monotonic()
    code = first.stop()
    took = round(time.monotonic() - begin, 2)
    if code != 0 or "ended" not in first.text():
        wrong.append(f"end: {code} after {took} s: {first.text()[-500:]}")
    return {"ok": not wrong, "said": second.stderr.strip(), "end_seconds": took, "wrong": wrong}


def refused(room, what, words, *said):
    out = run(room.bin / "ipoib-fwd", "gids", *words, netns=NETNS, check=False, timeout=30)
    good = out.returncode in (1, 2) and all(word in out.stderr for word in said) and "panicked" not in out.stderr
    return [] if good else [f"{what}: {out.returncode} {out.stderr}"]


def check_hostile(room):
    """Directories that others may write, planted and cut files, a table that is full."""
    wrong = []
    open_dir = room.dir / "open"
    open_dir.mkdir()
    open_dir.chmod(0o777)
    link = room.dir / "link"
    link.symlink_to(open_dir)
    for words in (("--serve", "--dir"), ("--from",)):
        wrong += refused(room, "open", (*words, open_dir), "chmod go-w")
        wrong += refused(room, "link", (*words, link), "symbolic link")
    wrong += refused(room, "nowhere", ("--from", room.dir / "none"), "none", "ipoib-gids")
    wrong += refused(room, "no parent", ("--serve", "--dir", room.dir / "none/none"), "none/none")
    for name in ("a/b", "", "averylonginterfacename", "a b", ".."):
        wrong += refused(room, name, ("--serve", "--dir", room.tables, "--roce", name), "--roce")
    wrong += refused(room, "twice", ("--serve", "--dir", room.tables, "--roce", "gs0", "--roce", "gs0"), "twice")
    many = [word for n in range(33) for word in ("--roce", f"x{n}")]
    wrong += refused(room, "too many", ("--serve", "--dir", room.tables, *many), "32")
    # What somebody with the same user left in the places of tables: nonsense, a file cut off, a link, a table of other ports.
    service = room.serve()
    service.stop()
    for nonsense in (b"", b"x" * 100, os.urandom(8192), (room.tables / DEVICE).read_bytes()[:4096]):
        (room.tables / DEVICE).write_bytes(nonsense)
        wrong += refused(room, "nonsense is no table", ("--from", room.tables, "--device", DEVICE), "GID table")
        service = room.serve()
        if room.gids("--device", DEVICE, check=False).returncode:
            wrong.append(f"not begun anew over {len(nonsense)} bytes: {service.text()[-300:]}")
        service.stop()
    (room.tables / DEVICE).unlink()
    target = room.dir / "target"
    target.write_bytes(b"precious")
    (room.tables / DEVICE).symlink_to(target)
    out = run(*room.command(), netns=NETNS, check=False, timeout=30)
    if out.returncode != 1 or DEVICE not in out.stderr or target.read_bytes() != b"precious":
        wrong.append(f"a link: {out.returncode} {out.stderr}")
    (room.tables / DEVICE).unlink()
    # Left by a service with a device that is no more.
    shutil.copy(room.tables / OTHER, room.tables / "mlx5_9")
    # More addresses than the table has room for: the rest waits until there is some.
    for batch in range(2):
        lines = "".join(f"addr add 10.95.{n}.1/24 dev gs0\n" for n in range(batch * 70, batch * 70 + 70))
        run("ip", "-batch", "-", netns=NETNS, input=lines)
    service = room.serve()
    if (room.tables / "mlx5_9").exists() or (room.tables / "mlx5_9.lock").exists():
        wrong.append("a table of a device that is no more is still there")
    full = len([row for row in room.rows() if row["device"] == DEVICE])
    said = "is full" in service.text() and "more changes wait" in service.text()
    for n in range(100):
        run("ip", "addr", "del", f"10.95.{n}.1/24", "dev", "gs0", netns=NETNS)
    wait_for("those that waited", lambda: set(addresses(room.rows(), DEVICE).values()) == {f"10.95.{n}.1" for n in range(100, 140)})
    alive = service.alive()
    # With the directory gone nobody would find the tables: the service ends, to be started again.
    shutil.rmtree(room.tables)
    wait_for("the end of a service without a directory", lambda: not service.alive())
    if service.stop() != 1 or "was removed" not in service.text():
        wrong.append(f"removed: {service.text()[-300:]}")
    return {"ok": not wrong and full == 128 and said and alive, "full": full, "said": said, "wrong": wrong}


def gids_serve(args, checks):
    bodies = (("gids_serve_follow", check_follow), ("gids_serve_restart", check_restart), ("gids_serve_away", check_away),
              ("gids_serve_kills", check_kills), ("gids_serve_second", check_second), ("gids_serve_hostile", check_hostile))
    if not any(checks.wanted(name) for name, _ in bodies):
        return
    room = Room(args)
    with contextlib.closing(room):
        room.up()
        for name, body in bodies:
            checks.run(name, lambda body=body: body(room))
            room.clear()
