"""A command that ends by itself soon: a tool that is asked something. It is killed when it is late, or nobody waits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

_PIPE, _NULL = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL


async def output_of(
    words: Sequence[str], *, say: str = "", environ: Mapping[str, str] | None = None, timeout_s: float = 10.0
) -> str | None:
    """What it prints when `say` is its stdin; None when it cannot be started, fails or is late."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=_PIPE, stdout=_PIPE, stderr=_NULL, env={**os.environ, **(environ or {})}
        )
    except OSError:
        return None
    try:
        output, _ = await asyncio.wait_for(process.communicate(say.encode()), timeout_s)
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return output.decode(errors="replace") if process.returncode == 0 else None
