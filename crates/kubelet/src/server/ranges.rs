//! Which part of a file a client asks for, and whether it has it already: conditions and ranges of HTTP.
//! Used by `pages`.
//! Invariant: pure. Files have no tags here, only a time; ranges that together are more than the file get all of it once
//! (tidy: `pure_files`).

use std::ops::Range;

use http::{HeaderMap, HeaderName, header};
use jiff::{Timestamp, civil, tz::Offset};

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Whole,
    Part(Range<u64>),
    /// In the order they were asked for.
    Parts(Vec<Range<u64>>),
    NotModified,
    PreconditionFailed,
    /// Nothing of what is asked for is there, or nobody understands it.
    Unsatisfiable {
        beyond: bool,
    },
}

/// `modified` in seconds of Unix time, where that is known.
pub fn decide(headers: &HeaderMap, modified: Option<i64>, size: u64) -> Answer {
    let met = match text(headers, header::IF_MATCH) {
        Some(tags) => tags.trim_start_matches([' ', '\t', ',']).starts_with('*'),
        None => since(headers, header::IF_UNMODIFIED_SINCE, modified).is_none_or(|(modified, at)| modified <= at),
    };
    if !met {
        return Answer::PreconditionFailed;
    }
    let known = match text(headers, header::IF_NONE_MATCH) {
        Some(tags) => tags.trim_start_matches([' ', '\t', ',']).starts_with('*'),
        None => is_known(headers, modified),
    };
    if known {
        return Answer::NotModified;
    }
    let same_file = || match text(headers, header::IF_RANGE) {
        Some(_) => since(headers, header::IF_RANGE, modified).is_some_and(|(modified, at)| modified == at),
        None => true,
    };
    match text(headers, header::RANGE).filter(|_| same_file()) {
        Some(wanted) => part(wanted, size),
        None => Answer::Whole,
    }
}

/// Whether a client says that it has what is not newer than this.
pub fn is_known(headers: &HeaderMap, modified: Option<i64>) -> bool {
    since(headers, header::IF_MODIFIED_SINCE, modified).is_some_and(|(modified, at)| modified <= at)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok().filter(|text| !text.is_empty())
}

/// When the file was modified and the time that a header names, where both are known.
fn since(headers: &HeaderMap, name: HeaderName, modified: Option<i64>) -> Option<(i64, i64)> {
    modified.zip(text(headers, name).and_then(parse_time))
}

pub fn format_time(seconds: i64) -> Option<String> {
    let at = Timestamp::from_second(seconds).ok()?;
    Some(at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string())
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

fn parse_time(text: &str) -> Option<i64> {
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words.as_slice() else { return None };
    let month = MONTHS.iter().position(|name| name == month)? as i8 + 1;
    let date = civil::Date::new(year.parse().ok()?, month, day.parse().ok()?).ok()?;
    let numbers: Vec<i8> = time.split(':').map_while(|number| number.parse().ok()).collect();
    let [hour, minute, second] = numbers.as_slice() else { return None };
    let time = civil::Time::new(*hour, *minute, *second, 0).ok()?;
    Offset::UTC.to_timestamp(date.to_datetime(time)).ok().map(|at| at.as_second())
}

fn part(wanted: &str, size: u64) -> Answer {
    let nonsense = Answer::Unsatisfiable { beyond: false };
    let Some(list) = wanted.strip_prefix("bytes=") else { return nonsense };
    let (mut ranges, mut beyond) = (Vec::new(), false);
    for one in list.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        match range(one, size) {
            Ok(Some(range)) => ranges.push(range),
            Ok(None) => beyond = true,
            Err(()) => return nonsense,
        }
    }
    match ranges.as_slice() {
        // Some clients ask for a range of everything, also of what is empty.
        _ if size == 0 => Answer::Whole,
        [] if beyond => Answer::Unsatisfiable { beyond: true },
        [] => Answer::Whole,
        _ if ranges.iter().map(|range| range.end - range.start).sum::<u64>() > size => Answer::Whole,
        [range] => Answer::Part(range.clone()),
        _ => Answer::Parts(ranges),
    }
}

/// `None` when it begins beyond the end.
fn range(text: &str, size: u64) -> Result<Option<Range<u64>>, ()> {
    let (first, last) = text.split_once('-').ok_or(())?;
    let number = |text: &str| match text.starts_with('+') {
        true => Err(()),
        false => text.parse::<u64>().ok().filter(|number| *number <= i64::MAX as u64).ok_or(()),
    };
    match (first.trim(), last.trim()) {
        ("", last) => Ok(Some(size.saturating_sub(number(last)?)..size)),
        (first, _) if number(first)? >= size => Ok(None),
        (first, "") => Ok(Some(number(first)?..size)),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if first > last { Err(()) } else { Ok(Some(first..size.min(last + 1))) }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// Of a file of ten bytes.
    fn check(headers: &[(HeaderName, &str)], expected: Answer) {
        let map: HeaderMap =
            headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap())).collect();
        assert_eq!(decide(&map, Some(784_111_777), 10), expected, "{headers:?}");
    }

    const AT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    #[test]
    fn ranges_are_served_where_there_is_one() {
        let (beyond, nonsense) = (Answer::Unsatisfiable { beyond: true }, Answer::Unsatisfiable { beyond: false });
        for (range, expected) in [
            ("bytes=0-3", Answer::Part(0..4)),
            ("bytes= 2 - 3 ", Answer::Part(2..4)),
            ("bytes=4-", Answer::Part(4..10)),
            ("bytes=4-99", Answer::Part(4..10)),
            ("bytes=-3", Answer::Part(7..10)),
            ("bytes=-99", Answer::Part(0..10)),
            ("bytes=10-", beyond.clone()),
            ("bytes=10-12,20-", beyond),
            ("bytes=10-,0-1", Answer::Part(0..2)),
            ("bytes=0-1,4-5", Answer::Parts(vec![0..2, 4..6])),
            ("bytes=-2, 0-0, 20-", Answer::Parts(vec![8..10, 0..1])),
            ("bytes=0-7,4-7", Answer::Whole),
            ("bytes=", Answer::Whole),
            ("bytes=3-1", nonsense.clone()),
            ("bytes=x-1", nonsense.clone()),
            ("bytes=+1-2", nonsense.clone()),
            ("bytes=--1", nonsense.clone()),
            ("bytes=5", nonsense.clone()),
            ("lines=0-1", nonsense),
        ] {
            check(&[(header::RANGE, range)], expected);
        }
        for range in ["bytes=0-", "bytes=-5"] {
            let headers = [(header::RANGE, HeaderValue::from_static(range))].into_iter().collect();
            assert_eq!(decide(&headers, None, 0), Answer::Whole, "nothing has no parts: {range}");
        }
    }

    #[test]
    fn what_a_client_has_is_not_sent_again() {
        use header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE};
        check(&[(IF_MODIFIED_SINCE, AT)], Answer::NotModified);
        check(&[(IF_MODIFIED_SINCE, BEFORE)], Answer::Whole);
        check(&[(IF_MODIFIED_SINCE, "yesterday")], Answer::Whole);
        check(&[(IF_MODIFIED_SINCE, AT), (IF_NONE_MATCH, "\"x\"")], Answer::Whole);
        check(&[(IF_NONE_MATCH, "*")], Answer::NotModified);
        check(&[(IF_UNMODIFIED_SINCE, AT)], Answer::Whole);
        check(&[(IF_UNMODIFIED_SINCE, BEFORE)], Answer::PreconditionFailed);
        check(&[(IF_MATCH, "\"x\"")], Answer::PreconditionFailed);
        check(&[(IF_MATCH, "*"), (IF_UNMODIFIED_SINCE, BEFORE)], Answer::Whole);
        check(&[(RANGE, "bytes=0-0"), (IF_RANGE, AT)], Answer::Part(0..1));
        check(&[(RANGE, "bytes=0-0"), (IF_RANGE, BEFORE)], Answer::Whole);
        check(&[(RANGE, "bytes=0-0"), (IF_RANGE, "\"x\"")], Answer::Whole);
    }

    #[test]
    fn times_are_written_as_they_are_read() {
        assert_eq!(format_time(784_111_777).as_deref(), Some(AT));
        assert_eq!(parse_time(AT), Some(784_111_777));
        for text in ["", "Sun, 06 Nov 1994", "Sun, 06 Nov 1994 08:49 GMT", "Sun, 36 Nov 1994 08:49:37 GMT"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
