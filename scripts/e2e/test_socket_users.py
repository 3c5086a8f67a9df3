"""Other users than root at the control socket: a refused one reads the reason, and none keeps root out."""

import os
import shutil
import subprocess
import sys

import pytest
from testbed.programs import DEADLINE, run
from testbed.topology import Topology

pytestmark = pytest.mark.netns

# No account has these numbers.
USER, GROUP = 4242, 4243
# Places for clients, besides the one that is kept for root.
PLACES = 16
# Clients that follow events: prints a line when all are served, and for each line of input how many are still
# connected.
CLIENTS = """
import select, socket, sys
clients = []
for _ in range(int(sys.argv[2])):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(sys.argv[1])
    client.recv(1 << 20)
    client.send(b"/events")
    client.recv(1 << 20)
    clients.append(client)
print("ready", flush=True)
for line in sys.stdin:
    closed = [c for c in select.select(clients, [], [], 0)[0] if not c.recv(1 << 20)]
    print(len(clients) - len(closed), flush=True)
"""


class Shared(Topology):
    """The control socket is a group's, too."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.dir.chmod(0o711)
        # The directories above the programs may be root's alone.
        self.program = shutil.copy(self.bin / "ipoib-fwd", self.dir)
        os.chmod(self.program, 0o755)

    def up(self):
        self.start()
        self.wait_for("the gateway to forward", self.link_up)
        os.chown(self.socket, 0, GROUP)
        os.chmod(self.socket, 0o660)

    def as_user(self, group):
        return ["setpriv", f"--reuid={USER}", f"--regid={group}", "--clear-groups", "--"]


def test_user_outside_the_group(start):
    topology = start(Shared)
    refused = run(*topology.as_user(USER), topology.program, "ctl", "--socket", topology.socket, "stats", check=False)
    assert refused.returncode != 0
    assert "only the gateway's user and members of its group may use it" in refused.stderr, refused.stderr
    assert "set group in [gateway]" in refused.stderr
    assert run(*topology.as_user(GROUP), topology.program, "ctl", "--socket", topology.socket, "stats").stdout


def test_place_that_is_kept_for_root(start):
    """The group's clients have all places and are being answered: root is served at once, and none of them is
    closed."""
    topology = start(Shared)
    line = [*topology.as_user(GROUP), sys.executable, "-c", CLIENTS, topology.socket, PLACES]
    clients = subprocess.Popen([str(word) for word in line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert clients.stdout.readline() == "ready\n"
        for _ in range(3):
            assert topology.ctl("stats")["traffic"]
        clients.stdin.write("\n")
        clients.stdin.flush()
        assert int(clients.stdout.readline()) == PLACES
    finally:
        clients.kill()
        clients.communicate(timeout=DEADLINE)
