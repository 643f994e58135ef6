"""Writes templates.json: templates, variables, and what Python's Jinja2 makes of them, set up as transformers does."""

import json
import pathlib
from datetime import datetime, timezone

from jinja2.ext import loopcontrols
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime(2026, 2, 7, 15, 4, 9)
UNIX = int(NOW.replace(tzinfo=timezone.utc).timestamp())


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda format: NOW.strftime(format)

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "It's \"the\" weather: <é> & 日本\n\tnow",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Oslo", "Rome"]},
                    "days": {"type": "integer", "default": 3, "minimum": 1.5, "maximum": 1e16},
                    "items": {"type": "array", "items": {"type": "number"}, "x": 1e-5, "y": None, "z": True},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]
CHAT = [
    {"role": "system", "content": "  You are kind.\n"},
    {"role": "user", "content": "Hi 'you' <b>&amp;</b>"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello!  "},
    {"role": "user", "content": [{"type": "text", "text": "What's "}, {"type": "text", "text": "up?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2, "deep": {"a": [1, 2.0]}}}},
            {"type": "function", "function": {"name": "noop", "arguments": {}}},
        ],
    },
    {"role": "tool", "name": "get_weather", "content": "{\"t\": 21.5}"},
]

LLAMA_STYLE = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|head|>system<|tail|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: tools\\n" }}
{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|head|>' + message['role'] + '<|tail|>\\n\\n' }}
        {%- if message.content is string %}
            {{- message['content'] | trim }}
        {%- else %}
            {%- for part in message.content %}{{ part.text }}{%- endfor %}
        {%- endif %}
        {{- '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 and strict %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- set call = tool_call.function %}
            {{- '{"name": "' + call.name + '", ' }}
            {{- '"parameters": ' }}
            {{- call.arguments | tojson }}
            {{- "}" }}
            {%- if not loop.last %}{{ ", " }}{% endif %}
        {%- endfor %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|tail|>\\n\\n' }}
{%- endif %}
"""

QWEN_STYLE = """{%- macro render_content(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is iterable and content is not mapping %}
        {%- for item in content %}
            {%- if 'text' in item %}{{- item.text }}{%- else %}{{- raise_exception('Unexpected item type') }}{%- endif %}
        {%- endfor %}
    {%- elif content is none or content is undefined %}
        {{- '' }}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set content = render_content(message.content)|trim %}
        {%- if not(content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
            {%- set ns.multi_step_tool = false %}
            {%- set ns.last_query_index = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = render_content(message.content)|trim %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls and message.tool_calls is iterable and message.tool_calls is not mapping %}
            {%- for tool_call in message.tool_calls %}
                {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
                {%- if tool_call.arguments is mapping %}
                    {%- for args_name in tool_call.arguments %}
                        {%- set args_value = tool_call.arguments[args_name] %}
                        {{- '<parameter=' + args_name + '>\\n' }}
                        {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
                        {{- args_value }}
                        {{- '\\n</parameter>\\n' }}
                    {%- endfor %}
                {%- endif %}
                {{- '</function>\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}"""

LFM_STYLE = """{{- bos_token -}}
{%- set keep_past_thinking = keep_past_thinking | default(false) -%}
{%- set ns = namespace(system_prompt="", last_assistant_index=-1) -%}
{%- if messages[0]["role"] == "system" -%}
    {%- set ns.system_prompt = messages[0]["content"] -%}
    {%- set messages = messages[1:] -%}
{%- endif -%}
{%- if tools -%}
    {%- set ns.system_prompt = ns.system_prompt + ("\\n" if ns.system_prompt else "") + "List of tools: [" -%}
    {%- for tool in tools -%}
        {%- if tool is not string -%}
            {%- set tool = tool | tojson -%}
        {%- endif -%}
        {%- set ns.system_prompt = ns.system_prompt + tool -%}
        {%- if not loop.last -%}
            {%- set ns.system_prompt = ns.system_prompt + ", " -%}
        {%- endif -%}
    {%- endfor -%}
    {%- set ns.system_prompt = ns.system_prompt + "]" -%}
{%- endif -%}
{%- if ns.system_prompt -%}
    {{- "<|im_start|>system\\n" + ns.system_prompt + "<|im_end|>\\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message["role"] == "assistant" -%}
        {%- set ns.last_assistant_index = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {{- "<|im_start|>" + message["role"] + "\\n" -}}
    {%- set content = message["content"] -%}
    {%- if content is not string -%}
        {%- set content = content | tojson -%}
    {%- endif -%}
    {%- if message["role"] == "assistant" and not keep_past_thinking and loop.index0 != ns.last_assistant_index -%}
        {%- if "</think>" in content -%}
            {%- set content = content.split("</think>")[-1] | trim -%}
        {%- endif -%}
    {%- endif -%}
    {{- content + "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\\n" -}}
{%- endif -%}
"""

WHOLE = [LLAMA_STYLE, QWEN_STYLE, LFM_STYLE]
VARIABLES = {"messages": CHAT, "tools": TOOLS, "documents": None, "add_generation_prompt": True, "bos_token": "<s>"}

SNIPPETS = [
    # White space
    "a\n  {% if true %}\n  b\n  {% endif %}\n c {# x #}\n d",
    "{%- if true -%}\n x \n{%- endif -%}\n y",
    "x  {%+ if true %} y {% endif +%}\n z\n",
    "one\n{% for i in [1, 2] %}\n  {{ i }}\n{% endfor %}\ntwo\n\n",
    "{% raw %}{{ no }}{% endraw %}\nx",
    "  {{ 1 }}\n  {{- 2 -}}\n  3",
    # Printing
    "{{ true }} {{ none }} {{ 1.0 }} {{ 3 }} {{ [1, 'a', none, true, 2.5] }} {{ {'a': [1], 'b': \"it's\"} }}",
    "{{ missing }}|{{ missing ~ 'x' }}|{{ none ~ 1 ~ true ~ 2.0 }}",
    "{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 123456789.123 }} {{ 1.5e300 }} {{ -0.0 }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
    "{{ 'ab' * 3 }} {{ [1, 2] * 2 }} {{ [1] + [2, 3] }} {{ 'a' + 'b' }}",
    # tojson
    "{{ tools | tojson }}",
    "{{ tools | tojson(indent=2) }}",
    "{{ tools[1] | tojson(separators=(',', ':')) }}",
    "{{ {'b': 1, 'a': {'d': [], 'c': {}}} | tojson(sort_keys=true, indent=1) }}",
    "{{ 'é日<>&\\'\"\\n\\t\\\\' | tojson }} {{ 'é日😀' | tojson(ensure_ascii=true) }}",
    "{{ [1, 1.0, 1e100, none, true, 'x'] | tojson }} {{ {} | tojson }} {{ [] | tojson(indent=2) }}",
    # String methods
    "{{ ' x y '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b c '.split() }}|{{ 'a b c'.split(' ', 1) }}",
    "{{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ' a b  c '.split(none, 1) }} {{ 'abc'.startswith(('x', 'a')) }}",
    "{{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }} {{ 'Ab'.upper() }} {{ 'Ab'.lower() }}",
    "{{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '+', 1) }} {{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'aaa'.count('a') }} {{ 'ab'.count('') }}",
    "{{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }} {{ '-'.join(['a', 'b']) }} {{ 'x=1'.partition('=') | list }}",
    "{{ 'ab'.ljust(4, '.') }} {{ 'ab'.rjust(4) }} {{ 'abc'.center(6, '*') }} {{ 'ab'.center(5, '*') }} {{ '-5'.zfill(4) }}",
    "{{ 'abc'.isalpha() }} {{ ''.isalpha() }} {{ '12'.isdigit() }} {{ 'aB'.islower() }} {{ 'AB1'.isupper() }} {{ ' '.isspace() }}",
    "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '{} {}!'.format('a', 1) }} {{ '{x}'.format(x=2) }}",
    # Slices and items
    "{{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ 'hello'[-2:] }} {{ 'héllo'[1] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][-1] }} {{ [1, 2, 3][:-1] }} {{ [1,2,3][5:] }} {{ [1,2,3][2:0:-1] }}",
    "{{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1, 'b': 2}.items() | list | tojson }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }}",
    "{% for k, v in tools[0].function.parameters.properties.items() %}{{ k }}={{ v.type }};{% endfor %}",
    "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %} {% for k, v in {'b': 1, 'a': 2} | items %}{{ k }}{{ v }}{% endfor %}",
    "{{ tools[0].function.parameters.properties['items']['items'].type }}",
    # Tests
    "{{ 'x' is string }} {{ [] is iterable }} {{ {} is mapping }} {{ 'x' is sequence }} {{ {} is sequence }} {{ 1 is number }} {{ true is number }} {{ true is boolean }} {{ none is none }} {{ 1 is sequence }} {{ 1 is iterable }}",
    "{{ missing is defined }} {{ missing is undefined }} {{ bos_token is defined }} {{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 1 is eq 1 }} {{ 1 is in [1, 2] }} {{ 'a' in 'abc' }} {{ 'a' not in {'a': 1} }} {{ true is true }} {{ 1 is true }} {{ false is false }}",
    "{{ 1 == 1.0 }} {{ '1' == 1 }} {{ [1] == [1] }} {{ {'a': 1} == {'a': 1} }} {{ 1 < 2 < 3 }} {{ not 0 }} {{ '' or 'x' }} {{ 'a' and 'b' }} {{ none or [] }} {{ true == 1 }}",
    # Filters
    "{{ ' x ' | trim }}|{{ 'xax' | trim('x') }}|{{ [3, 1, 2] | sort | join(', ') }}|{{ [1, 2] | length }}|{{ 'ab' | length }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}|{{ none | default('d') }}",
    "{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ [1, 2, 3] | sum }} {{ [1, 5, 3] | max }} {{ [4, 2] | min }} {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }} {{ 'abc' | list }} {{ [1, 1, 2] | unique | list }}",
    "{{ messages | map(attribute='role') | join(',') }} {{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('tool_calls', 'defined') | list | length }} {{ ['a', 'b'] | map('upper') | list }} {{ [0, 1, 2] | select | list }} {{ [1, 2, 3] | select('odd') | list }} {{ [1, 2] | reject('eq', 1) | list }}",
    "{{ '3' | int + 1 }} {{ '2.5' | float }} {{ 2.7 | int }} {{ -3 | abs }} {{ 3 | string + 'x' }} {{ 'a b' | replace(' ', '_') }} {{ 'hello there' | title }} {{ 'hELLO' | capitalize }} {{ 'x' | upper }}",
    "{{ 'a\\nb\\n\\nc' | indent }}|{{ 'a\\nb' | indent(2, true) }}|{{ 'a\\n\\nb' | indent(2, blank=true) }}|{{ '<a href=\"x\">\\'&' | e }}|{{ '<b>' | safe }}",
    "{{ [{'n': 'b', 'v': 1}, {'n': 'a', 'v': 2}] | sort(attribute='n') | map(attribute='v') | list }} {{ ['b', 'A'] | sort | list }} {{ [3, 1] | sort(reverse=true) | list }}",
    # Statements
    "{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% else %}none{% endfor %}{% for i in [] %}{% else %}none{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %} {{ range(5, 0, -2) | list }} {{ range(1, 3) | list }}",
    "{% for i in [1, 2, 3, 4] if i % 2 == 0 %}{{ loop.index }}:{{ i }} {% endfor %}",
    "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}",
    "{% set a, b = [1, 2] %}{{ a }}{{ b }}{% set c %}<{{ a }}>{% endset %}{{ c }}{% with d = 4 %}{{ d }}{% endwith %}{% filter upper %}abc{% endfilter %}",
    "{% macro m(a, b='x') %}[{{ a }}{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}{% macro w() %}<{{ caller() }}>{% endmacro %}{% call w() %}in{% endcall %}",
    "{% set ns = namespace(n=0, s='') %}{% for c in 'abc' %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ c %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "{{ 'yes' if messages | length > 3 else 'no' }} {{ 'x' if false }}|{{ (1, 2) | list }} {{ dict(a=1) }} {{ loop is defined }}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.first }}{{ loop.revindex0 }} {% endfor %}",
    "{% for a, b in [[1, 2], [3, 4]] %}{{ a }}-{{ b }} {% endfor %}{% for x in {'k': 1} %}{{ x }}{% endfor %}",
    "{{ strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %j %y %p %I %% %-d %e') }}",
]
# What must be an error on both sides.
FAILING = [
    "{{ missing.x }}",
    "{{ missing['x'] }}",
    "{{ 'a' + 1 }}",
    "{{ missing + 'a' }}",
    "{{ raise_exception('no') }}",
    "{{ 1 // 0 }}",
    "{% if %}",
    "{{ 'a' | nofilter }}",
    "{{ unknown() }}",
    "{{ missing() }}",
    "{{ none | length }}",
    "{{ messages[0].nothing.more }}",
]

cases = []
for template in WHOLE:
    for messages in [CHAT, CHAT[:2], CHAT[:3], [{"role": "user", "content": "x"}]]:
        for change in [{}, {"tools": None}, {"enable_thinking": False}, {"enable_thinking": True, "add_generation_prompt": False}, {"date_string": "today"}]:
            variables = {**VARIABLES, "messages": messages, **change}
            cases.append((template, variables))
cases += [(snippet, VARIABLES) for snippet in SNIPPETS]
out = {"unix_seconds": UNIX, "cases": [], "failing": []}
for template, variables in cases:
    try:
        text = env.from_string(template).render(**variables)
    except TemplateError as error:
        assert template in WHOLE, (template, error)
        text = None
    except TypeError as error:
        assert template in WHOLE, (template, error)
        text = None
    out["cases"].append({"template": template, "variables": variables, "text": text})
for template in FAILING:
    try:
        env.from_string(template).render(**VARIABLES)
    except Exception:
        out["failing"].append(template)
    else:
        raise AssertionError(template)
# Templates and variables stand once, by number.
templates, sets = [], []
for case in out["cases"]:
    for key, store in (("template", templates), ("variables", sets)):
        if case[key] not in store:
            store.append(case[key])
        case[key] = store.index(case[key])
out = {"unix_seconds": UNIX, "templates": templates, "variables": sets, **out}
path = pathlib.Path(__file__).with_name("templates.json")
path.write_text(json.dumps(out, ensure_ascii=False, indent=None) + "\n")
print(len(out["cases"]), "cases,", path.stat().st_size, "bytes")
