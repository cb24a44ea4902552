"""t-SNE in the plane: what is alike stays together, and the same vectors give the same picture."""

import numpy as np
import pytest

from coterie.report.plane import place_in_plane


def make_groups(each: int, groups: int = 4, width: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Groups of vectors around as many directions."""
    draw = np.random.default_rng(5)
    labels = np.repeat(np.arange(groups), each)
    return np.eye(groups, width)[labels] * 6 + draw.normal(size=(len(labels), width)), labels


def test_groups_stay_together() -> None:
    vectors, labels = make_groups(40)
    points = place_in_plane(vectors)
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(apart, np.inf)
    nearest = labels[np.argsort(apart, axis=1)[:, :5]]
    assert (nearest == labels[:, None]).mean() > 0.95


def test_the_same_vectors_give_the_same_picture_whatever_their_length() -> None:
    vectors, _ = make_groups(10)
    assert np.array_equal(place_in_plane(vectors), place_in_plane(vectors))
    assert np.allclose(place_in_plane(vectors), place_in_plane(4 * vectors))  # by cosine


@pytest.mark.parametrize(
    "vectors",
    [
        np.random.default_rng(0).normal(size=(8, 2)),
        np.vstack([np.ones((20, 3)), np.eye(3)]),  # most of them the same
        np.vstack([np.zeros((5, 3)), np.eye(3)]),  # without a direction
        1e20 * np.random.default_rng(0).normal(size=(30, 4)),
    ],
)
def test_odd_vectors_have_places_too(vectors: np.ndarray) -> None:
    points = place_in_plane(vectors)
    assert points.shape == (len(vectors), 2) and np.isfinite(points).all()
