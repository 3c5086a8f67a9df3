"""The service of GID tables (`ipoib-fwd gids --serve`) on two interfaces of a network namespace, and readers
of its tables.

There is no gateway, fabric or RDMA device: the tables are those of software RoCE ports.
"""

import json

from testbed.programs import DEADLINE, run
from testbed.services import Manager
from testbed.topology import Topology

INTERFACES = ("gs0", "gs1")
DEVICE, OTHER = "roce:gs0", "roce:gs1"


class GidService(Topology):
    """`gw` is the network namespace; the tables are in the directory `tables`."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.tables, self.managers = self.dir / "tables", []

    def up(self):
        self.namespace(self.gw)
        for setting in ("default.disable_ipv6=0", "default.addr_gen_mode=1"):
            run("sysctl", "-qw", f"net.ipv6.conf.{setting}", netns=self.gw)
        run("ip", "link", "add", "gs0", "netns", self.gw, "type", "veth", "peer", "name", "gs1", "netns", self.gw)
        for dev in INTERFACES:
            run("ip", "link", "set", dev, "up", netns=self.gw)

    def close(self):
        super().close()
        for manager in self.managers:
            manager.close()

    def address(self, action, address, dev="gs0"):
        run("ip", "addr", action, address, "dev", dev, netns=self.gw)

    def command(self):
        """The service's command line."""
        roce = [word for dev in INTERFACES for word in ("--roce", dev)]
        return [self.bin / "ipoib-fwd", "gids", "--serve", "--dir", self.tables, *roce]

    def serve(self):
        """Starts the service, and waits until it reports that it is ready."""
        manager = Manager(self.dir / f"notify{len(self.managers)}", 60)
        self.managers.append(manager)
        service = self.background("gids --serve", ["env", *manager.environment, *self.command()], self.gw)
        manager.wait("READY=1")
        return service

    def stop(self, process):
        """Stops a service or a reader in order; returns its exit code."""
        self.forget(process)
        return process.stop()

    def gids(self, *arguments, check=True):
        return run(self.bin / "ipoib-fwd", "gids", *(arguments or ("--from", self.tables)), netns=self.gw, check=check)

    def rows(self, *arguments, check=True):
        return json.loads(self.gids("--from", self.tables, "--json", *arguments, check=check).stdout)["gids"]

    def addresses(self, device=DEVICE, check=True):
        """The IPv4 addresses of a device, by index."""
        return {row["index"]: row["ipv4"] for row in self.rows(check=check) if row["device"] == device and row["ipv4"]}

    def follow(self, name, *arguments):
        """A reader in the background."""
        return Reader(self, name, *arguments)


class Reader:
    """`ipoib-fwd gids --watch` in the background, and the events that it has printed."""

    def __init__(self, service, name, *arguments):
        self.service, self.name = service, name
        command = [service.bin / "ipoib-fwd", "gids", "--from", service.tables, "--watch", "--json", *arguments]
        self.process = service.background(name, command, service.gw)
        service.wait_for(f"reader {name} to start", lambda: "present" in self.process.text())

    def events(self, *kinds):
        """Its events, of these kinds if any are named."""
        # Whole lines.
        lines = self.process.text().rpartition("\n")[0].splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in found if not kinds or event["event"] in kinds]

    def has(self, kind, device=DEVICE, ipv4=None):
        return any((event["device"], event.get("ipv4")) == (device, ipv4) for event in self.events(kind))

    def wait(self, kind, device=DEVICE, ipv4=None):
        """Waits for an event."""
        self.service.wait_for(f"reader {self.name}: {kind} {device} {ipv4 or ''}", lambda: self.has(kind, device, ipv4), DEADLINE)

    def kill(self):
        self.service.kill(self.process)
