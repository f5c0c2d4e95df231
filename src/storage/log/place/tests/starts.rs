//! Which start has used a log last: old copies, and crashes while that is noted.

use super::*;

/// A snapshot of the log's device, taken while the member ran, was put back after its end.
#[test]
fn an_old_copy_of_the_same_start_is_refused() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    let place = log_at(&logs, first());
    let mut store = open(&dir, None).unwrap();
    write(&mut store);
    copy_directory(&place, &work.path().join("old"));
    for _ in 0..10 {
        write(&mut store);
    }
    drop(store);
    fs::rename(&place, work.path().join("newest")).unwrap();
    copy_directory(&work.path().join("old"), &place);
    let text = refused(open(&dir, None), &[&dir, &place]);
    assert!(text.contains("old copy"), "{text}");
    assert!(!dir.join("QUARANTINED").exists());
    // Tools take it for damaged.
    let to = work.path().join("copy");
    copy_store(&FsPath::system(&dir), &FsPath::system(&to), None).unwrap();
    let error = open(&to, None).unwrap_err();
    assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
    let salvage = DiskStore::salvage(&FsPath::system(&to), options(None)).unwrap();
    assert_eq!(salvage.boot.entries.len(), 2);
    fs::remove_dir_all(&place).unwrap();
    fs::rename(work.path().join("newest"), &place).unwrap();
    assert_eq!(Model::of(&mut open(&dir, None).unwrap()).unwrap().entries.len(), 12);
}

/// Both directories were restored from one moment, started, and restored again.
#[test]
fn two_histories_have_different_starts() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    let at = |name: &str| work.path().join(name);
    copy_directory(&dir, &at("data-backup"));
    copy_directory(&logs, &at("logs-backup"));
    let start = |random| {
        let options = StoreOptions { random, ..options(None) };
        let mut store = DiskStore::open(&FsPath::system(&dir), options)?;
        Ok::<_, StorageError>(write(&mut store))
    };
    start(1).unwrap();
    fs::rename(&logs, at("logs-first")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    copy_directory(&at("data-backup"), &dir);
    copy_directory(&at("logs-backup"), &logs);
    start(2).unwrap();
    // The data directory of the second, and the log of the first.
    fs::remove_dir_all(&logs).unwrap();
    fs::rename(at("logs-first"), &logs).unwrap();
    let text = start(3).unwrap_err().to_string();
    assert!(text.contains("not of the same start"), "{text}");
}

/// A member that was killed after ten more writes, and an old copy of its log from the same start, put in its place.
/// Returns the directory of the right log, and what it has.
fn with_an_old_copy(dir: &Path, place: &Path, work: &Path) -> (PathBuf, Model) {
    let mut store = open(dir, None).unwrap();
    write(&mut store);
    copy_directory(place, &work.join("old"));
    let noted = dir.join(format!("incarnation-{:016x}/LOG_DIR", first()));
    let killed = fs::read(&noted).unwrap();
    let models: Vec<Model> = (0..10).map(|_| write(&mut store)).collect();
    drop(store);
    fs::write(noted, killed).unwrap();
    fs::rename(place, work.join("right")).unwrap();
    copy_directory(&work.join("old"), place);
    (work.join("right"), models.last().unwrap().clone())
}

/// A start with an old copy ended as the leader knew more. The right log was refused from then on.
#[test]
fn a_start_that_has_promised_nothing_leaves_the_right_log_the_last_one() {
    let work = tempfile::tempdir().unwrap();
    let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
    member(&dir, &logs);
    let place = log_at(&logs, first());
    let (right, model) = with_an_old_copy(&dir, &place, work.path());
    let mut store = open(&dir, None).unwrap();
    assert!(Model::of(&mut store).unwrap().entries.len() < model.entries.len());
    // It learns of a term, and votes for nobody.
    let hard_state = Some(HardState { term: 9, vote: 0, commit: 1 });
    store.append(&LogWrite { hard_state, entries: Vec::new() }).unwrap();
    drop(store);
    fs::remove_dir_all(&place).unwrap();
    fs::rename(right, &place).unwrap();
    assert_eq!(Model::of(&mut open(&dir, None).unwrap()).unwrap(), model);
}

/// Another vote in the same term would be possible with the right log.
#[test]
fn a_start_with_an_old_copy_that_has_voted_or_acknowledged_refuses_the_right_log() {
    for vote in [true, false] {
        let work = tempfile::tempdir().unwrap();
        let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
        member(&dir, &logs);
        let place = log_at(&logs, first());
        let (right, _) = with_an_old_copy(&dir, &place, work.path());
        let mut store = open(&dir, None).unwrap();
        Model::of(&mut store).unwrap();
        if vote {
            let hard_state = Some(HardState { term: 9, vote: 3, commit: 1 });
            store.append(&LogWrite { hard_state, entries: Vec::new() }).unwrap();
        } else {
            write(&mut store);
        }
        drop(store);
        fs::remove_dir_all(&place).unwrap();
        fs::rename(right, &place).unwrap();
        let text = refused(open(&dir, None), &[&dir, &place]);
        assert!(text.contains("not of the same start"), "{text}");
    }
}

/// Nobody tells the only member of a cluster that its log is an old copy: its operator notices.
#[test]
fn the_only_member_goes_on_with_the_log_of_the_start_before() {
    for begins in [false, true] {
        let work = tempfile::tempdir().unwrap();
        let (dir, logs) = (work.path().join("data"), work.path().join("logs"));
        let mut store = open(&dir, Some(&logs)).unwrap();
        let voting = Voting { voters: vec![identity().node], ..Voting::default() };
        let meta = SnapshotMeta { index: 0, term: 0, zxid: 0, hash: 7, voting };
        let mut chunks = vec![b"genesis".to_vec()].into_iter();
        store.found(&identity(), HardState::default(), &meta, &mut chunks).unwrap();
        drop(store);
        let place = log_at(&logs, first());
        let (right, model) = with_an_old_copy(&dir, &place, work.path());
        let mut store = open(&dir, None).unwrap();
        write(&mut store);
        if begins {
            drop(store.checkpointer().unwrap());
        }
        drop(store);
        fs::rename(&place, work.path().join("second")).unwrap();
        fs::rename(right, &place).unwrap();
        if begins {
            refused(open(&dir, None), &[&dir, &place]);
            continue;
        }
        let mut store = open(&dir, None).unwrap();
        assert_eq!(Model::of(&mut store).unwrap(), model);
        write(&mut store);
        drop(store);
        // Now that one is the last.
        fs::rename(&place, work.path().join("third")).unwrap();
        fs::rename(work.path().join("second"), &place).unwrap();
        refused(open(&dir, None), &[&dir, &place]);
    }
}

fn acknowledged_history(files: &ProcessFiles, acknowledged: &mut u64) -> Result<()> {
    let dir = simulated(files, DATA);
    let options = || options(Some(Path::new(LOGS)));
    let mut store = DiskStore::open(&dir, options())?;
    found(&mut store)?;
    for index in 1..7 {
        store.append(&LogWrite { hard_state: None, entries: vec![entry(index, 1, b"x")] })?;
        *acknowledged = index;
        if index % 2 == 0 {
            drop(store);
            store = DiskStore::open(&dir, options())?;
            store.load(&mut |_| Ok(()))?;
        }
    }
    Ok(())
}

/// By a power cut or by the end of the process, and again during the next start.
#[test]
fn what_was_acknowledged_survives_a_crash_anywhere() {
    let options = || options(Some(Path::new(LOGS)));
    let mut cuts = 0;
    for calls in (0..).step_by(11) {
        let device = Device::new(calls);
        let end = |files: &ProcessFiles, power: bool| match power {
            true => drop(device.cut_power()),
            false => files.end_process(),
        };
        let files = device.process();
        files.stop_after(calls);
        let mut acknowledged = 0;
        let done = acknowledged_history(&files, &mut acknowledged).is_ok();
        end(&files, calls % 2 == 0);
        let files = device.process();
        files.stop_after(calls % 67);
        let _ = DiskStore::open(&simulated(&files, DATA), options())
            .and_then(|mut store| store.load(&mut |_| Ok(())).map(drop));
        end(&files, calls % 3 == 0);
        let files = device.process();
        let mut store = DiskStore::open(&simulated(&files, DATA), options())
            .unwrap_or_else(|error| panic!("after {calls} calls: {error}"));
        if store.identity().is_none() {
            assert_eq!(acknowledged, 0, "after {calls} calls");
            found(&mut store).unwrap();
        }
        let boot = store.load(&mut |_| Ok(())).unwrap();
        let last = boot.entries.last().map_or(0, |last| last.index);
        assert!(last >= acknowledged, "after {calls} calls: {last} of {acknowledged}");
        if done {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 20, "{cuts}");
}

/// A start is noted in two files. The log fits after a crash between any two calls.
#[test]
fn a_crash_while_a_start_is_noted_leaves_its_log_usable() {
    let options = || options(Some(Path::new(LOGS)));
    let mut cuts = 0;
    for calls in 0.. {
        let device = Device::new(calls);
        let files = device.process();
        let dir = simulated(&files, DATA);
        found(&mut DiskStore::open(&dir, options()).unwrap()).unwrap();
        let mut store = DiskStore::open(&dir, options()).unwrap();
        store.load(&mut |_| Ok(())).unwrap();
        files.stop_after(calls);
        let entries = vec![entry(1, 1, b"x")];
        let done = store.append(&LogWrite { hard_state: None, entries }).is_ok();
        files.end_process();
        drop(store);
        let files = device.process();
        let mut store = DiskStore::open(&simulated(&files, DATA), options())
            .unwrap_or_else(|error| panic!("after {calls} calls: {error}"));
        let boot = store.load(&mut |_| Ok(())).unwrap();
        assert!(!done || boot.entries.len() == 1, "after {calls} calls");
        if done {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 10, "{cuts}");
}

/// Otherwise the next write would go on with a log in whose place an old copy is believed.
#[test]
fn a_start_that_cannot_be_noted_is_noted_before_the_next_write() {
    let device = Device::new(1);
    let files = device.process();
    let options = || options(Some(Path::new(LOGS)));
    let dir = simulated(&files, DATA);
    found(&mut DiskStore::open(&dir, options()).unwrap()).unwrap();
    let path = place(&simulated(&files, LOGS), first());
    let noted = || owner_at(&path).unwrap().unwrap().start;
    let founded = noted();
    let mut store = DiskStore::open(&dir, options()).unwrap();
    store.load(&mut |_| Ok(())).unwrap();
    let write = LogWrite { hard_state: None, entries: vec![entry(1, 1, b"x")] };
    device.set_descriptors(Some(0));
    let error = store.append(&write).unwrap_err();
    assert!(matches!(error, StorageError::Again { .. }), "{error:?}");
    device.set_descriptors(None);
    assert_eq!(noted(), founded);
    store.append(&write).unwrap();
    assert_ne!(noted(), founded);
}
