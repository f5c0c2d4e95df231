//! Names below a queue: of its parts, and of its items.
//!
//! An item's name is `<priority>-<zxid>-<place>-<id>`. The priority is eight hexadecimal digits that sort as the
//! numbers do; the zxid is that of the write that put the item, and the place its place in that write. So the
//! names sort in the order in which items are taken. The id is `i` and its encoded bytes, or nothing if there is no
//! id. An item that is not due yet has the time when it will be before its name.

use std::fmt::{self, Display, Write};

use serde::{Deserialize, Serialize};

use crate::types::znode::Zxid;

/// The items that may be taken.
pub(crate) const ITEMS: &str = "items";
/// The items that are not due yet.
pub(crate) const DELAYED: &str = "delayed";
/// The items that a consumer has.
pub(crate) const TAKEN: &str = "taken";
/// For each of these, an ephemeral of its consumer.
pub(crate) const CLAIMS: &str = "claims";

/// The parts that have the items of a queue.
pub(crate) const COUNTED: [&str; 3] = [ITEMS, DELAYED, TAKEN];

/// Where an item goes that is put into a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueOrder {
    pub(crate) priority: i32,
    /// How long after the put it is due.
    pub(crate) delay_ms: u64,
    /// See [`written`].
    pub(crate) id: String,
    /// The most items that the queue may have then.
    pub(crate) max: Option<u64>,
}

/// The name of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ItemName {
    pub(crate) priority: i32,
    zxid: Zxid,
    place: u64,
    /// The id as it is encoded in names.
    id: String,
}

impl ItemName {
    pub(crate) fn new(priority: i32, zxid: Zxid, place: u64, id: &str) -> ItemName {
        ItemName { priority, zxid, place, id: id.to_owned() }
    }

    /// `None` for the name of a znode that is not an item.
    pub(crate) fn parse(name: &str) -> Option<ItemName> {
        let mut parts = name.splitn(4, '-');
        let mut number = |digits: usize| {
            let part = parts.next().filter(|part| part.len() >= digits)?;
            let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            u64::from_str_radix(part, 16).ok().filter(|_| is_hex)
        };
        let (priority, zxid, place) = (number(8)?, number(16)?, number(5)?);
        let priority = (u32::try_from(priority).ok()? ^ SIGN).cast_signed();
        let id = parts.next().filter(|id| !id.contains('-'))?;
        Some(ItemName::new(priority, zxid, place, id))
    }

    /// In the order in which items were put.
    pub(crate) fn number(&self) -> (Zxid, u64) {
        (self.zxid, self.place)
    }

    pub(crate) fn has_id(&self, id: &str) -> bool {
        self.id == written(Some(id))
    }

    /// The id, if it has one.
    pub(crate) fn id(&self) -> Option<String> {
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
}

/// The bit that makes negative priorities come first.
const SIGN: u32 = 1 << 31;

impl Display for ItemName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ItemName { priority, zxid, place, id } = self;
        write!(f, "{:08x}-{zxid:016x}-{place:05x}-{id}", priority.cast_unsigned() ^ SIGN)
    }
}

/// The queue and the name of a znode at this path that is an item which a consumer has, or its claim.
pub(crate) fn split_taken(path: &str) -> Option<(&str, &str)> {
    let (parent, name) = path.rsplit_once('/')?;
    let (queue, part) = parent.rsplit_once('/')?;
    let is_one = (part == TAKEN || part == CLAIMS) && ItemName::parse(name).is_some();
    is_one.then_some((queue, name))
}

/// Encodes an id: all bytes but ASCII letters and digits become `%` and two digits, so that
/// different ids have different encodings.
pub(crate) fn written(id: Option<&str>) -> String {
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

/// The name of a delayed item, which is due at this time of the log.
pub(crate) fn due_name(due: u64, name: &str) -> String {
    format!("{due:016x}-{name}")
}

/// The time when a delayed item is due, and the name that it will have then. `None` for the name of a znode that
/// is not such an item.
pub(crate) fn split_due(delayed: &str) -> Option<(u64, &str)> {
    let (due, name) = delayed.split_once('-').filter(|(due, _)| due.len() == 16)?;
    ItemName::parse(name)?;
    Some((u64::from_str_radix(due, 16).ok()?, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(priority: i32, number: (Zxid, u64), id: Option<&str>) -> String {
        ItemName::new(priority, number.0, number.1, &written(id)).to_string()
    }

    #[test]
    fn a_name_is_parsed_into_its_parts() {
        for id in [None, Some(""), Some("a/b|c"), Some("%-i"), Some("\u{1F980} \n")] {
            for priority in [i32::MIN, -1, 0, 1, i32::MAX] {
                let name = name(priority, (u64::MAX, 7), id);
                let parsed = ItemName::parse(&name).unwrap();
                assert_eq!((parsed.priority, parsed.number()), (priority, (u64::MAX, 7)));
                assert_eq!(parsed.id().as_deref(), id);
                assert!(id.is_none_or(|id| parsed.has_id(id)));
                assert!(!parsed.has_id("other"));
                assert_eq!(split_due(&due_name(12, &name)), Some((12, &*name)));
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
    fn names_sort_by_priority_and_then_in_the_order_of_the_puts() {
        let sorted = [
            name(i32::MIN, (9, 0), None),
            name(-1, (8, 0), None),
            name(0, (1, 0), Some("z")),
            name(0, (1, 1), None),
            name(0, (2, 0), Some("a")),
            name(0, (u64::MAX, 0), None),
            name(1, (0, 0), None),
        ];
        for pair in sorted.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
        }
    }

    #[test]
    fn names_of_other_znodes_are_not_items() {
        let item = name(0, (1, 0), None);
        let others = ["", "x", "00000000-0--", "zoo", &item[1..], &item[..item.len() - 1]];
        for name in others.into_iter().chain([&*format!("{item}a-b"), &item.replace('8', "X")]) {
            assert_eq!(ItemName::parse(name), None, "{name}");
            assert_eq!(split_due(&due_name(1, name)), None, "{name}");
        }
        assert_eq!(split_due(&item), None);
    }

    #[test]
    fn an_item_that_a_consumer_has_is_told_by_its_path() {
        let item = name(0, (1, 0), None);
        for (queue, part) in [("", TAKEN), ("/a", TAKEN), ("/a/b", CLAIMS)] {
            assert_eq!(split_taken(&format!("{queue}/{part}/{item}")), Some((queue, &*item)));
        }
        for path in ["/", "/taken", "/taken/x", "/a/taken/x", &format!("/a/items/{item}")] {
            assert_eq!(split_taken(path), None, "{path}");
        }
    }
}
