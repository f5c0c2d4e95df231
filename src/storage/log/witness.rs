//! How far the log must reach.
//!
//! A log whose last records are damaged looks like one that a crash has torn there. The witness is
//! a small file beside the log that names the last record. It is written and synced after a pause
//! in the writes, and when the store is closed (see `store`). A log that ends before that record
//! has lost something acknowledged. A log may end after that record: more may be appended before the
//! witness is written again.
//!
//! Two slots are written in turn and in place, so a write that a power cut tears leaves the record
//! before. Each slot is a block of 4 KiB, as large as what a disk may write at once, and begins with,
//! little endian:
//!
//! | offset | bytes | meaning                                          |
//! |--------|-------|--------------------------------------------------|
//! | 0      | 8     | `qrwitnes`                                       |
//! | 8      | 4     | format, [`FORMAT`]                               |
//! | 12     | 8     | the log's first chain                            |
//! | 20     | 8     | sequence number of the last record               |
//! | 28     | 8     | chain after it                                   |
//! | 36     | 8     | last index of the log, or of the checkpoint      |
//! | 44     | 24    | hard state: term, vote, commit                   |
//! | 68     | 436   | zero                                             |
//! | 504    | 8     | XXH3 of everything before                        |
//!
//! The rest of the block is zero. Earlier builds wrote both slots one after the other into the first
//! block. They are still read there, until the first block is written again.

use std::io;

use xxhash_rust::xxh3::xxh3_64;

use crate::node::stored::HardState;
use crate::storage::bytes::u64_at;
use crate::storage::error::Result;
use crate::storage::error::{check_format, corrupt, io_error};
use crate::storage::file_system::{Access, File, FsPath};

const MAGIC: &[u8; 8] = b"qrwitnes";
const FORMAT: u32 = 1;
const SLOT_BYTES: usize = 512;
const SEALED_BYTES: usize = SLOT_BYTES - 8;
/// A slot and zeros behind it.
const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: usize = 2 * BLOCK_BYTES;
/// The length of the file in earlier builds, and the place of its second slot.
const FORMER_BYTES: usize = 2 * SLOT_BYTES;
const FORMER_SLOT: usize = SLOT_BYTES;

/// The end of the log at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) struct WitnessRecord {
    pub(super) first_chain: u64,
    pub(in crate::storage) seq: u64,
    pub(in crate::storage) chain: u64,
    pub(super) last_index: u64,
    pub(in crate::storage) hard_state: HardState,
}

/// The open file of the witness.
#[derive(Debug)]
pub(in crate::storage) struct Witness {
    file: Box<dyn File>,
    /// The place of the block that is written next: the one without the last record.
    next: usize,
}

impl Witness {
    /// The name of the file in the directory of the log.
    pub(in crate::storage) const FILE: &'static str = "witness";

    /// Makes the file and syncs it. Its directory is synced by the caller.
    pub(in crate::storage) fn create(path: &FsPath, first: &WitnessRecord) -> Result<Witness> {
        let file = path.create_file()?;
        let block = block(first);
        // Both slots hold the first record, since the first write may tear one of them.
        file.write_at(&[block, block].concat(), 0)
            .and_then(|()| file.sync_all())
            .map_err(io_error("creating the witness"))?;
        Ok(Witness { file, next: 0 })
    }

    /// Opens the file and reads its last record.
    pub(in crate::storage) fn open(path: &FsPath) -> Result<(Witness, WitnessRecord)> {
        let file = match path.open(Access::Write) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return corrupt("the witness is missing".to_owned());
            }
            Err(error) => return Err(io_error("opening the witness")(error)),
        };
        let bytes = file.content(FILE_BYTES as u64 + 1).map_err(io_error("reading the witness"))?;
        // A crash while the file of an earlier build was made longer leaves a length in between.
        if !(FORMER_BYTES..=FILE_BYTES).contains(&bytes.len()) {
            return corrupt("the witness has a wrong length".to_owned());
        }
        let mut last: Option<(usize, WitnessRecord)> = None;
        for place in [0, FORMER_SLOT, BLOCK_BYTES] {
            let Some(slot) = bytes.get(place..place + SLOT_BYTES) else { continue };
            let Some(record) = decode(slot)? else { continue };
            if last.is_some_and(|(_, last)| last.first_chain != record.first_chain) {
                return corrupt("the witness is of two generations".to_owned());
            }
            if last.is_none_or(|(_, last)| last.seq < record.seq) {
                last = Some((place, record));
            }
        }
        let Some((place, last)) = last else {
            return corrupt("the witness is damaged".to_owned());
        };
        let next = if place < BLOCK_BYTES { BLOCK_BYTES } else { 0 };
        Ok((Witness { file, next }, last))
    }

    /// Writes a record over the one before the last, and syncs it.
    pub(in crate::storage) fn write(&mut self, record: &WitnessRecord) -> io::Result<()> {
        self.file.write_at(&block(record), self.next as u64)?;
        self.file.sync_data()?;
        self.next = unless!(WitnessOneSlot, BLOCK_BYTES - self.next, self.next);
        Ok(())
    }
}

fn block(record: &WitnessRecord) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..SLOT_BYTES].copy_from_slice(&encode(record));
    block
}

fn encode(record: &WitnessRecord) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(MAGIC);
    slot[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    let fields = [
        record.first_chain,
        record.seq,
        record.chain,
        record.last_index,
        record.hard_state.term,
        record.hard_state.vote,
        record.hard_state.commit,
    ];
    for (number, field) in fields.iter().enumerate() {
        let start = 12 + 8 * number;
        slot[start..start + 8].copy_from_slice(&field.to_le_bytes());
    }
    let checksum = xxh3_64(&slot[..SEALED_BYTES]);
    slot[SEALED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    slot
}

/// `None` for a slot that is torn.
fn decode(slot: &[u8]) -> Result<Option<WitnessRecord>> {
    let field = |start| u64_at(slot, start).unwrap_or(0);
    let sealed = &slot[..SEALED_BYTES];
    if xxh3_64(sealed) != field(SEALED_BYTES) || !sealed.starts_with(MAGIC) {
        return Ok(None);
    }
    check_format("a witness", field(8) as u32, FORMAT)?;
    Ok(Some(WitnessRecord {
        first_chain: field(12),
        seq: field(20),
        chain: field(28),
        last_index: field(36),
        hard_state: HardState { term: field(44), vote: field(52), commit: field(60) },
    }))
}

/// The sequence numbers in both slots of a file, as far as they can be read.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn witnessed(file: &[u8]) -> Vec<u64> {
    let slots =
        [0, BLOCK_BYTES].into_iter().filter_map(|place| file.get(place..place + SLOT_BYTES));
    slots.filter_map(|slot| decode(slot).ok().flatten()).map(|record| record.seq).collect()
}

/// Reads an arbitrary slot.
#[cfg(any(test, fuzzing))]
pub(in crate::storage) fn fuzz(bytes: &[u8]) {
    let mut slot = [0; SLOT_BYTES];
    let length = bytes.len().min(SLOT_BYTES);
    slot[..length].copy_from_slice(&bytes[..length]);
    let _ = decode(&slot);
    // Also a slot with a correct checksum.
    let checksum = xxh3_64(&slot[..SEALED_BYTES]);
    slot[SEALED_BYTES..].copy_from_slice(&checksum.to_le_bytes());
    if let Ok(Some(record)) = decode(&slot) {
        let _ = decode(&encode(&record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::error::StorageError;

    fn record(seq: u64) -> WitnessRecord {
        WitnessRecord {
            first_chain: 5,
            seq,
            chain: seq * 31,
            last_index: seq + 100,
            hard_state: HardState { term: 1, vote: 2, commit: 3 },
        }
    }

    #[test]
    fn golden_witness() {
        let mut golden = crate::golden::Golden::new("witness");
        golden.sample("slot", &encode(&record(7)));
        golden.check();
    }

    #[test]
    fn witness_keeps_the_last_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Witness::FILE);
        let mut witness = Witness::create(&FsPath::system(&path), &record(1)).unwrap();
        for seq in 2..6 {
            witness.write(&record(seq)).unwrap();
            let (_, last) = Witness::open(&FsPath::system(&path)).unwrap();
            assert_eq!(last, record(seq));
        }
    }

    #[test]
    fn witness_outlives_one_torn_slot_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Witness::FILE);
        let mut witness = Witness::create(&FsPath::system(&path), &record(1)).unwrap();
        witness.write(&record(2)).unwrap();
        let sound = std::fs::read(&path).unwrap();
        for (start, expected) in [(0, 1), (BLOCK_BYTES, 2)] {
            let mut torn = sound.clone();
            torn[start + 200] ^= 1;
            std::fs::write(&path, &torn).unwrap();
            let (_, last) = Witness::open(&FsPath::system(&path)).unwrap();
            assert_eq!(last, record(expected));
        }
        let mut torn = sound.clone();
        torn[0] ^= 1;
        torn[BLOCK_BYTES] ^= 1;
        std::fs::write(&path, &torn).unwrap();
        let error = Witness::open(&FsPath::system(&path)).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        for length in [0, 1023, FILE_BYTES + 1] {
            let mut bytes = sound.clone();
            bytes.resize(length, 0);
            std::fs::write(&path, &bytes).unwrap();
            assert!(Witness::open(&FsPath::system(&path)).is_err(), "{length} bytes");
        }
    }

    /// The slot followed from the record's number. Two records between two pauses are usual, and then it
    /// was always the same slot: a torn write left the witness of the first record, which witnesses
    /// nothing.
    #[test]
    fn a_torn_write_leaves_the_record_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Witness::FILE);
        let mut witness = Witness::create(&FsPath::system(&path), &record(1)).unwrap();
        for seq in [3, 5, 7, 10, 12, 12, 14] {
            let before = std::fs::read(&path).unwrap();
            let (_, last) = Witness::open(&FsPath::system(&path)).unwrap();
            witness.write(&record(seq)).unwrap();
            if seq == 7 {
                // As a start does.
                witness = Witness::open(&FsPath::system(&path)).unwrap().0;
            }
            let after = std::fs::read(&path).unwrap();
            // The write tears its whole block.
            let mut torn = after.clone();
            for (block, old) in torn.chunks_mut(BLOCK_BYTES).zip(before.chunks(BLOCK_BYTES)) {
                if block != old {
                    block.fill(0xff);
                }
            }
            std::fs::write(&path, &torn).unwrap();
            assert_eq!(
                Witness::open(&FsPath::system(&path)).unwrap().1,
                last,
                "while {seq} was written"
            );
            std::fs::write(&path, &after).unwrap();
        }
    }

    #[test]
    fn a_witness_of_an_earlier_build_is_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Witness::FILE);
        for (former, last) in [([4, 5], 5), ([6, 5], 6)] {
            let slots = former.map(|seq| encode(&record(seq)));
            std::fs::write(&path, slots.concat()).unwrap();
            let (mut witness, found) = Witness::open(&FsPath::system(&path)).unwrap();
            assert_eq!(found, record(last));
            for seq in 7..10 {
                witness.write(&record(seq)).unwrap();
                assert_eq!(Witness::open(&FsPath::system(&path)).unwrap().1, record(seq));
            }
            assert_eq!(std::fs::metadata(&path).unwrap().len(), FILE_BYTES as u64);
        }
    }
}
