"""Sources behind a URL: http(s) by ranges or as one body, object stores through fsspec. Every byte counted and timed.

Who may be asked is decided before each connection, redirects included (`FetchPolicy`): with `allowed_hosts` set, as
when serving others, only those hosts, over http and https, and only at addresses open to the world; the connection
goes to the very address that was checked.
"""

from __future__ import annotations

import io
import ipaddress
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, BinaryIO, cast

import httpx

from framefleet.errors import (
    FramefleetError,
    MissingLibrary,
    SourceCorrupt,
    SourceNotFound,
    SourceTooLarge,
    SourceUnavailable,
    SourceUnsupported,
)
from framefleet.media.limits import Deadline, FetchPolicy, ScanLimits
from framefleet.media.source import VideoSource
from framefleet.units import MIB, format_bytes

_BLOCK_BYTES = MIB
_MAX_REDIRECTS = 5
_CONNECT_TIMEOUT_S = 10.0
_IN_MEMORY_BYTES = 64 * MIB
_STORES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs",
    "memory": "fsspec",
}  # fmt: skip
_ENCODINGS = frozenset(("gzip", "deflate"))
"""Undone for servers that compress unasked."""
_RETRY_LATER = frozenset((408, 425, 429, 500, 502, 503, 504))


def open_url(url: str, limits: ScanLimits) -> BinaryIO:
    """The bytes behind `url` as a seekable binary file: by ranges where the server has them, else fetched whole.

    Raises SourceNotFound, SourceUnavailable, SourceUnsupported, SourceTooLarge, SourceCorrupt, DecodeTimeout.
    """
    scheme = url.partition("://")[0].lower()
    if scheme in ("http", "https"):
        return _open_http(url, limits)
    if limits.fetch.allowed_hosts is not None or scheme not in _STORES:
        allowed = "http, https" if limits.fetch.allowed_hosts is not None else f"http, https, {', '.join(_STORES)}"
        raise SourceUnsupported("no such kind of address", given=repr(url), allowed=allowed)
    return _open_store(url, scheme, limits)


@contextmanager
def local_copy(source: VideoSource, limits: ScanLimits) -> Iterator[VideoSource]:
    """A source on this machine with the bytes of `source`: in memory, or in a file that goes when the block is left.

    Sources that are here already come back as they are. Raises as `open_url`.
    """
    if source.kind != "url":
        yield source
        return
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as copy:
        _download(source.location, copy, limits)
        if copy.tell() > _IN_MEMORY_BYTES:
            copy.flush()
            yield VideoSource("file", f"/proc/self/fd/{copy.fileno()}", title=source.name)
        else:
            copy.seek(0)
            yield VideoSource("bytes", source.name, copy.read())


def _download(url: str, to: Any, limits: ScanLimits) -> None:
    num_bytes = 0
    with open_url(url, limits) as source:
        while block := source.read(_BLOCK_BYTES):
            num_bytes += len(block)
            _check_size(num_bytes, url, limits)
            limits.deadline.check("fetching the clip", url)
            to.write(block)


def _open_http(url: str, limits: ScanLimits) -> BinaryIO:
    client = httpx.Client(headers={"Accept-Encoding": "identity", "User-Agent": "framefleet"}, follow_redirects=False)
    try:
        with _following(client, url, limits, f"bytes=0-{_BLOCK_BYTES - 1}") as (response, final_url):
            if response.status_code == httpx.codes.PARTIAL_CONTENT:
                head = b"".join(_body(response, url, limits))
                total = _total_bytes(response, url)
                _check_size(total, url, limits)
                tag = response.headers.get("etag") or response.headers.get("last-modified")
                ranges = _Ranges(client, final_url, total, tag, limits)
                return cast("BinaryIO", io.BufferedReader(_RangeFile(ranges, total, head), _BLOCK_BYTES))
            whole = _spool(response, url, limits)
    except BaseException:
        client.close()
        raise
    client.close()
    return whole


@contextmanager
def _following(
    client: httpx.Client, url: str, limits: ScanLimits, byte_range: str
) -> Iterator[tuple[httpx.Response, str]]:
    """The response to a GET of `byte_range`, redirects followed and each hop checked; and the URL it came from."""
    for _ in range(_MAX_REDIRECTS + 1):
        limits.deadline.check("fetching the clip", url)
        with _asking(client, url, limits, byte_range) as response:
            if response.has_redirect_location:
                url = str(httpx.URL(url).join(response.headers["location"]))
                continue
            _check_status(response, url)
            yield response, url
            return
    raise SourceUnsupported("too many redirects", given=repr(url), allowed=str(_MAX_REDIRECTS))


@contextmanager
def _asking(client: httpx.Client, url: str, limits: ScanLimits, byte_range: str) -> Iterator[httpx.Response]:
    target, extra = _pinned(url, limits.fetch)
    patience_s = max(0.05, min(limits.deadline.remaining_s, limits.fetch.stall_s))
    timeout = httpx.Timeout(patience_s, connect=min(patience_s, _CONNECT_TIMEOUT_S))
    request = client.build_request("GET", target, headers={"Range": byte_range, **extra}, timeout=timeout)
    request.extensions["sni_hostname"] = httpx.URL(url).host
    request.extensions["trace"] = _bound_by(limits.deadline)
    try:
        response = client.send(request, stream=True)
    except httpx.HTTPError as error:
        limits.deadline.check("fetching the clip", url)
        raise _unavailable(url, error) from error
    except (httpx.InvalidURL, ValueError) as error:
        raise SourceNotFound("not a usable address", given=f"{url!r} ({error})") from error
    try:
        yield response
    finally:
        response.close()


def _bound_by(deadline: Deadline) -> Callable[[str, dict[str, Any]], None]:
    """An httpcore trace that has every read of new connections end by the deadline: httpx's timeouts start anew with
    each byte, so that headers could drip for ever.
    """

    def trace(event: str, told: dict[str, Any]) -> None:
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            stream = told["return_value"]
            read = stream.read
            stream.read = lambda size, timeout=None: read(size, max(0.01, min(timeout or inf, deadline.remaining_s)))

    return trace


def _pinned(url: str, policy: FetchPolicy) -> tuple[str, dict[str, str]]:
    """The URL to connect to and the extra headers: under a policy, the checked address in place of the host's name."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SourceNotFound("not a usable address", given=f"{url!r} ({error})") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise SourceUnsupported("only http and https are followed", given=repr(url))
    if policy.allowed_hosts is None:
        return url, {}
    if not policy.allows(parts.host):
        raise SourceUnsupported(
            "the clip's host is not allowed", given=repr(url), allowed=", ".join(policy.allowed_hosts) or "none"
        )
    address = _public_address(parts.host, parts.port or (443 if parts.scheme == "https" else 80), url, policy)
    host = parts.netloc.decode().rpartition("@")[2]
    return str(parts.copy_with(host=address)), {"Host": host}


def _public_address(host: str, port: int, url: str, policy: FetchPolicy) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise SourceNotFound("the clip's host is unknown", given=f"{url!r} ({error})") from error
    addresses = [str(entry[4][0]) for entry in found]
    for address in addresses:
        if not policy.allow_private and not _is_public(address):
            raise SourceUnsupported("the clip's host is inside a private network", given=f"{url!r} ({address})")
    return addresses[0]


def _is_public(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped:
        parsed = parsed.ipv4_mapped
    return parsed.is_global and not parsed.is_multicast


def _check_status(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity" and (status != httpx.codes.OK or encoding not in _ENCODINGS):
            raise SourceUnsupported(
                "the server gives the clip compressed", given=f"{url!r} ({encoding})", remedy="serve it as it is"
            )
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in ("text/html", "application/xhtml+xml"):
            raise SourceCorrupt("the address gives a web page, not a video", given=repr(url))
        return
    given = f"{url!r} (HTTP {status})"
    if status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise SourceCorrupt("the clip is empty", given=given)
    if status in _RETRY_LATER or status >= 500:
        raise SourceUnavailable("the server did not give the clip", given=given, remedy="later")
    raise SourceNotFound("the server has no such clip, or gives it to others only", given=given)


def _total_bytes(response: httpx.Response, url: str) -> int:
    _, _, total = response.headers.get("content-range", "").rpartition("/")
    if not total.isdigit():
        raise SourceUnsupported("the server does not say how large the clip is", given=repr(url))
    return int(total)


def _body(response: httpx.Response, url: str, limits: ScanLimits) -> Iterator[bytes]:
    received = 0
    try:
        for piece in response.iter_bytes():
            received += len(piece)
            _check_size(received, url, limits)
            limits.deadline.check("fetching the clip", url)
            yield piece
    except httpx.HTTPError as error:
        limits.deadline.check("fetching the clip", url)
        raise _unavailable(url, error) from error


def _spool(response: httpx.Response, url: str, limits: ScanLimits) -> BinaryIO:
    promised = response.headers.get("content-length", "")
    if promised.isdigit():
        _check_size(int(promised), url, limits)
    whole = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - handed to the caller
    try:
        for piece in _body(response, url, limits):
            whole.write(piece)
    except BaseException:
        whole.close()
        raise
    whole.seek(0)
    return cast("BinaryIO", whole)


def _check_size(num_bytes: int, url: str, limits: ScanLimits) -> None:
    if num_bytes > limits.max_source_bytes:
        raise SourceTooLarge(
            "the clip is too large",
            given=f"{url!r} ({format_bytes(num_bytes)} and more)",
            allowed=f"max_source_bytes {format_bytes(limits.max_source_bytes)}",
        )


def _unavailable(url: str, error: Exception) -> SourceUnavailable:
    return SourceUnavailable(
        "the clip could not be fetched", given=f"{url!r} ({type(error).__name__}: {error})", remedy="later"
    )


class _Ranges:
    """Byte ranges of one clip from one server."""

    def __init__(self, client: httpx.Client, url: str, total: int, tag: str | None, limits: ScanLimits) -> None:
        self._client, self._url, self._total, self._tag, self._limits = client, url, total, tag, limits

    def get(self, start: int, stop: int) -> bytes:
        """`start <= byte < stop`. Raises SourceCorrupt when the clip is no longer the one that was opened."""
        with _following(self._client, self._url, self._limits, f"bytes={start}-{stop - 1}") as (response, _):
            tag = response.headers.get("etag") or response.headers.get("last-modified")
            is_same = response.status_code == httpx.codes.PARTIAL_CONTENT and tag == self._tag
            if not is_same or _total_bytes(response, self._url) != self._total:
                raise SourceCorrupt("the clip changed while it was read", given=repr(self._url), remedy="again")
            block = b"".join(_body(response, self._url, self._limits))
        if len(block) != stop - start:
            raise SourceUnavailable(
                "the server broke off", given=f"{self._url!r} ({len(block)} of {stop - start} bytes)", remedy="later"
            )
        return block

    def close(self) -> None:
        self._client.close()


class _RangeFile(io.RawIOBase):
    """A file whose reads are range requests of whole blocks; the last few blocks are kept."""

    _KEPT_BLOCKS = 8

    def __init__(self, ranges: _Ranges, total: int, head: bytes) -> None:
        self._ranges, self._total, self._at = ranges, total, 0
        self._blocks: dict[int, bytes] = {0: head} if len(head) == min(_BLOCK_BYTES, total) else {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._total}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._total:
            return 0
        number, offset = divmod(self._at, _BLOCK_BYTES)
        piece = self._block(number)[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            start = number * _BLOCK_BYTES
            block = self._ranges.get(start, min(start + _BLOCK_BYTES, self._total))
            while len(self._blocks) >= self._KEPT_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            self._blocks[number] = block
        return self._blocks[number]

    def close(self) -> None:
        if not self.closed:
            self._ranges.close()
        super().close()


def _open_store(url: str, scheme: str, limits: ScanLimits) -> BinaryIO:
    try:
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        size = system.size(path)
        if size is not None:
            _check_size(int(size), url, limits)
        return cast("BinaryIO", system.open(path, "rb", block_size=_BLOCK_BYTES))
    except FramefleetError:
        raise
    except ImportError as error:
        raise MissingLibrary(
            f"reading {scheme}:// needs {_STORES[scheme]}", given=repr(url), remedy=f"pip install {_STORES[scheme]}"
        ) from error
    except FileNotFoundError as error:
        raise SourceNotFound("no such object", given=repr(url)) from error
    except PermissionError as error:
        raise SourceNotFound("not allowed to read the object", given=f"{url!r} ({error})") from error
    except Exception as error:  # fsspec's stores raise whatever their client libraries do
        raise _unavailable(url, error) from error
