"""Options of all commands have one form and one meaning, except for those of Volcano's scripts."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from typing import Final

import click
import pytest
from click.testing import CliRunner

from optsched.api.kinds import JOB_FLOW
from optsched.cli.base.options import FORMATS, WholeNumber, current_names
from optsched.cli.base.path_arguments import Source
from optsched.cli.commands import SHORT_FORMS, VOLCANO_FORMS, all_commands
from optsched.cli.main import main
from tests.cli.clusters import FakeCluster, job, optsched, queue
from tests.cli.test_flows import obj
from tests.support.pages import ROOT

COMMANDS: Final = dict(all_commands())
OPTIONS: Final = [
    (name, param)
    for name, command in COMMANDS.items()
    for param in command.params
    if isinstance(param, click.Option)
]
EXCEPTIONS: Final = {(form, name) for form, names in VOLCANO_FORMS for name in names}
TRACE: Final = ROOT / "instances" / "traces" / "failures.yaml"
PACKING: Final = ROOT / "instances" / "examples" / "packing.yaml"
EMPTY_PATH: Final = "Error: the path is empty: name a file or folder, or omit the option"
SEVERAL: Final = {
    "--nodes": "a number of `local up`, a file of nodes of traces",
    "--resume": "a switch of `simulate`, which has its folder, and the result that `solve` reads",
}
"""Long forms whose values are of more than one kind, and why."""


def test_a_short_form_means_one_thing_in_every_command() -> None:
    found = {(short, name) for name, option in OPTIONS for short in option.opts if short[1] != "-"}
    assert {short for short, _ in found} | {"-h"} == set(SHORT_FORMS)
    for name, option in OPTIONS:
        for short in option.opts:
            if short[1] != "-" and (short, name) not in EXCEPTIONS:
                longs = [*option.opts]
                if short == "-n" and longs == ["-n"]:
                    longs += ["--namespace"] if option.name == "short" else []
                assert SHORT_FORMS[short] in longs, (name, short)


def test_every_exception_is_there_and_is_one() -> None:
    for form, name in EXCEPTIONS:
        (option,) = (o for n, o in OPTIONS if n == name and form in o.opts)
        assert SHORT_FORMS[form] not in option.opts, (form, name)
    assert {form for form, _ in EXCEPTIONS} == {"-n", "-N", "-S"}


def kind_of(option: click.Option) -> str:
    """Return the kind of value that an option takes, as a user sees it."""
    if option.is_flag:
        return "switch"
    names = {"directory": "path", "file": "path", "text": "text", "integer range": "number"}
    name = "choice" if isinstance(option.type, click.Choice) else option.type.name
    return names.get(name, name)


def test_a_long_form_has_values_of_one_kind() -> None:
    kinds: dict[str, set[str]] = defaultdict(set)
    for _, option in OPTIONS:
        for form in current_names(option):
            if form.startswith("--"):
                kinds[form].add(kind_of(option))
    several = {form for form, found in kinds.items() if len(found) > 1}
    assert several - {"--plugins-dir"} == set(SEVERAL)


def test_output_is_a_form_of_printing_in_every_command() -> None:
    for name, option in OPTIONS:
        if {"-o", "--output"} & set(option.opts):
            assert {"-o", "--output"} <= set(current_names(option)), name
            assert isinstance(option.type, click.Choice), name
            assert set(option.type.choices) <= {*FORMATS, "csv"}, name
            assert option.default in ("table", "yaml"), name


def test_solver_is_one_of_two_in_every_command() -> None:
    solvers = [(n, list(o.type.choices)) for n, o in OPTIONS if "--solver" in o.opts]
    assert {name for name, _ in solvers} == {"compare", "scheduler", "simulate", "solve", "what-if"}
    assert {tuple(choices) for _, choices in solvers} == {("cpsat", "none")}


def test_commands_that_ask_a_cluster_find_it_the_same_way() -> None:
    forms = defaultdict(set)
    for name, option in OPTIONS:
        forms[name] |= set(option.opts)
    asking = {name for name, found in forms.items() if "--kubeconfig" in found}
    processes = {"scheduler", "controllers", "webhook"}
    assert processes < asking
    for name in asking - processes:
        assert {"-k", "--kubeconfig", "-s", "--master"} <= forms[name], name


def test_every_program_that_is_installed_is_on_the_page() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    old = {n for n, place in scripts.items() if place.startswith("optsched.cli.legacy:")}
    assert old == {name for name in COMMANDS if name in old}


# --- mistyped words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("jobs list", "There is no command 'jobs'. Did you mean job?"),
        ("Queue list", "There is no command 'Queue'. Did you mean queue?"),
        ("slove x", "There is no command 'slove'. Did you mean solve?"),
        ("explain one", "There is no command 'explain'. Did you mean job explain?"),
        ("apply -f x", "There is no command 'apply'. Did you mean job run?"),
        (
            "describe one",
            "no command 'describe'. Did you mean jobflow describe or jobtemplate describe?",
        ),
        (
            "List",
            "Did you mean job list, jobflow list, jobtemplate list, pod list or queue list?",
        ),
        ("job lst", "There is no command 'lst'. Did you mean list?"),
        ("job get one", "There is no command 'get'. Did you mean view?"),
        ("job submit", "There is no command 'submit'. Did you mean run?"),
        ("job cancel one", "There is no command 'cancel'. Did you mean delete?"),
        ("queue describe one", "There is no command 'describe'. Did you mean get?"),
        ("queue opperate", "There is no command 'opperate'. Did you mean operate?"),
        ("queue frob", "There is no command 'frob'. There are create, delete, get, list, operate."),
        ("jobflow crate", "There is no command 'crate'. Did you mean create?"),
        ("pod ls", "There is no command 'ls'. Did you mean list?"),
        ("local upp", "There is no command 'upp'. Did you mean up?"),
        ("job list --namespce x", "'--namespace'"),
        ("solve x --modle y", "'--model'"),
        ("solve a.vbp --time-limt 3", "Did you mean '--time-limit'?"),
        ("local up --kube-schduler", "'--kube-scheduler'"),
        ("job list -o jsn", "'-o' / '--output': 'jsn' is not one of 'table', 'wide'"),
    ],
)
def test_what_was_meant_is_named_at_every_level(cluster: FakeCluster, line: str, hint: str) -> None:
    result = optsched(*line.split())
    assert (result.exit_code, cluster.calls) == (2, [])
    assert hint in result.stderr


# --- -n, -N and --namespace ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("job view one", "job view -N one", "job view -n one", "job view -N one -n team-a"),
        *("job view one --namespace team-a", "job view -n one --namespace team-a"),
        *("jobflow get one -n team-a", "jobflow describe -n team-a", "jobflow get -n one"),
        *("queue get one", "queue get -N one", "queue get --name one", "queue get -n one"),
        *("jobflow delete -n one", "jobflow delete one -n team-a", "jobflow delete -N one"),
        *("jobflow delete -n one --namespace team-a",),
    ],
)
def test_names_and_namespaces_of_every_form(cluster: FakeCluster, line: str) -> None:
    for each in (job("one"), queue("one"), obj(JOB_FLOW, "one")):
        cluster.put(each)
    result = optsched(*line.split(), "-o", "name")
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip().endswith("/one")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("jobflow delete --namespace team-a", "a name is missing"),
        ("job view --namespace team-a", "a name is missing"),
        ("job view one -N two", "two names are given: one and two"),
        ("job view one -n a --namespace b", "two namespaces are given: a and b"),
        ("queue get one -n two", "two names are given: one and two"),
        ("jobflow describe -n a --namespace b", "two namespaces are given: a and b"),
        ("job view ..", "'..' is not an object name"),
        ("job delete .", "'.' is not an object name"),
        ("job view a/b", "'a/b' is not an object name"),
        ("job delete -n ../x", "'../x' is not an object name"),
        ("job list -n a%2fb", "'a%2fb' is not an object name"),
        ("queue delete ..", "'..' is not an object name"),
        ("jobflow describe -n ..", "'..' is not an object name"),
        ("pod list -n ..", "'..' is not an object name"),
    ],
)
def test_names_that_are_none_ask_for_nothing(
    cluster: FakeCluster, line: str, sentence: str
) -> None:
    result = optsched(*line.split())
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.stderr.split())
    assert cluster.calls == []


def test_former_names_of_options_are_understood_and_not_shown(cluster: FakeCluster) -> None:
    cluster.put(job("one"))
    assert optsched("job", "list", "--format", "name").stdout == "job.batch.volcano.sh/one\n"
    assert "--format" not in optsched("job", "list", "--help").stdout
    assert "--scheduler" not in optsched("local", "up", "--help").stdout
    up = {form for _, o in OPTIONS if o.name == "scheduler" for form in o.opts}
    assert {"--scheduler", "--kube-scheduler"} <= up


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "queue operate one",
            "the option -a / --action is missing: write one of open, close, update",
        ),
        ("queue get", "a name is missing: write the queue's name after the command, or after -N"),
        ("solve", "the argument INSTANCE is missing"),
        ("completion", "the argument SHELL is missing: write one of bash, zsh, fish"),
        ("compare x.yaml", "x.yaml: there is no such file or folder"),
        ("queue get a b", "Got unexpected extra argument (b)"),
        ("queue get --nme a", "No such option '--nme'. Did you mean '--master' or '--name'?"),
        ("queue operate one -a", "Option '-a' requires an argument."),
        ("solve --solver glpk x", "Invalid value for '--solver': 'glpk' is not one of"),
        (
            "queue create q -w x",
            "Invalid value for '-w' / '--weight': 'x' is not a",
        ),
        (
            "queue create q --priority 3000000000",
            "Invalid value for '--priority': 3000000000 is",
        ),
        ("job run j -r 3000000000", "Invalid value for '-r' / '--replicas': 3000000000 is not in"),
        (
            "completion tcsh",
            "Invalid value for 'SHELL': 'tcsh' is not one of 'bash',",
        ),
        ("queue create q --capability cpus=4", "Invalid value for '--capability': 'cpus' is no"),
        ("scheduler --frobnicate", "No such option '--frobnicate'"),
        ("--frobnicate", "No such option '--frobnicate'"),
    ],
)
def test_wrong_usage_is_one_sentence(line: str, sentence: str) -> None:
    result = CliRunner().invoke(main, line.split(), prog_name="optsched")
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert told.startswith(f"Error: {sentence}")


@pytest.mark.parametrize(
    ("option", "accepted"),
    [
        ("simulate gavel: --seed", "write one from 0 to 2147483647"),
        ("queue create q --weight", "write one from 1 to 65535"),
        ("compare gavel: --model crater --workers", "write 0 or more"),
        ("scheduler --v", "write 0 or more"),
    ],
)
def test_what_is_no_whole_number_says_which_are_taken(option: str, accepted: str) -> None:
    result = CliRunner().invoke(main, [*option.split(), "0.5"], prog_name="optsched")
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert told.endswith(f"'0.5' is not a whole number: {accepted}")


@pytest.mark.parametrize("command", ["simulate", "what-if -f"])
def test_a_command_that_takes_one_model_refuses_several(command: str) -> None:
    line = [*command.split(), str(TRACE), "--model", "crater", "--model", "volcano-default"]
    result = CliRunner().invoke(main, line, prog_name="optsched")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: Invalid value for '--model': only one model is accepted, 2 are given (crater, "
        "volcano-default): give one, or try optsched compare\n"
    )


@pytest.mark.parametrize("command", ["solve", "simulate", "compare"])
def test_an_unknown_model_is_one_sentence(command: str) -> None:
    given = PACKING if command == "solve" else TRACE
    line = [command, str(given), "--model", "NOSUCH"]
    result = CliRunner().invoke(main, line, prog_name="optsched")
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert told.startswith("NOSUCH: there is no such model or file; the shipped models are")


def test_wrong_usage_without_accepted_values_names_the_help() -> None:
    result = CliRunner().invoke(main, ["job", "run"], prog_name="optsched")
    assert result.stderr.endswith(" (see optsched job run --help)\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("scheduler --scheduler-name=", "the name is empty"),
        ("controllers --scheduler-name=", "the name is empty"),
        ("webhook --scheduler-name=", "the name is empty"),
        ("scheduler --default-queue=a\tb", "is not a valid name"),
        (f"controllers --default-queue={'x' * 300}", "the name has 300 characters"),
        ("controllers --controllers=", "no controller is selected"),
        (
            "scheduler --default-queue=[/b]",
            "'[/b]' is not a valid name: use at most 253 lower-case",
        ),
        ("scheduler --lock-namespace=", "the name is empty"),
        (
            "controllers --lock-namespace=../x",
            "'../x' is not a valid name: use at most 253 lower-case",
        ),
        ("controllers --lock-name=größe", "'größe' is not a lease name: use at most 253"),
        ("scheduler --scheduler-name=a/b", "'a/b' is not a lease name: use at most 253"),
        ("controllers --config-map=https://example.org/a", "write NAMESPACE/NAME"),
        ("scheduler --sharding-name=", "the name is empty"),
        ("scheduler --tenant-priority-class=A", "'A' is not a valid name"),
        ("scheduler --device-scheduler=", "the name is empty"),
        ("scheduler --node-selector=https://x/a", "'https://x/a': write LABEL:VALUE"),
        ("scheduler --listen-address=größe:80", "'größe:80' is not an address"),
        (f"scheduler --listen-address={'x' * 300}:80", "is not an address"),
        (f"scheduler --listen-address=:{'9' * 5000}", "is not an address"),
        ("webhook --webhook-namespace=a/b", "'a/b' is not a valid name"),
        ("webhook --webhook-service-name=", "the name is empty"),
        ("webhook --secret-name=-", "'-' is not a valid name"),
        ("webhook --webhook-url=http://10.0.0.1", "is not a webhook address"),
        ("webhook --webhook-url=10.0.0.1:8443", "is not a webhook address"),
        ("webhook --webhook-url=https://a?b", "is not a webhook address"),
        ("webhook --bind-address=1:2", "'1:2': write an IP address or a DNS name"),
        ("webhook --port=-1", "-1 is not in the range"),
        ("webhook --port=99999", "99999 is not in the range"),
        ("webhook --max-queue-depth=0", "0 is not in the range"),
        ("webhook --tenant-annotation=a\tb", "'a\\tb' is not a valid name"),
        ("webhook --trusted-user=", "the name is empty"),
        ("webhook --ca-cert-file=x", "--ca-cert-file needs --tls-cert-file"),
        (
            "compare {trace} --model crater --seeds 0-999999999999",
            "at most 10000 seeds",
        ),
        (f"compare {{trace}} --model crater --seeds {'9' * 5000}", "at most 18 digits"),
    ],
)
def test_values_that_nothing_can_have_are_refused(line: str, message: str) -> None:
    result = CliRunner().invoke(main, line.format(trace=TRACE).split(" "))
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert message in told


PATHS: Final = [
    pytest.param(name, option, path, id=f"{name} {option.opts[-1]}-{path!r}")
    for name, option in OPTIONS
    if isinstance(option.type, (click.Path, Source))
    for path in ("", "a\0b")
]


@pytest.mark.parametrize(("name", "option", "path"), PATHS)
def test_paths_that_name_no_file_are_refused(name: str, option: click.Option, path: str) -> None:
    form = next(each for each in option.opts if each.startswith("--"))
    result = CliRunner().invoke(main, [*name.split(), form, path])
    assert (result.exit_code, result.stdout) == (2, "")
    (told,) = result.stderr.splitlines()
    assert told == (r"Error: 'a\x00b': is not a path: it contains a NUL" if path else EMPTY_PATH)


def test_a_model_has_a_name() -> None:
    result = CliRunner().invoke(main, ["solve", str(PACKING), "--model", ""])
    assert result.exit_code == 2
    assert "the name of the model is empty: write one of" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "text", ["1_0", "１０", "\u0661", "1.0", "0x1", "", "-", "9 9", "9" * 5000]
)
def test_a_whole_number_has_the_digits_0_to_9(text: str) -> None:
    kinds = {
        type(o.type)
        for _, o in OPTIONS
        if isinstance(o.type, (click.IntRange, click.types.IntParamType))
    }
    assert kinds == {WholeNumber}
    with pytest.raises(click.BadParameter, match="is not a valid integer"):
        WholeNumber(0, 99).convert(text, None, None)
    done = CliRunner().invoke(main, ["simulate", str(TRACE), "--seed", text])
    assert done.exit_code == 2
    assert f"{text!r} is not a whole number: write one from 0" in " ".join(done.output.split())


def test_a_whole_number_is_read_within_its_range() -> None:
    assert [WholeNumber(0, 99).convert(each, None, None) for each in ("7", "+7", 7)] == [7] * 3
    with pytest.raises(click.BadParameter, match="range"):
        WholeNumber(0, 99).convert("100", None, None)


@pytest.mark.parametrize("text", ["1_0", "１", "0-４"])
def test_seeds_have_the_digits_0_to_9(text: str) -> None:
    done = CliRunner().invoke(main, ["compare", str(TRACE), "--seeds", text])
    assert done.exit_code == 2
    assert "write numbers or ranges" in " ".join(done.output.split())
