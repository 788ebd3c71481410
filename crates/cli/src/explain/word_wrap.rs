//! Breaks text at spaces so that lines stay within a width, as upstream's word wrapping does.
//! Used by `explain`.
//! A word that is wider than the line is not broken.

pub fn wrap(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut column, mut word, mut space) = (0, String::new(), String::new());
    let count = |text: &str| text.chars().count();
    for c in text.chars() {
        if c == '\n' {
            if word.is_empty() {
                if column + count(&space) <= width {
                    out.push_str(&space);
                }
            } else {
                out.push_str(&space);
                out.push_str(&word);
            }
            space.clear();
            word.clear();
            out.push('\n');
            column = 0;
        } else if c.is_whitespace() && c != '\u{a0}' {
            if space.is_empty() || !word.is_empty() {
                column += count(&space) + count(&word);
                out.push_str(&space);
                out.push_str(&word);
                space.clear();
                word.clear();
            }
            space.push(c);
        } else {
            word.push(c);
            if column + count(&word) + count(&space) > width && count(&word) < width {
                out.push('\n');
                column = 0;
                space.clear();
            }
        }
    }
    if !word.is_empty() {
        out.push_str(&space);
        out.push_str(&word);
    } else if column + count(&space) <= width {
        out.push_str(&space);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::wrap;

    #[test]
    fn lines_stay_within_the_width() {
        let check = |text: &str, width: usize, expected: &str| assert_eq!(wrap(text, width), expected);
        check("one two three", 7, "one two\nthree");
        check("a\nb c", 3, "a\nb c");
        check("toolongword x", 4, "toolongword\nx");
        check("end \n", 10, "end \n");
        check("trailing ", 20, "trailing ");
    }
}
