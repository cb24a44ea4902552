"""Bundles: values with a size and a digest; blobs: arrays that stay in files."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.bundle import Blob, Bundle, raw_bytes


def sample() -> Bundle:
    return Bundle(
        {"model": {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}, "empty": {}},
        {"rounds": 4, "name": "é", "share": 0.5, "done": True},
    )


def test_tensors_are_detached() -> None:
    weight = torch.ones(2, requires_grad=True)
    held = Bundle({"model": {"w": weight * 2}})["model"]["w"]
    assert not held.requires_grad
    assert held.grad_fn is None


def test_a_bundle_does_not_follow_the_mappings_it_was_made_of() -> None:
    tensors, scalars = {"w": torch.ones(1)}, {"n": 1}
    groups = {"model": tensors}
    bundle = Bundle(groups, scalars)
    tensors["extra"] = torch.ones(1)
    groups["other"] = {}
    scalars["n"] = 2
    assert list(bundle.tensors) == ["model"]
    assert list(bundle["model"]) == ["w"]
    assert bundle.scalars == {"n": 1}


def test_the_outer_mappings_cannot_be_changed() -> None:
    bundle = sample()
    for mapping in (bundle.tensors, bundle.scalars, bundle.blobs):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["new"] = {}  # type: ignore[index]
    with pytest.raises(AttributeError):
        bundle.scalars = {}  # type: ignore[misc]


def test_reading_a_group_gives_a_dictionary_of_its_own() -> None:
    bundle = sample()
    bundle["model"].clear()
    bundle.get("model").clear()
    assert set(bundle["model"]) == {"w", "n"}


def test_missing_groups() -> None:
    bundle = sample()
    assert "model" in bundle
    assert "head" not in bundle
    assert bundle.get("head") == {}
    with pytest.raises(KeyError, match="no group 'head'; it has: empty, model"):
        bundle["head"]
    with pytest.raises(KeyError, match="it has: none"):
        Bundle()["head"]


def test_replace_and_without_leave_the_old_bundle() -> None:
    old = sample()
    new = old.replace(model={"w": torch.zeros(1)}, head={"b": torch.ones(2)})
    assert set(new.tensors) == {"model", "empty", "head"}
    assert list(new["model"]) == ["w"]
    assert new.scalars == old.scalars
    assert set(old.tensors) == {"model", "empty"}
    assert set(new.without("model", "unknown").tensors) == {"empty", "head"}
    assert set(new.tensors) == {"model", "empty", "head"}


def test_pickle_is_refused() -> None:
    with pytest.raises(TypeError, match="not through pickle"):
        pickle.dumps(sample())


def test_size_counts_tensors_blobs_numbers_and_text(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path / "b", [np.zeros((5, 2), np.float16)])
    assert Bundle().nbytes() == 0
    assert sample().nbytes() == 6 * 4 + 8 + 3 * 8 + 2  # "é" is two bytes in UTF-8
    assert Bundle({}, {}, {"b": blob}).nbytes() == 20


def test_digest_does_not_depend_on_insertion_order_or_layout() -> None:
    w, v = torch.arange(6.0).reshape(2, 3), torch.ones(2)
    one = Bundle({"a": {"w": w, "v": v}, "b": {"v": v}}, {"x": 1, "y": "2"})
    other = Bundle({"b": {"v": v}, "a": {"v": v, "w": w.T.contiguous().T}}, {"y": "2", "x": 1})
    assert one.digest() == other.digest()


def test_digest_sees_every_difference(tmp_path: Path) -> None:
    w = torch.tensor([1.0, 0.0])
    blob = Blob.write(tmp_path / "b", [np.arange(4)])
    variants = [
        Bundle({"a": {"w": w}}),
        Bundle({"b": {"w": w}}),
        Bundle({"a": {"v": w}}),
        Bundle({"a": {"w": w.reshape(2, 1)}}),
        Bundle({"a": {"w": w.double()}}),
        Bundle({"a": {"w": w.view(torch.int32)}}),
        Bundle({"a": {"w": torch.tensor([1.0, -0.0])}}),
        Bundle({"a": {"w": w, "v": w}}),
        Bundle({"a": {"w": w}, "b": {"w": w}}),
        *(Bundle({"a": {"w": w}}, {"x": value}) for value in (1, 1.0, True, "1", 0)),
        Bundle({"a": {"w": w}}, {"y": 1}),
        Bundle({"a": {"w": w}}, {}, {"x": blob}),
        Bundle({"a": {"w": w}}, {}, {"y": blob}),
        Bundle({"a": {"w": w}}, {}, {"x": Blob(blob.path, blob.dtype, (2, 2), blob.sha256)}),
    ]
    assert len({variant.digest() for variant in variants}) == len(variants)


def test_digest_does_not_look_at_where_a_blob_lies(tmp_path: Path) -> None:
    here = Blob.write(tmp_path / "here", [np.arange(4)])
    there = Blob.write(tmp_path / "there", [np.arange(4)])
    assert Bundle({}, {}, {"x": here}).digest() == Bundle({}, {}, {"x": there}).digest()


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3)])
def test_raw_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    assert len(bytes(raw_bytes(tensor))) == tensor.nbytes
    assert bytes(raw_bytes(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T)) == b"\1\3\2\4"


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(4.0)[::4], torch.arange(6.0).reshape(2, 3)[:1].T[:1], torch.ones(0, 2).T],
)
def test_raw_bytes_of_one_or_no_entry_with_any_stride(tensor: torch.Tensor) -> None:
    assert bytes(raw_bytes(tensor)) == tensor.numpy().tobytes()
    assert bytes(raw_bytes(torch.from_numpy(np.zeros(0, np.int16)))) == b""


def test_a_blob_is_streamed_and_mapped_back(tmp_path: Path) -> None:
    rows = [np.arange(6, dtype=np.int16).reshape(3, 2), np.full((1, 2), 7, np.int16)]
    blob = Blob.write(tmp_path / "deep" / "down" / "b", (row[:, ::-1] for row in rows))
    mapped = blob.open()
    assert blob.shape == (4, 2)
    assert blob.nbytes == 16 == blob.path.stat().st_size
    assert mapped.tolist() == [[1, 0], [3, 2], [5, 4], [7, 7]]
    assert mapped.dtype == np.int16
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 0


@pytest.mark.parametrize("odd", [np.zeros((1, 3), np.float32), np.zeros((1, 2), np.float64)])
def test_blob_rows_must_be_alike(odd: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rows of float32 \(2,\) expected"):
        Blob.write(tmp_path / "b", [np.zeros((1, 2), np.float32), odd])


def test_a_blob_needs_rows(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        Blob.write(tmp_path / "b", [])


def test_a_blob_of_no_rows_can_be_opened(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path / "b", [np.zeros((0, 3), np.float32)])
    assert blob.is_intact()
    assert blob.open().shape == (0, 3)


def test_a_blob_keeps_values_of_a_foreign_byte_order(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path / "b", [np.arange(3, dtype=">f4")])
    assert blob.open().tolist() == [0.0, 1.0, 2.0]


def test_a_blob_notices_damage(tmp_path: Path) -> None:
    blob = Blob.write(tmp_path / "b", [np.arange(4)])
    content = blob.path.read_bytes()
    assert blob.is_intact()
    for damaged in (content[:-1], content + b"\0", b"\1" + content[1:], b""):
        blob.path.write_bytes(damaged)
        assert not blob.is_intact()
    blob.path.unlink()
    assert not blob.is_intact()
    blob.path.mkdir()
    assert not blob.is_intact()


@pytest.mark.parametrize(
    "value",
    [np.float32(0.5), np.float64(0.1), np.int64(3), np.bool_(True), np.str_("a"), np.uint8(7)],
)
def test_scalars_of_numpy_become_plain_ones(value: np.generic) -> None:
    (found,) = Bundle(scalars={"x": value}).scalars.values()  # type: ignore[dict-item]
    assert found == value.item() and type(found) in (int, float, bool, str)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"a", "bytes"),
        (None, "NoneType"),
        ([1], "list"),
        (1j, "complex"),
        (np.bytes_(b"a"), "bytes"),
    ],
)
def test_a_scalar_that_json_cannot_carry_is_refused_by_name(value: object, kind: str) -> None:
    with pytest.raises(TypeError, match=f"the scalar 'x' is {kind}, not a number"):
        Bundle(scalars={"x": value})  # type: ignore[dict-item]


def test_a_tensor_is_no_scalar() -> None:
    with pytest.raises(TypeError, match=r"'x' is Tensor, .*; .item\(\) gives its number"):
        Bundle(scalars={"x": torch.ones(())})  # type: ignore[dict-item]


def test_an_integer_without_end_and_half_a_character_are_refused() -> None:
    assert Bundle(scalars={"x": -(2**1024 - 1)}).scalars["x"] == -(2**1024 - 1)
    with pytest.raises(TypeError, match="'x' is an integer of 1025 bits"):
        Bundle(scalars={"x": 2**1024})
    with pytest.raises(TypeError, match="'x' is text that UTF-8 cannot write"):
        Bundle(scalars={"x": "\ud800"})
