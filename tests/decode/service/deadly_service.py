"""A decode service that dies at clips whose name says so: `python deadly_service.py SOCKET`."""

import asyncio
import os
import sys
from pathlib import Path

from faulty_tasks import frames_of

from framefleet.decode.service.__main__ import _listening
from framefleet.decode.service.served import Figures
from framefleet.decode.service.server import DecodeService


class Deadly:
    """`deadly` kills the process; `slow SECONDS` takes so long; anything else is frames at once."""

    slots = 4

    def isolates(self, options, *, is_suspect):
        return False

    async def decode(self, source, options, *, is_suspect):
        word, _, rest = source.name.partition(" ")
        if word == "deadly":
            os._exit(9)
        if word == "slow":
            await asyncio.sleep(float(rest.split()[0]))
        return frames_of(options.num_frames or 4)

    def figures(self):
        return Figures(1, 0, 0, 0.0, 0, 0, 0, ())


async def serve(listener):
    await DecodeService(Deadly()).serve(listener, asyncio.Event())


if __name__ == "__main__":
    with _listening(Path(sys.argv[1])) as listening:
        asyncio.run(serve(listening))
