"""benchmarks/card: results lose the machine's paths and nothing else, and a call ends in time whatever its parts do."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CARD = BENCHMARKS / "card"


def module_of(path):
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


@pytest.fixture(scope="module")
def keep():
    return module_of(CARD / "keep.py")


def archive_of(folder, **files):
    """An archive as run.sh makes it, of results in /node/results."""
    places = {"OUT": "/node/results", "CLIPS": "/node/clips", "CODE": "/node/code", "SITE": "/node"}
    wanted = {"places.json": json.dumps(places), "COMMIT": "abc1234\n", **files}
    source = folder / "source"
    for name, text in wanted.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    with tarfile.open(folder / "all.tar.gz", "w:gz") as archive:
        archive.add(source, ".")
    return folder / "all.tar.gz"


def trials(*names, machine="card"):
    return json.dumps({"machine": machine, "settings": {}, "trials": [{"arm": name, "at": name} for name in names]})


def test_paths_become_names(keep, tmp_path):
    text = '{"command": "/opt/py/bin/python3 -m vllm /node/clips/a.mp4 --socket /tmp/e2e_x1/gpu0/d.sock", "u": "http://h/tmp/x",'
    text += '"at": "/opt/py/lib/python3.12/site-packages/torch/cuda.py, /usr/lib/python3.12/json/decoder.py"}'
    written = keep.keep(archive_of(tmp_path, **{"serve_e2e/facts.json": text}), tmp_path / "to")
    assert written == [tmp_path / "to/serve_e2e/raw/abc1234/serve_e2e/facts.json"]
    kept = json.loads(written[0].read_text())
    assert kept == {
        "command": "python3 -m vllm CLIPS/a.mp4 --socket RUN/gpu0/d.sock", "u": "http://h/tmp/x",
        "at": "PYTHON/torch/cuda.py, PYTHON/json/decoder.py",
    }  # fmt: skip


def test_a_path_that_is_left_is_refused_and_nothing_written(keep, tmp_path):
    archive = archive_of(tmp_path, **{"decode/log.txt": "fine", "tests/log.txt": "see /home/someone/clip.mp4"})
    with pytest.raises(ValueError, match=r"/home/someone/clip\.mp4"):
        keep.keep(archive, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_kept_trials_stay_once(keep, tmp_path):
    for number, names in enumerate([("a", "b"), ("b", "c"), ("b", "c")]):
        (folder := tmp_path / str(number)).mkdir()
        keep.keep(archive_of(folder, **{"decode/trials.json": trials(*names)}), tmp_path / "to")
    kept = json.loads((tmp_path / "to/nvdec/raw/abc1234/decode/trials.json").read_text())
    assert [trial["arm"] for trial in kept["trials"]] == ["a", "b", "c"]


def test_trials_of_another_machine_do_not_go_together(keep, tmp_path):
    for number, machine in enumerate(["card", "other card"]):
        (folder := tmp_path / str(number)).mkdir()
        archive = archive_of(folder, **{"decode/trials.json": trials(machine, machine=machine)})
        if number:
            with pytest.raises(ValueError, match="another machine"):
                keep.keep(archive, tmp_path / "to")
        else:
            keep.keep(archive, tmp_path / "to")


PYTHON = """#!/usr/bin/env bash
case "$*" in
  *make_clips.py*) echo made ;;
  *bench.py*) echo "$@"; exec sleep 60 ;;
  *) echo "1 failed"; exit 1 ;;
esac
"""


@pytest.fixture
def call(tmp_path):
    """run.sh with something that stands for Python."""
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)

    def run(*parts, **environ):
        command = [CARD / "run.sh", tmp_path / "out", *parts]
        there = {"SITE": str(tmp_path / "site"), "PYTHON": str(tmp_path / "python"), "COMMIT": "abc1234", **environ}
        (tmp_path / "site").mkdir(exist_ok=True)
        return subprocess.run(command, env=os.environ | there, capture_output=True, text=True, timeout=60, check=False)

    return run


def parts_in(folder):
    with tarfile.open(folder / "out/all.tar.gz") as archive:
        lines = archive.extractfile("./parts.jsonl").read().decode().splitlines()
    return {one["part"]: one["exit"] for one in map(json.loads, lines)}


def test_parts_fail_or_run_out_of_time_each_by_itself(call, tmp_path):
    done = call("tests=30", "decode=6", "clips=30", DECODE_ARGS="--seconds 5")
    assert done.returncode == 1
    assert parts_in(tmp_path) == {"tests": 1, "decode": 124, "clips": 0}
    assert "--budget-s -9 --plan all --seconds 5" in (tmp_path / "site/results/decode/log.txt").read_text()


def test_a_part_without_time_is_not_begun(call, tmp_path):
    assert call("clips=30", LIMIT_S="9").returncode == 1
    assert not (tmp_path / "site/results/clips").exists()


def test_an_unknown_part_is_told(call):
    done = call("clip=30")
    assert done.returncode == 2
    assert "no part clip; there are: tests opens clips" in done.stderr


def test_what_was_packed_is_checked_before_it_is_unpacked(tmp_path):
    (tmp_path / "COMMIT").write_text("abc1234")
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  COMMIT\n")
    command = [CARD / "unpack.sh", tmp_path, tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "COMMIT: FAILED" in done.stdout
    assert not (tmp_path / "site/code").exists()


@pytest.mark.parametrize("name", ["deepstream.tar.xz", "vllm.tar.zst.01"])
def test_an_archive_may_stay_behind_but_no_part_of_one(tmp_path, name):
    (tmp_path / "zstd").write_text("")
    (tmp_path / "COMMIT").write_text("abc1234")
    sums = {hashlib.sha256(b"abc1234").hexdigest(): "COMMIT", "0" * 64: name}
    (tmp_path / "SHA256SUMS").write_text("".join(f"{digest}  {file}\n" for digest, file in sums.items()))
    command = [CARD / "unpack.sh", tmp_path, tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (f"{name}: FAILED open or read" in done.stdout) == name.startswith("vllm")


def test_the_plan_is_gone_on_with():
    bench = module_of(BENCHMARKS / "nvdec/bench.py")
    plan = [("w", "a"), ("w", "b"), ("w", "b"), ("w", "a")]
    run = [{"workload": "w", "arm": "a"}, {"workload": "w", "arm": "b"}]
    assert bench.still_to_run(plan, run) == [("w", "b"), ("w", "a")]
    assert bench.still_to_run(plan, run * 2) == []


def test_the_plan_names_arms_that_there_are():
    bench = module_of(BENCHMARKS / "nvdec/bench.py")
    assert {arm for _, arms in bench.PLANS["all"] for arm in arms} <= bench.ARMS.keys()


def test_the_dummy_model_is_one(tmp_path):
    transformers = pytest.importorskip("transformers")
    module_of(CARD / "model_8b.py").write_model(tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert (config.text_config.num_hidden_layers, config.vision_config.depth) == (36, 27)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    message = [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "av"}]}]
    ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert config.video_token_id in ids
