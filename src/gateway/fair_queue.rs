//! A queue in which addresses take turns, however many entries each of them has.
//!
//! In each round, every address with waiting entries has one turn. An address that has had no turn lately comes
//! first. This is start-time fair queueing, where all entries cost the same.
//!
//! Source: P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queuing", SIGCOMM 1996.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

#[derive(Debug)]
pub(super) struct FairQueue<T> {
    /// By the round in which each is due; then those of addresses that have had no turn lately, before the others;
    /// then in the order of their arrival.
    waiting: BTreeMap<(u64, bool, u64), (IpAddr, T)>,
    /// The addresses with waiting entries or a turn in a later round than the current one: the round after their
    /// last entry, and how many entries wait.
    addresses: BTreeMap<IpAddr, (u64, usize)>,
    /// The round of the last entry taken.
    round: u64,
    arrivals: u64,
}

impl<T> Default for FairQueue<T> {
    fn default() -> FairQueue<T> {
        FairQueue { waiting: BTreeMap::new(), addresses: BTreeMap::new(), round: 0, arrivals: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Adds an entry, unless so many of its address wait already.
    pub(super) fn push(&mut self, from: IpAddr, most: usize, entry: T) -> Result<(), T> {
        let from = network(from);
        let had_turn = self.addresses.contains_key(&from);
        let (next, waiting) = self.addresses.entry(from).or_insert((self.round, 0));
        if *waiting >= most {
            return Err(entry);
        }
        let round = self.round.max(*next);
        (*next, *waiting) = (round + 1, *waiting + 1);
        self.arrivals += 1;
        self.waiting.insert((round, had_turn, self.arrivals), (from, entry));
        Ok(())
    }

    /// Takes the next entry.
    pub(super) fn pop(&mut self) -> Option<T> {
        let ((round, ..), (from, entry)) = self.waiting.pop_first()?;
        self.round = round;
        if let Some((_, waiting)) = self.addresses.get_mut(&from) {
            *waiting -= 1;
        }
        match self.waiting.is_empty() {
            // Nobody waits for anybody.
            true => self.addresses.clear(),
            false => self.addresses.retain(|_, (next, waiting)| *waiting > 0 || *next > round),
        }
        Some(entry)
    }
}

/// The addresses that one host may have: of IPv6, a network of 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, number])
    }

    /// 60 clients of one host kept everybody else waiting for 60 checks.
    #[test]
    fn an_address_with_many_entries_delays_others_by_one() {
        let mut queue = FairQueue::default();
        for number in 0..60 {
            queue.push(address(1), 60, number).unwrap();
        }
        assert_eq!([queue.pop(), queue.pop()], [Some(0), Some(1)]);
        queue.push(address(2), 60, 100).unwrap();
        queue.push(address(2), 60, 101).unwrap();
        queue.push(address(3), 60, 200).unwrap();
        // Each address has one entry in a round.
        let next: Vec<i32> = std::iter::from_fn(|| queue.pop()).take(6).collect();
        assert_eq!(next, [100, 200, 2, 101, 3, 4]);
        assert_eq!(queue.push(address(9), 0, 7), Err(7), "there is no room");
    }

    /// Many hosts that never stop asking do not delay one that asks now and then.
    #[test]
    fn an_address_that_had_no_turn_lately_is_next() {
        let mut queue = FairQueue::default();
        for round in 0..3 {
            for number in 1..=200 {
                queue.push(address(number), 3, round).unwrap();
            }
        }
        for _ in 0..250 {
            queue.pop();
        }
        queue.push(address(250), 1, 99).unwrap();
        assert_eq!(queue.pop(), Some(99));
        assert_eq!(queue.addresses.len(), 201);
        while queue.pop().is_some() {}
        assert!(queue.addresses.is_empty(), "nothing is kept of those that are gone");
    }

    #[test]
    fn the_addresses_of_a_host_are_one() {
        let network = |text: &str| network(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:0:0:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
    }
}
