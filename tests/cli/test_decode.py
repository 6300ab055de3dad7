import json

import numpy as np
import pytest
from PIL import Image

import framefleet as ff


def test_numbers_for_programs(framefleet, base):
    answer = framefleet("decode", base, "--num-frames", 5, "--json")
    assert answer.code == 0
    facts = answer.json
    assert facts["indices"] == [0, 15, 30, 44, 59]
    assert facts["pts_s"][1] == pytest.approx(0.5)
    assert (facts["width"], facts["height"], facts["stats"]["backend"]) == (176, 144, "pyav")


def test_the_default_is_sixteen_frames(framefleet, base):
    assert framefleet("decode", base, "--json").json["num_frames"] == 16


def test_frames_as_files_are_the_frames(framefleet, base, tmp_path):
    answer = framefleet("decode", base, "--num-frames", 3, "--output", tmp_path / "out", "--json")
    for path, frame in zip(answer.json["files"], ff.decode(base, num_frames=3).data, strict=True):
        with Image.open(path) as file:
            assert np.array_equal(np.asarray(file), frame)
    assert json.loads((tmp_path / "out" / "frames.json").read_text())["indices"] == [0, 30, 59]


def test_a_sheet_is_drawn(framefleet, base, tmp_path):
    answer = framefleet("decode", base, "--num-frames", 8, "--sheet", tmp_path / "sheet.png")
    assert answer.code == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width == 4 * 330 + 10
    assert str(tmp_path / "sheet.png") in answer.out


def test_size_span_and_rate(framefleet, base):
    facts = framefleet("decode", base, "--size", "88x72", "--span", "500ms-1s", "--fps", 10, "--json").json
    assert (facts["width"], facts["height"]) == (88, 72)
    assert all(0.5 <= pts_s < 1.0 for pts_s in facts["pts_s"])
    assert len(facts["pts_s"]) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        ("--size", "88"),
        ("--size", "0x9"),
        ("--size", "88x72", "--max-pixels", "9"),
        ("--span", "5s"),
        ("--span", "2s-1s"),
        ("--backend", "nope"),
        ("--rule", "nope"),
        ("--num-frames", "4", "--fps", "2"),
    ],
)
def test_wrong_options_are_refused(framefleet, base, wrong):
    answer = framefleet("decode", base, *wrong)
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1


def test_a_broken_clip_is_the_inputs_fault(framefleet, corpus):
    answer = framefleet("decode", corpus / "html_404.mp4")
    assert answer.code == 4
    assert "html_404.mp4" in answer.err
