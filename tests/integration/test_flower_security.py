"""Who is refused, and with which line; a good client works on through all of it."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flwr.proto.control_pb2 import StartRunRequest
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.main import create_app

from coterie.core.errors import ConfigError
from coterie.deploy.certificates import make_certificates
from coterie.deploy.flower.client import FlowerClientLink
from coterie.deploy.flower.server import FLEET, FlowerServerLink
from coterie.deploy.keys import make_key
from coterie.deploy.link import Message
from coterie.deploy.superlink import Listener
from flower_sites import Echo, Town, collect, expired_server, serve_nothing

PROTOBUF = {"content-type": PROTOBUF_MEDIA_TYPE}
THREE_CAUSES = "key is not registered there, was removed, or is in use by another client"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    return Town(tmp_path_factory.mktemp("town"), ["good", "former"])


@pytest.fixture(scope="module")
def server(town: Town) -> Iterator[FlowerServerLink]:
    link = town.serve()
    yield link
    link.close()


@pytest.fixture(scope="module")
def good(town: Town, server: FlowerServerLink) -> Iterator[None]:
    echo = Echo(town.connect(server.address, "good"))
    yield
    echo.close()


@pytest.fixture(autouse=True)
def the_good_client_works_on(server: FlowerServerLink, good: None) -> Iterator[None]:
    yield
    (id,) = server.send([Message("good", "task", {}, b"ab")])
    assert collect(server, [id])[0].body == b"ba"


def test_a_client_without_tls_is_refused(server: FlowerServerLink, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="closed the connection: it may expect TLS"):
        FlowerClientLink(server.address, state=tmp_path, name="good", patience=5.0)


def test_a_client_that_expects_tls_is_refused_by_a_server_without(
    town: Town, tmp_path: Path
) -> None:
    listener = Listener(serve_nothing, "127.0.0.1", 0, None)
    with pytest.raises(ConfigError, match="does not speak TLS"):
        town.connect(f"127.0.0.1:{listener.port}", "good")
    listener.close()


def test_a_server_of_another_authority_is_refused(
    town: Town, server: FlowerServerLink, tmp_path: Path
) -> None:
    other = make_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(ConfigError, match="is not signed by the authority that was given"):
        town.connect(server.address, "good", ca=other.ca)


def test_an_expired_certificate_is_refused(town: Town, tmp_path: Path) -> None:
    with (
        expired_server(tmp_path) as (address, ca),
        pytest.raises(ConfigError, match="has expired; its operator has to renew it"),
    ):
        town.connect(address, "good", ca=ca)


def test_a_certificate_for_another_host_name_is_refused(
    town: Town, server: FlowerServerLink
) -> None:
    port = server.address.rpartition(":")[2]
    with pytest.raises(ConfigError, match="is for another host name"):
        town.connect(f"localhost:{port}", "good")


def test_a_key_that_is_not_registered_is_refused(
    town: Town, server: FlowerServerLink, tmp_path: Path
) -> None:
    key = make_key(tmp_path, "stranger").private
    with pytest.raises(ConfigError, match=THREE_CAUSES):
        FlowerClientLink(server.address, state=tmp_path, ca=town.tls.ca, key=key)
    assert "stranger" not in server.peers()


def test_a_second_client_with_a_copy_of_the_key_is_refused(
    town: Town, server: FlowerServerLink, tmp_path: Path
) -> None:
    key = town.folder / "good" / "good.key"
    with pytest.raises(ConfigError, match=THREE_CAUSES):
        FlowerClientLink(server.address, state=tmp_path, ca=town.tls.ca, key=key)


def test_a_key_that_is_removed_while_its_client_is_connected_ends_its_access(
    town: Town, server: FlowerServerLink
) -> None:
    link = town.connect(server.address, "former")
    assert server.peers() == {"former": True, "good": True}
    (town.registry / "former.pub").unlink()
    assert server.peers() == {"good": True}
    with pytest.raises(ConfigError, match=THREE_CAUSES):
        link.receive()
    link.close()
    (town.registry / "former.pub").write_bytes((town.folder / "former/former.pub").read_bytes())
    assert server.peers() == {"good": True}  # what was removed stays removed
    (town.registry / "former.pub").unlink()


def test_a_run_cannot_be_submitted_from_outside(town: Town, server: FlowerServerLink) -> None:
    for address in ("127.0.0.1", "127.0.0.2"):
        with caller(town, address) as outside:
            response = outside.post(
                f"https://{server.address}/v1/control/start-run",
                content=StartRunRequest().SerializeToString(),
                headers=PROTOBUF,
            )
        assert (response.status_code, response.text) == (403, "not served to the network")
    assert len(server._state.get_run_info()) == 1


def test_every_path_that_superlink_has_beside_the_fleets_is_refused(
    town: Town, server: FlowerServerLink, tmp_path: Path
) -> None:
    """Whoever calls, also from the server's own machine: nobody needs these over a port."""
    schema = create_app().openapi()["paths"]
    calls = {(method, path) for path, methods in schema.items() for method in methods}
    calls |= {("get", "/docs"), ("get", "/openapi.json"), ("get", "/health"), ("post", "/")}
    calls |= {("get", path) for path in FLEET}
    assert sum("/control/" in path for _, path in calls) > 30, "the list came from nowhere"
    admitted = []
    with caller(town, "127.0.0.2") as outside:
        for method, path in sorted(calls):
            response = outside.request(method, f"https://{server.address}{path}")
            if response.status_code != 403 and not (method == "post" and path in FLEET):
                admitted.append((method, path, response.status_code))
    assert admitted == []


def test_a_request_without_a_signature_is_refused(town: Town, server: FlowerServerLink) -> None:
    with caller(town, "127.0.0.2") as outside:
        for path in FLEET:
            url = f"https://{server.address}{path}"
            assert outside.post(url, content=b"", headers=PROTOBUF).status_code == 401, path


def test_a_request_that_is_too_large_is_refused(town: Town, server: FlowerServerLink) -> None:
    url = f"https://{server.address}/v1/fleet/push-object"
    with caller(town, "127.0.0.2") as outside:
        assert outside.post(url, content=bytes(9 * 1024**2)).status_code == 413


def caller(town: Town, address: str) -> httpx.Client:
    """Make an HTTP client that holds the authority's certificate only."""
    context = ssl.create_default_context(cafile=town.tls.ca)
    return httpx.Client(transport=httpx.HTTPTransport(verify=context, local_address=address))
