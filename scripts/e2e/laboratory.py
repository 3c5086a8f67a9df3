"""What the checks share: the laboratory, how checks are run and kept, and starts, stops and figures."""

import contextlib
import ctypes
import glob
import json
import os
import signal
import socket
import threading
import time
import traceback
from pathlib import Path

import ibwire
from stage.apart import LIBC, NEW_NETWORK
from stage.lab import ETH, IB_IP, Lab
from stage.programs import Failed, Process, run
from stage.traffic import LATE, answered, ping

# Seconds that a check may take; the longest one takes a third of it.
PATIENCE = 300


def say(text):
    print(f"e2e: {text}", flush=True)


def left_out(why):
    """What a check says for which something is missing here. Where CI runs it nothing may be."""
    return {"ok": not os.environ.get("CI"), "skipped": why}


def socket_in(netns, *kind):
    """A socket that lives in another network namespace."""
    own, other = os.open("/proc/self/ns/net", os.O_RDONLY), os.open(f"/run/netns/{netns}", os.O_RDONLY)
    try:
        if LIBC.setns(other, NEW_NETWORK):
            raise Failed(f"setns {netns}: {os.strerror(ctypes.get_errno())}")
        try:
            return socket.socket(*kind)
        finally:
            LIBC.setns(own, NEW_NETWORK)
    finally:
        os.close(own)
        os.close(other)


@contextlib.contextmanager
def patience(name):
    """Whatever a check waits for without end, it fails, says where it stood, and the next one begins; and again while it winds up."""
    def exhausted(_signum, frame):
        raise Failed(f"{name}: no end after {PATIENCE} s\n{''.join(traceback.format_stack(frame)[-4:])}")

    before = signal.signal(signal.SIGALRM, exhausted)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, 60)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Checks:
    """Runs checks, prints them, keeps them."""

    def __init__(self, only):
        self.results, self.only = [], only

    def wanted(self, *names):
        return not self.only or any(n.startswith(o) for n in names for o in self.only)

    def wanted_of(self, group):
        """True if some check whose name begins so may be wanted."""
        return self.wanted(group) or any(o.startswith(group) for o in self.only)

    def run(self, name, body, lab=None, always=False):
        if not (always or self.wanted(name)):
            return
        begin = time.monotonic()
        try:
            with patience(name):
                result = body()
        except (Failed, OSError) as e:
            result = {"ok": False, "error": str(e)[-3000:]}
        except Exception:
            # Of whatever a check has not thought it is the one that fails, and the others have their turn.
            result = {"ok": False, "error": traceback.format_exc()[-3000:]}
        result["took"] = round(time.monotonic() - begin, 2)
        self.results.append({"name": name, **result})
        figures = {k: v for k, v in result.items() if k != "ok"}
        say(f"{name}: {'ok' if result['ok'] else 'FAILED'} {json.dumps(figures)}")
        if lab:
            lab.alive()


class Laboratory(Lab):
    """The demo's, with a second link of the fabric for an intruder."""

    def __init__(self, args, intruder=True):
        super().__init__(args)
        [(self.far, self.near)] = ibwire.intruder_pairs(1)
        self.with_intruder = intruder

    def fabric_config(self):
        text = super().fabric_config()
        if self.with_intruder:
            near, far = ("%s:%d" % a for a in (self.near, self.far))
            text += f'\n[[link]]\nname = "intruder"\nurl = "udp:{near}-{far}"\n'
        return text

    def gateway_config(self):
        return super().gateway_config().replace("[gateway]\n", f'[gateway]\ngids = "{self.dir}/gids"\n', 1)

    def up(self):
        self.start()
        self.wait_for("the first packet through the gateway", lambda: ping(ETH, IB_IP, 56, count=1)["ok"], 20)
        self.wait_for("connections both ways", lambda: self.ctl("connections").get("established_both_ways"), 30)

    def hosts_up(self, count=1):
        """The fabric's hosts can answer a first packet."""
        self.wait_for("the InfiniBand hosts' links", lambda: self.fabric.text().count("link up") >= count, 30)

    def lose(self, process):
        """Kills a process without a chance to say anything."""
        process.popen.kill()
        process.popen.wait()
        process.out.close()
        self.processes.remove(process)

    def link_up(self):
        """The gateway forwards, without a packet having been sent."""
        try:
            links = self.ctl("links")
            return links["infiniband"].get("link") == "up" and links["gateway"]["role"] == "forwarding"
        except Failed:
            return False

    def say_last_words(self):
        """The programs' own logs say why."""
        for p in self.processes:
            say(f"{p.name}'s last words:\n" + p.text()[-3000:])

    def in_use(self):
        return self.ctl("stats")["buffers"]["in_use"]

    def ask(self, *words):
        return run(self.bin / "ipoib-fwd", "ctl", "--socket", self.dir / "control.sock", *words, timeout=30)


class Pings:
    """ping in the background, a line for each answer."""

    def __init__(self, netns, target, interval, log):
        self.process = Process("ping", ["ping", "-n", "-i", interval, target], netns, log)

    def end(self):
        """Packets up to the last that was answered, and how many of them were not, once answers still come; those on their way when ping
        is told to end it does not wait for. None are lost where nothing came any more: that is an error."""
        end, had = time.monotonic() + LATE, len(answered(self.process.text()))
        while len(answered(self.process.text())) < had + 3:
            if time.monotonic() > end or not self.process.alive():
                raise Failed(f"no answers any more:\n{self.process.text()[-500:]}")
            time.sleep(0.05)
        self.process.popen.send_signal(signal.SIGINT)
        self.process.popen.wait(LATE)
        numbers = answered(self.process.text())
        return {"sent": max(numbers), "lost": max(numbers) - len(numbers)}

    def stop(self):
        self.process.stop(1)


class Pulse(threading.Thread):
    """How long the machine kept processes from running, though they would have: what their threads have waited for a processor, as the
    kernel counts it, and by how much naps of ours were too long. `pids` tells which they are."""

    NAP, WINDOW = 0.05, 1.5

    def __init__(self, pids):
        super().__init__(daemon=True)
        # By thread: what it had waited when it was seen first, and at last.
        self.pids, self.over, self.waited, self.samples = pids, threading.Event(), {}, []
        self.start()

    def run(self):
        before, naps = time.monotonic(), 0.0
        while not self.over.wait(self.NAP):
            now = time.monotonic()
            naps, before = naps + max(0.0, now - before - self.NAP), now
            for pid in self.pids():
                for task in glob.glob(f"/proc/{pid}/task/*/schedstat"):
                    try:
                        waited = int(Path(task).read_text().split()[1]) / 1e9
                        self.waited[task] = (self.waited.get(task, (waited,))[0], waited)
                    except (OSError, IndexError):
                        pass
            self.samples.append((now, naps + sum(last - first for first, last in self.waited.values())))

    def stop(self):
        """The most of it in any second and a half, in seconds."""
        self.over.set()
        self.join()
        most, first = 0.0, 0
        for now, kept in self.samples:
            while now - self.samples[first][0] > self.WINDOW:
                first += 1
            most = max(most, kept - self.samples[first][1])
        return most


def in_laboratory(make, args, checks, bodies):
    """Builds a laboratory if one of the checks is wanted, runs the checks in it one after the other, and takes it down."""
    if not any(checks.wanted(name) for name, _ in bodies):
        return
    lab = make(args)
    try:
        lab.up()
        for name, body in bodies:
            checks.run(name, lambda body=body: body(lab), lab)
    except Failed:
        lab.say_last_words()
        raise
    finally:
        lab.close()


def stopped(lab):
    """The gateway ends when it is asked to, and every buffer has come home."""
    code = lab.gateway.stop()
    lab.processes.remove(lab.gateway)
    outstanding = json.loads((lab.dir / "report.json").read_text())["buffers_outstanding"]
    return {"ok": code == 0 and outstanding == 0, "exit_code": code, "buffers_outstanding": outstanding}


def grown(after, before):
    return {k: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}


def packets(counters, *names):
    return sum(counters[n]["packets"] for n in names)


def number(text):
    return int(text, 0) if text else 0


def check_stop(lab, name, process, how, code=0):
    begin = time.monotonic()
    process.popen.send_signal(how)
    try:
        got = process.popen.wait(20)
    except Exception:
        raise Failed(f"{name}: still there 20 s after {how.name}") from None
    # On a busy machine everything takes longer. What the gateway could not close and has not waited for it says itself.
    seconds, left = time.monotonic() - begin, "could be closed in time" in process.text()
    process.stop(0)
    if process in lab.processes:
        lab.processes.remove(process)
    return {"ok": got == code and not left, "signal": how.name, "exit_code": got, "seconds": round(seconds, 2)}


def back_within(seconds, netns, target):
    begin = time.monotonic()
    while time.monotonic() - begin < seconds + 10:
        if run("ping", "-n", "-q", "-c", 1, "-W", 1, target, netns=netns, check=False).returncode == 0:
            return round(time.monotonic() - begin, 2)
    return None
