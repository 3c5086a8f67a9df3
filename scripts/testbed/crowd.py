"""A topology with more ports of the fabric, on each of which there are any number of InfiniBand hosts in this
process (`ibhosts`)."""

import socket
import struct
import time
from pathlib import Path

from testbed import ibwire
from testbed.frames import ipv4, send_paced
from testbed.ibhosts import Hosts
from testbed.programs import DEADLINE, TestbedError, cpu_seconds
from testbed.topology import ETH_IP, GW_IP, Topology

# Ports of the fabric with many hosts; no port may have more than a quarter of the connections.
PORTS = 8
# Connections in each direction.
CONNECTIONS = 4000
# The joined subnet has room for all hosts: 10.64.0.0 to 10.79.255.255.
PREFIX = 12
# UDP port of packets for the hosts.
UDP_PORT = 7009


def address(number, net):
    """Host `number`, from 1, of 10.NET.0.0/16; numbers above 65,535 go on in the next networks."""
    return socket.inet_ntoa(struct.pack(">I", (10 << 24 | net << 16) + number))


class Crowd(Topology):
    """Connections never time out."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.ends, self.ports = ibwire.intruder_pairs(PORTS), []

    def fabric_config(self):
        links = "".join('\n[[link]]\nname = "crowd%d"\nurl = "udp:%s:%d-%s:%d"\n' % (n, *near, *far)
                        for n, (far, near) in enumerate(self.ends))
        return super().fabric_config() + links

    def gateway_config(self):
        text = super().gateway_config().replace(f"{GW_IP}/24", f"{GW_IP}/{PREFIX}")
        more = f"max-connections = {2 * CONNECTIONS + 60}\nretry-count = 7\nrnr-retry = 7\n"
        return text.replace("[infiniband]\n", "[infiniband]\n" + more, 1)

    def hosts(self, port, addresses, manners="take"):
        """Hosts on a port, of which the first is known to the gateway when this returns.

        `close` stops them.
        """
        links = self.ctl("links")["infiniband"]
        gateway = links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))
        hosts = Hosts(*self.ends[port], 0x0200_0000_00C0_0000 + 16 * port, addresses, gateway, manners)
        self.ports.append(hosts)
        hosts.start()
        if not hosts.wait_active(DEADLINE):
            raise TestbedError(f"port {port} of the crowd is in state {hosts.state}")
        self.wait_again(f"the path from port {port} of the crowd", lambda: 0 in hosts.known, lambda: hosts.ask(0, ETH_IP))
        return hosts

    def wait_again(self, what, ready, again, seconds=DEADLINE, interval=1):
        """Waits until `ready`, and repeats `again` as long as that takes: a packet of it may be lost."""
        again()
        due = time.monotonic() + interval

        def ready_now():
            nonlocal due
            if ready():
                return True
            if time.monotonic() > due:
                again()
                due = time.monotonic() + interval
            return False

        self.wait_for(what, ready_now, seconds)

    def close(self):
        for hosts in self.ports:
            hosts.close()
        super().close()

    # -- looking at it

    def resident(self):
        """Resident memory of the gateway in bytes, without packet buffers in hugepages."""
        lines = Path(f"/proc/{self.gateway.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10

    def control_seconds(self):
        """CPU time of the control lcore, which is the program's first thread."""
        return cpu_seconds(f"{self.gateway.pid}/task/{self.gateway.pid}")

    def missed(self):
        """Frames for which the port's ring had no room while the gateway did not run: it has never seen
        them."""
        return self.ctl("links")["ethernet"]["losses"]["missed"]

    def table_rows(self):
        """Hosts in the neighbour tables, by side."""
        table = self.ctl("neighbours")
        return {side: len(table[side]) for side in ("ethernet", "infiniband")}

    def live_connections(self):
        return [c for c in self.ctl("connections")["connections"] if c["state"] == "live"]


def send_to_hosts(ethernet, addresses, numbers, repeat=1, pause=0.004):
    """Sends each host a UDP packet with its number; `ethernet` is that of `frames.ethernet_socket`."""
    raw, gateway, own = ethernet

    def frame(n):
        body = struct.pack(">HHHHI", UDP_PORT, UDP_PORT, 12, 0, n)
        return gateway + own + b"\x08\x00" + ipv4(body, dst=addresses[n])

    send_paced(raw.send, [frame(n) for n in numbers for _ in range(repeat)], 32, pause)
