"""Chat templates are strangers' programs: what they may do, how long, and how their refusals reach the client."""

import re

import pytest

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.workers.llama.template import ChatTemplate, TemplateTimeout, within

USER = ({"role": "user", "content": "Hello"},)


def _render(source: str, *, limit_s: float = 5.0, thinking: bool = False) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>", limit_s=limit_s).render(USER, thinking=thinking)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{% for x in messages %}\n  {% if true %}\n{{ x.role }}\n{% endif %}{% endfor %}", "<s>user\n"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% generation %}kept{% endgeneration %}", "kept"),
        ("{{ {'a': '<ü>'} | tojson }}", '{"a": "<ü>"}'),
        ("{{ messages[0].content | trim }}{{ add_generation_prompt }}", "HelloTrue"),
        ("{{ enable_thinking }}{{ tools is defined }}", "FalseFalse"),
        ("{{ 'ab' * 3 }}{{ 2 ** 3 }}{{ '%03d' % 7 }}{{ 'a' + 'b' }}", "ababab8007ab"),
    ],
)
def test_what_templates_use_works(source: str, expected: str) -> None:
    assert _render(source) == expected


def test_the_date_is_there() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", _render("{{ strftime_now('%Y-%m-%d') }}"))


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{{ m(n) if false }}{% for i in range(99999) %}{{ loop.index }}{% endfor %}{% endmacro %}"
        "{% for i in range(99999) %}{% set x = m(i) %}{% endfor %}",
    ],
)
def test_an_endless_template_is_interrupted(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"needs more than 0\.3 s"):
        _render(source, limit_s=0.3)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 999999999 }}",
        "{{ [0] * 999999999 }}",
        "{{ 999999999 * 'x' }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ range(999999999) | list }}",
        "{% set ns = namespace(s='x' * 1000000) %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ undefined_thing.attribute }}",
        "{% include 'file' %}",
        "{% if %}",
        "{{ 'unclosed",
    ],
)
def test_what_a_template_may_not_do_is_the_requests_error(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template"):
        _render(source)


def test_a_template_may_refuse_with_its_own_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate"):
        _render("{{ raise_exception('roles must alternate') }}")


def test_work_that_ends_in_time_is_left_alone() -> None:
    assert within(5.0, lambda: "done") == "done"


def test_work_is_interrupted_in_the_middle() -> None:
    def forever() -> str:
        while True:
            pass

    with pytest.raises(TemplateTimeout):
        within(0.05, forever)
