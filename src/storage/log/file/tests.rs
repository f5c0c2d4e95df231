use std::fs;
use std::path::{Path, PathBuf};

use super::*;
use crate::storage::log::segments::numbers;
use crate::storage::log::{scan, segments};

const ID: u64 = 77;
const SEGMENT: u64 = 2048;

fn path(dir: &Path, number: u64) -> PathBuf {
    segments::path(&FsPath::system(dir), number).path().to_owned()
}

/// What a log holds after its last gap: the sequence numbers and bodies of its writes.
fn read(dir: &Path) -> Result<(Vec<(u64, String)>, Scan)> {
    let numbers = numbers(&FsPath::system(dir)).unwrap();
    let gap = numbers.windows(2).rposition(|pair| pair[1] != pair[0] + 1);
    let segment = numbers.get(gap.map_or(0, |place| place + 1)).copied().unwrap_or(FIRST_SEGMENT);
    let from = SegmentRange { segment, offset: HEADER_BYTES as u64, bytes: 0 };
    let mut found = Vec::new();
    let scan = scan::scan(&FsPath::system(dir), ID, from, |record| {
        found.push((record.at.seq, record.decode::<String>(&Sealing::default())?));
        Ok(())
    })?;
    Ok((found, scan))
}

fn body(number: usize) -> String {
    format!("record {number} ").repeat(10)
}

/// A log with so many records.
fn written(dir: &Path, count: usize) -> LogFile {
    let mut log = LogFile::create(&FsPath::system(dir), ID, SEGMENT, Sealing::default()).unwrap();
    (0..count).for_each(|number| {
        log.append(RecordKind::Write, &body(number)).unwrap();
    });
    log
}

fn refused(dir: &Path) -> String {
    match read(dir) {
        Err(StorageError::Corrupt { what }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn golden_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut log =
        LogFile::create(&FsPath::system(dir.path()), ID, 1024, Sealing::default()).unwrap();
    log.append(RecordKind::Write, &"one").unwrap();
    log.append(RecordKind::Checkpoint, &"a second record").unwrap();
    let end = log.offset;
    drop(log);
    let bytes = fs::read(path(dir.path(), 1)).unwrap();
    let mut golden = crate::golden::Golden::new("log");
    golden.sample("segment header", &bytes[..48]);
    golden.sample("records", &bytes[HEADER_BYTES..end]);
    golden.check();
}

#[test]
fn log_continues_in_further_segments_and_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = written(dir.path(), 50);
    assert!(log.segments.len() > 3, "{:?}", log.segments);
    for count in 50..60 {
        let last = log.last();
        drop(log);
        let (found, scan) = read(dir.path()).unwrap();
        let bodies: Vec<String> = found.iter().map(|(_, body)| body.clone()).collect();
        assert_eq!(bodies, (0..count).map(body).collect::<Vec<_>>());
        assert_eq!(scan.last, last);
        log = LogFile::resume(&FsPath::system(dir.path()), ID, SEGMENT, scan, Sealing::default())
            .unwrap();
        log.append(RecordKind::Write, &body(count)).unwrap();
    }
}

#[test]
fn a_record_longer_than_a_segment_has_one_of_its_own_length() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = written(dir.path(), 2);
    let long = "long ".repeat(5000);
    log.append(RecordKind::Write, &long).unwrap();
    log.append(RecordKind::Write, &body(4)).unwrap();
    drop(log);
    let (found, _) = read(dir.path()).unwrap();
    assert_eq!(found.len(), 4);
    assert_eq!((&found[2].1, &found[3].1), (&long, &body(4)));
}

#[test]
fn a_segment_that_cannot_be_left_is_made_longer() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = written(dir.path(), 3);
    log.lengthen(100_000).unwrap();
    let long = "long ".repeat(20_000);
    log.append(RecordKind::Write, &long).unwrap();
    (4..8).for_each(|number| {
        log.append(RecordKind::Write, &body(number)).unwrap();
    });
    assert_eq!(log.segments.len(), 1);
    (8..60).for_each(|number| {
        log.append(RecordKind::Write, &body(number)).unwrap();
    });
    assert!(log.segments.len() > 1);
    drop(log);
    let file = path(dir.path(), 1);
    let sound = fs::read(&file).unwrap();
    // A crash may leave any part of the new length. The whole header was written again, so that a crash damaged it.
    for written in 0..=16 {
        let mut bytes = sound.clone();
        bytes[48 + written..64].fill(0);
        fs::write(&file, bytes).unwrap();
        let (found, _) = read(dir.path()).unwrap();
        assert_eq!((found.len(), &found[3].1), (60, &long));
    }
    fs::write(&file, &sound[..sound.len() - 8]).unwrap();
    assert!(refused(dir.path()).contains("cut short"));
}

#[test]
fn segments_that_are_not_needed_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let mut log =
        LogFile::create(&FsPath::system(dir.path()), ID, SEGMENT, Sealing::default()).unwrap();
    let mut seq = 0;
    for number in 0..1000 {
        log.append(RecordKind::Write, &body(number)).unwrap();
        seq = log.last().seq;
        log.drop_before(seq);
    }
    let used: Vec<u64> = log.segments.iter().map(|segment| segment.number).collect();
    drop(log);
    let present = numbers(&FsPath::system(dir.path())).unwrap();
    assert!(present.len() <= used.len() + SPARE, "{present:?}, {used:?}");
    let (found, scan) = read(dir.path()).unwrap();
    assert_eq!(found.last().unwrap().0, seq);
    assert!(scan.segments[0].first_seq > 900);
}

/// The most segments that are created ahead or kept for reuse.
const SPARE: usize = 6;

#[test]
fn a_torn_last_record_is_no_part_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = written(dir.path(), 3);
    let begin = log.offset;
    log.append(RecordKind::Write, &body(3)).unwrap();
    let end = log.offset;
    drop(log);
    let file = path(dir.path(), 1);
    let sound = fs::read(&file).unwrap();
    for cut in (begin..end).step_by(8) {
        let mut torn = sound.clone();
        torn[cut..end].fill(0);
        fs::write(&file, &torn).unwrap();
        let (found, scan) = read(dir.path()).unwrap();
        assert_eq!((found.len(), scan.last.seq, scan.offset), (3, 3, begin), "cut at {cut}");
    }
    // The next record replaces the torn one.
    let (_, scan) = read(dir.path()).unwrap();
    let mut log =
        LogFile::resume(&FsPath::system(dir.path()), ID, SEGMENT, scan, Sealing::default())
            .unwrap();
    log.append(RecordKind::Write, &"instead").unwrap();
    drop(log);
    assert_eq!(read(dir.path()).unwrap().0[3], (4, "instead".to_owned()));
}

#[test]
fn a_damaged_record_that_is_not_the_last_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(dir.path(), 40);
    let (all, end) = (log.segments.clone(), log.offset);
    drop(log);
    for segment in &all {
        let file = path(dir.path(), segment.number);
        let sound = fs::read(&file).unwrap();
        let last = segment.number == all.back().unwrap().number;
        let behind = if last { end - 200 } else { sound.len() };
        for place in (0..behind).step_by(40) {
            let mut damaged = sound.clone();
            damaged[place] ^= 1;
            fs::write(&file, &damaged).unwrap();
            // The zeros in the header and behind the last record may change.
            if let Ok((found, _)) = read(dir.path()) {
                assert_eq!(found.len(), 40, "segment {} at {place}", segment.number);
            }
        }
        fs::write(&file, &sound).unwrap();
    }
    assert_eq!(read(dir.path()).unwrap().0.len(), 40);
}

#[test]
fn a_missing_segment_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(dir.path(), 40);
    let used: Vec<u64> = log.segments.iter().map(|segment| segment.number).collect();
    drop(log);
    let ahead = used.last().unwrap() + 1;
    for number in &used {
        let file = path(dir.path(), *number);
        let sound = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        // A log without its beginning passes this check: the checkpoint determines what is needed.
        match read(dir.path()) {
            Ok((_, scan)) => assert!(scan.segments[0].first_seq > 1),
            Err(error) => assert!(matches!(error, StorageError::Corrupt { .. }), "{error}"),
        }
        fs::write(&file, &sound).unwrap();
    }
    let _ = fs::remove_file(path(dir.path(), ahead));
    fs::remove_file(path(dir.path(), ahead - 1)).unwrap();
    assert!(refused(dir.path()).contains("missing"));
    for number in &used {
        let _ = fs::remove_file(path(dir.path(), *number));
    }
    assert!(refused(dir.path()).contains("empty"));
}

#[test]
fn a_segment_that_was_made_and_not_used_is_no_part_of_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = written(dir.path(), 10);
    let ahead = log.segment.number + 1;
    drop(log);
    let sound = read(dir.path()).unwrap().0;
    let old = fs::read(path(dir.path(), 1)).unwrap();
    let id = SegmentId { log: ID, number: ahead };
    let fresh = [&segments::header(id, SEGMENT)[..], &[0; 1536]].concat();
    // Half written; reused, with its old header; and complete.
    for bytes in [&fresh[..700], &old[..], &fresh[..]] {
        fs::write(path(dir.path(), ahead), bytes).unwrap();
        let (found, scan) = read(dir.path()).unwrap();
        assert_eq!(found, sound);
        drop(
            LogFile::resume(&FsPath::system(dir.path()), ID, SEGMENT, scan, Sealing::default())
                .unwrap(),
        );
    }
}

#[test]
fn a_log_of_another_store_does_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path(), 3));
    let from = SegmentRange { segment: FIRST_SEGMENT, offset: HEADER_BYTES as u64, bytes: 0 };
    let error = scan::scan(&FsPath::system(dir.path()), ID + 1, from, |_| Ok(())).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
}
