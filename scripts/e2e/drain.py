#!/usr/bin/env python3
"""Out of service and back: one gateway of two is drained, stopped and replaced, and what runs through them does not notice."""

import json
import os
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from checks.laboratory import Pulse
from checks.meanwhile import meanwhile
from checks.runtime import Follower
from stage.lab import ETH, IB, IB_IP
from stage.programs import Failed, Process, run

UDP_PORT = 7003
# Between two datagrams.
INTERVAL = 0.002
# What is away for longer was lost on the way to a gateway that did not forward: a debug build's turns on a busy machine are shorter.
LONGEST_GAP_MS = 500
# A gateway that starts is nobody's successor before that: 20 hellos, and some.
WARM = 10


def udp_server():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("0.0.0.0", UDP_PORT))
    print("listening", flush=True)
    while True:
        data, address = server.recvfrom(2048)
        server.sendto(data, address)


def udp_client(target, seconds):
    """Numbered datagrams out and back, every 2 ms; how many came, and the longest time without one."""
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect((target, UDP_PORT))
    client.setblocking(False)
    begin = last = time.monotonic()
    sent, got, longest, at = 0, set(), 0.0, 0.0
    while (now := time.monotonic()) < begin + seconds + 1:
        if now < begin + seconds and now >= begin + sent * INTERVAL:
            try:
                client.send(struct.pack("!I", sent))
            except OSError:
                pass
            sent += 1
        try:
            while True:
                got.add(client.recv(2048))
                now = time.monotonic()
                if now - last > longest:
                    longest, at = now - last, last - begin
                last = now
        except BlockingIOError:
            time.sleep(INTERVAL / 4)
    print(json.dumps({"sent": sent, "lost": sent - len(got), "longest_gap_ms": round(1000 * longest, 1), "at_second": round(at, 1)}),
          flush=True)


def under_traffic(lab, act, seconds):
    """Runs `act` in the middle of TCP, pings both ways and a stream of datagrams."""
    me = [sys.executable, os.path.abspath(__file__)]
    server = Process("UDP server", [*me, "--server"], IB, lab.dir / f"udp-server-{time.monotonic_ns()}.log")
    client = None
    try:
        lab.wait_for("the UDP server", lambda: "listening" in server.text(), 20)
        client = Process("UDP client", [*me, "--client", IB_IP, seconds], ETH, lab.dir / f"udp-client-{time.monotonic_ns()}.log")
        pulse = Pulse(lambda: [p.popen.pid for p in (*lab.processes, server, client)])
        result = meanwhile(lab, act, seconds)
        client.popen.wait(seconds + 30)
        udp = {**json.loads(client.text()), "of_the_machine_ms": round(1000 * pulse.stop())}
    finally:
        for process in filter(None, (client, server)):
            process.stop(1)
    return {**result, "datagrams": udp, "ok": result["ok"] and udp["longest_gap_ms"] < LONGEST_GAP_MS + udp["of_the_machine_ms"]}


def ctl(lab, name, *words):
    """What `ipoib-fwd ctl` of a gateway says, and its exit code."""
    return run(lab.bin / "ipoib-fwd", "ctl", "--json", "--socket", lab.dir / f"{name}-control.sock", *words, timeout=30, check=False)


def drain(lab, name, *words):
    begin = time.monotonic()
    done = ctl(lab, name, "drain", *words)
    if done.returncode:
        raise Failed(f"gateway {name} is not drained: {done.stderr}")
    return json.loads(done.stdout), round(time.monotonic() - begin, 2)


def replace(lab, name):
    """Stops a gateway in order and starts it anew."""
    process = lab.gateways[name]
    lab.processes.remove(process)
    process.popen.send_signal(signal.SIGTERM)
    code = process.popen.wait(15)
    process.stop()
    if code:
        raise Failed(f"gateway {name} has ended with {code}")
    lab.start_one(name)
    lab.wait_settled(30)


def check_drain(lab):
    """The forwarder is drained while traffic runs, shows it everywhere, and is put back."""
    forwarder, other = lab.wait_settled()
    time.sleep(WARM)
    seen = {}

    def act():
        answer, seconds = drain(lab, forwarder)
        seen.update(answer=answer, seconds=seconds, roles=[lab.role(forwarder), lab.role(other)])
        seen["health"] = {name: ctl(lab, name, "health").returncode for name in (forwarder, other)}
        seen["why"] = json.loads(ctl(lab, forwarder, "health").stdout)["segments"][0]["why"]
        figures = ctl(lab, forwarder, "metrics").stdout
        seen["metric"] = 'role="drained"} 1' in figures and 'role="forwarding"} 0' in figures
        # The other one is the last one now.
        seen["second"] = ctl(lab, other, "drain").stderr
        seen["peer"] = [p["leaves"] for p in lab.state(other)["peers"] if p["alive"]]

    events = Follower(lab, "--json", path=lab.dir / f"{forwarder}-control.sock")
    try:
        result = under_traffic(lab, act, 10)
        undone, _ = drain(lab, forwarder, "--undo")
        settled = lab.wait_settled(20)
        lab.wait_for("the events", lambda: all(f'"{what}"' in events.text() for what in ("drained", "handed-over", "undrained")), 10)
    finally:
        told = [json.loads(line)["what"] for line in events.end()[0]]
    ok = (result["ok"] and result["lost"] == 0 and seen["roles"] == ["drained", "forwarding"] and seen["metric"]
          and seen["health"] == {forwarder: 5, other: 0} and "--undo" in seen["why"] and "--alone" in seen["second"]
          and seen["peer"] == [True] and undone["drained"] is False and settled == (other, forwarder)
          and {"drained", "handed-over", "undrained"} <= set(told))
    return {**result, **seen, "told": told, "ok": ok}


def check_drain_alone(lab):
    """The last gateway refuses to be drained and says why; told to do so all the same it drops, and forwards again when it is put back."""
    forwarder, other = lab.wait_settled()
    lab.lose(lab.gateways[other])
    try:
        lab.wait_for("the other one to be missed", lambda: not any(p["alive"] for p in lab.state(forwarder)["peers"]), 10)
        refused = ctl(lab, forwarder, "drain")
        kept = lab.role(forwarder)
        answer, _ = drain(lab, forwarder, "--alone")
        role = lab.role(forwarder)
        drain(lab, forwarder, "--undo")
        lab.wait_for("the gateway to forward again", lambda: lab.role(forwarder) == "forwarding", 10)
    finally:
        lab.start_one(other)
        lab.wait_settled(20)
    ok = (refused.returncode == 1 and "no other gateway stands by" in refused.stderr and "--alone" in refused.stderr
          and kept == "forwarding" and role == "drained")
    return {"ok": ok, "refused": refused.stderr.strip(), "role": role, "answer": answer["segments"]}


def check_upgrade(lab):
    """Both gateways are replaced, one after the other, under one connection: drained, stopped, the program exchanged, started. With
    `--older` it is another one, of another version."""
    lab.wait_settled()
    time.sleep(WARM)
    steps = []

    def act():
        begin = time.monotonic()
        for _ in range(2):
            forwarder, other = lab.wait_settled(30)
            time.sleep(WARM)
            _, seconds = drain(lab, forwarder)
            lab.programs[forwarder] = lab.dir / f"next-{forwarder}"
            lab.programs[forwarder].mkdir(exist_ok=True)
            shutil.copy2(lab.bin / "ipoib-fwd", lab.programs[forwarder])
            replace(lab, forwarder)
            steps.append({"gateway": forwarder, "drained_in": seconds, "forwards": other, "at_second": round(time.monotonic() - begin, 1)})

    result = under_traffic(lab, act, 50)
    new = all(str(lab.programs[name]) in os.readlink(f"/proc/{lab.pid(name)}/exe") for name in lab.programs)
    return {**result, "steps": steps, "ok": result["ok"] and result["lost"] == 0 and len(steps) == 2 and new}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--server"]:
            udp_server()
        case ["--client", target, seconds]:
            udp_client(target, float(seconds))
        case _:
            sys.exit(__doc__)
