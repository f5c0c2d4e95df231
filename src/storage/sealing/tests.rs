use std::fs;
use std::path::Path;

use super::*;
use crate::encryption::KeyRing;
use crate::node::stored::LogWrite;
use crate::storage::contract::LogAfter;
use crate::storage::crash_tests::copy_directory;
use crate::storage::directory::{Directory, current_incarnation};
use crate::storage::file_system::FsPath;
use crate::storage::model::{Model, Op, apply, entry, found, meta};
use crate::storage::options::StoreOptions;
use crate::storage::store::DiskStore;

fn ring(ids: &[&str]) -> Option<Arc<KeyRing>> {
    Some(Arc::new(KeyRing::for_tests(ids)))
}

fn open(dir: &Path, keys: Option<Arc<KeyRing>>) -> Result<DiskStore> {
    let options = StoreOptions { segment_bytes: 4 << 10, keys, ..StoreOptions::default() };
    DiskStore::open(&FsPath::system(dir), options)
}

fn perform(store: &mut DiskStore, model: &mut Model, op: &Op) {
    let kind = apply(store, op).unwrap();
    model.apply(op, kind);
}

fn append(store: &mut DiskStore, model: &mut Model, data: &[u8]) {
    let entries = vec![entry(model.last() + 1, 1, data)];
    perform(store, model, &Op::Append(LogWrite { hard_state: None, entries }));
}

fn checkpoint(store: &mut DiskStore, model: &mut Model, full: bool, data: &[u8]) {
    let (meta, log) = (meta(model.last()), LogAfter::From(model.last() + 1));
    let (chunks, between) = (vec![data.to_vec(), data.repeat(5000)], None);
    perform(store, model, &Op::Checkpoint { full, chunks, between, meta, log });
}

/// An encrypted store, as a start with this key leaves it.
fn written(dir: &Path, keys: &[&str]) -> Model {
    let mut store = open(dir, ring(keys)).unwrap();
    let mut model = found(&mut store).unwrap();
    for _ in 0..3 {
        append(&mut store, &mut model, b"an entry");
        checkpoint(&mut store, &mut model, false, b"a delta");
    }
    append(&mut store, &mut model, b"the last");
    model
}

fn key_error(dir: &Path, keys: Option<Arc<KeyRing>>) -> String {
    let before = listing(dir);
    let error = open(dir, keys).unwrap_err();
    let StorageError::Key { what } = error else { panic!("{error:?}") };
    // Neither a mark nor anything else was written.
    assert_eq!(listing(dir), before);
    what
}

fn listing(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for file in files_below(dir) {
        files.push((file.display().to_string(), fs::read(file).unwrap()));
    }
    files
}

fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(dir) {
        // Removed meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return found,
        other => other.unwrap(),
    };
    for entry in entries {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

fn stored(dir: &Path) -> Vec<WrappedKey> {
    KEYS.unseal::<StoredKeys>(&fs::read(current_incarnation(dir).join("KEYS")).unwrap())
        .unwrap()
        .keys
}

#[test]
fn golden_sealed() {
    let mut golden = crate::golden::Golden::new("sealed");
    let key =
        WrappedKey { id: 3, under: "k1".to_owned(), nonce: [1; 24], key: [2; 32], tag: [3; 16] };
    golden.sample("KEYS", &KEYS.seal(&StoredKeys { keys: vec![key] }).unwrap());
    let sealing = Sealing { keys: Some(Arc::new(DataKeys::for_tests(3))), given: true };
    let context = AssociatedData::new(b'L', [1, 2, 3, 4, 5, 6, 7]);
    golden.sample("a body", &sealing.sealed(&context, b"a body").unwrap());
    golden.check();
}

#[test]
fn nothing_that_is_written_is_in_clear() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path().join("data");
    let secret = b"recognisable-6f1d";
    let is_hidden = |when: &str| {
        let files = files_below(&dir);
        assert!(files.len() > 5, "{files:?}");
        for file in files {
            let bytes = match fs::read(&file) {
                // The thread for files renames and removes what is not needed any more.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.unwrap(),
            };
            let is_there = bytes.windows(secret.len()).any(|part| part == secret);
            assert!(!is_there, "{when}: {} has it in clear", file.display());
        }
    };
    let mut store = open(&dir, ring(&["k1"])).unwrap();
    let mut model = found(&mut store).unwrap();
    for round in 0..30 {
        append(&mut store, &mut model, &secret.repeat(20));
        if round % 5 == 4 {
            checkpoint(&mut store, &mut model, round % 10 == 9, secret);
        }
        if round == 12 {
            is_hidden("while it is open");
            drop(store);
            store = open(&dir, ring(&["k1"])).unwrap();
            assert_eq!(Model::of(&mut store).unwrap(), model);
        }
    }
    is_hidden("while it is open, at the end");
    drop(store);
    is_hidden("after it was closed");
    assert_eq!(Model::of(&mut open(&dir, ring(&["k1"])).unwrap()).unwrap(), model);
}

#[test]
fn a_missing_or_wrong_key_is_named_and_changes_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let model = written(dir, &["k1"]);
    let error = key_error(dir, None);
    assert!(error.contains("\"k1\"") && error.contains("no keys are given"), "{error}");
    let error = key_error(dir, ring(&["k2", "k3"]));
    let expected = "under key \"k1\", which a test does not have (it has \"k2\", \"k3\")";
    assert!(error.contains(expected), "{error}");
    let other = KeyRing::with_another("k1");
    let error = key_error(dir, Some(Arc::new(other)));
    assert!(error.contains("key \"k1\" of a test is not the key of that id"), "{error}");
    assert_eq!(Model::of(&mut open(dir, ring(&["k1"])).unwrap()).unwrap(), model);
}

#[test]
fn a_directory_in_clear_is_refused_with_a_key() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let mut store = open(dir, None).unwrap();
    let model = found(&mut store).unwrap();
    drop(store);
    assert!(!current_incarnation(dir).join("KEYS").exists());
    let error = key_error(dir, ring(&["k1"]));
    assert!(error.starts_with("it is not encrypted, and a key is given"), "{error}");
    assert_eq!(Model::of(&mut open(dir, None).unwrap()).unwrap(), model);
}

#[test]
fn another_first_key_wraps_again_and_encrypts_with_a_new_data_key() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let mut model = written(dir, &["k1"]);
    let ids = |dir: &Path| -> Vec<(u32, String)> {
        stored(dir).into_iter().map(|key| (key.id, key.under)).collect()
    };
    assert_eq!(ids(dir), [(1, "k1".to_owned())]);
    let mut store = open(dir, ring(&["k2", "k1"])).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
    assert_eq!(ids(dir), [(1, "k2".to_owned()), (2, "k2".to_owned())]);
    append(&mut store, &mut model, b"with the second");
    drop(store);
    // The former key is not needed any more.
    let mut store = open(dir, ring(&["k2"])).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
    let error = {
        let copy = tempfile::tempdir().unwrap();
        copy_directory(dir, copy.path());
        key_error(copy.path(), ring(&["k1"]))
    };
    assert!(error.contains("under key \"k2\""), "{error}");
    // A full image and what follows it are encrypted with the second data key alone.
    checkpoint(&mut store, &mut model, true, b"an image");
    drop(store);
    assert_eq!(ids(dir).len(), 2);
    let mut store = open(dir, ring(&["k2"])).unwrap();
    assert_eq!(Model::of(&mut store).unwrap(), model);
    assert_eq!(ids(dir), [(2, "k2".to_owned())]);
    drop(store);
    assert_eq!(Model::of(&mut open(dir, ring(&["k2"])).unwrap()).unwrap(), model);
}

#[test]
fn a_lost_or_damaged_keys_file_is_damage_and_not_a_wrong_key() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    let model = written(dir, &["k1"]);
    let file = current_incarnation(dir).join("KEYS");
    let sound = fs::read(&file).unwrap();
    let mut flipped = sound.clone();
    flipped[40] ^= 1;
    for (bytes, expected) in [(None, "KEYS is missing"), (Some(&flipped), "KEYS is damaged")] {
        match bytes {
            Some(bytes) => fs::write(&file, bytes).unwrap(),
            None => fs::remove_file(&file).unwrap(),
        }
        // Without a key, nobody may replace the data by data in clear.
        let error = open(dir, None).unwrap_err();
        assert!(matches!(&error, StorageError::Key { what } if what.contains("KEYS")), "{error}");
        assert!(!dir.join("QUARANTINED").exists());
        let error = open(dir, ring(&["k1"])).unwrap_err();
        assert!(
            matches!(&error, StorageError::Corrupt { what } if what.contains(expected)),
            "{error}"
        );
        assert!(dir.join("QUARANTINED").exists());
        fs::write(&file, &sound).unwrap();
        assert_eq!(Model::of(&mut open(dir, ring(&["k1"])).unwrap()).unwrap(), model);
        assert!(!dir.join("QUARANTINED").exists());
    }
}

/// Data keys that were drawn for another directory have the same ids.
#[test]
fn keys_of_another_directory_do_not_decrypt_and_show_no_damage() {
    let temporary = tempfile::tempdir().unwrap();
    let (one, two) = (temporary.path().join("one"), temporary.path().join("two"));
    written(&one, &["k1"]);
    written(&two, &["k1"]);
    fs::copy(current_incarnation(&two).join("KEYS"), current_incarnation(&one).join("KEYS"))
        .unwrap();
    let error = key_error(&one, ring(&["k1"]));
    assert!(error.contains("data key 1 does not decrypt it"), "{error}");
}

#[test]
fn a_body_decrypts_at_its_own_place_only() {
    let sealing = Sealing { keys: Some(Arc::new(DataKeys::for_tests(1))), given: true };
    let fields = [1, 2, 3, 4, 5, 6, 7];
    let sealed = sealing.sealed(&AssociatedData::new(b'C', fields), b"text").unwrap();
    let open = |kind: u8, fields| {
        sealing.opened(&AssociatedData::new(kind, fields), true, &sealed, "it").map(Cow::into_owned)
    };
    assert_eq!(open(b'C', fields).unwrap(), b"text");
    assert!(matches!(open(b'L', fields), Err(StorageError::Key { .. })));
    for place in 0..fields.len() {
        let mut other = fields;
        other[place] += 1;
        assert!(matches!(open(b'C', other), Err(StorageError::Key { .. })), "field {place}");
    }
    // Nor is a body in clear taken for one of this member.
    let clear = sealing.opened(&AssociatedData::new(b'C', fields), false, b"text", "it");
    assert!(matches!(clear, Err(StorageError::Key { .. })));
}

/// Neither in one opening nor in two, between which nothing is kept but the keys.
#[test]
fn no_nonce_is_used_twice() {
    let wrapped = [KeyRing::for_tests(&["k1"]).new_data_key(1).unwrap()];
    let context = AssociatedData::new(b'L', [0; 7]);
    let mut nonces = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let keys = DataKeys::open(&KeyRing::for_tests(&["k1"]), &wrapped).unwrap();
        let sealing = Sealing { keys: Some(Arc::new(keys)), given: true };
        for _ in 0..100 {
            let sealed = sealing.sealed(&context, b"the same").unwrap();
            // The key's id, and the nonce.
            nonces.insert(sealed[..HEAD_BYTES].to_vec());
        }
    }
    assert_eq!(nonces.len(), 300);
}

#[test]
fn a_wrong_key_is_not_damage() {
    let temporary = tempfile::tempdir().unwrap();
    let dir = temporary.path();
    written(dir, &["k1"]);
    // On this thread, where the bug is planted.
    let mut directory = Directory::open(&FsPath::system(dir), None).unwrap();
    for ring in [None, ring(&["k2"])] {
        let error =
            Sealing::open_keys(directory.owned().unwrap().path(), ring.as_ref()).unwrap_err();
        let error = directory.quarantine_if_corrupt(error);
        assert!(matches!(error, StorageError::Key { .. }), "{error}");
        assert!(!dir.join("QUARANTINED").exists());
    }
}
