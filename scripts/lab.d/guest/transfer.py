"""One TCP transfer with a checksum: `transfer.py receive PORT`, then `transfer.py send ADDRESS PORT BYTES SEED`. Both print
the SHA-256 of what went by."""

import hashlib
import random
import socket
import sys


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


def send(address, port, count, seed):
    data = random.Random(seed).randbytes(count)
    with socket.create_connection((address, port), timeout=30) as connection:
        connection.sendall(data)
    return hashlib.sha256(data).hexdigest()


if sys.argv[1] == "receive":
    print(receive(int(sys.argv[2])))
else:
    print(send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
