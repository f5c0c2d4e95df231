//! Places in the order of contenders, other than the last one.
//!
//! Contenders are ordered by number and then by name, and only sequential znodes get their number from the cluster.
//! An ephemeral znode that is created under its full name may have the number of another contender, and a name that
//! sorts directly behind that one. So it has a place behind any contender that is there. In its group of equal
//! numbers the contender that the cluster has numbered is always the first.
//!
//! The random part of a name decides between equal numbers. A new name takes a small random step behind the one before
//! it, so that many later ones fit in between and behind. If nothing fits, the contender stays at the end.
//!
//! Others see the same order: Curator sorts by the number alone, and its sort is stable, over children that the
//! cluster lists by name. For kazoo and Go, equal numbers matter only to the contender that the cluster has numbered.
//! It is the first of them, and they pass over the others.

use crate::recipes::contenders::name::digits;
use crate::types::znode::Zxid;

/// The digits of the random part.
const RANDOM: usize = 16;
/// The largest step behind another contender.
const STEP_MAX: u64 = 1 << 40;

/// What the name of an election's candidate tells about its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::recipes) struct Standing {
    pub(in crate::recipes) priority: i32,
    /// The czxid of its first znode, if this is another one.
    pub(in crate::recipes) origin: Option<Zxid>,
    /// Whether it has come forward for a hand-over.
    pub(in crate::recipes) is_forward: bool,
}

impl Standing {
    /// What the name shows; `None` for the candidates of other libraries.
    pub(in crate::recipes) fn of(name: &str) -> Option<Standing> {
        let rest = name.get(RANDOM..)?;
        if random(name).is_none() || !rest.starts_with('-') {
            return None;
        }
        let (priority, rest) = priority(rest).unwrap_or((0, rest));
        let standing = Standing { priority, ..Standing::default() };
        let (mark, is_forward) = match (rest.strip_prefix("-m"), rest.strip_prefix("-f")) {
            (Some(mark), _) => (mark, false),
            (_, Some(mark)) => (mark, true),
            _ => return Some(standing),
        };
        let is_mark = mark.as_bytes().get(RANDOM) == Some(&b'-');
        let origin = random(mark).filter(|_| is_mark);
        Some(Standing { origin, is_forward: is_forward && origin.is_some(), ..standing })
    }

    /// The part of the name that shows it. Empty for a candidate without a priority in its first place.
    pub(in crate::recipes) fn shown(self) -> String {
        let priority = match self.priority {
            0 => String::new(),
            priority => format!("-p{priority}"),
        };
        let mark = if self.is_forward { 'f' } else { 'm' };
        match self.origin {
            Some(origin) => format!("{priority}-{mark}{origin:016x}"),
            None => priority,
        }
    }

    /// Those of a higher rank come first. Nobody passes one that has come forward.
    fn rank(self) -> i64 {
        if self.is_forward { i64::MAX } else { i64::from(self.priority) }
    }
}

/// The priority at the start of what follows the random part, and the rest.
fn priority(shown: &str) -> Option<(i32, &str)> {
    let shown = shown.strip_prefix("-p")?;
    let end = shown.char_indices().skip(1).find(|(_, it)| !it.is_ascii_digit())?.0;
    let priority = shown[..end].parse().ok().filter(|_| !shown.starts_with('+'))?;
    Some((priority, &shown[end..])).filter(|(_, rest)| rest.starts_with('-'))
}

/// The random part of a name.
pub(in crate::recipes) fn random(name: &str) -> Option<u64> {
    let random = name.get(..RANDOM)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    random.bytes().all(is_digit).then(|| u64::from_str_radix(random, 16).ok()).flatten()
}

/// The contender behind which one of this standing belongs, if `before` are those in front of it. `None` if it is
/// where it belongs.
pub(in crate::recipes) fn behind<'a>(
    before: impl DoubleEndedIterator<Item = &'a str> + ExactSizeIterator,
    standing: Standing,
) -> Option<usize> {
    let last = before.len().checked_sub(1)?;
    let rank = |name| Standing::of(name).unwrap_or_default().rank();
    // Of equals, the first to arrive comes first. Nobody passes the first of all.
    let mut others = before.enumerate().rev();
    let at = others.find(|(_, name)| rank(name) >= standing.rank()).map_or(0, |(at, _)| at);
    (at < last).then_some(at)
}

/// A random part with which a name sorts directly behind the contender `before`, and before `next`, which follows it
/// in the order. `None` if no name does.
pub(in crate::recipes) fn between(before: &str, next: Option<&str>, entropy: u64) -> Option<u64> {
    let least = least_behind(before)?;
    let most = match next.filter(|next| digits(next) == digits(before)) {
        Some(next) => random(next)?.checked_sub(1)?,
        None => u64::MAX,
    };
    let room = most.checked_sub(least)?.saturating_add(1);
    Some(least + entropy % room.min(STEP_MAX))
}

/// The least random part with which a name sorts behind this one.
fn least_behind(name: &str) -> Option<u64> {
    let mut least = 0u128;
    for at in 0..RANDOM {
        let bits = 4 * (RANDOM - at);
        let found = match name.as_bytes().get(at).copied() {
            Some(byte @ b'0'..=b'9') => Ok(byte - b'0'),
            Some(byte @ b'a'..=b'f') => Ok(byte - b'a' + 10),
            None | Some(..b'0') => Err(least << bits),
            Some(..b'a') => Err((least << 4 | 10) << (bits - 4)),
            Some(_) => Err((least + 1) << bits),
        };
        match found {
            Ok(digit) => least = least << 4 | u128::from(digit),
            Err(least) => return u64::try_from(least).ok(),
        }
    }
    u64::try_from(least + 1).ok()
}

/// Reads an arbitrary text as names of contenders, a line each, and finds places among them.
#[cfg(any(test, fuzzing))]
pub(in crate::recipes) fn fuzz(text: &str) {
    use crate::recipes::contenders::{LATCH, LOCK, READ, WRITE, is_random, parse};

    let names: Vec<&str> = text.lines().collect();
    for (at, name) in names.iter().enumerate() {
        let _ = (parse(name, &[&LATCH, &LOCK, &READ, &WRITE]), is_random(name));
        let standing = Standing::of(name).unwrap_or_default();
        let again = format!("{at:016x}{}-latch-0000000001", standing.shown());
        assert_eq!(Standing::of(&again), Some(standing), "{name}");
        let _ = behind(names[..at].iter().copied(), standing);
        if let Some(random) = between(name, names.get(at + 1).copied(), at as u64)
            && let Some(digits) = digits(name)
        {
            let between = format!("{random:016x}-latch-{digits}");
            assert!(*name < between.as_str(), "{between} is not behind {name}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::recipes::contenders::name::{LATCH, Naming, new, parse};

    const UUID: &str = "_c_41bb8ee8-bb0d-4f29-9c1f-0123456789ab-latch-0000000007";
    const HEX: &str = "646dbb08aa7f4a7ea0f1b2c3d4e5f607__lock__0000000007";

    fn name(random: u64, standing: Standing, number: u32) -> String {
        format!("{}{number:010}", new(&LATCH, Naming::Curator, random, &standing.shown()))
    }

    fn standing(priority: i32) -> Standing {
        Standing { priority, ..Standing::default() }
    }

    #[test]
    fn candidates_of_others_have_no_standing() {
        for name in
            [UUID, HEX, "lock-0000000007", "x-72057594037927936-0000000001", "", "n_0000000001"]
        {
            assert_eq!(Standing::of(name), None, "{name}");
        }
        for shown in [
            "",
            "-p",
            "-p-",
            "-pear",
            "-p12",
            "-p99999999999-",
            "-m",
            "-m12-",
            "-f0123456789abcdef",
        ] {
            let name = format!("0123456789abcdef{shown}-lock-0000000001");
            let expected = if shown == "-p12" { 12 } else { 0 };
            let expected = standing(expected);
            assert_eq!(
                Standing::of(&name).map(|it| Standing { origin: None, is_forward: false, ..it }),
                Some(expected),
                "{name}"
            );
        }
    }

    #[test]
    fn there_is_a_place_behind_each_client_that_has_a_random_part() {
        for (before, least) in
            [(UUID, "a0"), (HEX, "646dbb08aa7f4a7f"), ("0000000007", "0000000007000000")]
        {
            let random = between(before, None, 0).expect("there is room");
            assert!(format!("{random:016x}").starts_with(least), "{random:016x}");
        }
        for before in ["lock-0000000007", "ffffffffffffffff-latch-0000000007"] {
            assert_eq!(between(before, None, 0), None);
        }
    }

    proptest! {
        #[test]
        fn a_name_shows_the_standing(random: u64, priority: i32, origin: Option<u64>, forward: bool) {
            let is_forward = forward && origin.is_some();
            let standing = Standing { priority, origin, is_forward };
            for naming in [Naming::Curator, Naming::Kazoo] {
                let name = format!("{}0000000001", new(&LATCH, naming, random, &standing.shown()));
                prop_assert_eq!(Standing::of(&name), Some(standing));
                prop_assert!(parse(&name, &[&LATCH]).is_some());
            }
        }

        #[test]
        fn a_name_fits_between_two(before in "[0-9a-g_-]{0,20}", next: u64, entropy: u64, has_next: bool) {
            let before = format!("{before}-latch-0000000007");
            let next = name(next, Standing::default(), 7);
            prop_assume!(before < next);
            let next = has_next.then_some(&next[..]);
            if let Some(random) = between(&before, next, entropy) {
                let name = name(random, Standing::default(), 7);
                prop_assert!(before < name, "{} {}", before, name);
                prop_assert!(next.is_none_or(|next| &name[..] < next), "{} {:?}", name, next);
            }
        }

        /// Whoever comes, the first stays the first, and the others are in the order of their priorities and, of
        /// equal ones, of their arrival. Curator, whose sort is stable, sees the same order.
        #[test]
        fn candidates_are_in_the_order_of_their_priorities(
            arrivals in prop::collection::vec((-2i32..3, any::<u64>(), 0u8..8), 1..60),
        ) {
            // Each with its priority and its arrival.
            let mut order: Vec<(String, i32, u32)> = Vec::new();
            for (number, (priority, random, leaves)) in (0u32..).zip(arrivals) {
                if leaves == 0 && !order.is_empty() {
                    order.remove(usize::try_from(random % 3).unwrap_or_default() % order.len());
                }
                let first = order.first().cloned();
                let names = || order.iter().map(|(name, ..)| &name[..]);
                let new = match behind(names(), standing(priority)) {
                    None => name(random, standing(priority), number),
                    Some(at) => {
                        let random = between(&order[at].0, Some(&order[at + 1].0), random);
                        let digits = digits(&order[at].0).and_then(|digits| digits.parse().ok());
                        let (Some(random), Some(number)) = (random, digits) else { continue };
                        name(random, standing(priority), number)
                    }
                };
                order.push((new, priority, number));
                order.sort_by(|(one, ..), (other, ..)| {
                    let key = |name| parse(name, &[&LATCH]).map(|(order, _)| order);
                    (key(one), one).cmp(&(key(other), other))
                });
                if let Some(first) = first {
                    prop_assert_eq!(&order[0], &first);
                }
                let rest = &order[1..];
                let expected = |one: &(String, i32, u32)| (-one.1, one.2);
                prop_assert!(rest.is_sorted_by_key(expected), "{:?}", order);

                let mut curators: Vec<_> = order.iter().map(|(name, ..)| name.clone()).collect();
                curators.sort();
                curators.sort_by_key(|name| name.rsplit("latch-").next().map(str::to_owned));
                prop_assert!(curators.iter().eq(order.iter().map(|(name, ..)| name)));
            }
        }
    }

    /// kazoo's rule, `Lock._get_predecessor`: the last one of those with a smaller number, in the order of the numbers.
    fn predecessor_by_kazoo<'a>(names: &[&'a str], own: &str) -> Option<&'a str> {
        let mut before: Vec<_> = names.iter().filter(|name| digits(name) < digits(own)).collect();
        before.sort_by_key(|name| digits(name));
        before.last().map(|name| **name)
    }

    /// The cluster gives each of the others a number that nobody has. So one of them is the first of its group.
    #[test]
    fn behind_a_contender_of_another_library_nobody_is_in_front_of_it() {
        let after = HEX.replace("0000000007", "0000000008");
        for before in [UUID, HEX] {
            let random = between(before, None, 1 << 20).expect("there is room");
            let ours = name(random, Standing::default(), 7);
            // A second one fits in between, and a third one behind it.
            let second = between(before, Some(&ours), 1).expect("there is room");
            let third = between(&ours, None, 1).expect("there is room");
            assert!(second < random && random < third);
            let [second, third] = [second, third].map(|it| name(it, standing(1), 7));
            // As the cluster lists them.
            let mut names = vec![before, &ours, &second, &third, &after];
            names.sort_unstable();
            assert_eq!(predecessor_by_kazoo(&names, before), None);
            assert!(
                predecessor_by_kazoo(&names, &after).is_some_and(|it| digits(it) == digits(before))
            );
            // Go's rule: the first has the smallest number. And Curator's, whose sort is stable.
            assert!(names.iter().all(|name| digits(before) <= digits(name)));
            names.sort_by_key(|name| digits(name));
            assert_eq!(names, [before, &second, &ours, &third, &after]);
        }
    }
}
