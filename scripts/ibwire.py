"""InfiniBand on the wire, as little of it as a test needs: checks of captured packets, and a port that misbehaves.

Written from the standard and independent of the product's own code, so that the two check each other.
"""

import random
import socket
import struct
import threading
import time
import zlib


def _vcrc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ 0xD008 if n & 1 else n >> 1
        table.append(n)
    return table


VCRC_TABLE = _vcrc_table()


def vcrc(data):
    """CRC-16 over LRH to ICRC (IBA 7.8.2), as it goes on the wire."""
    crc, table = 0xFFFF, VCRC_TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return struct.pack("<H", crc ^ 0xFFFF)


def icrc(packet):
    """CRC-32 over what no switch may change (IBA 7.8.1); `packet` is LRH to the end of the payload."""
    masked = bytearray(packet)
    if packet[1] & 3 == 3:
        masked[0:8] = b"\xff" * 8
        masked[8] |= 0x0F
        masked[9:12] = b"\xff" * 3
        masked[15] = 0xFF
        masked[8 + 40 + 4] = 0xFF
    else:
        masked[0] |= 0xF0
        masked[8 + 4] = 0xFF
    return struct.pack("<I", zlib.crc32(masked))


def lrh(dlid, slid, vl=0, sl=0, lnh=2, words=0):
    return struct.pack(">BBHHH", vl << 4, sl << 4 | lnh, dlid, words, slid)


def bth(opcode, dest_qpn, psn=0, pkey=0xFFFF, pad=0, ack=False):
    return struct.pack(">BBHII", opcode, 0x40 | pad << 4, pkey, dest_qpn, (0x80000000 if ack else 0) | psn)


def finish(body):
    """Length and both CRCs for LRH, headers and payload."""
    body = bytearray(body)
    struct.pack_into(">H", body, 4, (len(body) + 4) // 4)
    whole = bytes(body) + icrc(body)
    return whole + vcrc(whole)


def ud(dlid, slid, dest_qpn, src_qpn, qkey, payload, vl=0, pkey=0xFFFF, opcode=100):
    pad = -len(payload) % 4
    return finish(lrh(dlid, slid, vl) + bth(opcode, dest_qpn, pkey=pkey, pad=pad)
                  + struct.pack(">II", qkey, src_qpn) + payload + bytes(pad))


GSI_QKEY = 0x80010000


def cm(attribute, body, tid=0):
    """A datagram of communication management (IBA 12.6)."""
    return (struct.pack(">BBBBHHQHHI", 1, 7, 2, 3, 0, 0, tid, attribute, 0, 0) + body).ljust(256, b"\0")


def read_erf(path):
    """The InfiniBand packets of a capture: (seconds, LRH to VCRC)."""
    data = open(path, "rb").read()
    magic, _, _, _, _, _, link = struct.unpack_from("<IHHiIII", data)
    assert magic == 0xA1B23C4D and link == 197, "not pcap in nanoseconds with ERF records"
    at, packets = 24, []
    while at + 16 <= len(data):
        seconds, nanos, length, _ = struct.unpack_from("<IIII", data, at)
        record = data[at + 16:at + 16 + length]
        at += 16 + length
        if len(record) < 16 or record[8] & 0x7F != 21:
            raise ValueError("a record that is no InfiniBand packet")
        (wire,) = struct.unpack_from(">H", record, 14)
        packets.append((seconds + nanos * 1e-9, record[16:16 + wire]))
    return packets


class Intruder(threading.Thread):
    """A port at the far end of a UDP link: answers subnet management well enough to become ACTIVE, then sends whatever
    it is told to."""

    MAGIC = b"\xffIBLINK\x01"

    def __init__(self, local, peer, guid=0x02_00_00_00_00_00_BA_D0):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # SO_RCVBUFFORCE: what a burst brings waits until the thread has its turn.
        self.socket.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
        self.socket.bind(local)
        self.socket.settimeout(0.02)
        self.peer, self.session, self.heard = peer, random.getrandbits(63) | 1, 0
        self.lid, self.sm_lid, self.state, self.port_info = 0, 0, 2, None
        self.guid = guid
        self.received, self.stopping, self.up = [], False, False

    # -- the link

    def hello(self, bye=False):
        try:
            self.socket.sendto(self.MAGIC + struct.pack(">QQB", self.session, self.heard, bye), self.peer)
        except OSError:
            pass

    def send(self, packet):
        try:
            self.socket.sendto(packet, self.peer)
        except OSError:
            pass

    def run(self):
        due = 0
        while not self.stopping:
            now = time.monotonic()
            if now >= due:
                self.hello()
                due = now + 0.1
            try:
                packet = self.socket.recv(8192)
            except OSError:
                continue
            if packet.startswith(self.MAGIC) and len(packet) == 25:
                session, heard, bye = struct.unpack(">QQB", packet[8:])
                fresh = session != self.heard
                self.heard, self.up = (0, False) if bye else (session, heard == self.session)
                if fresh and not bye:
                    self.hello()
            elif len(packet) >= 290 and packet[0] >> 4 == 15:
                self.manage(packet)
            else:
                self.take(packet)

    def take(self, packet):
        """What is not management of the subnet."""
        if len(self.received) < 10000:
            self.received.append(packet)

    def wait_active(self, seconds=10):
        """Until the subnet manager has brought the port up; false if it does not."""
        end = time.monotonic() + seconds
        while self.state != 4 and time.monotonic() < end:
            time.sleep(0.02)
        return self.state == 4

    def close(self):
        self.stopping = True
        self.join(2)
        self.hello(bye=True)
        self.socket.close()

    # -- subnet management

    def manage(self, packet):
        """Answers a Get or Set (IBA 14.2)."""
        mad = bytearray(packet[28:28 + 256])
        _, klass, _, method, _, pointer, count, _, attribute, _, modifier = struct.unpack_from(">BBBBHBBQHHI", mad)
        if klass not in (0x01, 0x81) or method not in (1, 2):
            return
        directed, status = klass == 0x81, 0
        if directed:
            mad[192 + pointer] = 1
            mad[6] = pointer  # arrived: one behind the last hop, and one back at once
        data = bytearray(64)
        if attribute == 0x11:
            struct.pack_into(">BBBBQQQHHIB3s", data, 0, 1, 1, 1, 1, self.guid, self.guid, self.guid + 1, 32, 0x1017,
                             0, 1, b"\x00\x02\xc9")
        elif attribute == 0x10:
            data[:8] = b"intruder"
        elif attribute == 0x15:
            self.set_port(mad[64:128] if method == 2 else None)
            data[:] = self.port_info
        elif attribute in (0x16, 0x14):
            data[:] = mad[64:128]
            if method == 1:
                data[:] = bytes(64)
                if attribute == 0x16:
                    data[0:2] = b"\xff\xff"
                else:
                    struct.pack_into(">Q", data, 0, self.guid + 1)
        else:
            status = 0x0C
        mad[3] = 0x81
        struct.pack_into(">H", mad, 4, status | (0x8000 if directed else 0))
        mad[64:128] = data
        dlid, slid = struct.unpack_from(">H", packet, 6)[0], struct.unpack_from(">H", packet, 2)[0]
        if directed:
            dlid = slid = 0xFFFF
        self.send(ud(dlid, slid, 0, 0, 0, bytes(mad), vl=15))

    def set_port(self, want):
        if self.port_info is None:
            info = bytearray(64)
            struct.pack_into(">Q", info, 8, 0xFE80 << 48)
            struct.pack_into(">I", info, 20, 1 << 16)
            info[28] = 1
            info[29], info[30], info[31] = 3, 3, 2
            self.port_info = info
            info[32] = 7 << 4 | self.state
            info[33] = 5 << 4 | 2
            info[35] = 4 << 4 | 7
            info[36] = 5 << 4
            info[37] = 1 << 4
            info[41] = 5
            info[43] = 1 << 4
            info[50] = 8
        if want is not None:
            info = self.port_info
            info[0:20] = want[0:20]
            self.lid, self.sm_lid = struct.unpack_from(">HH", want, 16)
            if want[32] & 15:
                self.state = want[32] & 15
            info[36] = want[36]
        self.port_info[32] = 7 << 4 | self.state


def intruder_pair():
    """An intruder's local address and a free one for the other end, of ports that the kernel gives to nobody by itself."""
    socks = []
    while len(socks) < 2:
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            s.bind(("127.0.0.1", random.randrange(20000, 30000)))
            socks.append(s)
        except OSError:
            s.close()
    names = [s.getsockname() for s in socks]
    for s in socks:
        s.close()
    return names
