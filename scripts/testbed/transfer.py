"""A file over TCP from one namespace to another; each end runs in its own.

  transfer.py receive            takes one connection and prints what came
  transfer.py send HOST FILE
"""

import hashlib
import json
import socket
import sys
import time

FILE_PORT = 7001
# Seconds without a byte after which either end gives up.
SILENCE = 120


def receive():
    server = socket.create_server(("0.0.0.0", FILE_PORT))
    print("listening", flush=True)
    server.settimeout(SILENCE)
    conn, _ = server.accept()
    conn.settimeout(SILENCE)
    begin, digest, total = time.monotonic(), hashlib.sha256(), 0
    while chunk := conn.recv(1 << 20):
        digest.update(chunk)
        total += len(chunk)
    print(json.dumps({"sha256": digest.hexdigest(), "bytes": total, "seconds": round(time.monotonic() - begin, 3)}), flush=True)


def send(target, path):
    with socket.create_connection((target, FILE_PORT), timeout=SILENCE) as conn, open(path, "rb") as f:
        conn.sendfile(f)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive()
    else:
        send(*sys.argv[2:])
