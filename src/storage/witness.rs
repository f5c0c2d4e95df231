//! How far the log must reach.
//!
//! A log whose last records are damaged looks like one that a crash has torn there. The witness is
//! a small file beside the log that names the last record. It is written and synced after a pause
//! in the writes, and when the store is closed (see `store`). A log that ends before that record
//! has lost something acknowledged. A log may end after that record: more may be appended before the
//! witness is written again.
//!
//! Two slots of one sector each are written in turn and in place, so a write that a power cut tears
//! leaves the other one. Each slot, little endian:
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

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::files::{create_file, io_error, open_file};
use super::record::{check_format, corrupt, u64_at};
use crate::node::stored::HardState;
use crate::storage::Result;

const MAGIC: &[u8; 8] = b"qrwitnes";
const FORMAT: u32 = 1;
const SLOT_BYTES: usize = 512;
const SEALED_BYTES: usize = SLOT_BYTES - 8;

/// The end of the log at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WitnessRecord {
    pub(super) first_chain: u64,
    pub(super) seq: u64,
    pub(super) chain: u64,
    pub(super) last_index: u64,
    pub(super) hard_state: HardState,
}

/// The open file of the witness.
#[derive(Debug)]
pub(super) struct Witness {
    file: File,
}

impl Witness {
    /// The name of the file in the directory of the log.
    pub(super) const FILE: &'static str = "witness";

    /// Makes the file and syncs it. Its directory is synced by the caller.
    pub(super) fn create(path: &Path, first: &WitnessRecord) -> Result<Witness> {
        let mut file = create_file(path)?;
        let slot = encode(first);
        // Both slots hold the first record, since the first write may tear one of them.
        file.write_all(&[slot, slot].concat())
            .and_then(|()| file.sync_all())
            .map_err(io_error("creating the witness"))?;
        Ok(Witness { file })
    }

    /// Opens the file and reads its last record.
    pub(super) fn open(path: &Path) -> Result<(Witness, WitnessRecord)> {
        let mut file = match open_file(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return corrupt("the witness is missing".to_owned());
            }
            Err(error) => return Err(io_error("opening the witness")(error)),
        };
        let mut bytes = Vec::with_capacity(2 * SLOT_BYTES);
        (&mut file)
            .take(2 * SLOT_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(io_error("reading the witness"))?;
        if bytes.len() != 2 * SLOT_BYTES {
            return corrupt("the witness has a wrong length".to_owned());
        }
        let (left, right) = bytes.split_at(SLOT_BYTES);
        let last = match (decode(left)?, decode(right)?) {
            (Some(left), Some(right)) => {
                if left.first_chain != right.first_chain {
                    return corrupt("the witness is of two generations".to_owned());
                }
                if left.seq > right.seq { left } else { right }
            }
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return corrupt("the witness is damaged".to_owned()),
        };
        Ok((Witness { file }, last))
    }

    /// Writes a record to its slot, and syncs it.
    pub(super) fn write(&mut self, record: &WitnessRecord) -> io::Result<()> {
        let slot = record.seq % 2 * SLOT_BYTES as u64;
        self.file.seek(SeekFrom::Start(slot))?;
        self.file.write_all(&encode(record))?;
        self.file.sync_data()
    }
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

/// Reads an arbitrary slot.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
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
    use crate::storage::StorageError;

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
        let mut witness = Witness::create(&path, &record(1)).unwrap();
        for seq in 2..6 {
            witness.write(&record(seq)).unwrap();
            let (_, last) = Witness::open(&path).unwrap();
            assert_eq!(last, record(seq));
        }
    }

    #[test]
    fn witness_outlives_one_torn_slot_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(Witness::FILE);
        let mut witness = Witness::create(&path, &record(1)).unwrap();
        witness.write(&record(2)).unwrap();
        let sound = std::fs::read(&path).unwrap();
        for (start, expected) in [(0, 1), (SLOT_BYTES, 2)] {
            let mut torn = sound.clone();
            torn[start + 200] ^= 1;
            std::fs::write(&path, &torn).unwrap();
            let (_, last) = Witness::open(&path).unwrap();
            assert_eq!(last, record(expected));
        }
        let mut torn = sound.clone();
        torn[0] ^= 1;
        torn[1000] ^= 1;
        std::fs::write(&path, &torn).unwrap();
        let error = Witness::open(&path).unwrap_err();
        assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        std::fs::write(&path, &sound[..1023]).unwrap();
        assert!(Witness::open(&path).is_err());
    }
}
