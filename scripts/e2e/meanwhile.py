#!/usr/bin/env python3
"""TCP and pings both ways while something happens: what they noticed of it."""

import json
import math
import os
import select
import socket
import struct
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.programs import Process
from stage.traffic import LATE, answered

ECHO_PORT = 7002
# Between two pings of a way.
INTERVAL = 0.05


def echo_server():
    server = socket.create_server(("0.0.0.0", ECHO_PORT))
    print("listening", flush=True)
    conn, _ = server.accept()
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := conn.recv(65536):
        conn.sendall(data)


def echo_client(target, seconds):
    """Numbers out, numbers back, on one connection for the whole time; the longest silence."""
    conn = socket.create_connection((target, ECHO_PORT), timeout=15)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("connected", flush=True)
    begin = last = time.monotonic()
    sent, got, longest, pending = 0, 0, 0.0, b""
    while got < sent or time.monotonic() - begin < seconds:
        now = time.monotonic()
        if now - begin < seconds and sent - got < 2000:
            conn.sendall(struct.pack("!I", sent))
            sent += 1
        readable, _, _ = select.select([conn], [], [], 0.005)
        if readable:
            data = conn.recv(65536)
            if not data:
                raise SystemExit("the connection was closed")
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            pending += data
            while len(pending) >= 4:
                (number,) = struct.unpack("!I", pending[:4])
                if number != got:
                    raise SystemExit(f"{number} came instead of {got}")
                got, pending = got + 1, pending[4:]
        elif now - last > 20:
            raise SystemExit(f"nothing has come for 20 s, {got} of {sent} so far")
    print(json.dumps({"sent": sent, "received": got, "longest_silence": round(longest, 3)}), flush=True)


def meanwhile(lab, act, seconds=8):
    """Runs `act` in the middle of TCP and pings both ways, which last for so many seconds at least. Well if TCP survived."""
    me = [sys.executable, os.path.abspath(__file__)]
    server = Process("echo server", [*me, "--server"], IB, lab.dir / f"echo-server-{time.monotonic_ns()}.log")
    others = []
    try:
        lab.wait_for("the echo server", lambda: "listening" in server.text(), 20)
        client = Process("echo client", [*me, "--client", IB_IP, seconds], ETH, lab.dir / f"echo-client-{time.monotonic_ns()}.log")
        others.append(client)
        count = int(seconds / INTERVAL)
        # As many answers as packets: of more packets than that only the first ones count.
        whole = math.ceil(seconds) + LATE
        pings = {way: Process(f"ping {way}", ["ping", "-n", "-i", INTERVAL, "-w", whole, "-c", count, target], netns,
                              lab.dir / f"ping-{way}-{time.monotonic_ns()}.log")
                 for way, netns, target in (("eth_to_ib", ETH, IB_IP), ("ib_to_eth", IB, ETH_IP))}
        others += pings.values()
        lab.wait_for("the connection", lambda: "connected" in client.text(), 20)
        time.sleep(1)
        act()
        code = client.popen.wait(seconds + 30)
        tcp = client.text().strip().splitlines()[-1] if client.text().strip() else ""
        result = {"tcp": json.loads(tcp) if code == 0 else tcp}
        for way, process in pings.items():
            process.popen.wait(whole + LATE)
            result[way] = {"sent": count, "lost": count - len(answered(process.text(), first=count))}
        lost = max(result[way]["lost"] for way in pings)
        return {"ok": code == 0, **result, "lost": lost, "outage": round(lost * INTERVAL, 2)}
    finally:
        for process in (*others, server):
            process.stop(1)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--server"]:
            echo_server()
        case ["--client", target, seconds]:
            echo_client(target, float(seconds))
        case _:
            sys.exit(__doc__)
