//! The links between places: which of them are cut, and when their messages arrive.

use super::clock::Nanos;

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// The number of partitions that cut it.
    cuts: u32,
    /// The lanes of urgent messages and of all others.
    urgent: Lane,
    usual: Lane,
    /// The longest transmission time of a message that is not urgent, since the lane was last
    /// empty.
    longest: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// When the last message sent in order arrives.
    last: Nanos,
    /// Until when it transmits what was sent so far.
    busy_until: Nanos,
}

#[derive(Debug)]
pub(crate) struct Network {
    links: Vec<Vec<Link>>,
}

impl Network {
    /// The links among these members, and between them and these clients, whose places come after
    /// the members'. Clients have no links to each other.
    pub(crate) fn new(members: usize, clients: usize) -> Network {
        let mut links = vec![vec![Link::default(); members + clients]; members];
        links.extend((0..clients).map(|_| vec![Link::default(); members]));
        Network { links }
    }

    pub(crate) fn is_open(&self, from: usize, to: usize) -> bool {
        self.links[from][to].cuts == 0
    }

    /// Adds one partition to a link. Returns whether the link was open before.
    pub(crate) fn cut(&mut self, from: usize, to: usize) -> bool {
        let link = &mut self.links[from][to];
        link.cuts += 1;
        link.cuts == 1
    }

    /// Removes one partition from a link. Returns whether the link is open now.
    pub(crate) fn heal_link(&mut self, from: usize, to: usize) -> bool {
        let link = &mut self.links[from][to];
        link.cuts = link.cuts.saturating_sub(1);
        link.cuts == 0
    }

    /// Removes all partitions and returns the links that were cut.
    pub(crate) fn heal_all(&mut self) -> Vec<(usize, usize)> {
        let mut mended = Vec::new();
        for (from, links) in self.links.iter_mut().enumerate() {
            for (to, link) in links.iter_mut().enumerate() {
                if std::mem::take(&mut link.cuts) > 0 {
                    mended.push((from, to));
                }
            }
        }
        mended
    }

    /// When a message that is sent at `at` and takes `time` has left the sender. An urgent one
    /// waits only for other urgent ones, and for one more that is being transmitted.
    pub(crate) fn transmit(
        &mut self,
        (from, to): (usize, usize),
        urgent: bool,
        at: Nanos,
        time: Nanos,
    ) -> Nanos {
        let link = &mut self.links[from][to];
        let waits = link.usual.busy_until.saturating_sub(at);
        if !urgent {
            link.longest = if waits == 0 { time } else { link.longest.max(time) };
            link.usual.busy_until =
                link.usual.busy_until.max(link.urgent.busy_until).max(at) + time;
            return link.usual.busy_until;
        }
        let begins = at.max(link.urgent.busy_until).max(at + waits.min(link.longest));
        link.urgent.busy_until = begins + time;
        if waits > 0 {
            link.usual.busy_until += time;
        }
        link.urgent.busy_until
    }

    /// When a message that would arrive at `at` arrives if it stays behind the messages before it.
    pub(crate) fn in_order(&mut self, from: usize, to: usize, urgent: bool, at: Nanos) -> Nanos {
        let link = &mut self.links[from][to];
        let lane = if urgent { &mut link.urgent } else { &mut link.usual };
        lane.last = lane.last.max(at);
        lane.last
    }
}
