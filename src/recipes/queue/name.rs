//! The name of an item's znode: `<priority>-<delay>-<id>-<number>`.
//!
//! The priority is eight hexadecimal digits that sort as the numbers do. The delay is in
//! milliseconds, in hexadecimal. The id is `i` and its encoded bytes, or nothing if there is no id.
//! The number is the parent's next sequence number. So the list of names describes the items
//! completely, except for their data.

use std::cmp::Ordering;
use std::fmt::Write;

use crate::planted::{Bug, unless};
use crate::recipes::sequence;

/// An item's name, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// The whole name.
    pub(super) name: String,
    pub(super) priority: i32,
    pub(super) delay_ms: u64,
    /// The id as it is encoded in names.
    id: String,
    /// The number in the form of [`sequence::number`].
    number: (usize, String),
}

/// A name without its number.
pub(super) fn prefix(priority: i32, delay_ms: u64, id: Option<&str>) -> String {
    format!("{:08x}-{delay_ms:x}-{}-", ordered(priority), written(id))
}

/// Encodes a priority so that negative numbers come first.
fn ordered(priority: i32) -> u32 {
    priority.cast_unsigned() ^ (1 << 31)
}

/// Encodes an id: all bytes but ASCII letters and digits become `%` and two digits, so that
/// different ids have different encodings.
fn written(id: Option<&str>) -> String {
    let Some(id) = id else { return String::new() };
    let mut written = String::from("i");
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() {
            written.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(written, "%{byte:02x}");
        }
    }
    written
}

impl Name {
    /// `None` for a znode that is not an item.
    pub(super) fn parse(name: String) -> Option<Name> {
        let mut parts = name.split('-');
        let (priority, delay, id, number) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() || priority.len() != 8 {
            return None;
        }
        let (length, digits) = sequence::number(number)?;
        let priority = u32::from_str_radix(priority, 16).ok()?;
        Some(Name {
            priority: (priority ^ (1 << 31)).cast_signed(),
            delay_ms: u64::from_str_radix(delay, 16).ok()?,
            id: id.to_owned(),
            number: (length, digits.to_owned()),
            name,
        })
    }

    pub(super) fn has_id(&self, id: &str) -> bool {
        self.id == written(Some(id))
    }

    /// The id, if it has one.
    pub(super) fn id(&self) -> Option<String> {
        let mut bytes = Vec::new();
        let mut rest = self.id.strip_prefix('i')?.bytes();
        while let Some(byte) = rest.next() {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            match byte {
                b'%' => {
                    let value = digit(rest.next())? * 16 + digit(rest.next())?;
                    bytes.push(u8::try_from(value).ok()?);
                }
                byte => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).ok()
    }

    /// The order of items: by priority, and then in the order in which they were put.
    pub(super) fn order(&self, other: &Name) -> Ordering {
        let by_priority = self.priority.cmp(&other.priority);
        let by_priority = unless(Bug::QueuePriorityIgnored, by_priority, Ordering::Equal);
        by_priority.then_with(|| self.number.cmp(&other.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(priority: i32, delay_ms: u64, id: Option<&str>, number: &str) -> Name {
        Name::parse(prefix(priority, delay_ms, id) + number).expect("it is one")
    }

    #[test]
    fn a_name_is_parsed_into_its_parts() {
        for id in [None, Some(""), Some("a/b|c"), Some("%-i"), Some("\u{1F980} \n")] {
            for priority in [i32::MIN, -1, 0, 1, i32::MAX] {
                let name = name(priority, 7_000, id, "0000000012");
                assert_eq!((name.priority, name.delay_ms), (priority, 7_000));
                assert_eq!(name.id().as_deref(), id);
                assert!(id.is_none_or(|id| name.has_id(id)));
                assert!(!name.has_id("other"));
            }
        }
    }

    #[test]
    fn no_two_ids_are_written_alike() {
        let ids = ["a/b", "a|b", "a%2fb", "a-b", "A/b", "", "%", "%%"];
        for (at, one) in ids.iter().enumerate() {
            for other in &ids[at + 1..] {
                assert_ne!(written(Some(one)), written(Some(other)));
            }
            assert_ne!(written(None), written(Some(one)));
        }
    }

    #[test]
    fn the_lower_priority_comes_first_and_then_the_lower_number() {
        let sorted = [
            name(i32::MIN, 0, None, "0000000009"),
            name(-1, 0, None, "0000000008"),
            name(0, 5, Some("z"), "0000000001"),
            name(0, 0, None, "9999999999"),
            name(0, 0, None, "10000000000"),
            name(1, 0, None, "0000000000"),
        ];
        for pair in sorted.windows(2) {
            assert_eq!(pair[0].order(&pair[1]), Ordering::Less, "{pair:?}");
        }
        let (one, other) = (name(-1, 0, None, "0").name, name(1, 0, None, "0").name);
        assert!(one < other, "the names themselves sort by priority");
    }

    #[test]
    fn names_of_other_znodes_are_not_items() {
        for name in
            ["", "x", "00000000-0--", "0-0--1", "80000000-0--1-2", "80000000-x--1", "zoo-0--1"]
        {
            assert_eq!(Name::parse(name.to_owned()), None, "{name}");
        }
    }
}
