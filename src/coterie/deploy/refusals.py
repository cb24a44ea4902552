"""Why a client cannot speak to its server, in one line that names the remedy."""

import ssl

import httpx

_EXPIRED, _NOT_YET, _OTHER_NAME, _OTHER_ADDRESS = 10, 9, 62, 64  # OpenSSL's verification codes


def explain(error: Exception, server: str, encrypted: bool) -> tuple[str, bool]:
    """Return the line for an error, and whether it may pass by itself, as an absent server."""
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _explain_certificate(cause, server), False
        if isinstance(cause, ssl.SSLError) and "WRONG_VERSION" in str(cause):
            return (
                f"the server {server} does not speak TLS; it was started with '--insecure'",
                False,
            )
    if isinstance(error, httpx.HTTPStatusError):
        return _explain_status(error.response, server)
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and not encrypted:
        return (
            f"the server {server} closed the connection: it may expect TLS, which needs its "
            "authority's certificate ('--ca') and a key ('--key') instead of '--insecure'",
            False,
        )
    return f"the server {server} cannot be reached: {error or type(error).__name__}", True


def _explain_certificate(error: ssl.SSLCertVerificationError, server: str) -> str:
    if error.verify_code == _EXPIRED:
        return f"the certificate of {server} has expired; its operator has to renew it"
    if error.verify_code == _NOT_YET:
        return f"the certificate of {server} is not valid yet; compare the clocks of both machines"
    if error.verify_code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"the certificate that {server} shows is for another host name; call the server by "
            "a name in its certificate, or add this one with 'coterie deploy certs'"
        )
    return (
        f"the certificate of {server} is not signed by the authority that was given with '--ca'; "
        "ask the server's operator for the right 'ca.pem'"
    )


def _explain_status(response: httpx.Response, server: str) -> tuple[str, bool]:
    """Flower has one code for an unknown key, a removed one and one that is in use."""
    status = response.status_code
    if status in (500, 502, 503, 504):  # 500: it failed at this one request
        return f"the server {server} is not available (HTTP {status})", True
    if status == 401:
        return (
            f"the server {server} does not accept this client's signature: its key is not "
            "registered there, was removed, or the clocks of both machines differ by more than 5 s",
            False,
        )
    if status == 412:
        return (
            f"the server {server} does not admit this client: its key is not registered there, "
            "was removed, or is in use by another client that is connected or was cut off less "
            "than 30 s ago",
            False,
        )
    if status == 413:
        return f"the server {server} does not take a request of this size", False
    return f"the server {server} refused with HTTP {status}: {response.text[:200]}", False


def _chain(error: BaseException | None) -> list[BaseException]:
    """List an error and what it was raised from."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found
