#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the pictures of docs/concepts.md. Usage: draw.py FOLDER"""
import pathlib
import sys

COLOURS = ["#8ecae6", "#ffb703", "#95d5b2", "#f4978e", "#cdb4db", "#d9c8a9", "#a3b18a", "#ffd6e0", "#b8c0ff"]
UNIT = 34


class Picture:
    def __init__(self, width, height):
        self.size = (width, height)
        self.parts = []

    def rect(self, x, y, w, h, fill="#ffffff", stroke="#333333", width=1):
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}" '
                          f'stroke="{stroke}" stroke-width="{width}"/>')

    def text(self, x, y, words, size=12, anchor="middle", weight="normal"):
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
                          f'font-weight="{weight}">{words}</text>')

    def arrow(self, x1, y1, x2, y2):
        self.parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#333333" '
                          'stroke-width="1.5" marker-end="url(#head)"/>')

    def save(self, path):
        w, h = self.size
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
            'font-family="sans-serif" fill="#111111">\n'
            '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            '<path d="M0,0 L8,4 L0,8 z" fill="#333333"/></marker></defs>\n'
            f'<rect width="{w}" height="{h}" fill="#fdfdfb"/>\n' + "\n".join(self.parts) + "\n</svg>\n",
            encoding="utf-8")


def rank_colour(row, column, columns):
    return COLOURS[(row * columns + column) % len(COLOURS)]


def placements():
    """A pair tensor, a single tensor and a weight on a mesh of 2 x 3 ranks."""
    p = Picture(640, 250)
    rows, columns, n = 2, 3, 6

    def ranks_of(x, title, below):
        p.text(x + n * UNIT / 2 - 30, 24, title, 13, weight="bold")
        for k, line in enumerate(below):
            p.text(x + n * UNIT / 2 - 30, 218 + 16 * k, line, 11)

    side = 24
    ranks_of(50, "pair [B, N, N, C]", ["(S0, S1, S2)", "1/6 of it on each rank"])
    for i in range(n):
        for j in range(n):
            p.rect(50 + j * side, 48 + i * side, side, side, rank_colour(i * rows // n, j * columns // n, columns))
    for r in range(rows):
        for c in range(columns):
            p.text(50 + (c + .5) * side * n / columns, 52 + (r + .5) * side * n / rows, f"rank {r},{c}", 10)
    ranks_of(260, "single [B, N, C]", ["(S0, S1, R)", "1/2 of it, the same on 3 ranks"])
    for i in range(n):
        row = i * rows // n
        for c in range(columns):
            p.rect(300 + c * 21, 48 + i * side, 21, side, rank_colour(row, c, columns))
    for r in range(rows):
        p.text(331, 52 + (r + .5) * side * n / rows, f"ranks {r},*", 10)
    ranks_of(460, "weight [out, in]", ["(R, R, R)", "all of it on each rank"])
    for r in range(rows):
        for c in range(columns):
            p.rect(470 + c * 44, 66 + r * 60, 36, 46, rank_colour(r, c, columns))
            p.text(488 + c * 44, 93 + r * 60, f"{r},{c}", 10)
    return p


def ring():
    """X Y on 3 x 3 ranks: which panels each rank multiplies in each step."""
    p = Picture(640, 290)
    size = 3
    for step in range(size):
        left = 20 + step * 210
        p.text(left + 90, 22, f"step {step}", 13, weight="bold")
        for r in range(size):
            for c in range(size):
                k = (r + c + step) % size
                x, y = left + c * 62, 36 + r * 62
                p.rect(x, y, 54, 54, "#ffffff")
                p.rect(x + 5, y + 8, 20, 20, COLOURS[k])
                p.rect(x + 29, y + 8, 20, 20, COLOURS[k])
                p.text(x + 15, y + 22, f"x{r}{k}", 9)
                p.text(x + 39, y + 22, f"y{k}{c}", 9)
                p.text(x + 27, y + 44, f"z{r}{c} += x y", 8)
        if step + 1 < size:
            p.arrow(left + 186, 125, left + 206, 125)
    p.text(320, 244, "skew first: rank (i, j) begins with k = i + j. Then x moves one place along cp1, y along cp0;", 11)
    p.text(320, 262, "the next panels travel while the present ones are multiplied. No rank ever has a row of X.", 11)
    return p


def one_layer():
    """Serial and distributed: one set of block functions, two schedules."""
    p = Picture(640, 220)
    p.rect(220, 20, 200, 44, "#f1efe7")
    p.text(320, 40, "block functions", 13, weight="bold")
    p.text(320, 56, "arithmetic of one tile; no ranks", 10)
    for x, title, mesh in ((60, "serial layer", "mesh 1x1"), (380, "distributed layer", "mesh 2x3")):
        p.text(x + 100, 104, title, 13, weight="bold")
        p.text(x + 100, 120, mesh, 10)
    p.arrow(280, 64, 180, 92)
    p.arrow(360, 64, 460, 92)
    p.rect(80, 134, 160, 46, COLOURS[0])
    p.text(160, 154, "one step, whole operands", 11)
    p.text(160, 170, "no message", 11)
    for k in range(6):
        p.rect(384 + k * 33, 134, 27, 46, COLOURS[k])
        p.text(397 + k * 33, 160, str(k), 11)
    p.text(480, 198, "six steps; panels move between them", 11)
    p.text(160, 198, "= goldens, to 1e-10", 11)
    p.text(320, 162, "= to 1e-11", 12, weight="bold")
    return p


def budget():
    """What one rank keeps of a pair tensor, by mesh."""
    p = Picture(640, 200)
    p.text(320, 22, "share of a saved pair tensor on one rank", 13, weight="bold")
    for k, (a, b) in enumerate([(1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (4, 4)]):
        height = 120 / (a * b)
        p.rect(50 + k * 95, 160 - height, 60, height, COLOURS[k])
        p.text(80 + k * 95, 154 - height, "all" if a * b == 1 else f"1/{a * b}", 11)
        p.text(80 + k * 95, 180, f"{a}x{b}", 12)
    return p


def main():
    folder = pathlib.Path(sys.argv[1])
    for name, picture in {"placements": placements, "ring": ring, "one-layer": one_layer, "budget": budget}.items():
        picture().save(folder / f"{name}.svg")


if __name__ == "__main__":
    main()
