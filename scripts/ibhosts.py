"""Many InfiniBand hosts behind one port, as far as their neighbours can tell: each has an IP address and queue pairs of its own,
answers ARP, and opens and accepts connections as Linux's ib_ipoib does. What comes by a connection is acknowledged, or not.

Written from the standard (IBA 9.7, 12.6, RFC 4391, RFC 4755) like ibwire.py, and as independent of the product's own code.
"""

import collections
import socket
import struct
import time

import ibwire

QKEY = 0x0B1B
IPV4, ARP = 0x0800, 0x0806
REQ, REJ, REP, RTU, DREQ, DREP = 0x10, 0x12, 0x13, 0x14, 0x15, 0x16
SEND_ONLY, ACKNOWLEDGE, UD_SEND_ONLY = 4, 17, 100
# Queue pairs of host n: datagrams, a connection that it accepts, one that it opens.
DATAGRAMS, ACCEPTED, OPENED, HOSTS = 0x100000, 0x200000, 0x300000, 0x100000
SERVICE = 0x10 << 56
LARGEST_MESSAGE = 65524
# The group of all hosts of the default partition, link-local scope (RFC 4391 4).
BROADCAST = bytes.fromhex("ff12401bffff000000000000ffffffff")
# Syndromes of acknowledgements (IBA table 45): all is well, without credits; receiver not ready, 0.64 ms.
ACK, RNR_NAK = 0x1F, 0x20 | 12


class Hosts(ibwire.Intruder):
    """`addresses[n]` is host n's IP address. `manners`: "take" acknowledges messages, "silent" says nothing to them, "not_ready"
    answers each that there is no receive for it, for ever."""

    def __init__(self, local, peer, guid, addresses, gateway, manners="take"):
        super().__init__(local, peer, guid)
        self.addresses, self.manners = addresses, manners
        self.gateway_lid, self.gateway = gateway
        # By host: what each connection has come to.
        self.accepted, self.opened, self.expected = {}, {}, {}
        self.known, self.messages, self.datagrams = set(), collections.Counter(), collections.Counter()
        self.acknowledged, self.rejected, self.closed = set(), collections.Counter(), 0
        self.refused_messages = 0
        # Hosts that say nothing by themselves; answers that hosts have got: (IP address, link-layer address).
        self.mute, self.answers = set(), collections.defaultdict(list)
        self.broadcast_lid = None
        # IP packets that came by connection, for whoever wants to look at them.
        self.took = lambda host, packet: None

    def hardware(self, host):
        return struct.pack(">IQQ", 0x80 << 24 | DATAGRAMS + host, 0xFE80 << 48, self.guid + 1)

    # -- out

    def datagram(self, to_qpn, from_qpn, payload, qkey=QKEY):
        self.send(ibwire.ud(self.gateway_lid, self.lid, to_qpn, from_qpn, qkey, payload))

    def manage_connection(self, attribute, body, tid):
        self.datagram(1, 1, ibwire.cm(attribute, body, tid), ibwire.GSI_QKEY)

    def arp(self, host, operation, target_hardware, target_ip):
        body = struct.pack(">HHBBH", 32, IPV4, 20, 4, operation) + self.hardware(host) + socket.inet_aton(self.addresses[host])
        return struct.pack(">HH", ARP, 0) + body + target_hardware + socket.inet_aton(target_ip)

    def ask(self, host, target):
        """Asks the gateway by unicast for an address, or claims it if it is the host's own; so it gets to know the host."""
        self.datagram(int.from_bytes(self.gateway[1:4], "big"), DATAGRAMS + host, self.arp(host, 1, bytes(20), target))

    def join(self, seconds=3):
        """Joins the broadcast group of the default partition (RFC 4391 4); false if subnet administration does not answer."""
        mad = struct.pack(">BBBBHHQHHI", 1, 3, 2, 2, 0, 0, 0x4A, 0x38, 0, 0) + bytes(24)
        # MGID, PortGID and JoinState.
        record = BROADCAST + struct.pack(">QQ", 0xFE80 << 48, self.guid + 1) + bytes(16) + b"\1"
        mad = (mad + struct.pack(">Q", 1 << 0 | 1 << 1 | 1 << 16) + record).ljust(256, b"\0")
        end = time.monotonic() + seconds
        while self.broadcast_lid is None and time.monotonic() < end:
            self.send(ibwire.ud(self.sm_lid, self.lid, 1, 1, ibwire.GSI_QKEY, mad))
            time.sleep(0.2)
        return self.broadcast_lid is not None

    def ask_all(self, host, target):
        """Asks for an address by broadcast; `join` goes before."""
        grh = struct.pack(">IHBB", 6 << 28, 0, 0x1B, 0) + struct.pack(">QQ", 0xFE80 << 48, self.guid + 1) + BROADCAST
        payload = self.arp(host, 1, bytes(20), target)
        body = bytearray(ibwire.lrh(self.broadcast_lid, self.lid, lnh=3) + grh + ibwire.bth(UD_SEND_ONLY, 0xFFFFFF)
                         + struct.pack(">II", QKEY, DATAGRAMS + host) + payload)
        struct.pack_into(">H", body, 12, len(body) - 48 + 4)
        self.send(ibwire.finish(body))

    def open(self, host):
        """Asks the gateway for a connection."""
        qpn = int.from_bytes(self.gateway[1:4], "big")
        body = bytearray(232)
        struct.pack_into(">IIQQIIIIIII", body, 0, OPENED + host, 0, SERVICE | qpn, self.guid, 0, 0, OPENED + host << 8, 0,
                         0x14 << 3, 0xA0, 0xFFFF50F0)
        struct.pack_into(">HH16s16s", body, 52, self.lid, self.gateway_lid, struct.pack(">QQ", 0xFE80 << 48, self.guid + 1),
                         self.gateway[4:])
        # Rate 10 Gb/s; ACK timeout.
        struct.pack_into(">IBBBB", body, 88, 3, 0, 0, 8, 0x98)
        struct.pack_into(">II", body, 140, DATAGRAMS + host, LARGEST_MESSAGE)
        self.manage_connection(REQ, bytes(body), OPENED + host)

    def send_ip(self, host, packet):
        """An IP packet by the connection that the host has opened; each host sends its first PSN again and again."""
        payload = struct.pack(">HH", IPV4, 0) + packet
        pad = -len(payload) % 4
        self.send(ibwire.finish(ibwire.lrh(self.gateway_lid, self.lid)
                                + ibwire.bth(SEND_ONLY, self.opened[host][0], self.opened[host][1], pad=pad, ack=True)
                                + payload + bytes(pad)))

    # -- in

    def take(self, packet):
        if packet[1] & 3 == 3:
            # Without the GRH it reads like any other.
            packet = packet[:8] + packet[48:]
        if len(packet) < 30:
            return
        opcode, qpn = packet[8], int.from_bytes(packet[13:16], "big")
        if opcode == UD_SEND_ONLY:
            source = int.from_bytes(packet[25:28], "big")
            if qpn == 1:
                self.take_mad(packet[28:-6])
            elif qpn == 0xFFFFFF:
                for host in range(len(self.addresses) if source - DATAGRAMS not in range(len(self.addresses)) else 0):
                    self.take_datagram(host, source, packet[28:-6])
            else:
                self.take_datagram(qpn - DATAGRAMS, source, packet[28:-6])
        elif opcode == ACKNOWLEDGE and packet[20] >> 5 == 0:
            self.acknowledged.add(qpn - OPENED)
        elif opcode <= SEND_ONLY:
            self.take_message(qpn - ACCEPTED, opcode, packet)

    def take_datagram(self, host, source, payload):
        if not 0 <= host < len(self.addresses):
            return
        (kind,) = struct.unpack_from(">H", payload)
        if kind == IPV4 and payload[20:24] == socket.inet_aton(self.addresses[host]):
            self.datagrams[host] += 1
            self.took(host, payload[4:])
        elif kind == ARP:
            operation, sender, sender_ip = struct.unpack_from(">H", payload, 10)[0], payload[12:32], payload[32:36]
            if operation == 2:
                self.known.add(host)
                self.answers[host].append((socket.inet_ntoa(sender_ip), sender))
            elif host not in self.mute and payload[56:60] == socket.inet_aton(self.addresses[host]):
                self.datagram(source, DATAGRAMS + host, self.arp(host, 2, sender, socket.inet_ntoa(sender_ip)))

    def take_message(self, host, opcode, packet):
        """A packet of the connection that a host has accepted."""
        if host not in self.accepted:
            return
        remote, psn = self.accepted[host], int.from_bytes(packet[17:20], "big")
        if self.manners == "silent":
            self.refused_messages += 1
            return
        syndrome, fresh = ACK, psn == self.expected[host]
        if self.manners == "not_ready":
            self.refused_messages += 1
            syndrome = RNR_NAK
        elif fresh:
            self.expected[host] = psn + 1 & 0xFFFFFF
            if opcode == SEND_ONLY:
                self.messages[host] += 1
                self.took(host, packet[24:-6])
        if packet[16] & 0x80 or syndrome != ACK:
            answer = psn if syndrome != ACK else self.expected[host] - 1 & 0xFFFFFF
            self.send(ibwire.finish(ibwire.lrh(self.gateway_lid, self.lid) + ibwire.bth(ACKNOWLEDGE, remote, answer)
                                    + struct.pack(">I", syndrome << 24 | self.messages[host] & 0xFFFFFF)))

    def take_mad(self, mad):
        if mad[1] == 3 and mad[3] == 0x81 and mad[4:6] == b"\0\0" and mad[16:18] == b"\0\x38":
            (self.broadcast_lid,) = struct.unpack_from(">H", mad, 56 + 36)
        elif mad[1] == 7:
            self.take_cm(mad)

    def take_cm(self, mad):
        tid, attribute = struct.unpack_from(">QH", mad, 8)
        body = mad[24:256]
        (sender,) = struct.unpack_from(">I", body)
        if attribute == REQ:
            host = (int.from_bytes(body[8:16], "big") & 0xFFFFFF) - DATAGRAMS
            if not 0 <= host < len(self.addresses):
                return
            if self.accepted.get(host) != int.from_bytes(body[32:35], "big"):
                self.accepted[host], self.expected[host] = int.from_bytes(body[32:35], "big"), 0
            answer = bytearray(232)
            struct.pack_into(">IIIIIIBBBBQ", answer, 0, ACCEPTED + host, sender, 0, ACCEPTED + host << 8, 0, 0, 0, 0, 15 << 3, 0xF0,
                             self.guid)
            struct.pack_into(">II", answer, 36, DATAGRAMS + host, LARGEST_MESSAGE)
            self.manage_connection(REP, bytes(answer), tid)
        elif attribute == REP:
            host = int.from_bytes(body[4:8], "big") - OPENED
            self.opened[host] = (int.from_bytes(body[12:15], "big"), int.from_bytes(body[20:23], "big"))
            self.manage_connection(RTU, struct.pack(">II", OPENED + host, sender), tid)
        elif attribute == REJ:
            self.rejected[int.from_bytes(body[10:12], "big")] += 1
        elif attribute == DREQ:
            self.closed += 1
            local = int.from_bytes(body[4:8], "big")
            self.manage_connection(DREP, struct.pack(">II", local, sender), tid)
