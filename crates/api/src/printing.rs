//! How values are shown in tables: ages and the like.
//! Used by `kinds/*` for their cells.
//! Invariant: pure; the time is an argument (tidy: `pure_files`).

use std::time::Duration;

use jiff::Timestamp;

use crate::codec::format_duration;

/// `5d3h`, as `kubectl get` shows the time since `timestamp`.
pub fn age(timestamp: Option<&str>, now: Timestamp) -> String {
    match timestamp.and_then(|t| t.parse::<Timestamp>().ok()) {
        Some(then) => human_duration(now.as_second() - then.as_second()),
        None => "<unknown>".to_string(),
    }
}

/// As Go prints a duration, to the millisecond: `1h0m0s`, `1.5s`, `300ms`.
pub fn go_duration(duration: Duration) -> String {
    format_duration(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX).saturating_mul(1_000_000))
}

/// Two units at most, the finer one only while it matters.
pub fn human_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |big: i64, unit: &str, small: i64, small_unit: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{small_unit}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_string(),
        -1..0 => "0s".to_string(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn durations_read_as_kubectl_prints_them() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (121, "2m1s"),
            (600, "10m"),
            (10_860, "3h1m"),
            (172_800, "2d"),
            (180_000, "2d2h"),
        ] {
            assert_eq!(super::human_duration(seconds), text, "{seconds}");
        }
    }
}
