"""Numbers and tables as text."""

import pytest

from coterie.core.formatting import TextTable, align_columns, format_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.0 kB"),
        (99_000, "99.0 kB"),
        (100_000, "0.1 MB"),
        (12_345_678, "12.3 MB"),
        (2_000_000_000, "2.00 GB"),
    ],
)
def test_bytes_are_kilobytes_megabytes_or_gigabytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    lines = [["", "train", "shift"], ["north", "7", ""], ["me", "120", "blur"]]
    assert align_columns(lines, right=[1]).splitlines() == [
        "       train  shift",
        "north      7",
        "me       120  blur",
    ]


def test_a_table_is_text_or_markdown() -> None:
    table = TextTable("title", ["", "a|b"], [["row", "1"]])
    assert table.to_text() == "     a|b\nrow  1"
    assert table.to_markdown() == "|  | a\\|b |\n|---|---|\n| row | 1 |"
