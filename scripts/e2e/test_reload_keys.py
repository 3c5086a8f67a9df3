"""The configuration changes while the gateway runs: routes, modes and other keys; what may not change is
refused and changes nothing."""

import re

import pytest
from testbed.programs import DEADLINE, cpu_seconds, run
from testbed.reloads import BACKUP, BOTH, OFFICE, STORAGE, Reloads, segment
from testbed.topology import ETH_IP, GW_IP, IB_IP, PREFIX, Topology
from testbed.traffic import first_ping, ping

pytestmark = pytest.mark.netns

# Networks behind the hosts of the first segment, which are their own routers.
ETH_FAR, IB_FAR, NOBODY = "10.88.0.1", "10.99.0.1", "10.77.0.99"


@pytest.fixture
def topology(start):
    return start(Reloads)


# -- routes

def routes(to_ethernet, to_infiniband):
    return (f'[[segment.route]]\nto = "10.88.0.0/24"\nvia = "{to_ethernet}"\n'
            f'[[segment.route]]\nto = "10.99.0.0/24"\nvia = "{to_infiniband}"\n')


def test_routes(topology):
    """A route is added, changed and removed, in both directions; hosts are behind the two first ones."""
    # A request from an address of elsewhere is not answered: the two know each other's router before.
    for netns, address, other, router in ((topology.eth, ETH_FAR, IB_FAR, IB_IP), (topology.ib, IB_FAR, ETH_FAR, ETH_IP)):
        assert first_ping(netns, router)
        run("ip", "addr", "replace", f"{address}/32", "dev", "lo", netns=netns)
        run("ip", "route", "replace", f"{other}/32", "via", router, netns=netns)

    def through():
        return [topology.answers(netns, "-I", own, far)
                for netns, own, far in ((topology.eth, ETH_FAR, IB_FAR), (topology.ib, IB_FAR, ETH_FAR))]

    def reload(more=""):
        return topology.reload(segment(OFFICE, more=more), segment(STORAGE))

    def no_route():
        before = topology.drops()
        assert through() == [False, False]
        topology.wait_for("packets off the subnet", lambda: topology.drops_since(before).get("off-subnet", 0) >= 2)

    no_route()
    assert reload(routes(ETH_IP, IB_IP))["changed"] == [OFFICE]
    topology.wait_for("the routes", lambda: all(through()))
    # Neither a request nor its answer gets through.
    reload(routes(ETH_IP, NOBODY))
    assert through() == [False, False]
    reload(routes(ETH_IP, IB_IP))
    topology.wait_for("the routes again", lambda: all(through()))
    reload()
    no_route()


# -- keys that may change

def test_mode_that_was_set_is_given_up_for_all_segments(topology):
    """The file changes the mode of one segment after `ctl mode`: then all segments have the modes of the
    file."""
    def modes():
        return {name: mode for name, (_, _, mode) in topology.identities().items()}

    topology.ctl("mode", "datagram")
    assert modes() == {OFFICE: "datagram", STORAGE: "datagram"}
    assert topology.reload(segment(OFFICE, more='mode = "datagram"\n'), segment(STORAGE))["changed"] == [OFFICE]
    assert modes() == {OFFICE: "datagram", STORAGE: "connected"}


def with_receive_mtu(topology, more=""):
    return topology.base().replace("[infiniband]\n", f"[infiniband]\nreceive-mtu = 9000\n{more}", 1)


def busy(topology):
    """Another idle policy, log and period of statistics, and keys of the InfiniBand side."""
    return with_receive_mtu(topology, "neighbour-idle-seconds = 30\nretry-count = 1\n").replace(
        'idle = "sleep"', 'idle = "poll"\nlog = "error"\nstats-seconds = 1\n')


def test_live_keys(topology):
    """Mode, priority and MTU of one segment, and what the whole gateway has: log, idle policy, statistics."""
    def reloads_in_log():
        return topology.gateway.text().count(" INFO reload: ")

    def rates():
        return [line for line in topology.gateway.text().splitlines() if line.startswith("to IB: RC ")]

    logged = reloads_in_log()
    assert not rates()
    more = 'mode = "datagram"\npriority = 7\nmtu = 1400\n'
    answer = topology.reload(segment(OFFICE), segment(STORAGE, more=more), base=busy(topology))
    assert answer["changed"] == [STORAGE] and len(answer["keys"]) == 6, answer
    topology.wait_for("statistics in the log", rates)
    rows = topology.rows()
    assert [rows[OFFICE]["mode"], rows[STORAGE]["mode"]] == ["connected", "datagram"]
    assert {row["key"]: row["value"] for row in topology.ctl("set")["settings"]}["idle"] == "poll"
    assert reloads_in_log() == logged, "log = \"error\" is not at work"
    big = run("ping", "-n", "-c", 1, "-W", 60, "-M", "do", "-s", 1450, ETH_IP, netns=topology.ib100, check=False).stdout
    assert "mtu" in big.lower() or "needed" in big.lower(), big
    assert ping(topology.eth100, IB_IP, 56)["ok"]
    assert ping(topology.ib, ETH_IP, 1400)["ok"]
    # The receive MTU may become smaller only.
    back = topology.reload(*BOTH, base=with_receive_mtu(topology))
    assert len(back["keys"]) == 5, back
    assert reloads_in_log() == logged + 1
    topology.write(*BOTH)
    assert "can only be reduced" in topology.ctl_text("reload", check=False).stderr


@pytest.mark.timing
def test_idle_policy_by_reload(topology, figures):
    """A gateway that polls uses more CPU time than one that sleeps."""
    def cpu():
        begin = cpu_seconds(topology.gateway.pid)
        assert ping(topology.eth, IB_IP, 56, count=15, interval=0.1)["ok"]
        return cpu_seconds(topology.gateway.pid) - begin

    sleeping = cpu()
    topology.reload(*BOTH, base=busy(topology))
    polling = cpu()
    figures(sleeping=sleeping, polling=polling)
    assert polling > 2 * sleeping


# -- what is refused

ENOUGH = (segment(OFFICE), segment(STORAGE))
OTHER_PORT = 'ethernet = "net_null7"\npkey'
HERE, THERE = 'idle = "sleep"', "[infiniband]\n"
# The segments; a replacement in the rest of the file, or None; what is in the line that the answer names (the
# last one that has it); and what else the answer has.
REFUSED = {
    "segment_twice": ((*ENOUGH, segment(STORAGE).replace("100", "101").replace("0x8064", "0x8065")), None, 'name = "storage"',
                      ("two segments are called `storage`", "another name")),
    "vlan_twice": ((*ENOUGH, segment(BACKUP, vlan=100)), None, "vlan = 100", ("VLAN 100", "another vlan")),
    "pkey_twice": ((*ENOUGH, segment(BACKUP, pkey=0x8064)), None, "pkey = 0x8064", ("already that of `storage`", "another pkey")),
    "limited_pkey": ((*ENOUGH, segment(BACKUP, pkey=0x00C8)), None, "pkey = 0xc8", ("limited", "write 0x80c8")),
    "no_port": ((*ENOUGH, segment(BACKUP, more="port = 2\n")), None, "port = 2", ("no port 2", "count from 1")),
    "other_ethernet": (tuple(s.replace("pkey", OTHER_PORT) for s in ENOUGH), None, f"{OTHER_PORT} = 0xffff",
                       ("net_null7", "restart needed")),
    "route_nowhere": ((segment(OFFICE), segment(STORAGE, more='[[segment.route]]\nto = "0.0.0.0/0"\nvia = "10.1.1.1"\n')), None,
                      'via = "10.1.1.1"', ("unreachable router", r"10\.77\.0\.0/24")),
    "syntax": ((*ENOUGH, "[[segment]\n"), None, "[[segment]\n", ()),
    "unknown_key": ((segment(OFFICE), segment(STORAGE) + "colour = 3\n"), None, "colour", ("unknown key `colour`",)),
    "restart": (ENOUGH, (HERE, f"{HERE}\nhello-ms = 70"), "hello-ms",
                ("gateway.hello-ms cannot change while the gateway runs", "restart needed")),
    "queues": (ENOUGH, (THERE, f"{THERE}srq-depth = 64\n"), "srq-depth", ("infiniband.srq-depth cannot change", "restart needed")),
}


def refuse(topology, words):
    """A reload fails with one line that has all of these words; the log has it, too."""
    out = topology.ctl_text("reload", check=False)
    error = out.stderr.strip()
    assert out.returncode == 1 and len(error.splitlines()) == 1, out
    for word in words:
        assert re.search(word, error), error
    assert error.removeprefix("ipoib-fwd: ") in topology.gateway.text()


def assert_unchanged(topology, before):
    assert topology.identities() == before
    again = topology.ctl("reload")
    assert not any(again[k] for k in ("added", "removed", "changed", "keys", "waiting")), again
    assert ping(topology.eth100, IB_IP, 56, count=3, wait=DEADLINE // 2)["ok"]


@pytest.mark.parametrize("case", REFUSED)
def test_refused(topology, case):
    segments, change, at, words = REFUSED[case]
    before, good = topology.identities(), topology.config.read_text()
    text = (topology.base().replace(*change, 1) if change else topology.base()) + "".join(segments)
    line = text[:text.rindex(at)].count("\n") + 1
    topology.config.write_text(text)
    refuse(topology, (rf"gateway\.toml:{line}:", *words))
    topology.config.write_text(good)
    assert_unchanged(topology, before)


def test_refused_without_a_file(topology):
    before, good = topology.identities(), topology.config.read_text()
    topology.config.unlink()
    refuse(topology, (r"gateway\.toml: cannot be read", "--config"))
    topology.config.write_text(good)
    assert_unchanged(topology, before)


# -- what is only warned of

class Narrow(Topology):
    """A fabric whose groups take less than the Ethernet side sends."""

    fabric_mtu = 1024


def test_mtu_warning(start):
    """A segment whose Ethernet side may send more than a datagram takes is warned of, at the start and by a
    reload."""
    topology = start(Narrow)

    def warned():
        return [line for line in topology.gateway.text().splitlines() if "WARN" in line and " is more than the 1020 bytes" in line]

    topology.wait_for("the warning", lambda: len(warned()) == 1)
    path, text = topology.dir / "gateway.toml", topology.gateway_config().replace(f'address = "{GW_IP}/{PREFIX}"\n', "", 1)
    for mtu, lines in ((1020, 1), (1400, 2), (1000, 2)):
        path.write_text(text + f'[[segment]]\nname = "default"\naddress = "{GW_IP}/{PREFIX}"\nmtu = {mtu}\n')
        assert topology.ctl("reload")["changed"] == ["default"], mtu
        assert len(warned()) == lines, (mtu, warned())
    assert "mtu = 1400" in warned()[1]
