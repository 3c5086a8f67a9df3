"""keepalived on the machines of a pair, by the example configuration that comes with the packages.

    gateway a's machine [keepalived] ── ka0 ─ ka1 ── [keepalived] gateway b's machine
"""

from pathlib import Path

from testbed.pair import Pair
from testbed.programs import TestbedError, run

EXAMPLES = Path(__file__).resolve().parents[2] / "packaging/examples/keepalived"
NOTIFY = EXAMPLES / "ipoib-fwd-notify"
ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}
INTERFACES = {"a": "ka0", "b": "ka1"}
VRRP_PRIORITIES = {"a": 110, "b": 100}
# Priorities that the notify script sets on a master's gateway, and on any other one.
MASTER, BACKUP = 200, 50


class KeepalivedPair(Pair):
    """A pair with a link between its machines, on which keepalived speaks."""

    def __init__(self, programs, **more):
        super().__init__(programs, **more)
        self.keepalived, self.notifications = {}, []

    def namespaces_up(self):
        super().namespaces_up()
        self.cable(self.own_ns["a"], "ka0", self.own_ns["b"], "ka1")
        for name, netns in self.own_ns.items():
            run("ip", "addr", "add", f"{ADDRESSES[name]}/24", "dev", INTERFACES[name], netns=netns)

    def keepalived_config(self, name):
        """The example, with this topology's names and addresses."""
        own, other = ADDRESSES[name], ADDRESSES["b" if name == "a" else "a"]
        text = (EXAMPLES / "keepalived.conf").read_text()
        for old, new in (("unicast_src_ip 192.0.2.1", f"unicast_src_ip {own}"), ("        192.0.2.2", f"        {other}"),
                         ("eno1", INTERFACES[name]), ("priority 110", f"priority {VRRP_PRIORITIES[name]}"),
                         ("/run/ipoib-fwd.sock", str(self.control_socket(name))), ("/usr/bin/ipoib-fwd", str(self.bin / "ipoib-fwd")),
                         ("/etc/keepalived/ipoib-fwd-notify", str(NOTIFY)),
                         # The programs of a working tree are in directories that others than root may write
                         # to.
                         ("    enable_script_security\n", "")):
            if old not in text:
                raise TestbedError(f"the example has no {old}")
            text = text.replace(old, new)
        path = self.dir / f"keepalived-{name}.conf"
        path.write_text(text)
        return path

    def script_environment(self, name):
        """For the notify script: the program, and a directory for its own files, as each machine has one."""
        folder = self.dir / f"run-{name}"
        folder.mkdir(exist_ok=True)
        return ["env", f"IPOIB_FWD={self.bin / 'ipoib-fwd'}", f"IPOIB_FWD_RUN={folder}"]

    def start_keepalived(self, name):
        pids = [argument for kind in ("p", "r", "c") for argument in (f"-{kind}", self.dir / f"keepalived-{name}.{kind}.pid")]
        line = ["keepalived", "--dont-fork", "--log-console", "--log-detail", "--vrrp", "--use-file", self.keepalived_config(name), *pids]
        self.keepalived[name] = self.background(f"keepalived {name}", [*self.script_environment(name), *line], self.own_ns[name])

    def stop_keepalived(self, name):
        self.forget(self.keepalived[name])
        self.keepalived[name].stop()

    def notify(self, name, state):
        """Starts the notify script as keepalived does.

        The process is the script's own: `env` replaces itself by it.
        """
        line = [*self.script_environment(name), NOTIFY, self.control_socket(name), "INSTANCE", "test", state, 100]
        process = self.background(f"notify {state}", line)
        # It may exit.
        self.forget(process)
        self.notifications.append(process)
        return process

    def last_notification(self, name):
        """The process ID of the script that was started last, or None."""
        path = self.dir / f"run-{name}" / f"{NOTIFY.name}.test"
        text = path.read_text().strip() if path.exists() else ""
        return int(text) if text else None

    def close(self):
        for process in self.notifications:
            process.stop(1)
        super().close()
