//! The data of a write.

use std::ops::Deref;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The new data of a znode. ZooKeeper's own clients may write null and read it back as null; all others
/// read it as empty. As a slice, null is empty too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Data(Option<Bytes>);

/// Empty.
impl Default for Data {
    fn default() -> Data {
        Data(Some(Bytes::new()))
    }
}

impl Data {
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_none()
    }
}

impl Deref for Data {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<Option<Bytes>> for Data {
    fn from(data: Option<Bytes>) -> Data {
        Data(data)
    }
}

impl From<Bytes> for Data {
    fn from(data: Bytes) -> Data {
        Data(Some(data))
    }
}

impl From<&[u8]> for Data {
    fn from(data: &[u8]) -> Data {
        Data(Some(Bytes::copy_from_slice(data)))
    }
}

#[cfg(any(test, feature = "simulator", fuzzing))]
mod for_tests {
    use super::*;

    impl From<Vec<u8>> for Data {
        fn from(data: Vec<u8>) -> Data {
            Data(Some(data.into()))
        }
    }

    impl From<String> for Data {
        fn from(data: String) -> Data {
            Data(Some(data.into()))
        }
    }

    impl From<&'static str> for Data {
        fn from(data: &'static str) -> Data {
            Data(Some(data.into()))
        }
    }
}
