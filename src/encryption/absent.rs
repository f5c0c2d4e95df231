//! The types of a build without the feature `encryption`: none of them has a value.

use super::{AssociatedData, KeyError, WrappedKey};

/// Key encryption keys.
#[derive(Clone, Debug)]
pub(crate) enum AtRest {}

/// Key encryption keys, as they were read.
#[derive(Debug)]
pub(crate) enum KeyRing {}

/// Data keys.
#[derive(Debug)]
pub(crate) enum DataKeys {}

impl AtRest {
    pub(crate) fn ring(&self) -> Result<KeyRing, KeyError> {
        match *self {}
    }
}

impl KeyRing {
    pub(crate) fn new_data_key(&self, _: u32) -> Result<WrappedKey, KeyError> {
        match *self {}
    }
}

impl DataKeys {
    pub(crate) fn open(ring: &KeyRing, _: &[WrappedKey]) -> Result<DataKeys, KeyError> {
        match *ring {}
    }

    pub(crate) fn rewrapped(
        ring: &KeyRing,
        _: &[WrappedKey],
    ) -> Result<Option<Vec<WrappedKey>>, KeyError> {
        match *ring {}
    }

    pub(crate) fn is_used(&self, _: u32) -> bool {
        match *self {}
    }

    pub(crate) fn seal(&self, _: &AssociatedData, _: &mut Vec<u8>, _: usize) {
        match *self {}
    }

    pub(crate) fn unseal(&self, _: &AssociatedData, _: &[u8]) -> Result<Vec<u8>, KeyError> {
        match *self {}
    }
}
