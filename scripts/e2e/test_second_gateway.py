"""The recipe for a second gateway in docs/manual/pairs.md, as an operator follows it from `ipoib-fwd init`
on."""

import pathlib
import re

import pytest
from testbed.broadcasts import exchange
from testbed.meanwhile import meanwhile
from testbed.pair import BOTH_SIDES, NAMES, OWN, PatientPair
from testbed.programs import TestbedError, run
from testbed.topology import ETH_IP, IB_IP, PREFIX
from testbed.traffic import first_ping

pytestmark = pytest.mark.netns

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/manual/pairs.md"
# Requirements of the recipe's steps. A change of a step needs a change here.
STEPS = (
    ("same `[[segment]]` entries", "same subnets", "`gateway.pair-key`", "`ipoib-fwd init`", "`gateway.address`, or none"),
    ("`gateway.priority`",),
    ("Start it", "`ipoib-fwd ctl links`", "one `forwarding`, one `standby`", "one peer", f"`{BOTH_SIDES}`"),
    ("`systemctl stop ipoib-fwd`", "`kill -9`"),
    ("`NobodyForwards`", "`TwoForward`"),
)


class Recipe(PatientPair):
    """The first gateway's file is that of `init`, with what only the operator knows; the second one's is a
    copy."""

    # The line that the second gateway's file has for its own address.
    second_address = f'address = "{OWN["b"]}/{PREFIX}"'
    # A line of the second gateway's file for its priority.
    second_priority = ""

    def start_one(self, name):
        if not self.config(name).exists():
            self.config(name).write_text(self.first_file() if name == "a" else self.copied_file())
        program = self.bin / "ipoib-fwd"
        self.gateways[name] = self.gateway = self.background(
            f"gateway {name}",
            [program, "-l", "0-1", "--no-pci", *self.memory, "--file-prefix", f"{self.tag}-{name}",
             "--vdev", f"net_af_packet0,iface=gw{NAMES.index(name)}", "--", "--config", self.config(name)],
            self.own_ns[name])

    def first_file(self):
        site = self.dir / "site.toml"
        run(self.bin / "ipoib-fwd", "init", "--output", site, netns=self.own_ns["a"])
        return self.with_ports(site.read_text().replace('#address = "10.77.0.254/24"', f'address = "{OWN["a"]}/{PREFIX}"'), "a")

    def copied_file(self):
        text = self.config("a").read_text().replace(f'address = "{OWN["a"]}/{PREFIX}"', self.second_address)
        text = text.replace("[gateway]\n", f"[gateway]\n{self.second_priority}\n")
        return self.with_ports(text, "b")

    def with_ports(self, text, name):
        """Differences between two machines: sockets, and the fabric's link."""
        text = re.sub(r"^(control-socket|hello-ms|idle) = .*\n", "", text, flags=re.M)
        text = text.replace("[gateway]\n", f'[gateway]\ncontrol-socket = "{self.control_socket(name)}"\nhello-ms = {self.hello_ms}\n'
                                           'idle = "sleep"\n', 1)
        text = re.sub(r'^port = ".*"', 'port = "net_af_packet0"', text, flags=re.M)
        return re.sub(r'link = "[^"]*"', f'link = "shm:{self.dir}/{name}.sock"', text)


class WithoutAddress(Recipe):
    """The second gateway has no address of its own: "or none"."""

    second_address = ""


class SameAddress(Recipe):
    """The second gateway has the first one's address by mistake."""

    second_address = f'address = "{OWN["a"]}/{PREFIX}"'


def test_the_page_has_the_steps_that_are_tested():
    recipe = PAGE.read_text().split("\n## A second gateway\n")[1].split("\n## ")[0]
    steps = re.split(r"^\d+\. ", recipe, flags=re.M)[1:]
    assert len(steps) == len(STEPS)
    for step, wanted in zip(steps, STEPS):
        for words in wanted:
            assert words in " ".join(step.split()), words


@pytest.mark.core
@pytest.mark.parametrize("recipe", [Recipe, WithoutAddress])
def test_second_gateway(start, recipe):
    pair = start(recipe, up=False)
    pair.start()
    key = re.search(r'^pair-key = "([0-9a-f]{32})"', pair.config("b").read_text(), re.M)
    assert key and key[0] in pair.config("a").read_text()
    # Step 3: one forwards, one stands by, each with one peer that is heard on both sides.
    forwarder, other = pair.wait_settled()
    for name in NAMES:
        [peer] = pair.answer_of(name, "links")["gateway"]["peers"]
        assert peer["alive"] and peer["heard_on"] == BOTH_SIDES, peer
    # The first packet each way, and no broadcast twice.
    assert first_ping(pair.eth, IB_IP)
    assert first_ping(pair.ib, ETH_IP)
    on_ib, on_eth, came_back = exchange(pair)
    assert set(on_ib) == set(on_eth) == {1}, (on_ib, on_eth)
    assert not came_back
    # Step 4: the forwarder is stopped under pings and a connection, comes back, and is killed.
    for act in (pair.stop_one, pair.kill_one):
        forwarder, other = pair.wait_warm()
        result = meanwhile(pair, lambda act=act, forwarder=forwarder: act(forwarder))
        assert result["ok"], result
        assert pair.role(other) == "forwarding"
        pair.start_one(forwarder)
    pair.wait_settled()


def test_two_gateways_with_one_address(start):
    """Each reports the other one in its log and by a counter, and one of them forwards."""
    pair = start(SameAddress)
    forwarder, other = pair.wait_settled()
    report = f'{OWN["a"]}, the gateway\'s own address, is also that of the gateway at '

    def is_reported_by(name):
        return report in pair.gateways[name].text()

    pair.wait_for("the standby gateway's report", lambda: is_reported_by(other))
    assert first_ping(pair.eth, IB_IP)
    # After a takeover the new forwarder queries hosts in its own name.
    pair.stop_one(forwarder)
    pair.wait_role(other, "forwarding")
    pair.start_one(forwarder)
    pair.wait_settled()
    pair.wait_for("both gateways' reports", lambda: all(is_reported_by(name) for name in NAMES))
    for name in NAMES:
        assert pair.answer_of(name, "neighbours")["counters"]["segment"]["own_address_claimed"]


def test_priority_of_the_second_gateway(start):
    """Step 2: the one with the higher priority forwards whenever it can."""
    pair = start(Recipe, second_priority="priority = 200")
    pair.wait_settled(forwarder="b")
    pair.kill_one("b")
    pair.start_one("b")
    pair.wait_settled(forwarder="b")


class TwoSegments(Recipe):
    """Each gateway is the preferred one of another segment."""

    def fabric_config(self):
        gateways = ", ".join(f'"gateway-{name}"' for name in NAMES)
        return (super().fabric_config() + '\n[[partition]]\nname = "office"\npkey = 0xffff\nmembers = ["all"]\n'
                + f'\n[[partition]]\nname = "storage"\npkey = 0x8064\nmembers = [{gateways}]\n')

    def with_ports(self, text, name):
        text = re.sub(r"^address = .*\n", "", super().with_ports(text, name).split("\n[[segment]]")[0], flags=re.M)
        for segment, pkey, vlan, preferred in (("office", 0xFFFF, 0, "a"), ("storage", 0x8064, 100, "b")):
            text += (f'\n[[segment]]\nname = "{segment}"\npkey = {pkey:#x}\naddress = "{OWN[name]}/{PREFIX}"\n'
                     f"priority = {200 if name == preferred else 100}\n" + (f"vlan = {vlan}\n" if vlan else ""))
        return text

    def roles(self, name):
        """The roles of a gateway by segment."""
        try:
            return {row["segment"]: row["role"] for row in self.answer_of(name, "links")["segments"]}
        except (TestbedError, ValueError, KeyError):
            return {}


def test_segments_with_different_forwarders(start):
    pair = start(TwoSegments, up=False)
    pair.start()
    wanted = {"a": {"office": "forwarding", "storage": "standby"}, "b": {"office": "standby", "storage": "forwarding"}}
    pair.wait_for("each gateway to forward one segment", lambda: {name: pair.roles(name) for name in NAMES} == wanted)
    assert first_ping(pair.eth, IB_IP)
    pair.kill(pair.gateways["b"])
    pair.wait_for("one to forward both", lambda: set(pair.roles("a").values()) == {"forwarding"})


def test_mode_until_the_restart(start):
    """`ctl mode` is a trial: packets go by datagrams, and the configuration's mode is back with a restart."""
    pair = start(Recipe)
    forwarder, _ = pair.wait_settled()

    def modes():
        return {row["mode"] for row in pair.answer_of(forwarder, "links")["segments"]}

    assert modes() == {"connected"}
    pair.ctl_of(forwarder, "mode", "datagram", check=True)
    assert modes() == {"datagram"}
    assert first_ping(pair.eth, IB_IP)
    pair.replace(forwarder)
    assert modes() == {"connected"}


def test_alarms_of_the_recipe_exist():
    """Step 5: the rules that the recipe names are in the shipped alarms."""
    rules = (PAGE.parents[2] / "packaging/monitoring/alerts.yml").read_text()
    for name in STEPS[4]:
        assert f"alert: {name.strip('`')}" in rules
