from dataclasses import replace
from pathlib import Path

from framefleet.bench import decode_alone
from framefleet.bench.decode_alone import headline, measure_decode

FILES = Path(__file__).parent.parent / "corpus" / "files"


def test_every_clip_is_timed_in_every_round():
    result = measure_decode([FILES / "base.mp4", FILES / "rot90.mp4"], backends=["pyav"], num_frames=4, rounds=3)
    assert len(result.backends["pyav"].samples_s) == 6
    assert result.backends["pyav"].clips_per_s > 0
    assert {"decode", "probe"} <= result.backends["pyav"].seconds.keys()


def test_a_backend_with_other_pixels_is_not_timed(monkeypatch):
    real = decode_alone.decode

    def decode(clip, *, backend, num_frames):
        frames = real(clip, backend="pyav", num_frames=num_frames)
        return replace(frames, data=255 - frames.data) if backend == "negative" else frames

    monkeypatch.setattr(decode_alone, "decode", decode)
    result = measure_decode([FILES / "base.mp4"], backends=["pyav", "negative"], num_frames=2, rounds=1)
    assert list(result.backends) == ["pyav"]
    assert "base.mp4: pixels" in result.left_out["negative"]


def test_a_backend_that_refuses_is_left_out_with_its_reason():
    result = measure_decode([FILES / "hdr_pq_bt2020.mp4"], backends=["torchcodec"], num_frames=2, rounds=1)
    assert result.backends == {}
    assert "torchcodec" in result.left_out


def test_the_line_for_programs_names_the_benchmark():
    line = headline(measure_decode([FILES / "base.mp4"], backends=["pyav"], num_frames=2, rounds=1))
    assert line["benchmark"] == "decode_alone"
    assert line["backends"]["pyav"]["clips_per_s"] > 0
