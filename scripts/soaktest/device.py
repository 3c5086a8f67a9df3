"""A software ConnectX process on a port of the fabric, and a guest that uses it."""

import re
import threading
import time

from soaktest.common import ETH
from soaktest.guest import Gone, Guest
from testbed.programs import Process, TestbedError, run
from testbed.topology import ETH_IP

IP = "10.77.0.3"
NODE = "0002c90300a1b200"


def link(lab):
    """Returns the device's port for the configuration of the fabric."""
    return f'\n[[link]]\nname = "device"\nurl = "shm:{lab.dir}/device.sock"\n'


class Device:
    """The `softhca` process; its configuration is always the same."""

    def __init__(self, lab):
        line = [lab.bin / "softhca", "--socket", lab.dir / "vfio.sock", "--cable", f"shm:{lab.dir}/device.sock", "--node-guid", NODE]
        self.process = Process("softhca", line, None, lab.dir / "softhca.log")


class User(threading.Thread):
    """A guest that keeps using the device.

    When the device is gone it detaches, and attaches the next one. It greets the gateway on request.
    """

    def __init__(self, lab):
        super().__init__(daemon=True)
        self.lab, self.attached, self.over, self.greeting = lab, 0, threading.Event(), threading.Event()
        self.gateway, self.why = None, "not started"
        self.start()

    def run(self):
        guest = None
        while not self.over.is_set():
            try:
                if guest is None:
                    guest = Guest(self.lab.dir / "vfio.sock", IP)
                    self.attached += 1
                self.serve_once(guest)
            except (Gone, OSError) as error:
                self.why = str(error)
                if guest:
                    guest.close()
                guest = None
                time.sleep(0.05)
        if guest:
            guest.close()

    def serve_once(self, guest):
        if self.greeting.is_set() and self.gateway:
            if guest.greet(*self.gateway, ETH_IP):
                self.greeting.clear()
        guest.serve(*self.gateway or (0, bytes(20)))
        time.sleep(0.002)

    def answers_again(self, begin, seconds):
        """Returns the seconds until a ping from the Ethernet host succeeds, or None after a timeout."""
        while True:
            try:
                links = self.lab.ctl("links")["infiniband"]
                self.gateway = links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))
                self.greeting.set()
            except (TestbedError, KeyError, ValueError):
                # The gateway has not started yet.
                pass
            if run("ping", "-n", "-q", "-c", 1, "-W", 1, IP, netns=ETH, check=False).returncode == 0:
                return time.monotonic() - begin
            if time.monotonic() - begin > seconds:
                return None

    def close(self):
        self.over.set()
        self.join(10)


def fabric_sees(lab, begin, size, seconds):
    """Returns the seconds until the fabric reports the port as active, or None after a timeout.

    Ignores the first `size` bytes of the statistics.
    """
    while True:
        states = re.findall(r"^port \d+ device: (\w+)", lab.fabric.text()[size:], re.M)
        if states and states[-1] == "Active":
            return time.monotonic() - begin
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.05)
