mod starts;
mod tools;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::node::stored::{HardState, LogWrite, SnapshotMeta, Voting};
use crate::storage::contract::LogStore;
use crate::storage::crash_tests::copy_directory;
use crate::storage::model::{self, Model, apply, entry, found, identity};
use crate::storage::options::StoreOptions;
use crate::storage::replacement::copy_store;
use crate::storage::simulated::{Device, ProcessFiles};
use crate::storage::store::DiskStore;

/// The number in the names of the first incarnation.
fn first() -> u64 {
    identity().incarnation
}

fn options(log_dir: Option<&Path>) -> StoreOptions {
    StoreOptions { log_dir: log_dir.map(Path::to_owned), ..StoreOptions::default() }
}

fn open(dir: &Path, log_dir: Option<&Path>) -> Result<DiskStore> {
    DiskStore::open(&FsPath::system(dir), options(log_dir))
}

fn log_at(log_dir: &Path, number: u64) -> PathBuf {
    log_dir.join(format!("log-{number:016x}"))
}

/// Appends the next entry. Returns the content.
fn write(store: &mut DiskStore) -> Model {
    let mut model = Model::of(store).unwrap();
    let index = model.entries.last().map_or(1, |last| last.index + 1);
    let entries = vec![entry(index, 1, b"more")];
    let op = model::Op::Append(LogWrite { hard_state: None, entries });
    let kind = apply(store, &op).unwrap();
    model.apply(&op, kind);
    model
}

/// A member with a log of one entry.
fn member(dir: &Path, log_dir: &Path) -> Model {
    let mut store = open(dir, Some(log_dir)).unwrap();
    found(&mut store).unwrap();
    write(&mut store)
}

fn replace(dir: &FsPath, number: u64, options: StoreOptions) -> Result<DiskStore> {
    let meta = SnapshotMeta { index: 0, term: 0, zxid: 0, hash: 7, voting: Voting::default() };
    let mut chunks = vec![b"empty".to_vec()].into_iter();
    DiskStore::found_replacement(dir, number, HardState::default(), &meta, &mut chunks, options)
}

/// The text of an error that is no damage, with the paths in it.
#[track_caller]
fn refused(opened: Result<DiskStore>, named: &[&Path]) -> String {
    let error = opened.unwrap_err();
    assert!(matches!(error, StorageError::Io { .. }), "{error:?}");
    let text = error.to_string();
    for path in named {
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
    text
}

#[test]
fn the_log_is_elsewhere_and_found_with_and_without_the_setting() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("mount/logs"));
    let model = member(&dir, &logs);
    let data = dir.join(format!("incarnation-{:016x}", first()));
    assert!(!data.join("log").exists());
    assert!(log_at(&logs, first()).join("log/witness").exists());
    for log_dir in [None, Some(logs.as_path()), Some(&logs.join("../logs")), None] {
        assert_eq!(Model::of(&mut open(&dir, log_dir).unwrap()).unwrap(), model);
    }
    // Another member has its log in the same directory.
    let other = work.path().join("other");
    drop(replace_of_a_removed_member(&other, &logs, 9));
    assert_eq!(Model::of(&mut open(&dir, None).unwrap()).unwrap(), model);
}

/// A member that was removed, and came back as this incarnation.
fn replace_of_a_removed_member(dir: &Path, logs: &Path, number: u64) -> DiskStore {
    let mut store = open(dir, None).unwrap();
    found(&mut store).unwrap();
    store.mark_removed().unwrap();
    drop(store);
    replace(&FsPath::system(dir), number, options(Some(logs))).unwrap()
}

#[test]
fn another_log_dir_is_refused() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    member(&at("data"), &at("logs"));
    let text = refused(open(&at("data"), Some(&at("fast"))), &[&at("logs"), &at("fast")]);
    assert!(text.contains("joins its cluster again"), "{text}");
    drop(open(&at("inside"), None).map(|mut store| found(&mut store).unwrap()));
    refused(open(&at("inside"), Some(&at("fast"))), &[&at("inside"), &at("fast")]);
    assert!(!at("fast").exists());
}

#[test]
fn a_log_dir_that_has_to_do_with_a_data_directory_is_refused() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    drop(open(&at("other"), None).map(|mut store| found(&mut store).unwrap()));
    for log_dir in ["data", "data/logs", "data/../data/x", "", "other"] {
        let opened = open(&at("data"), Some(&at(log_dir)));
        refused(opened, &[&work.path().canonicalize().unwrap()]);
    }
    // And a directory of logs is no data directory.
    member(&at("data"), &at("logs"));
    refused(open(&at("logs"), None), &[]);
    assert!(!at("logs/QUARANTINED").exists());
}

#[test]
fn an_absent_log_is_no_damage() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    let model = member(&dir, &logs);
    let away = work.path().join("away");
    let absent = |place: &Path| {
        for log_dir in [None, Some(logs.as_path())] {
            let text = refused(open(&dir, log_dir), &[place, &dir]);
            assert!(text.contains("mounted"), "{text}");
        }
        let error = replace(&FsPath::system(&dir), 5, options(None)).unwrap_err();
        assert!(error.to_string().contains("may be sound"), "{error}");
        assert!(!dir.join("QUARANTINED").exists());
    };
    // The device is not mounted: nothing is there, or the directory beneath it.
    fs::rename(&logs, &away).unwrap();
    absent(&log_at(&logs, first()));
    fs::create_dir(&logs).unwrap();
    absent(&log_at(&logs, first()));
    // A member that was removed does not come back without it, either.
    fs::remove_dir(&logs).unwrap();
    let removed = dir.join(format!("incarnation-{:016x}/REMOVED", first()));
    fs::write(&removed, "removed").unwrap();
    refused(replace(&FsPath::system(&dir), 5, options(None)), &[&logs]);
    fs::remove_file(&removed).unwrap();
    fs::rename(&away, &logs).unwrap();
    assert_eq!(Model::of(&mut open(&dir, None).unwrap()).unwrap(), model);
}

#[test]
fn the_log_of_another_member_is_refused() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    drop(replace_of_a_removed_member(&work.path().join("other"), &logs, 9));
    let place = log_at(&logs, first());
    fs::rename(&place, work.path().join("away")).unwrap();
    copy_directory(&log_at(&logs, 9), &place);
    let text = refused(open(&dir, None), &[&place, &dir]);
    assert!(text.contains("another member"), "{text}");
    fs::remove_file(place.join("OWNER")).unwrap();
    refused(open(&dir, None), &[&place, &dir]);
    // A damaged file is damage.
    fs::remove_dir_all(&place).unwrap();
    copy_directory(&work.path().join("away"), &place);
    let mut bytes = fs::read(place.join("OWNER")).unwrap();
    bytes[20] ^= 1;
    fs::write(place.join("OWNER"), bytes).unwrap();
    assert!(matches!(open(&dir, None), Err(StorageError::Corrupt { .. })));
}

/// A copy of a data directory used, and in the end removed, the log of the original.
#[test]
fn a_copy_of_a_data_directory_leaves_the_log_of_the_original_alone() {
    let work = tempfile::tempdir().unwrap();
    let (dir, copy) = (work.path().join("data"), work.path().join("copy"));
    let logs = work.path().join("logs");
    member(&dir, &logs);
    let mut store = open(&dir, None).unwrap();
    Model::of(&mut store).unwrap();
    copy_directory(&dir, &copy);
    let error = open(&copy, None).unwrap_err();
    assert_eq!(error, StorageError::LogInUse { log: log_at(&logs, first()).display().to_string() });
    let text = error.into_error(copy.clone()).to_string();
    assert!(text.contains("copy") && text.contains("original"), "{text}");
    drop(store);
    // The original goes on.
    let mut store = open(&dir, None).unwrap();
    let model = write(&mut store);
    drop(store);
    let text = refused(open(&copy, None), &[&copy, &dir, &logs]);
    assert!(text.contains("old copy"), "{text}");
    // Nor does the copy remove it, when the incarnations before the last one are not needed any more.
    let marks = |dir: &Path, number: u64| {
        for name in ["REMOVED", "VOTER"] {
            fs::write(dir.join(format!("incarnation-{number:016x}/{name}")), "x").unwrap();
        }
    };
    marks(&copy, first());
    drop(replace(&FsPath::system(&copy), 5, options(None)).unwrap());
    marks(&copy, 5);
    drop(replace(&FsPath::system(&copy), 6, options(None)).unwrap());
    assert!(!copy.join(format!("incarnation-{:016x}", first())).exists());
    assert_eq!(Model::of(&mut open(&dir, None).unwrap()).unwrap(), model);
}

/// An old copy was taken for the log when the device of the log was absent.
#[test]
fn an_old_copy_of_the_log_is_refused() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    let place = log_at(&logs, first());
    copy_directory(&place, &work.path().join("old"));
    let mut store = open(&dir, None).unwrap();
    let model = write(&mut store);
    drop(store);
    fs::rename(&place, work.path().join("newest")).unwrap();
    copy_directory(&work.path().join("old"), &place);
    let text = refused(open(&dir, None), &[&place, &dir]);
    assert!(text.contains("old copy"), "{text}");
    // A link to where the log is now does.
    #[cfg(unix)]
    {
        fs::remove_dir_all(&place).unwrap();
        std::os::unix::fs::symlink(work.path().join("newest"), &place).unwrap();
        assert_eq!(Model::of(&mut open(&dir, None).unwrap()).unwrap(), model);
    }
    let _ = model;
}

#[test]
fn a_removed_incarnation_takes_its_log_along_and_no_other() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    drop(replace_of_a_removed_member(&work.path().join("other"), &logs, 9));
    fs::write(logs.join("mine"), "precious").unwrap();
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    let named = |numbers: &[u64]| {
        let mut names: Vec<String> =
            numbers.iter().map(|number| format!("log-{number:016x}")).collect();
        names.push("mine".to_owned());
        names.sort();
        names
    };
    open(&dir, None).unwrap().mark_removed().unwrap();
    // The log of the next one is where that of the last one is.
    drop(replace(&FsPath::system(&dir), 5, options(None)).unwrap());
    assert_eq!(names(), named(&[first(), 5, 9]));
    open(&dir, None).unwrap().mark_removed().unwrap();
    drop(replace(&FsPath::system(&dir), 6, options(None)).unwrap());
    assert_eq!(names(), named(&[5, 6, 9]));
    // A member that comes back may have its log elsewhere.
    open(&dir, None).unwrap().mark_removed().unwrap();
    let fast = work.path().join("fast");
    drop(replace(&FsPath::system(&dir), 7, options(Some(&fast))).unwrap());
    assert_eq!(names(), named(&[6, 9]));
    assert!(log_at(&fast, 7).exists());
}

const DATA: &str = "/data";
const LOGS: &str = "/logs";

fn simulated(files: &ProcessFiles, path: &str) -> FsPath {
    FsPath::new(Arc::new(files.clone()), Path::new(path))
}

/// The numbers of the logs on a device, and of the incarnations.
fn numbers(files: &ProcessFiles) -> [Vec<String>; 2] {
    [(LOGS, "log-"), (DATA, "incarnation-")].map(|(path, prefix)| {
        let names = simulated(files, path).list().unwrap_or_default();
        let names = names.iter().filter_map(|name| name.to_str());
        let mut found: Vec<String> =
            names.filter_map(|name| name.strip_prefix(prefix)).map(str::to_owned).collect();
        found.sort();
        found
    })
}

/// A founding, a start and two replacements, each of which a crash may cut anywhere.
fn history(files: &ProcessFiles) -> Result<()> {
    let dir = simulated(files, DATA);
    let options = || options(Some(Path::new(LOGS)));
    let mut store = DiskStore::open(&dir, options())?;
    found(&mut store)?;
    drop(store);
    for number in 5..8 {
        let mut store = DiskStore::open(&dir, options())?;
        store.load(&mut |_| Ok(()))?;
        store.mark_removed()?;
        drop(store);
        drop(replace(&dir, number, options())?);
    }
    Ok(())
}

/// What a crash leaves opens, with its log, and the next start removes what is left over in both places.
#[test]
fn a_crash_anywhere_leaves_nothing_that_disturbs_a_start() {
    let mut cuts = [0; 2];
    for calls in (0..).step_by(7) {
        let device = Device::new(calls);
        let files = device.process();
        files.stop_after(calls);
        let done = history(&files).is_ok();
        cuts[usize::from(done)] += 1;
        if calls % 2 == 0 {
            device.cut_power();
        } else {
            files.end_process();
        }
        let files = device.process();
        let options = || options(Some(Path::new(LOGS)));
        let dir = simulated(&files, DATA);
        let opened = match DiskStore::open(&dir, options()) {
            Err(StorageError::Removed { .. }) => replace(&dir, 9, options()),
            opened => opened,
        };
        let mut store = opened.unwrap_or_else(|error| panic!("after {calls} calls: {error}"));
        if store.identity().is_none() {
            found(&mut store).unwrap();
        }
        store.load(&mut |_| Ok(())).unwrap_or_else(|error| panic!("after {calls} calls: {error}"));
        drop(store);
        let [logs, incarnations] = numbers(&files);
        assert_eq!(logs, incarnations, "after {calls} calls");
        if done {
            break;
        }
    }
    assert!(cuts[0] > 50, "{cuts:?}");
}

#[test]
fn golden_log_place() {
    let device = Device::new(1);
    let files = device.process();
    let options = options(Some(Path::new(LOGS)));
    let mut store = DiskStore::open(&simulated(&files, DATA), options.clone()).unwrap();
    found(&mut store).unwrap();
    drop(store);
    let number = first();
    let mut golden = crate::golden::Golden::new("log_place");
    let sample = |golden: &mut crate::golden::Golden, name: &str| {
        let data = simulated(&files, &format!("{DATA}/incarnation-{number:016x}"));
        let place = simulated(&files, &format!("{LOGS}/log-{number:016x}"));
        golden.sample(&format!("LOG_DIR {name}"), &data.join("LOG_DIR").read().unwrap());
        golden.sample(&format!("OWNER {name}"), &place.join("OWNER").read().unwrap());
    };
    sample(&mut golden, "founded");
    let mut store = DiskStore::open(&simulated(&files, DATA), options).unwrap();
    store.load(&mut |_| Ok(())).unwrap();
    store.append(&LogWrite { hard_state: None, entries: vec![entry(1, 1, b"x")] }).unwrap();
    sample(&mut golden, "started");
    golden.check();
}

/// The directory of a member that is alone is the only copy of its cluster.
#[test]
fn no_error_advises_to_remove_the_only_data() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    let (dir, logs) = (at("data"), at("logs"));
    member(&dir, &logs);
    let mut texts = vec![refused(open(&dir, Some(&at("other"))), &[])];
    fs::rename(&logs, at("away")).unwrap();
    texts.push(refused(open(&dir, None), &[]));
    let removed = dir.join(format!("incarnation-{:016x}/REMOVED", first()));
    fs::write(&removed, "removed").unwrap();
    texts.push(replace(&FsPath::system(&dir), 5, options(None)).unwrap_err().to_string());
    fs::remove_file(removed).unwrap();
    fs::rename(at("away"), &logs).unwrap();
    copy_directory(&logs, &at("old"));
    write(&mut open(&dir, None).unwrap());
    fs::rename(&logs, at("newest")).unwrap();
    fs::rename(at("old"), &logs).unwrap();
    texts.push(refused(open(&dir, None), &[]));
    fs::remove_file(log_at(&logs, first()).join("OWNER")).unwrap();
    texts.push(refused(open(&dir, None), &[]));
    for text in texts {
        let advises = text.contains("remove");
        assert!(!advises || text.contains("only member") && text.contains("majority"), "{text}");
    }
}

/// `/var/lib/quorate/log` is a link to a device, which is not mounted.
#[cfg(unix)]
#[test]
fn an_absent_device_behind_a_link_is_no_other_log_dir() {
    let work = tempfile::tempdir().unwrap();
    let (dir, link) = (work.path().join("data"), work.path().join("link"));
    let device = work.path().join("mnt/logs");
    fs::create_dir_all(&device).unwrap();
    std::os::unix::fs::symlink(&device, &link).unwrap();
    member(&dir, &link);
    drop(open(&dir, Some(&link)).unwrap());
    fs::rename(&device, work.path().join("away")).unwrap();
    let text = refused(open(&dir, Some(&link)), &[&dir, &log_at(&device, first())]);
    assert!(text.contains("mounted") && !text.contains("new log_dir"), "{text}");
}

/// A former device was read-only, and each later start failed.
#[test]
fn the_broken_device_of_a_former_log_prevents_no_start() {
    let work = tempfile::tempdir().unwrap();
    let at = |name: &str| work.path().join(name);
    let (dir, logs, fast) = (at("data"), at("logs"), at("fast"));
    member(&dir, &logs);
    open(&dir, None).unwrap().mark_removed().unwrap();
    drop(replace(&FsPath::system(&dir), 5, options(Some(&fast))).unwrap());
    let place = log_at(&logs, first());
    fs::remove_file(place.join("LOCK")).unwrap();
    fs::create_dir(place.join("LOCK")).unwrap();
    for number in 6..9 {
        open(&dir, None).unwrap().mark_removed().unwrap();
        drop(replace(&FsPath::system(&dir), number, options(Some(&fast))).unwrap());
    }
    assert!(!dir.join(format!("incarnation-{:016x}", first())).exists());
}

/// The data directory is a restored snapshot, at the path of the original.
#[test]
fn an_old_copy_at_the_same_path_removes_no_newer_log() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    copy_directory(&dir, &work.path().join("snapshot"));
    let mut store = open(&dir, None).unwrap();
    let model = write(&mut store);
    drop(store);
    fs::rename(&dir, work.path().join("original")).unwrap();
    fs::rename(work.path().join("snapshot"), &dir).unwrap();
    refused(open(&dir, None), &[&dir]);
    for (number, before) in [(5, first()), (6, 5)] {
        for name in ["REMOVED", "VOTER"] {
            fs::write(dir.join(format!("incarnation-{before:016x}/{name}")), "x").unwrap();
        }
        drop(replace(&FsPath::system(&dir), number, options(None)).unwrap());
    }
    fs::rename(&dir, work.path().join("snapshot")).unwrap();
    fs::rename(work.path().join("original"), &dir).unwrap();
    assert_eq!(open(&dir, None).and_then(|mut store| Model::of(&mut store)).unwrap(), model);
}

/// Another instance made the directory for logs, and its process ended before the name was durable.
#[test]
fn the_name_of_a_log_dir_that_another_process_made_is_durable() {
    use crate::storage::file_system::FileSystem;
    use crate::storage::simulated::PowerCut;
    let device = Device::new(1);
    let other = device.process();
    other.create_directory(Path::new("/srv")).unwrap();
    other.create_directory(Path::new("/srv/logs")).unwrap();
    other.end_process();
    let files = device.process();
    let options = || options(Some(Path::new("/srv/logs")));
    let mut store = DiskStore::open(&simulated(&files, DATA), options()).unwrap();
    found(&mut store).unwrap();
    store.append(&LogWrite { hard_state: None, entries: vec![entry(1, 1, b"x")] }).unwrap();
    device.cut_power_with(PowerCut::HARD);
    let files = device.process();
    let mut store = DiskStore::open(&simulated(&files, DATA), options()).unwrap();
    assert_eq!(store.load(&mut |_| Ok(())).unwrap().entries.len(), 1);
}

#[test]
fn a_removed_member_makes_no_log_below_an_empty_mount_point() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    open(&dir, None).unwrap().mark_removed().unwrap();
    fs::rename(&logs, work.path().join("away")).unwrap();
    fs::create_dir(&logs).unwrap();
    for log_dir in [None, Some(logs.as_path())] {
        let text = refused(replace(&FsPath::system(&dir), 5, options(log_dir)), &[&logs, &dir]);
        assert!(text.contains("mounted"), "{text}");
    }
    fs::remove_dir(&logs).unwrap();
    fs::rename(work.path().join("away"), &logs).unwrap();
    drop(replace(&FsPath::system(&dir), 5, options(Some(&logs))).unwrap());
    drop(open(&dir, Some(&logs)).unwrap());
}

/// A name that is no part of the log is tolerated, as in a log in the data directory.
#[test]
fn a_foreign_name_in_the_log_prevents_no_start() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    fs::create_dir(log_at(&logs, first()).join("log/lost+found")).unwrap();
    Model::of(&mut open(&dir, None).unwrap()).unwrap();
}

#[test]
fn an_error_of_the_log_names_its_path() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    let place = log_at(&logs, first());
    let text = || open(&dir, None).unwrap_err().into_error(dir.clone()).to_string();
    fs::write(place.join("OWNER"), "nonsense").unwrap();
    assert!(text().contains(place.to_str().unwrap()), "{}", text());
    fs::remove_file(place.join("LOCK")).unwrap();
    fs::create_dir(place.join("LOCK")).unwrap();
    assert!(text().contains(place.to_str().unwrap()), "{}", text());
}
