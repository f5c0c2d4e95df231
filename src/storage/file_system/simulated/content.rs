//! The content of one file: in the cache, and on the device.

use std::collections::{BTreeMap, BTreeSet};

use super::cut::Survivors;
use super::page::{PAGE_BYTES, Page, SECTORS};
use super::random::Random;

/// How many states of a page are kept between two syncs: any of them may be on the device after a power
/// cut.
const VERSIONS_MAX: usize = 32;

/// The content of a file. Pages that were never anything but zeros are not in the map.
#[derive(Clone, Debug, Default)]
pub(super) struct FileContent {
    slots: BTreeMap<u64, FilePage>,
    /// The pages that no sync has written.
    dirty: BTreeSet<u64>,
    /// How many pages a failed sync has lost.
    lost: usize,
    /// The length that processes see.
    length: u64,
    device_length: u64,
    /// The lengths since the last sync, with their places in the order of writing.
    lengths: Vec<(u64, u64)>,
    /// How often the system could not write pages. Each open file reports each of them once.
    pub(super) write_errors: u64,
    /// Those that some open file has reported: files that are opened later do not.
    pub(super) write_errors_reported: u64,
}

/// One page of a file.
#[derive(Clone, Debug, Default)]
struct FilePage {
    device: Page,
    cache: CachedPage,
    /// The device cannot read it until it is written again.
    is_bad: bool,
    /// The device does not hold what was synced.
    is_damaged: bool,
}

/// What the cache holds of a page.
#[derive(Clone, Debug, Default)]
enum CachedPage {
    /// Nothing: a read comes from the device.
    #[default]
    Absent,
    /// What was read from the device, or was written and synced.
    Clean(Page),
    /// What a failed sync did not write. It counts as clean, so no later sync writes it.
    Lost(Page),
    /// What was written and not synced: every state of the page since then.
    Dirty(Vec<Version>),
}

#[derive(Clone, Debug)]
struct Version {
    /// Its place in the order of writing of the whole device.
    order: u64,
    page: Page,
}

/// The device cannot read a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadSector;

/// What a device does with a page that it is to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceWrite {
    Store,
    /// It says that it has written the page, and has not.
    Lose,
    /// It writes the page to another place.
    Misdirect,
}

impl FilePage {
    fn visible(&self) -> &Page {
        match &self.cache {
            CachedPage::Absent => &self.device,
            CachedPage::Clean(page) | CachedPage::Lost(page) => page,
            CachedPage::Dirty(versions) => versions.last().map_or(&self.device, |last| &last.page),
        }
    }

    /// What a process reads. The cache keeps it.
    fn read(&mut self) -> Result<&Page, BadSector> {
        if matches!(self.cache, CachedPage::Absent) {
            if self.is_bad {
                return Err(BadSector);
            }
            self.cache = CachedPage::Clean(self.device.clone());
        }
        Ok(self.visible())
    }

    /// Whether the map need not hold it.
    fn is_default(&self) -> bool {
        let is_cached_zero = match &self.cache {
            CachedPage::Absent => true,
            CachedPage::Clean(page) => page.is_zero(),
            CachedPage::Lost(_) | CachedPage::Dirty(_) => false,
        };
        is_cached_zero && self.device.is_zero() && !self.is_bad && !self.is_damaged
    }
}

/// The number of a page, and a place in it.
fn place(offset: u64) -> (u64, usize) {
    (offset / PAGE_BYTES as u64, (offset % PAGE_BYTES as u64) as usize)
}

impl FileContent {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn device_length(&self) -> u64 {
        self.device_length
    }

    pub(super) fn dirty_pages(&self) -> usize {
        self.dirty.len()
    }

    pub(super) fn lost_pages(&self) -> usize {
        self.lost
    }

    /// Whether a power cut may change its length.
    pub(super) fn is_length_unsynced(&self) -> bool {
        self.length != self.device_length
    }

    /// The place of its oldest unsynced change in the order of writing.
    pub(super) fn oldest_unsynced(&self) -> Option<u64> {
        let pages = self.dirty.iter().filter_map(|number| match &self.slots.get(number)?.cache {
            CachedPage::Dirty(versions) => versions.first().map(|version| version.order),
            _ => None,
        });
        pages.chain(self.lengths.first().map(|(order, _)| *order)).min()
    }

    /// Whether the device holds something else than what was synced, or cannot read it.
    pub(super) fn is_damaged(&self) -> bool {
        self.slots.values().any(|slot| slot.is_damaged || slot.is_bad)
    }

    pub(super) fn read(&mut self, bytes: &mut [u8], offset: u64) -> Result<usize, BadSector> {
        let length = self.length.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < length {
            let (number, at) = place(offset + done as u64);
            let some = (PAGE_BYTES - at).min(length - done);
            let target = &mut bytes[done..done + some];
            match self.slots.get_mut(&number) {
                Some(slot) => target.copy_from_slice(&slot.read()?.bytes()[at..at + some]),
                None => target.fill(0),
            }
            done += some;
        }
        Ok(length)
    }

    /// The first bytes, at most so many.
    pub(super) fn visible(&self, most: usize) -> Vec<u8> {
        let length = self.length.min(most as u64) as usize;
        let mut bytes = vec![0; length];
        for (number, part) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
            if let Some(slot) = self.slots.get(&(number as u64)) {
                part.copy_from_slice(&slot.visible().bytes()[..part.len()]);
            }
        }
        bytes
    }

    /// Writes to the cache. A bad sector, of which only a part is to be written, leaves a part of the call.
    pub(super) fn write(
        &mut self,
        order: &mut u64,
        bytes: &[u8],
        offset: u64,
    ) -> Result<(), BadSector> {
        let mut done = 0;
        while done < bytes.len() {
            let (number, at) = place(offset + done as u64);
            let some = (PAGE_BYTES - at).min(bytes.len() - done);
            self.write_page(order, number, at, &bytes[done..done + some])?;
            done += some;
            let end = offset + done as u64;
            if end > self.length {
                self.length = end;
                self.note_length(*order);
            }
        }
        Ok(())
    }

    fn write_page(
        &mut self,
        order: &mut u64,
        number: u64,
        at: usize,
        bytes: &[u8],
    ) -> Result<(), BadSector> {
        let whole = bytes.len() == PAGE_BYTES;
        let base = match self.slots.get_mut(&number) {
            Some(slot) if whole => slot.visible(),
            Some(slot) => slot.read()?,
            None => &Page::default(),
        };
        let page = base.with(at, bytes);
        *order += 1;
        if !page.is_zero() || self.slots.contains_key(&number) {
            self.put(*order, number, page);
        }
        Ok(())
    }

    /// Puts a page into the cache.
    fn put(&mut self, order: u64, number: u64, page: Page) {
        let slot = self.slots.entry(number).or_default();
        self.lost -= usize::from(matches!(slot.cache, CachedPage::Lost(_)));
        self.dirty.insert(number);
        if let CachedPage::Dirty(versions) = &mut slot.cache {
            if versions.len() >= VERSIONS_MAX {
                versions.remove(VERSIONS_MAX / 2);
            }
            versions.push(Version { order, page });
        } else {
            slot.cache = CachedPage::Dirty(vec![Version { order, page }]);
        }
    }

    fn note_length(&mut self, order: u64) {
        if self.lengths.len() >= VERSIONS_MAX {
            self.lengths.remove(VERSIONS_MAX / 2);
        }
        self.lengths.push((order, self.length));
    }

    pub(super) fn set_length(&mut self, order: &mut u64, length: u64) -> Result<(), BadSector> {
        let (number, at) = place(length);
        if length < self.length {
            // All behind the end reads as zeros, if the file grows again.
            if at > 0 && self.slots.contains_key(&number) {
                let zeros = &[0; PAGE_BYTES][at..];
                self.write_page(order, number, at, zeros)?;
            }
            let first = number + u64::from(at > 0);
            let numbers: Vec<u64> = self.slots.range(first..).map(|(number, _)| *number).collect();
            for number in numbers {
                *order += 1;
                self.put(*order, number, Page::default());
            }
        }
        *order += 1;
        if length != self.length {
            self.length = length;
            self.note_length(*order);
        }
        Ok(())
    }

    /// Writes all dirty pages to the device. `write` says what it does with each; returns those that it has
    /// written elsewhere.
    pub(super) fn sync(&mut self, mut write: impl FnMut() -> DeviceWrite) -> Vec<(u64, Page)> {
        let mut elsewhere = Vec::new();
        for number in std::mem::take(&mut self.dirty) {
            let page = self.write_back(number, write());
            elsewhere.extend(page.map(|page| (number, page)));
        }
        self.device_length = self.length;
        self.lengths.clear();
        elsewhere
    }

    /// Writes a dirty page to the device. Returns it if it went elsewhere.
    fn write_back(&mut self, number: u64, write: DeviceWrite) -> Option<Page> {
        let slot = self.slots.get_mut(&number)?;
        let page = slot.visible().clone();
        slot.cache = CachedPage::Clean(page.clone());
        slot.is_damaged = write != DeviceWrite::Store;
        match write {
            DeviceWrite::Store => {
                (slot.device, slot.is_bad) = (page, false);
                if slot.is_default() {
                    self.slots.remove(&number);
                }
                None
            }
            DeviceWrite::Lose => None,
            DeviceWrite::Misdirect => Some(page),
        }
    }

    /// Writes some dirty pages to the device before any sync, as the system does after a while.
    pub(super) fn write_some(&mut self, random: &mut Random) {
        let chosen: Vec<u64> = self.dirty.iter().copied().filter(|_| random.percent(50)).collect();
        for number in chosen {
            self.dirty.remove(&number);
            let _ = self.write_back(number, DeviceWrite::Store);
        }
    }

    /// A sync fails. Its dirty pages count as clean from now on, and are not on the device. `stored` says
    /// which of them are there nevertheless.
    pub(super) fn fail_sync(&mut self, mut stored: impl FnMut() -> bool) -> usize {
        let before = self.lost;
        for number in std::mem::take(&mut self.dirty) {
            if stored() {
                let _ = self.write_back(number, DeviceWrite::Store);
            } else if let Some(slot) = self.slots.get_mut(&number) {
                slot.cache = CachedPage::Lost(slot.visible().clone());
                self.lost += 1;
            }
        }
        self.lost - before
    }

    /// The system drops its cache of the first so many pages, except what it has to write yet.
    pub(super) fn drop_cache(&mut self, pages: u64) {
        self.slots.retain(|number, slot| {
            if *number < pages && !matches!(slot.cache, CachedPage::Dirty(_)) {
                self.lost -= usize::from(matches!(slot.cache, CachedPage::Lost(_)));
                slot.cache = CachedPage::Absent;
            }
            !slot.is_default()
        });
    }

    /// The power is cut: the cache is gone, and the device has what survives.
    pub(super) fn cut(&mut self, survivors: Survivors, has_grown: bool, random: &mut Random) {
        for number in std::mem::take(&mut self.dirty) {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let CachedPage::Dirty(versions) = std::mem::take(&mut slot.cache) else { continue };
            if let Some(page) = survivor(&slot.device, &versions, survivors, random) {
                // Only a write of the whole page makes a bad sector readable.
                (slot.device, slot.is_bad, slot.is_damaged) = (page, false, false);
            }
        }
        let lengths = std::mem::take(&mut self.lengths);
        self.length = match survivors {
            Survivors::None if !has_grown => self.device_length,
            Survivors::None => self.length.max(self.device_length),
            Survivors::All => self.length,
            Survivors::Until(last) => {
                let until = lengths.iter().rev().find(|(order, _)| *order <= last);
                until.map_or(self.device_length, |(_, length)| *length)
            }
            Survivors::Some | Survivors::Torn => match random.index(lengths.len() + 1) {
                0 => self.device_length,
                chosen => lengths[chosen - 1].1,
            },
        };
        self.device_length = self.length;
        (self.write_errors, self.write_errors_reported) = (0, 0);
        self.drop_cache(u64::MAX);
        self.cut_tail();
    }

    /// The system shows zeros behind the end of a file, if it grows again.
    fn cut_tail(&mut self) {
        let (number, at) = place(self.length);
        if at > 0
            && let Some(slot) = self.slots.get_mut(&number)
        {
            slot.device = slot.device.until(at);
        }
        let first = number + u64::from(at > 0);
        drop(self.slots.split_off(&first));
    }

    /// The numbers of the pages of which the device holds something.
    pub(super) fn stored_pages(&self) -> u64 {
        self.device_length.div_ceil(PAGE_BYTES as u64)
    }

    /// The device changes a bit. Returns whether a read shows it at once.
    pub(super) fn rot(&mut self, number: u64, bit: usize) -> bool {
        let slot = self.slots.entry(number).or_insert_with(|| FilePage {
            cache: CachedPage::Clean(Page::default()),
            ..FilePage::default()
        });
        slot.device = slot.device.flipped(bit);
        slot.is_damaged = true;
        matches!(slot.cache, CachedPage::Absent)
    }

    /// The device cannot read a page any more.
    pub(super) fn spoil(&mut self, number: u64) {
        self.slots.entry(number).or_default().is_bad = true;
    }

    /// Another page was written to this place of the device.
    pub(super) fn overwrite(&mut self, number: u64, page: Page) {
        let slot = self.slots.entry(number).or_insert_with(|| FilePage {
            cache: CachedPage::Clean(Page::default()),
            ..FilePage::default()
        });
        slot.device = page;
        slot.is_damaged = true;
    }

    /// Gives what processes see, or what is on the device, page by page; zeros are left out.
    pub(super) fn each_page(&self, on_device: bool, mut take: impl FnMut(u64, &Page)) {
        for (number, slot) in &self.slots {
            let page = if on_device { &slot.device } else { slot.visible() };
            if !page.is_zero() {
                take(*number, page);
            }
        }
    }

    /// Whether a power cut may leave this length.
    #[cfg(test)]
    pub(super) fn may_have_length(&self, length: u64) -> bool {
        let all = || {
            let noted = self.lengths.iter().map(|(_, length)| *length);
            noted.chain([self.length, self.device_length])
        };
        let is_between = all().min() <= Some(length) && Some(length) <= all().max();
        // A file that grows has its new pages one by one.
        all().any(|noted| noted == length) || is_between && length.is_multiple_of(PAGE_BYTES as u64)
    }

    /// All that a power cut may leave of a page.
    #[cfg(test)]
    pub(super) fn states_of(&self, number: u64) -> Vec<Page> {
        let Some(slot) = self.slots.get(&number) else { return vec![Page::default()] };
        let mut states = vec![slot.device.clone()];
        if let CachedPage::Dirty(versions) = &slot.cache {
            states.extend(versions.iter().map(|version| version.page.clone()));
        }
        states
    }
}

/// What the device holds of a page after a power cut, if anything of it was written.
fn survivor(
    device: &Page,
    versions: &[Version],
    survivors: Survivors,
    random: &mut Random,
) -> Option<Page> {
    let last = versions.last().map(|version| version.page.clone());
    match survivors {
        Survivors::None => None,
        Survivors::All => last,
        Survivors::Until(end) => {
            let until = versions.iter().rev().find(|version| version.order <= end);
            let under_way = versions.iter().find(|version| version.order == end + 1);
            let until = until.map(|version| version.page.clone());
            match under_way {
                Some(version) if random.percent(50) => {
                    Some(torn(until.as_ref().unwrap_or(device), &[&version.page], random))
                }
                _ => until,
            }
        }
        Survivors::Some => {
            let chosen = random.index(versions.len() + 1).checked_sub(1)?;
            Some(versions[chosen].page.clone())
        }
        Survivors::Torn => {
            let pages: Vec<&Page> = versions.iter().map(|version| &version.page).collect();
            Some(torn(device, &pages, random))
        }
    }
}

/// A page of which each sector is that of one of these pages.
fn torn(old: &Page, pages: &[&Page], random: &mut Random) -> Page {
    let mut torn = old.clone();
    for sector in 0..SECTORS {
        if let Some(chosen) = random.index(pages.len() + 1).checked_sub(1) {
            torn = torn.with_sector_of(pages[chosen], sector);
        }
    }
    torn
}
