"""A gateway whose configuration changes while it runs: it has two segments at first, and hosts of a third one
are there."""

from testbed.programs import TestbedError, run
from testbed.segments import SEGMENTS, Segments
from testbed.topology import ETH_IP, GW_IP, PREFIX, Topology
from testbed.traffic import grown

OFFICE, STORAGE, BACKUP = (s.name for s in SEGMENTS)
BY_NAME = {s.name: s for s in SEGMENTS}


def segment(name, vlan=None, pkey=None, more=""):
    """A segment for the configuration, as `SEGMENTS` has it or with another VLAN or partition; `more` lines
    follow."""
    vlan, pkey = vlan or BY_NAME[name].vlan, pkey or BY_NAME[name].pkey
    return (f'\n[[segment]]\nname = "{name}"\npkey = {pkey:#x}\naddress = "{GW_IP}/{PREFIX}"\n'
            + (f"vlan = {vlan}\n" if vlan else "") + more)


BOTH, ALL = (segment(OFFICE), segment(STORAGE)), (segment(OFFICE), segment(STORAGE), segment(BACKUP))


class Reloads(Segments):
    """Hosts of all segments, and a gateway that has the first two."""

    captured = False

    def __init__(self, programs, **more):
        super().__init__(programs, **more)
        (self.eth100, self.ib100), (self.eth200, self.ib200) = (self.hosts(s) for s in SEGMENTS[1:])
        self.config = self.dir / "gateway.toml"

    def fabric_config(self):
        # The first host's interface is a TUN device: the fabric knows its router, not the kernel.
        text = super().fabric_config()
        return text.replace(f'name = "{OFFICE}"\nnetns', f'name = "{OFFICE}"\ngateway = "{ETH_IP}"\nnetns')

    def base(self):
        """The configuration without segments."""
        return Topology.gateway_config(self).replace(f'address = "{GW_IP}/{PREFIX}"\n', "")

    def gateway_config(self):
        return self.base() + "".join(BOTH)

    def all_up(self):
        try:
            return self.ready(OFFICE, STORAGE)
        except TestbedError:
            return False

    def write(self, *segments, base=None):
        self.config.write_text((base or self.base()) + "".join(segments))

    def reload(self, *segments, base=None):
        """Changes the configuration and reloads the gateway; returns its answer."""
        self.write(*segments, base=base)
        return self.ctl("reload")

    def rows(self):
        return {row["segment"]: row for row in self.ctl("links")["segments"]}

    def identities(self):
        """VLAN, partition and mode of each segment."""
        return {name: (row.get("vlan"), row["pkey"], row["mode"]) for name, row in self.rows().items()}

    def ready(self, *names):
        rows = self.rows()
        return set(rows) == set(names) and all(r["link"] == "up" and r.get("role") == "forwarding" for r in rows.values())

    def wait_ready(self, *names):
        self.wait_for(f"segments {', '.join(names)} to forward", lambda: self.ready(*names))

    def drops_since(self, before):
        return grown(self.drops(), before)

    def answers(self, netns, *arguments):
        """Whether a single ping is answered within a second."""
        return run("ping", "-n", "-q", "-c", 1, "-W", 1, *arguments, netns=netns, check=False).returncode == 0
