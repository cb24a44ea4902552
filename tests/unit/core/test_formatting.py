"""Numbers and tables as text."""

import pytest

from coterie.core.errors import CoterieError, NoReplies
from coterie.core.formatting import (
    TextTable,
    align_columns,
    escape_controls,
    fit_columns,
    format_bytes,
    one_line,
    quote,
)


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
    assert table.to_text(80) == "     a|b\nrow  1"
    assert table.to_markdown() == "|  | a\\|b |\n|---|---|\n| row | 1 |"


def test_a_quoted_value_is_short_and_keeps_its_beginning_and_its_end() -> None:
    said = quote("begin" + "x" * 5000 + "end")
    assert said.startswith("'beginxx") and said.endswith("xxend'") and "…" in said
    assert len(said) == 100
    assert quote("as it is") == "'as it is'"


def test_a_quoted_value_obeys_no_terminal() -> None:
    assert quote("a\x1b[31m\n\0b\u202e") == r"'a\x1b[31m\n\x00b\u202e'"


def test_a_value_that_cannot_be_written_is_called_by_its_type() -> None:
    nested: list[object] = []
    for _ in range(10_000):
        nested = [nested]
    assert quote(nested) == "<list>"
    assert quote(10**5000) == "<int>"


def test_controls_are_escaped_and_lines_stay() -> None:
    assert (
        escape_controls("one\ntwo\x1b]0;title\x07 \udcff") == "one\ntwo\\x1b]0;title\\x07 \\udcff"
    )
    assert escape_controls("Zürich 東京") == "Zürich 東京"


def test_a_message_is_one_line_with_the_beginning_and_the_end_of_what_it_quotes() -> None:
    said = one_line(f"/data/{'d' * 4000}/x.npz\ndoes not  exist; give one")
    assert said.startswith("/data/ddd") and said.endswith("d/x.npz does not  exist; give one")
    assert len(said) < 400 and "\n" not in said
    assert len(one_line("many words " * 1000)) == 1000


def test_every_error_of_ours_is_one_line() -> None:
    assert str(CoterieError("a\nb\x1b[2J")) == "a b\\x1b[2J"
    assert str(NoReplies()) == ""


WIDE = [
    ["", "final", "client accuracy worst decile", "rounds to 0.9"],
    ["fedavg", "0.9012 ± 0.0123", "0.8012 ± 0.0123", "12.0 ± 1.0 (1 never)"],
    ["local.lr=0.01 partition.beta=0.1", "0.9", "-", "3.0"],
]


def test_a_table_that_fits_is_left_as_it_is() -> None:
    assert fit_columns(WIDE, 200) == align_columns(WIDE)


def test_heads_are_broken_before_columns_are() -> None:
    lines = fit_columns([["", "client accuracy worst decile"], ["fedavg", "0.8012"]], 20)
    assert lines.splitlines() == [
        "        client",
        "        accuracy",
        "        worst",
        "        decile",
        "fedavg  0.8012",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_columns_without_room_follow_below_with_the_names_again(width: int) -> None:
    text = fit_columns(WIDE, width)
    assert max(map(len, text.splitlines())) <= width
    assert text.count("fedavg") == len(text.split("\n\n")) > 1 or width == 80
    for row in WIDE[1:]:
        for cell in row[1:]:  # no number is cut
            assert cell in text
