"""A gateway that nobody of root's starts: another user, with the capabilities that its ports ask for and no others."""

import json
import os
import re
import shutil

from checks.laboratory import Laboratory
from checks.privileges import SETS, threads
from stage.lab import ETH, ETH_IP, GW, IB, IB_IP
from stage.programs import Failed, Process, run
from stage.traffic import check_file, ping

# Nobody is known by them.
USER = GROUP = 4242
# What net_af_packet asks for: its socket, modes of the interface, rings that are locked memory.
CAPABILITIES = ("net_raw", "net_admin", "ipc_lock")
SIZE = 8 << 20


def as_user(*capabilities):
    """A program as that user, with these capabilities in all sets, ambient ones among them, nothing else to be had, and hardly any memory
    to lock."""
    words = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return ["prlimit", "--memlock=65536:65536", "--", "setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups",
            f"--inh-caps={words}", f"--ambient-caps={words}", f"--bounding-set={words}", "--no-new-privs", "--"]


class UserLaboratory(Laboratory):
    """The gateway is another user's, with a directory of its own for what it writes. The fabric is root's, and gives its cable away."""

    def __init__(self, args):
        super().__init__(args, intruder=False)
        self.dir.chmod(0o711)
        self.own = self.dir / "own"
        self.own.mkdir(mode=0o700)
        os.chown(self.own, USER, GROUP)
        # The way to where it was built may be root's alone.
        self.program = shutil.copy(self.bin / "ipoib-fwd", self.dir)
        os.chmod(self.program, 0o755)

    def gateway_config(self):
        text = super().gateway_config()
        for name in ("control.sock", "gids"):
            text = text.replace(f"{self.dir}/{name}", f"{self.own}/{name}")
        return text

    def ctl(self, *words):
        out = run(self.bin / "ipoib-fwd", "ctl", "--socket", self.own / "control.sock", *words, "--json", timeout=30)
        return json.loads(out.stdout)

    def line(self, *capabilities, before=()):
        """The gateway's command line, with words that go before the configuration."""
        # Where EAL keeps what it keeps in /var/run/dpdk for root.
        place = ["env", f"XDG_RUNTIME_DIR={self.own}"]
        return [*as_user(*capabilities), *place, self.program, *self.lcores(), "--no-pci", *self.memory, "--file-prefix", "gwdemo",
                *self.vdev_words(), "--", *before, "--config", self.dir / "gateway.toml"]

    def start_gateway(self):
        self.wait_for("the fabric's socket", self.link.exists)
        os.chown(self.link, 0, GROUP)
        (self.dir / "gateway.toml").chmod(0o644)
        self.gateway = Process("ipoib-fwd", self.line(*CAPABILITIES, before=("--report", self.own / "report.json")), GW,
                               self.dir / "gateway.log")
        self.processes.append(self.gateway)


def without(lab):
    """Without one of them --check says which it is and what to do, and the start says who tells; neither waits for anything."""
    told = {}
    for missing, word in (("net_raw", "CAP_NET_RAW"), ("net_admin", "CAP_NET_ADMIN"), ("ipc_lock", "CAP_IPC_LOCK")):
        line = lab.line(*(name for name in CAPABILITIES if name != missing))
        checked, start = run(*line, "--check", netns=GW, check=False), run(*line, netns=GW, check=False)
        errors = re.findall(r"^error.*\n.*help: .*", checked.stdout, re.M)
        last = (start.stdout + start.stderr).strip().splitlines()[-1]
        told[missing] = {"ok": checked.returncode == 1 and len(errors) == 1 and word in errors[0] and start.returncode == 1
                         and (word in last or "--check" in last), "errors": errors, "start": last}
    return told


def check_started(args):
    """It forwards, keeps none of them, reloads and ends in order; without one of them it says so."""
    lab = UserLaboratory(args)
    try:
        lab.up()
        found = threads(lab.gateway.popen.pid)
        ids = (" ".join([str(USER)] * 4), " ".join([str(GROUP)] * 4), "")
        others = [t["Name"] for t in found.values() if (t["Uid"], t["Gid"], t["Groups"]) != ids]
        # The bounding set is for who has CAP_SETPCAP; with no_new_privs nobody gains from it.
        left = {t["Name"]: t for t in found.values() if any(int(t[s], 16) for s in SETS if s != "CapBnd") or t["NoNewPrivs"] != "1"}
        pings = [ping(*way, size)["received"] for way in ((ETH, IB_IP), (IB, ETH_IP)) for size in (56, 1400)]
        files = [check_file(lab, *way, SIZE)["ok"] for way in ((ETH, IB, IB_IP), (IB, ETH, ETH_IP))]
        run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.own / "control.sock", "reload")
        code = lab.gateway.stop()
        lab.processes.remove(lab.gateway)
        outstanding = json.loads((lab.own / "report.json").read_text())["buffers_outstanding"]
        socket_left = (lab.own / "control.sock").exists()
        told = without(lab)
        ok = (not others and not left and pings == [20] * 4 and all(files) and code == outstanding == 0 and not socket_left
              and all(t["ok"] for t in told.values()))
        return {"ok": ok, "capabilities": CAPABILITIES, "memory": lab.memory[0], "others": others, "left": left, "pings": pings,
                "files": files, "code": code, "buffers_outstanding": outstanding, "socket_left": socket_left, "without": told}
    except Failed:
        lab.say_last_words()
        raise
    finally:
        lab.close()


def started(args, checks):
    checks.run("privileges_started", lambda: check_started(args))
