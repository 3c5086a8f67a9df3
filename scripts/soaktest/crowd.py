"""Opens and closes connections of a real gateway with a crowd of hosts on a port of the fabric."""

import collections
import contextlib
import random
import socket
import struct
import time

from soaktest.chaos import sample
from soaktest.common import DESCRIPTOR_NOISE, ETH, MEMORY_NOISE, Soak, report, say
from testbed import ibcrowd
from testbed.crowd import PREFIX, UDP_PORT, address, send_to_hosts
from testbed.frames import ethernet_socket
from testbed.programs import TestbedError
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, GW_IP

# Hosts, each with one connection in each direction, and connections of the gateway.
# Half of the connections are for those that hosts open, and one port may have a quarter of these: 1,007.
# The gateway therefore closes some in each round to make room for others.
HOSTS, CONNECTIONS = 1100, 8060
# Seconds of a round: in the long run a gateway accepts and opens a quarter of its maximum each second.
ROUND = 4 * HOSTS / CONNECTIONS + 0.02
# Hosts whose connections carry a packet and its echo in each round, and hosts whose connections all
# stay open in a round.
CARRYING, STAYING = 100, 900
# Successive crowds, each of which is killed with all its connections, and the crowds after which the gateway
# becomes idle. At half of the run, tables and heap have reached their maximum. They do not shrink, and do not
# grow after that.
LIVES, TENTH, HALF = 20, 2, 10
# How a round closes its connections: the hosts close them all; or, when the gateway's mode or the link-layer
# addresses of the hosts change, each side closes those that it opened.
ENDS = ("hosts", "mode", "address")
# Seconds after which a gateway closes idle connections (a quarter of it if they never received) and forgets
# hosts, and the timeout for becoming idle.
IDLE, FORGOTTEN, IDLE_TIMEOUT = 60, 20, 180
# Seconds for the packets of a round. Packets to dead hosts occupy send slots of the worker until their
# connections fail. With `rnr-retry = 7` (without limit), that may take until the connections are idle.
CARRY_TIMEOUT = 30


class CrowdTopology(Soak):
    """The plain topology with a port and enough connections for the crowd."""

    def __init__(self, args):
        super().__init__(args)
        # Room for a burst of frames to all hosts.
        self.vdev += ",framecnt=4096"

    def fabric_config(self):
        return super().fabric_config() + ibcrowd.link(self)

    def gateway_config(self):
        text = super().gateway_config().replace(f"{GW_IP}/24", f"{GW_IP}/{PREFIX}")
        more = (f"max-connections = {CONNECTIONS}\nretry-count = 7\nrnr-retry = 3\nconnection-idle-seconds = {IDLE}\n"
                f"neighbour-idle-seconds = {FORGOTTEN}\n")
        return text.replace("[infiniband]\n", "[infiniband]\n" + more, 1)

    def idle_sample(self):
        """Waits until the crowd has left nothing; returns the resources of the gateway."""
        def idle():
            return len(self.ctl("connections")["connections"]) <= 2 and self.buffers_in_use() <= self.first

        begin = time.monotonic()
        try:
            self.wait_for("an idle gateway", idle, IDLE_TIMEOUT)
        except TestbedError:
            say(f"crowd: not idle: {self.left()}")
        # The numbers of the last queue pairs become free.
        time.sleep(5)
        return {**sample(self), **self.left(), "after_seconds": round(time.monotonic() - begin)}

    def left(self):
        table = self.ctl("connections")["connections"]
        return {"connections": len(table), "states": dict(collections.Counter(c["state"] for c in table)), "buffers": self.buffers_in_use()}


class Rounds:
    """The rounds of all crowds."""

    def __init__(self, lab, chance, ends):
        self.lab, self.chance = lab, chance
        self.raw, self.gateway, self.own = ethernet_socket(lab)
        self.ears = ends.enter_context(socket_in(ETH, socket.AF_PACKET, socket.SOCK_RAW))
        ends.enter_context(self.raw)
        self.ears.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
        self.ears.bind(("eth0", 0x0800))
        self.addresses = [address(n + 1, net=76) for n in range(HOSTS)]
        self.made, self.ended, self.carried, self.again, self.longest = collections.Counter(), collections.Counter(), 0, 0, 0.0

    def send(self, numbers):
        # Each packet triggers a connection request; the pause keeps the MAD ring from overflowing.
        send_to_hosts((self.raw, self.gateway, self.own), self.addresses, numbers, pause=0.004)

    def connect(self, crowd):
        """Opens connections in both directions with all hosts."""
        self.send(range(HOSTS))
        while (made := crowd.report("active", "missing"))["stage"] == "missing":
            self.again += len(made["hosts"])
            self.send(made["hosts"])
        self.made["active"] += made["connections"]
        self.made["passive"] += crowd.report("passive")["connections"]

    def forget(self):
        """Discards the frames received so far."""
        self.ears.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.ears.recv(2048):
                pass

    def carry(self):
        """Sends a packet to some hosts by the gateway's connections; awaits the echo by theirs."""
        missing = set(self.chance.sample(range(HOSTS - STAYING, HOSTS), CARRYING))
        right = {socket.inet_aton(self.addresses[n]) + struct.pack(">I", n): n for n in missing}
        begin = time.monotonic()
        self.forget()
        while missing:
            if time.monotonic() - begin > CARRY_TIMEOUT:
                drops = self.lab.ctl("stats")["drops"]
                raise TestbedError(f"{len(missing)} of {CARRYING} packets did not come back: {drops}, {self.lab.left()}")
            self.send(sorted(missing))
            self.ears.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                while missing:
                    frame = self.ears.recv(2048)
                    if frame[6:12] == self.gateway and frame[34:36] == struct.pack(">H", UDP_PORT):
                        missing.discard(right.get(frame[26:30] + frame[42:46]))
        self.carried += CARRYING
        self.longest = max(self.longest, time.monotonic() - begin)

    def end(self, crowd, how):
        """Closes all connections as `how` says; those of changed addresses close in the next round."""
        if how == "hosts":
            crowd.order("end")
            self.ended[how] += crowd.report("ended")["connections"]
        elif how == "mode":
            self.lab.ctl("set", "mode", "datagram")
            crowd.order("leave")
            self.ended[how] += crowd.report("ended")["connections"]
            self.lab.ctl("set", "mode", "connected")
        crowd.order("again")
        crowd.report("known")
        self.ended["address"] += crowd.report("ended")["connections"]

    def life(self, number):
        """Opens `number` connections with one crowd, and kills it."""
        until = sum(self.made.values()) + number
        with ibcrowd.Crowd(self.lab, HOSTS, self.addresses[0], ETH_IP, "--orders") as crowd:
            crowd.report("known")
            n = 0
            while True:
                begin = time.monotonic()
                self.connect(crowd)
                self.carry()
                self.lab.check_alive()
                if sum(self.made.values()) >= until:
                    break
                time.sleep(max(0.0, begin + ROUND - time.monotonic()))
                self.end(crowd, ENDS[n % len(ENDS)])
                n += 1
            crowd.order("count")
            counted = crowd.report("count")
            crowd.kill()
        return counted


def crowd(args):
    answered = lost = 0
    idle_samples = {}
    lab = CrowdTopology(args)
    try:
        lab.up()
        lab.first = lab.buffers_in_use() + 64
        begin = time.monotonic()
        with contextlib.ExitStack() as ends:
            rounds = Rounds(lab, random.Random(args.seed), ends)
            for life in range(1, LIVES + 1):
                counted = rounds.life(args.number / LIVES)
                answered, lost = answered + counted["answered"], lost + counted["lost"]
                say(f"crowd: {sum(rounds.made.values())} of {args.number} in {time.monotonic() - begin:.0f} s, {sample(lab)}")
                if life in (TENTH, HALF, LIVES):
                    idle_samples[life] = lab.idle_sample()
                    say(f"crowd: idle: {idle_samples[life]}")
        busy = time.monotonic() - begin - sum(idle["after_seconds"] for idle in idle_samples.values())
        counters = {k: v for k, v in lab.ctl("links")["link_counters"].items() if v}
        code, outstanding = lab.ended()
    finally:
        lab.close()
    tenth, half, end = (idle_samples[life] for life in (TENTH, HALF, LIVES))
    flat = (all(end[name] <= half[name] + MEMORY_NOISE for name in ("anonymous_kib", "shared_kib"))
            and all(end[name] <= tenth[name] for name in ("huge_kib", "threads"))
            and all(end[name] <= tenth[name] + DESCRIPTOR_NOISE for name in ("descriptors", "maps")))
    nothing_left = all(idle["connections"] <= 2 and idle["buffers"] <= lab.first for idle in idle_samples.values()) and outstanding == 0
    made = sum(rounds.made.values())
    ok = flat and nothing_left and code == 0 and made >= args.number and answered >= rounds.carried > 0
    return report("crowd", ok, seed=args.seed, connections=made, made=rounds.made, ended_by=rounds.ended, lives=LIVES, seconds=round(busy),
                  a_second=round(made / busy), carried=rounds.carried, longest_carrying=round(rounds.longest, 2), ended_by_gateway=lost,
                  requested_again=rounds.again, after_a_tenth=tenth, after_half=half, at_the_end=end, buffers_outstanding=outstanding,
                  exit_code=code, counters=counters)
