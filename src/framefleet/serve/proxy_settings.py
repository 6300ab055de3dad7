"""Settings of the proxy: section `[proxy]`, environment `FRAMEFLEET_PROXY_...`, flags of `framefleet proxy`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from framefleet.units import GIB, MIB

_Seconds = Annotated[float, Meta(gt=0)]


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One proxy in front of many replicas."""

    upstreams: tuple[str, ...] = ()
    """Addresses of the replicas, `http://host:port` each; they get the names r0, r1 ..."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one and prints it."""
    policy: str = "least_work"
    """Which replica is next: `least_work`, `round_robin`, `random`, or a plugin's."""
    max_in_flight: Annotated[int, Meta(ge=1)] = 64
    """Requests at one replica at a time; more wait here, where a live one can overtake."""
    max_queue: Annotated[int, Meta(ge=0)] = 1024
    """Requests that wait at a time; more are answered 429 with Retry-After."""
    queue_timeout_s: _Seconds = 120
    """How long one waits for a replica before it is answered 429, or 503 when no replica takes work."""
    default_priority: Literal["live", "batch"] = "batch"
    """Of requests without `X-Framefleet-Priority`."""
    max_attempts: Annotated[int, Meta(ge=1)] = 3
    """Replicas that a request is tried at, the first included."""
    max_body_bytes: Annotated[int, Meta(ge=1)] = 512 * MIB
    """Larger requests are answered 413."""
    spool_memory_bytes: Annotated[int, Meta(ge=0)] = 4 * MIB
    """Of each upload kept in memory for another attempt; the rest goes to a temporary file."""
    spool_disk_bytes: Annotated[int, Meta(ge=0)] = 8 * GIB
    """Of all temporary files; an upload that finds no room gets one attempt only."""
    spool_folder: str = ""
    """Where the temporary files go; empty: the system's place."""
    connect_s: _Seconds = 5
    """To connect to a replica; then another is tried."""
    first_byte_s: _Seconds = 600
    """From the end of the upload to the first byte of the answer; longer than the longest clip takes. Then 504."""
    between_bytes_s: _Seconds = 120
    """Between two pieces of an answer; then the client's connection is broken off."""
    total_s: _Seconds = 1800
    """Of a request, waiting included."""
    client_idle_s: _Seconds = 60
    """A client that sends nothing for so long in the middle of its upload is answered 408."""
    max_failures: Annotated[int, Meta(ge=1)] = 5
    """Failures in a row before a replica is left alone."""
    open_s: _Seconds = 2
    """For how long; twice as long after each further failure, 30 s at most. Then one request tries it."""
    health_s: _Seconds = 2
    """Between two looks at /health of a replica."""
    health_timeout_s: _Seconds = 5
    """For an answer to them."""
    unhealthy_after: Annotated[int, Meta(ge=1)] = 3
    """Looks in a row without a good answer before a replica is lost; what waits for it goes to another."""
    probe_s: Annotated[float, Meta(ge=0)] = 15
    """A replica that answered no request for so long is sent a tiny one; 0: never."""
    probe_timeout_s: _Seconds = 60
    """For an answer to it; two in a row without one, and the replica is lost."""
    api_keys_file: str = ""
    """TOML file of those who may ask (only SHA-256 sums in it); empty: anybody may."""
    upstream_api_key: str = ""
    """Sent to the replicas as bearer token; empty: the client's own goes through where the proxy asks for no keys."""
