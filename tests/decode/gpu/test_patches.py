"""Patches made on the GPU (here by Triton's interpreter) are those of the CPU's path, which equals Hugging Face's."""

import textwrap

import pytest
from kernel_checks import run_check

pytest.importorskip("torch")

CHECK = textwrap.dedent(
    """
    import sys
    import numpy as np, torch
    from framefleet.decode.gpu.patches import patches
    from framefleet.engine.embedded.patchify import Normalisation, patchify

    device = sys.argv[1]
    mean, std = (0.5, 0.4, 0.3), (0.5, 0.25, 0.2)
    for shape, sizes in [((4, 64, 96, 3), {}), ((3, 56, 28, 3), {"patch_size": 14})]:
        frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        expected, grid = patchify(frames, Normalisation(mean, std), **sizes)
        for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 2**-7)):
            got, got_grid = patches(torch.from_numpy(frames).to(device), mean, std, dtype=dtype, **sizes)
            assert got_grid == grid and got.shape == expected.shape and got.dtype == dtype
            torch.testing.assert_close(got.cpu().float(), expected, rtol=tolerance, atol=tolerance)
    print("equal")
    """
)


def test_equals_the_cpu_path():
    done = run_check(CHECK, "cpu", TRITON_INTERPRET="1")
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


@pytest.mark.gpu
def test_equals_the_cpu_path_on_the_card():
    done = run_check(CHECK, "cuda")
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
