"""Chat templates that try to run for ever or to take all memory, by what they try."""

_NESTED = "{% set ns = namespace(a=['x'], b=['x'], t=('x',)) %}" + "".join(
    "{% for i in range(60) %}{% set ns." + name + " = " + pair + " %}{% endfor %}"
    for name, pair in (("a", "[ns.a, ns.a]"), ("b", "[ns.b, ns.b]"), ("t", "(ns.t, ns.t)"))
)
"""Three values that are small, and enormous to whoever walks through them."""


def _grows(step: str, start: str = "'xx'") -> str:
    return "{% set ns = namespace(s=" + start + ") %}{% for i in range(60) %}{% set ns.s = " + step + " %}{% endfor %}"


HOSTILE = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x"
    "{% endfor %}{% endfor %}{% endfor %}",
    "silent loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "recursive macro": "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "tree of macros": "{% macro m(n) %}{% if n < 60 %}{{ m(n + 1) }}{{ m(n + 1) }}{% endif %}{% endmacro %}{{ m(0) }}",
    "endless cycler": "{% set c = cycler(1) %}{% for i in range(99999) %}{% for j in range(99999) %}{{ c.next() }}"
    "{% endfor %}{% endfor %}",
    "text that doubles": _grows("ns.s ~ ns.s") + "{{ ns.s }}",
    "text that replaces itself": _grows("ns.s.replace('x', ns.s)") + "{{ ns.s }}",
    "list that doubles": _grows("ns.s + ns.s", "['x' * 16]") + "{{ ns.s | join }}",
    "number that squares": _grows("ns.s * ns.s", "99999") + "{{ ns.s }}",
    "huge power": "{{ 10 ** 10 ** 8 }}",
    "huge width": "{{ '%999999999d' | format(1) }}",
    "huge field": "{{ '{:999999999}'.format(1) }}",
    "huge centre": "{{ 'x'.center(10 ** 9) }}",
    "huge padding": "{{ 'x'.ljust(2000000000) }}",
    "huge indent": "{{ 'a\n' * 100000 | indent(99999999) }}",
    "huge batch": "{{ [1] | batch(1000000000, 1) | list | length }}",
    "huge slices": "{{ [1] | slice(1000000000) | list | length }}",
    "many words": "{{ lipsum(n=99999999) }}",
    "much output": "{% for i in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
    "long output": "{{ 'x' * 20000000 }}",
    "printed nest": _NESTED + "{{ ns.a }}",
    "encoded nest": _NESTED + "{{ ns.a | tojson }}",
    "compared nests": _NESTED + "{{ ns.a == ns.b }}",
    "hashed nest": _NESTED + "{{ {ns.t: 1} | length }}",
    "deep brackets": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep negation": "{{ " + "not " * 100_000 + "1 }}",
}
