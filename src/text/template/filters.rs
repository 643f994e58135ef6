//! The filters, tests and functions a chat template may use.

use super::budget::Budget;
use super::date::Clock;
use super::python::{self, JsonStyle, Text, text_of};
use super::{bounded, date, methods, ops};
use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};
use std::sync::Arc;

/// Most items of `range`.
const MAX_RANGE: i64 = 100_000;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Adds everything to `env`. What a template builds is counted in `budget`; `mark` passes `tojson` unescaped.
pub(super) fn install(env: &mut Environment, budget: &Arc<Budget>, clock: Clock, mark: Option<char>) {
    operators(env, budget);
    own_filters(env, budget, mark);
    plain_filters(env);
    kind_tests(env);
    value_tests(env, budget);
    global_functions(env, budget, clock);
    let budget = budget.clone();
    env.set_formatter(move |out, _, value| {
        if let Some(s) = value.as_str() {
            budget.write(s.len())?;
            return Ok(out.write_str(s)?);
        }
        let text = text_of(&budget, value)?;
        budget.write(text.len())?;
        Ok(out.write_str(&text)?)
    });
}

/// Adds a filter that also sees the budget.
fn with_budget(
    env: &mut Environment,
    budget: &Arc<Budget>,
    name: &'static str,
    f: fn(&State, &Budget, &Value, &[Value]) -> Result<Value, Error>,
) {
    let budget = budget.clone();
    env.add_filter(name, move |state: &State, value: &Value, args: Rest<Value>| f(state, &budget, value, &args));
}

fn operators(env: &mut Environment, budget: &Arc<Budget>) {
    with_budget(env, budget, bounded::HELD, |_, budget, value, _| budget.hold(value.clone()));
    with_budget(env, budget, bounded::PAID, |_, budget, value, _| {
        budget.read(value)?;
        Ok(value.clone())
    });
    with_budget(env, budget, bounded::ADD, |_, budget, a, args| ops::add(budget, a, one(args)?));
    with_budget(env, budget, bounded::MULTIPLY, |_, budget, a, args| ops::multiply(budget, a, one(args)?));
    with_budget(env, budget, bounded::CONCAT, |_, budget, a, args| ops::concat(budget, a, one(args)?));
    with_budget(env, budget, bounded::REMAINDER, |_, _, a, args| ops::remainder(a, one(args)?));
    with_budget(env, budget, bounded::FLOOR_DIVIDE, |_, _, a, args| ops::floor_divide(a, one(args)?));
    with_budget(env, budget, bounded::ITEM, |_, budget, a, args| ops::item(budget, a, one(args)?));
    with_budget(env, budget, bounded::SLICE, |_, budget, a, args| {
        let (start, stop, step): (&Value, &Value, &Value) = from_args(args)?;
        ops::slice(budget, a, start, stop, step)
    });
    with_budget(env, budget, bounded::METHOD, |state, budget, value, args| match args.split_first() {
        Some((name, args)) => methods::call(state, budget, value, name.as_str().unwrap_or(""), args),
        None => Err(invalid("a method call without a name")),
    });
}

fn one(args: &[Value]) -> Result<&Value, Error> {
    args.first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))
}

/// Filters whose result may be far larger than their input, or that must speak as Python does.
fn own_filters(env: &mut Environment, budget: &Arc<Budget>, mark: Option<char>) {
    let counted = budget.clone();
    env.add_filter("tojson", move |value: &Value, args: Rest<Value>| tojson(&counted, mark, value, &args));
    with_budget(env, budget, "string", |_, budget, value, _| text_of(budget, value).map(Value::from));
    with_budget(env, budget, "safe", |_, budget, value, _| text_of(budget, value).map(Value::from));
    with_budget(env, budget, "join", |_, budget, value, args| join(budget, value, args));
    with_budget(env, budget, "replace", |_, budget, value, args| {
        let (old, new, count): (&str, &str, Option<i64>) = from_args(args)?;
        methods::replace(budget, &text_of(budget, value)?, old, new, count).map(Value::from)
    });
    with_budget(env, budget, "trim", |_, budget, value, args| {
        let (chars,): (Option<&str>,) = from_args(args)?;
        Ok(Value::from(methods::strip(&text_of(budget, value)?, chars, true, true)))
    });
    with_budget(env, budget, "indent", |_, budget, value, args| indent(budget, &text_of(budget, value)?, args));
    with_budget(env, budget, "sum", |_, budget, value, _| {
        value.try_iter()?.try_fold(Value::from(0), |sum, item| match item.kind() {
            ValueKind::Number | ValueKind::Bool => ops::add(budget, &sum, &item),
            kind => Err(invalid(format!("sum: an item of type {kind}"))),
        })
    });
    with_budget(env, budget, "items", |_, _, value, _| match value.kind() {
        ValueKind::Map => Ok(python::pairs(value).map(|(k, v)| Value::from(vec![k, v])).collect::<Vec<Value>>().into()),
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        kind => Err(invalid(format!("items: a value of type {kind} is not a mapping"))),
    });
}

/// Filters of the engine whose results are no larger, in proportion, than their input.
fn plain_filters(env: &mut Environment) {
    env.add_filter("lower", filters::lower);
    env.add_filter("upper", filters::upper);
    env.add_filter("title", filters::title);
    env.add_filter("capitalize", filters::capitalize);
    env.add_filter("length", filters::length);
    env.add_filter("count", filters::length);
    env.add_filter("dictsort", filters::dictsort);
    env.add_filter("reverse", filters::reverse);
    env.add_filter("split", filters::split);
    env.add_filter("lines", filters::lines);
    env.add_filter("default", filters::default);
    env.add_filter("d", filters::default);
    env.add_filter("round", filters::round);
    env.add_filter("abs", filters::abs);
    env.add_filter("int", filters::int);
    env.add_filter("float", filters::float);
    env.add_filter("attr", filters::attr);
    env.add_filter("first", filters::first);
    env.add_filter("last", filters::last);
    env.add_filter("min", filters::min);
    env.add_filter("max", filters::max);
    env.add_filter("sort", filters::sort);
    env.add_filter("list", filters::list);
    env.add_filter("bool", filters::bool);
    env.add_filter("select", filters::select);
    env.add_filter("reject", filters::reject);
    env.add_filter("selectattr", filters::selectattr);
    env.add_filter("rejectattr", filters::rejectattr);
    env.add_filter("map", filters::map);
    env.add_filter("groupby", filters::groupby);
    env.add_filter("unique", filters::unique);
    env.add_filter("escape", escape);
    env.add_filter("e", escape);
}

/// HTML escapes as markupsafe writes them.
fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

fn kind_tests(env: &mut Environment) {
    env.add_test("defined", tests::is_defined);
    env.add_test("undefined", tests::is_undefined);
    env.add_test("none", tests::is_none);
    env.add_test("boolean", tests::is_boolean);
    env.add_test("integer", tests::is_integer);
    env.add_test("float", tests::is_float);
    env.add_test("string", tests::is_string);
    env.add_test("mapping", tests::is_mapping);
    env.add_test("true", |v: &Value| v.kind() == ValueKind::Bool && v.is_true());
    env.add_test("false", |v: &Value| v.kind() == ValueKind::Bool && !v.is_true());
    // As in Python, strings and mappings are sequences, and True is a number.
    env.add_test("number", |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("sequence", |v: &Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::String | ValueKind::Map)
    });
    env.add_test("iterable", |v: &Value| v.try_iter().is_ok() || v.kind() == ValueKind::String);
    env.add_test("callable", |v: &Value| v.kind() == ValueKind::Plain);
}

fn value_tests(env: &mut Environment, budget: &Arc<Budget>) {
    env.add_test("odd", tests::is_odd);
    env.add_test("even", tests::is_even);
    env.add_test("divisibleby", |a: &Value, b: &Value| ops::remainder(a, b).map(|rest| !rest.is_true()));
    env.add_test("lower", tests::is_lower);
    env.add_test("upper", tests::is_upper);
    env.add_test("sameas", tests::is_sameas);
    for name in ["eq", "equalto", "=="] {
        env.add_test(name, tests::is_eq);
    }
    for name in ["ne", "!="] {
        env.add_test(name, tests::is_ne);
    }
    for name in ["lt", "lessthan", "<"] {
        env.add_test(name, tests::is_lt);
    }
    for name in ["le", "<="] {
        env.add_test(name, tests::is_le);
    }
    for name in ["gt", "greaterthan", ">"] {
        env.add_test(name, tests::is_gt);
    }
    for name in ["ge", ">="] {
        env.add_test(name, tests::is_ge);
    }
    env.add_test("filter", tests::is_filter);
    env.add_test("test", tests::is_test);
    let budget = budget.clone();
    // `select("in", list)` asks once an item, so the list is counted each time.
    env.add_test("in", move |state: &State, value: &Value, container: &Value| {
        budget.read(container)?;
        tests::is_in(state, value, container)
    });
}

fn global_functions(env: &mut Environment, budget: &Arc<Budget>, clock: Clock) {
    env.add_function("namespace", functions::namespace);
    env.add_function("dict", functions::dict);
    let budget = budget.clone();
    env.add_function("range", move |args: Rest<i64>| range(&budget, &args));
    env.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        Err(invalid(message.as_str().map_or_else(|| "raise_exception".to_string(), str::to_owned)))
    });
    env.add_function("strftime_now", move |format: &str| date::strftime(&clock, format).map_err(invalid));
}

fn range(budget: &Budget, args: &[i64]) -> Result<Value, Error> {
    let (start, stop, step) = match *args {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return Err(invalid("range takes one to three integers")),
    };
    let (span, stride) = match step {
        0 => return Err(invalid("range: the step cannot be zero")),
        s if s > 0 => (stop.saturating_sub(start), s),
        s => (start.saturating_sub(stop), s.saturating_neg()),
    };
    let count = if span <= 0 { 0 } else { (span - 1) / stride + 1 };
    if count > MAX_RANGE {
        return Err(invalid(format!("range: more than {MAX_RANGE} items")));
    }
    budget.spend(count as usize)?;
    Ok((0..count).map(|i| Value::from(start + i * step)).collect::<Vec<Value>>().into())
}

fn tojson(budget: &Budget, mark: Option<char>, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (rest, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
    let named = |place: usize, name: &str| -> Result<Option<Value>, Error> {
        let given: Option<Value> = kwargs.get(name)?;
        Ok(rest.get(place).cloned().or(given).filter(|v| !v.is_none() && !v.is_undefined()))
    };
    // The order of transformers' own tojson.
    let ascii = named(0, "ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = match named(1, "indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(width) => {
            let width = width.as_i64().ok_or_else(|| invalid("tojson: indent must be an integer or a string"))?.max(0);
            let width = usize::try_from(width).map_err(|_| invalid("tojson: indent is too large"))?;
            budget.build(width)?;
            Some(" ".repeat(width))
        }
    };
    let item_separator = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match named(2, "separators")? {
        None => (item_separator.to_owned(), ": ".to_owned()),
        Some(pair) => {
            let part = |i| pair.get_item_by_index(i).ok().and_then(|v| v.as_str().map(str::to_owned));
            part(0).zip(part(1)).ok_or_else(|| invalid("tojson: separators must be two strings"))?
        }
    };
    let sort_keys = named(3, "sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let style = JsonStyle { indent, item_separator, key_separator, sort_keys, ascii, mark };
    python::json(budget, value, &style).map(Value::from)
}

fn join(budget: &Budget, value: &Value, args: &[Value]) -> Result<Value, Error> {
    let (separator, attribute, kwargs): (Option<String>, Option<String>, Kwargs) = from_args(args)?;
    let separator = separator.or(kwargs.get("d")?).unwrap_or_default();
    let attribute: Option<String> = attribute.or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    let mut out = Text::new(budget);
    for (i, item) in value.try_iter()?.enumerate() {
        out.push(if i > 0 { &separator } else { "" })?;
        let item = match &attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        match item.as_str() {
            Some(s) => out.push(s)?,
            None => out.push(&text_of(budget, &item)?)?,
        }
    }
    Ok(Value::from(out.finish()))
}

fn indent(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, first, blank, kwargs): (Option<Value>, Option<bool>, Option<bool>, Kwargs) = from_args(args)?;
    let width: Option<Value> = width.or(kwargs.get("width")?);
    let first = first.or(kwargs.get("first")?).unwrap_or(false);
    let blank = blank.or(kwargs.get("blank")?).unwrap_or(false);
    kwargs.assert_all_used()?;
    let prefix = match &width {
        None => " ".repeat(4),
        Some(text) if text.as_str().is_some() => text.as_str().unwrap_or("").to_owned(),
        Some(width) => {
            let width = width.as_usize().ok_or_else(|| invalid("indent: the width must be an integer or a string"))?;
            budget.build(width)?;
            " ".repeat(width)
        }
    };
    let mut out = Text::new(budget);
    for (i, line) in text.split('\n').enumerate() {
        out.push(if i > 0 { "\n" } else { "" })?;
        if if i == 0 { first } else { blank || !line.is_empty() } {
            out.push(&prefix)?;
        }
        out.push(line)?;
    }
    Ok(Value::from(out.finish()))
}
