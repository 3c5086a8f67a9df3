"""Kills random processes under traffic."""

import hashlib
import json
import os
import random
import struct
import time

from soaktest import device
from soaktest.common import ETH, IB, RECOVERED, KillableSoak, recovery, report, say
from testbed.exporter import Exporter, get, samples, total
from testbed.gid_service import DEVICE, GidService
from testbed.programs import Process, TestbedError, run
from testbed.topology import ETH_IP, IB_IP


def whole_records(path):
    """Returns whether a capture consists of whole records, and the bytes of an incomplete last one."""
    data = path.read_bytes()
    if len(data) < 24:
        return len(data) == 0, 0
    at = 24
    while at + 16 <= len(data):
        length, original = struct.unpack("<II", data[at + 8:at + 16])
        if length > original or length > 1 << 18:
            return False, 0
        if at + 16 + length > len(data):
            break
        at += 16 + length
    return True, len(data) - at


def on_disk(lab, wholes):
    """Returns the errors in the files of the processes."""
    wrong = []
    for name, digest in wholes.items():
        if hashlib.sha256((lab.dir / name).read_bytes()).hexdigest() != digest:
            wrong.append(f"{name} has changed")
    for path in (path for paths in lab.captures().values() for path in paths):
        whole, _ = whole_records(path)
        if not whole:
            wrong.append(f"{path.name} is not a valid capture")
    out = run(lab.bin / "ipoib-fwd", "gids", "--shared", lab.dir / "gids", "--json", check=False)
    if out.returncode:
        wrong.append(f"GID table: {out.stderr.strip()[-200:]}")
    return wrong


def answers_again(exporter, begin, seconds):
    """Returns the seconds until the exporter reports a forwarding gateway, or None after a timeout."""
    while True:
        try:
            status, _, text = get(exporter.port)
            if status == 200 and total(samples(text), "ipoib_fwd_segment_role", 'role="forwarding"') == 1:
                return time.monotonic() - begin
        except OSError:
            pass
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.05)


class KillTopology(KillableSoak):
    """Adds a port for a software ConnectX; the fabric reports its ports every second."""

    more_of_fabric = ("--stats", 1)

    def fabric_config(self):
        return super().fabric_config() + device.link(self)


class Tables:
    """A GID service, whose address changes at each kill, and a reader that outlives it."""

    def __init__(self, args):
        self.room, self.given = GidService(args.bin, keep=args.keep, report=say), []
        self.room.up()
        self.change()
        self.service = self.room.serve()
        self.reader = self.room.follow("reader")

    def change(self):
        n = len(self.given)
        self.given.append(f"10.93.{n // 250}.{n % 250 + 1}")
        self.room.address("add", f"{self.given[-1]}/32")
        if n:
            self.room.address("del", f"{self.given[-2]}/32")

    def kill(self):
        self.room.kill(self.service)

    def start(self):
        self.service = self.room.serve()

    def seen(self):
        """Returns the addresses that the reader saw added, and those that it saw removed."""
        lines = [line for line in self.reader.events() if line.get("device") == DEVICE and line.get("ipv4")]
        return ([line["ipv4"] for line in lines if line["event"] in ("present", "added")],
                [line["ipv4"] for line in lines if line["event"] == "removed"])

    def known_again(self, begin, seconds):
        """Returns the seconds until the reader has seen each change exactly once, or None after a timeout."""
        while self.seen() != (self.given, self.given[:-1]):
            if time.monotonic() - begin > seconds or not self.reader.process.alive():
                return None
            time.sleep(0.05)
        return time.monotonic() - begin

    def wrong(self, maintained):
        """Returns the errors that a new reader finds in the table."""
        out = self.room.gids("--from", self.room.tables, "--json", "--device", DEVICE, check=False)
        try:
            rows = json.loads(out.stdout)["gids"]
        except ValueError:
            return [f"unreadable GID table: {out.stderr.strip()[-200:]}"]
        if len({row["index"] for row in rows}) != len(rows) or not rows or rows[0]["index"] != 0:
            return [f"incomplete GID table: {rows}"]
        if maintained and (out.returncode or [row["ipv4"] for row in rows if row["ipv4"]] != self.given[-1:]):
            return [f"GID table: {out.returncode} {rows} {out.stderr.strip()[-200:]}"]
        return []

    def close(self):
        self.room.close()


class Everything:
    """All processes that are killed, and all functions that must recover."""

    names = ("gateway", "fabric", "exporter", "gids", "device")

    def __init__(self, lab, tables):
        self.lab, self.tables = lab, tables
        self.exporter, self.device, self.user = Exporter(lab), device.Device(lab), device.User(lab)
        lab.processes += [self.exporter.process, self.device.process]
        if self.user.answers_again(time.monotonic(), RECOVERED) is None:
            raise TestbedError(f"the guest with the device is unreachable: {self.user.why}: {self.device.process.text()[-2000:]}")

    def kill(self, name):
        if name == "gids":
            self.tables.kill()
        else:
            self.lab.kill(getattr(self, name).process if name in ("exporter", "device") else getattr(self.lab, name))

    def start(self, name):
        if name == "gids":
            self.tables.start()
        elif name == "exporter":
            self.exporter = Exporter(self.lab, port=self.exporter.port)
            self.lab.processes.append(self.exporter.process)
        elif name == "device":
            self.device = device.Device(self.lab)
            self.lab.processes.append(self.device.process)
        else:
            getattr(self.lab, f"start_{name}")()

    def recovery(self, name, begin):
        """Returns the seconds until each function has recovered, or None after a timeout."""
        size = 0 if name == "fabric" else len(self.lab.fabric.text())
        again = {"packets": recovery(self.lab, begin, RECOVERED), "exporter": answers_again(self.exporter, begin, RECOVERED),
                 "GID reader": self.tables.known_again(begin, RECOVERED), "guest": self.user.answers_again(begin, RECOVERED)}
        if name in ("fabric", "device"):
            again["port"] = device.fabric_sees(self.lab, begin, size, RECOVERED)
        return again


def kills(args):
    """Kills `args.number` processes, one at a time, and checks that everything recovers."""
    chance, wrong = random.Random(args.seed), []
    took = {name: [] for name in Everything.names}
    shm = set(os.listdir("/dev/shm"))
    lab, tables, everything = KillTopology(args), None, None
    try:
        lab.up()
        tables = Tables(args)
        everything = Everything(lab, tables)
        wholes = {name: hashlib.sha256((lab.dir / name).read_bytes()).hexdigest() for name in ("gateway.toml", "fabric.toml")}
        traffic = [Process("ping", ["ping", "-n", "-q", "-i", "0.005", "-s", 1400, target], netns, lab.dir / f"traffic-{number}.log")
                   for number, (netns, target) in enumerate(((ETH, IB_IP), (IB, ETH_IP), (ETH, device.IP)))]
        for n in range(1, args.number + 1):
            time.sleep(chance.uniform(0.0, 1.5))
            name = chance.choice(list(took))
            everything.kill(name)
            wrong += [f"kill {n} ({name}): {what}" for what in tables.wrong(maintained=False)]
            tables.change()
            time.sleep(0.1)
            begin = time.monotonic()
            everything.start(name)
            again = everything.recovery(name, begin)
            if None in again.values():
                what = ", ".join(name for name, seconds in again.items() if seconds is None)
                wrong.append(f"kill {n} ({name}): {what} not recovered within {RECOVERED} s ({everything.user.why})")
                lab.print_diagnostics()
                break
            took[name].append(max(again.values()))
            wrong += [f"kill {n} ({name}): {what}" for what in (*on_disk(lab, wholes), *tables.wrong(maintained=True))]
            # The captures of earlier lives are checked.
            for path in (path for life, paths in lab.captures().items() if life < lab.number for path in paths):
                path.unlink()
            lab.check_alive()
            if n % 10 == 0:
                longest = max(map(max, filter(None, took.values())))
                say(f"kills: {n} of {args.number}, longest recovery {longest:.1f} s, {len(wrong)} failures")
        for process in traffic:
            process.stop(1)
    finally:
        if everything:
            everything.user.close()
        if tables:
            tables.close()
        lab.close()
    left = sorted(set(os.listdir("/dev/shm")) - shm)
    of_each = {name: {"kills": len(all_of), "median": round(sorted(all_of)[len(all_of) // 2], 2), "longest": round(max(all_of), 2)}
               for name, all_of in took.items() if all_of}
    recovered = sum(map(len, took.values()))
    ok = not wrong and not left and recovered == args.number
    return report("kills", ok, seed=args.seed, recovered=recovered, recovered_seconds=of_each, within=RECOVERED, wrong=wrong[:10],
                  guests=everything.user.attached, left_in_dev_shm=left)
