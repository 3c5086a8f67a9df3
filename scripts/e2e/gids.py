"""GID tables: listed, shared, followed; and a subnet that gets another prefix under traffic."""

import ipaddress
import json
import re
import signal
import subprocess
import time

from checks.deaths import recovered
from stage.lab import ETH, IB_IP
from stage.programs import Failed, Process, run

PREFIX, OTHER = "fe80:0000:0000:0000", "fec0:0000:0000:0007"
WITHIN = 30


def gids(lab, *words, source=None, check=True):
    out = run(lab.bin / "ipoib-fwd", "gids", *(source or ("--socket", lab.dir / "control.sock")), *words, check=check, timeout=30)
    return out


def listed(lab, *words, **more):
    return json.loads(gids(lab, "--json", *words, **more).stdout)["gids"]


def check_list(lab):
    """The gateway's device by its control socket and by the shared table, for people and for programs."""
    wrong = []
    rows = listed(lab)
    own = lab.ctl("links")["infiniband"]["gid"]
    first = rows[0] if rows else {}
    if (first.get("device"), first.get("port"), first.get("index"), first.get("type")) != ("soft0", 1, 0, "IB"):
        wrong.append(f"json: {rows}")
    if ipaddress.ip_address(first.get("gid", "::")) != ipaddress.ip_address(own) or not first["gid"].startswith(PREFIX):
        wrong.append(f"gid: {first.get('gid')} is not {own}")
    lines = gids(lab).stdout.splitlines()
    if not lines or lines[0].split() != ["DEV", "PORT", "INDEX", "GID", "IPv4", "TYPE", "NETDEV"] or first.get("gid", "?") not in lines[1]:
        wrong.append(f"text: {lines}")
    if "\x1b" in "".join(lines):
        wrong.append("colours though nobody looks")
    if len(listed(lab, "--device", "soft0")) != len(rows):
        wrong.append("--device soft0")
    shared = listed(lab, source=("--shared", lab.dir / "gids"))
    if [(r["port"], r["index"], r["gid"]) for r in shared] != [(r["port"], r["index"], r["gid"]) for r in rows]:
        wrong.append(f"shared: {shared}")
    # What cannot be listed says why.
    for words, said in ((("--device", "soft7"), "soft0"), (("--shared", "/dev/null"), "/dev/null"),
                        (("--socket", lab.dir / "none.sock"), "none.sock")):
        out = run(lab.bin / "ipoib-fwd", "gids", *(() if words[0] != "--device" else ("--socket", lab.dir / "control.sock")), *words,
                  check=False, timeout=30)
        if out.returncode != 1 or said not in out.stderr or "panicked" in out.stderr:
            wrong.append(f"{words}: {out.returncode} {out.stderr}")
    return {"ok": not wrong, "entries": len(rows), "wrong": wrong}


def set_prefix(lab, prefix):
    file = lab.dir / "fabric.toml"
    text = re.sub(r"(?m)^prefix = .*\n", "", file.read_text())
    short = prefix.replace("0000", "0").replace(":000", ":")
    file.write_text(text.replace("[fabric]\n", f'[fabric]\nprefix = "{short}::"\n'))
    lab.fabric.popen.send_signal(signal.SIGHUP)


def check_watch_ends(lab):
    """Whoever reads the changes and goes away ends the watch; so does an interrupt."""
    command = [lab.bin / "ipoib-fwd", "gids", "--socket", lab.dir / "control.sock", "--watch"]
    took = {}
    for how in ("pipe", "interrupt"):
        watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            watch.stdout.readline()
            begin = time.monotonic()
            if how == "pipe":
                watch.stdout.close()
            else:
                watch.send_signal(signal.SIGINT)
            took[how] = {"code": watch.wait(20), "seconds": round(time.monotonic() - begin, 2), "said": watch.stderr.read().decode()}
        except subprocess.TimeoutExpired:
            raise Failed(f"gids --watch goes on after {how}") from None
        finally:
            watch.kill()
            watch.wait()
    ok = all(not t["said"] and t["seconds"] < 10 for t in took.values()) and took["pipe"]["code"] == 0
    return {"ok": ok, **took}


def change(lab, old, new):
    """One change of the prefix while packets flow; what was seen of it."""
    steady = Process("ping", ["ping", "-n", "-q", "-i", "0.02", "-c", "250", IB_IP], ETH, lab.dir / "steady.log")
    watch = Process("watch", [lab.bin / "ipoib-fwd", "gids", "--socket", lab.dir / "control.sock", "--watch", "--json"], None,
                    lab.dir / "watch.log")
    try:
        lab.wait_for("the watch", lambda: "present" in watch.text(), 20)
        begin = time.monotonic()
        set_prefix(lab, new)
        lab.wait_for("the new prefix", lambda: all(r["gid"].startswith(new) for r in listed(lab)), WITHIN)
        listed_after = round(time.monotonic() - begin, 2)
        rest = recovered(lab, WITHIN)
        steady.popen.wait(20)
    finally:
        steady.stop(1)
        watch.stop(1)
    m = re.search(r"(\d+) packets transmitted, (\d+) received", steady.text())
    lost = int(m[1]) - int(m[2]) if m else None
    lines = [json.loads(line) for line in watch.text().splitlines() if line.startswith("{")]
    told = [(l["event"], l["gid"][:19]) for l in lines if l["index"] == 0 and l["event"] != "present"]

    def moved():
        neighbours = {n["address"]: n["hardware_address"] for n in lab.ctl("neighbours")["infiniband"]}
        peers = {c["peer"] for c in lab.ctl("connections")["connections"] if c["state"] == "live"}
        text = " ".join([neighbours.get(IB_IP) or "", *peers])
        return bool(peers) and (":" in text) and not stale(text, old)

    lab.wait_for("neighbour and connections under the new prefix", moved, WITHIN)
    return {"ok": rest["ok"] and told == [("removed", old), ("added", new)] and lost is not None and lost <= 100,
            "listed_after": listed_after, "lost": lost, "of": 250, "told": told, "recovered": rest}


def stale(text, prefix):
    """True if a link-layer address in the text has a GID of this prefix."""
    digits = prefix.replace(":", "")
    return digits in re.sub(r"[:.\- ]", "", text)


def check_prefix(lab):
    """The subnet manager gives the subnet another prefix, and takes it back: everything that named the old GIDs moves."""
    first = change(lab, PREFIX, OTHER)
    second = change(lab, OTHER, PREFIX)
    links = lab.ctl("links")["link_counters"]
    return {"ok": first["ok"] and second["ok"] and links["gid_changes"] == 2, "away": first, "back": second,
            "gid_changes": links["gid_changes"]}


def check_dead_maintainer(lab):
    """Of a gateway that was killed the shared table stays, and is called stale; the next gateway goes on with it."""
    table = ("--shared", lab.dir / "gids")
    watch = subprocess.Popen([lab.bin / "ipoib-fwd", "gids", *table, "--watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        watch.stdout.readline()
        pid = lab.gateway.popen.pid
        lab.lose(lab.gateway)
        begin = time.monotonic()
        said = watch.communicate(timeout=20)[1].decode()
        noticed = round(time.monotonic() - begin, 2)
    except subprocess.TimeoutExpired:
        raise Failed("gids --shared --watch does not notice that the gateway is dead") from None
    finally:
        watch.kill()
        watch.wait()
    stale_list = gids(lab, source=table, check=False)
    lab.start_gateway()
    lab.wait_for("the next gateway", lambda: gids(lab, source=table, check=False).returncode == 0, WITHIN)
    rest = recovered(lab)
    ok = (str(pid) in said and "gone" in said and watch.returncode == 1 and stale_list.returncode == 1
          and "soft" not in stale_list.stderr and "fe80" in stale_list.stdout and rest["ok"])
    return {"ok": ok, "noticed_after": noticed, "said": said.strip(), "recovered": rest}
