//! How the program shows text that others have written: names, labels, ids, addresses, data, errors.
//!
//! A terminal obeys control characters, and characters that reverse or hide text let one name look like another. So
//! everything that is printed passes here, and such characters become `\u{1b}`. Output that is not for people is left
//! as it is: a znode's data in a pipe.

use std::borrow::Cow;
use std::fmt::Write;

use serde_json::Value;

/// Whether a terminal obeys the character, or shows nothing for it: controls, marks of direction, and what has no
/// width.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |letter: char| is_hidden(letter) && !is_kept(letter);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match is_escaped(letter) {
            true => shown.extend(letter.escape_unicode()),
            false => shown.push(letter),
        }
    }
    Cow::Owned(shown)
}

/// A value that has a part of a line: a name, an id, a label.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// A text of this program, whose values are [`line`]s: with its line breaks.
pub(crate) fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| letter == '\n')
}

/// Data for a terminal: text as it is, with its line breaks and tabs, and other bytes as `\xff`.
pub(crate) fn data(data: &[u8]) -> String {
    let mut shown = String::with_capacity(data.len());
    for part in data.utf8_chunks() {
        shown.push_str(&escaped(part.valid(), |letter| matches!(letter, '\n' | '\t')));
        for byte in part.invalid() {
            // Writing to a String does not fail.
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// JSON, with the same characters in the escapes of JSON: the value is the same.
pub(crate) fn json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_hidden) {
        return Cow::Borrowed(json);
    }
    let mut shown = String::with_capacity(json.len() + 8);
    for letter in json.chars() {
        // A line break is never inside a string of JSON.
        if !is_hidden(letter) || letter == '\n' {
            shown.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    Cow::Owned(shown)
}

/// A value in one line of JSON.
pub(crate) fn json_line(value: &Value) -> String {
    json(&value.to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A label set the title of an operator's terminal, and forged a line of the table of locks.
    #[test]
    fn what_a_terminal_obeys_or_hides_is_escaped() {
        let label = "\u{1b}]0;OWNED\u{7}\r\nlock /forged\u{9b}2J\u{7f}";
        assert_eq!(line(label), r"\u{1b}]0;OWNED\u{7}\u{d}\u{a}lock /forged\u{9b}2J\u{7f}");
        assert_eq!(lines("one\n\ttwo\r\n"), "one\n\\u{9}two\\u{d}\n");
        for hidden in
            "\u{202e}\u{2066}\u{2069}\u{200b}\u{200f}\u{2028}\u{feff}\u{61c}\u{e0041}".chars()
        {
            let name = format!("a{hidden}b");
            assert_eq!(line(&name), format!("a{}b", hidden.escape_unicode()));
        }
        let plain = "ünï 日本 🙂 \\ \"quoted\" {}";
        assert!(matches!(line(plain), Cow::Borrowed(same) if same == plain));
    }

    #[test]
    fn data_keeps_its_lines_on_a_terminal() {
        assert_eq!(data(b"a\tb\n\x1b[2J\xff\xfe \xc3"), "a\tb\n\\u{1b}[2J\\xff\\xfe \\xc3");
        assert_eq!(data(b""), "");
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({ "a\u{202e}": ["\u{e0041}\u{7f}", "\u{1b}\n", "ü"] });
        for text in [format!("{value:#}"), value.to_string()] {
            let shown = json(&text);
            assert!(!shown.contains(|letter| is_hidden(letter) && letter != '\n'), "{shown:?}");
            assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
        }
    }
}
