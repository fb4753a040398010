#!/usr/bin/env python3
"""Writes expected.json: small templates with the constructs of real ones, and what transformers renders with them.

Needs the Python packages transformers and jinja2 (written with 5.24.0 and 3.1.6).
"""

import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as chat_template_utils

TALK = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": "  Hi, {{ x }} \u2028<b>é日🙂</b>\t"},
    {"role": "assistant", "content": "", "reasoning_content": "hm\n", "tool_calls": [
        {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"b": 2.5, "a": 1, "items": ["x", None, True]}}}]},
    {"role": "tool", "name": "add", "tool_call_id": "c1", "content": "3.5"},
    {"role": "assistant", "content": "<think>\nwell\n</think>\n\n3.5"},
    {"role": "user", "content": "Why?"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds — \"two\" <numbers>",
          "parameters": {"type": "object", "properties": {"b": {"type": "number"}, "a": {"type": "number"}, "items": {"type": "array"}},
                         "required": ["b", "a"]}}}]

# name, template, arguments
CASES = [
    ("chatml", "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}", {}),
    ("blocks are trimmed", "{% if true %}\n    {{ bos_token }}x\n  {% endif %}\n\n  {# a comment #}\ny\n    {%- if 1 %}\n z {% endif -%}\n q\n", {}),
    ("plus keeps whitespace", "a\n  {%+ if true %} b {% endif +%}\nc\n", {}),
    ("tojson", "{{ tools | tojson }}\n{{ messages[1].content | tojson }}", {}),
    ("tojson ensure_ascii", "{{ messages[1].content | tojson(ensure_ascii=True) }}{{ '\\x7f\\x1b\"\\\\/' | tojson(ensure_ascii=True) }}", {}),
    ("tojson indent", "{{ tools[0] | tojson(indent=4) }}\n{{ [] | tojson(indent=2) }}{{ {} | tojson(indent=2) }}{{ [[], {'a': {}}] | tojson(indent=1) }}", {}),
    ("tojson separators", "{{ tools[0] | tojson(separators=(',', ':'), sort_keys=True) }}", {}),
    ("tojson numbers", "{{ [1, 1.0, 0.1, 1e16, 1e-5, -2.5e-7, 123456789012, true, none, 1e300] | tojson }}", {}),
    ("tojson keys", "{{ {1: 'a', none: 2, true: 3, 'é': 4} | tojson }}", {}),
    ("printing", "{{ true }} {{ none }} {{ 1.5 }} {{ [1, 'a\\n', none] }} {{ {'k': True, 'q': \"it's\"} }} {{ ('t', 1) }} {{ undefined_name }}|", {}),
    ("string filter", "{{ (true | string) ~ (1.0 | string) ~ ([1, 'x'] | string) ~ none ~ 3 }}", {}),
    ("reasoning", "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.reasoning_content is defined and m.reasoning_content is not none %}"
                  "[{{ m.reasoning_content.strip('\\n') }}]{% elif '</think>' in m.content %}[{{ m.content.split('</think>')[0].rstrip('\\n')"
                  ".split('<think>')[-1].lstrip('\\n') }}]{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}{% endif %}{% endfor %}", {}),
    ("thinking alias", "{% for m in messages %}{{ m.thinking }}{% endfor %}", {}),
    ("namespace", "{% set ns = namespace(last=-1, found=false) %}{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}"
                  "{% if not ns.found and m.role == 'user' and not (m.content.startswith('<tool') and m.content.endswith('>')) %}"
                  "{% set ns.found = true %}{% set ns.last = i %}{% endif %}{% endfor %}{{ ns.last }}", {}),
    ("loop controls", "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{% if loop.index > 4 %}{% break %}{% endif %}{{ m.role }},{% endfor %}", {}),
    ("loop variables", "{% for m in messages %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }}"
                       "{{ loop.previtem.role if loop.previtem else '-' }}{{ loop.nextitem.role if loop.nextitem is defined else '.' }} {% endfor %}", {}),
    ("macros", "{% macro show(value, mark='*', n=1) -%}{{ mark * n }}{{ value }}{{ caller() if caller else '' }}{%- endmacro %}"
               "{{ show('a') }}{{ show(value='b', mark='-', n=3) }}{% call show('c') %}body{% endcall %}", {}),
    ("items", "{% for k, v in tools[0].function.parameters.properties.items() %}{{ k }}={{ v.type }} {% endfor %}"
              "{% for k, v in tools[0].function.parameters.properties | items %}{{ k }} {% endfor %}"
              "{% for k in tools[0].function.parameters.properties %}{{ k }} {% endfor %}{{ tools[0].function.parameters.keys() | list }}", {}),
    ("dictsort", "{% for k, v in tools[0].function.parameters.properties | dictsort %}{{ k }} {% endfor %}", {}),
    ("get", "{{ messages[0].get('name') }} {{ messages[0].get('name', 'x') }} {{ messages[3].get('name') }}", {}),
    ("slices", "{{ messages[1:] | length }} {{ messages[-1].role }} {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-2:] }} {{ [1,2,3][:-1] }}", {}),
    ("tests", "{% for x in ['s', 1, 1.5, none, true, [1], {'a': 1}, (1,)] %}{{ x is string }}{{ x is number }}{{ x is none }}{{ x is boolean }}"
              "{{ x is mapping }}{{ x is iterable }}{{ x is sequence }}{{ x is integer }} {% endfor %}{{ nope is defined }}{{ nope is undefined }}", {}),
    ("methods", "{{ ' a b  c '.split() }}{{ 'a,b,,c'.split(',', 1) }}{{ 'a b c '.rsplit(None, 1) }}{{ ' a b '.split(none, 1) }}{{ 'a.b.c'.rsplit('.', 1) }}"
                "{{ 'x=1=2'.partition('=') }}{{ 'x=1=2'.rpartition('=') }}{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') }}"
                "{{ 'aXbX'.replace('X', '-', 1) }}{{ 'abc'.find('c') }}{{ 'abc'.index('b') }}{{ 'é'.upper() }}{{ 'a'.join(['1', '2']) }}"
                "{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}|{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'hello world'.title() }}{{ 'hELLO'.capitalize() }}", {}),
    ("whitespace", "[{{ ' \\x1c\\u00a0\\u2003x\\x1f '.strip() }}][{{ '\\x1dx' | trim }}][{{ 'xxaxx'.strip('x') }}][{{ '\\n\\tx '.lstrip() }}]", {}),
    ("splitlines", "{{ 'a\\nb\\r\\nc\\x0bd\\u2028e\\n'.splitlines() }}{{ 'a\\nb\\n'.splitlines(true) }}", {}),
    ("predicates", "{{ 'ab1'.isalnum() }}{{ 'ab'.isalpha() }}{{ '12'.isdigit() }}{{ ' '.isspace() }}{{ 'aB'.islower() }}{{ 'AB'.isupper() }}", {}),
    ("filters", "{{ ['b', 'a'] | sort | join(', ') }}{{ messages | map(attribute='role') | unique | list }}"
                "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | first }}"
                "{{ 'abc' | first }}{{ [1, 2] | last }}{{ [3, 1] | max }}{{ 'x' | default('y') }}{{ nope | default('y') }}{{ '' | default('z', true) }}"
                "{{ ' a ' | trim }}{{ 'Ab' | lower }}{{ 'a b' | replace(' ', '_') }}{{ '3' | int + 1 }}{{ 2.7 | int }}{{ [1, 2, 3] | sum }}{{ -3 | abs }}", {}),
    ("indent filter", "{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb' | indent(4, true) }}", {}),
    ("arithmetic", "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 1 + 2.0 }} {{ 'a' * 3 }} {{ [1] + [2] }} {{ 10 > 9 and not false }} {{ 'b' > 'a' }}", {}),
    ("conditionals", "{{ 'a' if messages[0].role == 'system' else 'b' }}{{ 'x' if false }}|{{ tools is none }}{{ documents is none }}", {}),
    ("membership", "{{ 'role' in messages[0] }}{{ 'x' not in messages[0] }}{{ 'e b' in messages[0].content }}{{ 2 in [1, 2] }}{{ 'a' in nope }}", {}),
    ("set blocks", "{% set text %}<{{ messages[0].role }}>\n{% endset %}{{ text }}{% set a, b = 1, 2 %}{{ a + b }}", {}),
    ("dict and list literals", "{% set d = {'role': 'x', 'n': [1, {'k': 2}]} %}{{ d.n[1].k }}{{ d | tojson }}{% set l = [] %}{% set l = l + [d.role] %}{{ l }}", {}),
    ("dict()", "{{ dict(a=1, b='x') | tojson }}", {}),
    ("range", "{% for i in range(2, 8, 3) %}{{ i }}{% endfor %}{{ range(3) | list }}", {}),
    ("generation", "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}\n"
                   "{{- m.role -}}\n{%- generation -%}  x  {%- endgeneration -%}{% endif %}{% endfor %}", {}),
    ("generation scope", "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}", {}),
    ("strftime_now", "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%B %-d, %A %H:%M') }}", {}),
    ("arguments", "{{ enable_thinking is defined and enable_thinking is false }}{{ reasoning_effort | default('medium') }}{{ options.a[1] }}",
     {"enable_thinking": False, "reasoning_effort": "high", "options": {"a": [1, 2]}}),
    ("defined by default", "{% if not add_generation_prompt is defined %}a{% endif %}{% if tools is defined and tools %}{{ tools | length }}{% endif %}", {}),
    ("format", "{{ '%s has %d' | format('a', 3) }}{{ '{} {}'.format('x', 1) }}", {}),
    ("raw", "{% raw %}{{ x }}{% endraw %}", {}),
    ("filter block", "{% filter upper %}abc{{ messages[0].role }}{% endfilter %}", {}),
    ("with", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}", {}),
    ("for else and filter", "{% for m in messages if m.role == 'critic' %}x{% else %}none{% endfor %}{% for m in messages if m.role == 'user' %}{{ loop.index }}{% endfor %}", {}),
    ("recursion over schemas", "{% macro kind(s) %}{% if s is mapping %}{{ '{' }}{% for k, v in s.items() %}{{ k }}:{{ kind(v) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}"
                               "{% elif s is sequence and s is not string %}[{{ s | length }}]{% else %}{{ s }}{% endif %}{% endmacro %}{{ kind(tools[0]) }}", {}),
    ("a refusal", "{{ raise_exception('Only user messages: ' + messages[0].role) }}", {}),
    ("undefined attribute", "{{ messages[0].nope.further }}", {}),
    ("text plus none", "{{ 'a' + messages[2].nope }}", {}),
    ("immutable lists", "{% set l = [] %}{{ l.append(1) }}", {}),
]


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 1, 31)


chat_template_utils.datetime = FixedDate
found = []
for name, template, arguments in CASES:
    case = {"name": name, "template": template, "arguments": arguments}
    try:
        texts, _ = chat_template_utils.render_jinja_template(
            [TALK], tools=TOOLS, chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", **arguments)
        case["text"] = texts[0]
    except Exception as error:
        case["error"] = str(error)
    found.append(case)
data = {"messages": TALK, "tools": TOOLS, "cases": found}
path = pathlib.Path(__file__).with_name("expected.json")
path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n")
