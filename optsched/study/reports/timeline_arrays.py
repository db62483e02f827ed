"""A timeline prepared for charts: queue colours, a time axis, and the stays of tasks on nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.reports import svg
from optsched.study.reports.number_text import moment, time_ticks, time_unit
from optsched.study.reports.page import Key
from optsched.study.simulation.timeline import GOES_ON, at_instants, column

if TYPE_CHECKING:
    from markupsafe import Markup

    from optsched.study.simulation.timeline import Floats, Ints, Lanes, Run, Stay, Timeline

COLOURS: Final = 8
OTHERS: Final = COLOURS - 1
LEFT: Final = 190.0
LABEL: Final = LEFT - 14
"""Width available for names to the left of a chart, in drawing units."""
BELOW: Final = 42.0
"""Height in drawing units that the time axis below a chart needs."""
HEAD: Final = 16.0
"""Height of the title above a list of names, in drawing units."""
RIGHT: Final = svg.WIDTH - 14.0
STRETCHES: Final = 240


@dataclass(frozen=True)
class View:
    """A timeline, with the scales and colours that all its charts share."""

    timeline: Timeline
    # Colour index of each queue. The queues that held the least capacity share a colour.
    colour: tuple[int, ...]
    colours: tuple[str, ...]  # The name of each colour: a queue, or `N other queues`.

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> View:
        """Create a timeline's view; queues that held the most capacity get separate colours."""
        weight = Counter({job.queue: 0 for job in timeline.jobs})
        for stay in timeline.stays:
            held = stay.milli * len(stay.lanes) * (stay.to_ms - stay.from_ms)
            weight[timeline.jobs[stay.job].queue] += held
        order = sorted(weight, key=lambda q: (-weight[q], timeline.queues[q]))
        own = len(order) if len(order) <= COLOURS else OTHERS
        names = [timeline.queues[q] for q in order[:own]]
        if own < len(order):
            names.append(f"{len(order) - OTHERS} other queues")
        of = {queue: min(i, own) for i, queue in enumerate(order)}
        colour = tuple(of.get(q, OTHERS) for q in range(len(timeline.queues)))
        return cls(timeline, colour, tuple(names))

    def colour_of(self, job: int) -> int:
        """Return the colour index of a job's queue."""
        return self.colour[self.timeline.jobs[job].queue]

    @property
    def legend(self) -> list[Key]:
        """The legend of the queue colours."""
        return [Key(f"f{i}", name) for i, name in enumerate(self.colours)]

    # --- time axis -------------------------------------------------------------------------------

    def x(self, at_ms: float) -> float:
        """Return the x coordinate of an instant on the time axis."""
        return svg.scale(at_ms, self.timeline.end_ms, LEFT, RIGHT)

    @cached_property
    def edges(self) -> Floats:
        """The edges of time bins of equal length, in milliseconds."""
        made: Floats = np.linspace(0, self.timeline.end_ms, STRETCHES + 1)
        return made

    @cached_property
    def edges_x(self) -> list[float]:
        """The x coordinates of `edges`, rounded to a tenth."""
        return [round(self.x(edge), 1) for edge in self.edges]

    def time_axis(self, top: float, bottom: float) -> list[Markup]:
        """Return grid lines with labels at round instants."""
        return time_axis(self.timeline.end_ms, top, bottom)

    def slider_line(self, top: float, bottom: float) -> Markup:
        """Return the vertical line that moves with the slider."""
        x = self.x(int(self.instants[self.frame_shown]))
        wide = RIGHT - LEFT
        return svg.line((x, top), (x, bottom), class_="now", data_left=LEFT, data_width=wide)

    # --- arrays of stays -------------------------------------------------------------------------

    @cached_property
    def spans(self) -> tuple[Ints, Ints]:
        """The start and end of each task's stay on a node, in milliseconds."""
        stays = self.timeline.stays
        return column([s.from_ms for s in stays]), column([s.to_ms for s in stays])

    @cached_property
    def display_spans(self) -> tuple[Ints, Ints]:
        """The start and end of each stay; ongoing stays end after the timeline's end."""
        begins, ends = self.spans
        return begins, ends + column([s.why == GOES_ON for s in self.timeline.stays])

    @cached_property
    def gpu_milli(self) -> Floats:
        """The GPU capacity held during each stay, in thousandths of a GPU."""
        return column([s.milli * len(s.lanes) for s in self.timeline.stays]).astype(np.float64)

    @cached_property
    def stay_colours(self) -> Ints:
        """The colour index of each stay's queue."""
        return column([self.colour_of(s.job) for s in self.timeline.stays])

    @cached_property
    def stay_nodes(self) -> Ints:
        """The node index of each stay."""
        return column([s.node for s in self.timeline.stays])

    @cached_property
    def instants(self) -> Ints:
        """The slider's instants: all changes or, if there are too many, equidistant instants.

        There are at most `STRETCHES` instants with changes, or half as many equidistant instants.
        """
        timeline = self.timeline
        times = {t for s in timeline.stays for t in (s.from_ms, s.to_ms)}
        times |= {t for _, a, b in timeline.down for t in (a, b)} | {0, timeline.end_ms}
        if len(times) <= STRETCHES:
            return column(sorted(times))
        grain = 1000 if timeline.end_ms > 3_600_000 else 1
        even = np.linspace(0, timeline.end_ms, STRETCHES // 2 + 1) / grain
        made: Ints = even.round().astype(np.int64) * grain
        return made

    @cached_property
    def frame_shown(self) -> int:
        """The index in `instants` of the first instant with the highest allocation."""
        rows = np.zeros_like(self.stay_nodes)
        found = at_instants(self.display_spans, self.gpu_milli, rows, 1, self.instants)
        return int(np.argmax(found.round()))


def time_axis(end_ms: int, top: float, bottom: float) -> list[Markup]:
    """Return grid lines with labels at round instants."""
    marks = ((svg.scale(at_ms, end_ms, LEFT, RIGHT), words) for at_ms, words in time_ticks(end_ms))
    title = f"time since the start of the trace ({time_unit(end_ms)[0]})"
    return [
        *svg.x_grid(marks, top, bottom),
        svg.x_title((LEFT + RIGHT) / 2, bottom + 35, title),
    ]


def names_title(words: str) -> Markup:
    """Return the title above the names to the left of a chart."""
    return svg.text((LEFT - 8, 11), words, text_anchor="end", class_="axistitle")


def node_groups(lanes: Lanes, most: int) -> list[list[int]]:
    """Group adjacent nodes that have lanes; return at most `most` groups of node indices."""
    kept = [i for i, number in enumerate(lanes.number) if number]
    size = -(-len(kept) // most)
    return [kept[i : i + size] for i in range(0, len(kept), size)]


# --- texts ---------------------------------------------------------------------------------------

_ENDS: Final = {
    "": "goes on",
    "finish": "finished",
    "move": "moved to another node",
    "node": "its node failed",
    "preempt": "preempted",
    "reclaim": "reclaimed by another queue",
}


def describe_end(why: str) -> str:
    """Describe how a task's stay on a node or a gang's run ended."""
    return _ENDS.get(why, f"ended by {why}")


def lanes_text(view: View, stay: Stay) -> str:
    """Describe the GPUs of a task, such as `GPU 0–3` or `50 % of GPU 2`."""
    lanes = view.timeline.lanes
    if lanes.unit == "CPU":
        return f"{stay.milli / 1000:g} CPU"
    if not stay.lanes:
        return "no GPU"
    whole = f"GPU {ranges_text(stay.lanes)}"
    return whole if stay.milli >= 1000 else f"{stay.milli / 10:g} % of {whole}"


def ranges_text(numbers: tuple[int, ...]) -> str:
    """Format numbers as ranges, such as `0–3, 6`."""
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in consecutive_ranges(numbers))


def consecutive_ranges(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the first and last number of each range of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] + 1 == number:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def run_text(run: Run) -> str:
    """Describe when a gang ran, and how the run ended."""
    by = f", for {run.by}" if run.by and run.why != "node" else f" ({run.by})" if run.by else ""
    return f"ran from {moment(run.from_ms)} to {moment(run.to_ms)}: {describe_end(run.why)}{by}"
