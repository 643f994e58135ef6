//! Operators that make values, with Python's meaning and counted sizes.

use super::budget::Budget;
use super::python::text_of;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

fn integer(value: &Value) -> Option<i128> {
    match value.kind() {
        ValueKind::Bool => Some(value.is_true() as i128),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn numbers(a: &Value, b: &Value) -> Option<Numbers> {
    if let (Some(a), Some(b)) = (integer(a), integer(b)) {
        return Some(Numbers::Integers(a, b));
    }
    let float = |v: &Value| integer(v).map(|i| i as f64).or_else(|| f64::try_from(v.clone()).ok());
    let numeric = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    if numeric(a) && numeric(b) { Some(Numbers::Floats(float(a)?, float(b)?)) } else { None }
}

fn integer_value(i: i128) -> Value {
    i64::try_from(i).map_or_else(|_| Value::from(i), Value::from)
}

fn unsupported(op: &str, a: &Value, b: &Value) -> Error {
    if a.is_undefined() || b.is_undefined() {
        return Error::new(ErrorKind::UndefinedError, format!("an operand of {op} is undefined"));
    }
    Error::new(ErrorKind::InvalidOperation, format!("{op} does not take {} and {}", a.kind(), b.kind()))
}

fn overflow(op: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the result of {op} is out of range"))
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn add(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        budget.build(x.len() + y.len())?;
        return Ok(Value::from([x, y].concat()));
    }
    if is_list(a) && is_list(b) {
        return Ok(Value::from(a.try_iter()?.chain(b.try_iter()?).collect::<Vec<Value>>()));
    }
    match numbers(a, b) {
        Some(Numbers::Integers(a, b)) => a.checked_add(b).map(integer_value).ok_or_else(|| overflow("+")),
        Some(Numbers::Floats(a, b)) => Ok(Value::from(a + b)),
        None => Err(unsupported("+", a, b)),
    }
}

pub(super) fn multiply(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let (value, times) = if integer(b).is_some() { (a, b) } else { (b, a) };
    if let (false, Some(n)) = (integer(value).is_some(), integer(times)) {
        let n = usize::try_from(n.max(0)).map_err(|_| overflow("*"))?;
        if let Some(s) = value.as_str() {
            budget.build(s.len().checked_mul(n).ok_or_else(|| overflow("*"))?)?;
            return Ok(Value::from(s.repeat(n)));
        }
        if is_list(value) {
            let items: Vec<Value> = value.try_iter()?.collect();
            budget.build(items.len().checked_mul(n).and_then(|n| n.checked_mul(32)).ok_or_else(|| overflow("*"))?)?;
            let count = items.len() * n;
            return Ok(Value::from(items.into_iter().cycle().take(count).collect::<Vec<Value>>()));
        }
    }
    match numbers(a, b) {
        Some(Numbers::Integers(a, b)) => a.checked_mul(b).map(integer_value).ok_or_else(|| overflow("*")),
        Some(Numbers::Floats(a, b)) => Ok(Value::from(a * b)),
        None => Err(unsupported("*", a, b)),
    }
}

pub(super) fn concat(budget: &Budget, a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = (text_of(budget, a)?, text_of(budget, b)?);
    budget.build(x.len() + y.len())?;
    Ok(Value::from(x + &y))
}

pub(super) fn floor_divide(a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers(a, b) {
        Some(Numbers::Integers(_, 0)) => Err(Error::new(ErrorKind::InvalidOperation, "division by zero")),
        Some(Numbers::Integers(a, b)) => {
            let quotient = a.checked_div(b).ok_or_else(|| overflow("//"))?;
            let below = a % b != 0 && (a < 0) != (b < 0);
            Ok(integer_value(quotient - below as i128))
        }
        Some(Numbers::Floats(a, b)) => Ok(Value::from((a / b).floor())),
        None => Err(unsupported("//", a, b)),
    }
}

pub(super) fn remainder(a: &Value, b: &Value) -> Result<Value, Error> {
    match numbers(a, b) {
        Some(Numbers::Integers(_, 0)) => Err(Error::new(ErrorKind::InvalidOperation, "division by zero")),
        Some(Numbers::Integers(a, b)) => {
            let rest = a.checked_rem(b).ok_or_else(|| overflow("%"))?;
            Ok(integer_value(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        Some(Numbers::Floats(a, b)) => Ok(Value::from(a - b * (a / b).floor())),
        None => Err(unsupported("%", a, b)),
    }
}

/// `value[start:stop:step]` of a string or list.
pub(super) fn slice(budget: &Budget, value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let end = |v: &Value| match v.kind() {
        ValueKind::None => Ok(None),
        _ => v
            .as_i64()
            .map(Some)
            .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "slice indices must be integers or none")),
    };
    let (start, stop, step) = (end(start)?, end(stop)?, end(step)?.unwrap_or(1));
    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice step cannot be zero"));
    }
    if let Some(s) = value.as_str() {
        budget.build(s.len())?;
        let chars: Vec<char> = s.chars().collect();
        return Ok(Value::from(positions(start, stop, step, chars.len()).map(|i| chars[i]).collect::<String>()));
    }
    if is_list(value) {
        let items: Vec<Value> = value.try_iter()?.collect();
        return Ok(Value::from(
            positions(start, stop, step, items.len()).map(|i| items[i].clone()).collect::<Vec<Value>>(),
        ));
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("a value of type {} cannot be sliced", value.kind())))
}

/// The indices Python's `slice.indices` walks.
fn positions(start: Option<i64>, stop: Option<i64>, step: i64, len: usize) -> impl Iterator<Item = usize> {
    let len = len as i128;
    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |i: i64| {
        let i = i as i128;
        (if i < 0 { i + len } else { i }).clamp(low, high)
    };
    let first = start.map_or(if step > 0 { low } else { high }, clamp);
    let last = stop.map_or(if step > 0 { high } else { low }, clamp);
    let step = step as i128;
    let mut at = first;
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < last } else { at > last };
        let here = at;
        at += step;
        inside.then_some(here as usize)
    })
}

/// `value[key]`.
pub(super) fn item(budget: &Budget, value: &Value, key: &Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        budget.read(value)?;
    }
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, format!("an undefined value has no item {key}")));
    }
    value.get_item(key)
}
