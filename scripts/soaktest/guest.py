"""A minimal guest of a `softhca`, without a virtual machine.

A monitor attaches the device by vfio-user. A driver with one datagram queue pair is an IPoIB host that
answers ARP and ping.

The layouts are those of pmd/connectx/pci/tests/guest, which tests them with every command.
"""

import contextlib
import mmap
import os
import socket
import struct

from testbed.frames import checksum

MEMORY, REGISTERS, SPACE = 1 << 20, 0, 7
VERSION, MAP, READ, WRITE = 1, 2, 9, 10
NO_REPLY = 0x10
# Layout of the guest's memory: command queue, mailboxes, rings, records of a queue pair, message buffers.
QUEUE, INPUT, OUTPUT, EVENTS, COMPLETIONS, RECORD, PAIR, PAIR_RECORD = (0x1000 * n for n in (1, 2, 8, 16, 17, 19, 20, 22))
RECEIVED, SENT = 0x40000, 0x80000
RECEIVES, ENTRIES, BUFFER = 64, 128, 2048
# The first doorbell page that a driver allocates, and its offset.
UAR = 0x10
PAGE = UAR * 4096
QKEY, IPV4, ARP, ICMP = 0x0B1B, 0x0800, 0x0806, 1
ENABLE, QUERY_PORT, ALLOC_UAR = 0x104, 0x762, 0x802
CREATE_KEY, CREATE_EQ, CREATE_CQ, CREATE_QP = 0x200, 0x301, 0x400, 0x500
TRANSITIONS = (0x502, 0x503, 0x504)
ACTIVE, SEND = 4, 0x0A


class Gone(Exception):
    """The device is absent or has disappeared."""


class Guest:
    """An attached device. Every call raises `Gone` if the device has disappeared."""

    def __init__(self, path, ip):
        self.ip, self.id, self.received, self.posted, self.taken = socket.inet_aton(ip), 0, 0, 0, 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(5)
        self.file = os.memfd_create("guest")
        os.ftruncate(self.file, MEMORY)
        self.memory = mmap.mmap(self.file, MEMORY)
        try:
            self.socket.connect(str(path))
            self.attach()
            self.drive()
        except (Gone, OSError) as error:
            self.close()
            raise Gone(str(error)) from None

    def close(self):
        self.socket.close()
        with contextlib.suppress(OSError):
            os.close(self.file)

    # -- the monitor

    def send_message(self, command, body, flags=0, files=()):
        self.id = self.id + 1 & 0xFFFF
        socket.send_fds(self.socket, [struct.pack("<HHIII", self.id, command, 16 + len(body), flags, 0) + body], files)

    def take(self, length):
        data = b""
        while len(data) < length:
            data += (more := self.socket.recv(length - len(data)))
            if not more:
                raise Gone("the device has closed the connection")
        return data

    def request(self, command, body, files=()):
        self.send_message(command, body, files=files)
        _, _, size, _, error = struct.unpack("<HHIII", self.take(16))
        if error:
            raise Gone(f"message {command}: error {error}")
        return self.take(size - 16)

    def write(self, offset, data, region=REGISTERS):
        self.send_message(WRITE, struct.pack("<QII", offset, region, len(data)) + data, NO_REPLY)

    def attach(self):
        self.request(VERSION, struct.pack("<HH", 0, 3))
        self.request(MAP, struct.pack("<IIQQQ", 32, 3, 0, 0, MEMORY), [self.file])
        identity = self.request(READ, struct.pack("<QII", 0, SPACE, 4))[16:]
        if identity[:2] != b"\xb3\x15":
            raise Gone(f"not a ConnectX: {identity.hex()}")
        # Memory space and bus master.
        self.write(4, b"\x06\x00", SPACE)

    # -- the driver

    def put(self, at, data):
        self.memory[at:at + len(data)] = data

    def command(self, opcode, number=0, context=b"", room=16):
        """Executes a command; returns its output."""
        data = (struct.pack(">HHHHII", opcode, 0, 0, 0, number, 0) + context).ljust(16, b"\0")
        entry = bytearray(64)
        struct.pack_into(">B3xIQ", entry, 0, 7, len(data), INPUT)
        entry[16:32] = data[:16]
        struct.pack_into(">QIB2xB", entry, 48, OUTPUT, room, 0x5A, 1)
        for at, text, length in ((INPUT, data[16:], len(data)), (OUTPUT, b"", room)):
            for n in range(-(-max(length - 16, 0) // 512)):
                box = bytearray(576)
                piece = text[512 * n:512 * n + 512]
                box[:len(piece)] = piece
                struct.pack_into(">QIxB", box, 0x230, at + 1024 * (n + 1), n, 0x5A)
                self.put(at + 1024 * n, bytes(box))
        self.put(QUEUE, bytes(entry))
        self.write(0x18, struct.pack(">I", 1))
        # The device serves messages in order: the reply to this one means that the command is done.
        self.request(READ, struct.pack("<QII", 0, SPACE, 4))
        done = self.memory[QUEUE:QUEUE + 64]
        output = done[32:48] + b"".join(self.memory[OUTPUT + 1024 * n:OUTPUT + 1024 * n + 512] for n in range(-(-max(room - 16, 0) // 512)))
        if done[63] or output[0]:
            raise Gone(f"command {opcode:#x}: delivery {done[63]:#x}, status {output[0]:#x}")
        return output[:max(room, 16)]

    def make(self, opcode, context=b"", pages=()):
        """Creates an object; returns its number."""
        if pages:
            context = context.ljust(0x100, b"\0") + struct.pack(f">{len(pages)}Q", *pages)
        return struct.unpack_from(">I", self.command(opcode, context=context), 8)[0]

    def drive(self):
        """Initialises a device after reset, up to a queue pair in RTS."""
        self.write(0x10, struct.pack(">I", 0))
        self.write(0x14, struct.pack(">I", QUEUE))
        self.command(ENABLE)
        self.make(ALLOC_UAR)
        for n in range(64):
            self.put(EVENTS + 64 * n + 63, b"\x01")
        for n in range(ENTRIES):
            self.put(COMPLETIONS + 64 * n + 63, b"\xf0")
        context = bytearray(0x100)
        struct.pack_into(">I", context, 0x0C, 6 << 24 | UAR)
        struct.pack_into(">Q", context, 0x48, 0xFFFF_FFFF_FFFF_FBFE)
        events = self.make(CREATE_EQ, bytes(context), [EVENTS])
        context = bytearray(0x100)
        struct.pack_into(">I", context, 0x0C, 7 << 24 | UAR)
        struct.pack_into(">I", context, 0x14, events)
        struct.pack_into(">Q", context, 0x38, RECORD)
        completions = self.make(CREATE_CQ, bytes(context), [COMPLETIONS, COMPLETIONS + 0x1000])
        context = bytearray(0x100)
        # A memory key for the whole memory.
        context[2], context[7], context[12] = 0x0C, 3, 0x80
        self.key = self.make(CREATE_KEY, bytes(context)) << 8 | 3
        context = bytearray(0x100)
        pair = memoryview(context)[8:]
        pair[1], pair[9], pair[10] = 2, 6 << 3 | 1, 6 << 3
        struct.pack_into(">I", pair, 0x0C, UAR)
        struct.pack_into(">I", pair, 0x7C, completions)
        struct.pack_into(">I", pair, 0x9C, completions)
        struct.pack_into(">Q", pair, 0xA0, PAIR_RECORD)
        self.qpn = self.make(CREATE_QP, bytes(context), [PAIR, PAIR + 0x1000])
        for opcode in TRANSITIONS:
            context = bytearray(0x100)
            struct.pack_into(">I", context, 8 + 0xA8, QKEY)
            context[8 + 8], context[8 + 0x18 + 0x25] = 4 << 5, 1 if opcode == TRANSITIONS[0] else 0
            self.command(opcode, self.qpn, bytes(context))
        for _ in range(RECEIVES):
            self.receive()

    def port(self):
        """Returns the state and the GUID of the port."""
        context = self.command(QUERY_PORT, room=0x210)[16:]
        return context[0x23] >> 4, context[0x30:0x38]

    def receive(self):
        n = self.received % RECEIVES
        self.put(PAIR + 32 * n, struct.pack(">IIQIIQ", BUFFER, self.key, RECEIVED + BUFFER * n, 0, 0x100, 0))
        self.received += 1
        self.put(PAIR_RECORD, struct.pack(">I", self.received & 0xFFFF))

    def send(self, lid, qpn, message):
        """Sends a datagram. Its WQE (control, address and data segments) takes two blocks.

        The send ring follows 2,048 bytes of receive ring.
        """
        n = self.posted // 2 % 32
        self.put(SENT + BUFFER * n, message)
        address = struct.pack(">IIIxxH", QKEY, 0, qpn | 1 << 31, lid).ljust(48, b"\0")
        request = (struct.pack(">IIII", (self.posted & 0xFFFF) << 8 | SEND, self.qpn << 8 | 5, 8, 0) + address
                   + struct.pack(">IIQ", len(message), self.key, SENT + BUFFER * n))
        for block in range(2):
            self.put(PAIR + 2048 + (self.posted + block) % 64 * 64, request[64 * block:64 * block + 64])
        self.posted += 2
        self.put(PAIR_RECORD + 4, struct.pack(">I", self.posted & 0xFFFF))
        self.write(PAGE + 0x800, request[:8])

    def poll(self):
        """Returns the received messages."""
        came = []
        while True:
            at = COMPLETIONS + self.taken % ENTRIES * 64
            entry = self.memory[at:at + 64]
            if entry[63] >> 4 == 15 or entry[63] & 1 != self.taken // ENTRIES % 2:
                return came
            self.taken += 1
            self.put(RECORD, struct.pack(">I", self.taken & 0xFFFFFF))
            if entry[63] >> 4 == 2:
                n = struct.unpack_from(">H", entry, 60)[0] % RECEIVES
                length = struct.unpack_from(">I", entry, 44)[0]
                # The message follows the space for a GRH.
                came.append(self.memory[RECEIVED + BUFFER * n + 40:RECEIVED + BUFFER * n + length])
                self.receive()

    # -- the host

    def hardware(self, guid):
        return struct.pack(">I", self.qpn) + struct.pack(">Q", 0xFE80 << 48) + guid

    def arp(self, operation, guid, target, target_ip):
        body = struct.pack(">HHBBH", 32, IPV4, 20, 4, operation) + self.hardware(guid) + self.ip + target + target_ip
        return struct.pack(">HH", ARP, 0) + body

    def greet(self, lid, gateway, target):
        """Sends an ARP request for another host to the gateway, which thus learns this host.

        `lid` and `gateway` are the LID and the link-layer address of the gateway.
        Returns false if the port is not active yet.
        """
        state, guid = self.port()
        if state == ACTIVE:
            request = self.arp(1, guid, bytes(20), socket.inet_aton(target))
            self.send(lid, int.from_bytes(gateway[1:4], "big"), request)
        return state == ACTIVE

    def serve(self, lid, gateway):
        """Answers the received ARP and ping requests."""
        for message in self.poll():
            (kind,) = struct.unpack_from(">H", message)
            if kind == ARP and message[10:12] == b"\0\1" and message[56:60] == self.ip:
                sender, answer = message[12:32], self.arp(2, self.port()[1], message[12:32], message[32:36])
                self.send(lid, int.from_bytes(sender[1:4], "big"), answer)
            elif kind == IPV4 and message[13] == ICMP and message[20:24] == self.ip and message[24] == 8:
                packet = message[4:4 + int.from_bytes(message[6:8], "big")]
                reply = b"\0\0\0\0" + packet[24:]
                reply = reply[:2] + struct.pack(">H", checksum(reply + bytes(len(reply) % 2))) + reply[4:]
                self.send(lid, int.from_bytes(gateway[1:4], "big"), message[:4] + packet[:12] + packet[16:20] + packet[12:16] + reply)
