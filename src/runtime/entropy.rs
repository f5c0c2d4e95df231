//! Random numbers from the operating system: the only place that gets them.

use crate::types::error::{Error, Result};

/// A random number that cannot be guessed.
pub(crate) fn number() -> Result<u64> {
    Ok(u64::from_ne_bytes(bytes()?))
}

/// Random bytes that cannot be guessed.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    #[cfg(any(test, feature = "simulator"))]
    if simulated::fill(&mut bytes) {
        return Ok(bytes);
    }
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::System { what: "random numbers", reason: error.to_string() })?;
    Ok(bytes)
}

/// Numbers from a seed, for the thread of a simulation: all of its entropy comes from here.
#[cfg(any(test, feature = "simulator"))]
pub(crate) mod simulated {
    use std::cell::Cell;

    use xxhash_rust::xxh3::xxh3_64;

    thread_local! {
        static STATE: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Seeds this thread's numbers; `None` returns to the system's.
    pub(crate) fn seed(seed: Option<u64>) {
        STATE.set(seed);
    }

    fn word(state: u64) -> [u8; 8] {
        xxh3_64(&state.to_le_bytes()).to_le_bytes()
    }

    /// What the next [`number`](super::number) will be.
    pub(crate) fn peek() -> u64 {
        STATE.get().map_or(0, |state| u64::from_ne_bytes(word(state.wrapping_add(1))))
    }

    pub(super) fn fill(bytes: &mut [u8]) -> bool {
        let Some(mut state) = STATE.get() else {
            return false;
        };
        for part in bytes.chunks_mut(8) {
            state = state.wrapping_add(1);
            part.copy_from_slice(&word(state)[..part.len()]);
        }
        STATE.set(Some(state));
        true
    }
}
