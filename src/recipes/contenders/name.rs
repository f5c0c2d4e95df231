//! The names of contenders: those that instances give, and those of ZooKeeper's clients in other languages.
//!
//! A name ends with the number that the cluster gave it, and the number alone is the order. What is before it
//! tells the kind. The rules of others (read in their sources) are the reason for the forms:
//!
//! | | its names | counts |
//! | --- | --- | --- |
//! | Curator 5.9 (`StandardLockInternalsDriver`) | `_c_<uuid>-lock-N` | all children, in the order of what follows the last `lock-`, or of the whole name |
//! | (`LeaderLatch`, `InterProcessReadWriteLock`) | `-latch-N`, `-__READ__N`, `-__WRIT__N` | the same, by these words |
//! | kazoo 2.11 (`Lock`) | `<hex>__lock__N`, of readers `<hex>__rlock__N` | `__lock__N`, and ends that its user names |
//! | Go, `samuel/go-zookeeper` | `_c_<hex>-lock-N` | what follows the last `-`, and fails if a child has no number there |
//! | Go, `go-zookeeper/zk` | the same | what follows the last `lock-` or `__`, and fails likewise |
//! | ZooKeeper's recipes | `<guid>-lock-N`, `read-N`, `write-N`, `n_N`, `x-<session>-N` | |
//!
//! So the random part comes first, and the word and the number last.

use crate::recipes::sequence;
use crate::types::znode::Zxid;

/// The fewest digits of a number.
const DIGITS: usize = 10;

/// Whose names the contenders of a recipe have, so that clients of another library count them: a setting of
/// [`Lock`](crate::recipes::Lock), [`ReadWriteLock`](crate::recipes::ReadWriteLock),
/// [`LeaderLatch`](crate::recipes::LeaderLatch) and others.
///
/// Whatever the setting, this instance counts the contenders of all of them. All that use one path should have
/// the same names: see [`guide::shared_recipes`](crate::guide::shared_recipes).
///
/// ```
/// use quorate::recipes::Naming;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let lock = session.lock("/locks/nightly")?.with_naming(Naming::Kazoo);
/// assert!(lock.acquire().wait()?.path().ends_with("__lock__0000000000"));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Naming {
    /// As Curator and the Go client name theirs. kazoo counts them if its user says so
    /// (`extra_lock_patterns`).
    #[default]
    Curator,
    /// As kazoo names its own. Curator does not count them.
    Kazoo,
}

/// What a contender wants.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::recipes) struct ContenderKind {
    /// As users see it.
    pub(in crate::recipes) name: &'static str,
    /// The end of the names of [`Naming::Curator`], before the number.
    curator: &'static str,
    kazoo: &'static str,
    /// The ends of the names that others give to the same. One that begins with `-` may be the whole name,
    /// without the `-`.
    known: &'static [&'static str],
}

impl ContenderKind {
    /// A kind that only instances of quorate have.
    const fn own(
        name: &'static str,
        end: &'static str,
        known: &'static [&'static str],
    ) -> ContenderKind {
        ContenderKind { name, curator: end, kazoo: end, known }
    }

    fn end(&self, naming: Naming) -> &'static str {
        match naming {
            Naming::Curator => self.curator,
            Naming::Kazoo => self.kazoo,
        }
    }

    fn includes(&self, name: &str) -> bool {
        self.known.iter().any(|end| {
            name.ends_with(end) || end.strip_prefix('-').is_some_and(|whole| name == whole)
        }) || (self.name == "lock" && name.starts_with("x-") && name.ends_with('-'))
    }
}

/// Of a lock. Curator and Go take any name for a lock's that ends so.
pub(in crate::recipes) const LOCK: ContenderKind = ContenderKind {
    name: "lock",
    curator: "-lock-",
    kazoo: "__lock__",
    known: &["lock-", "__lock__"],
};
/// A reader of a read-write lock.
pub(in crate::recipes) const READ: ContenderKind = ContenderKind {
    name: "read",
    curator: "-__READ__",
    kazoo: "__rlock__",
    known: &["__READ__", "__rlock__", "-read-"],
};
/// A writer of a read-write lock. Those of kazoo have the names of its locks.
pub(in crate::recipes) const WRITE: ContenderKind = ContenderKind {
    name: "write",
    curator: "-__WRIT__",
    kazoo: "__lock__",
    known: &["__WRIT__", "__lock__", "-write-"],
};
/// The ends of the names of candidates: Curator's and kazoo's elections are locks, but for the latch.
const CANDIDATES: &[&str] = &["latch-", "lock-", "__lock__", "-n_"];
/// The kind of candidates, as users see it.
const CANDIDATE: &str = "candidate";
/// A candidate of a latch.
pub(in crate::recipes) const LATCH: ContenderKind = ContenderKind {
    name: CANDIDATE,
    curator: "-latch-",
    kazoo: "-candidate__lock__",
    known: CANDIDATES,
};
/// A candidate of a selector. The word `candidate` is for those who list the contenders of all recipes.
pub(in crate::recipes) const SELECTOR: ContenderKind = ContenderKind {
    name: CANDIDATE,
    curator: "-candidate-lock-",
    kazoo: "-candidate__lock__",
    known: CANDIDATES,
};
/// Of a semaphore.
pub(in crate::recipes) const LEASE: ContenderKind =
    ContenderKind::own("lease", "-lease-", &["-lease-"]);
/// Of a double barrier.
pub(in crate::recipes) const PARTICIPANT: ContenderKind =
    ContenderKind::own("participant", "-participant-", &["-participant-"]);
/// Waits for an item of a queue.
pub(in crate::recipes) const TAKER: ContenderKind =
    ContenderKind::own("take", "-take-", &["-take-"]);
/// Waits for room in a queue.
pub(in crate::recipes) const PUTTER: ContenderKind = ContenderKind::own("put", "-put-", &["-put-"]);

/// The name of a contender without its number. `data` is shown to everybody who lists the names.
pub(super) fn new(kind: &ContenderKind, naming: Naming, random: u64, data: &str) -> String {
    format!("{random:016x}{data}{}", kind.end(naming))
}

/// A name and its number; `None` if it has none that the cluster gave.
fn split(name: &str) -> Option<(&str, &str)> {
    if planted!(CuratorsIgnored) && name.starts_with("_c_") {
        return None;
    }
    let rest = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let number = &name[rest.len()..];
    (number.len() >= DIGITS).then_some((rest, number))
}

/// The digits at the end of a contender's name.
pub(in crate::recipes) fn digits(name: &str) -> Option<&str> {
    split(name).map(|(_, number)| number)
}

/// The place in the order, and the kind; `None` if it is of none of the kinds.
pub(in crate::recipes) fn parse<'a>(
    name: &'a str,
    kinds: &[&'static ContenderKind],
) -> Option<((usize, &'a str), &'static ContenderKind)> {
    let (rest, number) = split(name)?;
    let kind = kinds.iter().find(|kind| kind.includes(rest))?;
    Some((sequence::number(number)?, kind))
}

/// Whether the session that has given this name may pass our contenders without seeing them: the name is
/// that of a sequential znode, and of another kind; or Curator's, which counts only contenders whose names have
/// the same word as its own.
pub(super) fn is_unknown(name: &str, kinds: &[&'static ContenderKind], naming: Naming) -> bool {
    let Some((rest, _)) = split(name).filter(|_| !is_call(name)) else { return false };
    let is_ours = |kind: &&'static ContenderKind| rest.ends_with(word(kind.end(naming)));
    match kinds.iter().any(|kind| kind.includes(rest)) {
        true => name.starts_with("_c_") && !kinds.iter().any(is_ours),
        false => true,
    }
}

/// The end of a name by which Curator orders: `lock-` of `-candidate-lock-`.
fn word(end: &str) -> &str {
    let rest = end.strip_suffix('-').unwrap_or(end);
    rest.rfind('-').map_or(end, |at| &end[at + 1..])
}

/// The name of the znode by which a leader calls this candidate forward. Others sort it behind all contenders: Curator
/// by the whole name, Go by the number. kazoo passes over it.
pub(in crate::recipes) fn call(origin: Zxid) -> String {
    format!("call-{origin:016x}-{}", i32::MAX)
}

pub(super) fn is_call(name: &str) -> bool {
    name.starts_with("call-")
}

/// Whether the name begins with a random part, as all do that Curator, kazoo, Go and quorate give.
pub(in crate::recipes) fn is_random(name: &str) -> bool {
    let name = name.strip_prefix("_c_").unwrap_or(name);
    let random = name.bytes().take_while(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    split(name).is_some_and(|(rest, _)| !rest.is_empty())
        && random.filter(|byte| *byte != b'-').count() >= 16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "_c_41bb8ee8-bb0d-4f29-9c1f-0123456789ab";
    const HEX: &str = "646dbb08aa7f4a7ea0f1b2c3d4e5f607";
    const LOCKS: &[&ContenderKind] = &[&LOCK];
    const SHARED: &[&ContenderKind] = &[&READ, &WRITE];
    const LATCHES: &[&ContenderKind] = &[&LATCH];
    const SELECTORS: &[&ContenderKind] = &[&SELECTOR];

    fn kind(name: &str, kinds: &[&'static ContenderKind]) -> Option<&'static str> {
        parse(name, kinds).map(|(_, kind)| kind.name)
    }

    #[test]
    fn the_names_of_each_client_are_counted() {
        for name in [
            format!("{UUID}-lock-0000000001"),
            format!("_c_{HEX}-lock-0000000001"),
            format!("{HEX}-lock-0000000001"),
            format!("{HEX}__lock__0000000001"),
            "lock-0000000001".to_owned(),
            "x-72057594037927936-0000000001".to_owned(),
        ] {
            assert_eq!(parse(&name, LOCKS), Some(((10, "0000000001"), &LOCK)), "{name}");
            assert!(!is_unknown(&name, LOCKS, Naming::Curator), "{name}");
        }
        for (name, expected) in [
            (format!("{UUID}-__READ__0000000001"), Some("read")),
            (format!("{UUID}-__WRIT__0000000001"), Some("write")),
            (format!("{HEX}__rlock__0000000001"), Some("read")),
            (format!("{HEX}__lock__0000000001"), Some("write")),
            ("read-0000000001".to_owned(), Some("read")),
            (format!("{HEX}-write-0000000001"), Some("write")),
            // The mutex of Curator and its read-write lock do not exclude each other either.
            (format!("{UUID}-lock-0000000001"), None),
            ("thread-0000000001".to_owned(), None),
        ] {
            assert_eq!(kind(&name, SHARED), expected, "{name}");
        }
        for end in ["latch-", "lock-", "__lock__", "-n_"] {
            let name = format!("{HEX}-{end}0000000001");
            assert_eq!(kind(&name, LATCHES), Some("candidate"), "{name}");
        }
        // A lock in kazoo's sense does not exclude its readers, so they are no contenders of a lock.
        let reader = format!("{HEX}__rlock__0000000001");
        assert_eq!(kind(&reader, LOCKS), None);
        assert!(is_unknown(&reader, LOCKS, Naming::Curator));
        // Not sequential: no contender at all.
        for name in ["held", "delay", "lock-1", "leases", "config", ""] {
            assert!(!is_unknown(name, LOCKS, Naming::Curator), "{name}");
            assert_eq!(kind(name, LOCKS), None);
        }
    }

    #[test]
    fn a_contender_that_does_not_count_ours_is_unknown() {
        let (latch, lock) = (format!("{UUID}-latch-0000000001"), format!("{UUID}-lock-0000000001"));
        let is_unknown_of =
            |kinds, naming| (is_unknown(&latch, kinds, naming), is_unknown(&lock, kinds, naming));
        assert_eq!(is_unknown_of(LATCHES, Naming::Curator), (false, true));
        assert_eq!(is_unknown_of(SELECTORS, Naming::Curator), (true, false));
        // Curator counts no name of kazoo's form.
        assert_eq!(is_unknown_of(LATCHES, Naming::Kazoo), (true, true));
        assert!(is_unknown(&lock, LOCKS, Naming::Kazoo));
        // kazoo's may count any form, if its user says so.
        let kazoo = format!("{HEX}__lock__0000000001");
        for kinds in [LOCKS, SHARED, LATCHES, SELECTORS] {
            for naming in [Naming::Curator, Naming::Kazoo] {
                assert!(!is_unknown(&kazoo, kinds, naming));
            }
        }
    }

    /// Curator's rule: `StandardLockInternalsDriver.standardFixForSorting`.
    fn order_by_curator<'a>(name: &'a str, words: &[&str]) -> &'a str {
        words
            .iter()
            .fold(name, |name, word| name.rfind(word).map_or(name, |at| &name[at + word.len()..]))
    }

    /// kazoo's rule: the expression of `Lock._contenders_re`.
    fn number_by_kazoo<'a>(name: &'a str, ends: &[&str]) -> Option<&'a str> {
        let number = name.len().checked_sub(10)?;
        let digits = name.get(number..)?;
        (digits.bytes().all(|byte| byte.is_ascii_digit())
            && ends.iter().any(|end| name[..number].ends_with(end)))
        .then_some(digits)
    }

    proptest! {
        /// Others see the same order that we see.
        #[test]
        fn the_number_alone_is_the_order(one: u64, other: u64, numbers in (0u32..1 << 31, 0u32..1 << 31)) {
            prop_assume!(numbers.0 != numbers.1);
            let before = numbers.0 < numbers.1;
            let all = [(&LOCK, "lock-"), (&READ, "__READ__"), (&WRITE, "__WRIT__"), (&LATCH, "latch-"), (&SELECTOR, "lock-")];
            for (kind, word) in all {
                let name = |random, number, naming| format!("{}{number:010}", new(kind, naming, random, ""));
                let (first, second) = (name(one, numbers.0, Naming::Curator), name(other, numbers.1, Naming::Curator));
                let curators = format!("{UUID}-{word}{:010}", numbers.1);
                prop_assert_eq!(order_by_curator(&first, &[word]) < order_by_curator(&second, &[word]), before);
                prop_assert_eq!(order_by_curator(&first, &[word]) < order_by_curator(&curators, &[word]), before);
                // Both clients for Go.
                let digits = format!("{:010}", numbers.0);
                if word == "lock-" {
                    prop_assert_eq!(first.rsplit('-').next(), Some(&digits[..]));
                    prop_assert_eq!(first.rsplit("lock-").next(), Some(&digits[..]));
                }
                prop_assert_eq!(number_by_kazoo(&first, &["__lock__", word]), Some(&digits[..]));
                let kazoos = name(one, numbers.0, Naming::Kazoo);
                prop_assert_eq!(number_by_kazoo(&kazoos, &["__lock__", "__rlock__"]), Some(&digits[..]));
                for name in [&first, &second, &curators, &kazoos] {
                    let listed = parse(name, &[kind]);
                    prop_assert!(listed.is_some_and(|(_, listed)| listed.name == kind.name), "{}", name);
                    prop_assert!(is_random(name), "{}", name);
                }
                let ours = |name| parse(name, &[kind]).map(|(order, _)| order);
                prop_assert_eq!(ours(&first) < ours(&second), before);
            }
        }

        #[test]
        fn no_name_is_both_counted_and_ignored(name in "[-a-f0-9_lockREADxn]{0,24}[0-9]{8,12}") {
            for kinds in [LOCKS, SHARED, LATCHES, SELECTORS] {
                let counted = parse(&name, kinds).is_some();
                let sequential = digits(&name).is_some();
                prop_assert!(counted || is_unknown(&name, kinds, Naming::Curator) == sequential);
            }
        }
    }
}
