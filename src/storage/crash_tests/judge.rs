//! The power cuts of real file systems as the judge of the simulated one.
//!
//! A store works on ext4 and on XFS, each on a loop device, and every call is recorded. Between two calls the file
//! system is shut down at once, as in xfstests: nothing that the kernel still holds in memory reaches the device.
//! What a fresh mount finds must be something that a power cut of the simulated file system may leave after the same
//! calls: every sector in one of the states since the last sync, the names of one moment since then, and a length
//! in between.
//!
//! The test needs root, loop devices, a C compiler, and `mkfs.ext4` or `mkfs.xfs`. Where something is missing, it
//! prints that and ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::file_system::simulated::{Device, Image, PowerCut, ProcessFiles};
use super::super::file_system::{Access, FileSystem, NameKind};
use super::super::model::Random;
use super::count;
use super::disk::{Call, Recording};

const JUDGE_SEED: u64 = 5;
const STEPS: u64 = 30;

/// A file system in a file, mounted, and unmounted at the end in any case.
struct Volume {
    image: PathBuf,
    mount: PathBuf,
}

fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    match Command::new(program).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program} failed: {}", complaint.trim()))
        }
        Err(error) => Err(format!("{program}: {error}")),
    }
}

impl Volume {
    fn new(dir: &Path, make: &[&str]) -> Result<Volume, String> {
        let (image, mount) = (dir.join(make[0]), dir.join(format!("{}-mount", make[0])));
        let file = fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(1 << 30).map_err(|error| error.to_string())?;
        run(make[0], &[&make[1..], &[image.to_str().unwrap()]].concat())?;
        fs::create_dir(&mount).map_err(|error| error.to_string())?;
        let volume = Volume { image, mount };
        volume.mount()?;
        Ok(volume)
    }

    fn mount(&self) -> Result<(), String> {
        let (image, mount) = (self.image.to_str().unwrap(), self.mount.to_str().unwrap());
        run("mount", &["-o", "loop", image, mount])
    }

    /// What is there after the journal was replayed.
    fn mount_again(&self) {
        run("umount", &[self.mount.to_str().unwrap()]).unwrap();
        self.mount().unwrap();
    }

    /// An empty directory that no power cut removes.
    fn new_root(&self) -> PathBuf {
        let root = self.mount.join("root");
        if root.exists() {
            fs::remove_dir_all(&root).unwrap();
        }
        fs::create_dir(&root).unwrap();
        run("sync", &["-f", self.mount.to_str().unwrap()]).unwrap();
        root
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = run("umount", &["-l", self.mount.to_str().unwrap()]);
    }
}

/// What is below a directory, as paths from there.
fn image_of(root: &Path) -> Image {
    fn add(root: &Path, dir: &Path, image: &mut Image) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let inner = Path::new("/").join(path.strip_prefix(root).unwrap());
            if path.is_dir() {
                add(root, &path, image);
                image.insert(inner, None);
            } else {
                image.insert(inner, Some(fs::read(&path).unwrap()));
            }
        }
    }
    let mut image = Image::new();
    add(root, root, &mut image);
    image
}

/// Makes a recorded call on the simulated file system.
fn make(files: &ProcessFiles, root: &Path, call: &Call) {
    let inner = |path: &Path| Path::new("/").join(path.strip_prefix(root).unwrap());
    let path = inner(&call.path);
    let write = || files.open(&path, Access::Write).unwrap();
    match call.kind {
        b'W' => write().write_at(&call.data, call.offset as u64).unwrap(),
        b'T' => write().set_length(call.offset as u64).unwrap(),
        b'S' if files.kind(&path).unwrap() == Some(NameKind::Directory) => {
            files.open_directory(&path).unwrap().sync().unwrap();
        }
        b'S' => write().sync_data().unwrap(),
        b'C' => drop(files.open(&path, Access::Create).unwrap()),
        b'D' => files.create_directory(&path).unwrap(),
        b'R' => {
            let to = inner(Path::new(str::from_utf8(&call.data).unwrap()));
            files.rename(&path, &to).unwrap();
        }
        b'U' => files.remove_file(&path).unwrap(),
        b'X' => files.remove_directory(&path).unwrap(),
        other => panic!("call {other}"),
    }
}

/// How many images have lost something, and how many have kept something that nobody had synced.
#[derive(Debug, Default)]
struct Seen {
    lost: u32,
    kept: u32,
}

fn judge(volume: &Volume, recording: &mut Recording, cuts: u64) -> Seen {
    let mut random = Random(count("QUORATE_CRASH_JUDGE_SEED", JUDGE_SEED));
    let mut seen = Seen::default();
    for number in 0..cuts {
        let (seed, stray) = (random.next(), random.next() | 1);
        let root = volume.new_root();
        recording.move_to(root.clone());
        let calls = recording.work_until_cut(seed, STEPS, None, stray).len();
        let mut cut = 1 + random.below(calls as u64 - 1) as usize;
        let calls = loop {
            volume.new_root();
            let calls = recording.work_until_cut(seed, STEPS, Some(cut), stray);
            if calls.len() == cut {
                break calls;
            }
            // The threads have made fewer calls this time.
            assert!(calls.len() < cut, "{} calls and a cut after {cut}", calls.len());
            cut = cut.div_ceil(2);
        };
        volume.mount_again();
        let image = image_of(&root);
        let device = Device::new(seed);
        let files = device.process();
        for call in &calls {
            make(&files, &root, call);
        }
        if let Err(what) = device.check_image(&image) {
            panic!("cut {number}, after call {cut} of seed {seed} (stray {stray}): {what}");
        }
        seen.lost += u32::from(image != device.visible_image());
        device.cut_power_with(PowerCut::HARD);
        seen.kept += u32::from(image != device.visible_image());
    }
    seen
}

#[test]
fn real_power_cuts_leave_what_the_simulated_file_system_allows() {
    let Some(mut recording) = Recording::new() else { return };
    let work = recording.work.clone();
    let cuts = count("QUORATE_CRASH_JUDGED", 12);
    for make in [&["mkfs.ext4", "-q", "-F"][..], &["mkfs.xfs", "-q", "-f"]] {
        match Volume::new(&work, make) {
            Ok(volume) => {
                let seen = judge(&volume, &mut recording, cuts);
                println!("{} of {cuts} cuts: {seen:?}", make[0]);
                assert!(seen.lost > 0 && seen.kept > 0, "{}: {seen:?}", make[0]);
            }
            Err(reason) => println!("skipped: no power can be cut here: {reason}"),
        }
    }
}
