"""Keys of sites and the registry of the server's operator."""

import stat
from pathlib import Path

import pytest

from coterie.core.errors import CheckpointError, ConfigError
from coterie.deploy.keys import encode_public_key, make_key, read_private_key, read_registry


def register(registry: Path, public: Path, name: str) -> None:
    registry.mkdir(exist_ok=True)
    (registry / f"{name}.pub").write_bytes(public.read_bytes())


def test_a_key_is_private_and_its_public_half_fits(tmp_path: Path) -> None:
    files = make_key(tmp_path / "site", "north")
    assert stat.S_IMODE(files.private.stat().st_mode) == 0o600
    public = encode_public_key(read_private_key(files.private).public_key())
    assert files.public.read_bytes() == public


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    files = make_key(tmp_path, "north")
    with pytest.raises(ConfigError, match="exists; remove it"):
        make_key(tmp_path, "north")
    files.private.unlink()
    with pytest.raises(ConfigError, match="exists; remove it"):
        make_key(tmp_path, "north")


def test_the_registry_is_in_the_order_of_names_whatever_order_files_came_in(tmp_path: Path) -> None:
    for name in ("west", "east", "north"):
        register(tmp_path / "registry", make_key(tmp_path, name).public, name)
    assert list(read_registry(tmp_path / "registry")) == ["east", "north", "west"]


def test_one_key_under_two_names_is_refused(tmp_path: Path) -> None:
    files = make_key(tmp_path, "north")
    register(tmp_path / "registry", files.public, "north")
    register(tmp_path / "registry", files.public, "south")
    with pytest.raises(ConfigError, match=r"'north' and 'south' in .* have the same key"):
        read_registry(tmp_path / "registry")


def test_a_private_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    files = make_key(tmp_path, "north")
    files.private.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others; run 'chmod 600"):
        read_private_key(files.private)


def test_files_that_are_no_keys_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "x.pub").write_text("no key")
    (tmp_path / "x.key").write_text("no key")
    (tmp_path / "x.key").chmod(0o600)
    with pytest.raises(ConfigError, match="not a public key in PEM format"):
        read_registry(tmp_path)
    with pytest.raises(ConfigError, match="not an unencrypted private key"):
        read_private_key(tmp_path / "x.key")
    with pytest.raises(ConfigError, match="there is no folder"):
        read_registry(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="there is no private key"):
        read_private_key(tmp_path / "nowhere.key")


@pytest.mark.parametrize("name", ["", "../x", "a b", ".hidden", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is not usable"):
        make_key(tmp_path, name)


def test_a_key_that_cannot_be_written_is_one_line_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*file.*repeat the command"):
        make_key(tmp_path / "file" / "keys", "north")
