"""Which kernels are used, by configuration, environment and device; or why there are none."""

import _ctypes
import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from native_reference import VARIANTS, needs_kernels

import coterie
import toy
from coterie.core.errors import ConfigError
from coterie.engine.record import Event, NoteEvent
from coterie.experiment.config import resolve
from coterie.experiment.prepare import prepare
from coterie.experiment.tables import parse_overrides
from coterie.native import library as module
from coterie.native.build import describe, record_of
from coterie.native.library import (
    CHOICE,
    PLACE,
    VECTORS,
    Library,
    Missing,
    in_words,
    kernel_in_use,
    library,
    loaded,
    variants,
)


@pytest.fixture(autouse=True)
def loaded_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is set, and nothing stays loaded."""
    for name in (CHOICE, VECTORS):
        monkeypatch.delenv(name, raising=False)
    library.cache_clear()
    yield
    monkeypatch.undo()
    library.cache_clear()


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installation without kernels; where it says why."""
    monkeypatch.delenv(PLACE, raising=False)
    monkeypatch.setattr(module, "LIBRARY", tmp_path / "kernels.so")
    monkeypatch.setattr(module, "REASON", tmp_path / "kernels.txt")
    (tmp_path / "kernels.txt").write_text("there is no C compiler\n")
    return tmp_path / "kernels.txt"


@needs_kernels
def test_auto_is_native_on_a_cpu() -> None:
    assert kernel_in_use("auto", ("cpu",)) == kernel_in_use("native", ("cpu", "cpu")) == "native"
    assert kernel_in_use("torch", ("cpu",)) == "torch"
    assert in_words(("cpu",)) == f"native, {VARIANTS[0]}"


@needs_kernels
def test_auto_is_torch_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_in_use("auto", ("cpu", "cuda:1")) == "torch"
    assert in_words(("cuda",)) == "torch: the kernels are for CPUs, and runs compute on cuda"
    for there, found in ((True, "torch"), (False, "native")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert kernel_in_use("auto", ("auto",)) == found


@needs_kernels
def test_named_kernels_are_for_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("coterie.experiment.prepare._device", lambda key, name: name)
    tables = {"net": {"kernel": "native"}, "executor": {"devices": ["cpu", "cuda:1"]}}
    with pytest.raises(ConfigError, match=r"'native' is for CPUs, and this run computes on cuda:1"):
        prepare(resolve({**tables, "run": {"device": "cpu"}}), tmp_path)


@needs_kernels
def test_the_environment_says_what_auto_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "torch")
    assert kernel_in_use("auto", ("cpu",)) == "torch"
    assert kernel_in_use("native", ("cpu",)) == "native"  # a configuration that names one wins
    assert in_words(("cpu",)) == "torch: COTERIE_KERNEL = 'torch'"
    monkeypatch.setenv(CHOICE, "native")
    assert kernel_in_use("auto", ("cpu",)) == "native"
    assert kernel_in_use("auto", ("cuda",)) == "torch"
    monkeypatch.setenv(CHOICE, "")
    assert kernel_in_use("auto", ("cpu",)) == "native"


def test_an_unknown_word_in_the_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "fast")
    with pytest.raises(ConfigError) as raised:
        kernel_in_use("auto", ("cpu",))
    assert str(raised.value) == "COTERIE_KERNEL = 'fast' must be auto, native or torch"
    assert raised.value.exit_code == 2
    assert kernel_in_use("torch", ("cpu",)) == "torch"  # nobody asked the environment


def test_a_wrong_kernel_in_a_configuration_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"net\.kernel") as raised:
        resolve({}, parse_overrides(["net.kernel=fast"]))
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


def test_without_a_library_there_is_torch_and_a_reason(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernel_in_use("auto", ("cpu",)) == "torch"
    assert in_words(("cpu",)) == "torch: they were not built: there is no C compiler"
    why = "they were not built: there is no C compiler"
    with pytest.raises(ConfigError) as raised:
        kernel_in_use("native", ("cpu",))
    asked = "net.kernel = 'native' has no kernels here"
    assert str(raised.value) == f"{asked}: {why}; a new run can have 'torch'"
    assert raised.value.exit_code == 2
    with pytest.raises(ConfigError, match="has no kernels here"):
        loaded()
    monkeypatch.setenv(CHOICE, "native")
    with pytest.raises(ConfigError, match=r"COTERIE_KERNEL = 'native' has no kernels here"):
        kernel_in_use("auto", ("cpu",))
    no_library.unlink()
    library.cache_clear()
    assert library() == Missing("they were not built: Coterie was not installed")


@needs_kernels
def test_vectors_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIANTS:
        monkeypatch.setenv(VECTORS, name)
        library.cache_clear()
        assert loaded().variant == name
    monkeypatch.setenv(VECTORS, "avx9000")
    library.cache_clear()
    assert in_words(("cpu",)) == (
        f"torch: COTERIE_VECTORS = avx9000 is not among {', '.join(VARIANTS)}"
    )


@needs_kernels
def test_a_library_is_chosen_by_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = put(tmp_path / "other.so", loaded().path.read_bytes())
    monkeypatch.setenv(PLACE, str(copy))
    library.cache_clear()
    assert loaded().path == copy
    copy.unlink()
    library.cache_clear()
    assert library() == Missing(f"COTERIE_KERNELS = {copy} is not there", unfit=True)


def put(path: Path, content: bytes, record: bytes | None = None) -> Path:
    """Write a library, with the record of a whole one or another."""
    path.write_bytes(content)
    whole = json.dumps(describe(content)).encode()
    record_of(path).write_bytes(whole if record is None else record)
    return path


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: os.truncate(path, 3000), r"it has 3000 bytes, and was built with \d+"),
        (lambda path: os.truncate(path, 0), r"it has 0 bytes, and was built with \d+"),
        (lambda path: flip(path, 2000), "its bytes are not those that were built"),
        (lambda path: record_of(path).unlink(), r"its record other\.json is not there"),
        (lambda path: record_of(path).write_text("{}"), r"its record other\.json is damaged"),
        (lambda path: flip(record_of(path), 0), r"its record other\.json is damaged"),
    ],
)
@needs_kernels
def test_a_library_that_is_not_as_it_was_built_is_never_loaded(
    damage: Callable[[Path], object], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "other.so", loaded().path.read_bytes())
    damage(path)
    monkeypatch.setenv(PLACE, str(path))
    monkeypatch.setattr(ctypes, "CDLL", None)
    library.cache_clear()
    found = library()
    assert isinstance(found, Missing) and found.unfit
    assert re.search(f"cannot be used: {reason}; build it again", found.reason)
    assert kernel_in_use("auto", ("cpu",)) == "torch"
    with pytest.raises(ConfigError, match=f"has no kernels here: .*{reason}"):
        kernel_in_use("native", ("cpu",))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@needs_kernels
def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = loaded().path
    monkeypatch.setattr(module, "fingerprint", lambda: "0123456789abcdef")
    library.cache_clear()
    found = library()
    assert isinstance(found, Missing)
    assert found.reason == (
        f"{path} cannot be used: it was built from other sources; build it again: "
        "python -m coterie.native.build"
    )
    assert kernel_in_use("auto", ("cpu",)) == "torch"


@needs_kernels
def test_a_run_says_that_kernels_do_not_fit(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "fingerprint", lambda: "0123456789abcdef")
    library.cache_clear()
    notes: dict[str, list[str]] = {"auto": [], "torch": []}
    for kernel, heard in notes.items():

        def listen(event: Event, heard: list[str] = heard) -> None:
            if isinstance(event, NoteEvent):
                heard.append(event.text)

        net = {"kernel": kernel}
        toy.run(toy_data, tmp_path / kernel, net=net, recorders=[listen], run={"rounds": 1})
    (note,) = [text for text in notes["auto"] if "kernel" in text]
    assert note.startswith("net.kernel = 'auto' is torch here") and "other sources" in note
    assert not [text for text in notes["torch"] if "kernel" in text]


def test_where_no_kernels_were_built_a_run_says_nothing(no_library: Path) -> None:
    assert resolve({}).notes == ()


def test_a_file_that_is_no_library_is_refused(
    no_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_library.with_suffix(".so").write_bytes(b"not a library")
    found = library()
    assert isinstance(found, Missing) and "cannot be used" in found.reason
    monkeypatch.setenv(PLACE, _ctypes.__file__)  # a library, of something else
    library.cache_clear()
    assert isinstance(library(), Missing)


@needs_kernels
def test_memory_that_runs_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded()
    monkeypatch.setitem(found._functions, ("turn", torch.float32), lambda *values: 1)
    with pytest.raises(MemoryError, match="'turn'"):
        found.call("turn", torch.float32, None, None, 1, 16, 1)


@needs_kernels
def test_every_variant_can_be_loaded() -> None:
    path = loaded().path
    assert variants(path) == VARIANTS and VARIANTS[-1] == "generic"
    assert [Library(path, name).variant for name in VARIANTS] == VARIANTS


@needs_kernels
def test_the_kernel_is_a_part_of_what_a_run_is(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, plain = (resolve({"net": {"kernel": kernel}}) for kernel in ("native", "torch"))
    assert native.hash() != plain.hash()
    assert resolve({}).hash() == native.hash()  # "auto" is resolved first
    toy.run(toy_data, tmp_path / "run", net={"kernel": "native"})
    before = toy.outputs(tmp_path / "run")
    monkeypatch.setenv(CHOICE, "torch")
    with pytest.raises(ConfigError, match="was started with another configuration") as raised:
        toy.run(toy_data, tmp_path / "run", resume=True)
    assert "net.kernel" in str(raised.value) and "\n" not in str(raised.value)
    assert raised.value.exit_code == 2
    assert toy.outputs(tmp_path / "run") == before


@needs_kernels
def test_another_variant_is_another_environment(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(VARIANTS) == 1:
        pytest.skip("this processor has one variant")
    with pytest.raises(toy.Killed):
        stop = [toy.StopAfter(2, toy.Killed)]
        toy.run(toy_data, tmp_path / "run", net={"kernel": "native"}, recorders=stop)
    monkeypatch.setenv(VECTORS, "generic")
    library.cache_clear()
    with pytest.raises(ConfigError, match=f"kernels {VARIANTS[0]}, this is kernels generic"):
        toy.run(toy_data, tmp_path / "run", net={"kernel": "native"}, resume=True)


@needs_kernels
def test_other_bytes_of_the_same_variant_are_another_environment(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = toy.tables(toy_data, net={"kernel": "native"})
    with pytest.raises(toy.Killed):
        stop = [toy.StopAfter(2, toy.Killed)]
        coterie.run(native, out=tmp_path / "run", recorders=stop)
    before = loaded()
    other = put(tmp_path / "other.so", before.path.read_bytes() + b"\0")  # as of another compiler
    monkeypatch.setenv(PLACE, str(other))
    library.cache_clear()
    assert loaded().variant == before.variant
    here, there = loaded().digest[:16], before.digest[:16]
    with pytest.raises(ConfigError, match=f"library {there}, this is kernel library {here}"):
        coterie.run(native, out=tmp_path / "run", resume=True)
    coterie.run(native, out=tmp_path / "run", resume=True, allow_inexact=True)


DIGEST = """
import hashlib, torch
from coterie.native.layers import conv_relu_pool
generator = torch.Generator().manual_seed(3)
sizes = ((37, 5, 12, 11), (7, 5, 5, 5), (7,))
x, weight, bias = (torch.randn(size, generator=generator) for size in sizes)
for leaf in (x, weight, bias):
    leaf.requires_grad_()
y = conv_relu_pool(x, weight, bias)
y.square().sum().backward()
parts = [one.detach().contiguous().numpy().tobytes() for one in (y, x.grad, weight.grad, bias.grad)]
found = hashlib.sha256(b"".join(parts)).hexdigest()
"""


@needs_kernels
def test_another_process_gives_the_same_bits() -> None:
    here: dict[str, str] = {}
    exec(DIGEST, here)
    command = [sys.executable, "-c", f"{DIGEST}\nprint(found)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == here["found"]
