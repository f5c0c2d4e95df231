//! Who may connect to a gateway.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::ending::Ending;
use crate::api::support::files;
use crate::types::right::Right;

/// How many connections for which there is no file wait for a four-letter word, so that a monitor sees that.
const WORDS_MAX: usize = 8;

/// How many clients are connected, by their addresses, and whether there is room for another one.
pub(super) struct Admission {
    from: BTreeMap<IpAddr, usize>,
    /// How many files the process may have open.
    pub(super) files_max: Option<usize>,
}

impl Admission {
    pub(super) fn new(files_max: Option<usize>) -> Admission {
        Admission { from: BTreeMap::new(), files_max }
    }

    /// Why no client may connect from this address, if so many are `connected` and so many files `open`.
    pub(super) fn refusal(
        &self,
        from: IpAddr,
        connected: usize,
        open: usize,
        (most_in_all, most_of_address): (usize, usize),
    ) -> Option<Ending> {
        let of_address = self.from.get(&from).copied().unwrap_or(0);
        let most = match most_of_address {
            0 => usize::MAX,
            most => most,
        };
        match self.lacks_files(open.saturating_sub(WORDS_MAX)) {
            _ if connected >= most_in_all => Some(Ending::TooMany { most: most_in_all }),
            Some(refusal) => Some(refusal),
            None => (of_address >= most).then_some(Ending::TooManyOfAddress { most }),
        }
    }

    /// Why a client is refused when so many files are open.
    pub(super) fn lacks_files(&self, open: usize) -> Option<Ending> {
        let most = self.files_max.filter(|most| open >= files::room(*most, Right::Client))?;
        Some(Ending::TooManyFiles { open, most })
    }

    pub(super) fn connected(&mut self, from: IpAddr) {
        *self.from.entry(from).or_default() += 1;
    }

    pub(super) fn left(&mut self, from: IpAddr) {
        if let Some(count) = self.from.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.from.remove(&from);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.from.values().sum()
    }
}
