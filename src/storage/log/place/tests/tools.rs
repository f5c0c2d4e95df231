//! What `inspect` and `recover` read.

use super::*;

/// `inspect` could not read a directory that was carried elsewhere.
#[test]
fn a_copy_for_tools_has_the_log() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    let model = member(&dir, &logs);
    let copied = |name: &str, dir: &Path, log_dir: Option<&Path>| {
        let to = work.path().join(name);
        let marks = copy_store(&FsPath::system(dir), &FsPath::system(&to), log_dir)?;
        marks.log.map_or(Ok(()), Err)?;
        Model::of(&mut open(&to, None)?)
    };
    assert_eq!(copied("first", &dir, None).unwrap(), model);
    let (carried, carried_logs) = (work.path().join("carried"), work.path().join("with"));
    fs::rename(&dir, &carried).unwrap();
    fs::rename(&logs, &carried_logs).unwrap();
    let error = copied("second", &carried, None).unwrap_err().to_string();
    assert!(error.contains(logs.to_str().unwrap()), "{error}");
    assert_eq!(copied("third", &carried, Some(&carried_logs)).unwrap(), model);
}

/// The content of a store for tools, after a fault of what is beside its log. The fault is damage.
fn readable(spoil: impl FnOnce(&Path, &Path)) {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    let model = member(&dir, &logs);
    spoil(&dir.join(format!("incarnation-{:016x}", first())), &log_at(&logs, first()));
    let to = work.path().join("copy");
    let marks = copy_store(&FsPath::system(&dir), &FsPath::system(&to), Some(&logs)).unwrap();
    assert!(matches!(marks.log, Some(StorageError::Corrupt { .. })), "{marks:?}");
    assert_eq!(Model::of(&mut open(&to, None).unwrap()).unwrap(), model);
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[20] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn tools_read_a_log_whose_owner_is_damaged_or_lost() {
    readable(|_, place| flip(&place.join("OWNER")));
    readable(|_, place| fs::remove_file(place.join("OWNER")).unwrap());
}

#[test]
fn tools_find_a_log_without_a_sound_log_dir_file() {
    readable(|data, _| flip(&data.join("LOG_DIR")));
    readable(|data, _| fs::remove_file(data.join("LOG_DIR")).unwrap());
}

/// The data directory is a restored backup, and the log is the newest.
#[test]
fn tools_read_two_halves_of_different_starts() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    copy_directory(&dir, &work.path().join("backup"));
    let mut store = open(&dir, None).unwrap();
    let model = write(&mut store);
    drop(store);
    fs::remove_dir_all(&dir).unwrap();
    copy_directory(&work.path().join("backup"), &dir);
    let to = work.path().join("copy");
    let marks = copy_store(&FsPath::system(&dir), &FsPath::system(&to), None).unwrap();
    assert!(marks.log.unwrap().to_string().contains("old copy"));
    assert_eq!(Model::of(&mut open(&to, None).unwrap()).unwrap(), model);
}

/// A tool may read the last copy.
#[test]
fn no_error_of_a_tool_advises_to_remove_anything() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    fs::rename(&logs, work.path().join("away")).unwrap();
    let to = FsPath::system(&work.path().join("copy"));
    let marks = copy_store(&FsPath::system(&dir), &to, None).unwrap();
    let text = marks.log.unwrap().to_string();
    assert!(text.contains("--log-dir") && !text.contains("remove"), "{text}");
}
