"""Tests, steps and parts that documents name exist, and run where the documents say."""

import itertools
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest
from runner import default, full
from testbed.programs import run

pytestmark = pytest.mark.core

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
TESTING, CHECKS = ROOT / "docs/dev/testing.md", ROOT / "docs/dev/checks.md"
# Prints each test with its markers, as JSON.
COLLECT = """
import json, sys, pytest

class Collected:
    def pytest_collection_finish(self, session):
        tests = {item.nodeid.split("/")[-1]: sorted({mark.name for mark in item.iter_markers()}) for item in session.items}
        print("COLLECTED", json.dumps(tests))

sys.exit(pytest.main(["-qq", "--collect-only", sys.argv[1]], plugins=[Collected()]))
"""


@pytest.fixture(scope="module")
def collected():
    """The markers of each end-to-end test, by its name."""
    out = run(sys.executable, "-c", COLLECT, Path(__file__).parent).stdout
    [line] = [line for line in out.splitlines() if line.startswith("COLLECTED")]
    return json.loads(line.split(maxsplit=1)[1])


def named(text):
    """The end-to-end tests that a text names."""
    return re.findall(r"`(test_\w+\.py::test_\w+(?:\[[^`]*?\])?)`", text)


def tier(markers):
    """Where a test with these markers runs."""
    return "timing" if "timing" in markers else "core" if "core" in markers else "e2e"


def table(path, *headings):
    """The rows of the tables with these headings, cell by cell."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in path.read_text().splitlines() if line.startswith("|")]
    found, inside = [], False
    for row, following in itertools.pairwise([*rows, [""]]):
        if following[0].startswith("---"):
            inside = row == list(headings)
        elif inside and not row[0].startswith("---"):
            found.append(row)
    assert found, f"{path}: no table with the headings {headings}"
    return found


def without_parameters(tests):
    return {name.split("[")[0] for name in tests}


def test_named_tests_exist(collected):
    missing = [f"{path.relative_to(ROOT)}: {name}" for path in DOCUMENTS for name in named(path.read_text())
               if name not in collected and name not in without_parameters(collected)]
    assert not missing


def test_tiers_of_former_checks(collected):
    """Each former check names its tests, and they run in the tier that its row says."""
    wrong = []
    for check, now, tiers in table(CHECKS, "check before", "test now", "tier"):
        all_markers = [markers for name in named(now) for test, markers in collected.items() if name in (test, test.split("[")[0])]
        if all_markers and {tier(markers) for markers in all_markers} != set(tiers.split(", ")):
            wrong.append(f"{check}: {tiers} is not {sorted({tier(markers) for markers in all_markers})}")
        elif not all_markers and tiers != "teardown":
            wrong.append(f"{check}: no test")
    assert not wrong


@pytest.mark.parametrize("path", ["docs/security-model.md", "docs/manual/security.md"], ids=["model", "manual"])
def test_tiers_of_threats(collected, path):
    """Each threat's breadth ends with the tiers of its tests; tests of cargo run by default."""
    rows = [line for line in (ROOT / path).read_text().splitlines() if re.search(r"(?:default|e2e|timing) \| `[^|]*\|$", line)]
    assert len(rows) > 20
    wrong = []
    for line in rows:
        breadth, tests = line.strip("| ").split(" | ")[-2:]
        names = re.findall(r"`([^`]+)`", tests)
        tiers = {tier(markers) for name in named(tests) for test, markers in collected.items() if name in (test, test.split("[")[0])}
        tiers |= {"core"} if len(named(tests)) < len(names) else set()
        words = " + ".join(word for known, word in (("core", "default"), ("e2e", "e2e"), ("timing", "timing")) if known in tiers)
        if breadth.split("; ")[-1] != words:
            wrong.append(f"not {words}: {line}")
    assert not wrong


def plain(text):
    """A text with one space between two words."""
    return " ".join(text.split())


def sentences(page):
    """The sentences of a page, and the rows of its tables below their headings; not its headings and its
    blocks of code."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    page = re.sub(r"^#.*$", "", page, flags=re.M)
    page = re.sub(r"^\|.*\n\|[-| ]+\|$", "", page, flags=re.M)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:- |\d+\. |\|))", page)
    items = [plain(re.sub(r"^\s*(?:- |\d+\. )", "", block)) for block in blocks]
    return [s for item in items for s in ([item] if item.startswith("|") else re.split(r"(?<=[.!?])\s+(?=[A-Z`\[])", item)) if s]


def rust_tests():
    """The names of all Rust tests."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name != "target" and not path.name.startswith(".")]
    sources = (path.read_text() for folder in folders for path in folder.rglob("*.rs") if "target" not in path.parts)
    return {name for source in sources for name in re.findall(r"#\[test\](?:\s*#\[[^\]]*\]|\s*//[^\n]*)*\s*fn (\w+)\(", source)}


def test_sentences():
    page = "# One. Two\n\nA `b`. C\nd.\n- E: f! `G`?\n1. H\n\n| i | j |\n|---|---|\n| k. L | m |\n\n```sh\nn. O\n```\n"
    assert sentences(page) == ["A `b`.", "C d.", "E: f!", "`G`?", "H", "| k. L | m |"]


def test_statements_on_several_gateways(collected):
    """docs/dev/pairs.md has a statement for each sentence of the manual's page, and tests that exist for each
    statement."""
    found = sentences((ROOT / "docs/manual/pairs.md").read_text())
    statements = dict(table(ROOT / "docs/dev/pairs.md", "statement", "tests"))
    without = dict(table(ROOT / "docs/dev/pairs.md", "sentence", "kind"))
    assert set(without.values()) == {"instruction", "other programs"}
    known = {**statements, **without}
    assert not [statement for statement in known if not any(statement in sentence for sentence in found)], "not in the page"
    assert not [sentence for sentence in found if not any(statement in sentence for statement in known)], "without a statement"
    rust, cited = rust_tests(), {s: re.findall(r"`([^`]+)`", tests) for s, tests in statements.items()}
    assert not [statement for statement, names in cited.items() if not names]
    missing = [name for names in cited.values() for name in names
               if not (name in rust or (ROOT / name).is_file() or name in without_parameters(collected))]
    assert not missing


def test_example_for_keepalived_moves_no_address():
    """As docs/manual/pairs.md says of it."""
    example = (ROOT / "packaging/examples/keepalived/keepalived.conf").read_text()
    assert "vrrp_instance" in example
    assert not re.findall(r"virtual_ipaddress|virtual_routes", example)


def test_groups_of_the_gateway():
    """docs/manual/limits.md has the multicast groups that the gateway joins."""
    code = (ROOT / "ipoib-fwd/ipoib/src/link/groups.rs").read_text().split("LINK_LOCAL_GROUPS", 1)[1].split("];", 1)[0]
    joined = re.findall(r"Ipv4Addr::new\((\d+), (\d+), (\d+), (\d+)\)", code)
    text = (ROOT / "docs/manual/limits.md").read_text().split("It joins ", 1)[1].split(". ", 1)[0]
    assert [".".join(parts) for parts in joined] == re.findall(r"[\d.]+\d", text)
    assert len(joined) == 12, "README.md and the comment in the code say twelve"


def test_steps():
    """docs/dev/testing.md lists the steps of the test command, lane by lane, in their order."""
    documented = [(lane, name) for lane, name, _ in table(TESTING, "lane", "step", "what it runs")]
    lanes = [(str(number), step.name) for number, lane in enumerate(default.steps(), 1) for step in lane]
    assert documented == [("–", "setup"), *lanes]


def test_crates_of_the_architecture_page():
    """docs/dev/architecture.md lists each crate of the workspace, its folder and its workspace imports."""
    folders = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["members"]
    manifests = {folder: tomllib.loads((ROOT / folder / "Cargo.toml").read_text()) for folder in folders}
    names = {manifest["package"]["name"] for manifest in manifests.values()}
    crates = {manifest["package"]["name"]: (folder, sorted(names & manifest.get("dependencies", {}).keys()))
              for folder, manifest in manifests.items()}
    rows = table(ROOT / "docs/dev/architecture.md", "crate", "folder", "imports", "purpose")
    documented = {crate.strip("`"): (folder.strip("`"), re.findall(r"`([^`]+)`", imports)) for crate, folder, imports, _ in rows}
    assert documented == crates


def test_parts():
    """docs/dev/testing.md lists the parts of --full in their order, and no document names another one."""
    parts = [part.name for part in full.parts()]
    documented = [name.strip("`") for name, _ in table(TESTING, "part", "what it shows")]
    assert documented == [*(name for name in parts if not name.startswith("vm-")), "vm-…"]
    unknown = [f"{path.relative_to(ROOT)}: {name}" for path in DOCUMENTS
               for name in re.findall(r"(?<!-)--full ([a-z]+(?:-[a-z0-9]+)*)`", path.read_text()) if name not in parts]
    assert not unknown
