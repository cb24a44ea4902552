"""Tables at sites: their columns are fitted to sums, to the bits of a simulation of all sites."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fleet
import numpy as np
import pytest
import table_sites
from fleet import Cut, Fleet
from test_server import Notes, scores

import coterie
import toy
from coterie.core.errors import ConfigError, DataError, RunFailed
from coterie.deploy.client import Consent
from coterie.deploy.federation import FILE
from coterie.deploy.link import MemoryClientLink, Message
from coterie.deploy.own_data import OwnData

LONG = {"run": {"rounds": 3, "seed": 5}, "checkpoint": {"every": 1}}


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    return table_sites.write_tables(tmp_path / "sites")


def columns(folder: Path) -> list[dict[str, Any]]:
    """The columns that a run was trained on."""
    described: list[dict[str, Any]] = json.loads((folder / "model.json").read_text())["input"][
        "columns"
    ]
    return described


def check_equal(tmp_path: Path, root: Path, tables: dict[str, Any]) -> Fleet:
    """Run the federation in one process and over a link; compare all that they leave."""
    one, many = tmp_path / "one", tmp_path / "many"
    fleet.simulate(root, one, tables)
    clients = Fleet(root, tmp_path)
    clients.run(many, tables)
    clients.join()
    assert fleet.digests(many) == fleet.digests(one)
    assert scores(many) == scores(one)
    assert (many / "model.safetensors").read_bytes() == (one / "model.safetensors").read_bytes()
    return clients


@pytest.mark.parametrize("unseen", [0, 1])
@pytest.mark.parametrize("missing", ["mean", "drop"])
@pytest.mark.parametrize("standardise", ["federated", "site", "none"])
def test_deployed_tables_have_the_bits_of_a_simulation(
    standardise: str, missing: str, unseen: int, tmp_path: Path
) -> None:
    root = table_sites.write_tables(tmp_path / "sites", lacking=missing == "mean")
    keys = {"standardise": standardise, "missing": missing}
    tables = table_sites.tables(root, keys, cohort={"unseen": unseen})
    clients = check_equal(tmp_path, root, tables)
    assert any(line.startswith("  columns: the names and kinds") for line in clients.said["amiens"])
    if standardise != "site":
        assert columns(tmp_path / "many") == columns(tmp_path / "one")


def test_the_defaults_take_a_table_as_it_is(tmp_path: Path, sites: Path) -> None:
    tables = table_sites.tables(sites)
    del tables["data"]["categorical"]
    check_equal(tmp_path, sites, tables)
    age, pressure, smoker, _ = columns(tmp_path / "many")
    assert age["mean"] == age["filling"] and pressure["kind"] == "number"
    assert smoker == {"name": "smoker", "kind": "category", "values": ["no", "once", "yes"]}
    (own,) = (tmp_path / "site-berlin").glob("*/model.json")
    one, many, kept = (
        coterie.load(run).predict_proba(sites / "berlin.csv")
        for run in (tmp_path / "one", tmp_path / "many", own.parent)
    )
    assert np.array_equal(one, many) and np.array_equal(one, kept)
    assert len(one) == table_sites.ROWS["berlin"]


def test_sites_may_bring_test_rows_and_rows_without_a_label(tmp_path: Path, sites: Path) -> None:
    lines = (sites / "amiens.csv").read_text().splitlines()
    (sites / "amiens_test.csv").write_text("\n".join([lines[0], *lines[1:9]]) + "\n")
    blanked = [line.rpartition(",")[0] + "," for line in lines[50:]]
    (sites / "amiens.csv").write_text("\n".join([*lines[:50], *blanked]) + "\n")
    tables = table_sites.tables(sites)
    fleet.simulate(sites, tmp_path / "one", tables)
    own = tmp_path / "own"
    own.mkdir()
    for name in ("amiens.csv", "amiens_test.csv"):
        (own / name).write_bytes((sites / name).read_bytes())
    clients = Fleet(sites, tmp_path)
    clients.start("amiens", data=OwnData(str(own), "table"))
    for name in ("berlin", "cadiz"):
        clients.start(name)
    clients.run(tmp_path / "many", tables, start=False)
    assert fleet.digests(tmp_path / "many") == fleet.digests(tmp_path / "one")


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_statistics_of_a_site_by_itself_stay_there(norm: str, tmp_path: Path, sites: Path) -> None:
    net = {"backbone": "mlp", "projection": 8, "norm": norm, "bn_buffers": "local"}
    tables = table_sites.tables(sites, {"standardise": "site"}, net=net)
    check_equal(tmp_path, sites, tables)
    age, pressure, *_ = columns(tmp_path / "many")
    assert age["mean"] == {} and list(pressure["mean"]) == ["cadiz"]
    for client in (None, "cadiz") if norm == "none" else (None,):
        with pytest.raises(ConfigError, match="is in its own folder alone"):
            coterie.load(tmp_path / "many").predict(sites / "cadiz.csv", client=client)
    (run,) = (tmp_path / "site-cadiz").glob("*/model.json")
    shares = [
        coterie.load(folder).predict_proba(sites / "cadiz.csv", client="cadiz")
        for folder in (tmp_path / "one", run.parent)
    ]
    assert np.array_equal(*shares)


def test_the_server_may_have_rows_to_test_with(tmp_path: Path, sites: Path) -> None:
    tables = table_sites.tables(sites, evaluate={"with": ["accuracy", "personal"]})
    clients = Fleet(sites, tmp_path)
    for name in clients.names:
        clients.start(name)
    tests = {**tables, "data": {**tables["data"], "root": str(sites / "amiens.csv")}}
    result = fleet.serve(clients, tests, tmp_path / "run")
    assert result.history[-1].metrics["accuracy"] > 0.3


class Edited:
    """A client's link that changes some answers, or is cut when one is due."""

    def __init__(
        self, link: MemoryClientLink, kind: str, change: Any = None, cut: bool = False
    ) -> None:
        self._link, self._kind, self._change, self._cut = link, kind, change, cut
        self.receive, self.close = link.receive, link.close

    def reply(self, to: Message, kind: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        if kind == self._kind:
            if self._cut:
                raise Cut
            head = self._change(json.loads(json.dumps(head)))
        self._link.reply(to, kind, head, body)


def put(key: str, name: str, value: Any) -> Any:
    """A change of one entry of an answer."""
    return lambda head: {**head, key: {**head[key], name: value}}


WRONG: dict[str, tuple[str, Any, str]] = {
    "card": ("card", put("table", "columns", []), "a table has columns"),
    "sums": ("sums", put("sums", "age", [10**6, 1.0]), "1000000 values of a column in"),
    "squares": ("squares", put("squares", "age", -1.0), "-1.0 is no sum of squares"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_client_that_sends_no_sums_is_refused_and_the_run_goes_on(
    wrong: str, tmp_path: Path, sites: Path
) -> None:
    kind, change, reason = WRONG[wrong]
    clients, notes = Fleet(sites, tmp_path), Notes()
    clients.start("amiens")
    clients.start("berlin", link=Edited(clients.link.connect("berlin"), kind, change))
    clients.start("cadiz")
    tables = table_sites.tables(sites, run={"rounds": 1, "seed": 5})
    clients.run(tmp_path / "run", tables, start=False, recorders=[notes])
    line = next(text for text in notes.texts if "'berlin'" in text and "joined" not in text)
    assert reason in line
    known = json.loads((tmp_path / "run" / FILE).read_text())
    assert [info["name"] for info in known["clients"]] == ["amiens", "cadiz"]
    (sites / "berlin.csv").unlink()
    fleet.simulate(sites, tmp_path / "one", tables)
    assert fleet.digests(tmp_path / "run") == fleet.digests(tmp_path / "one")


@pytest.mark.parametrize("kind", ["card", "sums", "squares"])
def test_a_client_that_is_killed_in_the_exchange_is_asked_again(
    kind: str, tmp_path: Path, sites: Path
) -> None:
    tables = table_sites.tables(sites)
    fleet.simulate(sites, tmp_path / "one", tables)
    clients = Fleet(sites, tmp_path)
    clients.revived_in["berlin"] = tmp_path
    clients.start("amiens")
    clients.start("berlin", link=Edited(clients.link.connect("berlin"), kind, cut=True))
    clients.start("cadiz")
    clients.run(tmp_path / "run", tables, start=False)
    clients.join()
    assert fleet.digests(tmp_path / "run") == fleet.digests(tmp_path / "one")


def test_a_client_that_stays_away_is_left_out(tmp_path: Path, sites: Path) -> None:
    clients, notes = Fleet(sites, tmp_path), Notes()
    clients.start("amiens")
    clients.start("berlin", link=Edited(clients.link.connect("berlin"), "sums", cut=True))
    clients.start("cadiz")
    tables = table_sites.tables(sites, run={"rounds": 1, "seed": 5}, cohort={"min_clients": 3})
    with pytest.raises(RunFailed, match=r"2 clients left, and cohort.min_clients = 3"):
        clients.run(tmp_path / "run", tables, start=False, recorders=[notes], grace=0.5)
    assert any("'berlin' is refused: no sign of life" in text for text in notes.texts)


def test_columns_can_be_denied(tmp_path: Path, sites: Path) -> None:
    clients, notes = Fleet(sites, tmp_path), Notes()
    clients.start("amiens", Consent(deny=("columns",)))
    clients.start("berlin")
    clients.start("cadiz")
    tables = table_sites.tables(sites, run={"rounds": 1, "seed": 5})
    clients.run(tmp_path / "run", tables, start=False, recorders=[notes])
    clients.join()
    assert (
        "its operator denies columns (the names and kinds of its columns" in clients.ended["amiens"]
    )
    assert clients.ended["berlin"] == "the run is finished"
    assert any("leaves each client: columns: the names and kinds" in text for text in notes.texts)


@pytest.mark.parametrize("by", [KeyboardInterrupt, toy.Killed])
def test_a_resumed_server_asks_for_nothing_again(
    by: type[BaseException], tmp_path: Path, sites: Path
) -> None:
    tables = table_sites.tables(sites, **LONG)
    fleet.simulate(sites, tmp_path / "one", tables)
    clients, out = Fleet(sites, tmp_path), tmp_path / "run"
    with pytest.raises(BaseException):  # noqa: B017 - a kill has a class of its own
        clients.run(out, tables, recorders=[toy.StopAfter(1, by)])
    kept, sent = (out / FILE).read_bytes(), clients.link.send

    def watch(messages: list[Message]) -> list[str]:
        assert not {message.kind for message in messages} & {"invite", "sums", "squares"}
        return sent(messages)

    clients.link.send = watch  # type: ignore[method-assign,assignment]
    clients.run(out, tables, start=False, resume=True)
    clients.join()
    assert (out / FILE).read_bytes() == kept
    assert fleet.digests(out) == fleet.digests(tmp_path / "one")


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("pressure", "weight", "it has no column 'pressure', which site 'amiens' has"),
        ("age,", "age,,", "column 2 has no name"),
        ("yes", "7", "'no' is not a number, as other cells are"),
    ],
)
def test_a_site_with_other_columns_is_refused_by_their_name(
    old: str, new: str, reason: str, tmp_path: Path, sites: Path
) -> None:
    edit(sites / "cadiz.csv", old, new)
    clients = Fleet(sites, tmp_path)
    clients.run(tmp_path / "run", table_sites.tables(sites, run={"rounds": 1, "seed": 5}))
    clients.join()
    assert reason in clients.ended["cadiz"]
    assert clients.ended["amiens"] == "the run is finished"


def test_numbers_at_one_site_and_text_at_others_do_not_mix(tmp_path: Path, sites: Path) -> None:
    for old, new in (("yes", "1"), ("no", "0")):
        edit(sites / "amiens.csv", old, new)
    clients = Fleet(sites, tmp_path)
    clients.run(tmp_path / "run", table_sites.tables(sites, run={"rounds": 1, "seed": 5}))
    clients.join()
    told = "its column 'smoker' has numbers, and that of site 'berlin' text"
    assert told in clients.ended["amiens"]


def test_a_column_without_a_value_at_any_site_ends_the_run(tmp_path: Path, sites: Path) -> None:
    for path in sites.glob("*.csv"):
        lines = [line.split(",") for line in path.read_text().splitlines()]
        place = lines[0].index("age")
        for cells in lines[1:]:
            cells[place] = ""
        path.write_text("\n".join(map(",".join, lines)) + "\n")
    clients = Fleet(sites, tmp_path)
    with pytest.raises(DataError, match="column 'age' has no value in the training rows"):
        clients.run(tmp_path / "run", table_sites.tables(sites))
    clients.join()
    assert "column 'age' has no value" in clients.ended["berlin"]


def test_tables_and_images_do_not_mix(tmp_path: Path, sites: Path) -> None:
    images = fleet.write_sites(tmp_path / "images", images=True)
    clients = Fleet(sites, tmp_path)
    clients.start("amiens", data=OwnData(str(images / "amiens.npz")))
    clients.start("berlin")
    clients.start("cadiz")
    tables = table_sites.tables(sites, run={"rounds": 1, "seed": 5})
    clients.run(tmp_path / "run", tables, start=False)
    clients.join()
    assert "data.label = 'state' is for tables" in clients.ended["amiens"]
    assert clients.ended["berlin"] == "the run is finished"
