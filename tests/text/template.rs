//! Templates against Python's Jinja2, and templates that would run away.

use lfm3::engine::Clock;
use lfm3::error::Code;
use lfm3::text::{ChatTemplate, SpecialTokens, choose_template, special_tokens};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};

fn load(source: &str) -> lfm3::error::Result<ChatTemplate> {
    ChatTemplate::load(source, "test.jinja", SpecialTokens::default())
}

fn render(source: &str, variables: &Map<String, Value>) -> lfm3::error::Result<String> {
    let golden: Value = golden();
    let clock = Clock { unix_seconds: golden["unix_seconds"].as_i64(), utc_offset_seconds: 0 };
    load(source)?.render(variables, None, &clock)
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../data/text/templates.json")).unwrap()
}

#[test]
fn templates_render_as_python_does() {
    let golden = golden();
    let mut wrong = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let source = golden["templates"][case["template"].as_u64().unwrap() as usize].as_str().unwrap();
        let variables = golden["variables"][case["variables"].as_u64().unwrap() as usize].as_object().unwrap();
        match (render(source, variables), case["text"].as_str()) {
            (Ok(text), Some(expected)) if text == expected => {}
            (Err(_), None) => {}
            (result, expected) => wrong.push(format!("{source}\n{result:?}\nexpected {expected:?}\n")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let variables = golden["variables"][0].as_object().unwrap();
    for source in golden["failing"].as_array().unwrap() {
        let error = render(source.as_str().unwrap(), variables).unwrap_err();
        assert_eq!(error.code, Code::Template, "{source}: {error}");
    }
}

#[test]
fn raise_exception_reaches_the_error_with_its_line() {
    let error = render("a\n{{ raise_exception('no ' ~ 'tools') }}", &Map::new()).unwrap_err();
    assert_eq!(error.message, "test.jinja: line 2: no tools");
}

#[test]
fn templates_that_run_away_end_in_an_error() {
    let sources = [
        "{{ 'a' * 1000000000 }}",
        "{% set x = 'a' * 40000000 %}{% set x = x ~ x %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(p=1) %}{% for i in range(1000) %}{% set n = namespace() %}\
         {% set n.p = ns.p %}{% set ns.p = n %}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns | tojson }}",
        "{% for a in range(1000000000) %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% for a in range(10000) %}{% for b in range(10000) %}\
         some text that is written many times over{% endfor %}{% endfor %}",
        "{% set x %}{% for a in range(10000) %}{% for b in range(10000) %}some text{% endfor %}{% endfor %}\
         {% endset %}",
        "{% set x = 'a' * 1000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
        "{% set x = 'a' * 1000000 %}{{ x | replace('a', x) }}",
        "{% set x = 'a' * 1000000 %}{{ x.replace('a', x) }}",
        "{% set x = 'a' * 1000000 %}{{ x | list | join(x) }}",
        "{% set x = 'a' * 1000000 %}{{ x.join(x | list) }}",
        "{% set x = 'a\n' * 1000000 %}{{ x | indent(1000000) }}",
        "{{ [1, [2, [3]]] | tojson(indent=100000000000) }}",
        "{% set x = range(100000) | list %}{{ x | tojson(indent=10000) }}",
        "{{ 'a'.ljust(100000000000) }}",
        "{{ '{:1000000000}'.format('a') }}",
        "{% set x = range(100000) | list %}{% set y = x | select('in', x + [-1]) | list %}\
         {% set y = x | map('string') | select('in', x) | list %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m(n) %}{{ m(n + 1) }}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% set x = range(100000) | list %}{% for i in x %}{% set y = x == x + [1] %}{% endfor %}",
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% include 'test.jinja' %}",
        "{% extends 'test.jinja' %}",
    ];
    for source in sources {
        let start = Instant::now();
        let result = render(source, &Map::new());
        let took = start.elapsed();
        println!("{took:?} {source}");
        let error = result.map(|t| t.len()).expect_err(source);
        assert!(matches!(error.code, Code::Template | Code::Limit), "{source}: {error}");
        assert!(took < Duration::from_secs(20), "{source}: {took:?}");
    }
    assert_eq!(render("{{ 'ab'.count('') }}", &Map::new()).unwrap(), "3");
}

#[test]
fn templates_that_nest_without_end_are_refused() {
    let deep =
        |open: &str, middle: &str, close: &str, n: usize| format!("{}{middle}{}", open.repeat(n), close.repeat(n));
    for n in [300, 20_000] {
        for source in [
            format!("{{{{ a{} }}}}", " + a".repeat(n)),
            format!("{{{{ a{} }}}}", " | trim".repeat(n)),
            format!("{{{{ a{} }}}}", ".a".repeat(n)),
            format!("{{{{ a{} }}}}", "[0]".repeat(n)),
            format!("{{{{ {}a }}}}", "not ".repeat(n)),
            format!("{{{{ {}a }}}}", "-".repeat(n)),
            format!("{{{{ {} }}}}", deep("(", "a", ")", n)),
            format!("{{{{ {} }}}}", deep("[", "a", "]", n)),
            format!("{{{{ {} }}}}", deep("{1:", "1", "}", n)),
            format!("{{{{ a{} }}}}", " if a else a".repeat(n)),
            format!("{{{{ a{} }}}}", " ** a".repeat(n)),
            deep("{% if a %}", "x", "{% endif %}", n),
            deep("{% for a in b %}", "x", "{% endfor %}", n.min(8000)),
            format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(n)),
        ] {
            assert!(load(&source).is_err(), "{}…", &source[..60]);
        }
    }
    assert_eq!(load(&"x".repeat(1 << 20)).unwrap_err().code, Code::Limit);
}

#[test]
fn generation_tags_are_plain_blocks() {
    let source =
        "a{% generation %}b{%- endgeneration -%} c {%- generation -%}\n d{% endgeneration %}{{ '{% generation' }}";
    assert_eq!(render(source, &Map::new()).unwrap(), "abcd{% generation");
}

#[test]
fn strftime_follows_the_calendar() {
    let at = |unix: i64, offset: i32| {
        let clock = Clock { unix_seconds: Some(unix), utc_offset_seconds: offset };
        load("{{ strftime_now('%Y-%m-%d %H:%M:%S %a %j') }}").unwrap().render(&Map::new(), None, &clock).unwrap()
    };
    assert_eq!(at(0, 0), "1970-01-01 00:00:00 Thu 001");
    assert_eq!(at(951_782_400, 0), "2000-02-29 00:00:00 Tue 060");
    assert_eq!(at(951_868_800, 0), "2000-03-01 00:00:00 Wed 061");
    assert_eq!(at(978_307_199, 0), "2000-12-31 23:59:59 Sun 366");
    assert_eq!(at(978_307_199, 3600), "2001-01-01 00:59:59 Mon 001");
    assert_eq!(at(4_107_542_399, 0), "2100-02-28 23:59:59 Sun 059");
    assert_eq!(at(4_107_542_400, 0), "2100-03-01 00:00:00 Mon 060");
    assert_eq!(at(-1, 0), "1969-12-31 23:59:59 Wed 365");
    let out_of_range = Clock { unix_seconds: Some(i64::MAX), utc_offset_seconds: 10 };
    assert!(load("{{ strftime_now('%Y') }}").unwrap().render(&Map::new(), None, &out_of_range).is_err());
    assert!(render("{{ strftime_now('%Q') }}", &Map::new()).is_err());
}

#[test]
fn the_template_file_wins_over_the_config() {
    let config = r#"{"chat_template": "C", "bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null}"#;
    assert_eq!(choose_template(Some("J"), Some(config)).unwrap().unwrap().0, "J");
    assert_eq!(choose_template(None, Some(config)).unwrap().unwrap().0, "C");
    assert_eq!(choose_template(None, Some("{}")).unwrap(), None);
    assert_eq!(choose_template(None, None).unwrap(), None);
    let list = r#"{"chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]}"#;
    assert_eq!(choose_template(None, Some(list)).unwrap().unwrap().0, "D");
    for bad in [r#"{"chat_template": 3}"#, r#"{"chat_template": [{"name": "x"}]}"#, "[", "3"] {
        let error = choose_template(None, Some(bad)).unwrap_err();
        assert_eq!(error.code, Code::Format);
        assert!(error.message.starts_with("tokenizer_config.json: "), "{error}");
    }
    let special = special_tokens(config).unwrap();
    assert_eq!((special.bos.as_deref(), special.eos.as_deref(), special.pad), (Some("<s>"), Some("</s>"), None));
    assert!(special_tokens(r#"{"bos_token": 3}"#).is_err());
}
