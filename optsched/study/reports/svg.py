"""Functions that return SVG elements; all text and attributes are escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from optsched.study.reports.number_text import fit_name, wrap_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WIDTH: Final = 860
"""Width of every chart in drawing units; a chart scales with the page."""


def tag(name: str, *children: str | Markup, **attributes: str | float | None) -> Markup:
    """Return an element; underscores in attribute names become hyphens, None values are omitted."""
    written = Markup("").join(
        Markup(' {}="{}"').format(
            key.rstrip("_").replace("_", "-"), value if isinstance(value, str) else number(value)
        )
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(children)
    return Markup("<{}{}>{}</{}>").format(name, written, inside, name)


def number(value: float) -> str:
    """Format a number with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def rect(box: tuple[float, float, float, float], **attributes: str | float | None) -> Markup:
    """Return a rectangle, given as (x, y, width, height)."""
    x, y, width, height = box
    return tag("rect", x=x, y=y, width=width, height=height, **attributes)


def text(at: tuple[float, float], words: str, **attributes: str | float | None) -> Markup:
    """Return a text element that starts at (x, y), or is anchored there by `text_anchor`."""
    return tag("text", words, x=at[0], y=at[1], **attributes)


MOST_LINES: Final = 6
LINE: Final = 14.0
"""Line height of labels, in drawing units."""


def label(at: tuple[float, float], max_width: float, name: str, *, css: str = "name") -> Markup:
    """Return a label with up to `MOST_LINES` lines, right-aligned at x and centred at y."""
    lines = label_lines(name, max_width, css=css)
    x, first = at[0], at[1] + 4 - LINE * (len(lines) - 1) / 2
    spans = [tag("tspan", words, x=x, y=first + LINE * i) for i, words in enumerate(lines)]
    return tag("text", tag("title", name), *spans, text_anchor="end", class_=css)


def label_lines(name: str, max_width: float, *, css: str = "name") -> list[str]:
    """Return the lines into which `label` would break a name."""
    return wrap_name(name, max_width, MOST_LINES, bold=css == "heading")


def x_title(middle: float, y: float, words: str) -> Markup:
    """Return the title of a horizontal axis, centred at `middle`."""
    return text((middle, y), words, text_anchor="middle", class_="axistitle")


def y_title(x: float, middle: float, words: str) -> Markup:
    """Return the title of a vertical axis, rotated to read from bottom to top."""
    turn = f"rotate(-90 {number(x)} {number(middle)})"
    return text((x, middle), words, text_anchor="middle", class_="axistitle", transform=turn)


def line(
    start: tuple[float, float], end: tuple[float, float], **attributes: str | float | None
) -> Markup:
    """Return a straight line between two points."""
    return tag("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], **attributes)


def path(steps: str, **attributes: str | float | None) -> Markup:
    """Return a path with the given drawing commands."""
    return tag("path", d=steps, **attributes)


def lane(x: float, y: float, width: float, height: float) -> Markup:
    """Return the light background of a row."""
    return rect((x, y, width, height), class_="lane", fill_opacity=0.55)


def heading(name: str, y: float) -> Markup:
    """Return a heading with its top at y, which may use the full width of a drawing."""
    shown = fit_name(name, WIDTH - 8, bold=True)
    return tag("text", tag("title", name), shown, x=4, y=y + 13, class_="heading")


def scale(value: float, end: float, left: float, right: float) -> float:
    """Return the coordinate of a value on an axis from 0 (at `left`) to `end` (at `right`)."""
    return left + (right - left) * value / end


def diamond(
    x: float, y: float, wide: float, high: float, **attributes: str | float | None
) -> Markup:
    """Return a diamond mark centred at (x, y)."""
    points = ((x, y - high), (x + wide, y), (x, y + high), (x - wide, y))
    steps = "L".join(f"{number(a)} {number(b)}" for a, b in points)
    return path(f"M{steps}Z", class_="mark", **attributes)


def x_grid(marks: Iterable[tuple[float, str]], top: float, bottom: float) -> Iterator[Markup]:
    """Yield vertical grid lines with a label below each."""
    for x, words in marks:
        yield line((x, top), (x, bottom), class_="grid")
        yield text((x, bottom + 16), words, text_anchor="middle")


def group(children: Iterable[Markup], **attributes: str | float | None) -> Markup:
    """Return a group of elements."""
    return tag("g", *children, **attributes)


def staircase(points: Sequence[tuple[float, float]]) -> str:
    """Return the path commands of a step function, which keeps each y until the next point."""
    if not points:
        return ""
    steps = [f"M{number(points[0][0])} {number(points[0][1])}"]
    steps += [f"H{number(x)}V{number(y)}" for x, y in points[1:]]
    return "".join(steps)


def ribbon(edges: Sequence[float], tops: Sequence[float], bottoms: Sequence[float]) -> str:
    """Return the path commands of the area between two step functions with the same edges.

    Intervals in which the two step functions are equal are omitted.
    """
    found: list[str] = []
    at = 0
    while at < len(tops):
        if tops[at] == bottoms[at]:
            at += 1
            continue
        begin = at
        while at < len(tops) and tops[at] != bottoms[at]:
            at += 1
        found.append(f"M{number(edges[begin])} {number(tops[begin])}")
        for i in range(begin, at):
            if i + 1 == at or tops[i + 1] != tops[i]:
                found.append(f"H{number(edges[i + 1])}")
                found.append("" if i + 1 == at else f"V{number(tops[i + 1])}")
        found.append(f"V{number(bottoms[at - 1])}")
        for i in range(at - 1, begin - 1, -1):
            if i == begin or bottoms[i - 1] != bottoms[i]:
                found.append(f"H{number(edges[i])}")
                found.append("Z" if i == begin else f"V{number(bottoms[i - 1])}")
    return "".join(found)


def drawing(name: str, height: float, title: str, children: Iterable[Markup]) -> Markup:
    """Return a chart as an SVG image, with `title` as the alternative text."""
    return tag(
        "svg",
        tag("title", title, id=f"{name}-title"),
        *children,
        id=f"{name}-chart",
        class_="chart",
        viewBox=f"0 0 {WIDTH} {number(height)}",
        role="img",
        aria_labelledby=f"{name}-title",
    )
