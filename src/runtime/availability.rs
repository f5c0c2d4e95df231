//! Whether the cluster can decide, told to whoever wants to know.

use std::sync::{Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::availability::Availability;

/// How many changes wait for a reader. One who is slower sees the latest once there is room.
const CHANGES: usize = 16;

/// Who reads how the cluster is.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    readers: Mutex<Vec<Reader>>,
}

#[derive(Debug)]
struct Reader {
    changes: Sender<Availability>,
    told: Option<Availability>,
}

impl Readers {
    /// One more, which is told how it is now first.
    pub(crate) fn add(&self, now: &Availability) -> Receiver<Availability> {
        let (changes, receiver) = bounded(CHANGES);
        let mut reader = Reader { changes, told: None };
        reader.tell(now);
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
        receiver
    }

    pub(crate) fn tell(&self, now: &Availability) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain_mut(|reader| reader.tell(now));
    }

    /// There is nothing more to tell.
    pub(crate) fn end(&self) {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Reader {
    /// Whether it still reads.
    fn tell(&mut self, now: &Availability) -> bool {
        if self.told.as_ref() == Some(now) {
            return true;
        }
        match self.changes.try_send(now.clone()) {
            Ok(()) => {
                self.told = Some(now.clone());
                true
            }
            Err(TrySendError::Full(_)) => true,
            Err(TrySendError::Disconnected(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_risk(n: usize) -> Availability {
        Availability::AtRisk { reason: n.to_string() }
    }

    #[test]
    fn a_slow_reader_misses_what_was_in_between_and_never_the_last() {
        let readers = Readers::default();
        let changes = readers.add(&at_risk(0));
        for n in 0..100 {
            readers.tell(&at_risk(n));
        }
        let seen: Vec<Availability> = changes.try_iter().collect();
        assert_eq!(seen.len(), CHANGES);
        assert_eq!(seen[..2], [at_risk(0), at_risk(1)]);
        readers.tell(&at_risk(99));
        readers.tell(&at_risk(99));
        assert_eq!(changes.try_iter().collect::<Vec<_>>(), [at_risk(99)]);
        readers.end();
        assert!(changes.recv().is_err());
    }
}
