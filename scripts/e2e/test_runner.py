"""The runner of `scripts/test`: what it reports of commands that fail once, always, or are not there."""

import shutil

import pytest
from runner import full, step
from runner.full import Part
from runner.step import Step

pytestmark = pytest.mark.core

FAILS_ONCE = "test -e {0} && exit; touch {0}; echo 'error: for the first time'; exit 1"
# Reports of nextest and pytest with one failed check among others.
NEXTEST_LOG = """\
        PASS [   0.012s] (1/3) cm table::tests::one
        FAIL [   0.034s] (2/3) cm table::tests::timing::two
     Summary [   0.100s] 3 tests run: 2 passed, 1 failed, 7 skipped
"""
JUNIT = """<testsuites><testsuite name="pytest">
<testcase classname="test_plain" name="test_ping[a]"/>
<testcase classname="test_plain" name="test_ping[b]"><failure message="lost"/></testcase>
<testcase classname="test_cold" name="test_first"><error message="setup"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def outputs(monkeypatch, tmp_path, request):
    """A directory for outputs of its own, below the tree as the runner wants it."""
    folder = step.LOGS / f"of-{tmp_path.name}-{request.node.name}"
    monkeypatch.setattr(full, "FULL", folder)
    monkeypatch.setattr(step, "LOGS", folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_check_that_fails_once_is_flaky(outputs, tmp_path, capsys):
    result, checks, [check] = Part("once", "", "", ["bash", "-c", FAILS_ONCE.format(tmp_path / "been")]).run()
    assert (result, checks, check.result) == ("flaky", 1, "flaky")
    assert [(step.ROOT / path).is_file() for path in check.outputs] == [True] * (1 + full.RERUNS)
    assert "for the first time" in (step.ROOT / check.outputs[0]).read_text()
    assert "run 3 of it, alone" in capsys.readouterr().out


def test_check_that_always_fails_is_failed(outputs):
    result, _, [check] = Part("never", "", "", ["false"]).run()
    assert (result, check.result) == ("failed", "failed")


def test_part_that_passes_runs_once(outputs):
    assert Part("always", "", "", ["true"]).run() == ("passed", 1, [])
    assert [path.name for path in (outputs / "always").iterdir()] == ["run-1.log"]


def test_part_without_its_environment_is_skipped(outputs):
    assert Part("skipped", "", "", ["false"], needs="NO_SUCH_VARIABLE_IS_SET").run()[0] == "skipped"


def test_failed_checks_of_nextest_run_alone(outputs, tmp_path):
    log = tmp_path / "log"
    log.write_text(NEXTEST_LOG)
    failed, total = Part("n", "", "", [], "nextest").failed_checks(log, tmp_path / "none")
    assert total == 3
    assert failed == {"table::tests::timing::two": [*full.NEXTEST, "-E", "test(=table::tests::timing::two)"]}


def test_failed_checks_of_pytest_run_alone(outputs, tmp_path):
    junit = tmp_path / "junit.xml"
    junit.write_text(JUNIT)
    failed, total = Part("p", "", "", [], "pytest").failed_checks(tmp_path / "log", junit)
    assert total == 3
    names = [command[-1] for command in failed.values()]
    assert names == ["scripts/e2e/test_plain.py::test_ping[b]", "scripts/e2e/test_cold.py::test_first"]


def test_steps_report_their_first_failure(outputs):
    broken = Step("broken", [["bash", "-c", "echo fine; echo 'error: a reason'; exit 3"], ["touch", outputs / "not-run"]])
    broken.run()
    assert broken.result == "FAILED" and broken.failure()[0] == "error: a reason"
    assert not (outputs / "not-run").exists()
    absent = Step("absent", [["no-such-program-is-there"]])
    absent.run()
    assert absent.failure() == ["error: no-such-program-is-there is not installed: run scripts/setup"]
