//! A znode's data as lines: JSON with line breaks, text, or hexadecimal.

use serde::de::IgnoredAny;

/// How many bytes are shown at most.
pub(super) const SHOWN_BYTES_MAX: usize = 64 << 10;
/// A longer line is broken.
const PIECE_CHARS: usize = 500;
/// The bytes in a line of hexadecimal.
const HEX_WIDTH: usize = 8;

/// The type of the data, and its lines, without control characters.
pub(super) fn lines(data: &[u8]) -> (&'static str, Vec<String>) {
    let shown = &data[..data.len().min(SHOWN_BYTES_MAX)];
    let text = match std::str::from_utf8(shown) {
        Ok(text) => Some(text),
        // The data may be cut inside a character.
        Err(error) if shown.len() < data.len() && error.error_len().is_none() => {
            std::str::from_utf8(&shown[..error.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    match text {
        _ if data.is_empty() => ("empty", Vec::new()),
        Some(text) if is_structured(text) => ("JSON", indented(text)),
        Some(text) if !text.contains(is_binary) => {
            ("text", text.lines().flat_map(pieces).collect())
        }
        _ => ("binary", hexadecimal(shown)),
    }
}

/// A long line in parts, so that the user can scroll through it.
fn pieces(line: &str) -> Vec<String> {
    let letters: Vec<char> = line.replace('\t', "    ").chars().collect();
    let pieces: Vec<String> =
        letters.chunks(PIECE_CHARS).map(|piece| piece.iter().collect()).collect();
    if pieces.is_empty() { vec![String::new()] } else { pieces }
}

fn is_binary(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\n' | '\r' | '\t')
}

fn is_structured(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Breaks the lines of valid JSON, and changes nothing else: not the order of names, nor the digits of a number.
fn indented(json: &str) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    let (mut depth, mut in_string, mut is_escaped) = (0_usize, false, false);
    // A deeper indentation would leave no room on the screen.
    let indent = |depth: usize| "  ".repeat(depth.min(16));
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            _ if in_string => {
                line.push(letter);
                in_string = is_escaped || letter != '"';
                is_escaped = letter == '\\' && !is_escaped;
            }
            ' ' | '\t' | '\n' | '\r' => {}
            '{' | '[' => {
                line.push(letter);
                while letters.next_if(char::is_ascii_whitespace).is_some() {}
                match letters.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => line.push(end),
                    None => {
                        depth += 1;
                        lines.push(std::mem::replace(&mut line, indent(depth)));
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                lines.push(std::mem::replace(&mut line, indent(depth)));
                line.push(letter);
            }
            ',' => {
                line.push(',');
                lines.push(std::mem::replace(&mut line, indent(depth)));
            }
            ':' => line.push_str(": "),
            _ => {
                line.push(letter);
                in_string = letter == '"';
            }
        }
    }
    lines.push(line);
    lines
}

fn hexadecimal(data: &[u8]) -> Vec<String> {
    let line = |(at, part): (usize, &[u8])| {
        let bytes: String = part.iter().map(|byte| format!("{byte:02x} ")).collect();
        let letter = |byte: &u8| match byte {
            0x20..0x7f => char::from(*byte),
            _ => '.',
        };
        let letters: String = part.iter().map(letter).collect();
        format!("{:04x}  {bytes:<24} {letters}", at * HEX_WIDTH)
    };
    data.chunks(HEX_WIDTH).enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{SHOWN_BYTES_MAX, lines};

    #[test]
    fn json_is_broken_into_lines_and_not_changed() {
        let data =
            br#"{"b":[1, 123456789012345678901234567890],"a":{"x":"{,:\"\\","e":{ },"l":[]}}"#;
        let expected = [
            "{",
            r#"  "b": ["#,
            "    1,",
            "    123456789012345678901234567890",
            "  ],",
            r#"  "a": {"#,
            r#"    "x": "{,:\"\\","#,
            r#"    "e": {},"#,
            r#"    "l": []"#,
            "  }",
            "}",
        ];
        assert_eq!(lines(data), ("JSON", expected.map(str::to_owned).to_vec()));
        assert_eq!(lines(b"{\"a\":").0, "text", "it is not JSON");
        let deep = [vec![b'['; 100], vec![b']'; 100]].concat();
        assert_eq!(lines(&deep).0, "JSON");
    }

    #[test]
    fn text_is_shown_as_it_is_and_all_else_as_bytes() {
        assert_eq!(lines(b""), ("empty", vec![]));
        let text = "ü 1\n\tsecond".as_bytes();
        assert_eq!(lines(text), ("text", vec!["ü 1".to_owned(), "    second".to_owned()]));
        let escape = b"\x1b[2Jhello \xff";
        let (kind, shown) = lines(escape);
        assert_eq!(kind, "binary");
        assert_eq!(shown[0], "0000  1b 5b 32 4a 68 65 6c 6c  .[2Jhell");
        assert_eq!(shown[1], "0008  6f 20 ff                 o .");
    }

    #[test]
    fn long_data_is_cut_also_inside_a_character() {
        let long = "ü".repeat(SHOWN_BYTES_MAX);
        let cut = [b"a", long.as_bytes()].concat();
        let (kind, shown) = lines(&cut);
        assert_eq!((kind, shown.concat().len()), ("text", SHOWN_BYTES_MAX - 1));
    }
}
