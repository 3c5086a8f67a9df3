"""Two gateways with one link of the software fabric by mistake."""

import json

import pytest

from testbed.programs import run
from testbed.topology import Topology


class Second(Topology):
    """A gateway, and another one whose InfiniBand port has the same link."""

    def start_second(self):
        config = self.dir / "second.toml"
        self.second_socket = self.dir / "second.sock"
        config.write_text(f"""\
[gateway]
control-socket = "{self.second_socket}"
idle = "sleep"

[infiniband.soft]
ports = [{{ link = "shm:{self.link}" }}]
""")
        return self.background(
            "second",
            [self.bin / "ipoib-fwd", "-l", "0-1", "--no-pci", *self.memory, "--file-prefix", f"{self.tag}-second",
             "--vdev", "net_null0", "--", "--config", config],
            self.gw)

    def waits_for(self):
        done = run(self.bin / "ipoib-fwd", "ctl", "--socket", self.second_socket, "links", "--json", check=False)
        return done.returncode == 0 and json.loads(done.stdout)["segments"][0]["waits_for"]


@pytest.mark.core
def test_the_second_gateway_of_a_link_names_it(start):
    topology = start(Second)
    second = topology.start_second()
    text = f"link shm:{topology.link}: it is in use"
    topology.wait_for("the second gateway to name the link", lambda: text in (topology.waits_for() or ""))
    topology.wait_for("its log to name the link", lambda: text in second.text())
