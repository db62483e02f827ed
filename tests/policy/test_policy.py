from __future__ import annotations

from optsched.policy import SolverKind, describe, parse_policy, without_solver

TEXT = """\
actions: "enqueue, allocate, reclaim"
tiers:
- plugins:
  - name: gang
    enablePreemptable: false
- plugins:
  - name: capacity
    enableHierarchy: true
  - name: sla
  - name: binpack
    arguments:
      binpack.weight: 3
metrics:
  elasticsearch.password: secret
"""


def test_a_policy_can_be_read_in_words() -> None:
    policy = parse_policy(TEXT, "conf/scheduler.conf")
    assert describe(policy) == (
        "scheduler.conf (conf/scheduler.conf)\n"
        "\n"
        "actions    enqueue, allocate, reclaim\n"
        "tier 1     gang      gangs start together or not at all; enablePreemptable: false\n"
        "tier 2     capacity  queues deserve fixed shares and may borrow more; "
        "enableHierarchy: true\n"
        "           sla       orders gangs by the end of their maximum waiting time\n"
        "           binpack   fills nodes that are in use; binpack.weight = 3\n"
        "levels     1. guarantee   guaranteed resources that queues request but lack\n"
        "           2. admission   gangs that start, from the highest priority to the lowest\n"
        "           3. fair-share  how far queues and gangs are below their fair shares\n"
        "           4. tasks       tasks beyond the minimum, from the highest priority to the "
        "lowest\n"
        "           5. node-score  scores of the chosen nodes\n"
        "admission  one level for each priority, the highest first\n"
        "solver     CP-SAT, up to 400ms per session\n"
        "period     1s\n"
        "starvation after 1m0s\n"
        "reserved   for up to 4 gangs"
    )


def test_without_solver_changes_nothing_else() -> None:
    policy = parse_policy(TEXT, "scheduler.conf")
    greedy = without_solver(policy)
    assert (policy.solver, greedy.solver) == (SolverKind.CPSAT, SolverKind.NONE)
    assert greedy.rules is policy.rules
    assert greedy.levels == policy.levels
    assert "none; the greedy pipeline decides" in describe(greedy)
