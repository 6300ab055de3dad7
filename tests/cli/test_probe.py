def test_one_clip_for_people(framefleet, base):
    answer = framefleet("probe", base)
    assert answer.code == 0
    assert "60 frames, 2 s, 30 fps" in answer.out
    assert "h264" in answer.out
    assert answer.err == ""


def test_one_object_per_clip_for_programs(framefleet, base, corpus):
    answer = framefleet("probe", base, corpus / "zero_bytes.mp4", corpus / "rot90.mp4", "--json")
    first, broken, turned = answer.json_lines
    assert answer.code == 3
    assert (first["scan"]["num_frames"], first["backends"]["pyav"], first["error"]) == (60, None, None)
    assert broken["error"]["kind"].startswith("Source")
    assert broken["scan"] is None
    assert turned["header"]["rotation_deg"] == 90
    assert set(first) == set(broken) == set(turned)


def test_none_usable(framefleet, corpus):
    answer = framefleet("probe", corpus / "zero_bytes.mp4", "no-such-file.mp4")
    assert answer.code == 4
    assert len(answer.err.splitlines()) == 2


def test_what_is_no_clip_is_told_what_to_do(framefleet, tmp_path):
    (tmp_path / "notes.mp4").write_text("notes")
    answer = framefleet("probe", tmp_path, tmp_path / "notes.mp4")
    folder, notes = answer.err.splitlines()
    assert folder.endswith("(Is a directory); try: name the clips in it")
    assert notes.endswith("; try: fetch it again, or leave it out")


def test_a_name_that_begins_with_a_dash(framefleet, corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    assert framefleet("probe", "--", "-dash first.mp4").code == 0
