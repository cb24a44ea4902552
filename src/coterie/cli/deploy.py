"""`coterie deploy`: a server without data, clients at their sites, certificates and keys."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import Changes, Debug, PlainCommand, check_folder, check_port
from coterie.cli.run import closing, split_arguments
from coterie.cli.terminal import echo
from coterie.core.errors import ConfigError, Interrupted
from coterie.core.fields import MOST

if TYPE_CHECKING:
    from coterie.deploy.certificates import Certificates

app = typer.Typer(
    help="Train across sites that keep their data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_PORT = 9092
_DATABASE = "superlink.db"
_MOST_DAYS = 36_500

_OUT = typer.Option(metavar="DIR", help="Run directory; default: runs/METHOD-sites-TIME.")
_RESUME = typer.Option("--resume", help="Resume the run in --out.")
_INEXACT = typer.Option("--allow-inexact", help="Resume although results may differ.")
_HOST = typer.Option(metavar="NAME", help="The address to listen on.")
_PORT_HELP = typer.Option(metavar="NUMBER", help="The port to listen on; 0: any.")
_CERTIFICATES = typer.Option(
    metavar="DIR", help="Folder with ca.pem, server.pem and server.key (coterie deploy certs)."
)
_KEYS = typer.Option(metavar="DIR", help="Folder with SITE.pub of every site that may take part.")
_CLASSES = typer.Option(metavar="A,B,...", help="The classes; default: those that clients report.")
_CLIENTS = typer.Option(metavar="N", help="Begin when so many have joined; default: all keys.")
_WAIT = typer.Option(metavar="SECONDS", help="How long clients have to join before round 1.")
_GRACE = typer.Option(metavar="SECONDS", help="How long a client that vanished is waited for.")
_INSECURE = typer.Option("--insecure", help="Without TLS and keys: on one machine only.")
_NETWORK = typer.Option("--insecure-network", help="With --insecure: over a network all the same.")
_SERVER = typer.Option(metavar="HOST:PORT", help="The server to work for.")
_DATA = typer.Option(metavar="PATH", help="This site's data, as data.root of a run.")
_SOURCE = typer.Option(metavar="NAME", help="As data.name; default: folder, arrays or table.")
_NAME = typer.Option(metavar="SITE", help="This site's name; default: that of --key, or of --data.")
_FOLDER = typer.Option(metavar="DIR", help="For states and models; default: coterie-site-SITE.")
_CA = typer.Option(metavar="FILE", help="ca.pem of the server's operator.")
_KEY = typer.Option(metavar="FILE", help="SITE.key of this site (coterie deploy keys).")
_DENY = typer.Option(metavar="WORD", help="What must not leave this site; can be given again.")
_AGREED = typer.Option(metavar="FILE", help="Take part only if the server runs this one.")
_OWN_CODE = typer.Option("--own-code", help="A configuration may name modules of this machine.")
_DEVICE = typer.Option(metavar="NAME", help="Where this site computes.")
_FOR = typer.Option("--host", metavar="NAME", help="A name or address of the server; repeatable.")
_DAYS = typer.Option(metavar="N", help="How long the certificate is valid.")


@app.command("server", cls=PlainCommand, short_help="Run a method over clients at their sites.")
def serve(
    arguments: Changes = None,
    out: Annotated[Path | None, _OUT] = None,
    resume: Annotated[bool, _RESUME] = False,
    host: Annotated[str, _HOST] = "127.0.0.1",
    port: Annotated[int, _PORT_HELP] = _PORT,
    certificates: Annotated[Path | None, _CERTIFICATES] = None,
    keys: Annotated[Path | None, _KEYS] = None,
    clients: Annotated[int, _CLIENTS] = 0,
    classes: Annotated[str, _CLASSES] = "",
    wait: Annotated[float, _WAIT] = 600.0,
    grace: Annotated[float, _GRACE] = 60.0,
    insecure: Annotated[bool, _INSECURE] = False,
    insecure_network: Annotated[bool, _NETWORK] = False,
    allow_inexact: Annotated[bool, _INEXACT] = False,
    debug: Debug = False,
) -> None:
    """Run a method over clients that keep their data, to the outputs of any other run."""
    source, overrides = split_arguments(arguments or [])
    if resume and out is None:
        raise ConfigError("--resume needs --out, the directory of the run to resume")
    _check_secured(insecure, certificates, keys, "--certificates and --keys")
    if out is not None:
        check_folder(out)
    check_port("--port", port)
    if insecure and clients < 1:
        raise ConfigError("--insecure has no registered sites: say how many to wait for: --clients")
    for option, value in (("--wait", wait), ("--grace", grace)):
        if not 0 < value <= MOST:  # nor NaN
            raise ConfigError(f"{option} {value:g} must be above 0 seconds, and at most {MOST:,}")

    from coterie.experiment.tables import parse_overrides, request

    saved = out / "config.toml" if resume and out else None
    asked = request(source, parse_overrides(overrides), saved)

    from coterie.deploy import server
    from coterie.deploy.flower.server import FlowerServerLink
    from coterie.deploy.gather import Patience
    from coterie.deploy.handshake import make_common
    from coterie.experiment.config import resolve_request
    from coterie.experiment.run import default_folder, describe_start
    from coterie.report.progress import Display, LastingConsole

    config = resolve_request(asked)
    folder = out or default_folder(make_common(config))
    database = folder.parent / f".{folder.name}-{_DATABASE}"
    tls = _find_certificates(certificates)
    link = FlowerServerLink(
        host, port, database=database, tls=tls, keys=keys, insecure_network=insecure_network
    )
    display = Display(LastingConsole(soft_wrap=True), describe_start(config, "sites"), debug=debug)
    echo(f"listening on {link.address}")
    patience = Patience(clients, wait, grace)
    try:
        with display:
            result = server.serve(
                config,
                link,
                folder,
                resume=resume,
                allow_inexact=allow_inexact,
                classes=_read_classes(classes),
                patience=patience,
                recorders=[display],
            )
    finally:
        link.close()
    closing(result)


@app.command("client", cls=PlainCommand, short_help="Take part in a run with this site's data.")
def work(
    server: Annotated[str, _SERVER],
    data: Annotated[str, _DATA],
    source: Annotated[str, _SOURCE] = "",
    name: Annotated[str, _NAME] = "",
    folder: Annotated[Path | None, _FOLDER] = None,
    ca: Annotated[Path | None, _CA] = None,
    key: Annotated[Path | None, _KEY] = None,
    deny: Annotated[list[str] | None, _DENY] = None,
    config: Annotated[str, _AGREED] = "",
    own_code: Annotated[bool, _OWN_CODE] = False,
    device: Annotated[str, _DEVICE] = "cpu",
    insecure: Annotated[bool, _INSECURE] = False,
    insecure_network: Annotated[bool, _NETWORK] = False,
    debug: Debug = False,
) -> None:
    """Answer a server with this site's data, which do not leave this machine."""
    if not server.rpartition(":")[0] or not server.rpartition(":")[2].isdigit():
        raise ConfigError(f"--server {server} must be HOST:PORT, as in 10.0.0.7:{_PORT}")
    _check_secured(insecure, ca, key, "--ca and --key")

    from coterie.deploy.keys import check_name
    from coterie.deploy.own_data import OwnData, choose_source

    site = check_name(name or (key.stem if key else Path(data).stem))
    if key is not None and name and name != key.stem:
        raise ConfigError(f"--name {name} is not the name of the key {key}")
    own = OwnData(data, source or choose_source(data))
    agreed = _hash_config(config) if config else ""

    from coterie.deploy.client import Client, Consent
    from coterie.deploy.flower.client import FlowerClientLink

    home = folder or Path(f"coterie-site-{site}")
    consent = Consent(tuple(deny or ()), own_code, agreed)
    echo(f"site {site}: connecting to {server}")
    try:
        link = FlowerClientLink(
            server, state=home, ca=ca, key=key, name=site, insecure_network=insecure_network
        )
        client = Client(link, own, site, home, consent, device=device, say=echo)
        echo(f"site {site}: {client.serve()}")
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command continues") from None


@app.command("certs", cls=PlainCommand, short_help="Make certificates for a trial.")
def make_certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them.")],
    host: Annotated[list[str] | None, _FOR] = None,
    days: Annotated[int, _DAYS] = 365,
    debug: Debug = False,
) -> None:
    """Make an authority (ca.pem) and a certificate for the names of a server."""
    if not 1 <= days <= _MOST_DAYS:
        raise ConfigError(f"--days {days} must be from 1 to {_MOST_DAYS:,}")
    check_folder(folder, "DIR")
    _require_extra()
    from coterie.deploy.certificates import make_certificates

    files = make_certificates(folder, host or ["127.0.0.1", "localhost"], days)
    echo(f"for the server: {files.certificate}, {files.key}")
    echo(f"for every site: {files.ca}")


@app.command("keys", cls=PlainCommand, short_help="Make the key of a site.")
def make_keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")],
    site: Annotated[str, typer.Argument(metavar="SITE", help="The name of the site.")],
    debug: Debug = False,
) -> None:
    """Make a key: SITE.key stays at the site, SITE.pub goes to the server's operator."""
    check_folder(folder, "DIR")
    _require_extra()
    from coterie.deploy.keys import make_key

    files = make_key(folder, site)
    echo(f"stays at the site: {files.private}")
    echo(f"for the server's --keys: {files.public}")


def _require_extra() -> None:
    from coterie.deploy.flower_version import require_flower

    require_flower()


def _check_secured(insecure: bool, first: Path | None, second: Path | None, options: str) -> None:
    """Refuse half of what TLS and keys need, before anything is imported."""
    _require_extra()
    if insecure and (first or second):
        raise ConfigError(f"--insecure contradicts {options}: leave one out")
    if not insecure and not (first and second):
        raise ConfigError(
            f"{options} are needed (coterie deploy certs, coterie deploy keys); on one machine "
            "--insecure does without"
        )


def _find_certificates(folder: Path | None) -> "Certificates | None":
    from coterie.deploy.certificates import Certificates

    return Certificates.within(folder) if folder else None


def _read_classes(text: str) -> tuple[int | str, ...]:
    """Read a list of classes; numbers, if all of them are."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if len(set(names)) != len(names):
        raise ConfigError(f"--classes {text} has a class twice")
    return tuple(map(int, names)) if all(n.isdigit() for n in names) else tuple(names)


def _hash_config(path: str) -> str:
    from coterie.deploy.handshake import make_common
    from coterie.experiment.config import load

    return make_common(load(path)).hash()
