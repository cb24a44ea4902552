"""Exported networks: every format gives the outputs of the network that `load` gives."""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import coterie
import made_model
from coterie.core import registry
from coterie.core.errors import CheckpointError, ConfigError
from coterie.experiment import export as module
from coterie.experiment.result import Result
from coterie.methods.mfcl import MFCL
from coterie.nets.heads import Network
from coterie.objectives.byol import BYOL
from coterie.objectives.simclr import SimCLR
from coterie.objectives.simsiam import SimSiam

Outputs = Mapping[str, Tensor]
Program = Callable[[Tensor], Outputs]
MODULAR = MFCL(share_representations=True, sensor_width=16)
JOINT = MFCL(share_representations=True, share_labels=True, joint="projection", sensor_width=16)


def run_onnx(path: Path) -> Program:
    session = onnxruntime.InferenceSession(path)
    assert [given.name for given in session.get_inputs()] == ["x"]
    names = [output.name for output in session.get_outputs()]

    def call(x: Tensor) -> Outputs:
        outputs = session.run(None, {"x": x.numpy()})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    return call


def run_pt2(path: Path) -> Program:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's remarks on its own internals
        program = torch.export.load(path).module()

    def call(x: Tensor) -> Outputs:
        outputs: Outputs = program(x)
        return outputs

    return call


def expected(net: nn.Module, x: Tensor) -> Outputs:
    """The outputs of the network itself."""
    with torch.no_grad():
        outputs = net(x)
    if not isinstance(net, Network):
        return {"h": outputs}
    if outputs.logits is None:
        return {"h": outputs.h, "z": outputs.z}
    return {"logits": outputs.logits}


def draw(result: Result, count: int) -> tuple[np.ndarray, Tensor]:
    """Samples in the form of the training data, and as a program takes them."""
    given = json.loads((result.folder / "model.json").read_text())["input"]
    shape, generator = given["shape"], np.random.default_rng(count)
    if given["dtype"] == "float32":
        x = generator.normal(size=(count, *shape)).astype(np.float32)
        return x, torch.from_numpy(x)
    x = generator.integers(0, 256, (count, *shape), np.uint8)
    return x, torch.from_numpy(x.astype(np.float32) / 255)


RUNNERS = {"pt2": run_pt2, "onnx": run_onnx}
PROGRAM = ("pt2",)  # where the graph has no operation that another test does not write as ONNX


def compare(
    result: Result,
    folder: Path,
    sizes: tuple[int, ...] = (1, 2, 7),
    formats: tuple[str, ...] = tuple(RUNNERS),
    **choice: Any,
) -> tuple[str, ...]:
    """Export in these formats, and the weights; compare outputs; return the names of those."""
    programs = [RUNNERS[e](result.export(folder / f"net.{e}", **choice)) for e in formats]
    weights = result.export(folder / "net.safetensors", **choice)
    client = choice.get("client")
    if choice.get("what") == "encoder":
        net: nn.Module = result.encoder(client=client)
    else:
        net = result.model() if client is None else result.personal(client)
    saved = load_file(weights)
    assert saved.keys() == net.state_dict().keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in net.state_dict().items())
    names: tuple[str, ...] = ()
    for program in programs:
        for size in sizes:
            x, unit = draw(result, size)
            wanted, outputs = expected(net, result.prepare(x)), program(unit)
            assert list(outputs) == list(wanted)
            for name, tensor in wanted.items():
                torch.testing.assert_close(outputs[name], tensor, rtol=1e-5, atol=1e-5)
            names = tuple(outputs)
    return names


BACKBONES: dict[str, tuple[int, ...]] = {
    "simple-cnn": (1, 16, 16),
    "resnet8": (3, 16, 16),
    "resnet18": (3, 16, 16),
    "resnet50": (3, 16, 16),
    "mlp": (6,),
    "logistic": (6,),
    "conv1d": (2, 40),
}


def test_no_backbone_is_left_out() -> None:
    assert set(BACKBONES) == set(registry.names("nets/backbones"))


@pytest.mark.parametrize(
    ("backbone", "shape", "dtype"),
    [
        pytest.param(
            *(name, shape, "uint8" if len(shape) == 3 else "float32"),
            marks=[pytest.mark.slow] if name in ("resnet18", "resnet50") else [],
        )
        for name, shape in (*BACKBONES.items(), ("mlp", (1, 8, 8)))
    ],
)
def test_every_backbone_gives_the_same_logits_in_every_format(
    backbone: str, shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    folder = made_model.write(tmp_path / "run", shape, dtype=dtype, backbone=backbone)
    deep = backbone in ("resnet18", "resnet50")  # more of the blocks of resnet8
    formats = PROGRAM if deep else tuple(RUNNERS)
    assert compare(coterie.load(folder), tmp_path, formats=formats) == ("logits",)


@pytest.mark.parametrize(
    ("net", "formats"),
    [
        ({"backbone": "resnet8", "norm": "pn"}, PROGRAM),
        ({"backbone": "resnet8", "norm": "gn", "norm_first": "pn"}, tuple(RUNNERS)),
        ({"backbone": "mlp", "norm": "none", "projection": 0}, PROGRAM),
        ({"backbone": "resnet8", "unit_projection": True}, PROGRAM),
        ({"backbone": "simple-cnn", "unit_projection": True}, tuple(RUNNERS)),
    ],
)
def test_other_norms_are_exported(
    net: dict[str, Any], formats: tuple[str, ...], tmp_path: Path
) -> None:
    folder = made_model.write(tmp_path / "run", (3, 12, 12), **net)
    assert compare(coterie.load(folder), tmp_path, formats=formats) == ("logits",)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"objective": BYOL(hidden=16)}, ("h", "z")),
        ({"objective": SimSiam(hidden=16)}, ("h", "z")),
        ({"objective": SimSiam(hidden=16), "unit_projection": True}, ("h", "z")),
        ({"method": MODULAR, "objective": SimCLR()}, ("h", "z")),
        ({"method": JOINT, "objective": SimCLR()}, ("logits",)),
    ],
)
def test_networks_of_other_methods_and_objectives_are_exported(
    parts: dict[str, Any], names: tuple[str, ...], tmp_path: Path
) -> None:
    modular = "method" in parts
    backbone, formats = ("resnet8", tuple(RUNNERS)) if modular else ("simple-cnn", PROGRAM)
    folder = made_model.write(tmp_path / "run", (3, 15, 15), backbone=backbone, **parts)
    assert compare(coterie.load(folder), tmp_path, formats=formats) == names


def test_without_shared_statistics_the_programs_use_those_of_each_batch(tmp_path: Path) -> None:
    folder = made_model.write(tmp_path / "run", (3, 12, 12), backbone="resnet8", bn_buffers="local")
    result = coterie.load(folder)
    assert compare(result, tmp_path, sizes=(2, 7)) == ("logits",)
    assert described(tmp_path / "net.onnx")["smallest_batch"] == 2
    own = {"what": "personal", "client": "north"}
    assert compare(result, tmp_path, formats=PROGRAM, **own) == ("logits",)
    assert described(tmp_path / "net.pt2")["smallest_batch"] == 1


@pytest.mark.parametrize("kernel", ["native", "torch"])
def test_a_network_of_either_kernel_is_exported(kernel: str, tmp_path: Path) -> None:
    result = coterie.run(
        "digits/fedavg",
        out=tmp_path / "run",
        run={"rounds": 1},
        data={"limit": 100},
        partition={"clients": 2},
        local={"epochs": 1},
        net={"kernel": kernel},
        executor={"kind": "serial"},
    )
    assert compare(result, tmp_path, formats=PROGRAM) == ("logits",)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return coterie.load(made_model.write(tmp_path_factory.mktemp("made") / "run"))


@pytest.mark.parametrize("client", [None, "north"])
def test_an_encoder_gives_h_and_has_the_names_of_the_backbone(
    client: str | None, made: Result, tmp_path: Path
) -> None:
    formats = tuple(RUNNERS) if client is None else PROGRAM
    assert compare(made, tmp_path, formats=formats, what="encoder", client=client) == ("h",)
    names = load_file(tmp_path / "net.safetensors").keys()
    assert names == made.model().backbone.state_dict().keys()


def described(path: Path) -> dict[str, Any]:
    """The description within a file."""
    if path.suffix == ".onnx":
        entries = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    elif path.suffix == ".pt2":
        entries = {"coterie.json": ""}
        torch.export.load(path, extra_files=entries)
    else:
        with safe_open(path, "pt") as file:
            entries = file.metadata()
    description: dict[str, Any] = json.loads(entries["coterie.json"])
    return description


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch, when it reads a program
def test_every_file_carries_the_same_description(made: Result, tmp_path: Path) -> None:
    paths = [made.export(tmp_path / f"net.{e}") for e in ("safetensors", "pt2", "onnx")]
    first, *others = map(described, paths)
    assert others == [first, first]
    assert json.loads((tmp_path / "net.onnx.json").read_text()) == first
    assert first["classes"] == list(made_model.CLASSES)
    assert (first["shape"], first["dtype"], first["range"]) == ([1, 16, 16], "float32", [0.0, 1.0])
    assert (first["what"], first["round"], first["outputs"]) == ("model", 4, ["logits"])
    assert first["method"]["name"] == "fedavg" and first["objective"]["name"] == "supervised"
    assert first["net"]["backbone"] == "simple-cnn" and first["coterie"] == coterie.__version__


def test_floats_have_no_range(tmp_path: Path) -> None:
    made = coterie.load(made_model.write(tmp_path / "run", (6,), dtype="float32", backbone="mlp"))
    assert described(made.export(tmp_path / "net.safetensors"))["range"] is None


def test_onnx_is_valid_in_one_file_for_any_batch_and_nothing_is_printed(
    made: Result, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = made.export(tmp_path / "out" / "net.onnx")
    assert capfd.readouterr() == ("", "")
    assert {file.name for file in path.parent.iterdir()} == {"net.onnx", "net.onnx.json"}
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    assert not any(tensor.external_data for tensor in model.graph.initializer)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_a_program_says_nothing_about_the_folders_of_this_machine(
    ending: str, made: Result, tmp_path: Path
) -> None:
    data = made.export(tmp_path / f"net.{ending}").read_bytes()
    for folder in (Path(coterie.__file__).parent, Path(torch.__file__).parent):
        assert str(folder).encode() not in data


def refusal(made: Result, path: Path, **choice: Any) -> str:
    """The one line with which an export is refused; nothing is written."""
    before = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    with pytest.raises(ConfigError) as raised:
        made.export(path, **choice)
    assert (sorted(path.parent.iterdir()) if path.parent.is_dir() else []) == before
    text = str(raised.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("file", "choice", "said"),
    [
        ("net.pth", {}, "safetensors, pt2, onnx"),
        ("net", {}, "safetensors, pt2, onnx"),
        ("net.bin", {"format": "tflite"}, "'tflite'"),
        ("net.pt2", {"format": "onnx"}, "net.pt2"),
        ("net.pt2", {"what": "head"}, "'head'"),
        ("net.pt2", {"what": "personal"}, "'north', 'south'"),
        ("net.pt2", {"what": "personal", "client": "west"}, "'north', 'south'"),
        ("net.pt2", {"client": "north", "which": "best"}, "last round"),
        ("net.pt2", {"which": "best"}, "best"),
    ],
)
def test_a_wrong_choice_is_refused(
    file: str, choice: dict[str, Any], said: str, made: Result, tmp_path: Path
) -> None:
    assert said in refusal(made, tmp_path / file, **choice)


def test_a_format_may_have_another_ending(made: Result, tmp_path: Path) -> None:
    path = made.export(tmp_path / "weights.bin", format="safetensors")
    assert load_file(path).keys() == made.model().state_dict().keys()


@pytest.mark.parametrize("file", ["model.safetensors", "personal/north.safetensors"])
def test_files_of_the_run_itself_are_not_overwritten(file: str, made: Result) -> None:
    assert "itself" in refusal(made, made.folder / "personal" / ".." / file)
    made.model()


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    package: str, made: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = module.importlib.util.find_spec
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    assert "pip install 'coterie[onnx]'" in refusal(made, tmp_path / "net.onnx")


def test_a_file_that_cannot_be_written_leaves_nothing(made: Result, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").mkdir()
    with pytest.raises(CheckpointError, match=r"net\.onnx"):
        made.export(tmp_path / "net.onnx")
    assert not list(tmp_path.glob("*.tmp"))


class Choosy(nn.Module):
    """A backbone that looks at the numbers it is given, which no program can."""

    width = 256

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return flat if float(flat.sum()) > 0 else -flat


@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_a_network_that_is_no_program_is_refused_in_one_line(ending: str, tmp_path: Path) -> None:
    folder = made_model.write(tmp_path / "run", backbone="test_export:Choosy")
    made = coterie.load(folder, net=Choosy)
    assert "safetensors" in refusal(made, tmp_path / f"net.{ending}")
    made.export(tmp_path / "net.safetensors")


def test_equal_weights_give_equal_files(made: Result, tmp_path: Path) -> None:
    files = [made.export(tmp_path / f"{n}.safetensors", what="encoder") for n in range(5)]
    assert len({file.read_bytes() for file in files}) == 1
    assert load_file(files[0]).keys() == made.encoder().state_dict().keys()
