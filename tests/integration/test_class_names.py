"""Classes and clients keep the names that they were given, in everything that a run leaves."""

import csv
import json
import os
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import coterie
from coterie.cli.main import main
from coterie.core.errors import DataError

CLASSES, SITES = ["cat & dog", "normal", "pneumothorax <b>"], ["north", "south"]
SMALL = ["data.name=sites", "data.augment=none", "executor.kind=serial", "local.epochs=1"]


def make_images(root: Path) -> Path:
    """Two sites with six images of each class, the classes of different brightness."""
    draw = np.random.default_rng(2)
    for site in SITES:
        for brightness, name in enumerate(CLASSES):
            folder = root / site / name
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = draw.integers(0, 60, (8, 8)) + 90 * brightness
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return root


def command(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images") / "hospitals")


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("named") / "run"
    words = [*SMALL, f"data.root={images}", "record.embedding=20", "run.rounds=1"]
    command("run", "digits/fedavg", *words, "--out", str(out))
    return out


def find_charts(page: str) -> dict[str, dict]:  # type: ignore[type-arg]
    parts = page.split("<figcaption><h3>")[1:]
    charts = (
        (part.split("</h3>")[0], part.split('<script type="application/json">')[1])
        for part in parts
    )
    return {title: json.loads(text.split("</script>")[0]) for title, text in charts}


def test_the_files_of_a_run_name_the_classes(run: Path) -> None:
    config = (run / "config.toml").read_text()
    tomllib.loads(config)
    assert f"# classes, in the order of the network's outputs: {json.dumps(CLASSES)}" in config
    assert json.loads((run / "model.json").read_text())["classes"] == CLASSES
    split = json.loads((run / "partition.json").read_text())
    assert split["class_names"] == CLASSES
    assert [(c["name"], c["id"]) for c in split["clients"]] == [("north", 0), ("south", 1)]
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert list(last["recall"]) == CLASSES and list(last["clients"]) == SITES


def test_the_report_names_classes_and_clients(run: Path) -> None:
    page = (run / "report.html").read_text()
    charts = find_charts(page)
    held = charts["Who holds what"]
    assert held["columns"] == CLASSES and held["rows"] == SITES
    assert "<b>" not in page.split("<section")[1]
    by_class, by_client = (view["groups"]["names"] for view in charts["Representations"]["views"])
    assert [name for _, name in by_class] == CLASSES
    assert [name for _, name in by_client] == SITES
    assert charts["Recall by class"]["labels"] == CLASSES
    assert [view["name"] for view in charts["Confusion"]["views"]][1:] == [
        f"client {name}" for name in SITES
    ]


def test_the_partition_is_shown_with_names(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    words = [*SMALL, f"data.root={images}", "cohort.unseen=1", "--out", str(page)]
    command("partition", "digits/fedavg", *words)
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("client"))
    assert head.split("  ")[-3:] == ["cat & dog", "normal", "pneumothora…"]
    assert find_charts(page.read_text())["Who holds what"]["columns"] == CLASSES


def test_predictions_name_the_classes(run: Path, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    command("predict", str(run), str(images / "north"), "--out", str(out))
    with out.open() as stream:
        head, *rows = csv.reader(stream)
    assert head == ["sample", "prediction", *CLASSES] and len(rows) == 18
    assert {row[1] for row in rows} <= set(CLASSES)


def test_a_folder_whose_name_is_no_text_is_refused(images: Path, tmp_path: Path) -> None:
    for site in SITES:
        for name in (b"\xff", b"ok"):
            folder = tmp_path / "odd" / site / os.fsdecode(name)
            folder.mkdir(parents=True)
            for number in range(5):
                source = (images / "north" / "normal" / f"{number}.png").read_bytes()
                (folder / f"{number}.png").write_bytes(source)
    with pytest.raises(DataError, match=r"the class '\\udcff' has a name that is no UTF-8"):
        coterie.run("digits/fedavg", data={"name": "sites", "root": str(tmp_path / "odd")})
