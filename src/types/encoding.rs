//! How values become bytes: in postcard's format.

pub(crate) mod bounded;

use postcard::ser_flavors::{Flavor, Size};
use serde::Serialize;

/// Why encoding cannot fail.
const HAVE_LENGTHS: &str = "it fails only for types that have no length, and none is used";

/// Appends an encoded value to `buffer`.
pub(crate) fn append(value: &impl Serialize, mut buffer: Vec<u8>) -> Vec<u8> {
    append_to(&mut buffer, value);
    buffer
}

/// The same, in place.
pub(crate) fn append_to(buffer: &mut Vec<u8>, value: &impl Serialize) {
    postcard::serialize_with_flavor(value, Appending(buffer)).expect(HAVE_LENGTHS);
}

/// How many bytes the encoded value takes.
pub(crate) fn size(value: &impl Serialize) -> usize {
    postcard::serialize_with_flavor(value, Size::default()).expect(HAVE_LENGTHS)
}

/// Copies slices as a whole. `postcard::to_extend` adds them byte by byte, which took a tenth of the processor time
/// of values of 1 MB.
struct Appending<'a>(&'a mut Vec<u8>);

impl Flavor for Appending<'_> {
    type Output = ();

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::types::log_form::Written;

    #[test]
    fn the_bytes_are_those_of_postcard() {
        let data: Arc<[u8]> = [0, 1, 255].into();
        let value = (300_u64, "text", Written(&data), vec![Some(-1_i32), None]);
        let mut expected = b"before".to_vec();
        expected.extend(postcard::to_allocvec(&value).unwrap());
        assert_eq!(append(&value, b"before".to_vec()), expected);
        assert_eq!(size(&value), expected.len() - b"before".len());
    }
}
