"""Kinds of Ethernet ports that the testbed uses on kernel interfaces: DPDK's drivers net_af_packet and
net_af_xdp."""

import errno
import socket
import subprocess
from dataclasses import dataclass

PF_XDP = 44
# A namespace and a pair of interfaces for the time of a probe.
PLACE, NEAR, FAR = "gwprobe", "gwprobe0", "gwprobe1"


@dataclass(frozen=True)
class EthPort:
    """A driver of DPDK's, and what it asks of a gateway and of dpdk-testpmd."""

    # As --port names it.
    kind: str
    driver: str
    # dpdk-testpmd's arguments of the driver; the gateway has defaults of its own.
    testpmd: str
    # Bytes of a packet buffer, at most. Those of net_af_xdp lie within a page, headers and all.
    data_room: int
    # Buffers that the driver of DPDK 22.11 has still when it is closed: its fill queue, and what was sent
    # last.
    keeps: int = 0

    def vdev(self, number, iface):
        return f"{self.driver}{number},iface={iface}"

    def testpmd_vdev(self, number, iface):
        return self.vdev(number, iface) + self.testpmd

    def testpmd_buffers(self):
        # dpdk-testpmd's count has a headroom of 128 bytes in it.
        return self.data_room + 128


AF_PACKET = EthPort("af-packet", "net_af_packet", ",framesz=16384,blocksz=65536,framecnt=512", 16384)
AF_XDP = EthPort("af-xdp", "net_af_xdp", "", 2048, keeps=2048 + 64)
KINDS = {port.kind: port for port in (AF_PACKET, AF_XDP)}


def missing(port):
    """Why this machine has no such ports; None if it has."""
    return xdp_missing() if port is AF_XDP else None


def xdp_missing():
    try:
        socket.socket(PF_XDP, socket.SOCK_RAW, 0).close()
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return "the kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)"
        if error.errno == errno.EPERM:
            return "AF_XDP sockets take CAP_NET_RAW"
        return f"AF_XDP socket: {error.strerror}"
    return driver_missing()


def driver_missing():
    """Whether the driver starts on a veth, and if not, what it says: it may be missing, or kept from loading
    its program."""
    steps = (["ip", "netns", "add", PLACE],
             ["ip", "-n", PLACE, "link", "add", NEAR, "type", "veth", "peer", "name", FAR],
             ["ip", "-n", PLACE, "link", "set", NEAR, "up"])
    line = ["ip", "netns", "exec", PLACE, "dpdk-testpmd", "--lcores", "0@0,1@0", "--no-pci", "--no-huge", "-m", "128", "--no-telemetry",
            "--file-prefix", "gwprobe", "--vdev", AF_XDP.testpmd_vdev(0, NEAR), "--", "--total-num-mbufs=6144",
            f"--mbuf-size={AF_XDP.testpmd_buffers()}"]
    subprocess.run(["ip", "netns", "del", PLACE], capture_output=True, check=False)
    try:
        for step in steps:
            subprocess.run(step, capture_output=True, check=True, text=True, timeout=20)
        # It ends at once, as its input does.
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True, timeout=30)
    except FileNotFoundError as error:
        return f"{error.filename} is not there"
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    except subprocess.TimeoutExpired:
        return "dpdk-testpmd does not end"
    finally:
        subprocess.run(["ip", "netns", "del", PLACE], capture_output=True, check=False)
    if done.returncode == 0:
        return None
    said = [text.strip() for text in (done.stderr + done.stdout).splitlines() if "xdp" in text.lower() or "cannot" in text.lower()]
    return f"{AF_XDP.driver} does not start: " + (said[0] if said else f"dpdk-testpmd ended with code {done.returncode}")


class NoPort(Exception):
    """This machine has no ports of the requested kind."""


def choose(requested, usual, say):
    """Returns the requested port, or else the usual one, or another one with a note if the machine has
    none."""
    port = KINDS[requested or usual]
    why = missing(port)
    if why is None:
        return port
    if requested:
        raise NoPort(f"--port {requested}: {why}; --port {AF_PACKET.kind} does without")
    say(f"port {port.kind}: {why}; {AF_PACKET.kind} instead")
    return AF_PACKET


def add_option(parser, usual):
    parser.add_argument("--port", choices=sorted(KINDS),
                        help=f"DPDK driver of the Ethernet port: net_af_packet or net_af_xdp (default {usual})")
