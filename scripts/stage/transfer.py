"""A file over TCP, from one namespace to another; each end runs in its own.

  transfer.py receive            takes one connection and prints what came
  transfer.py send HOST FILE
"""

import hashlib
import json
import socket
import sys

FILE_PORT = 7001


def receive():
    server = socket.create_server(("0.0.0.0", FILE_PORT))
    print("listening", flush=True)
    server.settimeout(30)
    conn, _ = server.accept()
    conn.settimeout(30)
    digest, total = hashlib.sha256(), 0
    while chunk := conn.recv(1 << 20):
        digest.update(chunk)
        total += len(chunk)
    print(json.dumps({"sha256": digest.hexdigest(), "bytes": total}), flush=True)


def send(target, path):
    with socket.create_connection((target, FILE_PORT), timeout=30) as conn, open(path, "rb") as f:
        conn.sendfile(f)


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive()
    else:
        send(*sys.argv[2:])
