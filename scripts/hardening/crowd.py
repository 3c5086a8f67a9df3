"""Connections of a real gateway: made and ended again and again with a crowd of hosts on a port of the fabric."""

import collections
import contextlib
import random
import socket
import struct
import time

from hardening.churn import sample
from hardening.ground import DESCRIPTOR_NOISE, ETH, MEMORY_NOISE, Soak, report, say
from testbed import ibcrowd
from testbed.crowd import PREFIX, UDP_PORT, address, send_to_hosts
from testbed.frames import ethernet_socket
from testbed.programs import TestbedError
from testbed.sockets import socket_in
from testbed.topology import ETH_IP, GW_IP

# Hosts, each with a connection of either direction. Half of the places are for those that hosts open, and one port may have a quarter of
# those, 1,007: some are closed to make room for others in each round.
HOSTS, PLACES = 1100, 8060
# A gateway with so many places takes, and opens, a quarter of their number a second in the long run.
ROUND = 4 * HOSTS / PLACES + 0.02
# Hosts whose connections carry a packet, there and back, in each round; of those whose connections all stay.
CARRYING, STAYING = 100, 900
# Crowds, one after the other, each of which dies with all that it has; and those after which the gateway comes to rest. By the half it
# has had as much at once as it ever has: tables and heap do not get smaller again. From then on they do not grow.
LIVES, TENTH, HALF = 20, 2, 10
# How a round ends: the hosts end all connections; or the gateway's mode changes, or hosts come with other link-layer addresses, and
# either side ends those that it has opened.
ENDS = ("hosts", "mode", "address")
# Seconds after which a gateway ends connections by which nothing comes, a quarter of that if nothing ever came, and forgets hosts; and in
# which it comes to rest.
IDLE, FORGOTTEN, AT_REST = 60, 20, 180
# Packets to hosts that have died keep places of the worker's sends until their connections are given up: with `rnr-retry = 7`, without
# end, that may take until nobody uses them.
PATIENCE = 30


class CrowdTopology(Soak):
    """The plain topology with a port for the crowd, and room for it."""

    def __init__(self, args):
        super().__init__(args)
        # Frames to all hosts at once.
        self.vdev += ",framecnt=4096"

    def fabric_config(self):
        return super().fabric_config() + ibcrowd.link(self)

    def gateway_config(self):
        text = super().gateway_config().replace(f"{GW_IP}/24", f"{GW_IP}/{PREFIX}")
        more = (f"max-connections = {PLACES}\nretry-count = 7\nrnr-retry = 3\nconnection-idle-seconds = {IDLE}\n"
                f"neighbour-idle-seconds = {FORGOTTEN}\n")
        return text.replace("[infiniband]\n", "[infiniband]\n" + more, 1)

    def at_rest(self):
        """Nothing is left but what hosts other than the crowd have: what the gateway has then."""
        def rest():
            return len(self.ctl("connections")["connections"]) <= 2 and self.buffers_in_use() <= self.first

        begin = time.monotonic()
        try:
            self.wait_for("rest", rest, AT_REST)
        except TestbedError:
            say(f"crowd: no rest: {self.left()}")
        # The last ones' numbers are free again.
        time.sleep(5)
        return {**sample(self), **self.left(), "after_seconds": round(time.monotonic() - begin)}

    def left(self):
        table = self.ctl("connections")["connections"]
        return {"connections": len(table), "states": dict(collections.Counter(c["state"] for c in table)), "buffers": self.buffers_in_use()}


class Rounds:
    """What is done with one crowd after the other."""

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
        # Each makes the gateway ask its host for a connection, whose ring of management datagrams is not that long.
        send_to_hosts((self.raw, self.gateway, self.own), self.addresses, numbers, pause=0.004)

    def connect(self, crowd):
        """Makes connections of both directions with all hosts."""
        self.send(range(HOSTS))
        while (made := crowd.report("active", "missing"))["stage"] == "missing":
            self.again += len(made["hosts"])
            self.send(made["hosts"])
        self.made["active"] += made["connections"]
        self.made["passive"] += crowd.report("passive")["connections"]

    def forget(self):
        """What has come until now."""
        self.ears.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.ears.recv(2048):
                pass

    def carry(self):
        """A packet for some hosts by the gateway's connections, which comes back by theirs."""
        missing = set(self.chance.sample(range(HOSTS - STAYING, HOSTS), CARRYING))
        right = {socket.inet_aton(self.addresses[n]) + struct.pack(">I", n): n for n in missing}
        begin = time.monotonic()
        self.forget()
        while missing:
            if time.monotonic() - begin > PATIENCE:
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
        """Ends all connections in one of the ways in which they end; with other addresses they end as the next round begins."""
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
        """So many connections with one crowd, which is gone then."""
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
    rests = {}
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
                    rests[life] = lab.at_rest()
                    say(f"crowd: at rest: {rests[life]}")
        busy = time.monotonic() - begin - sum(rest["after_seconds"] for rest in rests.values())
        counters = {k: v for k, v in lab.ctl("links")["link_counters"].items() if v}
        code, outstanding = lab.ended()
    finally:
        lab.close()
    tenth, half, end = (rests[life] for life in (TENTH, HALF, LIVES))
    flat = (all(end[name] <= half[name] + MEMORY_NOISE for name in ("anonymous_kib", "shared_kib"))
            and all(end[name] <= tenth[name] for name in ("huge_kib", "threads"))
            and all(end[name] <= tenth[name] + DESCRIPTOR_NOISE for name in ("descriptors", "maps")))
    nothing_left = all(rest["connections"] <= 2 and rest["buffers"] <= lab.first for rest in rests.values()) and outstanding == 0
    made = sum(rounds.made.values())
    ok = flat and nothing_left and code == 0 and made >= args.number and answered >= rounds.carried > 0
    return report("crowd", ok, seed=args.seed, connections=made, made=rounds.made, ended_by=rounds.ended, lives=LIVES, seconds=round(busy),
                  a_second=round(made / busy), carried=rounds.carried, longest_carrying=round(rounds.longest, 2), ended_by_gateway=lost,
                  asked_again=rounds.again, after_a_tenth=tenth, after_half=half, at_the_end=end, buffers_outstanding=outstanding,
                  exit_code=code, counters=counters)
