"""Packets that do not fit, packets to all, and a change of the mode under traffic."""

import re
import socket
import time

from checks.laboratory import Pings, packets, socket_in
from stage.lab import ETH, ETH_IP, IB, IB_IP
from stage.programs import run
from stage.traffic import LATE, ping, traffic


def check_too_big(lab):
    out = run("ping", "-n", "-c", 3, "-i", "0.2", "-W", 1, "-M", "do", "-s", 3000, ETH_IP, netns=IB, check=False)
    text = out.stdout + out.stderr
    told = re.search(r"mtu ?=? ?(\d+)", text)
    route = run("ip", "route", "get", ETH_IP, netns=IB).stdout
    learned = re.search(r"mtu (\d+)", route)
    answered = lab.ctl("stats")["drops"].get("too-big-answered", 0)
    ok = bool(told and told[1] == "1500" and learned and learned[1] == "1500" and answered > 0)
    run("ip", "route", "flush", "cache", netns=IB)
    return {"ok": ok, "ping_said": told[0] if told else text[-300:], "route_mtu": learned[1] if learned else None,
            "too_big_answered": answered}


def check_fragments(lab, netns, target):
    before = packets(traffic(lab), "fragmented")
    got = ping(netns, target, 60000, count=3, interval=0.1, more=("-M", "dont"))["received"]
    return {"ok": got == 3, "received": got, "of": 3, "fragmented_by_gateway": packets(traffic(lab), "fragmented") - before}


def check_to_all(from_ns, to_ns, source):
    """Subnet broadcast, limited broadcast and all-hosts multicast reach the other side."""
    took = {}
    for number, target in enumerate(("10.77.0.255", "255.255.255.255", "224.0.0.1")):
        port = 7100 + number
        receiver, sender = (socket_in(ns, socket.AF_INET, socket.SOCK_DGRAM) for ns in (to_ns, from_ns))
        with receiver, sender:
            receiver.bind(("0.0.0.0", port))
            receiver.settimeout(LATE)
            sender.bind((source, 0))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(source))
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0" if from_ns == ETH else b"ib0")
            sender.sendto(target.encode(), (target, port))
            try:
                data, (peer, _) = receiver.recvfrom(100)
                took[target] = data.decode() == target and peer == source
            except TimeoutError:
                took[target] = False
    return {"ok": all(took.values()), **took}


def check_ud_limits(lab):
    """Datagram mode: what is larger than Ethernet's MTU is answered or cut, what fits goes by UD."""
    lab.ctl("mode", "datagram")
    try:
        time.sleep(0.3)
        before = traffic(lab)
        fits = ping(ETH, IB_IP, 1472, count=5)
        back = ping(IB, ETH_IP, 1472, count=5)
        large = check_fragments(lab, IB, ETH_IP)
        after = traffic(lab)
        rc = packets(after, "ib_rc_transmit") - packets(before, "ib_rc_transmit")
        ud = packets(after, "ib_ud_unicast_transmit") - packets(before, "ib_ud_unicast_transmit")
        return {"ok": fits["ok"] and back["ok"] and large["ok"] and rc == 0 and ud >= 10, "eth_to_ib": fits["received"],
                "ib_to_eth": back["received"], "large": large, "rc_transmit": rc, "ud_transmit": ud}
    finally:
        lab.ctl("mode", "connected")


def goes_by(lab, wanted, other):
    """True if packets go by the one way and none by the other."""
    before = traffic(lab)
    time.sleep(0.1)
    after = traffic(lab)
    return packets(after, wanted) > packets(before, wanted) and packets(after, other) == packets(before, other)


def check_mode_switch(lab):
    steady = Pings(ETH, IB_IP, 0.01, lab.dir / "steady.log")
    try:
        marks = []
        for mode in (None, "datagram", "connected"):
            if mode:
                lab.ctl("mode", mode)
            # The change itself is not part of what is counted.
            ways = ("ib_ud_unicast_transmit", "ib_rc_transmit") if mode == "datagram" else ("ib_rc_transmit", "ib_ud_unicast_transmit")
            lab.wait_for(f"{mode or 'connected'} mode", lambda: goes_by(lab, *ways), 10)
            before = traffic(lab)
            time.sleep(0.9)
            after = traffic(lab)
            rc, ud = (packets(after, n) - packets(before, n) for n in ("ib_rc_transmit", "ib_ud_unicast_transmit"))
            marks.append({"mode": mode or "connected", "rc": rc, "ud": ud})
        pings = steady.end()
    finally:
        steady.stop()
    ok = (pings["lost"] <= 5 and marks[0]["rc"] > 20 and marks[0]["ud"] == 0 and marks[1]["ud"] > 20
          and marks[1]["rc"] == 0 and marks[2]["rc"] > 20 and marks[2]["ud"] == 0)
    return {"ok": ok, "lost": pings["lost"], "of": pings["sent"], "transmitted": marks}
