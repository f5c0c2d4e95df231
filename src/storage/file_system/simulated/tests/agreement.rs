//! Without faults, the simulated file system and the system's give the same results.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::storage::file_system::simulated::{DatabaseOptions, Random};
use crate::storage::file_system::system::SystemFiles;
use crate::storage::file_system::{Database, NameKind};

fn pairs(database: &dyn Database, from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pairs = database.range(from).map(Result::unwrap);
    pairs.map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

#[test]
fn databases_agree() {
    for seed in 0..4 {
        let temporary = TempDir::new().unwrap();
        let device = Device::new(seed);
        // Small, so that segments are used again.
        device.set_database(DatabaseOptions { segment_bytes: 16 << 10, value_bytes_max: 4 << 10 });
        let files = device.process();
        let open = || {
            let sled = SystemFiles.open_database(temporary.path()).unwrap();
            (sled, files.open_database(path("/")).unwrap())
        };
        let (mut sled, mut model) = open();
        let mut random = Random::new(seed);
        for _ in 0..600 {
            let key = vec![random.below(40) as u8; 1 + random.index(3)];
            match random.below(20) {
                0 => {
                    drop((sled, model));
                    (sled, model) = open();
                }
                1..4 => {
                    sled.flush().unwrap();
                    model.flush().unwrap();
                }
                4..8 => {
                    sled.remove(&key).unwrap();
                    model.remove(&key).unwrap();
                }
                8 => assert_eq!(pairs(&*sled, &key), pairs(&*model, &key)),
                large => {
                    let bytes = random.index(if large == 9 { 9000 } else { 900 });
                    let value = vec![random.next() as u8; bytes];
                    sled.insert(&key, &value).unwrap();
                    model.insert(&key, &value).unwrap();
                }
            }
        }
        assert_eq!(pairs(&*sled, &[]), pairs(&*model, &[]));
    }
}

#[test]
fn databases_make_what_is_missing() {
    let temporary = TempDir::new().unwrap();
    let device = Device::new(1);
    let files = device.process();
    for (files, root) in [(&SystemFiles as &dyn FileSystem, temporary.path()), (&files, path("/"))]
    {
        let open = || files.open_database(root).unwrap();
        let database = open();
        database.insert(b"key", b"value").unwrap();
        // Dropping it flushes.
        drop(database);
        files.remove_file(&root.join("conf")).unwrap();
        assert_eq!(pairs(&*open(), &[]), [(b"key".to_vec(), b"value".to_vec())]);
        for name in files.list(root).unwrap() {
            if name != "blobs" {
                files.remove_file(&root.join(name)).unwrap();
            }
        }
        assert_eq!(pairs(&*open(), &[]), []);
        for name in ["conf", "db", "blobs"] {
            assert!(files.kind(&root.join(name)).unwrap().is_some(), "{name}");
        }
    }
}

#[test]
fn databases_refuse_an_unfinished_snapshot() {
    use crate::storage::error::StorageError;
    let temporary = TempDir::new().unwrap();
    let device = Device::new(1);
    let files = device.process();
    for (files, root) in [(&SystemFiles as &dyn FileSystem, temporary.path()), (&files, path("/"))]
    {
        let open = || files.open_database(root);
        open().unwrap().insert(b"key", b"value").unwrap();
        drop(open().unwrap());
        let torn = root.join("snap.7FFFFFFFFFFFFFFF.generating");
        files.open(&torn, Access::Create).unwrap().write_at(b"torn", 0).unwrap();
        let refused = open();
        assert!(matches!(refused, Err(StorageError::Corrupt { .. })), "{refused:?}");
        files.remove_file(&torn).unwrap();
        assert_eq!(pairs(&*open().unwrap(), &[]), [(b"key".to_vec(), b"value".to_vec())]);
    }
}

/// The paths of the calls: a directory in a directory, and files in each.
const PATHS: [&str; 8] = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "missing/a"];

/// One of two file systems, with some open files.
struct Side<'a> {
    files: &'a dyn FileSystem,
    root: PathBuf,
    open: [Option<Box<dyn File>>; 3],
}

/// The result of a call, so that both sides can be compared.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Done,
    Failed(ErrorKind),
    Number(u64),
    Bytes(Vec<u8>),
    Kind(Option<NameKind>),
    Names(Vec<std::ffi::OsString>),
    NotOpen,
}

fn seen<T>(result: io::Result<T>, see: impl FnOnce(T) -> Seen) -> Seen {
    result.map_or_else(|error| Seen::Failed(error.kind()), see)
}

impl Side<'_> {
    /// Makes the call that these numbers stand for.
    fn call(&mut self, random: &mut Random) -> Seen {
        let one = self.root.join(random.pick(&PATHS).unwrap());
        let other = self.root.join(random.pick(&PATHS).unwrap());
        let slot = random.index(3);
        let (kind, number) = (random.below(20), random.below(10_000));
        let done = |result: io::Result<()>| seen(result, |()| Seen::Done);
        match kind {
            0..3 => {
                // Whether a directory can be opened as a file depends on the system.
                if self.files.kind(&one).ok().flatten() == Some(NameKind::Directory) {
                    return Seen::NotOpen;
                }
                let access = [Access::Create, Access::Read, Access::Write][kind as usize];
                self.open[slot] = None;
                return seen(self.files.open(&one, access), |file| {
                    self.open[slot] = Some(file);
                    Seen::Done
                });
            }
            3 => return done(self.files.rename(&one, &other)),
            4 => return done(self.files.remove_file(&one)),
            5 => return done(self.files.remove_directory(&one)),
            6 => return done(self.files.create_directory(&one)),
            7 => return seen(self.files.kind(&one), Seen::Kind),
            8 => {
                return seen(self.files.list(&one), |mut names| {
                    names.sort();
                    Seen::Names(names)
                });
            }
            9 => {
                let directory = self.files.kind(&one).ok().flatten() == Some(NameKind::Directory);
                return if directory {
                    done(self.files.open_directory(&one).and_then(|names| names.sync()))
                } else {
                    Seen::NotOpen
                };
            }
            _ => {}
        }
        let Some(file) = &self.open[slot] else { return Seen::NotOpen };
        match kind {
            10..13 => {
                let bytes = vec![number as u8; random.index(6000)];
                done(file.write_at(&bytes, number))
            }
            13 => seen(file.length(), Seen::Number),
            14 => done(file.set_length(number)),
            15 => done(file.sync_data()),
            16 => done(file.sync_all()),
            17 => {
                file.forget_cached(number);
                Seen::Done
            }
            _ => {
                let mut bytes = vec![0; random.index(6000)];
                seen(file.read_at(&mut bytes, number), |read| {
                    bytes.truncate(read);
                    Seen::Bytes(bytes)
                })
            }
        }
    }
}

/// All files and directories below a path, with the content of files.
fn tree(files: &dyn FileSystem, root: &Path, at: &str) -> Vec<(String, Option<Vec<u8>>)> {
    let mut names = files.list(&root.join(at)).unwrap();
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let inner = path(at).join(name);
        let inner = inner.to_str().unwrap();
        if files.kind(&root.join(inner)).unwrap() == Some(NameKind::Directory) {
            found.push((inner.to_owned(), None));
            found.extend(tree(files, root, inner));
        } else {
            let file = files.open(&root.join(inner), Access::Read).unwrap();
            found.push((inner.to_owned(), Some(read(&*file))));
        }
    }
    found
}

#[test]
fn file_systems_agree() {
    let mut done = 0;
    for seed in 0..60 {
        let temporary = TempDir::new().unwrap();
        let device = Device::new(seed);
        let files = device.process();
        let mut system = Side {
            files: &SystemFiles,
            root: temporary.path().to_owned(),
            open: Default::default(),
        };
        let mut simulated = Side { files: &files, root: "/".into(), open: Default::default() };
        let mut random = Random::new(seed);
        for call in 0..400 {
            let expected = system.call(&mut random.clone());
            let found = simulated.call(&mut random);
            assert_eq!(expected, found, "seed {seed} call {call}");
            done += u64::from(!matches!(found, Seen::Failed(_) | Seen::NotOpen));
            if call % 100 == 0 {
                // What is clean is on the device as well.
                device.drop_caches();
            }
        }
        let expected = tree(&SystemFiles, temporary.path(), "");
        assert_eq!(expected, tree(&files, path("/"), ""), "seed {seed}");
        // Nothing is lost between two processes.
        files.end_process();
        assert_eq!(expected, tree(&device.process(), path("/"), ""), "seed {seed}");
    }
    assert!(done > 5_000, "{done}");
}

#[test]
fn locks_agree() {
    use crate::storage::error::StorageError;
    let temporary = TempDir::new().unwrap();
    let device = Device::new(1);
    let files = device.process();
    for (files, root) in [(&SystemFiles as &dyn FileSystem, temporary.path()), (&files, path("/"))]
    {
        let at = root.join("LOCK");
        let lock = files.lock(&at).unwrap();
        assert_eq!(files.kind(&at).unwrap(), Some(NameKind::File));
        assert!(matches!(files.lock(&at), Err(StorageError::InUse)));
        drop(lock);
        // The content of a file that is locked stays.
        files.open(&at, Access::Write).unwrap().write_at(b"kept", 0).unwrap();
        drop(files.lock(&at).unwrap());
        assert_eq!(read(&*files.open(&at, Access::Read).unwrap()), b"kept");
        let nowhere = files.lock(&root.join("missing/LOCK")).unwrap_err();
        assert!(matches!(nowhere, StorageError::Io { .. }), "{nowhere}");
    }
}
