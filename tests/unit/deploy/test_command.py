"""Bad input to `coterie deploy` is one line before anything is started."""

from pathlib import Path

import pytest

from coterie.cli.main import main


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("deploy server digits/fedavg", "--certificates and --keys are needed"),
        ("deploy server --insecure", "how many to wait for: --clients"),
        ("deploy server --insecure --keys k", "--insecure contradicts"),
        ("deploy server --insecure --clients 1 --resume", "--resume needs --out"),
        ("deploy server --insecure --clients 1 --grace 0", "--grace 0 must be above 0"),
        ("deploy server digits/fedav --insecure --clients 1", "digits/fedav"),
        ("deploy client --server here --data x --insecure", "must be HOST:PORT"),
        ("deploy client --server h:1 --data x", "--ca and --key are needed"),
        ("deploy client --server h:1 --data nowhere --insecure", "is not there"),
        ("deploy client --server h:1", "Missing option '--data'"),
        ("deploy certs certs --days 0", "--days 0 must be from 1 to 36,500"),
        ("deploy keys keys ../x", "is not usable"),
    ],
)
def test_bad_input_is_one_line(
    words: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(words.split())
    assert stopped.value.code in (2, 3)
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said
    assert not any(tmp_path.iterdir())


def test_certificates_and_keys_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in ("deploy certs certs --host server.example", "deploy keys keys north"):
        with pytest.raises(SystemExit) as stopped:
            main(words.split())
        assert stopped.value.code == 0
    made = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert made == [
        *("certs/ca.key", "certs/ca.pem", "certs/server.key", "certs/server.pem"),
        *("keys/north.key", "keys/north.pub"),
    ]
    assert "stays at the site: keys/north.key" in capsys.readouterr().out
