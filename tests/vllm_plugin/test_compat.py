"""Registration in every known version, taking over, and what a request may not set."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from framefleet.errors import ConfigError
from framefleet.vllm_plugin import register
from framefleet.vllm_plugin.compat import TABLE, facts_here, facts_of, gpu_pool, parse_version
from framefleet.vllm_plugin.loader import FramefleetLoader


def test_vllm_finds_the_plugin_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (named,) = project["entry-points"]["vllm.general_plugins"].values()
    assert EntryPoint("framefleet", named, "vllm.general_plugins").load() is register


@pytest.mark.parametrize(
    ("text", "version"),
    [("0.32.0+cpu", (0, 32, 0)), ("0.33", (0, 33, 0)), ("0.27.1rc2.dev3", (0, 27, 1)), ("dev", (0, 0, 0))],
)
def test_versions_are_read(text, version):
    assert parse_version(text) == version


def test_the_row_of_a_version_is_the_last_that_began():
    assert facts_of((0, 25, 0)) is None
    assert [facts_of(v) for v in [(0, 25, 1), (0, 27, 0), (0, 27, 1), (0, 32, 0), (0, 33, 0), (0, 40, 0)]] == [
        TABLE[0], TABLE[0], TABLE[1], TABLE[1], TABLE[2], TABLE[2],
    ]  # fmt: skip


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.32.0+cpu", "0.33.0"])
def test_known_versions_get_the_loader_in_silence(make_vllm, caplog, version):
    vllm = make_vllm(version)
    register()
    assert vllm.registry.name2class["framefleet"] is FramefleetLoader
    assert vllm.registry.processor2backend["Qwen3VLVideoProcessor"] == "qwen3_vl"
    assert caplog.records == []


def test_an_old_version_is_left_alone_with_a_word(make_vllm, caplog):
    vllm = make_vllm("0.25.0")
    register()
    assert "framefleet" not in vllm.registry.name2class
    assert "older than 0.25.1" in caplog.text


@pytest.mark.parametrize("version", ["0.34.0", "1.0", "dev"])
def test_an_unknown_version_is_tried_with_a_word(make_vllm, caplog, version):
    vllm = make_vllm(version)
    register()
    assert "framefleet" in vllm.registry.name2class
    assert f"vLLM {version}" in caplog.text


def test_taking_over_is_for_the_processors_whose_rule_is_known(make_vllm, monkeypatch):
    vllm = make_vllm()
    monkeypatch.setenv("FRAMEFLEET_TAKE_OVER", "1")
    monkeypatch.setenv("FRAMEFLEET_MODEL", "dashcam_tiny")
    register()
    assert set(vllm.registry.processor2backend.values()) == {"framefleet"}


def test_a_vllm_without_the_known_seam_keeps_its_own_patchify_and_says_so(make_vllm, monkeypatch, caplog):
    make_vllm()
    monkeypatch.setenv("FRAMEFLEET_FAST_PATCHIFY", "1")
    register()
    assert "no faster patchify" in caplog.text


def test_taking_over_for_a_model_that_is_not_there_stops_the_server_at_its_start(make_vllm, monkeypatch, tmp_path):
    make_vllm()
    monkeypatch.setenv("FRAMEFLEET_TAKE_OVER", "1")
    monkeypatch.setenv("FRAMEFLEET_MODEL", str(tmp_path))
    with pytest.raises(ConfigError, match="no model there"):
        register()


def test_taking_over_without_a_model_says_what_is_missing(make_vllm, monkeypatch, caplog):
    make_vllm()
    monkeypatch.setenv("FRAMEFLEET_TAKE_OVER", "1")
    register()
    assert "FRAMEFLEET_MODEL is unset" in caplog.text


START = {"video_backend": "framefleet", "model": "dashcam_tiny", "timeout_s": 30.0, "num_frames": 8}


def test_a_request_cannot_change_what_belongs_to_the_start(make_vllm, caplog):
    vllm = make_vllm()
    register()
    register()  # vLLM may call it more than once
    request = {"fps": 1, "model": "/etc", "timeout_s": 9e9, "backend": "pynvvideocodec", "hw_decoders": 99}
    merged = vllm.video_io.merge_kwargs(START, request)
    assert merged == {"video_backend": "framefleet", "model": "dashcam_tiny", "timeout_s": 30.0, "fps": 1}
    (said,) = caplog.messages
    assert "cannot change backend, hw_decoders, model, timeout_s" in said


def test_a_request_that_picks_the_loader_itself_is_guarded_too(make_vllm):
    vllm = make_vllm()
    register()
    assert "model" not in vllm.video_io.merge_kwargs({}, {"video_backend": "framefleet", "model": "/etc"})


def test_requests_to_other_loaders_are_none_of_ours(make_vllm):
    vllm = make_vllm()
    register()
    assert (
        vllm.video_io.merge_kwargs(START, {"video_backend": "opencv", "backend": "torchcodec"})["backend"]
        == "torchcodec"
    )
    assert vllm.video_io.merge_kwargs(None, {"backend": "torchcodec"}) == {"backend": "torchcodec"}
    assert vllm.video_io.merge_kwargs(START, None) == START


def test_taking_over_guards_requests_that_name_no_loader(make_vllm, monkeypatch):
    vllm = make_vllm()
    monkeypatch.setenv("FRAMEFLEET_TAKE_OVER", "1")
    monkeypatch.setenv("FRAMEFLEET_MODEL", "dashcam_tiny")
    register()
    assert vllm.video_io.merge_kwargs(None, {"backend": "pynvvideocodec", "max_frames": 4}) == {"max_frames": 4}


def test_as_vllms_default_loader_it_guards_requests_that_name_none(make_vllm, monkeypatch):
    vllm = make_vllm()
    monkeypatch.setenv("VLLM_VIDEO_LOADER_BACKEND", "framefleet")
    register()
    assert vllm.video_io.merge_kwargs({"model": "dashcam_tiny"}, {"model": "/etc"}) == {"model": "dashcam_tiny"}


def test_what_holds_here_follows_the_version(make_vllm):
    make_vllm("0.26.0")
    assert facts_here() is TABLE[0]
    make_vllm("9.9")
    assert facts_here() is TABLE[-1]


def test_the_pool_of_this_server_is_vllms_own(make_vllm):
    vllm = make_vllm("0.26.0")
    assert gpu_pool() is vllm.gpu_pool is None
    vllm.gpu_pool = object()
    assert gpu_pool() is vllm.gpu_pool
