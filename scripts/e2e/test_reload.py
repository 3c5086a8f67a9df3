"""The configuration changes while the gateway runs and other traffic goes on: segments come, go and move."""

import json
import signal
import time

import pytest
from testbed.exporter import samples
from testbed.follower import Follower, control_client
from testbed.meanwhile import under_datagrams
from testbed.programs import run
from testbed.reloads import ALL, BACKUP, BOTH, OFFICE, STORAGE, Reloads, segment
from testbed.segments import SEGMENTS
from testbed.topology import ETH_IP, GW_IP, IB_IP
from testbed.traffic import first_ping, grown, ping

pytestmark = pytest.mark.netns

# Segments that there may be, less the two that stay.
MORE_SEGMENTS = 126
# A longer silence, without the time for which the machine kept processes waiting, is an interruption.
SILENCE_MS = 500


@pytest.fixture
def topology(start):
    return start(Reloads)


def add_and_remove(topology):
    """A segment comes, goes and comes; its first packets in both directions are carried."""
    def act():
        assert topology.reload(*ALL)["added"] == [BACKUP]
        topology.wait_ready(OFFICE, STORAGE, BACKUP)
        assert first_ping(topology.eth200, IB_IP)
        assert first_ping(topology.ib200, ETH_IP)
        before = topology.drops()
        assert topology.reload(*BOTH)["removed"] == [BACKUP]
        for netns, target in ((topology.eth200, IB_IP), (topology.ib200, ETH_IP)):
            assert ping(netns, target, 56, count=3, wait=1)["received"] == 0, netns
        topology.wait_for("dropped frames of the removed segment", lambda: topology.drops_since(before).get("vlan-unknown", 0) >= 3)
        topology.wait_ready(OFFICE, STORAGE)
        topology.reload(*ALL)
        topology.wait_ready(OFFICE, STORAGE, BACKUP)
        assert first_ping(topology.eth200, IB_IP)
        assert ping(topology.eth100, IB_IP, 56)["ok"]

    with Follower(topology, "reload") as follower:
        result = under_datagrams(topology, act)
        follower.wait(f"  {BACKUP}  reload: removed")
        lines, _, _ = follower.end()
    log = topology.gateway.text()
    assert len([line for line in lines if f"  {BACKUP}  reload: removed" in line]) == 1, lines
    for text in (f"reload: added: {BACKUP}", f"reload: removed: {BACKUP}", f"{BACKUP}: removed"):
        assert text in log
    return result


def all_there_may_be(topology):
    """One reload adds the maximum of segments, the next one exchanges all but two; one more is refused."""
    def many(name, first):
        numbers = range(first, first + MORE_SEGMENTS)
        return "".join(f'\n[[segment]]\nname = "{name}{n - first}"\nvlan = {n}\npkey = {0x8000 + n:#x}\n' for n in numbers)

    def complete(prefix):
        rows = topology.rows()
        wanted = {OFFICE, STORAGE, *(f"{prefix}{n}" for n in range(MORE_SEGMENTS))}
        return set(rows) == wanted and all("vlan" in row for row in rows.values())

    def act():
        for prefix, first in (("a", 1000), ("b", 2000)):
            topology.reload(*BOTH, many(prefix, first))
            # They wait for partitions that the fabric does not have. Those before have to give their slots
            # back first.
            topology.wait_for("all segments", lambda prefix=prefix: complete(prefix))
        topology.write(*BOTH, many("b", 2000), '\n[[segment]]\nvlan = 9\npkey = 0x8009\n')
        refused = topology.ctl_text("reload", check=False)
        assert refused.returncode == 1 and "129 segments" in refused.stderr
        assert complete("b")
        topology.reload(*BOTH)
        topology.wait_ready(OFFICE, STORAGE)

    return under_datagrams(topology, act)


CHANGES = [pytest.param(add_and_remove, id="add_and_remove", marks=pytest.mark.core), pytest.param(all_there_may_be, id="all_there_may_be")]


@pytest.mark.parametrize("change", CHANGES)
def test_segments_come_and_go(topology, figures, change):
    result = change(topology)
    figures(**result)
    assert result["ok"], result


@pytest.mark.timing
@pytest.mark.parametrize("change", [pytest.param(*c.values, id=c.id) for c in CHANGES])
def test_other_segments_notice_nothing(topology, figures, change):
    result = change(topology)
    figures(**result)
    assert result["ok"], result
    assert result["lost"] == 0, result
    limit = SILENCE_MS + result["datagrams"]["run_delay_ms"]
    assert 1000 * result["tcp"]["longest_silence"] < limit, result
    assert result["datagrams"]["longest_gap_ms"] < limit, result


def test_segment_moves(topology):
    """The same name, in one reload, with another VLAN, then with another partition: nobody hears the segment
    of before."""
    # The hosts of VLAN 200 are joined to those of the first partition, which has to be given back before.
    assert topology.reload(segment(OFFICE), segment(STORAGE, vlan=200))["removed"] == [STORAGE]
    topology.wait_ready(OFFICE, STORAGE)
    assert first_ping(topology.eth200, IB_IP)
    assert first_ping(topology.ib100, ETH_IP)
    assert ping(topology.eth100, IB_IP, 56, count=2, wait=1)["received"] == 0
    # At once, while the partition of before is draining: VLAN 200 stays, with the other partition.
    pkey = topology.reload(segment(OFFICE), segment(STORAGE, vlan=200, pkey=SEGMENTS[2].pkey))
    assert pkey["removed"] == [STORAGE]
    topology.wait_ready(OFFICE, STORAGE)
    assert first_ping(topology.eth200, IB_IP)
    assert first_ping(topology.ib200, ETH_IP)
    assert ping(topology.ib100, ETH_IP, 56, count=2, wait=1)["received"] == 0
    topology.reload(*BOTH)
    topology.wait_ready(OFFICE, STORAGE)
    assert first_ping(topology.eth100, IB_IP)
    assert first_ping(topology.ib100, ETH_IP)


def test_reloads_while_segments_drain(topology):
    """Reload on reload, faster than a link can close: the last one counts."""
    def remove_and_add(client):
        answers = []
        for parts in (BOTH, ALL):
            topology.write(*parts)
            client.send(b"/reload")
            answers.append(json.loads(client.recv(1 << 20))["/reload"])
        return answers

    # By one client: a program that starts in between may take as long as a link to close.
    with control_client(topology.socket) as client:
        for _ in range(2):
            topology.reload(*ALL)
            remove_and_add(client)
            topology.wait_ready(OFFICE, STORAGE, BACKUP)
            assert first_ping(topology.eth200, IB_IP)
        # A fabric that stands still closes no link.
        topology.fabric.popen.send_signal(signal.SIGSTOP)
        try:
            removed, added = remove_and_add(client)
        finally:
            topology.fabric.popen.send_signal(signal.SIGCONT)
    assert removed["removed"] == [BACKUP]
    assert added["waiting"] == [BACKUP]
    topology.reload(*BOTH)
    topology.wait_ready(OFFICE, STORAGE)
    assert ping(topology.eth100, IB_IP, 56)["ok"]


def test_segment_that_waits_for_its_place(topology):
    """Commands and metrics name what a segment waits for whose partition a removed one still has; the removed
    one has its row, too."""
    topology.reload(*ALL)
    topology.wait_ready(OFFICE, STORAGE, BACKUP)
    topology.write(segment(OFFICE), segment(STORAGE, pkey=SEGMENTS[2].pkey))
    queries = [f"/links,{STORAGE}", f"/links,{BACKUP}", f"/stats,{STORAGE}", "/metrics", "/health"]
    # A fabric that stands still closes no link. All queries are there before the gateway answers the first
    # one.
    topology.fabric.popen.send_signal(signal.SIGSTOP)
    try:
        with control_client(topology.socket, *(query.encode() for query in ("/reload", *queries))) as client:
            reload, links, removed, stats, metrics, health = (json.loads(client.recv(1 << 20)) for _ in range(6))
    finally:
        topology.fabric.popen.send_signal(signal.SIGCONT)
    assert reload["/reload"]["waiting"] == [STORAGE]
    [row] = links["/links"]["segments"]
    assert (row["segment"], row["link"], row["role"]) == (STORAGE, "down", None)
    assert "the segment that had its index or partition" in row["waits_for"] == links["/links"]["waits_for"]
    [row] = removed["/links"]["segments"]
    assert row["segment"] == BACKUP and "it is removed" in row["waits_for"]
    assert f"segment `{STORAGE}` is not at work" in stats["error"] and "waits for" in stats["error"]
    values = samples(metrics["/metrics"])
    assert values["ipoib_fwd_segment_waiting", f'segment="{STORAGE}"'] == 1
    assert values["ipoib_fwd_segment_role", f'segment="{STORAGE}",role="forwarding"'] == 0
    assert {row["segment"]: row["healthy"] for row in health["/health"]["segments"]} == {OFFICE: True, STORAGE: False}
    topology.reload(*BOTH)
    topology.wait_ready(OFFICE, STORAGE)


# Pings by which a segment's counters are known, and packets a second that are the gateway's own, at most:
# hellos, probes, ARP.
COUNTED, OWN_RATE, OWN = 300, 10, 20


def test_counters_of_segments(topology, figures):
    """Each segment's packets, bytes and drops are its own; a new segment under an old number starts at
    zero."""
    def counted(name):
        stats = topology.ctl("stats", name)
        return {**{k: v["packets"] for k, v in stats["traffic"].items()}, "bytes": stats["traffic"]["to_infiniband"]["bytes"],
                "drops": stats["drops"], "workers": [w["to_infiniband_packets"] for w in stats["workers"]]}

    before, begin = {name: counted(name) for name in (OFFICE, STORAGE)}, time.monotonic()
    pings = ping(topology.eth100, IB_IP, 1000, count=COUNTED, interval=0.01)
    assert pings["ok"], pings
    run("ip", "route", "replace", "10.111.0.9/32", "via", GW_IP, netns=topology.eth)
    assert ping(topology.eth, "10.111.0.9", 56, count=3, wait=1)["received"] == 0
    topology.wait_for("the drops", lambda: grown(counted(OFFICE)["drops"], before[OFFICE]["drops"]).get("off-subnet", 0) >= 3)
    after = {name: counted(name) for name in before}
    moved = {name: {k: after[name][k] - before[name][k] for k in ("to_infiniband", "to_ethernet", "bytes")} for name in after}
    drops = {name: grown(after[name]["drops"], before[name]["drops"]) for name in after}
    own = OWN + OWN_RATE * (time.monotonic() - begin)
    figures(moved=moved, own=own)
    assert drops[OFFICE]["off-subnet"] == 3 and not drops[STORAGE], drops
    for counter in ("to_infiniband", "to_ethernet"):
        # ping sends again what is late.
        assert COUNTED <= moved[STORAGE][counter] < pings["sent"] + own, counter
        assert moved[OFFICE][counter] < own < COUNTED, counter
    assert moved[STORAGE]["bytes"] >= COUNTED * 1028
    assert sum(after[STORAGE]["workers"]) == after[STORAGE]["to_infiniband"]
    assert {row["segment"] for row in topology.ctl("stats")["segments"]} == {OFFICE, STORAGE}
    # The same number again.
    topology.reload(*ALL)
    topology.wait_ready(OFFICE, STORAGE, BACKUP)
    assert ping(topology.eth200, IB_IP, 56, count=COUNTED, interval=0.01)["ok"]
    assert counted(BACKUP)["to_infiniband"] >= COUNTED
    topology.reload(*BOTH)
    topology.wait_ready(OFFICE, STORAGE)
    topology.reload(*ALL)
    topology.wait_ready(OFFICE, STORAGE, BACKUP)
    assert counted(BACKUP)["to_infiniband"] < COUNTED / 2


def test_names_of_segments(topology):
    """Commands take the name of a segment, and suggest one for a wrong one."""
    assert "did you mean `storage`" in topology.ctl_text("stats", "stroage", check=False).stderr
    wrong = topology.ctl_text("lniks", check=False).stderr
    assert "lniks" in wrong and "links" in wrong
    links = topology.ctl("links", STORAGE)
    assert [row["segment"] for row in links["segments"]] == [STORAGE]
    assert "role" in links["gateway"]


def test_hangup_signals(topology):
    """SIGHUP, twice at once, then with a file that is refused: the log says so and nothing changes."""
    def refusals():
        return [line for line in topology.gateway.text().splitlines() if "the configuration stays as it was" in line]

    topology.write(*ALL)
    before = topology.ctl("stats")["reloads"]
    for _ in range(2):
        topology.gateway.popen.send_signal(signal.SIGHUP)
    topology.wait_ready(OFFICE, STORAGE, BACKUP)
    topology.write(segment(OFFICE), "[[segment]\n")
    topology.gateway.popen.send_signal(signal.SIGHUP)
    topology.wait_for("the refusal in the log", refusals)
    assert "gateway.toml:" in refusals()[0]
    assert topology.ready(OFFICE, STORAGE, BACKUP)
    topology.reload(*BOTH)
    topology.wait_ready(OFFICE, STORAGE)
    reloads = grown(topology.ctl("stats")["reloads"], before)
    # Two signals at once may be one.
    assert reloads["refused"] == 1 and 2 <= reloads["done"] <= 3, reloads
