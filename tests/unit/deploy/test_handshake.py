"""Why one end refuses the other, and what a client is told to give away."""

from typing import Any

import pytest

from coterie.core.errors import ConfigError
from coterie.deploy.handshake import Declined, Terms, check_terms, list_learned, make_common
from coterie.experiment.config import Config, load


def terms(name: str = "digits/fedproc", **changes: Any) -> dict[str, Any]:
    config = make_common(load(name, changes))
    return Terms(config, list_learned(config)).to_plain()


def test_both_ends_agree_on_the_same_terms() -> None:
    agreed = check_terms(terms(), (), False)
    assert {"sizes", "classes", "model", "class_counts", "scores"} <= agreed.learns.keys()
    assert agreed.config.hash() == terms()["config_hash"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol": 0}, "speaks protocol 0"),
        ({"versions": {"coterie": "0.0", "torch": "2"}}, "the server has coterie 0.0"),
        ({"versions": None}, "the server has coterie None"),
        ({"config": None}, "sent no configuration"),
        ({"config": {"run": {"seeed": 1}}}, "cannot be used here"),
        ({"config_hash": "0" * 64}, "does not have the hash"),
        ({"stated": "a,b"}, "no list of classes"),
    ],
)
def test_other_terms_are_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(Declined, match=reason):
        check_terms({**terms(), **change}, (), False)


@pytest.mark.parametrize("word", ["sizes", "classes", "class_counts", "scores", "confusion"])
def test_each_word_that_is_listed_can_be_denied(word: str) -> None:
    with pytest.raises(Declined, match=f"its operator denies {word}"):
        check_terms(terms(), (word,), False)


def test_what_leaves_follows_from_the_configuration_and_not_from_the_servers_list() -> None:
    with pytest.raises(Declined, match="denies class_counts"):
        check_terms({**terms(), "learns": {}}, ("class_counts",), False)


def test_stated_classes_need_not_be_told() -> None:
    assert (
        "classes" not in check_terms({**terms(), "stated": ["a", "b"]}, ("classes",), False).learns
    )


def test_another_configuration_than_the_agreed_one_is_refused() -> None:
    other = terms("digits/moon")["config_hash"]
    with pytest.raises(Declined, match="another configuration than the one given"):
        check_terms(terms(), (), False, other)


def test_a_server_cannot_have_a_client_import_modules() -> None:
    head = terms()
    head["config"]["method"] = {"name": "subprocess:Popen"}
    with pytest.raises(Declined, match="code that is not Coterie's"):
        check_terms(head, (), False)


def test_arrays_of_every_sample_are_listed_by_their_names() -> None:
    config = make_common(load("digits/mfcl", {"method.share_representations": True}))
    assert any("a row for every sample" in text for text in list_learned(config).values())


def test_the_schema_tells_networks_apart() -> None:
    from coterie.deploy.handshake import hash_schema
    from coterie.engine.spec import Parts

    def schema(config: Config) -> str:
        return hash_schema(Parts(make_spec(config)))

    small, large = (load("digits/fedavg", {"net.projection": width}) for width in (8, 16))
    assert schema(small) == schema(small) != schema(large)


def make_spec(config: Config) -> Any:
    from coterie.core.registry import Component
    from coterie.engine.spec import Spec

    parts = [Component.of(part) for part in (config.method, config.objective)]
    rest = {"evaluators": {}, "folder": ""}
    return Spec(0, "", (1, 8, 8), 10, "none", config.net, config.local, *parts, **rest)


def test_weights_of_the_servers_own_file_are_not_asked_of_clients() -> None:
    config = load("digits/solo", {})
    changed = config.update("net", weights="w.safetensors")
    with pytest.raises(ConfigError, match="is a file of the server"):
        make_common(changed)
