"""Flower stays behind one door: another engine can take its place."""

import re
from pathlib import Path

import coterie

PACKAGE = Path(coterie.__file__).parent
IMPORT = re.compile(r"^\s*(from|import) flwr\b", re.MULTILINE)


def test_one_folder_alone_imports_flower() -> None:
    importers = {
        file.relative_to(PACKAGE).parent.as_posix()
        for file in PACKAGE.rglob("*.py")
        if IMPORT.search(file.read_text())
    }
    assert importers == {"deploy/flower"}


def test_a_client_never_asks_for_an_app() -> None:
    source = (PACKAGE / "deploy/flower/client.py").read_text()
    assert "GetFab" not in source and "GetRun" not in source
