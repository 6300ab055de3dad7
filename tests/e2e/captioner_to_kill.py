"""A caption run over real worker processes and a real store, that tells each record it has acknowledged.

`python captioner_to_kill.py CLIPS STORE [NAME=VALUE ...]`: `ack DIGEST CREATED_AT CLIP` for each record once it is
durable, `asked N` and `done EXIT_CODE` at the end.
"""

import sys

import msgspec

from framefleet.caption.job import CaptionJob, run_caption_job
from framefleet.caption.settings import CaptionSettings
from framefleet.decode.options import DecodeOptions


def main() -> int:
    clips, store, *pairs = sys.argv[1:]
    changes = {name: msgspec.json.decode(value) for name, _, value in (pair.partition("=") for pair in pairs)}
    settings = {
        "engine": "fake",
        "engine_options": {"delay_s": 0.02},
        "frames": DecodeOptions(num_frames=2, size=(160, 32), backend="fake"),
        "concurrency": 2,
        "decode_workers": 2,
    }
    job = CaptionJob([clips], store, CaptionSettings(**{**settings, **changes}))

    def acknowledge(records) -> None:
        tell(*(f"ack {record.digest} {record.created_at} {record.clip}" for record in records))

    tell("begun")
    summary = run_caption_job(job, on_commit=acknowledge)
    tell(f"done {summary.exit_code} {summary.windows} {summary.skipped}")
    return summary.exit_code


def tell(*lines: str) -> None:
    """Out at once, whatever comes next."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
