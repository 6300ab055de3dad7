"""Draws scenes with OpenCV: a perspective road under a front camera. Deterministic in (scene, times, size).

The drawing takes about a millisecond a frame at the bundled model's size and grows with the area. Everything that moves
comes from `motion`; everything that is chosen freely (houses, trees, sky) from the scene's seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from framefleet.errors import ConfigError, MissingLibrary
from framefleet.scenes import world
from framefleet.scenes.motion import Motion, VehiclePath, motion_of
from framefleet.scenes.truth import Scene

try:
    import cv2
except ImportError as lack:  # named to whoever asked
    raise MissingLibrary(
        "drawing scenes needs OpenCV", given="no module cv2", remedy="pip install 'framefleet[opencv]'"
    ) from lack

CAMERA_HEIGHT_M = 1.4
FOCAL_PER_HEIGHT = 1.41
HORIZON = 0.45
NEAR_M = 1.0
_SHIFT = 4  # sub-pixel bits of cv2's fixed-point coordinates

Image = NDArray[np.uint8]
Floats = NDArray[np.float64]


def frame_times_s(scene: Scene, fps: float) -> Floats:
    """The presentation times `[N]` of a constant-rate rendering, starting at 0."""
    return np.arange(max(1, round(scene.duration_s * fps))) / fps


def render(scene: Scene, *, width: int, height: int, fps: float = 10.0) -> Iterator[Image]:
    """Frames `[height, width, 3] uint8 RGB` at a constant rate."""
    return render_at(scene, frame_times_s(scene, fps), width=width, height=height)


def render_at(scene: Scene, times_s: Floats, *, width: int, height: int) -> Iterator[Image]:
    """Frames `[height, width, 3] uint8 RGB` at any times. Raises ConfigError for a size too small to show anything."""
    if width < 64 or height < 48:
        raise ConfigError("scene too small to draw", given=f"{width}x{height}", allowed="at least 64x48")
    painter = _Painter(scene, motion_of(scene, times_s), width, height)
    for i, time_s in enumerate(np.asarray(times_s, dtype=np.float64)):
        yield painter.frame(i, float(time_s))


@dataclass
class _Painter:
    scene: Scene
    motion: Motion
    width: int
    height: int

    def __post_init__(self) -> None:
        self.focal = FOCAL_PER_HEIGHT * self.height
        self.look = world.look_of(self.scene)
        self.world = world.world_of(self.scene, self.motion)

    # --- geometry -----------------------------------------------------------------------------------------------

    def project(self, points: Floats) -> Floats:
        """Camera points `[..., 3]` (right, up from the ground, ahead), all ahead of the near plane, to pixels."""
        xy: Floats = (points[..., :2] - (0.0, CAMERA_HEIGHT_M)) * (self.focal / points[..., 2:]) * (1.0, -1.0)
        xy += (self.width / 2, HORIZON * self.height)
        return xy

    def to_camera(self, points: Floats, i: int) -> Floats:
        """World points `[..., 3]` as the camera of frame i sees them."""
        x, z, yaw = world.camera_pose(self.motion, i)
        dx, dz = points[..., 0] - x, points[..., 2] - z
        cos, sin = np.cos(yaw), np.sin(yaw)
        return np.stack([dx * cos + dz * sin, points[..., 1], dz * cos - dx * sin], axis=-1)

    def fill(self, image: Image, xy: Floats, colour: Any) -> None:
        """A convex polygon `[K, 2]`, anti-aliased."""
        cv2.fillConvexPoly(image, _fixed(xy), tuple(map(float, colour)), cv2.LINE_AA, _SHIFT)

    def disc(self, image: Image, centre: Floats, radius: float, colour: Any) -> None:
        x, y = _fixed(centre)
        cv2.circle(
            image,
            (int(x), int(y)),
            max(1, round(radius * (1 << _SHIFT))),
            tuple(map(float, colour)),
            -1,
            cv2.LINE_AA,
            _SHIFT,
        )

    # --- layers -------------------------------------------------------------------------------------------------

    @cached_property
    def background(self) -> Image:
        """Sky and bare ground, `[H, W, 3]`; the same for every frame of a scene."""
        rows = np.arange(self.height) + 0.5
        horizon = HORIZON * self.height
        up = np.clip((horizon - rows) / horizon, 0, 1)[:, None]
        sky = self.look.sky_low + (self.look.sky_high - self.look.sky_low) * up
        depth = np.where(rows > horizon, CAMERA_HEIGHT_M * self.focal / np.maximum(rows - horizon, 1e-3), 1e4)
        ground = self.look.shade(self.look.ground, depth)
        column = np.where((rows > horizon)[:, None], ground, sky)
        return np.repeat(column[:, None, :], self.width, axis=1).clip(0, 255).astype(np.uint8)

    def frame(self, i: int, time_s: float) -> Image:
        image = self.background.copy()
        for _, outline, colour in self._visible(self.world.ground, self.world.ground_colours, i):
            cv2.fillConvexPoly(image, outline, colour, cv2.LINE_AA, _SHIFT)
        for layer in (self._scenery(i), self._road_users(i)):  # nothing beside the road hides what is on it
            for _, paint in sorted(layer, key=lambda item: -item[0]):
                paint(image)
        if self.scene.truth.weather == "rain":
            self._rain(image, time_s)
        return image

    def _visible(self, quads: Floats, colours: Floats, i: int) -> list[tuple[float, Any, Any]]:
        """Depth, fixed-point outline and colour of every polygon `[P, 4, 3]` in sight, in their order."""
        camera = self.to_camera(quads, i)
        z = camera[..., 2]
        low, high, depth = z.min(axis=1), z.max(axis=1), z.mean(axis=1)
        shown = np.flatnonzero((high > NEAR_M) & (low < world.SIGHT_M))
        shades = self.look.shade(colours[shown], np.maximum(depth[shown], NEAR_M)).tolist()
        outlines = _fixed(self.project(np.where(low[shown] > NEAR_M, camera[shown].T, 9.0).T))
        cut = low[shown] <= NEAR_M
        return [
            (float(depth[p]), _fixed(self.project(_clip_near(camera[p]))) if cut[k] else outlines[k], shades[k])
            for k, p in enumerate(shown)
        ]

    def _road_users(self, i: int) -> Iterator[tuple[float, Any]]:
        """Vehicles, the traffic light and the pedestrian: (depth, paint)."""
        for path in self.motion.vehicles:
            if path.z_m[i] > NEAR_M:
                yield float(path.z_m[i]), lambda image, path=path: self._vehicle(image, path, i)
        if self.motion.lamp[i]:
            z = float(self.motion.light_z_m[i])
            yield z, lambda image: self._traffic_light(image, int(self.motion.lamp[i]), z)
        if np.isfinite(self.motion.pedestrian_x_m[i]):
            yield self.motion.pedestrian_z_m, lambda image: self._pedestrian(image, i)

    def _scenery(self, i: int) -> Iterator[tuple[float, Any]]:
        """Houses, rails and trees: (depth, paint)."""
        for depth, outline, colour in self._visible(self.world.walls, self.world.wall_colours, i):
            yield depth, lambda image, o=outline, c=colour: cv2.fillConvexPoly(image, o, c, cv2.LINE_AA, _SHIFT)
        trees = self.to_camera(self.world.trees, i)
        for p in np.flatnonzero((trees[:, 2] > 2.0) & (trees[:, 2] < world.SIGHT_M)):
            yield float(trees[p, 2]), lambda image, p=p: self._tree(image, trees[p], self.world.tree_colours[p])

    # --- things -------------------------------------------------------------------------------------------------

    def _box(self, image: Image, x: float, z: float, box: tuple[float, float, float, float], colour: Any) -> None:
        """An upright rectangle facing the camera: (left, right, low, high) in metres around x at depth z."""
        left, right, low, high = box
        corners = np.array([[x + left, low, z], [x + right, low, z], [x + right, high, z], [x + left, high, z]])
        self.fill(image, self.project(corners), colour)

    def _tree(self, image: Image, foot: Floats, colour: Floats) -> None:
        x, _, z = foot
        shade = self.look.shade(colour, z)
        self._box(image, x, z, (-0.2, 0.2, 0.0, 2.2), self.look.shade(np.array([90.0, 70.0, 50.0]), z))
        self.disc(image, self.project(np.array([x, 3.4, z])), 1.7 * self.focal / z, shade)

    def _vehicle(self, image: Image, path: VehiclePath, i: int) -> None:
        x, z = float(path.x_m[i] - self._lane_shift(i)), float(path.z_m[i])
        shape = world.SHAPES[path.vehicle.kind]
        paint = self.look.object_shade(world.PAINTS[path.vehicle.colour], z)
        dark, glass = (self.look.object_shade(np.array(c), z) for c in ((25.0, 25.0, 28.0), (40.0, 48.0, 58.0)))
        half = shape.width_m / 2
        shadow = np.array(
            [[x - half, 0, z], [x + half, 0, z], [x + half, 0, z + shape.length_m], [x - half, 0, z + shape.length_m]]
        )
        self.fill(image, self.project(shadow), self.look.shade(np.array([28.0, 28.0, 30.0]), z))
        self._flank(image, x, z, shape, paint=paint, glass=glass)
        for wheel in (-1, 1):
            edge = sorted((wheel * half, wheel * (half - 0.35)))
            self._box(image, x, z, (edge[0], edge[1], 0.0, 0.6), dark)
        self._box(image, x, z, (-half, half, shape.floor_m, shape.shoulder_m), paint)
        self._cabin(image, x, z, shape, paint=paint, glass=glass)
        self._tail_lights(image, x, z, shape, lit=bool(path.brakes[i]))

    def _lane_shift(self, i: int) -> float:
        """How far the ego vehicle has left the lane that the others are placed by."""
        return (
            float(self.motion.lateral_m[i] - self.motion.lateral_m[0])
            if self.scene.truth.ego.startswith("changes")
            else 0.0
        )

    def _flank(self, image: Image, x: float, z: float, shape: world.Shape, *, paint: Floats, glass: Floats) -> None:
        """The side that the camera sees past the rear."""
        half = shape.width_m / 2
        edge = x - half if x > half else x + half if x < -half else None
        if edge is None:
            return
        near, far = z, z + shape.length_m

        def side(low: float, high: float) -> Floats:
            return np.array([[edge, low, near], [edge, low, far], [edge, high, far], [edge, high, near]])

        self.fill(image, self.project(side(shape.floor_m, shape.shoulder_m)), paint * 0.72)
        if shape.side_glass is not None:
            self.fill(image, self.project(side(*shape.side_glass)), glass * 0.9)

    def _cabin(self, image: Image, x: float, z: float, shape: world.Shape, *, paint: Floats, glass: Floats) -> None:
        half = shape.width_m / 2
        if shape.roof_m > shape.shoulder_m:  # a saloon: the roof is narrower than the body
            for inset, low, high, colour in ((0.0, 0.0, 0.0, paint), (0.14, 0.08, 0.1, glass)):
                top, bottom = half * 0.74 - inset, half * 0.95 - inset
                y0, y1 = shape.shoulder_m + low, shape.roof_m - high
                corners = np.array([[x - bottom, y0, z], [x + bottom, y0, z], [x + top, y1, z], [x - top, y1, z]])
                self.fill(image, self.project(corners), colour)
            return
        if shape.rear_glass is not None:
            self._box(image, x, z, (-half * 0.85, half * 0.85, *shape.rear_glass), glass)
        if shape.doors:
            self._box(image, x, z, (-0.05, 0.05, shape.floor_m + 0.1, shape.shoulder_m - 0.1), paint * 0.55)
            self._box(image, x, z, (-half, half, shape.shoulder_m - 0.22, shape.shoulder_m), paint * 0.55)

    def _tail_lights(self, image: Image, x: float, z: float, shape: world.Shape, *, lit: bool) -> None:
        half, y = shape.width_m / 2, shape.tail_m
        size = (0.5, 0.34) if lit else (0.34, 0.2)
        colour = np.array([255.0, 30.0, 25.0]) if lit else self.look.tail_light
        for side in (-1, 1):
            centre = side * (half - 0.3)
            box = (centre - size[0] / 2, centre + size[0] / 2, y - size[1] / 2, y + size[1] / 2)
            self._box(image, x, z, box, colour)
            if lit:
                inner = (centre - size[0] / 4, centre + size[0] / 4, y - size[1] / 4, y + size[1] / 4)
                self._box(image, x, z, inner, (255, 190, 170))

    def _traffic_light(self, image: Image, lamp: int, z: float) -> None:
        x = 3.1
        steel = self.look.shade(np.array([95.0, 95.0, 100.0]), z)
        self._box(image, 6.2, z, (-0.14, 0.14, 0.0, 6.0), steel)
        self._box(image, 0.0, z, (x, 6.3, 5.75, 6.0), steel)
        self._box(image, x, z, (-0.62, 0.62, 3.0, 6.1), (18, 18, 20))
        for row, (name, on) in enumerate((("green", lamp == 2), ("yellow", False), ("red", lamp == 1))):
            centre = self.project(np.array([x, 3.55 + row * 1.0, z]))
            radius = 0.46 * self.focal / z
            self.disc(image, centre, radius, world.LAMPS[name] if on else world.LAMPS[name] * 0.13 + 10)

    def _pedestrian(self, image: Image, i: int) -> None:
        x, z = float(self.motion.pedestrian_x_m[i]), self.motion.pedestrian_z_m
        coat = self.look.object_shade(self.world.coat, z)
        skin, legs = (self.look.object_shade(np.array(c), z) for c in ((225.0, 180.0, 150.0), (45.0, 45.0, 60.0)))
        stride = 0.3 * np.sin(6.0 * x)
        for sign in (-1, 1):  # the same figure whichever way it walks
            foot = x + sign * stride
            corners = np.array([[x - 0.13, 0.9, z], [x + 0.13, 0.9, z], [foot + 0.11, 0.0, z], [foot - 0.11, 0.0, z]])
            self.fill(image, self.project(corners), legs)
        self._box(image, x, z, (-0.3, 0.3, 0.8, 1.5), coat)
        self.disc(image, self.project(np.array([x, 1.68, z])), 0.2 * self.focal / z, skin)

    def _rain(self, image: Image, time_s: float) -> None:
        rng = np.random.default_rng([self.scene.seed, round(time_s * 1000)])
        count, unit = 70, self.height / 160
        start = rng.random((count, 2)) * (self.width, self.height)
        length = rng.uniform(6, 12, (count, 1)) * unit
        ends = start + length * np.array([[-0.25, 1.0]])
        lines = (np.stack([start, ends], axis=1) * (1 << _SHIFT)).astype(np.int32)
        colour = tuple(map(float, self.look.rain))
        cv2.polylines(
            image,
            list(lines),
            isClosed=False,
            color=colour,
            thickness=max(1, round(0.8 * unit)),
            lineType=cv2.LINE_AA,
            shift=_SHIFT,
        )


def _fixed(xy: Floats) -> NDArray[np.int32]:
    """Pixels to cv2's fixed point."""
    fixed: NDArray[np.int32] = np.rint(np.minimum(np.maximum(xy, -8000.0), 8000.0) * (1 << _SHIFT)).astype(np.int32)
    return fixed


def _clip_near(polygon: Floats) -> Floats:
    """The part `[K, 3]` of a convex camera polygon ahead of the near plane (Sutherland-Hodgman, one plane)."""
    kept: list[list[float]] = []
    corners = polygon.tolist()
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        if a[2] > NEAR_M:
            kept.append(a)
        if (a[2] > NEAR_M) != (b[2] > NEAR_M):
            t = (NEAR_M + 1e-6 - a[2]) / (b[2] - a[2])
            kept.append([p + (q - p) * t for p, q in zip(a, b, strict=True)])
    return np.array(kept)
