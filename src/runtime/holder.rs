//! The numbers of sessions' holders.
//!
//! A session is used by one holder at a time: the handles of the instance that opened or resumed it, or
//! one connection of a gateway. Each holder draws a random number, which its requests carry, so that the
//! requests of a former one are refused. The lowest bit tells what kind of holder it is. An instance that
//! is started again sees by it which sessions are its former run's, and over for good, and which belong to
//! clients of its gateway, which continue them elsewhere.

use crate::runtime::entropy;
use crate::types::error::Result;

const INSTANCE: u64 = 1;

/// The number of a new holder: the handles of an instance.
pub(crate) fn of_instance() -> Result<u64> {
    Ok(entropy::number()? | INSTANCE)
}

/// The number of a new holder: a connection of a gateway.
#[cfg(feature = "gateway")]
pub(crate) fn of_connection() -> Result<u64> {
    Ok(entropy::number()? & !INSTANCE)
}

/// Whether the holder with this number is, or was, an instance's handles.
pub(crate) fn is_instance(holder: u64) -> bool {
    holder & INSTANCE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_holder_is_in_its_number() {
        for _ in 0..64 {
            assert!(is_instance(of_instance().unwrap()));
            #[cfg(feature = "gateway")]
            assert!(!is_instance(of_connection().unwrap()));
        }
    }
}
