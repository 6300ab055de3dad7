import os
from pathlib import Path

import pytest
from caption_fakes import write_clip

from framefleet.caption.inputs import Inputs, clip_name, local_source, source_of_location
from framefleet.errors import ConfigError, SourceNotFound
from framefleet.media.source import VideoSource


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def found(*inputs: object, root: Path, **how: object) -> list[str]:
    return [os.path.relpath(source.location, root) for source in Inputs([str(one) for one in inputs], **how)]


def test_folders_are_walked_in_order_and_what_is_no_video_is_counted(tmp_path: Path):
    touch(tmp_path, "b.mp4", "a/z.MKV", "a/b/c.gif", "c.txt", "._b.mp4", ".git/x.mp4", "a/.DS_Store", "clip", "d.webp")
    inputs = Inputs([str(tmp_path)])
    assert [os.path.relpath(s.location, tmp_path) for s in inputs] == ["a/b/c.gif", "a/z.MKV", "b.mp4", "d.webp"]
    over = inputs.passed_over
    assert (over.hidden, over.not_video, over.duplicates, over.unreadable) == (3, 2, 0, [])


def test_iterating_twice_gives_the_same(tmp_path: Path):
    touch(tmp_path, *(f"{n}.mp4" for n in range(30)))
    inputs = Inputs([str(tmp_path)])
    assert list(inputs) == list(inputs)
    assert inputs.passed_over.duplicates == 0


def test_a_file_named_outright_is_taken_whatever_it_is_called(tmp_path: Path):
    touch(tmp_path, "film", "._odd.mp4", "-dash first.mp4", "100% #1?&é[0].mp4", "ひまわり.mp4", "n" * 250)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert sorted(found(*tmp_path.iterdir(), root=tmp_path)) == names


def test_the_same_place_is_taken_once_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    touch(tmp_path, "a/x.mp4", "b/x.mp4")
    monkeypatch.chdir(tmp_path)
    inputs = Inputs(["a/x.mp4", "./a/../a/x.mp4", str(tmp_path / "a"), ".", "a/*.mp4"])
    assert [s.location for s in inputs] == [str(tmp_path / "a/x.mp4"), str(tmp_path / "b/x.mp4")]
    assert inputs.passed_over.duplicates == 4


def test_patterns(tmp_path: Path):
    touch(tmp_path, "a/1.mp4", "a/2.mp4", "b/c/3.mp4", "b/4.txt", "x[1].mp4", "x1.mp4")
    assert found(tmp_path / "a/*.mp4", root=tmp_path) == ["a/1.mp4", "a/2.mp4"]
    assert found(tmp_path / "**/*.mp4", root=tmp_path) == ["a/1.mp4", "a/2.mp4", "b/c/3.mp4", "x1.mp4", "x[1].mp4"]
    assert found(tmp_path / "x[1].mp4", root=tmp_path) == ["x[1].mp4"]  # a file of that very name comes first
    with pytest.raises(SourceNotFound, match="matches nothing"):
        found(tmp_path / "*.avi", root=tmp_path)


def test_missing_inputs_are_named_before_any_work(tmp_path: Path):
    touch(tmp_path, "a.mp4")
    with pytest.raises(SourceNotFound, match=r"b\.mp4.*c\.mp4"):
        Inputs([str(tmp_path / n) for n in ("a.mp4", "b.mp4", "c.mp4")]).check()
    with pytest.raises(SourceNotFound, match="no such file"):
        Inputs(["n" * 5000]).check()
    with pytest.raises(ConfigError, match="no input"):
        Inputs([])


def test_links_are_followed_but_not_in_circles(tmp_path: Path):
    touch(tmp_path, "real/a.mp4")
    (tmp_path / "real/back").symlink_to(tmp_path)
    (tmp_path / "link.mp4").symlink_to(tmp_path / "real/a.mp4")
    (tmp_path / "dangling.mp4").symlink_to(tmp_path / "nowhere")
    assert found(tmp_path, root=tmp_path) == ["dangling.mp4", "link.mp4", "real/a.mp4"]


def test_a_folder_that_vanishes_is_told(tmp_path: Path):
    touch(tmp_path, "a/1.mp4", "b/2.mp4")
    inputs = Inputs([str(tmp_path)])
    clips = iter(inputs)
    assert next(clips).location.endswith("1.mp4")
    (tmp_path / "b/2.mp4").unlink()
    (tmp_path / "b").rmdir()
    assert list(clips) == []
    assert inputs.passed_over.unreadable == [f"{tmp_path / 'b'}: No such file or directory"]


def test_names_that_are_no_text_are_named_by_their_uri(tmp_path: Path):
    raw = os.fsencode(tmp_path) + b"/caf\xe9 %.mp4"
    Path(os.fsdecode(raw)).write_bytes(b"x")
    (source,) = Inputs([str(tmp_path)])
    assert os.fsencode(source.location) == raw
    assert clip_name(source) == f"file://{tmp_path}/caf%E9%20%25.mp4"
    assert clip_name(source).encode()
    assert list(Inputs([clip_name(source)])) == [source]  # and back again


def test_plain_names_stay_as_they_are(tmp_path: Path):
    for name in ("a b.mp4", "100%41.mp4", "é.mp4", "a\nb.mp4"):
        source = local_source(write_clip(tmp_path / name))
        assert clip_name(source) == str(tmp_path / name)
        assert source_of_location(source.location) == source
    url = VideoSource.of("https://host/a%20b.mp4?x=1#2")
    assert clip_name(url) == "https://host/a%20b.mp4?x=1#2"
    assert source_of_location(url.location) == url


def test_remote_folders_and_patterns_through_fsspec():
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("/bucket/a/1.mp4", "/bucket/2.mkv", "/bucket/._x.mp4", "/bucket/notes.txt"):
        memory.pipe(name, b"x")
    try:
        inputs = Inputs(["memory://bucket"])
        assert [s.location for s in inputs] == ["memory:///bucket/2.mkv", "memory:///bucket/a/1.mp4"]
        assert (inputs.passed_over.hidden, inputs.passed_over.not_video) == (1, 1)
        assert [s.location for s in Inputs(["memory://bucket/*.mkv"])] == ["memory:///bucket/2.mkv"]
        assert [s.location for s in Inputs(["memory://bucket/notes.txt"])] == ["memory:///bucket/notes.txt"]
        assert all(s.kind == "url" for s in inputs)
        with pytest.raises(SourceNotFound):
            list(Inputs(["memory://nowhere"]))
    finally:
        memory.rm("/bucket", recursive=True)


def test_http_addresses_are_clips_and_not_patterns():
    address = "https://host/clip.mp4?x=*[1]"
    assert list(Inputs([address])) == [VideoSource("url", address)]


def test_an_unknown_kind_of_place_says_what_to_do():
    with pytest.raises(ConfigError, match="cannot reach"):
        list(Inputs(["nosuchscheme://bucket/x"]))
