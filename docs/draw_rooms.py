"""Draw the rooms of torch_ggt and the way of a gradient through them: docs/images/architecture.svg.

Rooms, layers and arrows come from the import statements in the source; only the short words in the boxes, and their
places from left to right, are written here. Run it after an import has changed: ``python docs/draw_rooms.py``.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "torch_ggt"
DRAWING = ROOT / "docs" / "images" / "architecture.svg"
FRONT = "torch_ggt"  # what the package itself offers: its __init__.py

# (place from left to right, what the box says). A room that is not here is drawn at the right of its layer.
WORDS = {
    FRONT: (3, "the public names"),
    "integrations": (2, "for other packages"),
    "spectrum": (2, "recorder and diagnosis"),
    "ggt": (3, "options of GGT"),
    "relatives": (4, "RMSprop, NAdam, …"),
    "whiten": (5, "for any optimizer"),
    "step": (3, "a step on one page"),
    "front_end": (5, "hooks of whiten"),
    "state": (3, "live and saved state"),
    "memory": (3, "bytes, and what fits"),
    "window": (3, "the ring and its Gram"),
    "backends": (3, "CPU, torch, Triton"),
    "options": (3, "one table of options"),
    "distributed": (0, "columns over ranks"),
    "solver": (4, "the r × r function"),
    "scopes": (5, "who shares a matrix"),
    "groups": (7, "the groups of a model"),
    "reference": (0, "the paper, literally"),
    "layout": (1, "spans of a flat vector"),
    "rules": (2, "what enters the window"),
    "finish": (3, "what becomes of a step"),
    "polar": (3, "U Vᵀ of a matrix"),
    "quadrature": (4, "nodes of the solver"),
    "parameters": (5, "names, devices, errors"),
    "sinks": (6, "where a step goes"),
    "shrinkage": (8, "how much is noise"),
}

# The way of a gradient: room, and what happens there.
WAY = [
    ("rules", "say which vector v enters the window"),
    ("backends", "gather it: v ← β₁ v + g"),
    ("window", "measures it: k = W v, in float64"),
    ("distributed", "sums k over ranks; is it finite?"),
    ("solver", "c = [(M + δI)^½ + εI]⁻¹ a"),
    ("sinks", "x ← x − η·s·G c"),
]

WIDTH, HEIGHT = 1536, 762
BOX, TALL, PITCH, LEFT, ACROSS = 148, 46, 74, 94, 168
GREY, INK, ORANGE = "#7d8a98", "#1d2733", "#c05f00"


def room_of(path: Path) -> str:
    """The room of a source file: its module at the top of the package, or its subpackage."""
    first = path.relative_to(SOURCE).with_suffix("").parts[0]
    return FRONT if first == "__init__" else first


def imported(path: Path) -> Iterator[str]:
    """The modules of torch_ggt that a file imports, anywhere in it, without "torch_ggt." in front."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == FRONT and rest:
                yield rest


def rooms() -> dict[str, set[str]]:
    """Every room, and the other rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        room = room_of(path)
        others = {name.split(".")[0] for name in imported(path)}
        found.setdefault(room, set()).update(others - {room})
    return found


def layers(graph: dict[str, set[str]]) -> dict[str, int]:
    """How many imports the longest way down from each room has; ValueError where rooms import in a circle."""
    found: dict[str, int] = {}

    def visit(room: str, above: tuple[str, ...]) -> int:
        if room in above:
            raise ValueError(f"rooms import in a circle: {' → '.join([*above[above.index(room) :], room])}")
        if room not in found:
            found[room] = 1 + max((visit(other, (*above, room)) for other in sorted(graph[room])), default=-1)
        return found[room]

    for room in sorted(graph):
        visit(room, ())
    return found


def arrows(graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that do not follow from a longer chain of imports."""

    @functools.cache
    def below(room: str) -> frozenset[str]:
        return frozenset(graph[room]).union(*(below(other) for other in graph[room]))

    return [
        (room, other)
        for room in sorted(graph)
        for other in sorted(graph[room])
        if not any(other in below(third) for third in graph[room] - {other})
    ]


class Drawing:
    """Where everything is, and the lines of the SVG."""

    def __init__(self, graph: dict[str, set[str]]) -> None:
        self.graph, self.layer = graph, layers(graph)
        self.places = self._places()
        self.lines: list[str] = []

    def _places(self) -> dict[str, tuple[float, float]]:
        """The middle of each box."""
        top, taken, found = max(self.layer.values()), set(), {}
        for room in sorted(self.graph, key=lambda name: (WORDS.get(name, (9, ""))[0], name)):
            column = WORDS.get(room, (9, ""))[0]
            if column == 9:
                column = 1 + max((c for level, c in taken if level == self.layer[room]), default=-1)
            while (self.layer[room], column) in taken:
                column += 1
            taken.add((self.layer[room], column))
            found[room] = LEFT + ACROSS * column, 42 + PITCH * (top - self.layer[room])
        return found

    def line(self, points: list[tuple[float, float]], color: str, width: float) -> None:
        """A line through points, with round corners and a head."""
        radius, (x, y) = 9.0, points[0]
        path = f"M{x:g} {y:g}"
        for before, here, after in zip(points, points[1:], points[2:], strict=False):
            (ax, ay), (bx, by) = _towards(here, before, radius), _towards(here, after, radius)
            path += f" L{ax:g} {ay:g} Q{here[0]:g} {here[1]:g} {bx:g} {by:g}"
        (x, y), length = points[-1], 5 + 2 * width
        bx, by = _towards(points[-1], points[-2], length)
        dx, dy = (x - bx) / length, (y - by) / length
        half = length * 0.42
        path += f" L{bx:g} {by:g}"
        self.lines.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"/>')
        head = [(x, y), (bx - half * dy, by + half * dx), (bx + half * dy, by - half * dx)]
        corners = " L".join(f"{a:.2f} {b:.2f}" for a, b in head)
        self.lines.append(f'<path d="M{corners} Z" fill="{color}" stroke="none"/>')

    def text(
        self, x: float, y: float, words: str, size: float, *, color: str = INK, bold: bool = False, middle: bool = False
    ) -> None:
        """Words at a place."""
        weight = ' font-weight="bold"' if bold else ""
        anchor = ' text-anchor="middle"' if middle else ""
        self.lines.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{color}"{weight}{anchor}>{escape(words)}</text>'
        )

    def box(self, room: str) -> None:
        """A room."""
        x, y = self.places[room]
        fill, edge = ("#fff0db", ORANGE) if room in dict(WAY) else ("#f1f5f9", GREY)
        self.lines.append(
            f'<rect x="{x - BOX / 2:g}" y="{y - TALL / 2:g}" width="{BOX}" height="{TALL}" rx="7" fill="{fill}" '
            f'stroke="{edge}" stroke-width="1.3"/>'
        )
        self.text(x, y - 3, room, 14, bold=True, middle=True)
        self.text(x, y + 14, WORDS.get(room, (9, ""))[1], 10.5, middle=True, color="#44515f")

    def badge(self, x: float, y: float, number: int) -> None:
        """The number of a station on the way."""
        self.lines.append(f'<circle cx="{x:g}" cy="{y:g}" r="10" fill="{ORANGE}" stroke="#ffffff" stroke-width="1.5"/>')
        self.text(x, y + 4.3, str(number), 12, color="#ffffff", bold=True, middle=True)

    def imports(self) -> None:
        """An arrow for every import that `arrows` keeps: straight down, or out at the side and then down."""
        kept = arrows(self.graph)
        sideways = {pair for pair in kept if self._level(*pair) or self._blocked(*pair)}
        for room, other in kept:
            (x, y), (to_x, to_y) = self.places[room], self.places[other]
            end = to_x + _spread(x, [self.places[a][0] for a, b in kept if b == other])
            if (room, other) in sideways:
                side = 1 if to_x > x else -1
                nearer = sum(a == room and side * x < side * self.places[b][0] < side * to_x for a, b in sideways)
                out = y + 13 - 22 * (nearer > 0 or abs(to_y - y) > PITCH)  # the farther one above the nearer one
                self.line([(x + side * BOX / 2, out), (end, out), (end, to_y - TALL / 2)], GREY, 1.3)
            else:
                start = x + _spread(to_x, [self.places[b][0] for a, b in kept if a == room and (a, b) not in sideways])
                self.line([(start, y + TALL / 2), (end, to_y - TALL / 2)], GREY, 1.3)

    def _level(self, room: str, other: str) -> bool:
        """Whether a straight line would run nearly level."""
        (x, y), (to_x, to_y) = self.places[room], self.places[other]
        return abs(to_x - x) > 2.4 * (to_y - y)

    def _blocked(self, room: str, other: str) -> bool:
        """Whether a straight line would go through a box."""
        (x, y), (to_x, to_y) = self.places[room], self.places[other]
        for name, (box_x, box_y) in self.places.items():
            if name not in (room, other) and y < box_y < to_y:
                for edge in (box_y - TALL / 2 - 4, box_y + TALL / 2 + 4):
                    at = x + (to_x - x) * (edge - y) / (to_y - y)
                    if abs(at - box_x) < BOX / 2 + 6:
                        return True
        return False

    def way(self) -> None:
        """The way of a gradient, from station to station."""
        at, half, high = self.places, BOX / 2, TALL / 2
        rules, backends, window = at["rules"], at["backends"], at["window"]
        columns, solver, sinks = at["distributed"], at["solver"], at["sinks"]
        gap = solver[1] + high + (sinks[1] - solver[1] - TALL) / 2
        ways = [
            [(rules[0] - 28, rules[1] - high), (rules[0] - 28, backends[1] + 8), (backends[0] - half, backends[1] + 8)],
            [(backends[0] + 34, backends[1] - high), (window[0] + 34, window[1] + high)],
            [(window[0] - half, window[1]), (columns[0] + 26, window[1]), (columns[0] + 26, columns[1] - high)],
            [(columns[0] + half, columns[1]), (solver[0] - half, solver[1])],
            [
                (solver[0] + 34, solver[1] + high),
                (solver[0] + 34, gap),
                (sinks[0] - 28, gap),
                (sinks[0] - 28, sinks[1] - high),
            ],
        ]
        for points in ways:
            self.line(points, ORANGE, 2.4)
        for number, (room, _) in enumerate(WAY, 1):
            self.badge(at[room][0] + half - 4, at[room][1] - high + 2, number)

    def legend(self) -> None:
        """What the colors and numbers mean."""
        x, y = 712, 288
        self.text(x, y, "The way of a gradient", 15, bold=True, color=ORANGE)
        for number, (room, words) in enumerate(WAY, 1):
            self.badge(x + 10, y + 24 * number - 2, number)
            self.text(x + 28, y + 24 * number + 3, room, 12.5, bold=True)
            self.text(x + 124, y + 24 * number + 3, words, 12.5)
        self.line([(x, y + 172), (x + 40, y + 172)], GREY, 1.3)
        self.text(x + 50, y + 176, "imports; what a chain of arrows implies is not drawn", 11.5)
        self.text(28, 40, "The rooms of torch_ggt", 15, bold=True)
        self.text(28, 62, "A room imports only rooms that", 11.5)
        self.text(28, 78, "stand lower on this page.", 11.5)

    def layered(self) -> None:
        """Boxes lie over the lines, and the numbers over the boxes."""
        lines_of_imports, self.lines = self.lines, []
        self.way()
        way = [line for line in self.lines if not line.startswith(("<circle", "<text"))]
        badges = [line for line in self.lines if line.startswith(("<circle", "<text"))]
        self.lines = []
        for room in sorted(self.graph):
            self.box(room)
        self.lines = [*lines_of_imports, *way, *self.lines, *badges]

    def svg(self) -> str:
        """The whole drawing."""
        self.imports()
        self.layered()
        self.legend()
        body = "\n".join(self.lines)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            'font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" role="img" '
            'aria-label="The rooms of torch_ggt, their imports, and the way of a gradient through them">\n'
            f'<rect x="0" y="0" width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
        )


def _towards(here: tuple[float, float], there: tuple[float, float], length: float) -> tuple[float, float]:
    """The point at ``length`` from ``here`` on the way to ``there``."""
    dx, dy = there[0] - here[0], there[1] - here[1]
    distance = max(1e-9, (dx * dx + dy * dy) ** 0.5)
    return round(here[0] + dx / distance * length, 2), round(here[1] + dy / distance * length, 2)


def _spread(x: float, others: list[float]) -> float:
    """Where along the edge of a box the arrow from or to ``x`` is, so that arrows do not meet."""
    order = sorted(set(others))
    return 26.0 * (order.index(x) - (len(order) - 1) / 2)


def draw() -> str:
    """The drawing of the rooms as they are now."""
    return Drawing(rooms()).svg()


if __name__ == "__main__":
    DRAWING.write_text(draw(), encoding="utf-8")
    print(DRAWING)
