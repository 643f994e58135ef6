//! Methods of Python strings, dicts and lists.

use super::budget::Budget;
use super::python::{Text, pairs};
use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, FormatStyle, State, Value, format_filter};

/// Longest run of digits in a format string: widths and precisions stay under 10,000.
const MAX_FORMAT_DIGITS: usize = 4;

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// Python's `str.isspace` for one character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Calls `value.name(args)`.
pub(super) fn call(state: &State, budget: &Budget, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    for arg in args {
        budget.read(arg)?;
    }
    let result = match value.kind() {
        ValueKind::String => {
            budget.read(value)?;
            string_method(budget, value.as_str().unwrap_or(""), name, args)?
        }
        ValueKind::Map => map_method(value, name, args)?,
        ValueKind::Seq => list_method(budget, value, name, args)?,
        ValueKind::Undefined => {
            return Err(Error::new(ErrorKind::UndefinedError, format!("an undefined value has no method {name}")));
        }
        _ => None,
    };
    match result {
        Some(result) => Ok(result),
        None => value.call_method(state, name, args),
    }
}

fn map_method(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "keys" | "values" | "items" => {
            let () = from_args(args)?;
            pairs(value)
                .map(|(key, item)| match name {
                    "keys" => key,
                    "values" => item,
                    _ => Value::from(vec![key, item]),
                })
                .collect::<Vec<Value>>()
                .into()
        }
        "get" => {
            let (key, default): (&Value, Option<Value>) = from_args(args)?;
            match value.get_item(key)? {
                found if !found.is_undefined() => found,
                _ => default.unwrap_or_else(|| Value::from(())),
            }
        }
        _ => return Ok(None),
    }))
}

fn list_method(budget: &Budget, value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    budget.read(value)?;
    let found = |item: &Value| from_args::<(&Value,)>(args).map(|(wanted,)| item == wanted);
    let mut count = 0;
    for (i, item) in value.try_iter()?.enumerate() {
        match name {
            "count" => count += found(&item)? as usize,
            "index" if found(&item)? => return Ok(Some(Value::from(i))),
            "index" => {}
            _ => return Ok(None),
        }
    }
    match name {
        "count" => Ok(Some(Value::from(count))),
        "index" => Err(invalid("list.index: the value is not in the list")),
        _ => Ok(None),
    }
}

fn string_method(budget: &Budget, s: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if let Some(answer) = string_question(s, name, args)? {
        return Ok(Some(answer));
    }
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(s, chars, name != "rstrip", name != "lstrip"))
        }
        "upper" => no_args(args, || s.to_uppercase())?,
        "lower" | "casefold" => no_args(args, || s.to_lowercase())?,
        "title" => no_args(args, || minijinja::filters::title(s.into()))?,
        "capitalize" => no_args(args, || capitalized(s))?,
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(s.strip_prefix(prefix).unwrap_or(s))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(s.strip_suffix(suffix).unwrap_or(s))
        }
        "replace" => {
            let (old, new, count, kwargs): (&str, &str, Option<i64>, Kwargs) = from_args(args)?;
            let count = count.or(kwargs.get("count")?);
            kwargs.assert_all_used()?;
            Value::from(replace(budget, s, old, new, count)?)
        }
        "split" | "rsplit" => split(s, name == "rsplit", args)?,
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(args)?;
            Value::from(lines(s, keep.unwrap_or(false)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            partition(s, separator, name == "rpartition")?
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut out = Text::new(budget);
            for (i, item) in items.try_iter()?.enumerate() {
                let item = item.as_str().ok_or_else(|| invalid("str.join: an item is not a string"))?.to_owned();
                out.push(if i > 0 { s } else { "" })?;
                out.push(&item)?;
            }
            Value::from(out.finish())
        }
        "ljust" | "rjust" | "center" | "zfill" => pad(budget, s, name, args)?,
        "format" => {
            let mut digits = 0;
            for c in s.chars() {
                digits = if c.is_ascii_digit() { digits + 1 } else { 0 };
                if digits > MAX_FORMAT_DIGITS {
                    return Err(invalid("str.format: a number in the format is too long"));
                }
            }
            Value::from(format_filter(FormatStyle::StrFormat, s, args)?)
        }
        _ => return Ok(None),
    }))
}

/// Methods that answer with a truth value or a number.
fn string_question(s: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let all = |test: fn(char) -> bool| {
        from_args::<()>(args).map(|()| Some(Value::from(!s.is_empty() && s.chars().all(test))))
    };
    let cased = |upper: bool| {
        let wrong = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
        let right = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
        from_args::<()>(args).map(|()| Some(Value::from(s.chars().any(right) && !s.chars().any(wrong))))
    };
    match name {
        "isspace" => all(is_space),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isupper" => cased(true),
        "islower" => cased(false),
        "isascii" => from_args::<()>(args).map(|()| Some(Value::from(s.is_ascii()))),
        "startswith" | "endswith" => {
            let (affix,): (&Value,) = from_args(args)?;
            let holds = |affix: &str| if name == "startswith" { s.starts_with(affix) } else { s.ends_with(affix) };
            let not_text = || invalid(format!("str.{name} takes a string or a tuple of strings"));
            if let Some(affix) = affix.as_str() {
                return Ok(Some(Value::from(holds(affix))));
            }
            let mut any = false;
            for item in affix.try_iter().map_err(|_| not_text())? {
                any |= holds(item.as_str().ok_or_else(not_text)?);
            }
            Ok(Some(Value::from(any)))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let byte = if name.starts_with('r') { s.rfind(what) } else { s.find(what) };
            match byte {
                Some(byte) => Ok(Some(Value::from(s[..byte].chars().count()))),
                None if name.ends_with("find") => Ok(Some(Value::from(-1))),
                None => Err(invalid(format!("str.{name}: substring not found"))),
            }
        }
        "count" => {
            let (what,): (&str,) = from_args(args)?;
            Ok(Some(Value::from(if what.is_empty() { s.chars().count() + 1 } else { s.matches(what).count() })))
        }
        _ => Ok(None),
    }
}

fn no_args(args: &[Value], f: impl FnOnce() -> String) -> Result<Value, Error> {
    let () = from_args(args)?;
    Ok(Value::from(f()))
}

/// `str.strip` and its one-sided forms; `None` strips white space.
pub(super) fn strip<'a>(s: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let out = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let s = if left { s.trim_start_matches(out) } else { s };
    if right { s.trim_end_matches(out) } else { s }
}

fn capitalized(s: &str) -> String {
    let mut chars = s.chars();
    let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

/// `str.replace`, its growth counted before it is made.
pub(super) fn replace(budget: &Budget, s: &str, old: &str, new: &str, count: Option<i64>) -> Result<String, Error> {
    let limit = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let found = s.matches(old).take(limit).count();
    budget.build(s.len() + found.saturating_mul(new.len()))?;
    Ok(s.replacen(old, new, limit))
}

fn split(s: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (rest, kwargs): (Rest<Value>, Kwargs) = from_args(args)?;
    let separator = rest.first().cloned().or(kwargs.get("sep")?).unwrap_or(Value::from(()));
    let limit = rest.get(1).cloned().or(kwargs.get("maxsplit")?).unwrap_or(Value::from(-1));
    kwargs.assert_all_used()?;
    let limit = limit.as_i64().ok_or_else(|| invalid("str.split: maxsplit must be an integer"))?;
    let pieces = usize::try_from(limit).map_or(usize::MAX, |n| n.saturating_add(1));
    let parts: Vec<&str> = match separator.as_str() {
        Some("") => return Err(invalid("str.split: empty separator")),
        Some(separator) if from_right => {
            let mut parts: Vec<&str> = s.rsplitn(pieces, separator).collect();
            parts.reverse();
            parts
        }
        Some(separator) => s.splitn(pieces, separator).collect(),
        None if separator.is_none() => split_space(s, pieces, from_right),
        None => return Err(invalid("str.split: the separator must be a string")),
    };
    Ok(Value::from(parts.into_iter().map(Value::from).collect::<Vec<Value>>()))
}

fn split_space(s: &str, pieces: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(s, None, !from_right, from_right);
    while !rest.is_empty() {
        let cut = if from_right {
            rest.char_indices().rev().find(|(_, c)| is_space(*c)).map(|(i, c)| (i, i + c.len_utf8()))
        } else {
            rest.char_indices().find(|(_, c)| is_space(*c)).map(|(i, c)| (i, i + c.len_utf8()))
        };
        match cut {
            Some((start, end)) if parts.len() + 1 < pieces => {
                parts.push(if from_right { &rest[end..] } else { &rest[..start] });
                rest = if from_right { &rest[..start] } else { &rest[end..] };
                rest = strip(rest, None, !from_right, from_right);
            }
            _ => {
                parts.push(rest);
                break;
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn lines(s: &str, keep: bool) -> Vec<Value> {
    let ends = |c: char| {
        matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut out = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(ends) {
        let first = rest[at..].chars().next().map_or(0, char::len_utf8);
        let end = at + if rest[at..].starts_with("\r\n") { 2 } else { first };
        out.push(Value::from(&rest[..if keep { end } else { at }]));
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        out.push(Value::from(rest));
    }
    out
}

fn partition(s: &str, separator: &str, from_right: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("str.partition: empty separator"));
    }
    let cut = if from_right { s.rsplit_once(separator) } else { s.split_once(separator) };
    let parts = match cut {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", s],
        None => [s, "", ""],
    };
    Ok(Value::from(parts.map(Value::from).to_vec()))
}

fn pad(budget: &Budget, s: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let fill = if name == "zfill" { "0" } else { fill.unwrap_or(" ") };
    let missing = width.saturating_sub(s.chars().count());
    budget.build(s.len().saturating_add(missing.saturating_mul(fill.len())))?;
    // CPython's `center`: an odd rest goes left only when the width is odd too.
    let left = match name {
        "ljust" => 0,
        "center" => missing / 2 + (missing & width & 1),
        _ => missing,
    };
    let sign = s.starts_with(['+', '-']) as usize * (name == "zfill") as usize;
    Ok(Value::from([&s[..sign], &fill.repeat(left), &s[sign..], &fill.repeat(missing - left)].concat()))
}
