//! The data of a write.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::types::log_form::LogForm;

/// The new data of a znode. ZooKeeper's own clients may write null and read it back as null; all others
/// read it as empty. As a slice, null is empty too. A clone shares the bytes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Data(#[serde(with = "LogForm")] Option<Arc<[u8]>>);

/// Empty.
impl Default for Data {
    fn default() -> Data {
        Data::from(&[][..])
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(bytes) => write!(f, "b\"{}\"", bytes.escape_ascii()),
            None => f.write_str("null"),
        }
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
        Data(data.as_deref().map(Arc::from))
    }
}

impl From<&[u8]> for Data {
    fn from(data: &[u8]) -> Data {
        Data(Some(Arc::from(data)))
    }
}

#[cfg(any(test, feature = "simulator", fuzzing))]
mod for_tests {
    use super::*;

    impl From<Bytes> for Data {
        fn from(data: Bytes) -> Data {
            Data::from(&data[..])
        }
    }

    impl From<Vec<u8>> for Data {
        fn from(data: Vec<u8>) -> Data {
            Data::from(&data[..])
        }
    }

    impl From<String> for Data {
        fn from(data: String) -> Data {
            Data::from(data.as_bytes())
        }
    }

    impl From<&str> for Data {
        fn from(data: &str) -> Data {
            Data::from(data.as_bytes())
        }
    }
}
