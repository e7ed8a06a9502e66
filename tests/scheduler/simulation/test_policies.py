"""What holds for the collection of policies: each tells its rules and sources, and all are judged on equal terms."""

import re
import sys

import pytest

from hypnos_engine.scheduler import effects as fx
from hypnos_engine.scheduler.core import Scheduler
from hypnos_engine.scheduler.simulation.policies.catalog import OWN, POLICIES
from tests.scheduler.simulation.bench import LIMITS, Watched, ask, pool, run, specs

OTHERS = [name for name in POLICIES if name != OWN]


def test_the_programs_own_scheduler_is_the_real_one() -> None:
    assert isinstance(POLICIES[OWN](specs(pool({"a": 1})), LIMITS), Scheduler)


@pytest.mark.parametrize("name", OTHERS)
def test_each_of_the_others_numbers_its_rules_and_names_its_sources(name: str) -> None:
    said = sys.modules[POLICIES[name].__module__].__doc__ or ""
    rules = [int(number) for number in re.findall(r"^(\d)\. ", said, re.MULTILINE)]
    assert rules == list(range(1, len(rules) + 1))
    assert len(rules) >= 5
    assert re.search(r"^Sources?: \w+", said, re.MULTILINE)


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_model_alone_on_the_same_machine_is_planned_alike(name: str) -> None:
    models = pool({"a": 4})
    plans: dict[str, object] = {}
    for policy in (name, OWN):
        watched = Watched(POLICIES[policy](specs(models), LIMITS))
        run([ask("r", "a")], models, watched)
        (plans[policy],) = [effect.plan for _, effect in watched.effects if isinstance(effect, fx.Load)]
    assert plans[name] == plans[OWN]


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_can_be_asked_about_a_pool_that_nobody_uses(name: str) -> None:
    result = run([], pool({"a": 1}), POLICIES[name](specs(pool({"a": 1})), LIMITS))
    assert (result.end_s, result.loads, result.wait.mean_s) == (0.0, 0, 0.0)
