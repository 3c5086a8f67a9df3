"""Tests, steps and parts that documents name exist, and run where the documents say."""

import json
import re
import sys
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
    for row in rows:
        if set(row[0]) <= set("-| "):
            continue
        if row[0] == headings[0] or len(row) != len(headings):
            inside = row == list(headings)
        elif inside:
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


def test_statements_on_several_gateways(collected):
    """docs/dev/pairs.md has a statement for each paragraph of the manual's page, and tests that exist for each statement."""
    page = (ROOT / "docs/manual/pairs.md").read_text()
    plain = " ".join(page.split())
    statements = dict(table(ROOT / "docs/dev/pairs.md", "statement", "tests"))
    assert not [statement for statement in statements if statement not in plain]
    blocks = re.split(r"\n\n|\n(?=- |\d+\. )", re.sub(r"^#.*$|^```[^`]*```$", "", page, flags=re.M))
    untested = [block for block in blocks if len(block.split()) > 20 and not any(s in " ".join(block.split()) for s in statements)]
    assert not untested
    rust = {name for path in (ROOT / "ipoib-fwd").rglob("*.rs") for name in re.findall(r"fn (\w+)\(", path.read_text())}
    missing = [name for tests in statements.values() for name in re.findall(r"`([^`]+)`", tests)
               if not (name in rust or (ROOT / name).is_file() or name in without_parameters(collected))]
    assert not missing


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


def test_parts():
    """docs/dev/testing.md lists the parts of --full in their order, and no document names another one."""
    parts = [part.name for part in full.parts()]
    documented = [name.strip("`") for name, _ in table(TESTING, "part", "what it shows")]
    assert documented == [*(name for name in parts if not name.startswith("vm-")), "vm-…"]
    unknown = [f"{path.relative_to(ROOT)}: {name}" for path in DOCUMENTS
               for name in re.findall(r"(?<!-)--full ([a-z]+(?:-[a-z0-9]+)*)`", path.read_text()) if name not in parts]
    assert not unknown
