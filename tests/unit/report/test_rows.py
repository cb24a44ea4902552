"""Runs become rows: which belong together, how rows are called, what is said of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_run import make_run

from coterie.report import write_report
from coterie.report.comparison_words import (
    describe_outcome,
    list_caveats,
    list_finals,
    list_warnings,
)
from coterie.report.rows import RunRow, group_runs, list_differences, read_member


def make(folder: Path, name: str, **more: object) -> Path:
    """A finished run."""
    made = make_run(folder / name, **more)  # type: ignore[arg-type]
    write_report(made)
    return made


def group(*folders: Path) -> list[RunRow]:
    return group_runs(map(read_member, folders))


def test_runs_that_differ_in_the_seed_alone_are_one_row(tmp_path: Path) -> None:
    rows = group(
        make(tmp_path, "a", seed=0),
        make(tmp_path, "b", seed=1, more="[executor]\nkind = 'serial'\n[record]\nembedding = 3\n"),
        make(tmp_path, "c", seed=0, method="moon"),
    )
    assert [(row.name, [m.seed for m in row.members]) for row in rows] == [
        ("FedAvg", [0, 1]),
        ("MOON", [0]),
    ]


def test_rows_of_one_method_are_named_by_the_keys_that_differ(tmp_path: Path) -> None:
    rates = [make(tmp_path, f"r{r}", more=f"[local]\nlr = {r}\n") for r in (0.1, 0.2)]
    assert [row.name for row in group(*rates)] == ["local.lr=0.1", "local.lr=0.2"]
    both = group(*rates, make(tmp_path, "moon", method="moon", more="[local]\nlr = 0.1\n"))
    assert [row.name for row in both] == ["FedAvg local.lr=0.1", "FedAvg local.lr=0.2", "MOON"]
    differing = list_differences([row.config for row in both])
    assert [key for key, _ in differing] == ["method.name", "local.lr"]
    assert [row.name for row in group(rates[0])] == ["FedAvg"]


def test_names_that_are_cut_alike_are_numbered(tmp_path: Path) -> None:
    long = [f"[data]\nroot = '{'x' * 60}{i}{'y' * 60}'\n" for i in range(3)]
    texts = ["[data]\nname", "[data0]\nname"]
    made = []
    for i, text in enumerate(long):
        folder = make(tmp_path, str(i))
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(config.replace(texts[0], texts[1]) + text)
        made.append(folder)
    names = [row.name for row in group(*made)]
    assert len({*names}) == 3 and names[1].endswith(" (2)") and names[2].endswith(" (3)")


def test_a_second_copy_of_a_run_counts_once(tmp_path: Path) -> None:
    first, copy = make(tmp_path, "a", seed=4), make(tmp_path, "b", seed=4)
    (row,) = group(first, copy)
    assert [m.folder for m in row.members] == [first] and len(row.counted) == 1
    assert [m.folder for m in row.set_aside] == [copy]
    assert f"{copy} is the same run; it counts once" in [text for *_, text in list_warnings([row])]


def test_unfinished_runs_count_only_where_no_other_does(tmp_path: Path) -> None:
    done, begun = make(tmp_path, "a", seed=0), make_run(tmp_path / "b", seed=1, rounds=3)
    (row,) = group(done, begun)
    assert [*row.counted] == [0] and row.finished
    assert ("FedAvg", "seed 1", "unfinished, 3 of 3 rounds: it is not counted") in list_warnings(
        [row]
    )
    (alone,) = group(begun)
    assert [*alone.counted] == [1] and not alone.finished


def test_a_damaged_run_is_named_with_its_reason(tmp_path: Path) -> None:
    good, bad = make(tmp_path, "a", seed=0), make(tmp_path, "b", seed=1)
    (bad / "metrics.jsonl").write_text("{}\n")
    (row,) = group(good, bad)
    assert [*row.counted] == [0]
    (warning,) = list_warnings([row])
    assert warning[:2] == ("FedAvg", "seed 1") and f"{bad}/metrics.jsonl cannot be" in warning[2]


def rows_of(tmp_path: Path, finals: dict[str, dict[int, float]]) -> Iterator[RunRow]:
    for method, lifts in finals.items():
        made = [
            make(tmp_path, f"{method}{seed}", seed=seed, method=method, lift=lift)
            for seed, lift in lifts.items()
        ]
        yield from group(*made)


@pytest.mark.parametrize(
    ("lifts", "said"),
    [
        (
            {"fedavg": {0: 0.0, 1: 0.02}, "moon": {0: 0.05, 1: 0.08}},
            "MOON has the highest accuracy at the end, 0.6397 on average over 2 seeds. That is "
            "0.0550 more by seed than FedAvg, the first row, beyond the spread: the difference "
            "varies by 0.0071 (standard deviation) from seed to seed, higher on 2 of 2 seeds. "
            "With 2 seeds this is a hint, no proof.",
        ),
        (
            {"fedavg": {0: 0.0, 1: 0.02}, "moon": {0: 0.05, 1: 0.0}},
            "These runs do not show that MOON is better.",
        ),
        (
            {"fedavg": {0: 0.1, 1: 0.1}, "moon": {0: 0.0, 1: 0.0}, "scaffold": {0: 0.05, 1: 0.05}},
            "That is 0.0500 more by seed than SCAFFOLD, the next, beyond the spread",
        ),
        (
            {"fedavg": {0: 0.0}, "moon": {0: 0.1}},
            "on one seed: how much another seed would change that is not known.",
        ),
        (
            {"fedavg": {0: 0.0}, "moon": {1: 0.1}},
            "but the two have no seed in common",
        ),
        ({"fedavg": {0: 0.0}, "moon": {0: 0.0}}, "MOON, the next, has the same."),
        ({"fedavg": {0: 0.0, 1: 0.1}}, "there is no other row to compare it with."),
    ],
)
def test_the_outcome_is_said_no_more_surely_than_the_seeds_allow(
    lifts: dict[str, dict[int, float]], said: str, tmp_path: Path
) -> None:
    assert said in describe_outcome(list(rows_of(tmp_path, lifts)), "accuracy")


def test_the_best_of_many_rows_may_be_lucky(tmp_path: Path) -> None:
    lifts = {m: {0: i / 10} for i, m in enumerate(("fedavg", "moon", "solo", "mfcl", "fedprox"))}
    said = describe_outcome(list(rows_of(tmp_path, lifts)), "accuracy")
    assert said.endswith("As the best of 5 rows it may also be the luckiest.")


def test_other_data_and_other_metrics_are_said(tmp_path: Path) -> None:
    one, other = make(tmp_path, "a"), make(tmp_path, "b", method="moon")
    split = (other / "partition.json").read_text()
    (other / "partition.json").write_text(split.replace('"abab', '"cdcd'))
    rows = group(one, other)
    assert list(list_caveats(rows)) == [
        "On the same seed the samples are divided otherwise than in FedAvg: MOON."
    ]
    (other / "partition.json").write_text(split.replace('"digits"', '"faces"'))
    third = make(tmp_path, "c", method="scaffold", accuracy=False, knn=0.5, rounds=5)
    rows = group(one, other, third)
    data, metrics, rounds = list_caveats(rows)
    assert data.startswith("The rows are on different data (digits: FedAvg, SCAFFOLD; faces: MOON)")
    assert metrics.endswith("(accuracy: FedAvg, MOON; kNN accuracy: SCAFFOLD).")
    assert "different numbers of rounds, 3 to 5" in rounds
    assert "on different data, so no accuracy is compared" in describe_outcome(rows, "accuracy")
    assert [*list_finals(rows, "knn")] == ["SCAFFOLD"]
