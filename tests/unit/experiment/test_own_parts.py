"""Parts that a user brings: by name, as a class, as an object; and what is refused."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import pytest
from torch import nn

import coterie
import own_parts
import toy
from coterie.core.errors import ConfigError, DataError
from coterie.core.settings import Local, NetSettings
from coterie.evaluate.knn import Knn
from coterie.experiment.config import resolve, resolve_request
from coterie.experiment.tables import arrange, parse_overrides, request
from coterie.kit import Method, stock
from coterie.methods.moon import MOON
from coterie.nets.build import make_backbone


def configured(**changes: Any) -> Any:
    """A shipped configuration with changes, as `coterie.run` takes them."""
    return resolve_request(request("digits/fedprox", changes))


@pytest.mark.parametrize(
    ("changes", "table", "key", "value"),
    [
        ({"method": "moon"}, "method", "name", "moon"),
        ({"method": {"name": "moon", "mu": 1}}, "method", "mu", 1.0),
        ({"method": MOON(mu=2)}, "method", "mu", 2.0),
        ({"method": MOON}, "method", "name", "moon"),
        ({"local": Local(lr=0.5)}, "local", "lr", 0.5),
        ({"local.lr": 0.25}, "local", "lr", 0.25),
        ({"net": own_parts.Net}, "net", "backbone", "own_parts:Net"),
        ({"net": {"backbone": own_parts.Net}}, "net", "backbone", "own_parts:Net"),
        ({"net": nn.Flatten()}, "net", "backbone", "object:Flatten"),
        ({"net": NetSettings(backbone="mlp")}, "net", "backbone", "mlp"),
        ({"data": own_parts.two_sites}, "data", "name", "own_parts:two_sites"),
        ({"partition": own_parts.Stripes(clients=4)}, "partition", "clients", 4),
        ({"partition": own_parts.Stripes}, "partition", "kind", "own_parts:Stripes"),
        ({"data.augment": "own_parts:Shade"}, "data", "augment", "own_parts:Shade"),
        (
            {"data": {"augment": own_parts.Shade(0.5)}},
            *("data", "augment", {"name": "own_parts:Shade", "strength": 0.5}),
        ),
        ({"evaluate": "knn"}, "evaluate", "with", ["knn"]),
        ({"evaluate": Knn(k=20)}, "evaluate", "with", [{"name": "knn", "k": 20}]),
        (
            {"evaluate": ["accuracy", Knn(k=20)]},
            *("evaluate", "with", ["accuracy", {"name": "knn", "k": 20}]),
        ),
        ({"executor": "serial"}, "executor", "kind", "serial"),
        ({"rounds": 5}, "run", "rounds", 5),
        ({"seed": 7}, "run", "seed", 7),
        ({"device": "cpu"}, "run", "device", "cpu"),
    ],
)
def test_names_tables_and_objects_end_in_the_same_table(
    changes: dict[str, Any], table: str, key: str, value: Any
) -> None:
    assert configured(**changes).tables[table][key] == value


def test_an_object_replaces_the_table_of_the_file_and_a_table_is_laid_over_it() -> None:
    file = resolve_request(request("digits/fedprox", {})).tables["local"]
    over = configured(local={"lr": 0.5}).tables["local"]
    assert over == {**file, "lr": 0.5}
    replaced = configured(local=Local(lr=0.5)).local
    assert replaced == Local(lr=0.5)


def test_the_command_line_takes_the_same_forms() -> None:
    words = ["rounds=5", "method=moon", "net=own_parts:Net", "local.lr=0.5"]
    tables = {"method": {"name": "moon"}, "net": {"backbone": "own_parts:Net"}}
    assert parse_overrides(words) == {**tables, "run": {"rounds": 5}, "local": {"lr": 0.5}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 2, "run.rounds": 3}, "run.rounds is given twice: rounds = 2 and run.rounds"),
        ({"method": "moon", "method.name": "solo"}, "method.name is given twice: method = 'moon'"),
        ({"local.lr": 1, "local": Local()}, "local is given twice: as an object and by its keys"),
        ({"epochs": 3}, "there is no table 'epochs'; did you mean local.epochs?"),
        ({"methood": "moon"}, "there is no table 'methood'; did you mean 'method'?"),
        ({"method": 3}, "method = 3 must be a table or a key like 'method.name'"),
        ({"local": 3}, "local = 3 must be a table or a key like 'local.key'"),
        ({"net": "own_parts:Nett"}, "net.backbone = 'own_parts:Nett' cannot be imported"),
        ({"partition": "own_parts:Net"}, "partition.kind = 'own_parts:Net' is not a partition"),
        ({"data.augment": "own_parts:Net"}, "data.augment = 'own_parts:Net' must be a class"),
        ({"data.augment": {"name": "simclr", "blur": 1}}, "data.augment = .* must be a name"),
        ({"net": "object:Net"}, "was an object of a Python program"),
        (
            {"net": nn.Flatten(), "executor": "processes"},
            "executor.kind = 'processes' needs parts that workers can import, and net is",
        ),
        ({"net": nn.Flatten(), "method": "solo"}, "'solo' draws fresh weights for each client"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config = configured(**changes)
        make_backbone(config.net, (1, 8, 8))


@pytest.mark.parametrize(
    ("own", "options", "message"),
    [
        (own_parts.Net, {"deep": 3}, "net.options = {'deep': 3}: .* 'deep'"),
        (lambda: 3, {}, "must make an nn.Module, not a int"),
        (nn.Conv2d(1, 2, 3), {}, r"must map \(n, 1, 8, 8\) to \(n, width\); for n = 2 it gave"),
        (nn.Linear(5, 2), {}, r"cannot take samples of shape \(1, 8, 8\): RuntimeError"),
    ],
)
def test_a_backbone_that_does_not_fit_says_why(own: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_backbone(NetSettings(backbone="object:Mine", options=options), (1, 8, 8), own)


def test_a_shipped_backbone_takes_no_options() -> None:
    with pytest.raises(ConfigError, match=r"net\.options is for a backbone of your own"):
        make_backbone(NetSettings(backbone="mlp", options={"hidden": 3}), (4,))


def test_a_module_is_copied_with_its_weights_and_its_width_is_measured() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5))
    made = make_backbone(NetSettings(backbone="object:Sequential"), (1, 8, 8), module)
    assert made is not module and made.width == 5 and made.training
    assert all(a.equal(b) for a, b in zip(made.parameters(), module.parameters(), strict=True))
    assert int(made[2].num_batches_tracked) == 0  # type: ignore[index]  # measured in eval mode


def test_own_parts_by_name_run_in_workers_as_in_one_process(toy_data: Path, tmp_path: Path) -> None:
    changes = {
        "net": {"backbone": "own_parts:Net", "options": {"hidden": 8}, "projection": 4},
        "partition": {"kind": "own_parts:Stripes", "clients": 3},
        "data.augment": {"name": "own_parts:Shade", "strength": 0.2},
    }
    tables = toy.tables(toy_data)
    del tables["partition"], tables["net"]
    for kind in ("serial", "processes"):
        coterie.run(tables, out=tmp_path / kind, **{**changes, "executor": kind})
    assert toy.trace(tmp_path / "serial") == toy.trace(tmp_path / "processes")


def test_objects_of_this_process_run_serially_and_can_be_resumed(
    toy_data: Path, tmp_path: Path
) -> None:
    @final
    @dataclass(frozen=True)
    class Mine(Method):
        init = stock.start_from_net
        broadcast = stock.send_model
        client_update = stock.train_objective
        server_update = stock.average
        model = stock.global_model

    notes: list[str] = []
    parts: dict[str, Any] = {"method": Mine(), "net": lambda shape: own_parts.Net(shape, 8)}
    heard = [lambda event: notes.append(getattr(event, "text", ""))]
    tables = {k: v for k, v in toy.tables(toy_data).items() if k != "executor"}
    coterie.run(tables, out=tmp_path / "run", recorders=heard, **parts)
    assert "method, net of this process only: executor.kind = serial" in notes
    saved = (tmp_path / "run" / "config.toml").read_text()
    assert 'name = "object:Mine"' in saved and 'kind = "serial"' in saved
    again = coterie.run(out=tmp_path / "run", resume=True, **parts)
    assert again.history
    with pytest.raises(ConfigError, match="was an object of a Python program: pass it again"):
        coterie.run(out=tmp_path / "run", resume=True)


def test_a_source_of_ones_own_gives_the_sites(tmp_path: Path) -> None:
    tables = {"data": {"name": "own_parts:two_sites"}, "net": {"backbone": "mlp"}}
    result = coterie.run("digits/fedavg", rounds=1, out=tmp_path / "run", **tables)
    assert result.clients == ("north", "south")


def test_nobody_asks_the_sites_of_a_source_for_each_others_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="those of sites stay where they are"):
        coterie.run(
            "digits/fedavg",
            data=own_parts.two_sites,
            net="mlp",
            evaluate="personal_probe",
            out=tmp_path / "run",
        )


def test_a_source_that_returns_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data for coterie\.fit: sites must be .* not a list"):
        coterie.run("digits/fedavg", data=lambda root: [root], out=tmp_path / "run")


def test_a_part_of_the_current_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("from own_parts import Net as Mine\n")
    code = (
        "import os, sys; sys.path[:] = [p for p in sys.path if p]\n"
        "from coterie.core.registry import import_own\n"
        "print(import_own('here:Mine', 'net.backbone').__name__)"
    )
    path = str(Path(own_parts.__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "Net"


def test_a_wrong_key_of_a_plain_table_is_answered_without_torch() -> None:
    code = (
        "import sys\n"
        "from coterie.core.errors import ConfigError\n"
        "from coterie.experiment.tables import request\n"
        "try: request('digits/moon', {'local': {'lrr': 1}})\n"
        "except ConfigError as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "local has no key 'lrr'; did you mean 'lr'?" in done.stdout


def test_tables_given_as_a_mapping_may_hold_objects() -> None:
    config = resolve({"method": {"name": "fedavg"}, "net": {"backbone": own_parts.Net}})
    assert config.net.backbone == "own_parts:Net"
    assert arrange([("net", {"backbone": nn.Flatten()})]).objects.keys() == {"net"}
