//! Requests of a higher version than the cluster's are refused, and the version is part of the state.

use super::*;
use crate::machine::snapshot::{ChunkReader, ChunkWriter};
use crate::types::version::{INVENTED, VERSION};

fn invented(path: &str) -> Op {
    Op::Invented { path: path.into(), data: "new".into() }
}

fn unsupported() -> OpError {
    let what = "invented".to_owned();
    OpError::Unsupported { what, needs: INVENTED, cluster: VERSION }
}

#[test]
fn a_request_of_a_higher_version_is_refused_and_the_result_kept() {
    let mut s = Script::new();
    s.make("/a", Persistent);
    let (zxid, hash) = (s.machine.zxid(), s.machine.tree().hash());
    assert_eq!(s.op(invented("/a")), Err(unsupported()));
    let both = vec![create("/b", Persistent), invented("/a")];
    let refused = Err(OpError::Multi { index: 1, error: Box::new(unsupported()) });
    assert_eq!(s.run(A, Command::Multi(both.clone())), refused);
    assert_eq!((s.machine.zxid(), s.machine.tree().hash()), (zxid, hash));

    s.raise(INVENTED);
    // The repeated request gets the first answer again.
    assert_eq!(s.send(A, A.0, s.next[0] - 1, 0, Command::Multi(both)), refused);
    assert!(matches!(s.op(invented("/a")), Ok(Reply::Set(stat)) if stat.version == 1));
}

#[test]
fn the_version_is_raised_only_and_is_in_the_hash() {
    let mut s = Script::new();
    let (zxid, first) = (s.machine.zxid(), s.machine.hash());
    s.raise(1);
    s.raise(0);
    assert_eq!((s.machine.version(), s.machine.hash()), (1, first));
    s.raise(3);
    assert_ne!(s.machine.hash(), first);
    let third = s.machine.hash();
    s.raise(2);
    assert_eq!((s.machine.version(), s.machine.hash(), s.machine.zxid()), (3, third, zxid));
}

#[test]
fn images_begin_with_the_version() {
    let mut s = Script::new();
    let full = |s: &Script| ChunkWriter::full(s.machine.state()).collect::<Vec<_>>();
    let read = |s: &Script, chunks: &[Vec<u8>]| {
        let mut reader = ChunkReader::new();
        chunks.iter().for_each(|chunk| reader.push(chunk).unwrap());
        reader.finish(s.machine.zxid(), s.machine.hash())
    };
    let mut all = full(&s);
    let first = all.concat();
    s.machine.take_dirty();
    s.raise(2);
    let dirty = s.machine.take_dirty();
    all.extend(ChunkWriter::delta(s.machine.state(), dirty));
    assert_eq!(read(&s, &all).unwrap().version(), 2, "by a delta");
    let second = full(&s).concat();
    assert_eq!(read(&s, &full(&s)).unwrap().version(), 2);
    // The format, the number of the item, that it is a full image, and the version.
    assert_eq!((&first[..4], &second[..4]), (&[1, 0, 1, 1][..], &[1, 0, 1, 2][..]));
    assert_eq!(first[4..], second[4..]);
    assert!(read(&s, &[first]).is_err(), "the hash differs");
}

/// The bytes after the version may be anything.
#[test]
fn the_version_of_an_image_that_is_too_new_is_known() {
    let mut s = Script::new();
    s.raise(9);
    let image = ChunkWriter::full(s.machine.state()).collect::<Vec<_>>().concat();
    let newer = [&image[..4], &[0x7F, 0, 0]].concat();
    let mut reader = ChunkReader::new();
    assert!(reader.push(&newer).is_err());
    assert_eq!(reader.version(), 9);
}
