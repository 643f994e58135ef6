//! `strftime` for the proleptic Gregorian calendar, C locale.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// The clock a chat template may ask for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Seconds since 1970-01-01 UTC; `None` reads the system's clock.
    pub unix_seconds: Option<i64>,
    /// Offset of the host's local time from UTC, in seconds.
    pub utc_offset_seconds: i32,
}

/// Longest format string, in bytes.
const MAX_FORMAT_BYTES: usize = 256;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

struct Moment {
    year: i64,
    month: usize,
    day: i64,
    /// Day of the year from 1.
    year_day: i64,
    /// From 0, Sunday.
    week_day: usize,
    second_of_day: i64,
    unix: i64,
}

fn leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// The clock's local time; `None` where it is out of range.
fn moment(clock: &Clock) -> Option<Moment> {
    let unix = clock.unix_seconds.unwrap_or_else(|| match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    });
    let local = unix.checked_add(clock.utc_offset_seconds as i64)?;
    let (days, second_of_day) = (local.div_euclid(86_400), local.rem_euclid(86_400));
    // Days since 0000-03-01, so that the leap day ends a year; 400 years are 146,097 days.
    let shifted = days.checked_add(719_468)?;
    let (era, era_day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let era_year = (era_day - era_day / 1_460 + era_day / 36_524 - era_day / 146_096) / 365;
    let march_day = era_day - (365 * era_year + era_year / 4 - era_year / 100);
    let march_month = (5 * march_day + 2) / 153;
    let month = if march_month < 10 { march_month + 2 } else { march_month - 10 } as usize;
    let year = era_year + era * 400 + (month < 2) as i64;
    let day = march_day - (153 * march_month + 2) / 5 + 1;
    let january_1 = if month < 2 { 306 } else { -59 - leap(year) as i64 };
    let year_day = march_day - january_1 + 1;
    Some(Moment { year, month, day, year_day, week_day: (days + 4).rem_euclid(7) as usize, second_of_day, unix })
}

/// The clock's time in `format`; the error is a message.
pub(super) fn strftime(clock: &Clock, format: &str) -> Result<String, String> {
    if format.len() > MAX_FORMAT_BYTES {
        return Err(format!("strftime_now: the format has more than {MAX_FORMAT_BYTES} bytes"));
    }
    let now = moment(clock).ok_or("strftime_now: the clock is out of range")?;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('-') => {
                let field = chars.next().map(|c| field(&now, c)).unwrap_or(None).ok_or_else(|| unknown(format))?;
                let bare = field.trim_start_matches(['0', ' ']);
                out.push_str(if bare.is_empty() { "0" } else { bare });
            }
            Some(c) => out.push_str(&field(&now, c).ok_or_else(|| unknown(format))?),
            None => return Err(unknown(format)),
        }
    }
    Ok(out)
}

fn unknown(format: &str) -> String {
    format!("strftime_now: unknown directive in {format:?}")
}

fn field(now: &Moment, directive: char) -> Option<String> {
    let (hour, minute, second) = (now.second_of_day / 3600, now.second_of_day / 60 % 60, now.second_of_day % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let (month_name, day_name) = (MONTHS[now.month], DAYS[now.week_day]);
    let mut out = String::new();
    let written = match directive {
        'Y' => write!(out, "{}", now.year),
        'y' => write!(out, "{:02}", now.year.rem_euclid(100)),
        'm' => write!(out, "{:02}", now.month + 1),
        'B' => write!(out, "{month_name}"),
        'b' | 'h' => write!(out, "{}", &month_name[..3]),
        'd' => write!(out, "{:02}", now.day),
        'e' => write!(out, "{:2}", now.day),
        'j' => write!(out, "{:03}", now.year_day),
        'A' => write!(out, "{day_name}"),
        'a' => write!(out, "{}", &day_name[..3]),
        'w' => write!(out, "{}", now.week_day),
        'u' => write!(out, "{}", (now.week_day + 6) % 7 + 1),
        'H' => write!(out, "{hour:02}"),
        'I' => write!(out, "{hour12:02}"),
        'M' => write!(out, "{minute:02}"),
        'S' => write!(out, "{second:02}"),
        'f' => write!(out, "000000"),
        'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
        's' => write!(out, "{}", now.unix),
        // A naive local time has no offset and no zone name in Python.
        'z' | 'Z' => Ok(()),
        'F' => write!(out, "{}-{:02}-{:02}", now.year, now.month + 1, now.day),
        'T' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
        'R' => write!(out, "{hour:02}:{minute:02}"),
        'D' => write!(out, "{:02}/{:02}/{:02}", now.month + 1, now.day, now.year.rem_euclid(100)),
        '%' => write!(out, "%"),
        'n' => writeln!(out),
        't' => write!(out, "\t"),
        _ => return None,
    };
    written.ok().map(|()| out)
}
