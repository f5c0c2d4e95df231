//! Pages: the unit in which a cache and a device hold a file.

use std::sync::Arc;

pub(super) const PAGE_BYTES: usize = 4096;
/// What a device writes as a whole, or not.
pub(super) const SECTOR_BYTES: usize = 512;
pub(super) const SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

/// The bytes of a page, shared until one copy is changed. A page of zeros takes no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Page(Option<Arc<[u8; PAGE_BYTES]>>);

impl Page {
    pub(super) fn bytes(&self) -> &[u8; PAGE_BYTES] {
        self.0.as_deref().unwrap_or(&ZEROS)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_none()
    }

    /// This page with other bytes at a place in it.
    pub(super) fn with(&self, at: usize, bytes: &[u8]) -> Page {
        debug_assert!(at + bytes.len() <= PAGE_BYTES);
        let is_zero = bytes == &ZEROS[..bytes.len()];
        if is_zero && (self.is_zero() || bytes.len() == PAGE_BYTES) {
            return Page::default();
        }
        let mut page = self.0.clone().unwrap_or_else(|| Arc::new(ZEROS));
        // One copy, of a page that someone else holds as well.
        Arc::make_mut(&mut page)[at..at + bytes.len()].copy_from_slice(bytes);
        if is_zero && *page == ZEROS { Page::default() } else { Page(Some(page)) }
    }

    /// This page with zeros from a place on.
    pub(super) fn until(&self, at: usize) -> Page {
        self.with(at, &ZEROS[at..])
    }

    /// This page with one bit of it changed.
    pub(super) fn flipped(&self, bit: usize) -> Page {
        let at = bit / 8 % PAGE_BYTES;
        self.with(at, &[self.bytes()[at] ^ (1 << (bit % 8))])
    }

    pub(super) fn sector(&self, number: usize) -> &[u8] {
        &self.bytes()[number * SECTOR_BYTES..][..SECTOR_BYTES]
    }

    /// This page with a sector of another one.
    pub(super) fn with_sector_of(&self, other: &Page, number: usize) -> Page {
        self.with(number * SECTOR_BYTES, other.sector(number))
    }
}

impl PartialEq for Page {
    fn eq(&self, other: &Page) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(two)) => Arc::ptr_eq(one, two) || one == two,
            _ => false,
        }
    }
}
