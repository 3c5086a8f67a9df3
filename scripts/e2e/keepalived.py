"""keepalived decides which gateway of a pair forwards, by the example configuration that comes with the packages.

    gateway a's machine [keepalived] ── ka0 ─ ka1 ── [keepalived] gateway b's machine
"""

import os
import re
import signal
import time
from pathlib import Path

from checks.drain import WARM, under_traffic
from stage.programs import Process, run

EXAMPLES = Path(__file__).resolve().parents[2] / "packaging/examples/keepalived"
ADDRESSES = {"a": "192.0.2.1", "b": "192.0.2.2"}
PRIORITIES = {"a": 110, "b": 100}


def link(lab, namespaces):
    (a, ns_a), (b, ns_b) = namespaces.items()
    run("ip", "link", "add", "ka0", "netns", ns_a, "type", "veth", "peer", "name", "ka1", "netns", ns_b)
    for dev, netns, name in (("ka0", ns_a, a), ("ka1", ns_b, b)):
        run("ip", "addr", "add", f"{ADDRESSES[name]}/24", "dev", dev, netns=netns)
        run("ip", "link", "set", dev, "up", netns=netns)


def config(lab, name):
    """The example, with this machine's names and addresses."""
    own, other = ADDRESSES[name], ADDRESSES["b" if name == "a" else "a"]
    text = (EXAMPLES / "keepalived.conf").read_text()
    for old, new in (("unicast_src_ip 192.0.2.1", f"unicast_src_ip {own}"), ("        192.0.2.2", f"        {other}"),
                     ("eno1", "ka0" if name == "a" else "ka1"), ("priority 110", f"priority {PRIORITIES[name]}"),
                     ("/run/ipoib-fwd.sock", f"{lab.dir}/{name}-control.sock"), ("/usr/bin/ipoib-fwd", str(lab.bin / "ipoib-fwd")),
                     ("/etc/keepalived/ipoib-fwd-notify", str(EXAMPLES / "ipoib-fwd-notify")),
                     # The programs of a working tree are not in directories of root's alone.
                     ("    enable_script_security\n", "")):
        if old not in text:
            raise AssertionError(f"the example has no {old}")
        text = text.replace(old, new)
    path = lab.dir / f"keepalived-{name}.conf"
    path.write_text(text)
    return path


def start(lab, name, netns):
    pids = [word for kind in ("p", "r", "c") for word in (f"-{kind}", lab.dir / f"keepalived-{name}.{kind}.pid")]
    log = lab.dir / f"keepalived-{name}-{time.monotonic_ns()}.log"
    line = ["env", f"IPOIB_FWD={lab.bin / 'ipoib-fwd'}", "keepalived", "--dont-fork", "--log-console", "--log-detail", "--vrrp",
            "--use-file", config(lab, name), *pids]
    return Process(f"keepalived {name}", line, netns, log)


def stop(process):
    process.popen.send_signal(signal.SIGTERM)
    return process.stop(20)


def check_keepalived(lab):
    """Whom keepalived has as its master forwards: at the start, when a keepalived is stopped and comes back, and when the preferred gateway
    is drained; nothing is lost."""
    namespaces = {name: lab.own_ns[name] for name in ADDRESSES}
    lab.wait_settled()
    link(lab, namespaces)
    running, after = {}, {}

    def forwards(name, seconds=20):
        begin = time.monotonic()
        lab.wait_for(f"gateway {name} to forward", lambda: lab.role(name) == "forwarding", seconds)
        return round(time.monotonic() - begin, 2)

    try:
        for name, netns in namespaces.items():
            running[name] = start(lab, name, netns)
        lab.wait_for("a master", lambda: "Entering MASTER STATE" in running["a"].text(), 20)
        forwards("a", 30)
        time.sleep(WARM)

        def stopped_and_back():
            stop(running["a"])
            after["stopped"] = forwards("b")
            time.sleep(WARM)
            running["a"] = start(lab, "a", namespaces["a"])
            after["back"] = forwards("a", 30)

        moved = under_traffic(lab, stopped_and_back, 40)
        # A gateway that is drained is not healthy: keepalived goes, and comes back with it.
        time.sleep(WARM)
        socket = ["--socket", lab.dir / "a-control.sock"]
        run(lab.bin / "ipoib-fwd", "ctl", *socket, "drain", timeout=30)
        lab.wait_for("the other master", lambda: "Entering MASTER STATE" in running["b"].text().rsplit("BACKUP", 1)[-1], 20)
        drained = lab.role("b")
        run(lab.bin / "ipoib-fwd", "ctl", *socket, "drain", "--undo", timeout=30)
        after["undone"] = forwards("a", 30)
        priorities = {name: lab.state(name)["priority"] for name in ADDRESSES}
        failed = re.findall(r".*(?:script.*exited due to signal|No such file|Unknown keyword).*", running["a"].text())
    finally:
        for process in running.values():
            stop(process)
        run("ip", "link", "del", "ka0", netns=namespaces["a"], check=False)
        for name in ADDRESSES:
            run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / f"{name}-control.sock", "set", "priority", 100, check=False)
    lab.wait_settled(30)
    ok = moved["ok"] and moved["lost"] == 0 and drained == "forwarding" and priorities == {"a": 200, "b": 50} and not failed
    return {**moved, "ok": ok, "moved_after": after, "drained": drained, "priorities": priorities, "failed": failed,
            "examples": os.access(EXAMPLES / "ipoib-fwd-notify", os.X_OK)}


def check_notify(lab):
    """The example's notify script: while no gateway answers it goes on asking, a later word ends an earlier one, and the last one holds."""
    socket, script = lab.dir / "a-control.sock", EXAMPLES / "ipoib-fwd-notify"
    lab.wait_settled()
    aside = lab.dir / "a-aside.sock"
    environment = [f"IPOIB_FWD={lab.bin / 'ipoib-fwd'}", f"IPOIB_FWD_RUN={lab.dir}"]
    last = lab.dir / "ipoib-fwd-notify.test"
    # `env` becomes the script: its process is ours.
    spoken = lambda word: last.exists() and last.read_text().strip() == str(word.popen.pid)

    def notify(state):
        log = lab.dir / f"notify-{time.monotonic_ns()}.log"
        return Process(f"notify {state}", ["env", *environment, script, socket, "INSTANCE", "test", state, 100], None, log)

    socket.rename(aside)
    words = []
    try:
        words = [notify("MASTER")]
        lab.wait_for("the first word", lambda: spoken(words[0]), 20)
        words.append(notify("FAULT"))
        lab.wait_for("a later word", lambda: spoken(words[1]), 20)
        lab.wait_for("the end of the earlier one", lambda: not words[0].alive(), 20)
        waits = [word.alive() for word in words]
        stopped = notify("STOP")
        words.append(stopped)
        refused = stopped.popen.wait(20)
        words.append(notify("BACKUP"))
        lab.wait_for("the last word", lambda: spoken(words[3]), 20)
        time.sleep(1.5)
        aside.rename(socket)
        codes = [word.popen.wait(20) for word in words]
        priority = lab.state("a")["priority"]
    finally:
        for word in words:
            word.stop(1)
        if aside.exists():
            aside.rename(socket)
        run(lab.bin / "ipoib-fwd", "ctl", "--socket", socket, "set", "priority", 100, check=False)
    ok = waits == [False, True] and refused == 1 and codes == [0, 0, 1, 0] and priority == 50
    return {"ok": ok, "waits": waits, "codes": codes, "priority": priority}
