"""What vLLM gets of real clips: the model's frames at the model's size, true metadata, 400 for what is no video."""

from pathlib import Path

import numpy as np
import pytest

import framefleet
from framefleet.decode.session import decode
from framefleet.engine.embedded.checkpoint import open_checkpoint
from framefleet.engine.embedded.frame_policy import frame_policy_for
from framefleet.errors import BudgetTooLarge, ConfigError, DecodeTimeout, DeviceError
from framefleet.media.clip import ScannedClip
from framefleet.media.limits import ScanLimits
from framefleet.media.scan import scan
from framefleet.media.source import VideoSource
from framefleet.vllm_plugin import register
from framefleet.vllm_plugin.decoding import Decoding
from framefleet.vllm_plugin.loader import FramefleetLoader

START = {"video_backend": "framefleet", "model": "dashcam_tiny"}
SAMPLES = Path(framefleet.__file__).parent / "scenes" / "samples"


def load(path: Path, **asked):
    return FramefleetLoader.load_bytes(path.read_bytes(), num_frames=32, **{"model": "dashcam_tiny", **asked})


@pytest.fixture(autouse=True)
def _no_backend_from_outside(monkeypatch):
    monkeypatch.delenv("FRAMEFLEET_BACKEND", raising=False)
    monkeypatch.delenv("FRAMEFLEET_MODEL", raising=False)


def test_through_vllm_come_the_frames_of_the_embedded_engine(make_vllm):
    vllm = make_vllm()
    register()
    path = SAMPLES / "scene_00_480p_h264.mp4"
    frames, metadata = vllm.fetch(path.read_bytes(), START)
    expected = decode(path, frame_policy_for("dashcam_tiny"))
    assert np.array_equal(frames, expected.data)
    assert metadata == {
        "total_num_frames": expected.total_num_frames,
        "fps": expected.fps,
        "duration": expected.duration_s,
        "video_backend": "framefleet_pyav",
        "frames_indices": expected.indices.tolist(),
        "do_sample_frames": False,
    }
    assert all(type(row) is int for row in metadata["frames_indices"])


def test_taken_over_it_needs_no_option_at_all(make_vllm, monkeypatch):
    vllm = make_vllm()
    monkeypatch.setenv("FRAMEFLEET_TAKE_OVER", "1")
    monkeypatch.setenv("FRAMEFLEET_MODEL", "dashcam_tiny")
    register()
    _, metadata = vllm.fetch((SAMPLES / "scene_00_480p_h264.mp4").read_bytes(), {}, {"max_frames": 3})
    assert len(metadata["frames_indices"]) == 3
    assert metadata["video_backend"] == "framefleet_pyav"


@pytest.mark.parametrize("asked", [{}, {"fps": 1}, {"max_frames": 5, "min_frames": 1}, {"min_frames": 4, "fps": 4}])
@pytest.mark.parametrize("name", ["scene_00_480p_h264.mp4", "scene_09_1080p_h264.mp4"])
def test_rows_are_those_of_vllms_own_loader(name, asked):
    """Its arithmetic (0.32 `Qwen3VLVideoBackend`), on the metadata given, with the model's own bounds."""
    policy = frame_policy_for("dashcam_tiny")
    _, metadata = load(SAMPLES / name, **asked)
    total, rate = metadata["total_num_frames"], metadata["fps"]
    fps, least, most = (asked.get(key, getattr(policy, key)) for key in ("fps", "min_frames", "max_frames"))
    wanted = min(max(int(total / rate * fps), least), most, total)
    assert metadata["frames_indices"] == np.linspace(0, total - 1, wanted).round().astype(int).tolist()


@pytest.mark.parametrize("asked", [{}, {"size": {"longest_edge": 400_000, "shortest_edge": 4096}}, {"max_frames": 3}])
@pytest.mark.parametrize("name", ["scene_00_480p_h264.mp4", "scene_09_1080p_h264.mp4"])
def test_the_processors_own_resize_has_nothing_to_do(name, asked):
    video = pytest.importorskip("transformers.models.qwen3_vl.video_processing_qwen3_vl")
    size = open_checkpoint("dashcam_tiny").video["size"] | asked.get("size", {})
    frames, _ = load(SAMPLES / name, **asked)
    num_frames, height, width, _ = frames.shape
    target = video.smart_resize(
        num_frames, height, width, factor=32, min_pixels=size["shortest_edge"], max_pixels=size["longest_edge"]
    )
    assert target == (height, width)


def test_a_clip_of_one_frame_fills_the_temporal_patch(corpus):
    frames, metadata = load(corpus / "one_frame.mp4")
    assert len(frames) == 2
    assert np.array_equal(frames[0], frames[1])
    assert metadata["frames_indices"] == [0, 0]
    assert metadata["total_num_frames"] == 1


def test_an_odd_clip_is_left_to_the_processor(corpus):
    frames, metadata = load(corpus / "three_frames.mp4")
    assert (len(frames), metadata["frames_indices"]) == (3, [0, 1, 2])


@pytest.mark.parametrize("name", ["html_404.mp4", "audio_only.mp4", "truncated_no_moov.mp4", "sliver_2064x10.mp4"])
def test_bad_video_is_a_value_error_in_our_words(corpus, name):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - vLLM asks for this class exactly
        load(corpus / name)
    assert type(caught.value) is ValueError
    assert str(caught.value)


@pytest.mark.parametrize("data", [b"", b"\0" * 100])
def test_no_video_at_all_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"."):
        FramefleetLoader.load_bytes(data, model="dashcam_tiny")


def test_a_picture_above_the_limit_is_a_value_error(corpus):
    with pytest.raises(ValueError, match="pixels"):
        load(corpus / "h264_5120x2880.mp4", max_width=1920, max_height=1080)


def test_a_wrong_option_is_a_value_error_that_says_what_there_is():
    with pytest.raises(ValueError, match=r"fsp.*max_frames"):
        load(SAMPLES / "scene_00_480p_h264.mp4", fsp=2)


@pytest.mark.parametrize(
    ("asked", "message"),
    [({"model": None}, "FRAMEFLEET_MODEL"), ({"backend": "deepstream"}, "reserved memory"), ({"backend": "x"}, "x")],
)
def test_a_server_set_up_wrong_is_not_the_clients_fault(asked, message):
    with pytest.raises(ConfigError, match=message):
        load(SAMPLES / "scene_00_480p_h264.mp4", **asked)


@pytest.mark.parametrize(
    ("error", "answer"), [(DecodeTimeout, ValueError), (BudgetTooLarge, ValueError), (DeviceError, DeviceError)]
)
def test_what_is_not_the_inputs_fault_is_not_called_so(monkeypatch, error, answer):
    def fail(*_):
        raise error("said so")

    monkeypatch.setattr(Decoding, "decode", fail)
    with pytest.raises(answer, match="said so"):
        load(SAMPLES / "scene_00_480p_h264.mp4")


def test_metadata_of_a_clip_with_uneven_times_is_the_clips_own(corpus):
    path = corpus / "vfr_gap.mkv"
    clip: ScannedClip = scan(VideoSource.of(path), ScanLimits())
    _, metadata = load(path)
    assert metadata["total_num_frames"] == clip.index.num_frames
    assert metadata["frames_indices"][-1] == clip.index.num_frames - 1
