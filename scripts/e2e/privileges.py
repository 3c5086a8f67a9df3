"""What the gateway may once it runs, as the kernel tells of each of its threads."""

import grp
import json
import os
import pwd
import socket
import stat
from pathlib import Path

from checks.service import UNITS, Services
from stage.programs import Failed, run

# A thread's five sets of capabilities.
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def threads(pid):
    """The fields of each thread's status, by its number."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        found[int(task.name)] = {name: " ".join(value.split()) for name, _, value in (line.partition(":") for line in lines)}
    return found


def with_any(found):
    """Threads that have any capability, or could get one by exec."""
    return {f"{n} ({t['Name']})": {s: t[s] for s in SETS} for n, t in found.items() if any(int(t[s], 16) for s in SETS)}


def check_threads(lab):
    """On a port of the kernel and the software device nobody needs a capability: no thread has one, DPDK's own neither."""
    pid = lab.gateway.popen.pid
    found = threads(pid)
    left = with_any(found)
    gaining = [t["Name"] for t in found.values() if t["NoNewPrivs"] != "1"]
    # A filter for all, and on workers one more, as on the thread that writes captures.
    filters = {t["Name"]: (t["Seccomp"], int(t["Seccomp_filters"])) for t in found.values()}
    before = int(next(iter(threads("self").values()))["Seccomp_filters"])
    filtered = all(f == ("2", before + (2 if "worker" in name or name == "captures" else 1)) for name, f in filters.items())
    said = [line for line in lab.gateway.text().splitlines() if "privileges: the control lcore keeps no capability" in line]
    ok = not left and not gaining and filtered and len(found) >= 3 and len(said) == 1
    return {"ok": ok, "filters": filters, "capabilities_left": left, "may_gain": gaining}


def bounded():
    """A program under the capabilities that the unit has with the example of a user of its own."""
    units = (UNITS / "ipoib-fwd.service", UNITS.parent / "examples/user.conf")
    lines = [line.partition("=") for unit in units for line in unit.read_text().splitlines()]
    words = [word for key, _, value in lines if key == "CapabilityBoundingSet" for word in value.split()]
    return ["setpriv", "--bounding-set", ",".join(["-all", *(f"+{word.removeprefix('CAP_').lower()}" for word in words)]), "--"]


def check_user(args):
    """It becomes a user of its own with the unit's capabilities and the example's: all its threads do, the socket is the group's, and it
    reloads and ends as before. What a gateway that was killed has left is in nobody's way."""
    services = Services(args)
    try:
        nobody = pwd.getpwnam("nobody")
        group = grp.getgrgid(nobody.pw_gid)
        own = services.dir / "own"
        services.dir.chmod(0o711)
        # As ExecStartPre of the example, for the first time and again.
        for _ in range(2):
            run(*bounded(), "install", "-d", "-o", "nobody", "-g", group.gr_name, "-m", "0750", own)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_behind:
            left_behind.bind(str(own / "control.sock"))
        (own / "control.sock").chmod(0o600)
        os.chown(own / "control.sock", nobody.pw_uid, group.gr_gid)
        file = services.dir / "gateway.toml"
        text = file.read_text().replace(f"{services.dir}/control.sock", f"{own}/control.sock")
        file.write_text(text.replace("[gateway]\n", f'[gateway]\nuser = "nobody"\ngroup = "{group.gr_name}"\ncores = "lean"\n', 1))
        gateway, manager = services.gateway(before=bounded())
        manager.wait("READY=1")
        found = threads(gateway.popen.pid)
        uid, gid = (" ".join([str(n)] * 4) for n in (nobody.pw_uid, group.gr_gid))
        others = [t["Name"] for t in found.values() if (t["Uid"], t["Gid"], t["Groups"]) != (uid, gid, "")]
        about = (own / "control.sock").stat()
        found_socket = {"mode": oct(stat.S_IMODE(about.st_mode)), "uid": about.st_uid, "gid": about.st_gid}
        run(services.bin / "ipoib-fwd", "ctl", "--socket", own / "control.sock", "reload")
        # A member of the group may use it; another user may not.
        ask = [services.bin / "ipoib-fwd", "ctl", "--socket", own / "control.sock", "stats", "--json"]
        member = run("setpriv", "--reuid", 4242, f"--regid={group.gr_gid}", "--clear-groups", *ask, check=False)
        other = run("setpriv", "--reuid", 4242, "--regid=4242", "--clear-groups", *ask, check=False)
        gateway.popen.terminate()
        code = gateway.popen.wait(20)
        left = [p.name for p in own.iterdir()]
        ok = (not others and not with_any(found) and code == 0 and not left and other.returncode == 1
              and found_socket == {"mode": "0o660", "uid": nobody.pw_uid, "gid": group.gr_gid} and "buffers" in json.loads(member.stdout))
        return {"ok": ok, "threads": len(found), "not_that_user": others, "capabilities_left": with_any(found), "socket": found_socket,
                "code": code,
                "other_user": other.stderr.strip()[-200:], "files_left": left}
    except (Failed, ValueError) as error:
        raise Failed(f"{error}\n{''.join(p.text()[-1500:] for p in services.processes)}") from None
    finally:
        services.close()


def check_kept(args):
    """Where somebody says so it keeps all."""
    services = Services(args)
    try:
        file = services.dir / "gateway.toml"
        file.write_text(file.read_text().replace("[gateway]\n", '[gateway]\nprivileges = "keep"\n', 1))
        gateway, manager = services.gateway()
        manager.wait("READY=1")
        found, own = threads(gateway.popen.pid), threads("self")
        mine = next(iter(own.values()))["CapPrm"]
        ok = all(t["CapPrm"] == mine for t in found.values())
        return {"ok": ok, "permitted": sorted({t["CapPrm"] for t in found.values()}), "ours": mine}
    finally:
        services.close()


def check_many(args):
    """Nine workers start under their filters: the allocator counts processors when there are more threads than it has had heaps for."""
    services = Services(args)
    try:
        file = services.dir / "gateway.toml"
        # Queues so small that there is memory for nine times all of them.
        text = file.read_text().replace("[ethernet]\n", "[ethernet]\nrx-descriptors = 64\ntx-descriptors = 64\n", 1)
        small = "ud-send-depth = 64\nud-receive-depth = 64\nsrq-depth = 64\nmax-connections = 32\nconnection-send-depth = 4\n"
        file.write_text(text.replace("[infiniband]\n", f"[infiniband]\n{small}", 1))
        gateway, manager = services.gateway("0@0,(1-9)@1")
        manager.wait("READY=1")
        found = [t for t in threads(gateway.popen.pid).values() if "worker" in t["Name"]]
        # SIGHUP, SIGINT and SIGTERM are the control lcore's.
        deaf = all(int(t["SigBlk"], 16) & 0x4003 == 0x4003 for t in found)
        workers = [t["Seccomp"] for t in found]
        said = [line for line in gateway.text().splitlines() if 'seccomp = "auto": the lists were tried' in line]
        gateway.popen.terminate()
        code = gateway.popen.wait(20)
        ok = workers == ["2"] * 9 and deaf and code == 0 and len(said) == 1
        return {"ok": ok, "filters": workers, "signals_blocked": deaf, "code": code, "said": said}
    except Failed as error:
        raise Failed(f"{error}\n{''.join(p.text()[-1500:] for p in services.processes)}") from None
    finally:
        services.close()


def privileges(args, checks):
    if not checks.wanted_of("privileges"):
        return
    checks.run("privileges_user", lambda: check_user(args))
    checks.run("privileges_many", lambda: check_many(args))
    checks.run("privileges_kept", lambda: check_kept(args))
