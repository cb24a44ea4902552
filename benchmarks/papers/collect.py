"""Bring the outcome of a recipe into this folder; what only the committed one has is kept.

    python benchmarks/papers/collect.py mfcl-table2 --out runs/reproduce --scale laptop
    python benchmarks/papers/collect.py moon-table1 --scale paper --share fedssc-table1-paper

Rows, columns and seeds are run in several commands, and on several machines. A cell that has one
seed in either outcome has both afterwards, if its configuration is the same and the reference of
its column has both, too: an outcome has the mean of several curves, not each of them. Of any other
cell that both have, the one with more seeds is taken, of the same seeds the new one. Verdicts and
claims are then tested anew over all cells.

The command names the rows and columns of the merged table where it has every row in every column;
else it is that of the new outcome. Pages and models stay where they are. A picture that is drawn
from the runs themselves (losses) stays as it is where some of them are not on this machine.

With `--share` nothing is read from `--out`: cells are taken from another committed outcome, where
today's recipes give both the same configuration. The runs themselves are not committed.

With `--again` nothing is read but the committed outcome, and its claims are tested as today's
recipe has them.

A configuration that has got keys since a run was committed has another hash. With `--older` seeds
are joined all the same, for whoever has compared the settings of both.
"""

import argparse
import json
import runpy
import shlex
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coterie.reproduce import recipe as recipes
from coterie.reproduce.page import write_outcome
from coterie.reproduce.plan import Study, locate_run, make_study
from coterie.reproduce.scores import CellScore, Outcome, Score, Scores
from coterie.reproduce.verdicts import conclude, judge

HERE = Path(__file__).parent
FINDINGS = HERE.parents[1] / "docs" / "findings.py"
LEFT = ("report.html", "features.html", "features.npz")  # too large to be committed, and made anew
Cells = dict[tuple[str, str], CellScore]


def read_cells(outcome: Mapping[str, Any]) -> Cells:
    """Read the scores of an outcome, as `outcome.json` has them."""
    cells: Cells = runpy.run_path(str(FINDINGS))["read_cells"](outcome)
    return {key: replace(cell, folders=tuple(cell.folders)) for key, cell in cells.items()}


def collect(
    new: Mapping[str, Any], old: Mapping[str, Any] | None, out: Path, older: bool = False
) -> Outcome:
    """Merge two outcomes, as `outcome.json` has them, and judge every cell again.

    `older`: committed runs may have been named before configurations had all keys of today.
    """
    committed: Cells = read_cells(old) if old else {}
    fresh: Cells = {
        key: replace(cell, folders=tuple(str(out / folder) for folder in cell.folders))
        for key, cell in read_cells(new).items()
    }
    planned = plan_again(new)
    cells = committed | {
        key: cell
        for key, cell in fresh.items()
        if cell.seeds and (key not in committed or is_better(cell, committed[key]))
    }
    targets = {
        column["name"]: column["target"]
        for document, own in ((old, committed), (new, fresh))
        for column in (document["columns"] if document else ())
        if column["target"] is not None and is_of(column["name"], own, cells, planned)
    }
    runs = [*read_runs(old, committed, older), *read_runs(new, fresh)] if old else []
    joined = join_seeds(planned, runs, committed)
    cells |= joined.cells
    targets |= joined.targets
    study = name_all(planned, cells)
    finished = sum(cell.seeds + max(0, len(cell.grid) - 1) for cell in cells.values())
    merged = Outcome(study, finished, finished, cells, targets)
    judged = {
        key: replace(
            cell, verdict=judge(study.recipe, study.scale, cell, merged.reference(cell.column))
        )
        for key, cell in cells.items()
    }
    return replace(merged, cells=judged)


def is_better(new: CellScore, old: CellScore) -> bool:
    """Return whether a new score replaces a committed one: more seeds, or the same ones again."""
    alike = sorted(new.by_seed()) == sorted(old.by_seed())
    return new.seeds > old.seeds or (new.seeds == old.seeds and alike)


def is_of(column: str, own: Cells, merged: Cells, study: Study) -> bool:
    """Return whether the reference of a column, which sets its target, is of an outcome."""
    key = study.recipe.reference, column
    return own.get(key) is merged.get(key)


Run = tuple[str, str, str, Score]  # row, column, point


def read_runs(outcome: Mapping[str, Any], cells: Cells, any_name: bool = False) -> Iterator[Run]:
    """Read the runs of cells with one seed, if they are planned so today.

    A run is named by its configuration, and so by the folder of the data too.
    """
    study = plan_again(outcome, rooted=True)
    for cell in study.cells:
        score = cells.get((cell.row.name, cell.column.name))
        point = next((p for p in cell.points if score and p.name == score.chosen), None)
        if score and point and score.seeds == 1 and score.folders:
            (seed,) = score.by_seed()
            planned = locate_run(Path(), study.config(cell, point, seed))
            if any_name or Path(score.folders[0]).name == planned.name:
                yield cell.row.name, cell.column.name, point.name, make_score(score, seed)


def join_seeds(study: Study, runs: Iterable[Run], old: Cells) -> Outcome:
    """Score by both seeds the cells that have one in the committed outcome and another in the new.

    Rounds to the reference's accuracy need its curves: where it has not both seeds, none is joined.
    """
    found = defaultdict[tuple[str, str, str], dict[int, Score]](dict)
    for row, column, point, run in runs:
        found[row, column, point][run.seed] = run
    both = {key: by_seed for key, by_seed in found.items() if len(by_seed) == 2}
    referred = {column for row, column, _ in both if row == study.recipe.reference}
    cells = tuple(
        replace(cell, points=(point,))
        for cell in study.cells
        for point in cell.points
        if (cell.row.name, cell.column.name, point.name) in both and cell.column.name in referred
    )
    scores = Scores(replace(study, cells=cells))
    for cell in cells:
        key = cell.row.name, cell.column.name, cell.points[0].name
        for run in both[key].values():
            scores.add(*key, run)
    joined = conclude(scores)
    grids = {key: replace(cell, grid=old[key].grid) for key, cell in joined.cells.items()}
    return replace(joined, cells=grids)


def make_score(score: CellScore, seed: int) -> Score:
    """Make the score of the only run of a cell."""
    run = Score(seed, score.folders[0], score.values[0], None, score.curve, score.length)
    return replace(run, seconds=score.seconds[0])


def share(other: Mapping[str, Any], study: Study) -> Outcome:
    """Score the cells of a study by those of another outcome that are planned alike, on one seed.

    Both recipes are planned as they are today, and configurations compared: where a recipe has
    changed since its outcome was committed, the caller has to know it. Only cells of one seed are
    taken: an outcome has the mean of several curves, not each of them. Rows may read one run by
    several metrics, so the metric must be the same too.
    """
    planned, theirs = plan_again(other), defaultdict[tuple[str, str], list[CellScore]](list)
    for (row, column), score in read_cells(other).items():
        cell = planned.cell(row, column)
        points = [p for p in cell.points if p.name == score.chosen] if cell else []
        if cell and points and score.seeds == 1 and not any(score.numbers):
            theirs[planned.config(cell, points[0], 0).hash(), cell.metric].append(score)
    scores, found = Scores(study), Cells()
    for cell in study.cells:
        for point in cell.points:
            read = theirs[study.config(cell, point, 0).hash(), cell.metric]
            fitting = [score for score in read if cell.column.at in (None, score.length)]
            if fitting:
                longest = max(fitting, key=lambda score: score.length)
                scores.add(cell.row.name, cell.column.name, point.name, make_score(longest, 0))
                found[cell.row.name, cell.column.name] = longest
    study = restrict(study, found)
    asked = {"rows": study.rows, "columns": study.columns}
    names = {key: tuple(part.name for part in parts) for key, parts in asked.items()}
    return conclude(replace(scores, study=replace(study, asked=names)))


def plan_again(outcome: Mapping[str, Any], rooted: bool = False) -> Study:
    """Plan the study of an outcome again, with the command that it has.

    `rooted`: with the folder of the data that it names, which is another one on every machine.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("--scale")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--no-grids", action="store_true")
    parser.add_argument("--rows", default="")
    parser.add_argument("--columns", default="")
    words = shlex.split(outcome["command"])[2:]
    roots = [word for word in words if word.startswith("data.root=")]
    given = parser.parse_args([word for word in words if word not in roots])
    root = roots[0].partition("=")[2] if rooted and roots else ""
    chosen = recipes.load(given.recipe)
    grids, first = not given.no_grids, given.first_seed
    study = make_study(chosen, given.scale, seeds=given.seeds, root=root, grids=grids, first=first)
    asked = {"rows": given.rows, "columns": given.columns}
    return replace(study, asked={key: (names,) for key, names in asked.items() if names})


def name_all(study: Study, cells: Cells) -> Study:
    """Restrict a study to the cells that were run, and have its command name them if it can."""
    kept, counts = restrict(study, cells), {cell.seeds for cell in cells.values()}
    first = min((seed for cell in cells.values() for seed in cell.by_seed()), default=0)
    kept = replace(kept, first=first)
    if study.seeds and len(counts) == 1:
        kept = replace(kept, seeds=counts.pop())
    if len(kept.cells) < len(kept.rows) * len(kept.columns):
        return kept
    run, planned = ({"rows": s.rows, "columns": s.columns} for s in (kept, study))
    names = {k: tuple(p.name for p in parts) for k, parts in run.items() if parts != planned[k]}
    return replace(kept, asked=names)


def restrict(study: Study, cells: Cells) -> Study:
    """Restrict a study to the cells that were run, in the order of its tables."""
    kept = tuple(c for c in study.cells if (c.row.name, c.column.name) in cells)
    kept = tuple(replace(c, seeds=cells[c.row.name, c.column.name].seeds) for c in kept)
    return replace(
        study,
        cells=kept,
        rows=tuple(row for row in study.rows if any(c.row is row for c in kept)),
        columns=tuple(column for column in study.columns if any(c.column is column for c in kept)),
    )


def list_incomplete(outcome: Outcome) -> list[str]:
    """List the pictures that are drawn from runs of which some are not on this machine."""
    folders = [Path(folder) for cell in outcome.cells.values() for folder in cell.folders]
    here = all(folder.is_dir() for folder in folders)
    return [] if here else [f"{metric}-by-row.svg" for metric in outcome.study.recipe.draw]


def main() -> None:
    """Read both outcomes, merge them, replace the committed files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--share", metavar="FOLDER", help="a committed outcome to take cells from")
    parser.add_argument("--again", action="store_true", help="test the committed outcome again")
    parser.add_argument("--older", action="store_true", help="join seeds of settings named before")
    options = parser.parse_args()
    name = f"{options.recipe}-paper" if options.scale == "paper" else options.recipe
    source, target = options.out / f"{options.recipe}-{options.scale}", HERE / name
    with TemporaryDirectory() as folder:
        if options.share:
            other = json.loads((HERE / options.share / "outcome.json").read_text())
            study = make_study(recipes.load(options.recipe), options.scale, seeds=1, grids=False)
            source = write_outcome(share(other, study), Path(folder))
        elif options.again:
            source, options.out = target, Path()
        new = json.loads((source / "outcome.json").read_text())
    committed = target / "outcome.json"
    old = json.loads(committed.read_text()) if committed.is_file() else None
    outcome = collect(new, old, options.out, options.older)
    target.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        written = write_outcome(outcome, Path(folder))
        features = [] if options.again else source.glob("features.*")
        left = {*LEFT, *list_incomplete(outcome)}
        for path in [*written.iterdir(), *features]:
            if path.name not in left:
                shutil.copyfile(path, target / path.name)
    print(f"{target}: {len(outcome.cells)} cells, {outcome.finished} runs")


if __name__ == "__main__":
    main()
