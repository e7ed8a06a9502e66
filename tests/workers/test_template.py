"""Chat templates are strangers' programs: what they may do, and how their refusals reach the client."""

import re

import pytest

from hypnos_engine.domain.errors import InvalidRequest
from hypnos_engine.workers.llama.template import ChatTemplate

USER = ({"role": "user", "content": "Hello"},)


def _render(source: str, *, thinking: bool = False) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(USER, thinking=thinking)


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
        ("{{ missing.part['of it'] }}{{ 'a' + missing + none + 'b' }}{{ none + 'c' }}", "abc"),
    ],
)
def test_what_templates_use_works(source: str, expected: str) -> None:
    assert _render(source) == expected


def test_the_date_is_there() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", _render("{{ strftime_now('%Y-%m-%d') }}"))


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
        "{{ undefined_thing + 1 }}",
        "{{ ''.__class__['x'] }}",
        "{{ 'x' + ''.__class__ }}",
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


SYSTEM = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"})
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
SILENT = "{% for x in messages if x.role != 'system' %}"
AS_PARTS = "{% for x in messages %}{{ x.role }}:{% for p in x.content %}{{ p['text'] }};{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for x in messages %}{{ x.content }};{% endfor %}", "Be brief.;Hello;"),
        (NO_SYSTEM + "{% for x in messages %}{{ x.role }}:{{ x.content }};{% endfor %}", "user:Be brief.\nHello;"),
        (SILENT + "{{ x.content }};{% endfor %}", "Be brief.\nHello;"),
        (AS_PARTS, "system:Be brief.;user:Hello;"),
        (NO_SYSTEM + AS_PARTS, "user:Be brief.\nHello;"),
    ],
)
def test_a_template_gets_the_form_that_it_takes(source: str, expected: str) -> None:
    assert ChatTemplate(source, bos="", eos="").render(SYSTEM, thinking=False) == expected


def test_an_empty_answer_may_have_to_be_a_part() -> None:
    source = "{% for x in messages %}{{ raise_exception('empty') if x.content == '' }}{{ x.role }};{% endfor %}"
    turns = [*USER, {"role": "assistant", "content": ""}, *USER]
    assert ChatTemplate(source, bos="", eos="").render(turns, thinking=False) == "user;assistant;user;"


def test_earlier_thoughts_and_the_date_are_told_as_llama_server_tells_them() -> None:
    told = _render("{{ preserve_thinking }}{{ clear_thinking }}{{ date_string }};{{ datetime }}")
    assert re.fullmatch(r"TrueFalse\d\d \w+ \d{4};\w+ \d\d \d{4}", told)
