"""The configuration changes while the gateway runs and others' traffic goes on: segments come, go and move, routes and modes change,
and what cannot be changes nothing."""

import json
import re
import signal
import subprocess
import sys
import time

from checks.laboratory import Laboratory, Pings, Pulse, grown, in_laboratory, stopped
from checks.runtime import Follower, message
from checks.segments import SEGMENTS, Segments
from stage.lab import ETH, ETH_IP, GW_IP, IB, IB_IP, PREFIX
from stage.programs import Failed, run
from stage.traffic import ping

OFFICE, STORAGE, BACKUP = (name for name, *_ in SEGMENTS)
ETH100, IB100 = SEGMENTS[1][3:]
ETH200, IB200 = SEGMENTS[2][3:]
# Networks behind the hosts of the first segment, which are their own routers.
ETH_FAR, IB_FAR, NOBODY = "10.88.0.1", "10.99.0.1", "10.77.0.99"
TCP_PORT = 7040
# Sends for so many seconds, at a pace that leaves room for pings, or takes all there is and says how much and how long nothing came.
SENDER = "import socket,sys,time\ns=socket.create_connection((sys.argv[1],int(sys.argv[2])),10)\nend=time.time()+float(sys.argv[3])\n" \
         "n=0\nwhile time.time()<end: n+=s.send(b'\\x5a'*16384); time.sleep(.005)\ns.close()\nprint(n)"
TAKER = "import socket,sys,time\nl=socket.create_server(('0.0.0.0',int(sys.argv[1])))\nprint('ready',flush=True)\nc,_=l.accept()\n" \
        "n=worst=0\nat=time.time()\nwhile d:=c.recv(1<<18):\n assert not d.strip(b'\\x5a')\n n+=len(d); t=time.time(); " \
        "worst=max(worst,t-at); at=t\nprint(n,round(worst*1000))"


def segment(name, vlan=None, pkey=None, more=""):
    known = {n: (v, p) for n, v, p, _, _ in SEGMENTS}[name]
    vlan, pkey = vlan or known[0], pkey or known[1]
    return (f'\n[[segment]]\nname = "{name}"\npkey = {pkey:#x}\naddress = "{GW_IP}/{PREFIX}"\n'
            + (f"vlan = {vlan}\n" if vlan else "") + more)


class Reloads(Segments):
    """Three segments' hosts, of which the gateway has two segments at first."""

    def fabric_config(self):
        # The first host's interface is a TUN device: its next hop is the fabric's to know.
        text = super().fabric_config()
        return text.replace(f'name = "{OFFICE}"\nnetns', f'name = "{OFFICE}"\ngateway = "{ETH_IP}"\nnetns')

    def base(self):
        return super(Segments, self).gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "")

    def gateway_config(self):
        return self.base() + segment(OFFICE) + segment(STORAGE)

    def capture(self, _name):
        return []

    def write(self, *segments, base=None):
        (self.dir / "gateway.toml").write_text((base or self.base()) + "".join(segments))

    def reload(self, *segments, base=None):
        self.write(*segments, base=base)
        return self.ctl("reload")

    def rows(self):
        return {row["segment"]: row for row in self.ctl("links")["segments"]}

    def ready(self, *names):
        rows = self.rows()
        return set(rows) == set(names) and all(r["link"] == "up" and r.get("role") == "forwarding" for r in rows.values())

    def all_up(self):
        try:
            return self.ready(OFFICE, STORAGE)
        except Failed:
            return False

    def wait_ready(self, *names, seconds=15):
        self.wait_for(f"segments {' '.join(names)} at work", lambda: self.ready(*names), seconds)


class Traffic:
    """TCP and ping of the segment that nobody touches: nothing may be missing at the end."""

    def __init__(self, lab, seconds):
        def start(netns, *argv):
            return subprocess.Popen(["ip", "netns", "exec", netns, *map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                    text=True)

        self.taker = start(IB, sys.executable, "-c", TAKER, TCP_PORT)
        self.taker.stdout.readline()
        self.sender = start(ETH, sys.executable, "-c", SENDER, IB_IP, TCP_PORT, seconds)
        self.ping, self.pulse = Pings(IB, ETH_IP, 0.02, lab.dir / f"steady-{time.monotonic_ns()}.log"), Pulse(
            lambda: [self.sender.pid, self.taker.pid, *(p.popen.pid for p in lab.processes)])
        self.seconds = seconds

    def result(self):
        said = [p.communicate(timeout=self.seconds + 20)[0] for p in (self.sender, self.taker)]
        pings, stood = self.ping.end(), round(1000 * self.pulse.stop())
        taken = said[1].split()
        good = len(taken) == 2 and taken[0] == said[0].strip()
        # While the machine lets somebody wait that is nobody's silence.
        return {"ok": good and int(taken[1]) < 500 + stood and pings["lost"] == 0 and pings["sent"] > 10 * self.seconds,
                "tcp_bytes": said[0].strip()[-200:], "tcp_taken": taken[0] if good else said[1][-300:],
                "longest_silence_ms": int(taken[1]) if good else None, "of_the_machine_ms": stood,
                "pings": pings["sent"], "lost": pings["lost"]}

    def close(self):
        self.pulse.stop()
        self.ping.stop()
        for p in (self.taker, self.sender):
            p.kill()
            p.wait()
            p.stdout.close()


def cold_ping(lab, netns, target):
    return ping(netns, target, 56, count=1, wait=3)["ok"]


def check_add_and_remove(lab):
    """A segment comes and goes twice while another one's traffic runs; its first packets both ways are carried."""
    traffic, follower = Traffic(lab, 12), Follower(lab, "reload")
    try:
        answer = lab.reload(segment(OFFICE), segment(STORAGE), segment(BACKUP))
        lab.wait_ready(OFFICE, STORAGE, BACKUP)
        first = {"to_infiniband": cold_ping(lab, ETH200, IB_IP), "to_ethernet": cold_ping(lab, IB200, ETH_IP)}
        before = lab.ctl("stats")["drops"]
        gone = lab.reload(segment(OFFICE), segment(STORAGE))
        lost = [ping(ETH200, IB_IP, 56, count=3, wait=1)["received"], ping(IB200, ETH_IP, 56, count=3, wait=1)["received"]]
        dropped = grown(lab.ctl("stats")["drops"], before)
        lab.wait_ready(OFFICE, STORAGE)
        lab.reload(segment(OFFICE), segment(STORAGE), segment(BACKUP))
        lab.wait_ready(OFFICE, STORAGE, BACKUP)
        again = cold_ping(lab, ETH200, IB_IP)
        neighbours = ping(ETH100, IB_IP, 56)["ok"]
        others = traffic.result()
    finally:
        traffic.close()
        followed, _, _ = follower.end()
    log = lab.gateway.text()
    removed = [line for line in followed if f"  {BACKUP}  reload: removed" in line]
    wanted = f"reload: added: {BACKUP}", f"reload: removed: {BACKUP}", f"{BACKUP}: removed"
    told = len(removed) == 1 and all(line in log for line in wanted)
    ok = (answer["added"] == [BACKUP] and gone["removed"] == [BACKUP] and all(first.values()) and again and neighbours
          and lost == [0, 0] and dropped.get("vlan-unknown", 0) >= 3 and others["ok"] and told)
    return {"ok": ok, "first_packets": first, "lost_after_removal": lost, "dropped": dropped, "again": again, "untouched": others,
            "in_the_log": told, "followed": [line.partition("  ")[2] for line in followed]}


def check_move(lab):
    """The same name, in one reload, with another VLAN, then with another partition: nobody hears the segment of before."""
    lab.reload(segment(OFFICE), segment(STORAGE))
    lab.wait_ready(OFFICE, STORAGE)
    # The hosts of VLAN 200 are joined to those of the first partition. That it is given back first is waited for.
    vlan = lab.reload(segment(OFFICE), segment(STORAGE, vlan=200))
    lab.wait_ready(OFFICE, STORAGE)
    by_vlan = [cold_ping(lab, ETH200, IB_IP), cold_ping(lab, IB100, ETH_IP), ping(ETH100, IB_IP, 56, count=2, wait=1)["received"]]
    # At once, so that a partition of before is draining: VLAN 200 goes on, with the other partition.
    pkey = lab.reload(segment(OFFICE), segment(STORAGE, vlan=200, pkey=SEGMENTS[2][2]))
    lab.wait_ready(OFFICE, STORAGE)
    by_pkey = [cold_ping(lab, ETH200, IB_IP), cold_ping(lab, IB200, ETH_IP), ping(IB100, ETH_IP, 56, count=2, wait=1)["received"]]
    lab.reload(segment(OFFICE), segment(STORAGE))
    lab.wait_ready(OFFICE, STORAGE)
    back = [cold_ping(lab, ETH100, IB_IP), cold_ping(lab, IB100, ETH_IP)]
    ok = by_vlan == by_pkey == [True, True, 0] and all(back) and vlan["removed"] == [STORAGE] == pkey["removed"]
    return {"ok": ok, "by_vlan": by_vlan, "by_pkey": by_pkey, "back": back, "vlan": vlan, "pkey": pkey}


def check_while_draining(lab):
    """Reload on reload, faster than a link can close: what the last one says is what there is in the end."""
    for round_ in range(3):
        lab.reload(segment(OFFICE), segment(STORAGE), segment(BACKUP))
        # By one client: a program that starts in between may take as long as a link to close.
        answers = []
        with message(lab.dir / "control.sock") as client:
            for parts in ((segment(OFFICE), segment(STORAGE)), (segment(OFFICE), segment(STORAGE), segment(BACKUP))):
                lab.write(*parts)
                client.send(b"/reload")
                answers.append(json.loads(client.recv(1 << 20))["/reload"])
        answer, last = answers
        if round_ == 2:
            lab.reload(segment(OFFICE), segment(STORAGE))
            lab.wait_ready(OFFICE, STORAGE)
            return {"ok": last["waiting"] == [BACKUP] and answer["removed"] == [BACKUP], "last": last,
                    "storage": ping(ETH100, IB_IP, 56)["ok"]}
        lab.wait_ready(OFFICE, STORAGE, BACKUP)
        if not cold_ping(lab, ETH200, IB_IP):
            return {"ok": False, "round": round_, "rows": lab.rows()}
    return None


def check_full(lab):
    """As many segments as there may be, by one reload, all of them but two exchanged by the next, and one more refused."""
    def many(name, first):
        return "".join(f'\n[[segment]]\nname = "{name}{n}"\nvlan = {first + n}\npkey = {0x8000 + first + n:#x}\n' for n in range(126))

    traffic = Traffic(lab, 15)
    try:
        took, rows = [], []
        for parts in (many("a", 1000), many("b", 2000)):
            begin = time.monotonic()
            lab.reload(segment(OFFICE), segment(STORAGE), parts)
            took.append(round(time.monotonic() - begin, 2))
            # They wait for partitions that the fabric does not have; the places of those before have to be given back first.
            lab.wait_for("all segments", lambda: full(lab, rows), 30)
            took.append(round(time.monotonic() - begin, 2))
        names = sorted(rows[-1])
        lab.write(segment(OFFICE), segment(STORAGE), many("b", 2000), '\n[[segment]]\nvlan = 9\npkey = 0x8009\n')
        refused = lab.ask_raw("reload").stderr
        lab.reload(segment(OFFICE), segment(STORAGE))
        lab.wait_ready(OFFICE, STORAGE)
        took.append(round(time.monotonic() - begin, 2))
        others = traffic.result()
    finally:
        traffic.close()
    ok = (names == sorted([OFFICE, STORAGE, *(f"b{n}" for n in range(126))]) and others["ok"] and "129 segments" in refused)
    return {"ok": ok, "took_s": took, "refused": refused.strip(), "untouched": others}


def full(lab, rows):
    now = lab.rows()
    rows.append(now)
    return len(now) == 128 and all("vlan" in row for row in now.values())


def check_counters(lab):
    """Each segment's packets, bytes and drops are its own; a new segment under an old number begins with nothing."""
    def counted(name):
        stats = lab.ctl("stats", name)
        return {**{k: v["packets"] for k, v in stats["traffic"].items()}, "bytes": stats["traffic"]["to_infiniband"]["bytes"],
                "drops": stats["drops"], "workers": [w["to_infiniband_packets"] for w in stats["workers"]]}

    lab.reload(segment(OFFICE), segment(STORAGE))
    lab.wait_ready(OFFICE, STORAGE)
    before = {name: counted(name) for name in (OFFICE, STORAGE)}
    pings = [ping(ETH100, IB_IP, 1000, count=50)]
    run("ip", "route", "replace", "10.111.0.9/32", "via", GW_IP, netns=ETH)
    pings.append(ping(ETH, "10.111.0.9", 56, count=3, wait=1)["received"])
    after = {name: counted(name) for name in (OFFICE, STORAGE)}
    moved = {name: {k: after[name][k] - before[name][k] for k in ("to_infiniband", "to_ethernet", "bytes")} for name in after}
    drops = {name: grown(after[name]["drops"], before[name]["drops"]) for name in after}
    rows = {row["segment"]: row for row in lab.ctl("stats")["segments"]}
    lab.reload(segment(OFFICE), segment(STORAGE), segment(BACKUP))
    lab.wait_ready(OFFICE, STORAGE, BACKUP)
    ping(ETH200, IB_IP, 56, count=40)
    used = counted(BACKUP)["to_infiniband"]
    lab.reload(segment(OFFICE), segment(STORAGE))
    lab.wait_ready(OFFICE, STORAGE)
    lab.reload(segment(OFFICE), segment(STORAGE), segment(BACKUP))
    lab.wait_ready(OFFICE, STORAGE, BACKUP)
    anew = counted(BACKUP)["to_infiniband"]
    lab.reload(segment(OFFICE), segment(STORAGE))
    lab.wait_ready(OFFICE, STORAGE)
    unknown = lab.ask_raw("stats", "stroage").stderr.strip()
    word = lab.ask_raw("lniks").stderr
    one = lab.ctl("links", STORAGE)
    # Beside the pings there are ARP and the gateway's own hellos.
    right = {
        # What is late ping has asked for again.
        "storage": 50 <= moved[STORAGE]["to_infiniband"] < pings[0]["sent"] + 20
        and 50 <= moved[STORAGE]["to_ethernet"] < pings[0]["sent"] + 40
        and moved[STORAGE]["bytes"] >= 50 * 1028,
        "office": moved[OFFICE]["to_infiniband"] < 20 and moved[OFFICE]["to_ethernet"] < 40,
        "drops": drops[OFFICE].get("off-subnet") == 3 and not drops[STORAGE],
        "workers": sum(after[STORAGE]["workers"]) == after[STORAGE]["to_infiniband"],
        "rows": set(rows) == {OFFICE, STORAGE},
        "anew": used >= 40 and anew < 20,
        "unknown": "did you mean `storage`" in unknown and "lniks" in word and "links" in word,
        "one": [r["segment"] for r in one["segments"]] == [STORAGE] and "role" in one["gateway"],
    }
    return {"ok": all(right.values()), "right": right, "moved": moved, "drops": drops, "used": used, "anew": anew, "pings": pings}


def check_hangups(lab):
    """SIGHUP, twice at once, then a file that is refused: the log says so and nothing changes."""
    lab.write(segment(OFFICE), segment(STORAGE), segment(BACKUP))
    before = lab.ctl("stats")["reloads"]
    for _ in range(2):
        hang_up(lab)
    lab.wait_ready(OFFICE, STORAGE, BACKUP)
    refusals = lambda: [line for line in lab.gateway.text().splitlines() if "the configuration stays as it was" in line]
    so_far = len(refusals())
    lab.write(segment(OFFICE), "[[segment]\n")
    hang_up(lab)
    lab.wait_for("the log to tell", lambda: len(refusals()) > so_far, 15)
    line = refusals()[so_far]
    stays = lab.ready(OFFICE, STORAGE, BACKUP)
    lab.reload(segment(OFFICE), segment(STORAGE))
    lab.wait_ready(OFFICE, STORAGE)
    more = grown(lab.ctl("stats")["reloads"], before)
    return {"ok": stays and "gateway.toml:" in line and more["refused"] == 1 and 2 <= more["done"] <= 3, "said": line, "reloads": more}


def hang_up(lab):
    # The program is the child of `ip netns exec`, which has become it.
    lab.gateway.popen.send_signal(signal.SIGHUP)


def check_route(lab):
    """A route added, changed and taken away, both directions, by packets of hosts behind the two first ones."""
    # Who asks with an address of elsewhere for a router is not answered: the two know each other before.
    for netns, address, other, router in ((ETH, ETH_FAR, IB_FAR, IB_IP), (IB, IB_FAR, ETH_FAR, ETH_IP)):
        cold_ping(lab, netns, router)
        run("ip", "addr", "replace", f"{address}/32", "dev", "lo", netns=netns)
        run("ip", "route", "replace", f"{other}/32", "via", router, netns=netns)

    def through(seconds=1):
        return [run("ping", "-n", "-q", "-c", 2, "-i", "0.2", "-W", seconds, "-I", own, far, netns=netns, check=False).returncode == 0
                for netns, own, far in ((ETH, ETH_FAR, IB_FAR), (IB, IB_FAR, ETH_FAR))]

    def routes(to_eth, to_ib):
        return (f'[[segment.route]]\nto = "10.88.0.0/24"\nvia = "{to_eth}"\n'
                f'[[segment.route]]\nto = "10.99.0.0/24"\nvia = "{to_ib}"\n')

    before = lab.ctl("stats")["drops"]
    result = {"without": through()}
    dropped = grown(lab.ctl("stats")["drops"], before)
    answer = lab.reload(segment(OFFICE, more=routes(ETH_IP, IB_IP)), segment(STORAGE))
    result["with"] = through(10)
    lab.reload(segment(OFFICE, more=routes(ETH_IP, NOBODY)), segment(STORAGE))
    result["to_nobody"] = through()
    lab.reload(segment(OFFICE, more=routes(ETH_IP, IB_IP)), segment(STORAGE))
    result["back"] = through(10)
    lab.reload(segment(OFFICE), segment(STORAGE))
    result["gone"] = through()
    no, yes = [False, False], [True, True]
    ok = [result[k] for k in ("without", "with", "to_nobody", "back", "gone")] == [no, yes, no, yes, no]
    return {"ok": ok and dropped.get("off-subnet", 0) >= 2 and answer["changed"] == [OFFICE], "dropped": dropped, **result}


def check_live(lab):
    """Mode, priority and MTU of one segment, and what the whole gateway has: log, idle policy, statistics."""
    base = lab.base().replace('idle = "sleep"', 'idle = "poll"\nlog = "error"\nstats-seconds = 1\n').replace(
        "[infiniband]\n", "[infiniband]\nreceive-mtu = 9000\nneighbour-idle-seconds = 30\nretry-count = 1\n", 1)
    more = 'mode = "datagram"\npriority = 7\nmtu = 1400\n'
    begin = cpu(lab)
    time.sleep(1.5)
    before, told = cpu(lab), lab.gateway.text().count(" INFO reload: ")
    answer = lab.reload(segment(OFFICE), segment(STORAGE, more=more), base=base)
    time.sleep(1.5)
    after = cpu(lab)
    links = lab.ctl("links")
    rows = {row["segment"]: row for row in links["segments"]}
    big = run("ping", "-n", "-c", 1, "-W", 5, "-M", "do", "-s", 1450, ETH_IP, netns=IB100, check=False).stdout
    result = {"answer": answer, "modes": [rows[OFFICE]["mode"], rows[STORAGE]["mode"]],
              "cpu": [round(before - begin, 2), round(after - before, 2)],
              "rates": sum(l.startswith("to IB: RC ") for l in lab.gateway.text().splitlines()),
              "silent": lab.gateway.text().count(" INFO reload: ") == told, "too_big": "mtu" in big.lower() or "needed" in big.lower(),
              "pings": ping(ETH100, IB_IP, 56)["ok"] and ping(IB, ETH_IP, 1400)["ok"]}
    back = lab.reload(segment(OFFICE), segment(STORAGE), base=lab.base().replace(
        "[infiniband]\n", "[infiniband]\nreceive-mtu = 9000\n", 1))
    shrunk = lab.ask_fails()
    lab.write(segment(OFFICE), segment(STORAGE), base=lab.base().replace("[infiniband]\n", "[infiniband]\nreceive-mtu = 9000\n", 1))
    ok = (result["modes"] == ["connected", "datagram"] and result["cpu"][1] > 2 * result["cpu"][0] and result["rates"] >= 1
          and result["silent"] and lab.gateway.text().count(" INFO reload: ") == told + 1
          and result["too_big"] and result["pings"] and answer["changed"] == [STORAGE] and len(answer["keys"]) == 6
          and "smaller only" in shrunk and len(back["keys"]) == 5)
    return {"ok": ok, **result, "larger_again": shrunk}


def cpu(lab):
    """Seconds that the gateway has computed."""
    fields = open(f"/proc/{lab.gateway.popen.pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def refusals(lab):
    """What a reload must refuse: name, the segments and the rest, what the answer has to say."""
    office, storage = segment(OFFICE), segment(STORAGE)

    def line(text, what):
        """The line of the last place of `what` in a file."""
        return text[:text.rindex(what)].count("\n") + 1

    for name, base, parts, at, words in (
        ("segment_twice", None, (office, storage, storage.replace("100", "101").replace("0x8064", "0x8065")), 'name = "storage"',
         ("two segments are called `storage`", "another name")),
        ("vlan_twice", None, (office, storage, segment(BACKUP, vlan=100)), "vlan = 100", ("VLAN 100", "another vlan")),
        ("pkey_twice", None, (office, storage, segment(BACKUP, pkey=0x8064)), "pkey = 0x8064",
         ("already that of `storage`", "another pkey")),
        ("limited_pkey", None, (office, storage, segment(BACKUP, pkey=0x00C8)), "pkey = 0xc8", ("limited", "write 0x80c8")),
        ("no_port", None, (office, storage, segment(BACKUP, more="port = 2\n")), "port = 2", ("no port 2", "count from 1")),
        ("other_ethernet", None, (office.replace("pkey", 'ethernet = "net_null7"\npkey'),
                                  storage.replace("pkey", 'ethernet = "net_null7"\npkey')), 'ethernet = "net_null7"\npkey = 0xffff',
         ("net_null7", "restart needed")),
        ("route_nowhere", None, (office, segment(STORAGE, more='[[segment.route]]\nto = "0.0.0.0/0"\nvia = "10.1.1.1"\n')),
         'via = "10.1.1.1"', ("leads nowhere", r"10\.77\.0\.0/24")),
        ("syntax", None, (office, storage, "[[segment]\n"), "[[segment]\n", ()),
        ("unknown_key", None, (office, storage + "colour = 3\n"), "colour", ("unknown key `colour`",)),
        ("restart", lab.base().replace('idle = "sleep"', 'idle = "sleep"\nhello-ms = 70'), (office, storage), "hello-ms",
         ("gateway.hello-ms cannot change while the gateway runs", "restart needed")),
        ("queues", lab.base().replace("[infiniband]\n", "[infiniband]\nsrq-depth = 64\n", 1), (office, storage), "srq-depth",
         ("infiniband.srq-depth cannot change", "restart needed")),
    ):
        text = (base or lab.base()) + "".join(parts)
        yield name, text, (rf"gateway\.toml:{line(text, at)}:", *words)
    yield "no_file", None, (r"gateway\.toml: cannot be read", "--config")


def check_refused(lab, text, words):
    """Answered by ctl with code 1 and one line that has all the words; everything is as it was."""
    path = lab.dir / "gateway.toml"
    before = {n: (r.get("vlan"), r["pkey"], r["mode"]) for n, r in lab.rows().items()}
    good = path.read_text()
    path.unlink() if text is None else path.write_text(text)
    out = lab.ask_raw("reload")
    path.write_text(good)
    said = out.stderr.strip()
    after = {n: (r.get("vlan"), r["pkey"], r["mode"]) for n, r in lab.rows().items()}
    again = lab.ctl("reload")
    untouched = not any(again[k] for k in ("added", "removed", "changed", "keys", "waiting"))
    logged = said.removeprefix("ipoib-fwd: ") in lab.gateway.text()
    pings = ping(ETH100, IB_IP, 56, count=3)
    ok = (out.returncode == 1 and len(said.splitlines()) == 1 and all(re.search(w, said) for w in words) and before == after
          and untouched and logged and pings["ok"])
    more = {"before": before, "after": after, "again": again, "logged": logged, "pings": pings, "drops": lab.ctl("stats")["drops"]}
    return {"ok": ok, "exit_code": out.returncode, "said": said, **({} if ok else more)}


class Narrow(Laboratory):
    """A fabric whose groups take less than the Ethernet side sends."""

    def __init__(self, args):
        super().__init__(args, intruder=False)

    def fabric_config(self):
        return super().fabric_config().replace("mtu = 4096", "mtu = 1024", 1)


def check_mtu(lab):
    """A segment whose Ethernet side may send more than a datagram takes is warned of, at the start and by a reload."""
    def warned():
        return [l for l in lab.gateway.text().splitlines() if "WARN" in l and " is more than the 1020 bytes" in l]

    lab.wait_for("the warning", lambda: len(warned()) == 1, 5)
    path, text = lab.dir / "gateway.toml", lab.gateway_config()
    for mtu, lines in ((1020, 1), (1400, 2), (1000, 2)):
        path.write_text(text + f'[[segment]]\nname = "default"\naddress = "{GW_IP}/{PREFIX}"\nmtu = {mtu}\n')
        path.write_text(path.read_text().replace(f'address = "{GW_IP}/{PREFIX}"\n', "", 1))
        changed = lab.ctl("reload")["changed"]
        if len(warned()) != lines or changed != ["default"]:
            return {"ok": False, "mtu": mtu, "changed": changed, "warned": warned()}
    return {"ok": "mtu = 1400" in warned()[1], "warned": warned()}


def reload(args, checks):
    in_laboratory(Narrow, args, checks, (("reload_mtu_warning", check_mtu),))
    changes(args, checks)


def changes(args, checks):
    if not checks.wanted_of("reload"):
        return
    lab = Reloads(args)

    def ask_raw(*words):
        return run(lab.bin / "ipoib-fwd", "ctl", "--socket", lab.dir / "control.sock", *words, check=False, timeout=30)

    def ask_fails():
        lab.write(segment(OFFICE), segment(STORAGE))
        return ask_raw("reload").stderr

    lab.ask_raw, lab.ask_fails = ask_raw, ask_fails
    try:
        lab.up()
        for name, body in (
            ("reload_add_and_remove", lambda: check_add_and_remove(lab)),
            ("reload_move", lambda: check_move(lab)),
            ("reload_while_draining", lambda: check_while_draining(lab)),
            ("reload_counters", lambda: check_counters(lab)),
            ("reload_full", lambda: check_full(lab)),
            ("reload_hangups", lambda: check_hangups(lab)),
            ("reload_route", lambda: check_route(lab)),
        ):
            checks.run(name, body, lab)
        lab.reload(segment(OFFICE), segment(STORAGE))
        lab.wait_ready(OFFICE, STORAGE)
        for name, text, words in refusals(lab):
            checks.run(f"reload_refused_{name}", lambda: check_refused(lab, text, words), lab)
        checks.run("reload_live_keys", lambda: check_live(lab), lab)
        print(json.dumps(lab.ctl("links")["segments"], indent=1), flush=True)
        checks.run("reload_stop_no_leak", lambda: stopped(lab))
    except Failed:
        lab.say_last_words()
        raise
    finally:
        lab.close()
