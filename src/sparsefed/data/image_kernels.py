"""The CPU kernels of augmentation: numba, image by image, integers only, so that every machine gives the same bytes.

`rows` and `columns` map each place of the plane around an image to one of its pixels: reflections are looked up, never
computed. Bounds are not checked here: the caller makes the tables wide enough.
"""

from __future__ import annotations

import numpy as np

from sparsefed.core.types import IntArray, UInt8Array
from sparsefed.kernels.vector_kernels import compiled

PIXEL = 16  # binary digits of a place: 2^16 is one pixel
WEIGHT = 8  # binary digits of the weights of neighbours: all products fit 32 bits


@compiled
def shift_images(
    x: UInt8Array, top: IntArray, left: IntArray, mirrored: IntArray, rows: IntArray, columns: IntArray, out: UInt8Array
) -> None:
    """Write windows [M, H, W, C] at whole pixels; row rows[top + i] of x is under row i of a window; columns alike."""
    count, height, width, channels = x.shape
    for m in range(count):
        for i in range(height):
            source = x[m, rows[top[m] + i]]
            for j in range(width):
                column = columns[left[m] + (width - 1 - j if mirrored[m] else j)]
                for c in range(channels):
                    out[m, i, j, c] = source[column, c]


@compiled
def spread(image: UInt8Array, rows: IntArray, columns: IntArray, plane: UInt8Array) -> None:
    """Write an image [H, W, C] and its reflections around it into `plane` [rows, columns * C]."""
    width, channels = image.shape[1], image.shape[2]
    margin = (columns.shape[0] - width) // 2
    for i in range(rows.shape[0]):
        source, line = image[rows[i]], plane[i]
        line[margin * channels : (margin + width) * channels] = source.reshape(-1)
        for j in range(margin):
            for c in range(channels):
                line[j * channels + c] = source[columns[j], c]
        for j in range(margin + width, columns.shape[0]):
            for c in range(channels):
                line[j * channels + c] = source[columns[j], c]


@compiled
def sample(plane: UInt8Array, y: int, z: int, down: int, across: int, channels: int, line: UInt8Array) -> None:
    """Sample a row of pixels from a plane, bilinearly: the first at (y, z), each next one (down, across) further."""
    flat, step, at = plane.reshape(-1), plane.shape[1], np.uint64(0)
    digits, twice, half = np.int32(WEIGHT), np.int32(2 * WEIGHT), np.int32(1 << (2 * WEIGHT - 1))
    for _ in range(line.shape[0] // channels):
        # Unsigned, because numba would check whether a signed index is negative.
        k = np.uint64((y >> PIXEL) * step + (z >> PIXEL) * channels)
        v = np.int32((y >> (PIXEL - WEIGHT)) & ((1 << WEIGHT) - 1))
        h = np.int32((z >> (PIXEL - WEIGHT)) & ((1 << WEIGHT) - 1))
        for _ in range(channels):
            right, under = k + np.uint64(channels), k + np.uint64(step)
            a, b = np.int32(flat[k]), np.int32(flat[right])
            c, d = np.int32(flat[under]), np.int32(flat[under + np.uint64(channels)])
            upper = (a << digits) + (b - a) * h
            lower = (c << digits) + (d - c) * h
            line[at] = ((upper << digits) + (lower - upper) * v + half) >> twice
            k, at = k + np.uint64(1), at + np.uint64(1)
        y, z = y + down, z + across


@compiled
def turn_images(
    x: UInt8Array,
    top: IntArray,
    left: IntArray,
    mirrored: IntArray,
    cosines: IntArray,
    sines: IntArray,
    rows: IntArray,
    columns: IntArray,
    out: UInt8Array,
) -> None:
    """Write windows turned about their centres: place p is top-left + centre + R (p - centre), R in 2^-16."""
    count, height, width, channels = x.shape
    plane = np.empty((rows.shape[0], columns.shape[0] * channels), np.uint8)
    half = 1 << (PIXEL - WEIGHT - 1)  # places are rounded to the weights' grid
    for m in range(count):
        spread(x[m], rows, columns, plane)
        cosine, sine = cosines[m], sines[m]
        side = -1 if mirrored[m] else 1  # a mirrored row starts at its other end and goes back
        for i in range(height):
            # Twice the distance to the centre: a whole number, also where the centre lies between pixels.
            down, across = 2 * i - (height - 1), -side * (width - 1)
            y = ((height - 1) << (PIXEL - 1)) + ((down * cosine - across * sine) >> 1) + (top[m] << PIXEL)
            z = ((width - 1) << (PIXEL - 1)) + ((down * sine + across * cosine) >> 1) + (left[m] << PIXEL)
            sample(plane, y + half, z + half, -side * sine, side * cosine, channels, out[m, i].reshape(-1))


def rehearse() -> None:
    """Call every kernel once, as a round does."""
    x, zero, table = np.zeros((1, 2, 2, 1), np.uint8), np.zeros(1, np.int64), np.zeros(4, np.int64)
    shift_images(x, zero, zero, zero, table, table, np.empty_like(x))
    turn_images(x, zero, zero, zero, zero, zero, table, table, np.empty_like(x))
