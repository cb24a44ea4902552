"""Bad configurations and bad data: one clear line, exit 2 or 3, no traceback, nothing written.

It comes within three seconds, plus the import of torch. Processor time is counted, of commands and
of what they start: a wall clock would tell how busy the machine is.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import toy
from coterie.cli.main import main
from coterie.experiment.config import resolve

Refused = Callable[..., str]
SECONDS = 3.0  # of processor time, until a command has refused

OVERRIDES: dict[str, tuple[str, ...]] = {
    # tables and keys, with the nearest spelling
    "rnu.seed=3": ("no table 'rnu'", "did you mean 'run'?"),
    ".seed=3": ("'.seed=3'", "table.key=value"),
    "run.=3": ("'run.=3'", "table.key=value"),
    "run.seed": ("'run.seed'", "table.key=value"),
    "digits/fedavgm": ("'digits/fedavgm'", "table.key=value"),
    "local.learning_rate=1": ("local has no key 'learning_rate'", "takes: epochs"),
    "local.momentun=0": ("no key 'momentun'", "did you mean 'momentum'?"),
    "method.mu=1": ("method has no key 'mu'", "fedavg takes: no key"),
    "partition.alpha=1": ("partition has no key 'alpha'", "dirichlet takes: ", "beta"),
    "partition.nam=iid": ("partition has no key 'nam'",),
    "run.seed.low=1": ("run has no key 'seed.low'",),
    "evaluate.evaluator=[]": ("evaluate has no key 'evaluator'", "with"),
    'evaluate.with={name="knn",kk=3}': (
        "evaluate.with: knn has no key 'kk'; did you mean 'k'? knn",
    ),
    'evaluate.with={name="knn",key="a"}': ("knn has no key 'key'", "layer, where, as"),
    "data.folder=here": ("data has no key 'folder'",),
    'net.weights="a\\u0000b"': ("net.weights = 'a\\x00b' does not exist",),
    # wrong types
    "run.seed=": ("run.seed = ''", "integer"),
    "run.seed=abc": ("run.seed = 'abc'", "integer"),
    "run.seed=1.5": ("run.seed = 1.5", "integer"),
    "run.seed=true": ("run.seed = True", "integer"),
    "run.seed=2024-01-01": ("run.seed = ", "2024", "integer"),
    "local.lr=true": ("local.lr = True", "number"),
    "local.lr=fast": ("local.lr = 'fast'", "number"),
    'local.lr="0.1"': ("local.lr = '0.1'", "number"),
    "local.nesterov=1": ("local.nesterov = 1", "boolean"),
    "local.milestones=3": ("local.milestones = 3",),
    "local.milestones=[1.5]": ("local.milestones = [1.5]", "integer"),
    "executor.devices=cpu": ("executor.devices = 'cpu'",),
    "evaluate.with=3": ("evaluate.with = 3", "array"),
    "evaluate.with=[3]": ("evaluate.with = [3]", "string"),
    "evaluate.last=[{k=3}]": ("evaluate.last = ", "needs a name"),
    'evaluate.with=[{name="knn",as="a/b"}]': ("as = 'a/b' of 'knn'", "letters"),
    'evaluate.with=[{name="knn",as="method"}]': ("as = 'method'",),
    'evaluate.with=[{name="knn",k=0}]': ("evaluate.with: knn.k = 0", "greater than or equal to 1"),
    'evaluate.with=[{name="knn",temperature=inf}]': ("knn.temperature = inf", "finite"),
    'evaluate.with=[{name="probe_1",layer="y"}]': ("probe_1.layer = 'y'", "'h' or 'z'"),
    "record.online=1": ("record.online = 1", "boolean"),
    "record.to=tensorbord": ("record.to = 'tensorbord'", "did you mean 'tensorboard'"),
    "record.tensorboard=true": ("record.tensorboard", 'record.to = ["tensorboard"]'),
    "method.name=5": ("method.name = 5", "name"),
    "data.root=3": ("data.root = 3", "string"),
    os.fsdecode(b"data.root=a\xffb"): (r"data.root = 'a\udcffb' is no UTF-8", "rename the file"),
    os.fsdecode(b"net.options={'\xff'=1}"): ("net.options = ", r"\udcff", "is no UTF-8"),
    # ranges
    "run.seed=-1": ("run.seed = -1", "greater than or equal to 0"),
    "run.rounds=0": ("run.rounds = 0", "greater than or equal to 1"),
    "local.epochs=0": ("local.epochs = 0",),
    "local.steps=-1": ("local.steps = -1",),
    "local.batch_size=1": ("local.batch_size = 1", "greater than or equal to 2"),
    "local.accumulate=0": ("local.accumulate = 0",),
    "local.lr=0": ("local.lr = 0", "greater than 0"),
    "local.momentum=1.0": ("local.momentum = 1.0", "less than 1"),
    "local.clip=-1": ("local.clip = -1",),
    "local.milestones=[-1]": ("local.milestones = [-1]",),
    "server.lr=0": ("server.lr = 0",),
    "cohort.fraction=0": ("cohort.fraction = 0",),
    "cohort.fraction=1.5": ("cohort.fraction = 1.5", "less than or equal to 1"),
    "cohort.drop_before=2": ("cohort.drop_before = 2",),
    "cohort.min_clients=0": ("cohort.min_clients = 0",),
    "cohort.min_clients=7": ("cohort.min_clients = 7", "6 of 6 clients", "cohort.fraction"),
    "executor.workers=-1": ("executor.workers = -1",),
    "executor.timeout=-1": ("executor.timeout = -1",),
    "evaluate.targets=[1.5]": ("evaluate.targets = [1.5]", "less than or equal to 1"),
    "evaluate.targets=[0.5, -0.1]": ("evaluate.targets = [0.5, -0.1]",),
    "checkpoint.keep=0": ("checkpoint.keep = 0",),
    "net.projection=-1": ("net.projection = -1",),
    # numbers that are none
    "local.lr=nan": ("local.lr = nan", "finite"),
    "local.lr=inf": ("local.lr = inf", "finite"),
    "executor.timeout=nan": ("executor.timeout = nan", "finite"),
    "evaluate.targets=[nan]": ("evaluate.targets = [nan]",),
    f"local.lr=1{'0' * 400}": ("local.lr = 1000",),
    f"run.seed=1{'0' * 5000}": ("run.seed = ", "integer"),
    # names
    "method.name=fedavgg": ("method.name = 'fedavgg'", "did you mean 'fedavg'?"),
    "objective.name=superwised": ("objective.name = 'superwised'", "'supervised'?"),
    "partition.kind=diriclet": ("partition.kind = 'diriclet'", "'dirichlet'?"),
    "data.name=digit": ("data.name = 'digit'", "'digits'?"),
    "data.augment=sepia": ("data.augment = 'sepia'", "none"),
    "net.backbone=simple_cnn": ("net.backbone = 'simple_cnn'", "'simple-cnn'?"),
    "net.norm=layer": ("net.norm = 'layer'", "'bn'", "'none'"),
    "local.optimizer=rmsprop": ("local.optimizer = 'rmsprop'", "'sgd'"),
    "local.schedule=linear": ("local.schedule = 'linear'", "'cosine'"),
    "server.optimizer=sgd": ("server.optimizer = 'sgd'", "'momentum'"),
    "executor.kind=threads": ("executor.kind = 'threads'", "'serial', 'processes' or 'ray'"),
    'evaluate.with=["acuracy"]': ("evaluate.with = 'acuracy'", "'accuracy'?"),
    "evaluate.last=personal_kn": ("evaluate.last = 'personal_kn'", "'personal_knn'?"),
    # the user's own classes
    "method.name=no.such.module:Mine": ("'no.such.module:Mine'", "cannot be imported", "no"),
    "method.name=toy_methods:Nobody": ("'toy_methods:Nobody'", "cannot be imported"),
    "method.name=:Mine": ("method.name = ':Mine'", "cannot be imported"),
    "method.name=broken_module:Mine": ("'broken_module:Mine'", "cannot be imported", "line 1"),
    "method.name=raising_module:Mine": ("'raising_module:Mine'", "cannot be imported", "absent"),
    "method.name=toy_methods:Following": ("'toy_methods:Following'", "not a Method"),
    "method.name=toy_methods:train": ("'toy_methods:train'", "not a Method"),
    "method.name=__main__:Mine": ("'__main__:Mine'", "put the class in a module"),
    "method.name=coterie.kit.method:Method": ("coterie.kit.method:Method", "dataclass"),
    "objective.name=toy_methods:Staged": ("'toy_methods:Staged'", "Objective"),
    'evaluate.with=["toy_methods:Staged"]': ("'toy_methods:Staged'", "not an evaluator"),
    'evaluate.with=["coterie.kit.evaluator:Evaluator"]': ("evaluate.with", "evaluator:Evaluator"),
    'evaluate.with=["coterie.nets.heads:Network"]': ("evaluate.with", "heads:Network"),
    # devices
    "run.device=tpu": ("run.device = 'tpu'", "cannot be used here"),
    "run.device=": ("run.device = ''", "cannot be used here"),
    "run.device=cuda:99": ("run.device = 'cuda:99'", "cannot be used here"),
    "run.device=meta": ("run.device = 'meta'", "cannot be used here"),
    'executor.devices=["cpu","cuda:99"]': ("executor.devices = 'cuda:99'", "cannot be used"),
    # impossible divisions
    "partition.clients=0": ("partition.clients = 0",),
    "partition.beta=0": ("partition.beta = 0", "greater than 0"),
    "partition.clients=181": ("partition.clients=181", "180 training samples"),
    "partition.min_samples=31": ("partition.min_samples=31", "180", "min_samples=30"),
    "partition.beta=1e-9": ("partition.beta=1e-09", "partition.min_samples=4", "or more"),
}

TOGETHER: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "nesterov": (["local.nesterov=true", "local.momentum=0"], ("local.nesterov", "momentum")),
    "step schedule": (["local.schedule=step"], ("local.schedule = 'step'", "local.milestones")),
    "sampled": (
        ["cohort.fraction=0.5", "cohort.min_clients=4"],
        ("cohort.min_clients = 4", "invites 3 of 6"),
    ),
    "objective": (
        ["method.name=toy_methods:Addressed", "objective.name=toy_methods:Following"],
        ("method.name = 'toy_methods:Addressed'", "supervised", "'toy_methods:Following'"),
    ),
    "iid": (["partition.kind=iid", "partition.beta=1"], ("no key 'beta'", "iid takes: ")),
    "backbone": (["net.backbone=simple-cnn"], ("net.backbone = 'simple-cnn'", "(6,)", "'mlp'")),
}

FILES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "broken": ("[run\nseed = 1", ("config.toml is not TOML",)),
    "two keys": ("[run]\nseed = 1\nseed = 2", ("config.toml is not TOML",)),
    "no text": (b"\xff\xfe\x00", ("config.toml is not TOML",)),
    "table": ("[trainer]\nseed = 1", ("no table 'trainer'",)),
    "misspelt table": ("[locall]\nlr = 1", ("no table 'locall'", "'local'?")),
    "no table": ("run = 3", ("config.toml", "run must be a table")),
    "tables": ("[[run]]\nseed = 3", ("config.toml", "run must be a table")),
    "key": ("[run]\nround = 3", ("run has no key 'round'", "'rounds'?")),
    "top-level key": ("seed = 3", ("no table 'seed'",)),
    "value": ("[local]\nlr = nan", ("local.lr = nan", "finite")),
    "time": ("[run]\nseed = 07:32:00", ("run.seed", "integer")),
    "giant": (f"[run]\nseed = 1{'0' * 5000}", ("config.toml is not TOML",)),
    "brackets": (f"[run]\nseed = {'[' * 10_000}{']' * 10_000}", ("nested more than 20 levels",)),
    "dots": (f"[net.options]\n{'a.' * 10_000}b = 1", ("nested more than 20 levels",)),
    "long name": (f"[{'x' * 9000}]\nseed = 3", ("no table 'xxx", "xxx'; there are: run")),
    "long key": (f"[run]\n{'x' * 9000} = 3", ("run has no key 'xxx", "xxx'; run takes: seed")),
    "long value": (f"[local]\nlr = '{'x' * 9000}'", ("local.lr = 'xxx", "valid number")),
    "escapes": ("[local]\nlr = '\\u001b[31m'".replace("'", '"'), (r"local.lr = '\x1b[31m'",)),
    "huge": (f"[run]\nrounds = {10**12}", ("run.rounds = 1000000000000", "equal to 100000")),
}

COMMANDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "no such config": (["run", "digits/fedvag"], ("'digits/fedvag'", "'digits/fedavg'?")),
    "no such file": (["run", "mine.toml"], ("no configuration 'mine.toml'", "configs")),
    "a directory": (["run", "/tmp"], ("no configuration '/tmp'",)),
    "a form": (["run", "epochs=3"], ("no table 'epochs'", "did you mean local.epochs?")),
    "resume": (["run", "--resume"], ("--resume needs --out",)),
    "option": (["run", "--rusume"], ("--rusume",)),
    "no value": (["run", "--out"], ("--out", "requires an argument")),
    "command": (["trian"], ("'trian'", "coterie --help")),
    "kind": (["list", "metods"], ("'metods'", "'methods'?")),
    "other kind": (["list", "zzz"], ("'zzz'", "methods, objectives, nets")),
    "no name": (["run", ""], ("there is no configuration ''",)),
    "recipe": (["reproduce", "r" * 5000], ("there is no recipe 'rrr",)),
    "two runs": (["compare", "fedavg", "--out", "o" * 300], ("--out 'ooo", "too long for a path")),
    "grid": (["sweep", "digits/fedavg", "run.seed=1,2", "--out", "/dev/null"], ("is a device",)),
    "study": (["reproduce", "moon-table1", "--out", "/dev/null/x"], ("is a device",)),
    "long command": (["t" * 5000], ("'ttt", "coterie --help")),
    "number": (["compare", "fedavg", "--seeds", "many"], ("--seeds", "integer")),
}


def processor_time() -> float:
    """Seconds that this process and its children that have ended have computed."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Refused]:
    """Run the command in an empty folder: it must fail as promised; what it said."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def call(*arguments: str, code: int = 2, words: tuple[str, ...] = ()) -> str:
        begin = processor_time()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        spent, said = processor_time() - begin, capsys.readouterr()
        assert ended.value.code == code, said.err
        assert spent < SECONDS, f"refused after {spent:.1f} s of processor time"
        assert said.out == ""
        assert said.err.startswith("coterie: ")
        assert said.err.count("\n") == 1 and said.err.endswith("\n")
        assert len(said.err) < 1050 and "\x1b" not in said.err
        assert "Traceback" not in said.err and "this is a bug" not in said.err
        for word in words:
            assert word in said.err
        assert not list(work.iterdir())
        return said.err

    yield call
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def config(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "toy.toml"
    path.write_text(resolve(toy.tables(toy_data)).to_toml())
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def broken_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "broken_module.py").write_text("class Mine(:\n")
    (folder / "raising_module.py").write_text("Mine = absent\n")
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda text: text[:60])
def test_a_bad_override(override: str, config: str, refused: Refused) -> None:
    refused("run", config, override, words=OVERRIDES[override])


@pytest.mark.parametrize("case", TOGETHER)
def test_values_that_do_not_go_together(case: str, config: str, refused: Refused) -> None:
    overrides, words = TOGETHER[case]
    refused("run", config, *overrides, words=words)


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file(case: str, tmp_path: Path, refused: Refused) -> None:
    text, words = FILES[case]
    path = tmp_path / "config.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused("run", str(path), words=words)


def test_a_configuration_that_is_no_file_or_too_large(tmp_path: Path, refused: Refused) -> None:
    pipe, large, bound = (tmp_path / name for name in ("pipe", "large.toml", "socket"))
    os.mkfifo(pipe)
    with large.open("wb") as file:
        file.truncate(100_000_000)
    refused("run", str(large), words=("100,000,000 bytes", "at most 1,000,000"))
    refused("run", str(pipe), words=("no configuration", "that is a pipe"))
    refused("run", str(tmp_path), words=("no configuration", "that is a folder"))
    refused("run", "/dev/zero", words=("no configuration '/dev/zero': that is a device",))
    refused("run", "c" * 300, words=("no configuration 'ccc", "too long for a path"))
    refused("run", "/c" * 4096, words=("no configuration '/c/c", "too long for a path"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bound))
        refused("run", str(bound), words=("no configuration", "that is a socket"))


OUT = {
    "name": ("o" * 300, "too long for a path"),
    "path": ("/o" * 2000, "too long for a path"),
    "no text": (os.fsdecode(b"a\xffb"), r"'a\udcffb' has a path that is no UTF-8"),
    "device": ("/dev/null", "/dev/null is a device"),
    "below a file": ("/dev/null/run", "/dev/null is a device"),
}


@pytest.mark.parametrize("case", OUT)
def test_a_run_directory_that_cannot_be(case: str, config: str, refused: Refused) -> None:
    path, problem = OUT[case]
    for more in ((), ("--dry-run",), ("--resume",)):
        refused("run", config, "--out", path, *more, words=("the run directory '", problem))


@pytest.mark.parametrize("case", COMMANDS)
def test_a_bad_command(case: str, refused: Refused) -> None:
    arguments, words = COMMANDS[case]
    refused(*arguments, words=words)


def test_a_dry_run_refuses_the_same(config: str, refused: Refused) -> None:
    for override in ("local.lr=nan", "partition.clients=181", "run.device=tpu"):
        refused("run", config, override, "--dry-run", words=OVERRIDES[override])


def test_a_used_directory_needs_resume(
    toy_data: Path, config: str, tmp_path: Path, refused: Refused
) -> None:
    out = tmp_path / "run"
    toy.run(toy_data, out, run={"rounds": 1})
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    refused("run", config, "--out", str(out), words=(f"{out} holds a run already", "--resume"))
    after = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"}
    assert after == before


def test_an_accuracy_without_a_classifier(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    (tmp_path / "headless.py").write_text(
        "from dataclasses import dataclass\n"
        "from coterie.kit.objective import Loss, Objective\n"
        "from coterie.nets.heads import Network\n\n\n"
        "@dataclass(frozen=True)\n"
        "class Headless(Objective):\n"
        "    def build(self, backbone, classes, projection):\n"
        "        return Network(backbone)\n\n"
        "    def loss(self, net, batch):\n"
        "        return Loss(net(batch.x).h.pow(2).mean())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    refused("run", config, "objective.name=headless:Headless", words=("evaluate.with",))


@pytest.mark.slow
def test_a_command_of_its_own_refuses_within_three_seconds_and_the_import_of_torch(
    config: str, tmp_path: Path
) -> None:
    def spend(*words: str) -> tuple[int, float]:
        begin = processor_time()
        ended = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True)
        return ended.returncode, processor_time() - begin

    _, importing = spend("-c", "import torch")
    for override, expected in (("rnu.seed=3", 2), ("data.root=nowhere.npz", 3)):
        code, spent = spend("-m", "coterie", "run", config, override)
        assert code == expected
        assert spent < importing + SECONDS
