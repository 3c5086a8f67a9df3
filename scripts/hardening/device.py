"""A software ConnectX on a port of the topology's fabric, which is a process, and who uses it."""

import re
import threading
import time

from hardening.guest import Gone, Guest
from hardening.ground import ETH
from testbed.programs import Process, TestbedError, run
from testbed.topology import ETH_IP

IP = "10.77.0.3"
NODE = "0002c90300a1b200"


def link(lab):
    """Its port, for the fabric's configuration."""
    return f'\n[[link]]\nname = "device"\nurl = "shm:{lab.dir}/device.sock"\n'


class Device:
    """The process, always with the same configuration."""

    def __init__(self, lab):
        line = [lab.bin / "softhca", "--socket", lab.dir / "vfio.sock", "--cable", f"shm:{lab.dir}/device.sock", "--node-guid", NODE]
        self.process = Process("softhca", line, None, lab.dir / "softhca.log")


class User(threading.Thread):
    """A guest that has it, and goes on: a device that is gone it takes out, and the next one it attaches and drives. When it is asked to it
    greets the gateway."""

    def __init__(self, lab):
        super().__init__(daemon=True)
        self.lab, self.attached, self.over, self.greeting = lab, 0, threading.Event(), threading.Event()
        self.gateway, self.why = None, "not begun"
        self.start()

    def run(self):
        guest = None
        while not self.over.is_set():
            try:
                if guest is None:
                    guest = Guest(self.lab.dir / "vfio.sock", IP)
                    self.attached += 1
                self.turn(guest)
            except (Gone, OSError) as error:
                self.why = str(error)
                if guest:
                    guest.close()
                guest = None
                time.sleep(0.05)
        if guest:
            guest.close()

    def turn(self, guest):
        if self.greeting.is_set() and self.gateway:
            if guest.greet(*self.gateway, ETH_IP):
                self.greeting.clear()
        guest.serve(*self.gateway or (0, bytes(20)))
        time.sleep(0.002)

    def answers_again(self, begin, seconds):
        """Seconds until the fabric has the port active, and a ping of the Ethernet host comes back; none if that takes too long."""
        while True:
            try:
                links = self.lab.ctl("links")["infiniband"]
                self.gateway = links["lid"], bytes.fromhex(links["addresses"].split(" ")[0].replace(":", ""))
                self.greeting.set()
            except (TestbedError, KeyError, ValueError):
                # The gateway is not there yet.
                pass
            if run("ping", "-n", "-q", "-c", 1, "-W", 1, IP, netns=ETH, check=False).returncode == 0:
                return time.monotonic() - begin
            if time.monotonic() - begin > seconds:
                return None

    def close(self):
        self.over.set()
        self.join(10)


def fabric_sees(lab, begin, size, seconds):
    """Seconds until the fabric's statistics, of which there were so many bytes, say that the device's port is active."""
    while True:
        told = re.findall(r"^port \d+ device: (\w+)", lab.fabric.text()[size:], re.M)
        if told and told[-1] == "Active":
            return time.monotonic() - begin
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.05)
