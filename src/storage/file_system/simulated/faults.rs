//! The faults of a device: which are armed, and how often each has struck.

use super::random::Random;

/// A kind of fault.
///
/// The store promises to survive all but [`FaultKind::LyingSync`], as long as enough members are sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    /// A sync fails. The pages stay readable, count as clean, and no later sync writes them.
    FailedSync,
    /// The system cannot write pages by itself: as a failed sync, which the next sync reports.
    FailedWriteBack,
    /// A read fails. The next one may not.
    FailedRead,
    /// A write fails, and may leave a part.
    FailedWrite,
    /// A page cannot be read from the device until it is written again.
    BadSector,
    /// The device changes a bit of a page.
    Rot,
    /// As `Rot`, and the cache does not hold the page.
    UncachedRot,
    /// The device says that it has written a page, and has not.
    LostWrite,
    /// The device writes a page to the place of another one.
    MisdirectedWrite,
    /// There is no space left for one call.
    NoSpace,
    /// No more files can be opened, for one call.
    NoDescriptor,
    /// A sync returns, and nothing is durable. No store survives this: outside of what is promised.
    LyingSync,
}

impl FaultKind {
    pub(crate) const ALL: [FaultKind; 12] = [
        FaultKind::FailedSync,
        FaultKind::FailedWriteBack,
        FaultKind::FailedRead,
        FaultKind::FailedWrite,
        FaultKind::BadSector,
        FaultKind::Rot,
        FaultKind::UncachedRot,
        FaultKind::LostWrite,
        FaultKind::MisdirectedWrite,
        FaultKind::NoSpace,
        FaultKind::NoDescriptor,
        FaultKind::LyingSync,
    ];
}

/// A fault that is about to strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// How many calls that it could strike it leaves alone; pages, for writes of the device. Faults that
    /// need no call strike at once.
    pub(crate) after: u64,
}

impl Fault {
    /// A fault at the next call.
    pub(crate) fn next(kind: FaultKind) -> Fault {
        Fault { kind, after: 0 }
    }

    /// Draws a fault that the store promises to survive.
    pub(crate) fn draw(random: &mut Random) -> Fault {
        let promised = FaultKind::ALL.len() - 1;
        let kind = FaultKind::ALL[random.index(promised)];
        // Mostly soon, since a member may make few calls.
        let below = *random.pick(&[1, 4, 16, 64]).unwrap_or(&1);
        Fault { kind, after: random.below(below) }
    }
}

const KINDS: usize = FaultKind::ALL.len();

/// How often each kind of fault has struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Struck([u64; KINDS]);

impl Struck {
    pub(crate) fn count(&self, kind: FaultKind) -> u64 {
        self.0[kind as usize]
    }
}

/// The faults of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    armed: [Option<u64>; KINDS],
    pub(super) struck: Struck,
}

impl Faults {
    pub(super) fn arm(&mut self, fault: Fault) {
        self.armed[fault.kind as usize] = Some(fault.after);
    }

    pub(super) fn disarm(&mut self) {
        self.armed = [None; KINDS];
    }

    /// Whether a fault of this kind strikes a call that it could strike.
    pub(super) fn strikes(&mut self, kind: FaultKind) -> bool {
        let armed = &mut self.armed[kind as usize];
        match armed {
            None => false,
            Some(0) => {
                *armed = None;
                self.note(kind);
                true
            }
            Some(after) => {
                *after -= 1;
                false
            }
        }
    }

    pub(super) fn note(&mut self, kind: FaultKind) {
        self.struck.0[kind as usize] += 1;
    }
}
