"""The report of a solve: plans of one model or several for the same cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.decisions import PPM, Sense, relative_gap
from optsched.study.reports import svg
from optsched.study.reports.gaps_view import GapLine, TimeAxis, gap_chart
from optsched.study.reports.models_view import model_section
from optsched.study.reports.number_text import UNKNOWN, count_text, fitted, percent, plain, short
from optsched.study.reports.page import MOST_ROWS, Cell, Chart, Key, Page, Section, Table
from optsched.study.reports.plans_view import BEFORE, PlansData, plan_film

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from markupsafe import Markup

    from optsched.cluster.decisions import LevelResult, Progress
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Snapshot
    from optsched.formats.plan import Eviction, PlanDocument
    from optsched.formats.solve_result import SolveResult
    from optsched.study.comparison.plan_measures import PlanMeasures

MOST_LEVELS: Final = 12
_LABEL: Final = 176.0
_PANEL: Final = 92.0
_LEFT, _RIGHT = 190.0, svg.WIDTH - 130.0


@dataclass(frozen=True)
class Answer:
    """The result of one model: its outcome, its definition and the figures of its plan."""

    result: SolveResult
    definition: Mapping[str, Any]
    measures: PlanMeasures

    @property
    def name(self) -> str:
        """Of the model."""
        return self.result.model.name


def solve_page(snapshot: Snapshot, answers: Sequence[Answer], base: Mapping[str, Any]) -> Page:
    """Decisions of models for a cluster, and their proofs.

    Parameters
    ----------
    snapshot
        The cluster, as it was solved.
    answers
        Of each model, in order; at least one.
    base
        The definition of the model that a single one is held against.

    """
    plans = {a.name: a.result.plan for a in answers if a.result.plan is not None}
    data = PlansData(snapshot, plans)
    names = ", ".join(a.name for a in answers)
    nodes, gangs = count_text(len(snapshot.nodes), "node"), count_text(len(snapshot.gangs), "gang")
    title = short(answers[0].result.instance.path.rpartition("/")[2], 60)
    return Page(
        f"Plan for {title}",
        f"{gangs} and {nodes}, decided by {names}",
        list(_facts(answers)),
        list(_sections(data, answers, base)),
        list(_warnings(answers)),
    )


def _facts(answers: Sequence[Answer]) -> Iterable[tuple[str, str]]:
    first, many = answers[0], len(answers) > 1
    of = f", {first.name}" if many else ""
    yield f"gangs placed{of}", plain(first.measures.gangs)
    yield f"gangs waiting{of}", plain(first.measures.waiting)
    if first.measures.allocation is not None:
        yield f"allocation{of}", percent(first.measures.allocation)
    if first.result.plan is not None:
        certificate = first.result.plan.certificate
        yield f"proved{of}", "yes" if certificate.is_proved else "no"
    yield "seed", str(first.result.parameters.seed)
    yield "optsched", str(first.result.versions.get("optsched", UNKNOWN))


def _warnings(answers: Sequence[Answer]) -> Iterable[str]:
    for answer in answers:
        if answer.result.plan is None:
            yield f"{answer.name}: there is no plan."
        if answer.result.is_partial:
            yield (
                f"{answer.name}: ended by {answer.result.ended.value}; more could have been found "
                "or proved."
            )


def _sections(
    data: PlansData, answers: Sequence[Answer], base: Mapping[str, Any]
) -> Iterable[Section]:
    idle = [
        f"{answer.name}: no gang waits."
        for answer in answers
        if answer.result.plan is not None and not _reasons_of(answer.result.plan)
    ]
    yield Section("pending", "What waits, and why", list(_pending(data, answers)), idle)
    if len(answers) > 1:
        rows = []
        for title, name, is_part in _MEASURES:
            values = [getattr(answer.measures, name) for answer in answers]
            if any(value is not None for value in values):
                told = [percent(v) if is_part else plain(v) for v in values]
                cells = [Cell(words, v) for words, v in zip(told, values, strict=True)]
                rows.append((Cell(title), *cells))
        names = [answer.name for answer in answers]
        yield Section(
            "figures",
            "Models side by side",
            [Table("Figures of the plans", ("figure", *names), rows, frozenset(names))],
        )
    if data.snapshot.nodes:
        yield Section("nodes", "Nodes", [plan_film(data), *_placements(data)])
    if data.colour_of:
        yield Section("queues", "Queues", [_queue_chart(data), *_shares(answers)])
    yield Section("certificate", "Certificate", list(_certificates(answers)))
    searched = [
        chart
        for i, answer in enumerate(answers)
        if answer.result.progress
        for chart in (_gaps(i, answer), _history(i, answer))
    ]
    if searched:
        yield Section("search", "Gap, value and bound over time", searched)
    yield model_section([answer.definition for answer in answers], base)
    yield Section("again", "How to get it again", list(_provenance(answers)))


# --- side by side --------------------------------------------------------------------------------

_MEASURES: Final = (
    ("gangs started", "gangs", False),
    ("pods placed", "pods", False),
    ("pods with room kept", "nominated", False),
    ("gangs that wait", "waiting", False),
    ("victims", "victims", False),
    ("pods moved", "moved", False),
    ("nodes in use", "nodes", False),
    ("allocation", "allocation", True),
    ("fragmentation", "fragmentation", True),
    ("Jain index", "jain", False),
    ("largest share", "largest_share", True),
    ("least share", "least_share", True),
    ("topology tier", "topology_tier", False),
    ("cross-leaf pairs", "cross_leaf_pairs", False),
    ("greatest gap", "gap", True),
)


# --- placements -----------------------------------------------------------------------------------


def _placements(data: PlansData) -> Iterable[Table]:
    gang_of = {t.key: g.key for g in data.snapshot.gangs for t in g.tasks}
    gang_of |= {t.key: t.gang for node in data.snapshot.nodes for t in node.residents if t.gang}
    for name, plan in data.plans.items():
        yield _placed(data, name, plan, gang_of)
        if plan.evictions:
            rows = [
                [
                    Cell(words or UNKNOWN)
                    for words in (e.pod, gang_of.get(e.pod, ""), *_eviction_reason(e))
                ]
                for e in plan.evictions
            ]
            headings = ("pod", "gang", "action", "for", "starts again on", "because")
            yield Table(f"Evictions, {name}", headings, rows[:MOST_ROWS], note=_cut(rows))


def _placed(data: PlansData, name: str, plan: PlanDocument, gang_of: Mapping[str, str]) -> Table:
    rows = []
    for binds, mark in ((plan.binds, "placed"), (plan.nominations, "room is kept")):
        by_gang: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for task, node in binds.items():
            by_gang[gang_of.get(task, task)][node] += 1
        for gang, counts in sorted(by_gang.items()):
            where = ", ".join(f"{n} ×{k}" if k > 1 else n for n, k in sorted(counts.items()))
            number = counts.total()
            queue = data.queue_of.get(gang, UNKNOWN)
            cells = (gang, queue, mark)
            rows.append((*map(Cell, cells), Cell(plain(number), number), Cell(where)))
    note = _cut(rows)
    headings = ("gang", "queue", "what", "pods", "nodes")
    return Table(f"Placements, {name}", headings, rows[:MOST_ROWS], frozenset({"pods"}), note)


def _eviction_reason(eviction: Eviction) -> tuple[str, ...]:
    because = eviction.reason or eviction.plugin
    return eviction.action, eviction.preemptor, eviction.to, because


def _cut(rows: Sequence[object]) -> str:
    return f"The first {plain(MOST_ROWS)} of {plain(len(rows))}." if len(rows) > MOST_ROWS else ""


# --- queues --------------------------------------------------------------------------------------


def _queue_chart(data: PlansData) -> Chart:
    """Bars of what each queue holds: before in light colour, then under each model."""
    total, unit = data.lanes.total_milli or 1, data.lanes.unit
    held = {name: data.milli_by_queue(name) for name in data.frames}
    top = max((n / total for by in held.values() for n in by.values()), default=0.0) or 1.0
    parts: list[Markup] = []
    at = 6.0
    for queue, colour in data.colour_of.items():
        words = fitted(queue, svg.WIDTH - 8, bold=True)
        heading = svg.tag("title", queue), words
        parts.append(svg.tag("text", *heading, x=4, y=at + 13, class_="heading"))
        at += 20
        for name in data.frames:
            height = max(18.0, svg.LINE * len(svg.label_lines(name, _LABEL)) + 4)
            middle = at + (height - 18) / 2
            parts += _queue_bar((queue, name), held[name][queue], (total, top, middle), colour)
            at += height
        at += 8
    names = [name for name in data.frames if name != BEFORE]
    rows = [
        (Cell(queue), *(Cell(plain(held[n][queue] / 1000, 1), held[n][queue]) for n in held))
        for queue in data.colour_of
    ]
    columns = (BEFORE, *names)
    table = Table(f"{unit}s held", ("queue", *columns), rows, frozenset(columns))
    parts += _held_axis(top, total, unit, at)
    words = f"{unit}s held by queue, before and after"
    drawing = svg.drawing("by-queue", at + 42, words, parts)
    keys = [*data.legend, Key("f7 wait", "light: before")]
    return Chart("by-queue", f"{unit}s held by queue", drawing, keys, [table], is_walkable=True)


def _queue_bar(
    names: tuple[str, str], milli: int, scale: tuple[int, float, float], colour: int
) -> Iterable[Markup]:
    (queue, name), (total, top, at) = names, scale
    part = milli / total
    width = (_RIGHT - _LEFT) * part / top
    css = f"bar wait f{colour}" if name == BEFORE else f"bar f{colour}"
    tip = f"{queue}, {name}: {plain(milli / 1000, 1)} ({percent(part)})"
    yield svg.label((_LEFT - 8, at + 7), _LABEL, name)
    yield svg.rect((_LEFT, at, _RIGHT - _LEFT, 14), class_="lane", fill_opacity=0.55)
    yield svg.rect((_LEFT, at, max(width, 0.5), 14), class_=css, rx=2, data_tip=tip)
    yield svg.text((_RIGHT + 8, at + 11), f"{plain(milli / 1000, 1)} · {percent(part)}")


def _held_axis(top: float, total: int, unit: str, bottom: float) -> Iterable[Markup]:
    """Round numbers of units from none to the most that a queue holds."""
    most = top * total / 1000
    step = next(
        (s * 10.0**e for e in range(-3, 9) for s in (1, 2, 5) if most / s / 10.0**e <= 5), most
    )
    for i in range(int(most / step + 1e-9) + 1):
        x = _LEFT + (_RIGHT - _LEFT) * i * step / most
        yield svg.line((x, bottom - 6), (x, bottom), class_="axis")
        yield svg.text((x, bottom + 14), plain(i * step, 3), text_anchor="middle")
    yield svg.x_title((_LEFT + _RIGHT) / 2, bottom + 33, f"held ({unit}s)")


def _shares(answers: Sequence[Answer]) -> Iterable[Table]:
    rows = [
        (
            Cell(share.queue),
            Cell(answer.name),
            *(Cell(percent(v / PPM), v) for v in (share.share, share.ideal, share.distance)),
        )
        for answer in answers
        if answer.result.plan is not None
        for share in answer.result.plan.certificate.shares
    ]
    if rows:
        numbers = ("share", "ideal", "distance")
        caption = "Dominant shares after the plan, and what they would be if tasks could be cut"
        headings = ("queue", "model", *numbers)
        yield Table(caption, headings, rows[:MOST_ROWS], frozenset(numbers), _cut(rows))


# --- how good ------------------------------------------------------------------------------------


def _certificates(answers: Sequence[Answer]) -> Iterable[Table]:
    for answer in answers:
        if answer.result.plan is None:
            continue
        certificate = answer.result.plan.certificate
        rows = [_level_row(level) for level in certificate.levels]
        numbers = ("value", "bound", "gap")
        headings = ("level", "unit", *numbers, "status")
        caption = f"{answer.name}: {certificate.verdict}"
        said = f"Engine: {certificate.engine}. Stopped: {certificate.stopped}."
        if certificate.seconds:
            said += f" {certificate.seconds:.2f} s from the cluster to the verified plan."
        yield Table(caption, headings, rows, frozenset(numbers), said, is_sortable=False)


def _level_row(level: LevelResult) -> tuple[Cell, ...]:
    sign = "≤" if level.sense is Sense.MAX else "≥"
    bound = UNKNOWN if level.bound is None else f"{sign} {plain(level.bound)}"
    gap = UNKNOWN
    if level.bound is not None:
        gap = percent(relative_gap(level.value, level.bound), 2)
    css = "better" if level.status == "OPTIMAL" else ""
    cells = (level.name, level.unit, plain(level.value), bound, gap)
    return (*map(Cell, cells), Cell(level.status.value, css=css))


def _history(number: int, answer: Answer) -> Chart:
    """A panel for each level: values found and bounds proved, as the search went on."""
    levels, time = _levels_of(answer), _time_of(answer)
    shown = list(levels.items())[:MOST_LEVELS]
    name, bottom = f"search-{number}", 8 + (_PANEL + 18) * len(shown)
    parts = list(_seconds_axis(time, bottom))
    for i, (level, steps) in enumerate(shown):
        parts += _panel(level, steps, time.end, 8 + i * (_PANEL + 18))
    note = ""
    if len(levels) > MOST_LEVELS:
        note = f"The first {MOST_LEVELS} of {len(levels)} levels and searches."
    if answer.result.parameters.is_deterministic:
        note = f"Seconds of solver work, not of a clock. {note}".strip()
    drawing = svg.drawing(name, bottom + 42, "Values and bounds of each level over time", parts)
    keys = [Key("l0", "value found"), Key("l1", "bound proved")]
    title = f"{answer.name}: how each level went"
    rows = [
        (
            Cell(step.level if step.turn == 1 else f"{step.level} ({step.turn})"),
            Cell(f"{step.at_s:.3f}", step.at_s),
            *(Cell(plain(v), v) for v in (step.incumbent, step.bound)),
        )
        for step in answer.result.progress
    ]
    numbers = ("seconds", "value", "bound")
    headings = ("level", *numbers)
    return Chart(
        name,
        title,
        drawing,
        keys,
        [Table("Steps", headings, rows[:MOST_ROWS], frozenset(numbers), _cut(rows))],
        note,
        is_walkable=True,
    )


def _second_x(at_s: float, end_s: float) -> float:
    return round(_LEFT + (_RIGHT - _LEFT) * at_s / end_s, 1)


def _seconds_axis(time: TimeAxis, bottom: float) -> Iterable[Markup]:
    for at_s, words in time.marks:
        x = _second_x(at_s, time.end)
        yield svg.line((x, 8), (x, bottom), class_="grid")
        yield svg.text((x, bottom + 16), words, text_anchor="middle")
    yield svg.x_title((_LEFT + _RIGHT) / 2, bottom + 35, time.title)
    yield svg.y_title(11, (8 + bottom) / 2, "value and bound (unit of the level)")


def _time_of(answer: Answer) -> TimeAxis:
    """Round instants of a search, all in one unit."""
    end_s = max((step.at_s for step in answer.result.progress), default=0.0) or 1.0
    unit, scale = next(
        (u for u in (("min", 60.0), ("s", 1.0), ("ms", 1e-3)) if end_s >= 2 * u[1]), ("µs", 1e-6)
    )
    end = end_s / scale
    step = next(s * 10.0**e for e in range(-6, 12) for s in (1, 2, 5) if end / (s * 10.0**e) <= 6)
    marks = [(i * step * scale, f"{i * step:g}") for i in range(int(end / step + 1e-9) + 1)]
    what = "solver work" if answer.result.parameters.is_deterministic else "time of the solve"
    return TimeAxis(end_s, marks, f"{what} ({unit})")


def _levels_of(answer: Answer) -> dict[str, list[Progress]]:
    """Values and bounds of each level over time, by its name and search."""
    levels: defaultdict[str, list[Progress]] = defaultdict(list)
    for step in answer.result.progress:
        levels[step.level if step.turn == 1 else f"{step.level} ({step.turn})"].append(step)
    return levels


def _gaps(number: int, answer: Answer) -> Chart:
    """The gap of each level over time; gaps are those of the certificate."""
    levels = _levels_of(answer)
    lines, rows = [], []
    for i, (level, steps) in enumerate(list(levels.items())[:MOST_LEVELS]):
        points = [
            (step.at_s, relative_gap(step.incumbent, step.bound))
            for step in steps
            if step.incumbent is not None and step.bound is not None
        ]
        if points:
            lines.append(GapLine(level, f"l{i % 8}", points))
        rows += [
            (Cell(level), Cell(f"{at:.3f}", at), Cell(percent(gap, 2), gap)) for at, gap in points
        ]
    numbers = ("seconds", "gap")
    table = Table("Gaps", ("level", *numbers), rows[:MOST_ROWS], frozenset(numbers), _cut(rows))
    note = "|bound − value| as a part of the value."
    if len(levels) > MOST_LEVELS:
        note += f" The first {MOST_LEVELS} of {len(levels)} levels and searches."
    title = f"{answer.name}: gap of each level"
    return gap_chart(f"gap-{number}", title, lines, _time_of(answer), tables=[table], note=note)


def _panel(title: str, steps: Sequence[Progress], end_s: float, top: float) -> Iterable[Markup]:
    values = [v for s in steps for v in (s.incumbent, s.bound) if v is not None]
    low, high = min(values, default=0), max(values, default=1)
    room = (high - low) or 1

    def y(value: int) -> float:
        return round(top + 8 + (_PANEL - 16) * (1 - (value - low) / room), 1)

    yield svg.rect((_LEFT, top, _RIGHT - _LEFT, _PANEL), class_="lane", fill_opacity=0.55)
    yield svg.label((_LEFT - 8, top + _PANEL / 2), _LABEL - 20, title, css="heading")
    ends = []
    for css, what, of in (
        ("l1", "bound", [(s.at_s, s.bound) for s in steps if s.bound is not None]),
        ("l0", "value", [(s.at_s, s.incumbent) for s in steps if s.incumbent is not None]),
    ):
        if of:
            points = [(_second_x(at, end_s), y(v)) for at, v in of]
            tip = f"{title}: {what} {plain(of[0][1])} at first, {plain(of[-1][1])} in the end"
            yield from _line(points, css, tip)
            ends.append((what, of[-1][1], points[-1][1]))
    yield from _end_words(ends)


def _line(points: Sequence[tuple[float, float]], css: str, tip: str) -> Iterable[Markup]:
    steps = svg.staircase([*points, (_RIGHT, points[-1][1])])
    yield svg.path(steps, class_=css, data_tip=tip)
    for x, height in points:
        yield svg.tag("circle", cx=x, cy=height, r=3, class_=f"q{css[1:]}")


def _end_words(ends: Sequence[tuple[str, int, float]]) -> Iterable[Markup]:
    """The final value and bound, where neither label covers the other."""
    if len({value for _, value, _ in ends}) == 1 < len(ends):
        _, value, height = ends[0]
        yield svg.text((_RIGHT + 8, height + 4), f"{plain(value)}, proved", class_="name")
        return
    heights = [height for _, _, height in ends]
    near = len(ends) == 2 and abs(heights[0] - heights[1]) < 13
    for what, value, height in ends:
        shift = 4.0 if not near else (-3.0 if height == min(heights) else 11.0)
        yield svg.text((_RIGHT + 8, height + shift), f"{what} {plain(value)}")


# --- what waits, and how again -------------------------------------------------------------------


def _reasons_of(plan: PlanDocument) -> dict[str, Reason]:
    return {**plan.pending, **plan.pending_pods}


def _pending(data: PlansData, answers: Sequence[Answer]) -> Iterable[Table]:
    for answer in answers:
        plan = answer.result.plan
        reasons = {} if plan is None else _reasons_of(plan)
        if plan is None or not reasons:
            continue
        rows = [
            (
                Cell(key),
                Cell(data.queue_of.get(key, UNKNOWN)),
                Cell(reason.code.value),
                Cell(reason.message),
            )
            for key, reason in reasons.items()
        ]
        caption = f"{answer.name}: {count_text(len(plan.pending), 'gang')} waiting"
        headings = ("gang or pod", "queue", "reason", "in words")
        yield Table(caption, headings, rows[:MOST_ROWS], note=_cut(rows))


def _provenance(answers: Sequence[Answer]) -> Iterable[Table]:
    first = answers[0].result
    limit_s, gap = first.parameters.time_limit_s, first.parameters.gap
    rows = [
        ("instance", first.instance.path),
        ("SHA-256 of the instance", first.instance.sha256),
        ("time limit", "no clock was read" if limit_s is None else f"{limit_s:g} s"),
        ("gap asked for", "the optimum" if gap is None else percent(gap, 2)),
        ("seed", str(first.parameters.seed)),
        ("workers", str(first.parameters.num_workers)),
        *((f"version of {name}", told) for name, told in first.versions.items()),
    ]
    for answer in answers:
        rows.append((f"command, {answer.name}", " ".join(answer.result.command)))
        rows.append((f"SHA-256 of {answer.name}", answer.result.model.sha256))
        rows.append((f"SHA-256 of the plan, {answer.name}", answer.result.plan_sha256 or UNKNOWN))
    cells = [(Cell(name), Cell(value)) for name, value in rows]
    yield Table("What it is made of", ("what", "value"), cells, is_sortable=False)
