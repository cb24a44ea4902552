"""Accuracy by round of the contrastive methods beside FedAvg, on the digits: the curves in docs.

    python benchmarks/curves/digits.py               runs what is missing in runs/curves, then draws
    python benchmarks/curves/digits.py --draw        draws again from digits.json beside this file

Every run is a shipped configuration as it is (`coterie run digits/NAME run.seed=SEED`), on three
seeds. A line is the mean over the seeds, the band goes from the lowest to the highest of them.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import coterie

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "digits.json"
PICTURES = ROOT / "docs" / "methods" / "curves"

SEEDS = (0, 1, 2)
BASE = "fedavg"
DRAWN = {"moon": ("moon",), "fedproc": ("fedproc", "fedproc-official"), "fedssc": ("fedssc",)}
LABELS = {
    "fedavg": "FedAvg",
    "moon": "MOON",
    "fedproc": "FedProc",
    "fedproc-official": "FedProc, as the authors' code",
    "fedssc": "FedSSC",
}
COLOURS = ("#5f6b7a", "#c2410c", "#1d4ed8")  # readable on white, also without colour vision
DASHES = ("6 4", "", "2 3")

WIDTH, HEIGHT = 680, 380
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 44, 52

Curves = dict[str, list[list[float]]]  # by configuration: one list of accuracies for every seed


def measure(folder: Path) -> Curves:
    """The accuracies after every round, by configuration and seed."""
    names = (BASE, *(name for group in DRAWN.values() for name in group))
    found: Curves = {}
    for name in names:
        for seed in SEEDS:
            result = coterie.run(
                f"digits/{name}",
                out=folder / f"{name}-{seed}",
                resume=True,
                run={"seed": seed},
                executor={"kind": "serial"},
            )
            accuracies = [event.metrics["accuracy"] for event in result.history]
            found.setdefault(name, []).append([round(value, 4) for value in accuracies])
            print(f"{name} seed {seed}: {accuracies[-1]:.4f}", flush=True)
    return found


def draw(curves: Curves, names: Sequence[str], title: str) -> str:
    """A page of SVG: one line with a band for every name."""
    rounds = max(len(line) for name in names for line in curves[name])

    def x(number: int) -> float:
        return LEFT + (number - 1) / max(1, rounds - 1) * (WIDTH - LEFT - RIGHT)

    def y(accuracy: float) -> float:
        return HEIGHT - BOTTOM - accuracy * (HEIGHT - TOP - BOTTOM)

    def points(values: Sequence[float]) -> list[str]:
        return [f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values, start=1)]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' width="{WIDTH}" height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15" font-weight="600" fill="#1f2937">{title}</text>',
    ]
    parts += [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"'
        f' stroke="{"#374151" if tick == 0 else "#e5e7eb"}"/>'
        f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#374151">'
        f"{tick:.1f}</text>"
        for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    ]
    parts += [
        f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{y(0):.1f}" y2="{y(0) + 5:.1f}"'
        ' stroke="#374151"/>'
        f'<text x="{x(tick):.1f}" y="{y(0) + 19:.1f}" text-anchor="middle" fill="#374151">'
        f"{tick}</text>"
        for tick in sorted({1, *range(5, rounds + 1, 5)})
    ]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts += [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle"'
        ' fill="#1f2937">round</text>',
        f'<text x="18" y="{middle}" text-anchor="middle" fill="#1f2937"'
        f' transform="rotate(-90 18 {middle})">test accuracy</text>',
    ]
    for name, colour in zip(names, COLOURS, strict=False):
        by_round = list(zip(*curves[name], strict=True))
        high, low = points([max(values) for values in by_round]), points(list(map(min, by_round)))
        parts.append(
            f'<polygon points="{" ".join(high + low[::-1])}" fill="{colour}" fill-opacity="0.12"/>'
        )
    legend = HEIGHT - BOTTOM - 22 * len(names) - 4
    for index, (name, colour, dash) in enumerate(zip(names, COLOURS, DASHES, strict=False)):
        means = [statistics.fmean(values) for values in zip(*curves[name], strict=True)]
        style = f'fill="none" stroke="{colour}" stroke-width="2.2" stroke-dasharray="{dash}"'
        style = style if dash else style.replace(' stroke-dasharray=""', "")
        height, start = legend + 22 * index, WIDTH - RIGHT - 262
        parts += [
            f'<polyline points="{" ".join(points(means))}" {style}/>',
            f'<line x1="{start}" x2="{start + 34}" y1="{height}" y2="{height}" {style}/>',
            f'<text x="{start + 42}" y="{height + 4}" fill="#1f2937">{LABELS[name]}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(curves: Curves) -> str:
    """The accuracies at the end, by configuration, in the form of the pages."""
    lines = []
    for name, seeds in curves.items():
        last = [line[-1] for line in seeds]
        half = [line[len(line) // 2 - 1] for line in seeds]
        lines.append(
            f"| `digits/{name}` | {statistics.fmean(half):.3f} ± {statistics.stdev(half):.3f}"
            f" | {statistics.fmean(last):.3f} ± {statistics.stdev(last):.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"), help="where runs are")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from digits.json")
    args = parser.parse_args()
    if not args.draw:
        lines = ",\n".join(
            f" {json.dumps(name)}: [\n  "
            + ",\n  ".join(json.dumps(seed) for seed in seeds)
            + "\n ]"
            for name, seeds in measure(args.runs).items()
        )
        RECORD.write_text("{\n" + lines + "\n}\n")
    curves: Curves = json.loads(RECORD.read_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, group in DRAWN.items():
        title = f"{LABELS[name]} beside FedAvg on the digits, {len(SEEDS)} seeds"
        (PICTURES / f"{name}.svg").write_text(draw(curves, (BASE, *group), title))
    print(table(curves))


if __name__ == "__main__":
    main()
