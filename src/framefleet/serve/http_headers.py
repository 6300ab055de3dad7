"""Headers on their way through: what belongs to one connection stays behind (RFC 9110, 7.6.1). Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator

HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
_OURS = frozenset({b"host", b"expect", b"content-length"})
"""Of a request, set anew for the replica."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")

Headers = Iterable[tuple[bytes, bytes]]


def value_of(headers: Headers, name: bytes) -> str:
    """Of the first header of that name; empty where there is none."""
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), "")


def end_to_end(headers: Headers) -> Iterator[tuple[bytes, bytes]]:
    """Without those of the connection, and those that `Connection` names."""
    headers = list(headers)
    named = {
        word.strip().lower() for key, value in headers if key.lower() == b"connection" for word in value.split(b",")
    }
    return (
        (key, value) for key, value in headers if key.lower() not in HOP_BY_HOP and key.lower() not in named
    )  # fmt: skip


def for_replica(
    headers: Headers, *, request_id: str, client: str, upstream_key: str, hides_key: bool
) -> list[tuple[str, str]]:
    """Of a request: `traceparent` is made where there is none that is right; our client's key stays here."""
    kept = [
        (key.decode("latin-1"), value.decode("latin-1"))
        for key, value in end_to_end(headers)
        if key.lower() not in _OURS and not (key.lower() == b"authorization" and (upstream_key or hides_key))
    ]
    names = {key.lower(): value for key, value in kept}
    if not _TRACEPARENT.fullmatch(names.get("traceparent", "")):
        kept = [(key, value) for key, value in kept if key.lower() != "traceparent"]
        kept.append(("traceparent", new_traceparent()))
    forwarded = ", ".join(filter(None, (names.get("x-forwarded-for", ""), client)))
    kept = [(key, value) for key, value in kept if key.lower() not in ("x-forwarded-for", "x-request-id")]
    kept += [("x-request-id", request_id), ("x-forwarded-for", forwarded)]
    if upstream_key:
        kept.append(("authorization", f"Bearer {upstream_key}"))
    return kept


def new_traceparent() -> str:
    """W3C Trace Context, version 00, sampled."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def request_id_of(headers: Headers) -> str:
    """The client's `X-Request-Id` where it is fit to be logged, else a new one."""
    given = value_of(headers, b"x-request-id")
    return given if re.fullmatch(r"[\w.:-]{1,128}", given) else secrets.token_hex(8)
