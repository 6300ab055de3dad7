"""From a decoded GPU surface (NV12, P016, planar 4:4:4) to upright RGB at the output size, in one pass."""
