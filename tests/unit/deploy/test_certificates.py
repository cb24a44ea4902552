"""Certificates for a trial, and the version of Flower."""

import os
import stat
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest
from cryptography import x509

from coterie.core.errors import ConfigError
from coterie.deploy.certificates import make_certificates
from coterie.deploy.flower_version import require_flower


def test_a_server_certificate_names_all_hosts_and_is_signed_by_the_authority(
    tmp_path: Path,
) -> None:
    files = make_certificates(tmp_path, ["127.0.0.1", "server.example"], days=30)
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(files.ca.read_bytes()))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < left <= timedelta(days=30)
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca.key").stat().st_mode) == 0o600
    files.check()


def test_the_authority_stays_when_a_certificate_is_renewed(tmp_path: Path) -> None:
    first = make_certificates(tmp_path, ["a.example"])
    authority, certificate = first.ca.read_bytes(), first.certificate.read_bytes()
    second = make_certificates(tmp_path, ["b.example"])
    assert second.ca.read_bytes() == authority
    assert second.certificate.read_bytes() != certificate


def test_what_is_missing_or_open_is_one_clear_line(tmp_path: Path) -> None:
    files = make_certificates(tmp_path, ["a.example"])
    files.key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"private key of the server .* can be read by others"):
        files.check()
    files.certificate.unlink()
    with pytest.raises(ConfigError, match=r"there is no certificate .*server.pem"):
        files.check()
    with pytest.raises(ConfigError, match="needs a host name"):
        make_certificates(tmp_path, [])


def test_another_version_of_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.42.0")
    with pytest.raises(ConfigError, match=r"flwr 1\.42\.0 is installed, but .* flwr 1\.41 only"):
        require_flower()


def test_flower_that_is_not_installed_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ConfigError, match=r"need Flower: pip install 'coterie\[flower\]'"):
        require_flower()


def test_flower_reports_nothing_and_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    require_flower()
    assert os.environ["FLWR_TELEMETRY_ENABLED"] == "0"
    assert os.environ["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert os.environ["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
