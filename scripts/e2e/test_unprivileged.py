"""A gateway that root does not start: another user does, with the capabilities that its ports need and no
others."""

import os
import re
import shutil

import pytest
from testbed.programs import run
from testbed.threads import CAPABILITY_SETS, threads
from testbed.topology import ETH_IP, IB_IP, Topology
from testbed.traffic import ping, send_file

pytestmark = pytest.mark.netns

# No account has these numbers.
USER = GROUP = 4242
# Requirements of net_af_packet: its socket, the interface's modes, rings in locked memory.
CAPABILITIES = ("net_raw", "net_admin", "ipc_lock")
FILE_BYTES = 8 << 20


def as_user(*capabilities):
    """The prefix of a command line that runs as that user, with these capabilities in all sets and no others
    to gain, and hardly any memory to lock.
    """
    words = ",".join(["-all", *(f"+{name}" for name in capabilities)])
    return ["prlimit", "--memlock=65536:65536", "--", "setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups",
            f"--inh-caps={words}", f"--ambient-caps={words}", f"--bounding-set={words}", "--no-new-privs", "--"]


class Unprivileged(Topology):
    """The gateway is another user's, with a directory of its own for what it writes.

    The fabric is root's, and gives its socket away.
    """

    gids = True

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.dir.chmod(0o711)
        self.own = self.dir / "own"
        self.own.mkdir(mode=0o700)
        os.chown(self.own, USER, GROUP)
        self.socket = self.own / "control.sock"
        # Where `stop_gateway` looks for it.
        (self.dir / "report.json").symlink_to(self.own / "report.json")
        # The directories above the programs may be root's alone.
        self.program = shutil.copy(self.bin / "ipoib-fwd", self.dir)
        os.chmod(self.program, 0o755)

    def gateway_config(self):
        return super().gateway_config().replace(f"{self.dir}/gids", f"{self.own}/gids")

    def command(self, *capabilities, options=()):
        """The gateway's command line; EAL has its directory where it may write."""
        return [*as_user(*capabilities), "env", f"XDG_RUNTIME_DIR={self.own}", self.program, *self.lcores(), "--no-pci", *self.memory,
                "--file-prefix", self.tag, *self.vdev_options(), "--", *options, "--config", self.dir / "gateway.toml"]

    def gateway_command(self):
        return self.command(*CAPABILITIES, options=("--report", self.own / "report.json"))

    def start_gateway(self):
        self.give_away()
        super().start_gateway()

    def give_away(self):
        self.wait_for("the fabric's socket", self.link.exists)
        os.chown(self.link, 0, GROUP)
        (self.dir / "gateway.toml").chmod(0o644)


class NotStarted(Unprivileged):
    """Everything but the gateway."""

    def start_gateway(self):
        self.give_away()

    def up(self):
        self.start()


@pytest.mark.core
def test_forwards_and_stops(start):
    """It forwards, keeps no capability, reloads and stops in order."""
    topology = start(Unprivileged)
    found = threads(topology.gateway.pid)
    ids = (" ".join([str(USER)] * 4), " ".join([str(GROUP)] * 4), "")
    assert not {t["Name"]: (t["Uid"], t["Gid"], t["Groups"]) for t in found.values() if (t["Uid"], t["Gid"], t["Groups"]) != ids}
    # Only CAP_SETPCAP may empty the bounding set; with no_new_privs nothing is gained from it.
    left = {t["Name"]: t for t in found.values() if any(int(t[s], 16) for s in CAPABILITY_SETS if s != "CapBnd") or t["NoNewPrivs"] != "1"}
    assert not left
    paths = ((topology.eth, topology.ib, IB_IP), (topology.ib, topology.eth, ETH_IP))
    for source, _, target in paths:
        for size in (56, 1400):
            result = ping(source, target, size)
            assert result["ok"], result
    for source, destination, target in paths:
        result = send_file(topology, source, destination, target, FILE_BYTES)
        assert result["ok"], result
    topology.ctl_text("reload")
    topology.stop_gateway()
    assert not topology.socket.exists()


@pytest.mark.parametrize("missing, word", [("net_raw", "CAP_NET_RAW"), ("net_admin", "CAP_NET_ADMIN"), ("ipc_lock", "CAP_IPC_LOCK")])
def test_missing_capability(start, missing, word):
    """Without one of them `--check` names it with a fix, and the start fails with a message that names it or
    `--check`."""
    topology = start(NotStarted)
    command = topology.command(*(name for name in CAPABILITIES if name != missing))
    checked = run(*command, "--check", netns=topology.gw, check=False)
    errors = re.findall(r"^error.*\n.*help: .*", checked.stdout, re.M)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert len(errors) == 1, checked.stdout
    assert word in errors[0]
    started = run(*command, netns=topology.gw, check=False)
    last = (started.stdout + started.stderr).strip().splitlines()[-1]
    assert started.returncode == 1, last
    assert word in last or "--check" in last
