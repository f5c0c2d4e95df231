//! The links between the places: which are cut, and when their last message arrives.

use super::clock::Nanos;

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// How many partitions cut it.
    cuts: u32,
    /// What is urgent, and all else.
    urgent: Lane,
    usual: Lane,
    /// What the longest of the messages took that are not urgent, since there was none last.
    longest: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    /// When the last message sent in order arrives.
    last: Nanos,
    /// Until when it carries what was sent so far.
    busy_until: Nanos,
}

#[derive(Debug)]
pub(crate) struct Network {
    links: Vec<Vec<Link>>,
}

impl Network {
    /// The links among these members, and between them and these clients, whose places come after
    /// theirs. Clients have no links with each other.
    pub(crate) fn new(members: usize, clients: usize) -> Network {
        let mut links = vec![vec![Link::default(); members + clients]; members];
        links.extend((0..clients).map(|_| vec![Link::default(); members]));
        Network { links }
    }

    pub(crate) fn is_open(&self, from: usize, to: usize) -> bool {
        self.links[from][to].cuts == 0
    }

    /// Cuts a link. Returns whether it was open before.
    pub(crate) fn cut(&mut self, from: usize, to: usize) -> bool {
        let link = &mut self.links[from][to];
        link.cuts += 1;
        link.cuts == 1
    }

    /// Takes away one partition of a link. Returns whether it is open now.
    pub(crate) fn mend(&mut self, from: usize, to: usize) -> bool {
        let link = &mut self.links[from][to];
        link.cuts = link.cuts.saturating_sub(1);
        link.cuts == 0
    }

    /// Mends all links, and returns those that were cut.
    pub(crate) fn mend_all(&mut self) -> Vec<(usize, usize)> {
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

    /// When a message that is sent at `at` has left, if that takes this time. An urgent one waits for others
    /// that are urgent, and for one more that is under way.
    pub(crate) fn carry(
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

    /// When a message that would arrive at `at` arrives if it stays behind those before it.
    pub(crate) fn in_order(&mut self, from: usize, to: usize, urgent: bool, at: Nanos) -> Nanos {
        let link = &mut self.links[from][to];
        let lane = if urgent { &mut link.urgent } else { &mut link.usual };
        lane.last = lane.last.max(at);
        lane.last
    }
}
