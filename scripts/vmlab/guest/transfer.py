"""Transfers data by TCP with a checksum.

    transfer.py receive PORT
    transfer.py send ADDRESS PORT BYTES SEED [SECONDS]

Both ends print the SHA-256 of the data. With SECONDS the sender spreads its bytes over that time.
"""

import hashlib
import random
import socket
import sys
import time

PIECE = 1 << 14


def receive(port):
    with socket.create_server(("", port)) as server:
        server.settimeout(60)
        connection, _ = server.accept()
        connection.settimeout(60)
        digest = hashlib.sha256()
        with connection:
            while piece := connection.recv(1 << 16):
                digest.update(piece)
    return digest.hexdigest()


def send(address, port, count, seed, seconds):
    data = random.Random(seed).randbytes(count)
    begin = time.monotonic()
    with socket.create_connection((address, port), timeout=60) as connection:
        for at in range(0, count, PIECE):
            time.sleep(max(0.0, begin + seconds * at / count - time.monotonic()))
            connection.sendall(data[at : at + PIECE])
    return hashlib.sha256(data).hexdigest()


if sys.argv[1] == "receive":
    print(receive(int(sys.argv[2])))
else:
    pace = float(sys.argv[6]) if len(sys.argv) > 6 else 0.0
    print(send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), pace))
