"""Faults of a gateway and its network, and the pings that show recovery from each."""

import ipaddress
import signal
import time

from soaktest.common import ETH, GW, IB, RECOVERED
from soaktest.topology import (BRIDGE, ETH_GUEST, ETH_GUEST_IP, IB_GUEST, IB_GUEST_IP, OFFICE, STORAGE, STORAGE_ETH, STORAGE_IB)
from testbed.programs import TestbedError, run
from testbed.topology import ETH_IP, IB_IP, PREFIX

# Lease in seconds of the M_Keys of an ibfab subnet manager.
LEASE = 30
MAIN = ((ETH, IB_IP), (IB, ETH_IP))
IN_STORAGE = ((STORAGE_ETH, IB_IP), (STORAGE_IB, ETH_IP))
# Addresses that move between the sides: the last byte of the first one, and their number.
FIRST_MOVING, MOVING = 30, 60
PREFIXES = ("fe80::", "fec0:0:0:7::", "fec0:0:0:8::")


class Faults:
    """Each fault is a method with a weight; it returns the pings that show recovery."""

    KINDS = {"mode": 4, "addresses": 3, "control_clients": 3, "neighbours_flushed": 3, "ethernet_port_down": 3, "reload_segment": 2,
             "reload_route": 2, "reload_mtu": 1, "reload_keys": 2, "reload_refused": 1, "sm_prefix": 1, "sm_group": 1, "sm_pkey": 1,
             "sm_other": 1, "fabric_paused": 1, "infiniband_host_lost": 2, "ethernet_host_lost": 2, "address_moves": 2}

    def __init__(self, lab, chance):
        self.lab, self.chance = lab, chance
        self.macs = self.moves = 0
        # Addresses that the Ethernet guest has taken over.
        self.taken = []

    def draw(self):
        """Injects a random fault; returns its name and its pings."""
        [name] = self.chance.choices(list(self.KINDS), self.KINDS.values())
        return name, getattr(self, name)() or ()

    def pause(self, longest):
        time.sleep(self.chance.uniform(0, longest))

    # -- light faults

    def mode(self):
        self.lab.ctl("set", "mode", self.chance.choice(("datagram", "connected")))

    def addresses(self):
        """Adds an address to a host for the duration of a ping."""
        ip = f"10.77.0.{self.chance.randrange(100, 200)}"
        run("ip", "addr", "add", f"{ip}/32", "dev", "eth0", netns=ETH)
        run("ping", "-n", "-q", "-c", 1, "-W", 1, "-I", ip, IB_IP, netns=ETH, check=False)
        run("ip", "addr", "del", f"{ip}/32", "dev", "eth0", netns=ETH)

    def control_clients(self):
        for command in ("stats", "links", "neighbours", "connections", "groups", "gids", "metrics", "health", "events"):
            client = [self.lab.bin / "ipoib-fwd", "ctl", "--socket", self.lab.dir / "control.sock", command]
            try:
                run(*client, check=False, timeout=0.3 if command == "events" else 10)
            except TestbedError:
                # `events` runs until the client is killed.
                pass

    def neighbours_flushed(self):
        for host, netns in (("eth0", ETH), ("ib0", IB)):
            run("ip", "neigh", "flush", "dev", host, netns=netns, check=False)

    def ethernet_port_down(self):
        run("ip", "link", "set", "gw0", "down", netns=GW)
        self.pause(0.3)
        run("ip", "link", "set", "gw0", "up", netns=GW)

    # -- reloads

    def changed(self, what, name):
        answer = self.lab.reload()
        if name not in answer[what]:
            raise TestbedError(f"a reload did not report {name} as {what}: {answer}")

    def reload_segment(self):
        """Removes or adds the second segment."""
        self.lab.has_storage = not self.lab.has_storage
        answer = self.lab.reload()
        reported = answer["added"] + answer["waiting"] if self.lab.has_storage else answer["removed"]
        if reported != [STORAGE]:
            raise TestbedError(f"a reload did not {'add' if self.lab.has_storage else 'remove'} {STORAGE}: {answer}")
        return IN_STORAGE if self.lab.has_storage else ()

    def reload_route(self):
        """Adds or removes a route and a subnet of the first segment."""
        self.lab.has_route = not self.lab.has_route
        self.changed("changed", OFFICE)

    def reload_mtu(self):
        self.lab.mtu = 1450 if self.lab.mtu == 1500 else 1500
        self.changed("changed", OFFICE)

    def reload_keys(self):
        """Changes keys of all links. The receive MTU can only decrease."""
        keys = self.lab.keys
        receive_mtu = max(9000, keys.get("receive-mtu", 65520) - self.chance.randrange(0, 400))
        self.lab.keys = {"receive-mtu": receive_mtu, "retry-count": self.chance.randrange(8), "rnr-retry": self.chance.randrange(8),
                         "neighbour-idle-seconds": self.chance.randrange(10, 90),
                         "connection-idle-seconds": self.chance.randrange(30, 600)}
        self.lab.reload()

    def reload_refused(self):
        path, text = self.lab.dir / "gateway.toml", self.lab.gateway_config()
        path.write_text(text + "\n[nonsense]\n")
        client = [self.lab.bin / "ipoib-fwd", "ctl", "--socket", self.lab.dir / "control.sock", "reload"]
        refused = run(*client, check=False, timeout=30).returncode != 0
        path.write_text(text)
        if not refused:
            raise TestbedError("an invalid configuration was accepted")

    # -- the subnet manager

    def sm_prefix(self):
        """Changes the subnet prefix, and thus the GID of every port."""
        self.lab.prefix = self.chance.choice([p for p in PREFIXES if p != self.lab.prefix])
        self.lab.manage()
        upper = ipaddress.ip_address(self.lab.prefix).packed[:8]
        self.lab.wait_for("the gateway's GID under the new prefix", lambda: self.gid()[:8] == upper, RECOVERED)
        return MAIN

    def gid(self):
        return ipaddress.ip_address(self.lab.ctl("links")["infiniband"]["gid"]).packed

    def sm_group(self):
        """Changes the Q_Key and the MTU of the broadcast group; its members must register again."""
        self.lab.qkey = 0x0B1B + self.chance.randrange(1, 1 << 20)
        self.lab.group_mtu = self.chance.choice((2048, 4096))
        self.lab.manage()
        # The subnet manager sweeps the fabric before it notifies the members.
        time.sleep(0.3)
        return MAIN

    def sm_pkey(self):
        """Removes the full partition membership of the gateway's port for up to two seconds."""
        self.lab.member = False
        self.lab.manage()
        self.lab.wait_for("the gateway without its partition", lambda: not self.lab.at_work(), RECOVERED)
        self.pause(2)
        self.lab.member = True
        self.lab.manage()
        return MAIN

    def sm_other(self):
        """Replaces the fabric by one whose subnet manager has other LIDs, prefix and groups."""
        self.lab.kill(self.lab.fabric)
        self.pause(1)
        self.lab.turned, self.lab.prefix = not self.lab.turned, self.chance.choice(PREFIXES)
        self.lab.qkey = 0x0B1B + self.chance.randrange(1, 1 << 20)
        self.lab.start_fabric()
        # The annex keeps the M_Keys of the former subnet manager until their lease expires.
        time.sleep(LEASE)
        return (*MAIN, *self.guests())

    def fabric_paused(self):
        """Stops the switch and the subnet manager (SIGSTOP) for up to two seconds."""
        self.lab.fabric.popen.send_signal(signal.SIGSTOP)
        self.pause(2)
        self.lab.fabric.popen.send_signal(signal.SIGCONT)
        return MAIN

    # -- lost hosts, and addresses that change sides

    def guests(self):
        """Pings between the hosts that fail and the hosts that stay."""
        return (ETH, self.lab.guest_ip), (IB_GUEST, ETH_IP), (ETH_GUEST, IB_IP), (IB, ETH_GUEST_IP)

    def infiniband_host_lost(self):
        """Kills an InfiniBand host and its switch, and restarts them."""
        self.lab.kill(self.lab.annex)
        self.pause(2)
        self.lab.start_annex()
        return (ETH, self.lab.guest_ip), (IB_GUEST, ETH_IP)

    def ethernet_host_lost(self):
        """Unplugs an Ethernet host, then plugs in it or another one with its IP address."""
        run("ip", "link", "set", "to-guest", "down", netns=BRIDGE)
        self.pause(2)
        if self.chance.randrange(2):
            self.macs += 1
            mac = f"02:47:{self.macs >> 24 & 255:02x}:{self.macs >> 16 & 255:02x}:{self.macs >> 8 & 255:02x}:{self.macs & 255:02x}"
            run("ip", "link", "set", "eth0", "address", mac, netns=ETH_GUEST)
        run("ip", "link", "set", "to-guest", "up", netns=BRIDGE)
        return (ETH_GUEST, IB_IP), (IB, ETH_GUEST_IP)

    def address_moves(self):
        """Moves an address from the Ethernet guest to the InfiniBand guest, or back.

        The InfiniBand guest restarts with the address, or the Ethernet guest takes it over. Each move uses
        another address, as the
        gateway holds down those that move too often. The gateway must forward when the new host announces the
        address: a gateway
        that does not forward ignores the announcement.
        """
        self.lab.wait_for("both segments", self.lab.at_work, RECOVERED)
        moving = self.lab.guest_ip
        to_infiniband = moving == IB_GUEST_IP
        if to_infiniband:
            self.moves += 1
            moving = f"10.77.0.{FIRST_MOVING + self.moves % MOVING}"
            self.take_over(moving)
            run("ip", "addr", "del", f"{moving}/{PREFIX}", "dev", "eth0", netns=ETH_GUEST)
        self.lab.guest_ip = moving if to_infiniband else IB_GUEST_IP
        self.lab.kill(self.lab.annex)
        self.lab.start_annex()
        if to_infiniband:
            return (ETH, moving), (IB_GUEST, ETH_IP)
        self.take_over(moving)
        self.taken.append(moving)
        # Earlier addresses have no host.
        while len(self.taken) > 1:
            run("ip", "addr", "del", f"{self.taken.pop(0)}/{PREFIX}", "dev", "eth0", netns=ETH_GUEST)
        return (IB, moving), (ETH, IB_GUEST_IP), (IB_GUEST, ETH_IP)

    def take_over(self, ip):
        """Adds an address to the Ethernet guest, which announces it by an ARP request."""
        run("ip", "addr", "add", f"{ip}/{PREFIX}", "dev", "eth0", netns=ETH_GUEST)
        run("ip", "neigh", "flush", "dev", "eth0", netns=ETH_GUEST)
        run("ping", "-n", "-q", "-c", 1, "-W", 1, "-I", ip, IB_IP, netns=ETH_GUEST, check=False)

    def restore(self):
        """Restores the full configuration; returns the pings that show it."""
        self.lab.ctl("set", "mode", "connected")
        if not self.lab.has_storage:
            self.lab.has_storage = True
            self.lab.reload()
        return (*MAIN, *IN_STORAGE, *self.guests())
