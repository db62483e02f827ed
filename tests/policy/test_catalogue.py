from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent

import pytest

from optsched.cli.base.session_context import plugin_source_of, read_folder
from optsched.plugins.registry import PLUGINS
from optsched.policy import PolicyError, PolicyWatch, Rejected, Reloaded, Unchanged, describe
from optsched.policy.catalogue import ENTRY_POINTS, PluginSource
from optsched.policy.load import load_policy, parse_policy

GOOD = """
    from optsched.plugin import Argument, Kind, Plugin, Rule

    class Quiet(Rule):
        \"\"\"Says nothing.\"\"\"

        name = "quiet"

        def __init__(self, hours):
            if hours > 24:
                raise ValueError(f"a day has no {hours} hours")
            self.hours = hours

    PLUGIN = Plugin(
        "quiet",
        "says nothing",
        (Argument("hours", Kind.WHOLE, 8, "how long"),),
        lambda arguments: Quiet(arguments["hours"]),
    )
"""
CONF = """\
actions: "enqueue, allocate"
tiers:
- plugins:
  - name: gang
  - name: quiet
"""


def shelf(folder: Path, **files: str) -> PluginSource:
    """Return a plugin folder with the given files."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(dedent(text))
    return PluginSource(folder, read_folder)


def told(found: PluginSource, conf: str = CONF) -> str:
    """Return the error about unusable plugins, without their folder."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(conf, "a.conf", found)
    return str(caught.value).replace(f"{found.folder}/", "")


# --- good ones -----------------------------------------------------------------------------------


def test_a_plugin_of_a_folder_is_named_like_any_other(tmp_path: Path) -> None:
    policy = parse_policy(CONF, "a.conf", shelf(tmp_path, quiet=GOOD, _parts="1 / 0"))
    (rule,) = (a for a in policy.rules.active if a.plugin == "quiet")
    assert (rule.rule.hours, rule.tier, rule.origin) == (8, 1, f"{tmp_path}/quiet.py:14")
    assert "quiet  says nothing; from " in describe(policy)
    assert "quiet" not in PLUGINS


def test_its_arguments_are_checked_like_any_other(tmp_path: Path) -> None:
    found = shelf(tmp_path, quiet=GOOD)
    ask = CONF + "    arguments:\n      hours: {}\n"
    policy = parse_policy(ask.format("12"), "a.conf", found)
    assert policy.rules.active[-1].rule.hours == 12
    assert told(found, ask.format("-1")) == dedent(
        """\
        a.conf:7:14: tiers[0].plugins[1].arguments.hours: must be at least 0, not -1
                  hours: -1
                         ^"""
    )
    assert "did you mean `hours`?" in told(found, ask.replace("hours", "hour").format(1))
    assert "quiet.py:14: does not accept these arguments: ValueError: a day has no 30" in told(
        found, ask.format(30)
    )


NESTED = """
    from optsched.plugin import Argument, Kind, Plugin, Rule

    class Told(Rule):
        name = "told"

        def __init__(self, arguments):
            self.arguments = dict(arguments)

    LIMITS = (Argument("cpu", Kind.NUMBER, 80, ""), Argument("mem", Kind.NUMBER, 90, ""))
    PLUGIN = Plugin(
        "quiet",
        "keeps what it is told",
        (
            Argument("limits", Kind.MAPPING, "", "", fields=LIMITS),
            Argument("zone.*", Kind.HOURS, "", ""),
            Argument("names", Kind.NAMES, "", ""),
        ),
        Told,
    )
"""


def test_it_is_built_from_its_own_arguments_with_their_defaults(tmp_path: Path) -> None:
    given = (
        "    arguments:\n      limits: {mem: 50}\n      names: [a, b]\n      zone.x: 1:00-2:00\n"
    )
    policy = parse_policy(CONF + given, "a.conf", shelf(tmp_path, quiet=NESTED))
    assert policy.rules.active[-1].rule.arguments == {
        "limits.cpu": 80,
        "limits.mem": 50,
        "names": "a,b",
        "zone.x": "1:00-2:00",
    }


def test_a_policy_loads_no_code_from_a_folder_that_the_command_line_has_not_named(
    tmp_path: Path,
) -> None:
    """A policy may name a plugin folder, but only the command line can enable it."""
    shelf(tmp_path, quiet="raise SystemExit")
    (tmp_path.parent / "lab.conf").write_text(f"pluginsDir: {tmp_path.name}\n{CONF}")
    path = str(tmp_path.parent / "lab.conf")
    for given in (PluginSource(None, read_folder), PluginSource(tmp_path / "other", read_folder)):
        with pytest.raises(PolicyError, match="only from the folder of --plugins-dir"):
            load_policy(path, Path.read_text, given)
    own = shelf(tmp_path, quiet=GOOD)
    policy = load_policy(path, Path.read_text, own)
    assert policy.rules.find_rule("quiet") is not None


def test_a_policy_that_names_no_plugin_of_a_folder_is_as_without_it(tmp_path: Path) -> None:
    policy = load_policy("volcano-default", Path.read_text, shelf(tmp_path, quiet=GOOD))
    assert policy.rules.find_rule("quiet") is None


# --- entry points --------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that installs a package with a plugin as entry point."""

    def install(text: str, entry: str = "quiet = {module}:PLUGIN") -> PluginSource:
        module = f"quiet_{tmp_path.name.replace('-', '_')}"
        info = tmp_path / "quiet-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{entry.format(module=module)}\n")
        (tmp_path / f"{module}.py").write_text(dedent(text))
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        return plugin_source_of(None)

    return install


def test_a_plugin_of_an_installed_package_is_loaded_once_it_is_named(package) -> None:
    found = package(GOOD)
    assert [e.name for e in entry_points(group=ENTRY_POINTS)] == ["quiet"]
    policy = parse_policy(CONF, "a.conf", found)
    assert policy.rules.active[-1].origin.startswith("entry point quiet_")


def test_a_broken_package_harms_only_those_who_name_it(package) -> None:
    found = package("import nowhere_to_be_found")
    load_policy("volcano-default", Path.read_text, found)
    assert "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to" in told(found)


def test_an_entry_point_is_called_as_its_plugin_is(package) -> None:
    found = package(GOOD, "silent = {module}:PLUGIN")
    text = told(found, CONF.replace("quiet", "silent"))
    assert "the plugin calls itself quiet; both names must be the same" in text


def test_an_entry_point_does_not_stand_in_for_a_plugin_that_comes_along(package) -> None:
    found = package(GOOD, "gang = {module}:PLUGIN")
    (warning,) = parse_policy(CONF.replace("quiet", "drf"), "a.conf", found).warnings
    assert "is ignored: a plugin of optsched has that name" in str(warning)


# --- bad ones ------------------------------------------------------------------------------------

ACCEPTED = "write `PLUGIN = Plugin(name, meaning, arguments, build)`"
BAD = {
    "syntax": (
        "x = 1\ndef f(:\n",
        "bad.py:2:7: is not Python: invalid syntax\n    def f(:\n          ^",
    ),
    "error": (
        "x = 1\ny = x / 0\n",
        "bad.py:2:1: cannot be loaded: ZeroDivisionError: division by zero\n    y = x / 0\n    ^",
    ),
    "exit": ("import sys\nsys.exit(3)\n", "bad.py:2:1: cannot be loaded: SystemExit: 3\n"),
    "import": ("import nowhere_at_all\n", "bad.py:1:1: cannot be loaded: ModuleNotFoundError"),
    "nothing": ("x = 1\n", f"bad.py: defines no PLUGIN; {ACCEPTED}"),
    "class": ("x = 1\nPLUGIN = int\n", f"bad.py:2:1: PLUGIN is of type type; {ACCEPTED}"),
    "built-in": (
        GOOD.replace('"quiet",', '"gang",'),
        "bad.py:14:1: the name gang is taken by a built-in plugin\n"
        "    PLUGIN = Plugin(\n    ^ did you mean `my-gang`?",
    ),
    "alias": (GOOD.replace('"quiet",', '"numaaware",'), "the name numaaware is taken by"),
    "job": (GOOD.replace('"quiet",', '"svc",'), "the name svc is taken by"),
    "name": (
        GOOD.replace('"quiet",', '"Quiet Hours",'),
        "a plugin cannot be called 'Quiet Hours'; write lower-case words with hyphens "
        "between them\n    PLUGIN = Plugin(\n    ^ did you mean `quiet-hours`?",
    ),
    "meaning": (GOOD.replace('"says nothing"', '""'), "a plugin needs a meaning"),
    "build": (GOOD.replace("lambda arguments: Quiet", "3 and 4 or "), "build must be a function"),
    "arguments": (GOOD.replace("(Argument(", '("hours", Argument('), "must be an Argument"),
    "twice": (
        GOOD.replace("(Argument", '(Argument("hours", Kind.TEXT, "", ""), Argument'),
        "the argument hours is declared twice",
    ),
    "no rule": (
        GOOD.replace("lambda arguments: Quiet(arguments", "lambda arguments: (arguments")
        .replace('["hours"])', '["hours"],)'),
        'plugin quiet of bad.py:14: build returned int, not Rules',
    ),
    "no list": (
        GOOD.replace("lambda arguments: Quiet(arguments", "lambda arguments: id(arguments"),
        "plugin quiet of bad.py:14: build returned int, not Rules",
    ),
    "rule name": (
        GOOD.replace('name = "quiet"', 'name = "drf"'),
        "the rule name drf is taken by a built-in rule",
    ),
    "no rule name": (GOOD.replace('name = "quiet"', ""), "Quiet needs a name of lower-case words"),
    "inner face": (
        GOOD.replace('name = "quiet"', 'name = "quiet"\n        def blockers(self, p, c): pass'),
        "Quiet overrides blockers, which a custom plugin must not override",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_what_can_not_be_loaded_is_told_with_its_place(
    tmp_path: Path, text: str, message: str
) -> None:
    assert message in told(shelf(tmp_path, bad=text))


def test_all_bad_files_are_told_at_once(tmp_path: Path) -> None:
    text = told(shelf(tmp_path, a="x = ", b="y", c=GOOD))
    assert "a.py:1" in text
    assert "b.py:1" in text
    assert text.endswith("2 errors")


def test_two_files_can_not_share_a_name(tmp_path: Path) -> None:
    text = told(shelf(tmp_path, a=GOOD, b=GOOD))
    assert "b.py:14:1: the name quiet is taken by a.py:14" in text


def test_two_plugins_can_not_share_a_rule(tmp_path: Path) -> None:
    other = GOOD.replace('"quiet",', '"still",')
    text = told(shelf(tmp_path, a=GOOD, b=other), CONF + "  - name: still\n")
    assert "plugin still of b.py:14: the rule name quiet is taken by plugin quiet" in text


def test_a_plugin_can_not_have_two_rules_of_one_name(tmp_path: Path) -> None:
    twice = GOOD.replace('Quiet(arguments["hours"])', "(Quiet(1), Quiet(2))")
    assert "two of its rules are called quiet" in told(shelf(tmp_path, a=twice))


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert told(PluginSource(tmp_path / "none", read_folder)).endswith(
        "none: there is no such folder of plugins"
    )


# --- while the scheduler runs --------------------------------------------------------------------


def test_a_changed_plugin_is_loaded_again_and_a_broken_one_is_not(tmp_path: Path) -> None:
    found = shelf(tmp_path, quiet=GOOD)
    conf = tmp_path / "a.conf"
    conf.write_text(CONF)
    watch = PolicyWatch(str(conf), Path.read_text, found)
    first = watch.policy
    assert watch.poll() == Unchanged()

    shelf(tmp_path, quiet=GOOD.replace("8,", "9,"))
    change = watch.poll()
    assert isinstance(change, Reloaded)
    assert change.policy.rules.active[-1].rule.hours == 9
    assert first.rules.active[-1].rule.hours == 8

    shelf(tmp_path, quiet="PLUGIN = ")
    rejected = watch.poll()
    assert isinstance(rejected, Rejected)
    assert "quiet.py:1" in str(rejected.problems[0])
    assert watch.policy is change.policy
    assert watch.poll() == Unchanged()

    shelf(tmp_path, quiet=GOOD)
    assert isinstance(watch.poll(), Reloaded)
