"""The page of reliability is that of the committed outcomes; trials resume where they stopped."""

import json
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pages import ROOT

sys.path.insert(0, str(ROOT / "tests" / "endurance"))

import bench

bench.find_modules()

import parts  # noqa: E402
import run  # noqa: E402

PAGE = runpy.run_path(str(ROOT / "docs" / "reliability.py"))


def test_the_table_of_trials_is_that_of_the_outcomes() -> None:
    """As of when the page was written: a change of the package or a trial changes no page."""
    written = PAGE["renew"](PAGE["read_present"](), PAGE["read_older"]())
    assert PAGE["PAGE"].read_text() == written, "renew it: python docs/reliability.py"


def test_the_page_names_every_part_that_was_not_tried_as_planned() -> None:
    outcomes = json.loads(run.OUTCOME.read_text())
    table = PAGE["TABLE"].search(PAGE["PAGE"].read_text())[0]
    named = {
        name for line in re.findall("^- .*", table, re.M) for name in re.findall("`(.+?)`", line)
    }
    held = {
        part.name
        for part in parts.PARTS
        if part.name in outcomes
        and outcomes[part.name]["trials"] >= part.trials
        and outcomes[part.name]["failures"] == 0
    }
    assert {part.name for part in parts.PARTS} <= held | named


def test_a_part_is_listed_with_what_it_lacks() -> None:
    def outcome(form: str, trials: int, failures: int) -> dict[str, object]:
        return {"trial": form, "trials": trials, "failures": failures}

    planned = [bench.Part(name, 1, "now", 1000) for name in ("whole", "none", "few", "old", "bad")]
    now = run.form(planned[0])
    outcomes = {
        "whole": outcome(now, 1000, 0),
        "few": outcome(now, 999, 0),
        "old": outcome("another", 1000, 0),
        "bad": outcome(now, 1000, 2),
    }
    older = PAGE["find_older"](planned, outcomes)
    assert PAGE["list_gaps"](planned, outcomes, older).splitlines() == [
        "- No outcome yet: `none`.",
        "- Tried with fewer trials than planned: `few` (999 of 1,000).",
        "- Tried in an earlier form of the trial: `old`.",
        "- With failures: `bad` (2 of 1,000).",
    ]


def test_a_row_of_another_package_is_of_an_earlier_version() -> None:
    words = dict.fromkeys(("done", "command", "version", "commit"), "9")
    outcome = {**words, **dict.fromkeys(("promise", "trials", "failures"), 9), "sources": "abc"}
    assert "earlier" not in PAGE["row"](outcome, "abc")
    assert "| 9 (9), an earlier version |" in PAGE["row"](outcome, "abd")
    del outcome["sources"]
    assert "earlier" in PAGE["row"](outcome, "abc")


def test_every_promise_has_a_part_or_is_not_offered() -> None:
    text = PAGE["PAGE"].read_text()
    promised = {int(n): line for n, line in re.findall(r"^\| (\d+) \|(.*)\|$", text, re.M)[:15]}
    tried = {part.promise for part in parts.PARTS}
    assert {n for n in promised if n not in tried} == {
        n for n, line in promised.items() if "not offered" in line
    }
    assert tried <= set(promised) == set(range(1, 16))


def test_parts_have_names_of_their_own_and_one_way_to_be_tried() -> None:
    assert len({part.name for part in parts.PARTS}) == len(parts.PARTS)
    assert not [part.name for part in parts.PARTS if (part.bench is None) != bool(part.command)]


def make_part(tried: list[int], failing: int = -1, stop: int = -1) -> bench.Part:
    @contextmanager
    def open_bench(folder: Path) -> Iterator[bench.Trial]:
        def trial(number: int) -> str:
            if number == stop:
                raise KeyboardInterrupt
            tried.append(number)
            return "it broke" if number == failing else ""

        yield trial

    return bench.Part("small", 1, "counts", 5, open_bench)


def test_a_part_that_was_interrupted_is_continued(tmp_path: Path) -> None:
    tried: list[int] = []
    ledger = run.Ledger(tmp_path, make_part(tried), "these")
    with pytest.raises(KeyboardInterrupt):
        run.play(make_part(tried, stop=3), 5, ledger, 1.0)
    with ledger.path.open("a") as file:
        file.write('{"number": 3, "tri')  # a process that was killed
        file.write("\n")
    run.play(make_part(tried, failing=4), 5, ledger, 1.0)
    assert tried == [0, 1, 2, 3, 4]
    found = run.summarise(make_part(tried), 5, ledger)
    assert (found["trials"], found["failures"], found["problems"]) == (5, 1, ["it broke"])
    assert (found["sources"], found["trial"]) == ("these", run.form(make_part(tried)))
    run.play(make_part(tried), 5, ledger, 1.0)
    assert len(tried) == 5


def test_a_workplace_leaves_neither_its_folder_nor_its_cache() -> None:
    before = os.environ["COTERIE_CACHE"]
    with bench.workplace() as folder:
        assert os.environ["COTERIE_CACHE"] == str(folder / "cache")
    assert os.environ["COTERIE_CACHE"] == before
    assert not folder.exists()


def test_trials_of_other_sources_do_not_count(tmp_path: Path) -> None:
    tried: list[int] = []
    run.play(make_part(tried), 2, run.Ledger(tmp_path, make_part(tried), "old"), 1.0)
    run.play(make_part(tried), 2, run.Ledger(tmp_path, make_part(tried), "new"), 1.0)
    assert tried == [0, 1, 0, 1]


def test_trials_of_an_earlier_form_do_not_count(tmp_path: Path) -> None:
    tried: list[int] = []
    ledger = run.Ledger(tmp_path, make_part(tried), "these")
    ledger.form = "another"
    run.play(make_part(tried), 2, ledger, 1.0)
    run.play(make_part(tried), 2, run.Ledger(tmp_path, make_part(tried), "these"), 1.0)
    assert tried == [0, 1, 0, 1]


def test_the_form_of_a_trial_is_that_of_its_modules_and_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "TESTS", tmp_path / "tests")
    files = {"trial": "import one", "one": "NAME = 'two:Class'", "two": "", "three": ""}
    (tmp_path / "tests").mkdir()
    for name, text in files.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)
    part = bench.Part("small", 1, "counts", 5, command=("tests/trial.py", "--fast"))
    form = run.form(part)
    assert run.form(replace(part, command=("tests/trial.py",))) != form
    for name in files:
        (tmp_path / "tests" / f"{name}.py").write_text(f"{files[name]}  # changed")
        assert (run.form(part) == form) == (name == "three")
        (tmp_path / "tests" / f"{name}.py").write_text(files[name])


def test_a_workplace_is_left_while_a_process_writes_there() -> None:
    script = "import itertools, sys, time\nfor n in itertools.count():\n"
    script += "    open(f'{sys.argv[1]}/{n}', 'w').close()\n    time.sleep(0.002)\n"
    with bench.workplace() as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], stderr=subprocess.DEVNULL
        )
        while not list(folder.iterdir()):
            assert process.poll() is None
    assert not folder.exists()
    assert process.wait(10) != 0


def test_a_command_is_ended_with_whoever_waits_for_it(tmp_path: Path) -> None:
    said, me = tmp_path / "said", os.getpid()
    script = f"import os, pathlib, signal, time\nsaid = pathlib.Path({str(said)!r})\ntry:\n"
    script += f"    os.kill({me}, signal.SIGINT)\n    time.sleep(60)\n"
    script += "except KeyboardInterrupt:\n    said.write_text('interrupted')\n"
    with pytest.raises(KeyboardInterrupt):
        bench.call(["-c", script], 0, 1)
    assert said.read_text() == "interrupted"


def test_a_command_that_does_not_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_CALL_SECONDS", 0.5)
    begin = time.monotonic()
    found = bench.call(["-c", "import time; print('1 of 2'); time.sleep(60)"], 0, 2)
    assert found == (2, 2, "it was ended: not done after 0 s")
    assert time.monotonic() - begin < 30.0


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("print('3 of 3 equal')", (3, 0, "")),
        ("print('1 of 3 equal'); raise SystemExit(1)", (3, 2, "exit status 1: 1 of 3 equal")),
        ("raise SystemExit('no')", (4, 4, "exit status 1: no")),
        ("print('2 failed, 5 passed in 1 s'); raise SystemExit(1)", (7, 2, None)),
    ],
)
def test_a_command_says_how_many_trials_held(
    script: str, expected: tuple[int, int, str | None]
) -> None:
    found = bench.call(["-c", script], 0, 4)
    assert found[:2] == expected[:2]
    assert expected[2] is None or found[2] == expected[2]


def test_outcomes_name_parts_that_exist() -> None:
    outcomes = json.loads(run.OUTCOME.read_text())
    assert set(outcomes) <= {part.name for part in parts.PARTS}
