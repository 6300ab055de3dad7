"""Experiments and trials for tests."""

import msgspec

from framefleet.bench.experiment import Arm, Experiment, Measurement, Trial, Workload

ARMS = (Arm(name="cpu", settings={"backend": "pyav"}), Arm(name="nvdec", settings={"backend": "nvdec", "lanes": 2}))
EXPERIMENT = Experiment(
    question="Does NVDEC pay on these clips?",
    workload=Workload(clips=("c0", "c1"), frame_policy={"fps": 1}, prompt="What happens?", max_output_tokens=64),
    arms=ARMS,
    metric="requests_per_s",
    smallest_effect=0.05,
)


def changed(**fields):
    return msgspec.structs.replace(EXPERIMENT, **fields)


def trial(arm="cpu", block=0, position=0, *, rate=10.0, error="", caption="x"):
    """Two requests at `rate` requests/s."""
    good = tuple(
        Measurement(
            clip=clip, total_s=1 / rate, output_tokens=8, frames_digest=f"f-{clip}", caption_digest=caption, error=error
        )
        for clip in ("c0", "c1")
    )
    return Trial(arm=arm, arm_digest="", block=block, position=position, wall_s=2 / rate, measurements=good)
