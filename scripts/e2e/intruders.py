"""Hostile packets from the fabric."""

import collections
import random
import socket
import struct
import time

import ibwire
from checks.frames import OFTEN, ipv4, settle
from checks.laboratory import grown
from stage.lab import ETH, ETH_IP, GW_IP, IB, IB_IP
from stage.programs import Failed
from stage.traffic import ping


def device_drops(lab):
    return lab.ctl("links").get("device_drops", {})


def check_hostile_packets(lab):
    links, table_ = lab.ctl("links"), lab.ctl("neighbours")
    gateway, host = links["infiniband"]["lid"], next(n["dlid"] for n in table_["infiniband"] if n["address"] == IB_IP)
    address = bytes.fromhex(links["infiniband"]["addresses"].split(" ")[0].replace(":", ""))
    qpn = int.from_bytes(address[1:4], "big")
    in_use, drops, device = lab.in_use(), lab.ctl("stats")["drops"], device_drops(lab)
    counters = lab.ctl("links")["link_counters"]
    intruder = ibwire.Intruder(lab.far, lab.near)
    intruder.start()
    sent = collections.Counter()
    try:
        end = time.monotonic() + 10
        while intruder.state != 4 and time.monotonic() < end:
            time.sleep(0.02)
        if intruder.state != 4:
            raise Failed(f"the intruder's port is in state {intruder.state}, LID {intruder.lid}, link "
                         f"{'up' if intruder.up else 'down'}")
        time.sleep(0.3)
        me, chance, times = intruder.lid, random.Random(2), OFTEN
        qkey = 0x0B1B

        def attack(name, make, counted=None):
            """`counted`: as what the device drops each of them; what got lost on the way is sent again."""
            before, end = device_drops(lab).get(counted, 0), time.monotonic() + 10
            while True:
                for _ in range(times):
                    intruder.send(make())
                    sent[name] += 1
                # The cable holds some of them while the fabric stands still.
                time.sleep(0.1)
                if not counted or device_drops(lab).get(counted, 0) - before >= times or time.monotonic() > end:
                    return

        def ipoib(kind=0x0800, body=b""):
            return struct.pack(">HH", kind, 0) + body

        good = ipv4(bytes(64), src="10.77.0.66", dst=ETH_IP)
        attack("random", lambda: bytes([chance.getrandbits(4) << 4]) + chance.randbytes(chance.randrange(0, 4200)))
        attack("random_small", lambda: chance.randbytes(chance.randrange(1, 40)))
        attack("bad_vcrc", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good))[:-2] + b"\xab\xcd")

        def bad_icrc():
            whole = ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good))[:-6] + b"\x01\x02\x03\x04"
            return whole + ibwire.vcrc(whole)

        attack("bad_icrc", bad_icrc, "icrc")
        attack("bad_length", lambda: (lambda w: w + ibwire.vcrc(w))(
            (lambda p: p[:4] + struct.pack(">H", chance.randrange(0, 2048)) + p[6:-2])(
                ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good)))))
        attack("wrong_pkey", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good), pkey=0x8123))
        attack("wrong_qkey", lambda: ibwire.ud(gateway, me, qpn, 5, 0x1234, ipoib(body=good)), "qkey")
        attack("no_such_qp", lambda: ibwire.ud(gateway, me, 0x7FFFFF, 5, qkey, ipoib(body=good)), "no_queue_pair")
        attack("opcode", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good), opcode=chance.randrange(256)))
        attack("truncated_ipoib", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=good)[:chance.randrange(0, 24)]))
        attack("not_ipoib", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(chance.getrandbits(16), good)))
        attack("bad_arp", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(0x0806, struct.pack(
            ">HHBBH", 32, 0x0800, 6, 4, 1) + chance.randbytes(48))))
        attack("arp_of_gateway", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(0x0806, struct.pack(
            ">HHBBH", 32, 0x0800, 20, 4, 2) + b"\0\0\0\5" + chance.randbytes(16) + socket.inet_aton(GW_IP)
            + address + socket.inet_aton(GW_IP))))
        attack("martian", lambda: ibwire.ud(gateway, me, qpn, 5, qkey, ipoib(body=ipv4(bytes(64), src=ETH_IP, dst=ETH_IP))))
        attack("rc_from_elsewhere", lambda: ibwire.finish(ibwire.lrh(gateway, me) + ibwire.bth(
            4, chance.randrange(2, 0xFFFF), psn=chance.getrandbits(24), ack=True) + ipoib(body=good)))
        attack("unknown_class", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, bytes(
            [1, chance.choice([0x05, 0x09, 0x2F, 0x42, 0xFE]), 1, 1]) + chance.randbytes(252)))
        attack("random_mad", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, chance.randbytes(256)))
        attack("short_mad", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, chance.randbytes(chance.randrange(0, 255))))
        for name, attribute in (("mra", 0x11), ("rej", 0x12), ("rep", 0x13), ("rtu", 0x14), ("dreq", 0x15),
                                ("drep", 0x16), ("lap", 0x19), ("unknown", 0x77)):
            attack(f"cm_{name}", lambda a=attribute: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, ibwire.cm(
                a, chance.randbytes(232), chance.getrandbits(64))))

        def request():
            """A REQ that is right but for its private data: none, where QPN and MTU belong."""
            body = bytearray(232)
            gid = struct.pack(">QQ", 0xFE80 << 48, intruder.guid + 1)
            struct.pack_into(">IIQQIIIIIII", body, 0, chance.getrandbits(32), 0, 0x10 << 56 | qpn, intruder.guid, 0, 0,
                             chance.getrandbits(24) << 8 | 4, 0, 0x14 << 3, chance.getrandbits(24) << 8 | 0xA0, 0xFFFF5008)
            struct.pack_into(">HHHH", body, 48, 0xFFFF, 0x5008, me, gateway)
            body[56:72], body[72:88] = gid, struct.pack(">Q", 0xFE80 << 48) + address[12:20]
            struct.pack_into(">IBBBB", body, 88, 0, 0, 0, 8, 0x98)
            return ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, ibwire.cm(0x10, bytes(body), chance.getrandbits(64)))

        attack("cm_req_without_private_data", request)
        attack("cm_req_random", lambda: ibwire.ud(gateway, me, 1, 1, ibwire.GSI_QKEY, ibwire.cm(
            0x10, chance.randbytes(232), chance.getrandbits(64))))
        # To the subnet manager and administration, and to the host.
        attack("sm_random", lambda: ibwire.ud(intruder.sm_lid, me, 0, 0, 0, bytes([1, chance.choice([1, 0x81]), 1])
                                              + chance.randbytes(253), vl=15))
        attack("sa_random", lambda: ibwire.ud(intruder.sm_lid, me, 1, 1, ibwire.GSI_QKEY, bytes([1, 3, 2])
                                              + chance.randbytes(253)))
        attack("host_random_mad", lambda: ibwire.ud(host, me, 1, 1, ibwire.GSI_QKEY, bytes([1, 7, 2, 3])
                                                    + chance.randbytes(252)))
        time.sleep(0.5)
        answers = collections.Counter()
        for packet in intruder.received:
            if len(packet) == 290 and packet[29] == 7:
                answers[f"{struct.unpack_from('>H', packet, 28 + 16)[0]:#x}"] += 1
    finally:
        intruder.close()
    # A kind of packet that leaks has leaked all that were sent of it.
    leaked, left = settle(lab, in_use)
    alive, back = ping(ETH, IB_IP, 56), ping(IB, ETH_IP, 56)
    dropped, by_device = grown(lab.ctl("stats")["drops"], drops), grown(device_drops(lab), device)
    control = grown({k: v for k, v in lab.ctl("links")["link_counters"].items() if isinstance(v, int)},
                    {k: v for k, v in counters.items() if isinstance(v, int)})
    missing = [r for r in ("icrc", "qkey", "no_queue_pair") if by_device.get(r, 0) < OFTEN]
    # Of a partition that the intruder is not in nothing comes past the switch.
    missing += [r for r in ("pkey",) if by_device.get(r, 0)]
    missing += [r for r in ("truncated", "bad-arp", "hostile-arp", "martian") if dropped.get(r, 0) < 10]
    ok = alive["ok"] and back["ok"] and not leaked and not missing
    return {"ok": ok, "sent": dict(sent), "dropped": dropped, "dropped_by_device": by_device, "not_counted": missing,
            "link_counters": control, "cm_answers": dict(answers), "ping": [alive["received"], back["received"]],
            "buffers": [in_use, left]}
