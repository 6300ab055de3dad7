"""`diagnose` and `tune` on a real fleet on the CPU: two engines with the bundled model, behind the proxy.

    python benchmarks/diagnose/fleet.py OUT [--time 2m] [--tune-time 90s]

OUT/diagnosis and OUT/tuning get what the commands write.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from framefleet.scenes import sample_clips

FRAMEFLEET = (sys.executable, "-m", "framefleet")
SETTINGS = """[fleet]
model = "dashcam_tiny"
replicas = 2
allowed_local_media_path = "{clips}"
[fleet.embedded]
num_threads = 1
decode_workers = 1
max_batch = 4
"""
NUM_CLIPS = 6
LADDERS = ("concurrency=2,4,8", "embedded.max_batch=1,4,8")


def ready(url: str) -> bool:
    with urllib.request.urlopen(url + "/fleet", timeout=10) as answer:
        return all(one["state"] == "ready" for one in json.load(answer)["replicas"])


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("out", type=Path)
    asked.add_argument("--time", default="2m")
    asked.add_argument("--tune-time", default="90s")
    given = asked.parse_args()
    clips = [str(clip.path) for clip in sample_clips()[:NUM_CLIPS]]
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "fleet.toml"
        settings.write_text(SETTINGS.format(clips=Path(clips[0]).parent))
        run = str(Path(folder) / "run")
        command = [*FRAMEFLEET, "serve", "--config", settings, "--folder", run, "--port", "0", "--json", "--quiet"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as fleet:
            assert fleet.stdout is not None
            try:
                url = json.loads(fleet.stdout.readline())["address"]
                while not ready(url):
                    time.sleep(0.5)
                load = ("--max-tokens", "16", "--prompt", "av")
                diagnose = ("--endpoint", url, "--time", given.time, "--concurrency", "4")
                subprocess.run(
                    [*FRAMEFLEET, "diagnose", *clips, *diagnose, *load, "--report", given.out / "diagnosis"], check=True
                )
                ladders = [word for ladder in LADDERS for word in ("--ladder", ladder)]
                tune = ("--folder", run, "--time", given.tune_time, "--trial", "4s", "--most-in-flight", "8")
                subprocess.run(
                    [*FRAMEFLEET, "tune", *clips, *ladders, *tune, *load, "--report", given.out / "tuning"], check=True
                )
            finally:
                fleet.send_signal(signal.SIGTERM)
    return 0


if __name__ == "__main__":
    sys.exit(main())
