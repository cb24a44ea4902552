"""net.precision: bfloat16 inside networks, float32 outside, refused where it is emulated."""

import errno
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bfloat16
import coterie
import toy
from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.deploy.handshake import make_common
from coterie.experiment.config import resolve
from coterie.native.switch import bf16, kernels
from coterie.nets import precision
from coterie.nets.build import make_backbone
from coterie.nets.heads import Network, mlp_head
from coterie.reproduce.plan import describe_changes, make_study
from coterie.reproduce.recipe import load


def make_net() -> Network:
    with seeds.scoped(1):
        backbone = make_backbone(NetSettings("resnet8"), (3, 8, 8))
        return Network(backbone, projector=mlp_head((64, 32, 16)), predictor=mlp_head((16, 8, 16)))


def test_outputs_gradients_and_statistics_are_float32_and_near_those_of_float32() -> None:
    if bfloat16.is_deadly():
        return
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    nets = [make_net(), make_net()]
    outputs = []
    for net, on in zip(nets, (False, True), strict=True):
        with kernels(True), bf16(on):
            outputs.append(net(x))
        outputs[-1].p.square().mean().backward()
    for one, other in zip(*outputs, strict=True):
        if one is not None:
            assert other.dtype is torch.float32
            assert not torch.equal(one, other) and torch.allclose(one, other, atol=0.2, rtol=0.1)
    assert all(weight.grad.dtype is torch.float32 for weight in nets[1].parameters())
    assert all(one.dtype in (torch.float32, torch.int64) for one in nets[1].buffers())


def test_frozen_networks_compute_in_bfloat16_too() -> None:
    if bfloat16.is_deadly():
        return
    net, x = make_net().eval(), torch.ones(2, 3, 8, 8)
    with torch.no_grad(), kernels(True):
        plain = net(x).z
        with bf16(True):
            assert not torch.equal(net(x).z, plain)
        assert torch.equal(net(x).z, plain)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int | Exception], list[str]]]:
    """Make the processor announce bfloat16, and the trial end as the test says."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)

    def arrange(outcome: int | Exception) -> list[str]:
        programs: list[str] = []

        def run(program: str) -> int:
            programs.append(program)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(precision, "run_trial", run)
        precision.try_bf16.cache_clear()
        return programs

    yield arrange
    precision.try_bf16.cache_clear()


def test_a_processor_that_emulates_bfloat16_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, trial: Callable[[int | Exception], list[str]]
) -> None:
    programs = trial(0)
    precision.check_bf16("cpu")
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    with pytest.raises(ConfigError, match="no instructions for bfloat16"):
        precision.check_bf16("cpu")
    assert len(programs) == 1


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (-signal.SIGILL, "was killed by SIGILL"),
        (1, "ended with exit status 1"),
        (subprocess.TimeoutExpired("python", 1.0), "took longer than"),
        (OSError(errno.EMFILE, "Too many open files"), "could not be started (Too many open"),
    ],
)
def test_a_processor_that_dies_of_bfloat16_is_refused_with_both_remedies(
    trial: Callable[[int | Exception], list[str]], outcome: int | Exception, said: str
) -> None:
    programs = trial(outcome)
    for _ in range(2):
        with pytest.raises(ConfigError) as refusal:
            precision.check_bf16("cpu")
        text = str(refusal.value)
        assert said in text and "\n" not in text
        assert "net.precision = 'fp32'" in text and "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in text
    assert len(programs) == 1  # tried once in the life of a process


def test_the_trial_is_quiet_and_its_end_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    assert precision.run_trial("print('heard')") == 0
    kill = "import os, signal; os.write(2, b'heard'); os.kill(os.getpid(), signal.SIGILL)"
    assert precision.run_trial(kill) == -signal.SIGILL
    assert capfd.readouterr() == ("", "")


def test_a_run_in_bfloat16_is_refused_or_ends(toy_data: Path, tmp_path: Path) -> None:
    net = {"precision": "bf16"}
    if precision.find_bf16_problem("cpu"):
        with pytest.raises(ConfigError, match=r"net\.precision = 'bf16'"):
            toy.run(toy_data, tmp_path / "run", net=net)
        assert not (tmp_path / "run").exists()
    else:
        assert toy.run(toy_data, tmp_path / "run", net=net).history


def choose(backbone: str = "resnet8", device: str = "cpu", **net: Any) -> str:
    return precision.choose_precision(NetSettings(backbone, **net), (device,))


def test_residual_networks_are_bfloat16_where_the_processor_has_it(
    monkeypatch: pytest.MonkeyPatch, trial: Callable[[int | Exception], list[str]]
) -> None:
    monkeypatch.delenv(precision.ISA, raising=False)
    trial(0)
    assert choose() == choose("resnet18") == "bf16"
    assert choose("simple-cnn") == choose("mlp") == choose("mynet:Net") == "fp32"
    assert choose(device="cuda") == "fp32"
    assert choose(precision="fp32") == "fp32" and choose("mlp", precision="bf16") == "bf16"
    monkeypatch.setenv(precision.ISA, "AVX512_CORE_BF16")  # without tiles it may be slower
    assert choose() == "fp32"


def test_residual_networks_are_float32_where_bfloat16_is_refused(
    monkeypatch: pytest.MonkeyPatch, trial: Callable[[int | Exception], list[str]]
) -> None:
    trial(-signal.SIGILL)
    assert choose() == "fp32"
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert choose() == "fp32"


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this processor one that has bfloat16, as far as configurations are concerned."""
    monkeypatch.delenv(precision.ISA, raising=False)
    monkeypatch.setattr(precision, "find_bf16_problem", lambda _device: "")


@pytest.mark.usefixtures("anywhere")
def test_a_configuration_says_what_was_chosen() -> None:
    for stated, chosen in ({}, True), ({"precision": "bf16"}, False):
        config = resolve({"net": {"backbone": "resnet8", **stated}})
        assert config.net.precision == config.tables["net"]["precision"] == "bf16"
        assert config.precision_chosen is chosen
    again = resolve(config.tables)  # as a resumed run reads it
    assert again.net.precision == "bf16" and again.hash() == config.hash()


@pytest.mark.usefixtures("anywhere")
def test_sites_are_float32_unless_bfloat16_is_stated() -> None:
    tables = {"net": {"backbone": "resnet8"}}
    common = make_common(resolve(tables))
    assert common.net.precision == "fp32"
    assert common.hash() == make_common(resolve(common.tables)).hash()
    tables["net"]["precision"] = "bf16"
    assert make_common(resolve(tables)).net.precision == "bf16"


@pytest.mark.usefixtures("anywhere")
def test_recipes_are_float32_on_every_machine() -> None:
    study = make_study(load("ssfl-objectives"), "laptop")
    config = study.config(study.cells[0], study.cells[0].points[0], 0)
    assert config.net.backbone == "resnet8" and config.net.precision == "fp32"
    assert not any("precision" in line for line in describe_changes(study))


def test_a_run_in_bfloat16_has_the_same_bits_in_workers(tmp_path: Path) -> None:
    if precision.find_bf16_problem("cpu"):
        return  # refused, as the test above wants it
    net = {"backbone": "resnet8", "precision": "bf16"}
    for kind in ("serial", "processes"):
        changes = {"data.limit": 200, "record.embedding": 0, "executor.kind": kind}
        coterie.run("digits/simsiam", out=tmp_path / kind, rounds=2, net=net, **changes)
    assert toy.trace(tmp_path / "serial") == toy.trace(tmp_path / "processes")
    assert toy.outputs(tmp_path / "serial") == toy.outputs(tmp_path / "processes")
