//! What all members agree on: the partitions, and how many of them may move at a time.
//!
//! It is text, so that it can be read by eye: `moves 100`, and then `partitions 64`, or one name a line.

use xxhash_rust::xxh3::xxh3_64;

use crate::types::error::{Error, Result};
use crate::types::path;

/// More of them than that would make the plan a large value.
const PARTITIONS_MAX: usize = 100_000;

#[derive(Clone, Debug)]
pub(super) struct Settings {
    partitions: PartitionNames,
    pub(super) moves_max: usize,
}

#[derive(Clone, Debug)]
enum PartitionNames {
    Numbered(usize),
    /// Sorted, each once.
    Named(Vec<String>),
}

impl Settings {
    pub(super) fn numbered(partitions: usize, moves_max: usize) -> Result<Settings> {
        check(partitions)?;
        Ok(Settings { partitions: PartitionNames::Numbered(partitions), moves_max })
    }

    pub(super) fn named(below: &str, mut names: Vec<String>, moves_max: usize) -> Result<Settings> {
        names.sort_unstable();
        names.dedup();
        check(names.len())?;
        for name in &names {
            // Control characters would also be none of a line.
            let path = path::join(below, name);
            if name.contains('/') {
                let reason = "a partition's name is one name, without '/'".into();
                return Err(Error::InvalidPath { path, reason });
            }
            path::validate(&path)?;
        }
        Ok(Settings { partitions: PartitionNames::Named(names), moves_max })
    }

    pub(super) fn partitions(&self) -> usize {
        match &self.partitions {
            PartitionNames::Numbered(partitions) => *partitions,
            PartitionNames::Named(names) => names.len(),
        }
    }

    pub(super) fn name_of(&self, number: usize) -> String {
        match &self.partitions {
            PartitionNames::Numbered(_) => number.to_string(),
            // Numbers are those of a plan with as many partitions.
            PartitionNames::Named(names) => names.get(number).cloned().unwrap_or_default(),
        }
    }

    pub(super) fn number_of(&self, key: &[u8]) -> Option<usize> {
        match &self.partitions {
            // The remainder is less than the number of partitions.
            PartitionNames::Numbered(partitions) => {
                Some((xxh3_64(key) % *partitions as u64) as usize)
            }
            PartitionNames::Named(names) => {
                names.binary_search_by(|name| name.as_bytes().cmp(key)).ok()
            }
        }
    }

    pub(super) fn encoded(&self) -> String {
        let partitions = match &self.partitions {
            PartitionNames::Numbered(partitions) => format!("partitions {partitions}"),
            PartitionNames::Named(names) => format!("names\n{}", names.join("\n")),
        };
        format!("moves {}\n{partitions}", self.moves_max)
    }

    /// The settings in a znode.
    pub(super) fn decoded(below: &str, data: &[u8]) -> Option<Settings> {
        let (moves, partitions) = std::str::from_utf8(data).ok()?.split_once('\n')?;
        let moves = moves.strip_prefix("moves ")?.parse().ok()?;
        let settings = match partitions.split_once('\n') {
            None => {
                Settings::numbered(partitions.strip_prefix("partitions ")?.parse().ok()?, moves)
            }
            Some(("names", names)) => {
                Settings::named(below, names.split('\n').map(str::to_owned).collect(), moves)
            }
            Some(_) => return None,
        };
        settings.ok()
    }

    pub(super) fn summary(&self) -> String {
        summary(&self.encoded())
    }
}

/// The settings in one short line.
pub(super) fn summary(settings: &str) -> String {
    let line = settings.replace('\n', ", ");
    match line.char_indices().nth(80) {
        Some((end, _)) => format!("\"{} ...\"", &line[..end]),
        None => format!("\"{line}\""),
    }
}

fn check(partitions: usize) -> Result<()> {
    if (1..=PARTITIONS_MAX).contains(&partitions) {
        return Ok(());
    }
    let reason = format!("{partitions} is not between 1 and {PARTITIONS_MAX}");
    Err(Error::InvalidSetting { setting: "partitions", reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_the_same_partition_for_ever() {
        let numbered = Settings::numbered(64, 1).unwrap();
        let keys = ["", "a", "customer-1", "10.0.0.1:80"];
        // Programs of other languages compute the same.
        assert_eq!(keys.map(|key| numbered.number_of(key.as_bytes()).unwrap()), [2, 31, 12, 8]);
        let named = Settings::named("/a", vec!["b".into(), "a".into(), "b".into()], 1).unwrap();
        assert_eq!(named.encoded(), "moves 1\nnames\na\nb");
        assert_eq!(
            [&b"a"[..], b"b", b"c"].map(|key| named.number_of(key)),
            [Some(0), Some(1), None]
        );
        assert_eq!((named.name_of(1), named.partitions()), ("b".to_owned(), 2));
        for settings in [numbered, named] {
            let again = Settings::decoded("/a", settings.encoded().as_bytes());
            assert_eq!(again.map(|it| it.encoded()), Some(settings.encoded()));
        }
        for data in
            ["", "moves 1", "moves 1\nelse 2", "moves 1\npartitions 0", "moves 1\nnames\na/b"]
        {
            assert!(Settings::decoded("/a", data.as_bytes()).is_none(), "{data:?}");
        }
    }

    #[test]
    fn partitions_have_bounds_and_names_are_valid() {
        for partitions in [0, PARTITIONS_MAX + 1] {
            let refused = Settings::numbered(partitions, 1);
            assert!(matches!(refused, Err(Error::InvalidSetting { .. })));
        }
        assert!(matches!(Settings::named("/a", vec![], 1), Err(Error::InvalidSetting { .. })));
        for name in ["a/b", "", "..", "a\nb"] {
            let refused = Settings::named("/a", vec![name.to_owned()], 1);
            assert!(matches!(refused, Err(Error::InvalidPath { .. })), "{name:?}");
        }
        let many = Settings::named("/a", (0..99).map(|it| format!("é{it}")).collect(), 1).unwrap();
        assert!(many.summary().ends_with(" ...\""));
    }
}
