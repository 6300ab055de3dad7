"""What can be known of a remote clip without reading it: its version, as the server tells."""

from __future__ import annotations

from hashlib import blake2b

from framefleet.errors import SourceNotFound, SourceUnavailable

_VERSION_KEYS = (
    "ETag", "etag", "md5Hash", "content_md5", "crc32c", "generation", "LastModified", "last_modified", "mtime",
)  # fmt: skip
_HTTP_HEADERS = ("etag", "last-modified", "content-length")
_TIMEOUT_S = 30.0


def remote_content_digest(url: str) -> str:
    """Stands for the content of a remote clip (32 hex digits): its URL with the version and size that the server tells.

    The bytes are not read, so two places of equal content differ, and a server that tells no version is trusted to
    change no clip in place. Raises SourceNotFound or SourceUnavailable.
    """
    tell = _http_version if url.startswith(("http://", "https://")) else _object_version
    return blake2b(f"{url}\n{tell(url)}".encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _http_version(url: str) -> str:
    import httpx

    try:
        answer = httpx.head(url, follow_redirects=True, timeout=_TIMEOUT_S)
    except httpx.HTTPError as error:
        raise SourceUnavailable("the server does not answer", given=f"{url!r} ({error})") from error
    if answer.status_code in (404, 410):
        raise SourceNotFound("no such clip", given=f"{url!r} (HTTP {answer.status_code})")
    if answer.status_code in (405, 501):  # it knows no HEAD: the URL alone must do
        return ""
    if answer.is_error:
        raise SourceUnavailable("the server refuses the clip", given=f"{url!r} (HTTP {answer.status_code})")
    return "\n".join(f"{name}={answer.headers[name]}" for name in _HTTP_HEADERS if name in answer.headers)


def _object_version(url: str) -> str:
    import fsspec

    try:
        filesystem, path = fsspec.core.url_to_fs(url)
        facts = filesystem.info(path)
    except FileNotFoundError as error:
        raise SourceNotFound("no such clip", given=repr(url)) from error
    except (OSError, ImportError, ValueError) as error:
        raise SourceUnavailable("cannot look at the clip", given=f"{url!r} ({error})") from error
    known = [f"{key}={facts[key]}" for key in (*_VERSION_KEYS, "size") if facts.get(key) is not None]
    return "\n".join(known)
