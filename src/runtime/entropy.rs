//! Random numbers, from the operating system: the only place that asks for them.

use crate::error::{Error, Result};

/// A number that nobody can guess.
pub(crate) fn number() -> Result<u64> {
    Ok(u64::from_ne_bytes(bytes()?))
}

/// Bytes that nobody can guess.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::System { what: "random numbers", reason: error.to_string() })?;
    Ok(bytes)
}
