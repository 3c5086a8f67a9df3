#!/usr/bin/env python3
"""Numbers to a server and back, by TCP or by UDP; each end runs in a network namespace of its own.

  echo.py tcp-server                  sends back what comes on one connection
  echo.py tcp-client HOST SECONDS     checks that all numbers come back in order; prints the longest silence
  echo.py udp-server                  sends back each datagram
  echo.py udp-client HOST SECONDS     prints how many datagrams are lost, and the longest gap

A client stops sending after SECONDS, or at SIGTERM, and then waits for numbers in flight.
"""

import json
import select
import signal
import socket
import struct
import sys
import time

TCP_PORT, UDP_PORT = 7002, 7003
# Seconds without a byte after which a TCP client gives up.
SILENCE = 120
# Maximum of numbers in flight.
WINDOW = 2000
# Seconds between two datagrams, and for the last ones to come back.
INTERVAL, LAST = 0.002, 1


class Clock:
    """Time to send: a number of seconds, or until SIGTERM."""

    def __init__(self, seconds):
        self.start = time.monotonic()
        self.end = self.start + seconds
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_):
        self.end = min(self.end, time.monotonic())

    def runs(self):
        return time.monotonic() < self.end


def tcp_server():
    server = socket.create_server(("0.0.0.0", TCP_PORT))
    print("listening", flush=True)
    conn, _ = server.accept()
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := conn.recv(65536):
        conn.sendall(data)


def tcp_client(target, seconds):
    conn = socket.create_connection((target, TCP_PORT), timeout=SILENCE)
    conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print("connected", flush=True)
    clock, last = Clock(seconds), time.monotonic()
    sent, got, longest, pending = 0, 0, 0.0, b""
    while got < sent or clock.runs():
        if clock.runs() and sent - got < WINDOW:
            conn.sendall(struct.pack("!I", sent))
            sent += 1
        readable, _, _ = select.select([conn], [], [], 0.005)
        now = time.monotonic()
        if readable:
            data = conn.recv(65536)
            if not data:
                raise SystemExit("the connection was closed")
            longest, last = max(longest, now - last), now
            pending += data
            while len(pending) >= 4:
                (number,) = struct.unpack("!I", pending[:4])
                if number != got:
                    raise SystemExit(f"{number} came instead of {got}")
                got, pending = got + 1, pending[4:]
        elif now - last > SILENCE:
            raise SystemExit(f"nothing has come for {SILENCE} s, {got} of {sent} so far")
    print(json.dumps({"sent": sent, "received": got, "longest_silence": round(longest, 3)}), flush=True)


def udp_server():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("0.0.0.0", UDP_PORT))
    print("listening", flush=True)
    while True:
        data, address = server.recvfrom(2048)
        server.sendto(data, address)


def udp_client(target, seconds):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.connect((target, UDP_PORT))
    client.setblocking(False)
    clock = Clock(seconds)
    last, sent, got, longest, at = clock.start, 0, set(), 0.0, 0.0
    while (now := time.monotonic()) < clock.end + LAST:
        if clock.runs() and now >= clock.start + sent * INTERVAL:
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
                    longest, at = now - last, last - clock.start
                last = now
        except OSError:
            # Nothing there, or an ICMP error of a datagram before.
            time.sleep(INTERVAL / 4)
    print(json.dumps({"sent": sent, "lost": sent - len(got), "longest_gap_ms": round(1000 * longest, 1), "at_second": round(at, 1)}),
          flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tcp-server"]:
            tcp_server()
        case ["tcp-client", host, duration]:
            tcp_client(host, float(duration))
        case ["udp-server"]:
            udp_server()
        case ["udp-client", host, duration]:
            udp_client(host, float(duration))
        case _:
            sys.exit(__doc__)
