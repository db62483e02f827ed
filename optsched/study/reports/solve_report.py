"""The HTML report on a solve: the plans of one or more models for the same cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.decisions import PPM, Sense, relative_gap
from optsched.study.reports import svg
from optsched.study.reports.curves_view import GapLine, TimeAxis, gap_chart
from optsched.study.reports.model_tables import model_section
from optsched.study.reports.number_text import UNKNOWN, count_text, percent, plain, shorten
from optsched.study.reports.page import Cell, Chart, Key, Page, Section, Table, cap_rows
from optsched.study.reports.plans_view import BEFORE, PlansData, plan_film

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from markupsafe import Markup

    from optsched.cluster.decisions import Progress
    from optsched.cluster.snapshot import Snapshot
    from optsched.formats.solve_result import SolveResult
    from optsched.study.comparison.plan_measures import PlanMeasures

MOST_LEVELS: Final = 12
_LABEL: Final = 176.0
_PANEL: Final = 92.0
_LEFT, _RIGHT = 190.0, svg.WIDTH - 130.0


@dataclass(frozen=True)
class SolvedModel:
    """The solve result under one model, with the model's definition and the plan's measures."""

    result: SolveResult
    definition: Mapping[str, Any]
    measures: PlanMeasures

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.result.model.name


def solve_page(
    snapshot: Snapshot, solved_models: Sequence[SolvedModel], base: Mapping[str, Any]
) -> Page:
    """Return the report page with the plans and certificates of one or more models.

    `base` is the definition of the model with which a single model is compared.
    """
    tasks = [task for gang in snapshot.gangs for task in gang.tasks]
    sharing = [t.key for t in tasks if any(not request.npu for request in t.shape.shared_gpus)]
    warnings: list[str] = []
    for solved in solved_models:
        plan = solved.result.plan
        if plan is None:
            warnings.append(f"{solved.name}: there is no plan.")
        elif uncounted := [k for k in sharing if k in plan.binds and k not in plan.shared_gpus]:
            warnings.append(
                f"{solved.name}: the policy has no plugin deviceshare to assign the GPU shares of "
                f"{count_text(len(uncounted), 'pod')}; the GPUs held do not include them."
            )
        if solved.result.is_partial:
            ended = solved.result.ended.value
            warnings.append(f"{solved.name}: ended by {ended}; a better plan or bound may exist.")
    plans = {a.name: a.result.plan for a in solved_models if a.result.plan is not None}
    data = PlansData(snapshot, plans)
    names = ", ".join(a.name for a in solved_models)
    nodes, gangs = count_text(len(snapshot.nodes), "node"), count_text(len(snapshot.gangs), "gang")
    title = shorten(solved_models[0].result.instance.path.rpartition("/")[2], 60)
    first, of = solved_models[0], f", {solved_models[0].name}" if len(solved_models) > 1 else ""
    facts = [
        (f"gangs placed{of}", plain(first.measures.gangs)),
        (f"gangs waiting{of}", plain(first.measures.waiting)),
    ]
    if first.measures.allocation is not None:
        facts.append((f"allocation{of}", percent(first.measures.allocation)))
    if first.result.plan is not None:
        facts.append((f"proved{of}", "yes" if first.result.plan.certificate.is_proved else "no"))
    facts.append(("seed", str(first.result.parameters.seed)))
    facts.append(("optsched", str(first.result.versions.get("optsched", UNKNOWN))))
    return Page(
        f"Plan for {title}",
        f"{gangs} and {nodes}, decided by {names}",
        facts,
        list(_sections(data, solved_models, base)),
        warnings,
    )


def _sections(
    data: PlansData, solved_models: Sequence[SolvedModel], base: Mapping[str, Any]
) -> Iterable[Section]:
    yield _pending_section(data)
    if len(solved_models) > 1:
        rows = []
        for title, name, is_part in _MEASURES:
            values = [getattr(solved.measures, name) for solved in solved_models]
            if any(value is not None for value in values):
                cells = (Cell(percent(v) if is_part else plain(v), v) for v in values)
                rows.append((Cell(title), *cells))
        names = [solved.name for solved in solved_models]
        table = Table("Figures of the plans", ("figure", *names), rows, names)
        yield Section("figures", "Models side by side", [table])
    if data.snapshot.nodes:
        yield Section("nodes", "Nodes", [plan_film(data), *_placement_tables(data)])
    if data.colour_of:
        shown: list[Chart | Table] = [_queue_chart(data)]
        shares = [
            (
                *map(Cell, (share.queue, name)),
                *(Cell(percent(v / PPM), v) for v in (share.share, share.ideal, share.distance)),
            )
            for name, plan in data.plans.items()
            for share in plan.certificate.shares
        ]
        if shares:
            numbers = ("share", "ideal", "distance")
            caption = "Dominant shares after the plan, and ideal shares if tasks were divisible"
            shown.append(cap_rows(caption, ("queue", "model", *numbers), shares, numbers))
        yield Section("queues", "Queues", shown)
    yield Section("certificate", "Certificate", list(_certificate_tables(data)))
    searched = [
        chart
        for i, solved in enumerate(solved_models)
        if solved.result.progress
        for chart in _search_charts(i, solved)
    ]
    if searched:
        yield Section("search", "Gap, value and bound over time", searched)
    yield model_section([solved.definition for solved in solved_models], base)
    yield Section("again", "How to reproduce this", [_provenance_table(solved_models)])


_MEASURES: Final = (
    ("gangs started", "gangs", False),
    ("pods placed", "pods", False),
    ("pods nominated", "nominated", False),
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
    ("largest gap", "gap", True),
)


# --- waiting gangs and placements ----------------------------------------------------------------


def _pending_section(data: PlansData) -> Section:
    tables, idle = [], []
    for name, plan in data.plans.items():
        reasons = {**plan.pending, **plan.pending_pods}
        if not reasons:
            idle.append(f"{name}: no gang waits.")
            continue
        rows = [
            list(
                map(Cell, (key, data.queue_of.get(key, UNKNOWN), reason.code.value, reason.message))
            )
            for key, reason in reasons.items()
        ]
        caption = f"{name}: {count_text(len(plan.pending), 'gang')} waiting"
        tables.append(cap_rows(caption, ("gang or pod", "queue", "reason", "reason in full"), rows))
    return Section("pending", "What waits, and why", tables, idle)


def _placement_tables(data: PlansData) -> Iterable[Table]:
    gang_of = {t.key: g.key for g in data.snapshot.gangs for t in g.tasks}
    gang_of |= {t.key: t.gang for node in data.snapshot.nodes for t in node.residents if t.gang}
    for name, plan in data.plans.items():
        rows: list[Sequence[Cell]] = []
        for binds, mark in ((plan.binds, "placed"), (plan.nominations, "is nominated")):
            by_gang: defaultdict[str, Counter[str]] = defaultdict(Counter)
            for task, node in binds.items():
                by_gang[gang_of.get(task, task)][node] += 1
            for gang, counts in sorted(by_gang.items()):
                where = ", ".join(f"{n} ×{k}" if k > 1 else n for n, k in sorted(counts.items()))
                cells = map(Cell, (gang, data.queue_of.get(gang, UNKNOWN), mark))
                rows.append((*cells, Cell(plain(counts.total()), counts.total()), Cell(where)))
        headings = ("gang", "queue", "what", "pods", "nodes")
        yield cap_rows(f"Placements, {name}", headings, rows, ("pods",))
        if plan.evictions:
            evicted = [
                (e.pod, gang_of.get(e.pod), e.action, e.preemptor, e.to, e.reason or e.plugin)
                for e in plan.evictions
            ]
            rows = [[Cell(words or UNKNOWN) for words in each] for each in evicted]
            columns = ("pod", "gang", "action", "for", "restarts on node", "because")
            yield cap_rows(f"Evictions, {name}", columns, rows)


# --- queues --------------------------------------------------------------------------------------


def _queue_chart(data: PlansData) -> Chart:
    total, unit = data.lanes.total_milli or 1, data.lanes.unit
    held = {name: data.milli_by_queue(name) for name in data.frames}
    top = max((n / total for by in held.values() for n in by.values()), default=0.0) or 1.0
    parts: list[Markup] = []
    rows = []
    at = 6.0
    for queue, colour in data.colour_of.items():
        parts.append(svg.heading(queue, at))
        at += 20
        for name in data.frames:
            height = max(18.0, svg.LINE * len(svg.label_lines(name, _LABEL)) + 4)
            milli, y = held[name][queue], at + (height - 18) / 2
            words, part = plain(milli / 1000, 1), percent(milli / total)
            width = max((_RIGHT - _LEFT) * (milli / total) / top, 0.5)
            css = f"bar wait f{colour}" if name == BEFORE else f"bar f{colour}"
            tip = f"{queue}, {name}: {words} ({part})"
            parts.append(svg.label((_LEFT - 8, y + 7), _LABEL, name))
            parts.append(svg.lane(_LEFT, y, _RIGHT - _LEFT, 14))
            parts.append(svg.rect((_LEFT, y, width, 14), class_=css, rx=2, data_tip=tip))
            parts.append(svg.text((_RIGHT + 8, y + 11), f"{words} · {part}"))
            at += height
        at += 8
        amounts = [held[name][queue] for name in data.frames]
        rows.append((Cell(queue), *(Cell(plain(n / 1000, 1), n) for n in amounts)))
    # Draw axis labels at round numbers, from 0 to the maximum amount that any queue holds.
    most = top * total / 1000
    step = next(
        (s * 10.0**e for e in range(-3, 9) for s in (1, 2, 5) if most / s / 10.0**e <= 5), most
    )
    for i in range(int(most / step + 1e-9) + 1):
        x = _LEFT + (_RIGHT - _LEFT) * i * step / most
        parts.append(svg.line((x, at - 6), (x, at), class_="axis"))
        parts.append(svg.text((x, at + 14), plain(i * step, 3), text_anchor="middle"))
    parts.append(svg.x_title((_LEFT + _RIGHT) / 2, at + 33, f"held ({unit}s)"))
    columns = tuple(data.frames)
    table = Table(f"{unit}s held", ("queue", *columns), rows, columns)
    drawing = svg.drawing("by-queue", at + 42, f"{unit}s held by queue, before and after", parts)
    keys = [*data.legend, Key("f7 wait", "light: before")]
    return Chart("by-queue", f"{unit}s held by queue", drawing, keys, [table], is_walkable=True)


# --- certificates and search ---------------------------------------------------------------------


def _certificate_tables(data: PlansData) -> Iterable[Table]:
    for name, plan in data.plans.items():
        certificate, rows = plan.certificate, []
        for level in certificate.levels:
            sign = "≤" if level.sense is Sense.MAX else "≥"
            bound, gap = UNKNOWN, UNKNOWN
            if level.bound is not None:
                bound = f"{sign} {plain(level.bound)}"
                gap = percent(relative_gap(level.value, level.bound), 2)
            css = "better" if level.status == "OPTIMAL" else ""
            cells = map(Cell, (level.name, level.unit, plain(level.value), bound, gap))
            rows.append((*cells, Cell(level.status.value, css=css)))
        numbers = ("value", "bound", "gap")
        note = f"Engine: {certificate.engine}. Stopped: {certificate.stopped}."
        if certificate.seconds:
            note += f" {certificate.seconds:.2f} s from the snapshot to the verified plan."
        headings = ("level", "unit", *numbers, "status")
        caption = f"{name}: {certificate.verdict}"
        yield Table(caption, headings, rows, numbers, note, is_sortable=False)


def _search_charts(number: int, solved: SolvedModel) -> tuple[Chart, Chart]:
    levels: defaultdict[str, list[Progress]] = defaultdict(list)
    steps: list[tuple[Cell, ...]] = []
    for step in solved.result.progress:
        level = step.level if step.turn == 1 else f"{step.level} ({step.turn})"
        levels[level].append(step)
        cells = (Cell(plain(v), v) for v in (step.incumbent, step.bound))
        steps.append((Cell(level), Cell(f"{step.at_s:.3f}", step.at_s), *cells))
    shown, time = list(levels.items())[:MOST_LEVELS], _time_axis(solved)
    cut = f"The first {MOST_LEVELS} of {len(levels)} levels and searches are shown."
    cut = cut if len(levels) > MOST_LEVELS else ""
    lines, rows = [], []
    for i, (level, found) in enumerate(shown):
        points = [
            (step.at_s, relative_gap(step.incumbent, step.bound))
            for step in found
            if step.incumbent is not None and step.bound is not None
        ]
        if points:
            lines.append(GapLine(level, f"l{i % 8}", points))
        rows += [
            (Cell(level), Cell(f"{at:.3f}", at), Cell(percent(gap, 2), gap)) for at, gap in points
        ]
    numbers = ("seconds", "gap")
    table = cap_rows("Gaps", ("level", *numbers), rows, numbers)
    note = f"Gap: |bound − value| / max(1, |value|). {cut}".strip()
    title = f"{solved.name}: gap of each level"
    gaps = gap_chart(f"gap-{number}", title, lines, time, table, note)

    name, bottom = f"search-{number}", 8 + (_PANEL + 18) * len(shown)
    marks = (
        (round(svg.scale(at_s, time.end, _LEFT, _RIGHT), 1), words) for at_s, words in time.marks
    )
    parts = [
        *svg.x_grid(marks, 8, bottom),
        svg.x_title((_LEFT + _RIGHT) / 2, bottom + 35, time.title),
        svg.y_title(11, (8 + bottom) / 2, "value and bound (unit of the level)"),
    ]
    for i, (level, found) in enumerate(shown):
        parts += _draw_panel(level, found, time.end, 8 + i * (_PANEL + 18))
    if solved.result.parameters.is_deterministic:
        cut = f"Deterministic seconds of solver work, not clock time. {cut}".strip()
    drawing = svg.drawing(name, bottom + 42, "Values and bounds of each level over time", parts)
    keys = [Key("l0", "value found"), Key("l1", "bound proved")]
    columns = ("seconds", "value", "bound")
    table = cap_rows("Steps", ("level", *columns), steps, columns)
    title = f"{solved.name}: value and bound of each level"
    return gaps, Chart(name, title, drawing, keys, [table], cut, is_walkable=True)


def _time_axis(solved: SolvedModel) -> TimeAxis:
    end_s = max((step.at_s for step in solved.result.progress), default=0.0) or 1.0
    unit, scale = next(
        (u for u in (("min", 60.0), ("s", 1.0), ("ms", 1e-3)) if end_s >= 2 * u[1]), ("µs", 1e-6)
    )
    end = end_s / scale
    step = next(s * 10.0**e for e in range(-6, 12) for s in (1, 2, 5) if end / (s * 10.0**e) <= 6)
    marks = [(i * step * scale, f"{i * step:g}") for i in range(int(end / step + 1e-9) + 1)]
    what = "solver work" if solved.result.parameters.is_deterministic else "time of the solve"
    return TimeAxis(end_s, marks, f"{what} ({unit})")


def _draw_panel(
    title: str, steps: Sequence[Progress], end_s: float, top: float
) -> Iterable[Markup]:
    values = [v for s in steps for v in (s.incumbent, s.bound) if v is not None]
    low, high = min(values, default=0), max(values, default=1)
    extent = (high - low) or 1
    yield svg.lane(_LEFT, top, _RIGHT - _LEFT, _PANEL)
    yield svg.label((_LEFT - 8, top + _PANEL / 2), _LABEL - 20, title, css="heading")
    ends: list[tuple[str, int, float]] = []
    for css, what, of in (
        ("1", "bound", [(s.at_s, s.bound) for s in steps if s.bound is not None]),
        ("0", "value", [(s.at_s, s.incumbent) for s in steps if s.incumbent is not None]),
    ):
        if not of:
            continue
        points = [
            (
                round(svg.scale(at, end_s, _LEFT, _RIGHT), 1),
                round(top + 8 + (_PANEL - 16) * (1 - (value - low) / extent), 1),
            )
            for at, value in of
        ]
        tip = f"{title}: {what} {plain(of[0][1])} at the start, {plain(of[-1][1])} at the end"
        line = svg.staircase([*points, (_RIGHT, points[-1][1])])
        yield svg.path(line, class_=f"l{css}", data_tip=tip)
        for x, y in points:
            yield svg.tag("circle", cx=x, cy=y, r=3, class_=f"q{css}")
        ends.append((what, of[-1][1], points[-1][1]))
    # Keep a distance between the labels of the final value and of the final bound.
    if len({value for _, value, _ in ends}) == 1 < len(ends):
        _, value, y = ends[0]
        yield svg.text((_RIGHT + 8, y + 4), f"{plain(value)}, proved", class_="name")
        return
    heights = [y for _, _, y in ends]
    near = len(ends) == 2 and abs(heights[0] - heights[1]) < 13
    for what, value, y in ends:
        shift = 4.0 if not near else (-3.0 if y == min(heights) else 11.0)
        yield svg.text((_RIGHT + 8, y + shift), f"{what} {plain(value)}")


def _provenance_table(solved_models: Sequence[SolvedModel]) -> Table:
    first = solved_models[0].result
    limit_s, gap = first.parameters.time_limit_s, first.parameters.gap
    rows = [
        ("instance", first.instance.path),
        ("SHA-256 of the instance", first.instance.sha256),
        ("time limit", "no clock was read" if limit_s is None else f"{limit_s:g} s"),
        ("requested gap", "the optimum" if gap is None else percent(gap, 2)),
        ("seed", str(first.parameters.seed)),
        ("workers", str(first.parameters.num_workers)),
        *((f"version of {name}", version) for name, version in first.versions.items()),
    ]
    for solved in solved_models:
        rows.append((f"command, {solved.name}", " ".join(solved.result.command)))
        rows.append((f"SHA-256 of {solved.name}", solved.result.model.sha256))
        rows.append((f"SHA-256 of the plan, {solved.name}", solved.result.plan_sha256 or UNKNOWN))
    cells = [(Cell(name), Cell(value)) for name, value in rows]
    return Table("Inputs and versions", ("what", "value"), cells, is_sortable=False)
