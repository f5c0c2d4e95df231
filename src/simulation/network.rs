//! The links between the places: which are cut, and when their last message arrives.

use super::clock::Nanos;

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    /// How many partitions cut it.
    cuts: u32,
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

    /// When a message that is sent at `at` has left, if that takes this time.
    pub(crate) fn carry(&mut self, from: usize, to: usize, at: Nanos, time: Nanos) -> Nanos {
        let link = &mut self.links[from][to];
        link.busy_until = link.busy_until.max(at) + time;
        link.busy_until
    }

    /// When a message that would arrive at `at` arrives if it stays behind those before it.
    pub(crate) fn in_order(&mut self, from: usize, to: usize, at: Nanos) -> Nanos {
        let link = &mut self.links[from][to];
        link.last = link.last.max(at);
        link.last
    }
}
