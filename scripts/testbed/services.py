"""A service manager in systemd's place: what programs report to it (sd_notify), and a fabric and a gateway
that have one each."""

from testbed.mailbox import Mailbox
from testbed.programs import DEADLINE
from testbed.topology import Topology


class Manager(Mailbox):
    """A service manager for one program: its environment, and the messages it has received."""

    def __init__(self, path, watchdog):
        """`watchdog` is the watchdog's interval in seconds, which the program is given."""
        super().__init__(path)
        self.environment = [f"NOTIFY_SOCKET={path}", f"WATCHDOG_USEC={int(watchdog * 1e6)}"]

    def wait(self, start, seconds=DEADLINE):
        """Takes messages until one starts like that; returns it."""
        return self.wait_suitable(f"{start}...", lambda message: message.startswith(start), seconds)


class Services(Topology):
    """A fabric without hosts and a gateway without a network, each with a service manager of its own.

    Without `no-rx` net_null always returns frames, and the worker is never idle.
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
