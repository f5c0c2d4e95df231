//! Disks that lose what was not synced, and that fail: the driver's side of `disk_faults.c`.
//!
//! The library is preloaded into a member. It saves what the device has before the member changes it, in a
//! directory beside the data. So after the member's end, [`Disk::cut_power`] can undo what was not synced,
//! whichever of the processes since has written it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("disk_faults.c");
const PAGE: u64 = 4096;
const RECORD: u64 = PAGE + 8;
const SECTOR: usize = 512;

/// The numbers in the file `control`, in their order.
const FAIL_SYNCS: u64 = 0;
const FAIL_READS: u64 = 1;
const NO_SPACE: u64 = 2;
const KEEP: u64 = 3;
const SYNCS_FAILED: u64 = 4;
const READS_FAILED: u64 = 5;
const REFUSED: u64 = 6;
const CONTROLS: usize = 8;

/// The states of a page that differs from the device.
const FREE: u64 = 0;
const LOST: u64 = 2;

/// A random number below another one.
pub(crate) type Below<'a> = &'a mut dyn FnMut(u64) -> u64;

/// Compiles the library into this directory.
///
/// # Errors
/// The reason, if this machine cannot.
pub(crate) fn build_library(dir: &Path) -> Result<PathBuf, String> {
    if !cfg!(target_os = "linux") {
        return Err("this needs Linux".to_owned());
    }
    let (source, library) = (dir.join("disk_faults.c"), dir.join("disk_faults.so"));
    fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-w", "-o"]).arg(&library).arg(&source);
    let built = cc.output().map_err(|error| format!("there is no C compiler: {error}"))?;
    match built.status.success() {
        true => Ok(library),
        false => Err(String::from_utf8_lossy(&built.stderr).into_owned()),
    }
}

/// Which calls find no space.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoSpace {
    /// Those that make a file or a longer one.
    Growth,
    /// Also all other writes.
    Writes,
}

/// How many calls have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) syncs: u32,
    pub(crate) reads: u32,
    /// For lack of space.
    pub(crate) refused: u32,
}

/// What a power cut has undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Undone {
    pub(crate) pages: u64,
    pub(crate) names: u64,
}

/// The disk of a member.
#[derive(Debug)]
pub(crate) struct Disk {
    data: PathBuf,
    side: PathBuf,
    control: File,
}

impl Disk {
    /// The disk for a data directory. `side` is a directory beside it, on the same file system, that does not
    /// exist yet.
    pub(crate) fn new(data: &Path, side: &Path) -> io::Result<Disk> {
        fs::create_dir_all(data)?;
        fs::create_dir(side)?;
        let mut options = File::options();
        let control = options.read(true).write(true).create_new(true).open(side.join("control"))?;
        // Not only a length: a member must find the space that this needs.
        control.write_all_at(&[0; CONTROLS * 4], 0)?;
        Ok(Disk { data: data.canonicalize()?, side: side.canonicalize()?, control })
    }

    /// Lets a process use this disk.
    pub(crate) fn preload(&self, library: &Path, command: &mut Command) {
        command
            .env("LD_PRELOAD", library)
            .env("FAULTS_ROOT", &self.data)
            .env("FAULTS_SIDE", &self.side)
            .env("FAULTS_KEEP", "/log/");
    }

    fn set(&self, number: u64, value: u32) -> io::Result<()> {
        self.control.write_all_at(&value.to_ne_bytes(), number * 4)
    }

    fn read(&self, number: u64) -> io::Result<u32> {
        let mut value = [0; 4];
        self.control.read_exact_at(&mut value, number * 4)?;
        Ok(u32::from_ne_bytes(value))
    }

    /// Lets the next syncs fail.
    pub(crate) fn fail_syncs(&self, count: u32) -> io::Result<()> {
        self.set(FAIL_SYNCS, count)
    }

    /// Lets the next reads fail.
    pub(crate) fn fail_reads(&self, count: u32) -> io::Result<()> {
        self.set(FAIL_READS, count)
    }

    pub(crate) fn no_space(&self, which: NoSpace) -> io::Result<()> {
        self.set(NO_SPACE, 1 + which as u32)
    }

    /// Whether the pages of the log that a failed sync has lost stay in the cache although a process asks
    /// the system to drop them. It may do so or not.
    pub(crate) fn keep_cached(&self, keep: bool) -> io::Result<()> {
        self.set(KEEP, keep.into())
    }

    /// Ends all failures.
    pub(crate) fn repair(&self) -> io::Result<()> {
        [FAIL_SYNCS, FAIL_READS, NO_SPACE].into_iter().try_for_each(|fault| self.set(fault, 0))
    }

    pub(crate) fn failed(&self) -> io::Result<Failed> {
        let (syncs, reads) = (self.read(SYNCS_FAILED)?, self.read(READS_FAILED)?);
        Ok(Failed { syncs, reads, refused: self.read(REFUSED)? })
    }

    /// Undoes what was not synced: all of it, or some. No process may use the disk.
    pub(crate) fn cut_power(&self, below: Below<'_>) -> io::Result<Undone> {
        let all = below(2) == 0;
        let names = self.undo_names(all, below)?;
        let pages = self.undo_content(all, below)?;
        // What is left was removed durably, or belongs to such files.
        for entry in fs::read_dir(&self.side)? {
            let path = entry?.path();
            match path.file_name().and_then(|name| name.to_str()) {
                Some("control") => {}
                _ if path.is_dir() => fs::remove_dir_all(&path)?,
                _ => fs::remove_file(&path)?,
            }
        }
        Ok(Undone { pages, names })
    }

    /// Undoes the last changes of names. Their order is kept, as by a journal of a file system.
    fn undo_names(&self, all: bool, below: Below<'_>) -> io::Result<u64> {
        let text = match fs::read_to_string(self.side.join("names")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        // A line without an end was not followed by its change.
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        let lines: Vec<&str> = complete.lines().collect();
        let kept = if all { 0 } else { below(lines.len() as u64 + 1) as usize };
        for line in lines[kept..].iter().rev() {
            self.undo_name(line)?;
        }
        Ok((lines.len() - kept) as u64)
    }

    fn undo_name(&self, line: &str) -> io::Result<()> {
        let mut directories = BTreeMap::new();
        walk(&self.data, &mut |path, inode, is_directory| {
            if is_directory {
                directories.insert(inode, path.to_owned());
            }
        })?;
        let inode = fs::metadata(&self.data)?.ino();
        directories.insert(inode, self.data.clone());
        let at = |directory: &str, name: &str| {
            let directory = directory.parse().ok().and_then(|inode| directories.get(&inode))?;
            Some(directory.join(name))
        };
        let words: Vec<&str> = line.split('/').collect();
        match words.as_slice() {
            ["C", directory, name] => match at(directory, name) {
                Some(path) if path.is_dir() => fs::remove_dir_all(path)?,
                Some(path) if path.exists() => fs::remove_file(path)?,
                _ => {}
            },
            ["U", directory, name, removed] => {
                self.put_back(removed, at(directory, name))?;
            }
            ["R", directory, name, new_directory, new_name, replaced] => {
                let (from, to) = (at(directory, name), at(new_directory, new_name));
                let (Some(from), Some(to)) = (from, to) else { return Ok(()) };
                let inode = |path: &Path| fs::metadata(path).map(|metadata| metadata.ino()).ok();
                let replaced_inode = inode(&self.side.join(format!("t{replaced}")));
                // The process may have ended before it renamed anything.
                if inode(&to).is_some() && inode(&to) != replaced_inode {
                    fs::rename(&to, from)?;
                    self.put_back(replaced, Some(to))?;
                }
            }
            _ => return Err(io::Error::other(format!("a strange line of names: {line:?}"))),
        }
        Ok(())
    }

    /// Gives a removed file or directory its name again, unless the process ended before it was removed.
    fn put_back(&self, removed: &str, path: Option<PathBuf>) -> io::Result<()> {
        let removed = self.side.join(format!("t{removed}"));
        match path {
            Some(path) if removed.exists() => fs::rename(removed, path),
            _ => Ok(()),
        }
    }

    fn undo_content(&self, all: bool, below: Below<'_>) -> io::Result<u64> {
        let mut pages = 0;
        let mut files = BTreeMap::new();
        walk(&self.data, &mut |path, inode, is_directory| {
            if !is_directory {
                files.insert(inode, path.to_owned());
            }
        })?;
        for (inode, path) in files {
            let undo = self.side.join(format!("u{inode}"));
            if undo.exists() {
                pages += undo_file(&File::open(undo)?, &path, all, below)?;
            }
        }
        Ok(pages)
    }
}

/// Undoes the changes of a file. Returns the number of pages that this has changed.
fn undo_file(undo: &File, path: &Path, all: bool, below: Below<'_>) -> io::Result<u64> {
    if undo.metadata()?.len() < PAGE {
        return Ok(0);
    }
    let number = |at: u64| {
        let mut bytes = [0; 8];
        undo.read_exact_at(&mut bytes, at).map(|()| u64::from_ne_bytes(bytes))
    };
    let (durable, count, differs) = (number(0)?, number(8)?, number(16)? != 0);
    if !differs {
        return Ok(0);
    }
    let file = File::options().read(true).write(true).open(path)?;
    let seen = file.metadata()?.len();
    let length = if all || below(2) == 0 { durable } else { seen };
    file.set_len(length)?;
    let mut pages = 0;
    for record in (0..count).map(|number| PAGE + number * RECORD) {
        let word = number(record + PAGE)?;
        let (state, offset) = (word % 4, word / 4 * PAGE);
        if state == FREE || offset >= length {
            continue;
        }
        let size = (length - offset).min(PAGE) as usize;
        let (mut old, mut new) = (vec![0; size], vec![0; size]);
        undo.read_exact_at(&mut old, record)?;
        file.read_exact_at(&mut new, offset)?;
        // What was cut off is there no more in any other form.
        let is_lost = all || state == LOST || offset >= seen || below(2) == 0;
        let is_torn = !is_lost && below(4) == 0;
        let mut changed = false;
        for (old, new) in old.chunks(SECTOR).zip(new.chunks_mut(SECTOR)) {
            if is_lost || (is_torn && below(2) == 0) {
                changed |= old != new;
                new.copy_from_slice(old);
            }
        }
        if changed {
            file.write_all_at(&new, offset)?;
            pages += 1;
        }
    }
    Ok(pages)
}

/// Visits all files and directories below one, with their inodes.
fn walk(dir: &Path, visit: &mut dyn FnMut(&Path, u64, bool)) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (path, is_directory) = (entry.path(), entry.file_type()?.is_dir());
        visit(&path, entry.metadata()?.ino(), is_directory);
        if is_directory {
            walk(&path, visit)?;
        }
    }
    Ok(())
}
