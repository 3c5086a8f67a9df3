"""What is in a core of a gateway that has carried packets: a real one, as the kernel writes it when the gateway is told to abort."""

import contextlib
import fcntl
import mmap
import os
import shutil
import signal
import socket
import struct
from pathlib import Path

from checks.laboratory import Laboratory, left_out, socket_in
from stage.apart import EAL
from stage.lab import ETH, GW, IB_IP
from stage.programs import Failed, Process, run
from stage.traffic import ping

# Where the kernel is told what becomes of a core; it is one for all of the machine.
PATTERN = Path("/proc/sys/kernel/core_pattern")
# Held by who counts on it.
LOCK = "/run/lock/ipoib-fwd-core-pattern.lock"
# A VLAN of no segment: a frame of it is in the packet buffers, is dropped, and nobody else sees it.
FOREIGN_VLAN = 4000
PT_LOAD = 1


@contextlib.contextmanager
def cores_are_files():
    """A core is a file in the directory of who dies. Where it goes elsewhere (a pipe to a collector, a directory of the machine's) it is
    so until this ends; false if it cannot be."""
    os.makedirs(os.path.dirname(LOCK), exist_ok=True)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = PATTERN.read_text()
        if before.strip() and before[0] not in "|/@":
            yield True
            return
        try:
            PATTERN.write_text("core\n")
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            PATTERN.write_text(before)


class CoreLaboratory(Laboratory):
    """The gateway may leave cores, in a directory of their own. Its buffers are in ordinary pages: hugepages that are shared are in no core
    unless the system is told to have them there."""

    cores = None

    def __init__(self, args):
        super().__init__(args, intruder=False)
        self.dying = self.dir / "cores"

    def hugepages_up(self):
        return ["--no-huge", "--no-shconf", "-m", "256"]

    def gateway_config(self):
        word = f'cores = "{self.cores}"\n' if self.cores else ""
        return super().gateway_config().replace("[gateway]\n", f"[gateway]\n{word}", 1)

    def start_gateway(self):
        """As always, but for its directory and the limit."""
        self.dying.mkdir()
        before = ["env", f"--chdir={self.dying}", "prlimit", "--core=unlimited", "--"]
        line = [*before, self.bin / "ipoib-fwd", *self.lcores(), "--no-pci", *self.memory, "--file-prefix", "gwdemo", *self.vdev_words(),
                "--", "--config", self.dir / "gateway.toml"]
        self.gateway = Process("ipoib-fwd", line, GW, self.dir / "gateway.log")
        self.processes.append(self.gateway)


def carry(lab, mark):
    """Pings with the mark in them are answered through the gateway."""
    done = ping(ETH, IB_IP, 1400, count=20, more=("-p", mark.hex()))
    if not done["ok"]:
        raise Failed(f"pings to be found again are not answered: {done}")


def be_dropped(lab, mark):
    """Frames with the mark in them that no segment takes."""
    drops = lambda: lab.ctl("stats")["drops"].get("vlan-unknown", 0)
    before, count = drops(), 8
    mac = bytes.fromhex(lab.ctl("links")["ethernet"]["mac"].replace(":", ""))
    with socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind(("eth0", 0))
        for _ in range(count):
            raw.send(mac + bytes.fromhex("020000000001") + struct.pack(">HHH", 0x8100, FOREIGN_VLAN, 0x0800) + mark * 80)
    lab.wait_for("the frames of no segment to be dropped", lambda: drops() >= before + count, 10)


def loaded(core):
    """Addresses of which the core has contents: first, and behind the last."""
    if core[:5] != b"\x7fELF\x02":
        raise Failed("the core is no ELF file of 64 bits")
    (at,), (size, count) = struct.unpack_from("<Q", core, 32), struct.unpack_from("<HH", core, 54)
    heads = [struct.unpack_from("<IIQQQQQQ", core, at + n * size) for n in range(count)]
    return [(address, address + in_file) for kind, _, _, address, _, in_file, _, _ in heads if kind == PT_LOAD and in_file]


def buffers_of(pid):
    """Where its packet buffers are: EAL's memory without hugepages is a file in memory."""
    lines = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    found = [tuple(int(word, 16) for word in words[0].split("-")) for words in lines if "memfd:nohuge" in "".join(words[5:])]
    if not found:
        raise Failed(f"the gateway's packet buffers are not where they were expected: {lines}")
    return found


def dump(lab):
    """The gateway aborts; what its core has."""
    lab.alive()
    where = buffers_of(lab.gateway.popen.pid)
    lab.processes.remove(lab.gateway)
    lab.gateway.popen.send_signal(signal.SIGABRT)
    died_of = -lab.gateway.popen.wait(60)
    lab.gateway.stop()
    files = sorted(lab.dying.iterdir())
    result = {"signal": died_of, "cores": len(files)}
    if files:
        with files[0].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as core:
            kept = loaded(core)
            result.update(bytes=sum(end - begin for begin, end in kept),
                          of_buffers=sum(max(0, min(end, to) - max(begin, at)) for begin, end in kept for at, to in where),
                          carried=core.find(lab.carried) >= 0, dropped=core.find(lab.dropped) >= 0)
    shutil.rmtree(lab.dying)
    return result


def check_cores(args):
    """By default there is no core. With "lean" no packet buffer is in it, and nothing that was in one alone; with "full" both are."""
    found = {}
    with cores_are_files() as they_are:
        if not they_are:
            return left_out(f"{PATTERN} leads elsewhere, and may not be written")
        if run("prlimit", "--core=unlimited", "--", "true", check=False).returncode:
            return left_out("nobody may leave a core here: ulimit -Hc")
        lab = CoreLaboratory(args)
        try:
            for lab.cores in (None, "lean", "full"):
                lab.carried, lab.dropped = os.urandom(16), os.urandom(16)
                if lab.fabric is None:
                    lab.up()
                else:
                    (lab.dir / "gateway.toml").write_text(lab.gateway_config())
                    lab.start_gateway()
                    lab.wait_for("the first packet through the gateway", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 20)
                carry(lab, lab.carried)
                be_dropped(lab, lab.dropped)
                found[lab.cores or "default"] = dump(lab)
        finally:
            lab.close()
            # EAL had no time to take it away.
            shutil.rmtree(EAL / "gwdemo", ignore_errors=True)
    lean, full = found["lean"], found["full"]
    ok = (found["default"] == {"signal": signal.SIGABRT, "cores": 0} and lean["cores"] == full["cores"] == 1
          and lean["of_buffers"] == 0 and not lean["dropped"] and full["of_buffers"] > 0 and full["dropped"] and full["carried"])
    return {"ok": ok, **found}


def cores(args, checks):
    checks.run("privileges_cores", lambda: check_cores(args))
