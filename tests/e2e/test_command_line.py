"""The command line as a user meets it: its own process, a shell's signals, pipes and odd names."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FRAMEFLEET = str(Path(sys.executable).with_name("framefleet"))
CORPUS = Path(__file__).parent.parent / "corpus" / "files"


def run(*arguments: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [os.fsencode(str(a)) if not isinstance(a, bytes) else a for a in (FRAMEFLEET, *arguments)]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, timeout=240, check=False
    )


def test_a_name_that_is_not_unicode_goes_all_the_way(tmp_path):
    clip = os.fsencode(tmp_path) + b"/clip \xff\n\x1b[31m.mp4"
    shutil.copy(CORPUS / "base.mp4", clip)
    probed = run("probe", clip, cwd=tmp_path)
    assert probed.returncode == 0, probed.stderr
    assert b"\x1b" not in probed.stdout
    sheet = run("decode", clip, "--num-frames", 2, "--sheet", "sheet.png", "--json", cwd=tmp_path)
    assert sheet.returncode == 0, sheet.stderr
    assert os.fsencode(json.loads(sheet.stdout)["clip"]) == clip
    said = run("caption", ".", "--output", "c.jsonl", "--engine", "fake", "--decode-workers", 1, cwd=tmp_path)
    assert said.returncode == 0, said.stderr


def test_every_name_prints_in_a_terminal_without_unicode(tmp_path):
    shutil.copy(CORPUS / "base.mp4", tmp_path / "ひまわり.mp4")
    answer = run("probe", "ひまわり.mp4", cwd=tmp_path, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.isascii()


def test_a_reader_that_leaves_early_is_no_fault(tmp_path):
    clips = " ".join([str(CORPUS / "base.mp4")] * 40)
    answer = subprocess.run(
        f"{FRAMEFLEET} probe {clips} | head -1", shell=True, cwd=tmp_path, capture_output=True, timeout=120, check=False
    )
    assert answer.stdout.strip() == os.fsencode(CORPUS / "base.mp4")
    assert b"Traceback" not in answer.stderr
    assert b"fault" not in answer.stderr


def test_ctrl_c_leaves_a_store_that_the_same_command_goes_on_from(tmp_path):
    for number in range(12):
        shutil.copy(CORPUS / "base.mp4", tmp_path / f"{number}.mp4")
        with (tmp_path / f"{number}.mp4").open("ab") as file:
            file.write(b"\0" * number)  # so that no two are of equal content
    slow = ["--engine", "fake", "--engine-option", "delay_s=1", "--concurrency", "1", "--decode-workers", "1"]
    command = ["caption", ".", "--output", "c.jsonl", "--json", *slow]
    running = subprocess.Popen([FRAMEFLEET, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_records(tmp_path / "c.jsonl", 2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    done = json.loads(out)["windows"]
    assert 2 <= done < 12
    rest = run(*command, cwd=tmp_path)
    assert rest.returncode == 0, rest.stderr
    assert json.loads(rest.stdout)["windows"] == 12 - done


def wait_for_records(store: Path, count: int) -> None:
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        if store.exists() and store.read_bytes().count(b"\n") >= count:
            return
        time.sleep(0.05)
    pytest.fail("no record came")
