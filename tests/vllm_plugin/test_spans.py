"""What a clip took stands on the page that vLLM serves."""

import subprocess
import sys
from pathlib import Path

CLIP = Path(__file__).parents[1] / "corpus" / "files" / "base.mp4"
SCRIPT = """
import sys
from pathlib import Path
from prometheus_client import generate_latest
from framefleet.vllm_plugin.loader import FramefleetLoader
for _ in range(3):
    FramefleetLoader.load_bytes(Path(sys.argv[1]).read_bytes(), model="dashcam_tiny")
print(generate_latest().decode())
"""


def test_clips_that_were_loaded_are_counted():
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(CLIP)], capture_output=True, text=True, timeout=120, check=True
    )
    assert "framefleet:decode_seconds_count 3.0" in answer.stdout
    spent = next(line for line in answer.stdout.splitlines() if line.startswith("framefleet:decode_seconds_sum"))
    assert float(spent.split()[1]) > 0
