"""A service manager in systemd's place: what programs report to it (sd_notify), and a fabric and a gateway that have one each."""

import socket
import threading
import time

from testbed.programs import DEADLINE, TestbedError
from testbed.topology import Topology


class Manager:
    """A service manager for one program: its environment, and the messages it has received.

    A thread receives them, because a socket that is full takes no more.
    """

    def __init__(self, path, watchdog):
        """`watchdog` is the watchdog's interval in seconds, which the program is given."""
        # All messages, and how many of them the test has taken.
        self.messages, self.taken = [], 0
        self.changed = threading.Condition()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.environment = [f"NOTIFY_SOCKET={path}", f"WATCHDOG_USEC={int(watchdog * 1e6)}"]
        self.thread = threading.Thread(target=self.receive, daemon=True)
        self.thread.start()

    def receive(self):
        while message := self.socket.recv(4096).decode():
            with self.changed:
                self.messages.append(message)
                self.changed.notify_all()

    def take(self, start):
        """Takes messages up to the first one that starts like that; None if there is no such message yet."""
        for at in range(self.taken, len(self.messages)):
            if self.messages[at].startswith(start):
                self.taken = at + 1
                return self.messages[at]
        return None

    def wait(self, start, seconds=DEADLINE):
        """Takes messages until one starts like that; returns it."""
        with self.changed:
            if message := self.changed.wait_for(lambda: self.take(start), seconds):
                return message
            raise TestbedError(f"no message {start}... within {seconds} s; received: {self.messages[-20:]}")

    def drain(self):
        """Takes all messages that have been received by now."""
        with self.changed:
            self.taken = len(self.messages)

    def count(self, message, seconds):
        """How many such messages arrive in that time."""
        time.sleep(seconds)
        with self.changed:
            taken, self.taken = self.taken, len(self.messages)
            return self.messages[taken:].count(message)

    def close(self):
        self.socket.shutdown(socket.SHUT_RD)
        self.thread.join()
        self.socket.close()


class Services(Topology):
    """A fabric without hosts and a gateway without a network, each with a service manager of its own.

    Without `no-rx` net_null returns as many frames as the gateway takes, and the worker is never idle.
    """

    single_gateway = False
    watchdog = 3

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.managers = []
        (self.dir / "fabric.toml").write_text(f'[[link]]\nname = "gateway"\nurl = "shm:{self.link}"\n')
        self.write_gateway_config()

    def write_gateway_config(self, gateway="", ethernet="", infiniband=""):
        """Writes the gateway's configuration, with more lines in some of its sections."""
        text = (f'[gateway]\n{gateway}address = "10.77.0.254/24"\ncontrol-socket = "{self.socket}"\nidle = "sleep"\n'
                f'[ethernet]\n{ethernet}port = "net_null0"\n[infiniband]\n{infiniband}driver = "soft"\n'
                f'[infiniband.soft]\nports = [{{ link = "shm:{self.link}" }}]\n')
        (self.dir / "gateway.toml").write_text(text)
        return text

    def managed(self, name, argv):
        """Starts a program with a service manager; returns both."""
        manager = Manager(self.dir / f"{name}.notify", self.watchdog)
        self.managers.append(manager)
        return self.background(name, ["env", *manager.environment, *argv]), manager

    def managed_fabric(self):
        return self.managed("ibfab", [self.bin / "ibfab", "--config", self.dir / "fabric.toml"])

    def managed_gateway(self, lcores="0-1", prefix=()):
        """`prefix` is a command line in front of the gateway's."""
        eal = ["--no-pci", "--no-huge", "--no-shconf", "-m", "256", "--file-prefix", self.tag, "--vdev", "net_null0,no-rx=1"]
        return self.managed("ipoib-fwd", [*prefix, self.bin / "ipoib-fwd", "--lcores", lcores, *eal, "--",
                                          "--config", self.dir / "gateway.toml"])

    def close(self):
        super().close()
        for manager in self.managers:
            manager.close()
