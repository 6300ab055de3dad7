"""The Triton pass itself, run by Triton's interpreter on the CPU; `make test-gpu` runs it on the card."""

import textwrap

import pytest
from kernel_checks import run_check

pytest.importorskip("torch")

CHECK = textwrap.dedent(
    """
    import sys
    import numpy as np, torch
    from framefleet.decode.gpu.convert import SurfaceConverter, SurfaceFormat
    from framefleet.decode.gpu.taps import colour_coefficients
    from PIL import Image

    device = sys.argv[1]
    h, w = 36, 64
    coarse = np.random.default_rng(1).integers(20, 235, (6, 8, 3), dtype=np.uint8)
    rgb = np.asarray(Image.fromarray(coarse).resize((w, h), Image.Resampling.BICUBIC)).astype(float)

    def surface(chroma, is_16_bit):
        table = colour_coefficients("bt709", is_full_range=False).astype(float)
        yuv = (rgb - table[:, 3]) @ np.linalg.inv(table[:, :3]).T
        if chroma == "4:4:4":
            planes = np.concatenate([yuv[..., i] for i in range(3)])
        else:
            pairs = yuv[..., 1:].reshape(h // 2, 2, w, 2).mean(1)
            padded = np.pad(pairs, ((0, 0), (1, 1), (0, 0)), mode="edge")
            sited_left = (padded[:, :-2:2] + 2 * padded[:, 1:-1:2] + padded[:, 2::2]) / 4
            planes = np.concatenate([yuv[..., 0], sited_left.reshape(h // 2, w)])
        planes = np.clip(planes, 0, 255)
        if is_16_bit:
            return torch.from_numpy((planes * 256).round().clip(0, 65535).astype(np.uint16))
        return torch.from_numpy(planes.round().astype(np.uint8))

    for chroma, is_16_bit, degrees, hflip in [
        ("4:2:0", False, 0, False), ("4:2:0", False, 90, True),
        ("4:2:0", True, 270, False), ("4:4:4", False, 180, False),
    ]:
        out_w, out_h = (28, 20) if degrees % 180 == 0 else (20, 28)
        layout = SurfaceFormat(h, w, is_16_bit, chroma, "bt709", False)
        convert = SurfaceConverter(layout, out_w, out_h, degrees, hflip=hflip, device=device)
        out = torch.full((out_h, out_w, 3), 77, dtype=torch.uint8, device=device)
        convert(surface(chroma, is_16_bit).to(device), out)
        upright = np.rot90(rgb[:, ::-1] if hflip else rgb, -degrees // 90)
        picture = Image.fromarray(upright.round().clip(0, 255).astype(np.uint8))
        expected = np.asarray(picture.resize((out_w, out_h), Image.Resampling.BICUBIC)).astype(float)
        error = np.abs(out.cpu().numpy() - expected)
        assert error.mean() < 2 and error.max() < 16, (chroma, is_16_bit, degrees, hflip, error.mean(), error.max())
    print("converted")
    """
)


def test_equals_bicubic_of_the_converted_picture():
    done = run_check(CHECK, "cpu", TRITON_INTERPRET="1")
    assert done.stdout.strip() == "converted", done.stderr[-2000:]


@pytest.mark.gpu
def test_equals_bicubic_on_the_card():
    done = run_check(CHECK, "cuda")
    assert done.stdout.strip() == "converted", done.stderr[-2000:]
