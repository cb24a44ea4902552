"""The recipes that come with Coterie: every cell resolves at every scale, and the smallest runs."""

from functools import cache
from pathlib import Path

import pytest

from coterie.cli.main import main
from coterie.reproduce import plan, recipe
from coterie.reproduce.recipe import Recipe

NAMES = recipe.list_shipped()
SCALES = ("paper", "laptop", "smoke")
SHARED = ("moon-table1", "fedssc-table1", "fedproc-table2")  # at laptop scale, row by row
PAPERS = {"fedssc": 3, "moon": 6, "fedproc": 6, "ssfl": 6, "mfcl": 6}
COUNTED = tuple(name for name in NAMES if recipe.load(name).measure == "cost")  # nothing is run
UNLABELLED = tuple(name for name in NAMES if name.startswith(("ssfl-", "mfcl-")))
OF_NATURE = ("flamby-heart",)  # small data of their own at every scale
SUPERVISED = tuple(name for name in NAMES if name not in (*UNLABELLED, *OF_NATURE))
WITHOUT_NUMBERS = (  # words, curves
    *("ssfl-objectives", "ssfl-batch", "ssfl-alpha", "ssfl-figure6"),
    *("mfcl-figure6", "mfcl-figure7"),
)


@pytest.fixture
def with_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that need a GPU are planned too; nothing is run."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)


def numbers(found: Recipe, row: str) -> dict[str, object]:
    """What the paper prints for a row, by column."""
    said = next(known for known in found.rows if known.name == row)
    return {**said.value, **said.rounds, **said.seconds}


def test_there_is_a_recipe_for_every_table() -> None:
    counted = {paper: sum(name.startswith(f"{paper}-") for name in NAMES) for paper in PAPERS}
    assert counted == PAPERS


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_how_it_is_called_and_has_three_scales(name: str) -> None:
    first = (recipe.RECIPES / f"{name}.toml").read_text().splitlines()[0]
    command, gap, words = first.partition("        ")
    assert command == f"# coterie reproduce {name}"
    assert gap and words == words.strip() != ""
    found = recipe.load(name)
    assert set(found.scales) == set(SCALES)
    assert found.about and all(scale.note for scale in found.scales.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_resolves(name: str, scale: str, with_gpu: None) -> None:
    made = plan.make_study(recipe.load(name), scale)
    assert made.recipe.reference in [row.name for row in made.rows]
    assert made.columns and not made.left_out
    for cell in made.cells:
        for point in cell.points:
            config = made.config(cell, point, 0)
            large = config.net.backbone == "resnet50"
            needed = recipe.get_at_scale(cell.column, "gpu", scale)
            everywhere = made.recipe.scales[scale].gpu
            assert large == needed or everywhere, f"{cell.name}: a large network needs a GPU"
            assert cell.column.at is None or cell.column.at <= config.run.rounds
            if name in (*COUNTED, *OF_NATURE):
                continue
            unlabelled = name in UNLABELLED
            authors = config.net.unit_projection  # the code of FedProc: network and batches
            assert config.local.drop_last == (authors or (scale == "paper" and not unlabelled))
            expected = {"paper": 0, "laptop": 10_000, "smoke": 300 if unlabelled else 0}[scale]
            assert config.data.limit == expected
            assert (config.data.name == "digits") == (scale == "smoke")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COUNTED])
def test_the_smoke_scale_is_small_and_the_same_everywhere(name: str) -> None:
    made = plan.make_study(recipe.load(name), "smoke")
    assert len(made.rows) <= 4
    assert len(made.columns) <= 2
    assert all(cell.seeds == 1 and len(cell.points) <= 2 for cell in made.cells)
    if name in OF_NATURE:
        assert count_rounds(made) <= {1, 2}
        return
    alike = UNLABELLED if name in UNLABELLED else SUPERVISED
    usual, ours = (recipe.load(one).scales["smoke"] for one in (alike[0], name))
    assert (_small(ours.set), ours.base) == (_small(usual.set), usual.base)


def count_rounds(study: plan.Study) -> set[int]:
    """The lengths of the runs of a study."""
    return {study.config(cell, cell.points[0], 0).run.rounds for cell in study.cells}


def _small(changes: dict[str, object]) -> dict[str, object]:
    """What makes a run small, whatever is measured at its end."""
    return {key: value for key, value in changes.items() if key != "evaluate.last"}


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if not recipe.load(name).features and name not in WITHOUT_NUMBERS],
)
def test_the_numbers_of_the_paper_are_there_and_in_its_unit(name: str) -> None:
    found = recipe.load(name)
    assert numbers(found, found.reference)
    assert sum(bool(numbers(found, row.name)) for row in found.rows) >= 2
    at_paper = {column.name for column in found.columns if "paper" in column.scales}
    for row in found.rows:
        assert set(numbers(found, row.name)) <= at_paper
        assert set(row.spread) <= set(row.value)
        low, high = (0.0, 1.0) if found.unit == "fraction" else (1.0, 100.0)
        assert name in COUNTED or all(low < value < high for value in row.value.values())
        assert bool(row.seconds) == (found.measure == "time")


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_can_be_tested_at_some_scale(name: str) -> None:
    found = recipe.load(name)
    texts = [claim.text for claim in found.claims]
    assert texts and len(set(texts)) == len(texts)
    for claim in found.claims:
        about = {row for row in (claim.above, claim.below) if row}
        columns = {*claim.columns, claim.at} - {""} if claim.columns else set[str]()
        needed = 2 if claim.kind in ("monotone", "peak", "gap-shrinks") else 1
        places = [
            scale
            for scale in ("paper", "laptop")
            if about <= set(found.scales[scale].rows or about)
            and sum(
                scale in column.scales and column.name in (columns or [column.name])
                for column in found.columns
            )
            >= needed
        ]
        assert places, claim.text
        if claim.kind == "faster":
            targets = [found.scales[scale].target for scale in places]
            assert all(targets) or all(column.target for column in found.columns)


def test_rows_that_tables_share_are_the_same_runs_at_laptop_scale() -> None:
    runs: dict[str, set[frozenset[str]]] = {}
    for name in SHARED:
        made = plan.make_study(recipe.load(name), "laptop")
        first = made.columns[0]
        for cell in made.cells:
            if cell.column is first:
                seeds = range(cell.seeds)
                hashes = frozenset(
                    made.config(cell, point, n).hash() for point in cell.points for n in seeds
                )
                runs.setdefault(cell.row.name, set()).add(hashes)
    assert {"FedAvg", "MOON", "FedProc", "FedProc official", "FedSSC", "SOLO"} <= set(runs)
    assert all(len(found) == 1 for found in runs.values())


@pytest.mark.parametrize("name", [n for n in SUPERVISED if "SCAFFOLD" in recipe.load(n).about])
def test_scaffold_runs_at_the_rate_of_all_rows(name: str, with_gpu: None) -> None:
    """As the recipes say, whatever rate the shipped configurations of SCAFFOLD have."""
    found = 0
    made = plan.make_study(recipe.load(name), "paper")
    for column in made.columns:
        cells = {cell.row.name: cell for cell in made.cells if cell.column is column}
        local = {row: made.config(c, c.points[0], 0).local for row, c in cells.items()}
        for row in (row for row in local if row.startswith("SCAFFOLD")):
            assert local[row] == local["FedAvg"]
            found += 1
    assert found


def test_the_tables_of_the_ssfl_paper_share_the_runs_of_global_ssfl_at_laptop_scale() -> None:
    named = {"ssfl-table1": "SSFL", "ssfl-table2": "Global-SSFL", "ssfl-objectives": "SimSiam"}
    found = set()
    for name, row in named.items():
        made = plan.make_study(recipe.load(name), "laptop")
        cell = made.cell(row, made.columns[-1].name)
        assert cell is not None
        found.add(made.config(cell, cell.points[0], 0).hash())
    assert len(found) == 1


def test_figure_6_of_the_ssfl_paper_reads_the_runs_of_its_table_2() -> None:
    hashes = {}
    for name in ("ssfl-table2", "ssfl-figure6"):
        made = plan.make_study(recipe.load(name), "laptop")
        hashes[name] = {made.config(c, c.points[0], 0).hash() for c in made.cells}
    assert hashes["ssfl-figure6"] < hashes["ssfl-table2"]


def test_the_tables_and_figures_of_the_mfcl_paper_share_runs_at_laptop_scale() -> None:
    named = {
        "mfcl-table2": ("MFCL(PN)", "Sc2"),
        "mfcl-table7": ("MFCL(PN)", "Sc2"),
        "mfcl-figure6": ("MFCL(PN)", "Sc2"),
        "mfcl-figure7": ("MFCL(PN)", "Sc2, 0 %"),
    }
    assert len({_hash(name, *cell) for name, cell in named.items()}) == 1
    assert len({_hash("mfcl-table2", f"MFCL(BN){end}", "Sc10") for end in ("", " on h")}) == 1
    assert _hash("mfcl-table2", "FedSimCLR", "Sc10") == _hash(
        "mfcl-table7", "FedSimCLR(BN)", "Sc10"
    )


@cache
def _study(name: str) -> plan.Study:
    return plan.make_study(recipe.load(name), "laptop")


def _hash(name: str, row: str, column: str) -> str:
    made = _study(name)
    cell = made.cell(row, column)
    assert cell is not None
    return made.config(cell, cell.points[0], 0).hash()


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all recipes: what one ran, the next one takes."""
    return tmp_path_factory.mktemp("recipes")


def reproduce(name: str, out: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Run a recipe at smoke scale; how many runs there are then."""
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", name, "--scale", "smoke", "--out", str(out)])
    said = capsys.readouterr()
    assert not ended.value.code, f"{name}: {said.err}"
    return len(list((out / "cells").iterdir())) if (out / "cells").is_dir() else 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_runs_at_smoke_scale(
    name: str, out: Path, short_probes: None, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce(name, out, capsys)
    table = (out / f"{name}-smoke" / "table.md").read_text()
    made = plan.make_study(recipe.load(name), "smoke")
    missing = [row.name for row in made.rows if f"| {row.name} |" not in table]
    missing += [claim.text for claim in made.recipe.claims if claim.text not in table]
    assert not missing


@pytest.mark.slow
def test_what_one_recipe_ran_the_next_one_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = reproduce("moon-table1", tmp_path, capsys)
    assert first == 5  # a run for each of four rows, two for MOON's grid
    assert reproduce("moon-rounds", tmp_path, capsys) == first
