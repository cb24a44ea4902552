"""A made-up run directory, and what its page shows."""

import html
import json
import math
import re
from pathlib import Path
from typing import Any

from coterie.report import write_report

EVIL = '<img src=x onerror="alert(1)"></script><b>&'


def make_run(
    folder: Path,
    rounds: int = 3,
    clients: int = 4,
    classes: int = 10,
    *,
    every: int = 1,
    accuracy: bool = True,
    trouble: bool = False,
    targets: str = "[0.3, 0.99]",
    seed: int = 1,
    method: str = "fedavg",
    more: str = "",
    lift: float = 0.0,
    by_client: bool = False,
    **extra: float,
) -> Path:
    """A run directory with a smooth, made-up course.

    `more` is added to the configuration, `lift` to the accuracy.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        f'[run]\nseed = {seed}\nrounds = {rounds}\n[data]\nname = "digits"\n'
        '[partition]\nkind = "dirichlet"\n'
        f"alpha = 0.3\nclients = {clients}\n[net]\nbackbone = 'mlp'\n[method]\nname = {method!r}\n"
        f"[method.options]\nmu = 0.1\n[evaluate]\nevery = {every}\ntargets = {targets}\n{more}"
    )
    held = [[(7 * i + 3 * k * i) % 23 for k in range(classes)] for i in range(clients)]
    split = {
        "dataset": "digits",
        "digest": "ab" * 32,
        "classes": classes,
        "clients": [
            {"name": f"site {i}", "train": sum(row), "test": i, "classes": row}
            for i, row in enumerate(held)
        ],
        "heterogeneity": {"label_skew": 0.41},
    }
    (folder / "partition.json").write_text(json.dumps(split))
    lines = []
    for i in range(rounds):
        rise = 1 - math.exp(-3 * (i + 1) / max(10, rounds))
        metrics = {"train_loss": 2.3 - 2 * rise, "train_steps": 5.0}
        if (i + 1) % every == 0 or i + 1 == rounds:
            metrics |= {"loss": 2.4 - 1.8 * rise, **extra}
            if accuracy:
                metrics |= {
                    "accuracy": 0.1 + 0.8 * rise + lift,
                    "client_accuracy_mean": 0.1 + 0.7 * rise,
                    "client_accuracy_std": 0.2,
                    "client_accuracy_worst_decile": 0.4 * rise,
                    "client_loss_mean": 2.5 - 1.7 * rise,
                }
        lines.append(
            json.dumps(
                {
                    "round": i,
                    "stage": "train",
                    "cohort": list(range(clients)),
                    "lost": {"1": "dropped before the round"} if trouble and i % 2 else {},
                    "rejected": {"2": f"error: {EVIL}"} if trouble and i % 3 == 0 else {},
                    "skipped": trouble and i % 7 == 1,
                    "metrics": metrics,
                    "bytes_up": 1_000_000,
                    "bytes_down": 2_000_000,
                    "evaluation_bytes_up": 0,
                    "evaluation_bytes_down": 500_000,
                    "seconds": 1.5,
                    "digest": f"{i:064x}",
                    "states": "cd" * 32,
                    "clients": {
                        f"site {k}": {"accuracy": 0.1 + 0.8 * rise * k / clients}
                        for k in range(clients if by_client else 0)
                    },
                }
            )
        )
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def page_of(folder: Path) -> str:
    """The page without the script and the style that are inlined in it."""
    text = write_report(folder).read_text(encoding="utf-8")
    assert text.count("<script>") == text.count("<style>") == 1
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


def charts_of(page: str) -> dict[str, dict[str, Any]]:
    """The specs of the charts by title, each with its first view."""
    found = {}
    pattern = r'<h3>([^<]*)</h3>(?:(?!<h3>).)*?<script type="application/json">(.*?)</script>'
    for title, text in re.findall(pattern, page, flags=re.DOTALL):
        assert "NaN" not in text and "Infinity" not in text
        spec = json.loads(text)
        assert spec["kind"] in ("lines", "bars", "rows", "grid", "strips", "points")
        found[html.unescape(title)] = {**spec, **spec.get("views", [{}])[0]}
    return found


def by_name(spec: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {line["name"]: line for line in spec["series"]}


def sections_of(page: str) -> list[str]:
    """The titles of the sections, in order."""
    return [html.unescape(title) for title in re.findall(r"<h2>([^<]*)</h2>", page)]
