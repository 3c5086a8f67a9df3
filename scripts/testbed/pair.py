"""Two gateways between the same two networks.

    eth0 ── bridge ──┬── gw0 [gateway a] ──┬── fabric ── ib0
                     └── gw1 [gateway b] ──┘

Something else can join the networks: `foreign0` is a port of the bridge and `ibf0` a host of the fabric, in
one network namespace.
"""

import json
import signal
import time

from testbed.programs import TestbedError, run
from testbed.topology import ETH_IP, IB_IP, PREFIX, Topology
from testbed.traffic import ping

NAMES = ("a", "b")
OWN = {"a": "10.77.0.254", "b": "10.77.0.253"}
FOREIGN_IP = "10.77.0.66"
PAIR_KEY, OTHER_KEY = "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "f0e1d2c3b4a5968778695a4b3c2d1e0f"
# Promised by the gateways: seconds until the other one forwards.
TAKEOVER = 3.0
# Seconds for which roles must stay as they are: longer than an election takes.
STABLE = 1.5
BOTH_SIDES = "Ethernet InfiniBand"


class Pair(Topology):
    """Two gateways on one bridge and one fabric.

    Each has a namespace of its own: fan-out groups of net_af_packet may meet in one.
    """

    single_gateway = False
    # Milliseconds between two hellos; a gateway that is silent for three of them is taken for dead.
    hello_ms = 300
    # Two gateways' buffers; the tests need no speed.
    hugepages_wanted = False
    # The key of both gateways; None for none.
    pair_key = PAIR_KEY

    def __init__(self, programs, **more):
        super().__init__(programs, **more)
        self.own_ns = {name: f"{self.gw}-{name}" for name in NAMES}
        self.gateways = {}
        # Directories of the gateways' programs, if not that of the others.
        self.programs = {}

    # -- building

    def namespaces_up(self):
        for name in (self.eth, self.gw, self.ib, *self.own_ns.values()):
            self.namespace(name)
        run("ip", "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0", netns=self.gw)
        run("ip", "link", "set", "br0", "up", netns=self.gw)
        for netns, dev in ((self.eth, "eth0"), (self.own_ns["a"], "gw0"), (self.own_ns["b"], "gw1"), (self.gw, "foreign0")):
            self.cable(netns, dev, self.gw, f"to-{dev}")
            run("ip", "link", "set", f"to-{dev}", "master", "br0", netns=self.gw)
        run("ip", "addr", "add", f"{ETH_IP}/{PREFIX}", "dev", "eth0", netns=self.eth)

    def fabric_config(self):
        links = "".join(f'\n[[link]]\nname = "gateway-{n}"\nurl = "shm:{self.dir}/{n}.sock"\n' for n in NAMES)
        hosts = "".join(f"""
[[host]]
name = "{name}"
netns = "{netns}"
tun = "{tun}"
address = "{address}/{PREFIX}"
mtu = {mtu}
mode = "connected"
""" for name, netns, tun, address, mtu in (("host1", self.ib, "ib0", IB_IP, 65520), ("foreign", self.gw, "ibf0", FOREIGN_IP, 1500)))
        return f"[fabric]\nmtu = 4096\n{links}{hosts}"

    def gateway_config(self):
        # Each gateway has a file of its own.
        return ""

    def segments(self, name):
        """`[[segment]]` entries of a gateway; none: one segment, in which it has its address of `OWN`."""
        return ""

    def config(self, name):
        return self.dir / f"gateway-{name}.toml"

    def control_socket(self, name):
        return self.dir / f"{name}-control.sock"

    def start_gateway(self):
        for name in NAMES:
            self.start_one(name)

    def start_one(self, name, key=None):
        """Starts a gateway, with another key than that of the pair if one is named."""
        key = key or self.pair_key
        key_line = f'pair-key = "{key}"\n' if key else ""
        segments = self.segments(name)
        address = "" if segments else f'address = "{OWN[name]}/{PREFIX}"\n'
        self.config(name).write_text(f"""\
[gateway]
{address}control-socket = "{self.control_socket(name)}"
{key_line}hello-ms = {self.hello_ms}
idle = "sleep"

[ethernet]
port = "net_af_packet0"

[infiniband]
driver = "soft"

[infiniband.soft]
ports = [{{ link = "shm:{self.dir}/{name}.sock", mtu = 4096 }}]
{segments}""")
        program = self.programs.get(name, self.bin) / "ipoib-fwd"
        self.gateways[name] = self.gateway = self.background(
            f"gateway {name}",
            [program, "-l", "0-1", "--no-pci", *self.memory, "--file-prefix", f"{self.tag}-{name}",
             "--vdev", f"net_af_packet0,iface=gw{NAMES.index(name)}", "--", "--config", self.config(name)],
            self.own_ns[name])

    def up(self):
        self.start()
        self.wait_settled()
        self.wait_for("the first packet through the pair", lambda: ping(self.eth, IB_IP, 56, count=1)["ok"])

    # -- looking at it

    def ctl_of(self, name, *arguments, check=False):
        """`ipoib-fwd ctl` of one gateway: its output and exit code."""
        return run(self.bin / "ipoib-fwd", "ctl", "--socket", self.control_socket(name), *arguments, check=check)

    def answer_of(self, name, *arguments):
        """The JSON answer of one gateway."""
        return json.loads(self.ctl_of(name, *arguments, "--json", check=True).stdout)

    def state(self, name):
        """Returns a gateway's report on its role; {"role": None} while it does not answer."""
        try:
            answer = self.answer_of(name, "stats")
            return {**answer["gateway"], "drops": answer["drops"]}
        except (TestbedError, ValueError, KeyError):
            return {"role": None, "peers": [], "drops": {}}

    def role(self, name):
        return self.state(name)["role"]

    def settled(self):
        """(forwarding, standby), once there is one of each and they hear each other on both sides; else
        None."""
        states = {name: self.state(name) for name in NAMES}
        forwarding = [name for name, state in states.items() if state["role"] == "forwarding"]
        standby = [name for name, state in states.items() if state["role"] == "standby"]
        both = all(any(p["alive"] and p["heard_on"] == BOTH_SIDES for p in state["peers"]) for state in states.values())
        return (forwarding[0], standby[0]) if len(forwarding) == len(standby) == 1 and both else None

    def wait_settled(self, forwarder=None):
        """Waits until the roles stay as they are, with this forwarder if one is named.

        Returns (forwarding, standby).
        """
        seen, since = None, 0

        def stays():
            nonlocal seen, since
            now = self.settled()
            if now != seen:
                seen, since = now, time.monotonic()
            return now and forwarder in (None, now[0]) and time.monotonic() - since > STABLE

        self.wait_for(f"gateway {forwarder or 'a or b'} to forward and the other one to stand by", stays)
        return seen

    def wait_role(self, name, role):
        self.wait_for(f"gateway {name} to be {role}", lambda: self.role(name) == role)

    def knows_hosts(self, name):
        """Whether a gateway knows the hosts of both sides: one that stands by hears of them from the
        forwarder."""
        neighbours = self.answer_of(name, "neighbours")
        return all(any(n["address"] == ip and n["hardware_address"] for n in neighbours[side])
                   for side, ip in (("infiniband", IB_IP), ("ethernet", ETH_IP)))

    def wait_warm(self):
        """(forwarding, standby), once the one that stands by knows the hosts."""
        forwarder, other = self.wait_settled()
        self.wait_for(f"gateway {other} to know the hosts", lambda: self.knows_hosts(other))
        return forwarder, other

    # -- changing it

    def drain(self, name, *arguments):
        """Drains a gateway, as soon as the other one has stood by for long enough; returns the answer."""
        def drained():
            done = self.ctl_of(name, "drain", *arguments, "--json")
            if done.returncode and "again in a few seconds" not in done.stderr:
                raise TestbedError(f"gateway {name} is not drained: {done.stderr}")
            return done.returncode == 0 and done.stdout

        return json.loads(self.wait_for(f"gateway {name} to be drained", drained))

    def stop_one(self, name):
        """Stops a gateway in order; the other one forwards before this one's program has exited."""
        process, [other] = self.gateways[name], [n for n in NAMES if n != name]
        self.forget(process)
        process.popen.send_signal(signal.SIGTERM)
        self.wait_role(other, "forwarding")
        if code := process.stop():
            raise TestbedError(f"gateway {name} exited with code {code}:\n{process.text()[-4000:]}")

    def kill_one(self, name):
        """Kills a gateway; returns the seconds until the other one forwards."""
        [other] = [n for n in NAMES if n != name]
        self.kill(self.gateways[name])
        start = time.monotonic()
        self.wait_role(other, "forwarding")
        return round(time.monotonic() - start, 2)

    def replace(self, name):
        """Stops a gateway in order and starts it again."""
        process = self.gateways[name]
        self.forget(process)
        if code := process.stop():
            raise TestbedError(f"gateway {name} exited with code {code}:\n{process.text()[-4000:]}")
        self.start_one(name)
        self.wait_settled()


class PatientPair(Pair):
    """Gateways that do not take each other for dead where a busy machine keeps one from running for a
    second."""

    hello_ms = 1000
