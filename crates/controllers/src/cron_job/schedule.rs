//! Cron schedules: five fields, names, steps, the `@` words and `@every`, in a time zone.
//! Used by the cron job core; pure.
//! Of day-of-month and day-of-week either may match, unless one of them is a star; then both must.

use std::time::Duration;

use api::codec::parse_unsigned_duration;
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};

#[derive(Debug, Clone, PartialEq)]
pub enum Schedule {
    Fields(Box<Fields>),
    Every(Duration),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Fields {
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    any_day: bool,
    any_weekday: bool,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
/// A schedule like "30 February" never comes; looking further than this is looking for ever.
const SEARCH_YEARS_MAX: i64 = 5;

impl Schedule {
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(duration) = text.strip_prefix("@every ") {
            let duration = parse_unsigned_duration(duration.trim()).filter(|every| !every.is_zero());
            let duration = duration.ok_or_else(|| format!("failed to parse duration {text}"))?;
            return Ok(Self::Every(duration.max(Duration::from_secs(1))));
        }
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            other if other.starts_with('@') => return Err(format!("unrecognized descriptor: {other}")),
            other => other,
        };
        let parts: Vec<&str> = fields.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = parts[..] else {
            return Err(format!("expected exactly 5 fields, found {}: {parts:?}", parts.len()));
        };
        let star = |text: &str| text == "*" || text == "?" || text.starts_with("*/");
        let mut weekdays = field(weekday, 0, 7, &DAYS, 0)?;
        if weekdays & (1 << 7) != 0 {
            weekdays |= 1;
        }
        Ok(Self::Fields(Box::new(Fields {
            minute: field(minute, 0, 59, &[], 0)?,
            hour: field(hour, 0, 23, &[], 0)?,
            day: field(day, 1, 31, &[], 0)?,
            month: field(month, 1, 12, &MONTHS, 1)?,
            weekday: weekdays,
            any_day: star(day),
            any_weekday: star(weekday),
        })))
    }

    /// The first time after `after`; `None` when there is none within five years.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::Every(duration) => {
                let start = Timestamp::from_second(after.as_second()).ok()?;
                start.checked_add(*duration).ok()
            }
            Self::Fields(fields) => fields.next(after, zone),
        }
    }
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = after.to_zoned(zone.clone());
        let mut date = start.date();
        let last = date.checked_add(SEARCH_YEARS_MAX.years()).ok()?;
        while date <= last {
            if self.day_matches(date)
                && let Some(found) = self.next_on(date, after, zone)
            {
                return Some(found);
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    fn day_matches(&self, date: Date) -> bool {
        let has = |bits: u64, value: i8| bits & (1 << value) != 0;
        let day = has(self.day, date.day());
        let weekday = has(self.weekday, date.weekday().to_sunday_zero_offset());
        let either = if self.any_day || self.any_weekday { day && weekday } else { day || weekday };
        has(self.month, date.month()) && either
    }

    /// Walks the day in real minutes: hours that a clock change skips do not come, those it repeats come twice.
    fn next_on(&self, date: Date, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = date.to_zoned(zone.clone()).ok()?.timestamp();
        let end = date.tomorrow().ok()?.to_zoned(zone.clone()).ok()?.timestamp();
        let mut second = start.as_second().max(after.as_second().div_euclid(60) * 60);
        while second < end.as_second() {
            let at = Timestamp::from_second(second).ok()?;
            let time = at.to_zoned(zone.clone());
            if self.hour & (1 << time.hour()) == 0 {
                second += 60 * i64::from(60 - time.minute());
                continue;
            }
            if at > after && self.minute & (1 << time.minute()) != 0 {
                return Some(at);
            }
            second += 60;
        }
        None
    }
}

fn field(text: &str, min: u32, max: u32, names: &[&str], base: u32) -> Result<u64, String> {
    let number = |text: &str| -> Result<u32, String> {
        let lower = text.to_lowercase();
        if let Some(at) = names.iter().position(|name| *name == lower) {
            return Ok(at as u32 + base);
        }
        text.parse().map_err(|_| format!("failed to parse int from {text}"))
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(number(step)?)),
            None => (part, None),
        };
        let (first, last) = match range {
            "*" | "?" => (min, max),
            range => match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None if step.is_some() => (number(range)?, max),
                None => (number(range)?, number(range)?),
            },
        };
        // Sunday is 0; upstream's parser knows no 7 in a star.
        let last = if max == 7 && matches!(range, "*" | "?") { 6 } else { last };
        if first < min {
            return Err(format!("beginning of range ({first}) below minimum ({min}): {part}"));
        }
        if last > max {
            return Err(format!("end of range ({last}) above maximum ({max}): {part}"));
        }
        if first > last {
            return Err(format!("beginning of range ({first}) beyond end of range ({last}): {part}"));
        }
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(format!("step of range should be a positive number: {part}"));
        }
        (first..=last).step_by(step as usize).for_each(|value| bits |= 1 << value);
    }
    Ok(bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_times() {
        let check = |schedule: &str, zone: &str, after: &str, expected: &str| {
            let zone = TimeZone::get(zone).unwrap();
            let next = Schedule::parse(schedule).unwrap().next(after.parse().unwrap(), &zone);
            assert_eq!(next, Some(expected.parse().unwrap()), "{schedule}");
        };
        check("* * * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        check("*/15 * * * *", "UTC", "2026-01-01T00:16:30Z", "2026-01-01T00:30:00Z");
        check("0 9-17/4 * * mon-fri", "UTC", "2026-01-02T18:00:00Z", "2026-01-05T09:00:00Z");
        check("@monthly", "UTC", "2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z");
        check("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z");
        check("0 0 13 * 5", "UTC", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        check("0 0 * * 7", "UTC", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z");
        check("@every 1h30m", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T01:30:00Z");
        check("0 8 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", "2026-07-01T06:00:00Z");
        // The hour from 2 to 3 does not exist on that night.
        check("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z");
        let never = Schedule::parse("0 0 30 2 *").unwrap();
        assert_eq!(never.next("2026-01-01T00:00:00Z".parse().unwrap(), &TimeZone::UTC), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in
            ["", "* * * *", "60 * * * *", "* * * * 8", "*/0 * * * *", "5-1 * * * *", "@never", "@every x", "a * * * *"]
        {
            assert!(Schedule::parse(text).is_err(), "{text}");
        }
    }
}
