import json
import shutil

import pytest
from tiny_models import FAMILIES

from framefleet.decode.options import DecodeOptions
from framefleet.engine.embedded.checkpoint import open_checkpoint
from framefleet.engine.embedded.frame_policy import frame_policy_for, media_io_kwargs
from framefleet.errors import ConfigError


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_a_checkpoint(models, family):
    assert open_checkpoint(str(models / family)).family == family


@pytest.mark.parametrize("model", ["no_such_model", "/no/such/folder", "./x", "~/y", "a/b/c"])
def test_what_is_neither_folder_nor_hub_id_is_refused(model):
    with pytest.raises(ConfigError, match=r"no such model.*dashcam_tiny"):
        open_checkpoint(model)


def test_a_hub_id_is_taken_from_the_cache_without_a_network(models, tmp_path, monkeypatch):
    snapshot = tmp_path / "hub" / "models--org--tiny" / "snapshots" / ("0" * 40)
    shutil.copytree(models / "qwen3_vl", snapshot)
    refs = tmp_path / "hub" / "models--org--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert open_checkpoint("org/tiny").folder == snapshot
    with pytest.raises(ConfigError, match="not in the cache"):
        open_checkpoint("org/other")


def test_another_family_is_refused_with_the_way_out(models, tmp_path):
    folder = copied(models / "qwen3_vl", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))
    with pytest.raises(ConfigError, match=r"llava.*qwen3_vl, qwen2_5_vl, smolvlm.*vLLM"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_damaged_config_is_named(models, tmp_path, content):
    folder = copied(models / "qwen3_vl", tmp_path)
    (folder / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_checkpoint(str(folder))


def test_a_missing_processor_configuration_is_named(models, tmp_path):
    folder = copied(models / "qwen3_vl", tmp_path)
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        (folder / name).unlink()
    with pytest.raises(ConfigError, match="no processor configuration"):
        open_checkpoint(str(folder))


def test_the_nested_configuration_of_transformers_5_comes_first(models, tmp_path):
    folder = copied(models / "qwen3_vl", tmp_path)
    (folder / "processor_config.json").write_text(json.dumps({"video_processor": {"patch_size": 8}}))
    assert open_checkpoint(str(folder)).video == {"patch_size": 8}


def test_qwen3_vl_wants_a_budget_over_all_frames(models):
    assert frame_policy_for(str(models / "qwen3_vl")) == DecodeOptions(
        rule="qwen3_vl", fps=2.0, min_frames=4, max_frames=16, total_pixels=16 * 64 * 96, min_total_pixels=4096,
        size_factor=32,
    )  # fmt: skip


def test_a_policy_can_be_told_to_vllm(models):
    policy = frame_policy_for(str(models / "qwen3_vl"))
    assert media_io_kwargs(policy) == {"video": {"fps": 2.0, "min_frames": 4, "max_frames": 16}}
    assert media_io_kwargs(DecodeOptions()) == {"video": {}}


def test_qwen2_5_vl_wants_a_budget_per_frame(models):
    assert frame_policy_for(str(models / "qwen2_5_vl")) == DecodeOptions(
        rule="qwen2_5_vl", fps=2.0, min_frames=4, max_frames=16, max_pixels=56 * 84, min_pixels=28 * 28, size_factor=28
    )


def test_smolvlm2_wants_squares(models):
    assert frame_policy_for(str(models / "smolvlm")) == DecodeOptions(
        rule="smolvlm2", fps=1.0, max_frames=8, size=(64, 64)
    )


def test_limits_of_an_image_processor_are_not_taken_for_video(models, tmp_path):
    """Qwen2.5-VL as published has an image processor only, with 16,384 tokens a picture."""
    folder = copied(models / "qwen2_5_vl", tmp_path)
    (folder / "video_preprocessor_config.json").unlink()
    published = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 12845056}
    (folder / "preprocessor_config.json").write_text(json.dumps(published))
    assert frame_policy_for(str(folder)).max_pixels == 768 * 28 * 28


def copied(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "model")


def test_the_revision_is_of_the_files_and_not_of_their_place(models, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(models / "qwen3_vl", folder)
    before = open_checkpoint(str(folder)).revision
    assert before == open_checkpoint(str(models / "qwen3_vl")).revision
    weights = next(folder.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    for at in range(len(content) // 2, len(content), 1000):  # as training would, every part changes
        content[at] ^= 1
    weights.write_bytes(content)
    assert open_checkpoint(str(folder)).revision != before
    with weights.open("wb") as stream:  # large: not read whole
        stream.truncate(1 << 30)
    assert open_checkpoint(str(folder)).revision not in (before, "")
