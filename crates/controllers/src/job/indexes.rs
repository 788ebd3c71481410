//! Sets of completion indexes in the compact form that jobs store: `0,2-5,9`.
//! Used by the job core.
//! Printing and parsing agree; numbers beyond the limit are dropped.

use std::collections::BTreeSet;

pub type Indexes = BTreeSet<i32>;

pub fn parse(text: &str, limit: i32) -> Indexes {
    let mut indexes = Indexes::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            indexes.extend(first.max(0)..=last.min(limit - 1));
        }
    }
    indexes
}

pub fn print(indexes: &Indexes) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut rest = indexes.iter().copied().peekable();
    while let Some(first) = rest.next() {
        let mut last = first;
        while rest.peek() == Some(&(last + 1)) {
            last += 1;
            rest.next();
        }
        parts.push(match last - first {
            0 => first.to_string(),
            1 => format!("{first},{last}"),
            _ => format!("{first}-{last}"),
        });
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compact_form() {
        let check = |text: &str, numbers: &[i32]| {
            let indexes = parse(text, 100);
            assert_eq!(indexes.iter().copied().collect::<Vec<_>>(), numbers);
            assert_eq!(print(&indexes), text);
        };
        check("", &[]);
        check("3", &[3]);
        check("0,1", &[0, 1]);
        check("0-2,5,7-9", &[0, 1, 2, 5, 7, 8, 9]);
        assert_eq!(parse("98-200,x", 100).len(), 2);
    }
}
