"""Train and draw the curves of the pages of methods and objectives: `python docs/curves.py`.

    python docs/curves.py            runs what is missing in curves.json, then draws every picture
    python docs/curves.py moon       runs the comparison of this page anew, then draws
    python docs/curves.py --draw     draws again from curves.json

A picture is of a few short runs on the digits, which are part of the package: the method beside
FedAvg, or an objective beside its base lines, on three seeds. `python docs/lists.py` then writes
the numbers into the pages. All runs together take some eight minutes of one core.
"""

import argparse
import json
import shlex
import statistics
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coterie
from coterie.experiment.config import load
from coterie.experiment.tables import parse_overrides
from coterie.report.line_chart import Band, Curve, Level, draw_small

HERE = Path(__file__).parent
RECORD = HERE / "curves.json"
SEEDS = (0, 1, 2)
WIDTH = 118
BASE_LINES = {"untrained": "untrained network", "raw_input": "pixels as they are"}
Recorded = dict[
    str, Any
]  # by the words of `coterie run`: the configuration's digest, seeds, levels


@dataclass(frozen=True)
class Picture:
    """What a page shows: lines by their name, each the words of a run, and base lines."""

    metric: str
    lines: Mapping[str, str]
    levels: bool = False

    @property
    def measure(self) -> str:
        """The metric in words, for the axis."""
        return MEASURES[self.metric][0]

    @property
    def explain(self) -> str:
        """What the metric is."""
        return MEASURES[self.metric][1]


MEASURES = {
    "accuracy": (
        "accuracy",
        "the accuracy of the global model on the test set. The runs are short and the digits easy: "
        "the curve shows how fast it learns, not which method is better.",
    ),
    "knn": (
        "accuracy by kNN",
        "the accuracy of nearest neighbours by the global encoder, on the test set. The pixels of "
        "the digits are nearly separable as they are, which leaves an encoder little room: what "
        "it learns is the distance from an untrained network.",
    ),
    "client_knn_mean": (
        "clients' accuracy by kNN",
        "the accuracy of nearest neighbours by each client's own encoder on its own samples, the "
        "mean over clients. Other seeds deal other clients, which is most of a band's width.",
    ),
}
FEDAVG = {"FedAvg": "digits/fedavg run.rounds=10 evaluate.with=accuracy"}
SIMSIAM = "digits/simsiam run.rounds=10"
FEDSIMCLR = "digits/fedsimclr run.rounds=16 evaluate.with=knn evaluate.last=[]"
ORCHESTRA = "digits/orchestra run.rounds=10 local.epochs=1 evaluate.with=knn"


def compare(name: str, label: str, **more: str) -> Picture:
    """A supervised method beside FedAvg."""
    own = {label: f"digits/{name} run.rounds=10 evaluate.with=accuracy"}
    return Picture("accuracy", {**FEDAVG, **own, **more})


def personalise(name: str, label: str) -> Picture:
    """A self-supervised method with models of the clients' own, beside FedAvg."""
    lines = {"FedAvg": SIMSIAM, label: f"digits/{name} run.rounds=10"}
    return Picture("client_knn_mean", lines)


def alone(label: str, words: str) -> Picture:
    """An objective under FedAvg, beside its base lines."""
    return Picture("knn", {label: words}, levels=True)


OFFICIAL = "digits/fedproc-official run.rounds=10 evaluate.with=accuracy"
PICTURES = {
    "methods/fedavg": compare("centralized", "all data in one place"),
    "methods/centralized": compare("centralized", "Centralized"),
    "methods/solo": compare("solo", "SOLO (mean over clients)"),
    "methods/fedprox": compare("fedprox", "FedProx"),
    "methods/scaffold": compare("scaffold", "SCAFFOLD"),
    "methods/moon": compare("moon", "MOON"),
    "methods/fedproc": compare("fedproc", "FedProc", **{"FedProc (official)": OFFICIAL}),
    "methods/fedssc": compare("fedssc", "FedSSC"),
    "methods/la_ssfl": personalise("la_ssfl", "LA-SSFL"),
    "methods/bilevel_ssfl": personalise("bilevel_ssfl", "BiLevel-SSFL"),
    "methods/maml_ssfl": personalise("maml_ssfl", "MAML-SSFL"),
    "methods/per_ssfl": personalise("per_ssfl", "Per-SSFL"),
    "methods/orchestra": Picture(
        "knn", {"FedAvg on rotation": f"{ORCHESTRA} method=fedavg", "Orchestra": ORCHESTRA}
    ),
    "methods/fedsimclr": Picture("knn", {"FedSimCLR": FEDSIMCLR}, levels=True),
    "methods/mfcl": Picture(
        "knn",
        {
            "FedSimCLR": FEDSIMCLR,
            "MFCL": "digits/mfcl method.share_representations=true run.rounds=10 "
            "evaluate.with=knn evaluate.last=[]",
        },
        levels=True,
    ),
    "objectives/simsiam": alone("SimSiam", SIMSIAM),
    "objectives/byol": alone("BYOL", "digits/byol run.rounds=10 evaluate.with=knn"),
    "objectives/swav": alone("SwAV", "digits/swav run.rounds=10 evaluate.with=knn"),
    "objectives/simclr": alone("SimCLR", "digits/simclr run.rounds=10 evaluate.with=knn"),
    "objectives/rotation": alone("Rotation", f"{ORCHESTRA} method=fedavg"),
}


def find(page: str) -> str:
    """The picture of a page by its last word, as `python docs/curves.py moon` names it."""
    found = [name for name in PICTURES if page in (name, name.rpartition("/")[2])]
    if len(found) != 1:
        raise SystemExit(f"there is no picture {page!r}; there are: {', '.join(PICTURES)}")
    return found[0]


def digest(words: str) -> str:
    """A hash of the configuration of a run; kernels and torch differ in rounding only."""
    name, *overrides = shlex.split(words)
    return load(name, parse_overrides([*overrides, "net.kernel=torch"])).hash()


def measure(words: str, seed: int, metrics: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train on a seed: the metrics as (round from 1, value), and the base lines."""
    name, *overrides = shlex.split(words)
    with tempfile.TemporaryDirectory() as folder:
        result = coterie.run(
            name,
            out=Path(folder) / "run",
            progress=False,
            **{
                **parse_overrides(overrides),
                "run.seed": seed,
                "executor.kind": "serial",
                "record.embedding": 0,
            },
        )
        values = {
            metric: [[round + 1, round_off(value)] for round, value in result.history[metric]]
            for metric in metrics
        }
        file = result.folder / "baseline.json"  # of the global model, if there is one
        baseline = json.loads(file.read_text())["values"] if file.is_file() else {}
    return values, {name: round_off(value) for name, value in baseline.items()}


def count_payload(words: str) -> dict[str, list[int]]:
    """The bytes that a client is sent and sends in the last round of every stage, on average."""
    name, *overrides = shlex.split(words)
    short = {"run.rounds": "2", "local.epochs": "1", "evaluate.with": "[]", "evaluate.last": "[]"}
    short |= {"executor.kind": "serial", "record.embedding": "0"}
    if "digits/mfcl" in words:
        short["method.sense_rounds"] = "1"
    kept = [word for word in overrides if word.partition("=")[0] not in short]
    tables = parse_overrides([*kept, *(f"{key}={value}" for key, value in short.items())])
    with tempfile.TemporaryDirectory() as folder:
        history = coterie.run(name, out=Path(folder) / "run", progress=False, **tables).history
    return {
        event.stage: [
            round(sent / len(event.cohort)) for sent in (event.bytes_down, event.bytes_up)
        ]
        for event in history
        if event.cohort
    }


def round_off(value: float) -> float:
    """Four digits: a test sample is 0.0028."""
    return round(value, 4)


def list_runs(pages: Sequence[str]) -> dict[str, list[str]]:
    """The runs of pages by their words, with the metrics that some page shows of them."""
    chosen = {words for page in pages for words in PICTURES[page].lines.values()}
    runs: dict[str, list[str]] = {}
    for picture in PICTURES.values():
        for words in picture.lines.values():
            if words in chosen and picture.metric not in runs.setdefault(words, []):
                runs[words].append(picture.metric)
    return runs


def train(pages: Sequence[str], anew: bool) -> None:
    """Run what is missing, or everything of the pages, and record it after every run."""
    recorded: Recorded = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    runs = list_runs(pages)
    for words in runs:
        current = digest(words)
        if anew or recorded.get(words, {}).get("configuration") != current:
            recorded[words] = {"configuration": current, "seeds": {}, "levels": {}}
        if "payload" not in recorded[words]:
            recorded[words]["payload"] = count_payload(words)
            save(recorded)
    for seed in SEEDS:
        for words, metrics in runs.items():
            entry = recorded[words]
            if str(seed) not in entry["seeds"]:
                entry["seeds"][str(seed)], entry["levels"][str(seed)] = measure(
                    words, seed, metrics
                )
                save(recorded)
                print(f"{words} run.seed={seed}", flush=True)


def save(recorded: Recorded) -> None:
    """Write the record, a line for every seed, without runs that no page shows."""
    known = list_runs(tuple(PICTURES))
    lines = []
    for words in (words for words in known if words in recorded):
        entry = recorded[words]
        parts = [f'  "{key}": {json.dumps(entry.get(key))}' for key in ("configuration", "payload")]
        for key in ("seeds", "levels"):
            seeds = [f'   "{seed}": {json.dumps(value)}' for seed, value in entry[key].items()]
            parts.append(f'  "{key}": {{\n' + ",\n".join(seeds) + "\n  }")
        lines.append(f" {json.dumps(words)}: {{\n" + ",\n".join(parts) + "\n }")
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read_seeds(recorded: Recorded, words: str, metric: str) -> list[Curve]:
    """The curves of a run, seed by seed."""
    seeds = recorded[words]["seeds"].values()
    return [[(at, value) for at, value in seed[metric]] for seed in seeds]


def average(curves: Sequence[Curve]) -> Curve:
    """The mean over seeds, round by round."""
    return [
        (points[0][0], statistics.fmean(value for _, value in points))
        for points in zip(*curves, strict=True)
    ]


def span(curves: Sequence[Curve]) -> Band:
    """The lowest and the highest value over seeds, round by round."""
    return [
        (points[0][0], min(value for _, value in points), max(value for _, value in points))
        for points in zip(*curves, strict=True)
    ]


def list_levels(recorded: Recorded, picture: Picture) -> list[Level]:
    """The base lines of the last run of a picture, means over seeds."""
    if not picture.levels:
        return []
    seeds = recorded[[*picture.lines.values()][-1]]["levels"].values()
    return [
        (label, statistics.fmean(seed[name] for seed in seeds))
        for name, label in BASE_LINES.items()
    ]


def draw_picture(page: str, recorded: Recorded) -> str:
    """The SVG of a page."""
    picture = PICTURES[page]
    seeds = {
        label: read_seeds(recorded, words, picture.metric) for label, words in picture.lines.items()
    }
    count = len(next(iter(seeds.values())))
    *before, last = seeds
    names = f"{', '.join(before)} and {last}" if before else last
    title = f"{names} on the digits, {count} seeds"
    lines = [(label, average(curves)) for label, curves in seeds.items()]
    bands = {label: span(curves) for label, curves in seeds.items()}
    levels = list_levels(recorded, picture)
    return draw_small(lines, bands, levels, title, picture.measure)


def write(name: str) -> str:
    """What the page of a method or objective says of its curve: `python docs/lists.py`."""
    page, recorded = find(name), json.loads(RECORD.read_text())
    picture = PICTURES[page]
    rows, finals = [], []
    for label, words in picture.lines.items():
        last = [curve[-1][1] for curve in read_seeds(recorded, words, picture.metric)]
        each = ", ".join(f"{value:.3f}" for value in last)
        finals.append(f"{label} {statistics.fmean(last):.3f}")
        sent = write_payload(recorded[words]["payload"])
        cells = (label, f"{statistics.fmean(last):.3f}", each, sent, f"`coterie run {words}`")
        rows.append(f"| {' | '.join(cells)} |")
    for label, value in list_levels(recorded, picture):
        finals.append(f"{label} {value:.3f}")
        rows.append(f"| {label} | {value:.3f} | | | before the first round |")
    measure = picture.measure[0].upper() + picture.measure[1:]
    return "\n".join(
        [
            f"![{measure} after every round on the digits, at the end: {', '.join(finals)}]"
            f"(curves/{name}.svg)",
            "",
            textwrap.fill(
                f"A line is the mean over the seeds 0 to {len(SEEDS) - 1}, its band goes from the "
                f"lowest to the highest of them: {picture.explain} Bytes are those of one client "
                "in one round, on average.",
                WIDTH,
            ),
            "",
            "| line | at the end | by seed | bytes down / up | run |",
            "|---|---|---|---|---|",
            *rows,
            "",
            "<!-- not run: trains the runs of this page anew -->",
            "```sh",
            f"python docs/curves.py {name}",
            "```",
            "",
            "The values of every round are in [curves.json](../curves.json).",
        ]
    )


def write_payload(payload: Mapping[str, Sequence[int]]) -> str:
    """The bytes of every stage; without its name where there is one."""
    stages = [f"{name} {down:,} / {up:,}" for name, (down, up) in payload.items()]
    if not stages:
        return "none"
    return "; ".join(stages).removeprefix("train ") if len(stages) == 1 else "; ".join(stages)


def main() -> None:
    """Train what is asked for or missing, then draw every picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", nargs="?", help="run the comparison of this page anew")
    parser.add_argument("--draw", action="store_true", help="run nothing")
    words = parser.parse_args()
    if not words.draw:
        train([find(words.page)] if words.page else tuple(PICTURES), anew=bool(words.page))
    recorded = json.loads(RECORD.read_text())
    for page in PICTURES:
        folder, _, name = page.rpartition("/")
        path = HERE / folder / "curves" / f"{name}.svg"
        path.parent.mkdir(exist_ok=True)
        path.write_text(draw_picture(page, recorded))


if __name__ == "__main__":
    main()
