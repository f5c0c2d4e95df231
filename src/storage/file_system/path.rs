//! Paths, each with its file system.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

use super::system::SystemFiles;
use super::{Access, Database, Directory, File, Lock, NameKind, SharedFileSystem};
use crate::storage::error::Result;
use crate::storage::error::io_error;
use crate::storage::file_system::Space;

/// The size of the pieces in which a file is copied.
const COPIED_BYTES: usize = 1 << 20;

/// A path on a file system.
#[derive(Clone, Debug)]
pub(crate) struct FsPath {
    files: SharedFileSystem,
    path: PathBuf,
}

impl fmt::Display for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl FsPath {
    #[cfg_attr(
        not(any(test, feature = "simulator")),
        allow(dead_code, reason = "the simulator needs it")
    )]
    pub(crate) fn new(files: SharedFileSystem, path: &Path) -> FsPath {
        FsPath { files, path: path.to_owned() }
    }

    /// A path of the operating system.
    pub(crate) fn system(path: &Path) -> FsPath {
        FsPath { files: SystemFiles::shared(), path: path.to_owned() }
    }

    /// The path without its file system.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A name in this directory.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> FsPath {
        FsPath { files: self.files.clone(), path: self.path.join(name) }
    }

    /// Another path on the same file system.
    pub(crate) fn at(&self, path: PathBuf) -> FsPath {
        FsPath { files: self.files.clone(), path }
    }

    /// The directory that this path is in.
    pub(crate) fn parent(&self) -> FsPath {
        let path = match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        FsPath { files: self.files.clone(), path: path.to_owned() }
    }

    /// The absolute path, without links as far as it exists.
    pub(crate) fn canonical(&self) -> io::Result<FsPath> {
        match (self.files.canonical(&self.path), self.path.components().next_back()) {
            (Err(error), Some(Component::Normal(name))) if error.kind() == ErrorKind::NotFound => {
                Ok(self.parent().canonical()?.join(name))
            }
            (Err(error), Some(Component::ParentDir)) if error.kind() == ErrorKind::NotFound => {
                Ok(self.parent().canonical()?.parent())
            }
            (path, _) => path.map(|path| self.at(path)),
        }
    }

    /// See [`FileSystem::has_one_thread`](super::FileSystem::has_one_thread).
    pub(crate) fn has_one_thread(&self) -> bool {
        self.files.has_one_thread()
    }

    pub(crate) fn open(&self, access: Access) -> io::Result<Box<dyn File>> {
        self.files.open(&self.path, access)
    }

    /// Creates or truncates a file that only its owner may read.
    pub(crate) fn create_file(&self) -> Result<Box<dyn File>> {
        self.open(Access::Create).map_err(io_error(&format!("creating {self}")))
    }

    pub(crate) fn open_directory(&self) -> io::Result<Box<dyn Directory>> {
        self.files.open_directory(&self.path)
    }

    pub(crate) fn lock(&self) -> Result<Box<dyn Lock>> {
        self.files.lock(&self.path)
    }

    pub(crate) fn open_database(&self) -> Result<Box<dyn Database>> {
        self.files.open_database(&self.path)
    }

    pub(crate) fn space(&self) -> Option<Space> {
        self.files.space(&self.path)
    }

    /// Whether there is anything at this path. An error counts as nothing.
    pub(crate) fn exists(&self) -> bool {
        matches!(self.files.kind(&self.path), Ok(Some(_)))
    }

    /// Whether there is anything at this path.
    pub(crate) fn try_exists(&self) -> io::Result<bool> {
        self.files.kind(&self.path).map(|kind| kind.is_some())
    }

    fn is_directory(&self) -> io::Result<bool> {
        Ok(self.files.kind(&self.path)? == Some(NameKind::Directory))
    }

    /// The names in this directory, all listed before any of them is changed.
    pub(crate) fn list(&self) -> io::Result<Vec<OsString>> {
        self.files.list(&self.path)
    }

    /// The content of this file.
    pub(crate) fn read(&self) -> io::Result<Vec<u8>> {
        self.read_up_to(u64::MAX)
    }

    /// The content of this file, up to so many bytes.
    pub(crate) fn read_up_to(&self, most: u64) -> io::Result<Vec<u8>> {
        self.open(Access::Read)?.content(most)
    }

    pub(crate) fn rename(&self, to: &FsPath) -> io::Result<()> {
        self.files.rename(&self.path, &to.path)
    }

    pub(crate) fn remove_file(&self) -> io::Result<()> {
        self.files.remove_file(&self.path)
    }

    /// Removes a file, or a directory with its content, if there is one. Of a link, it removes only the link.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        let removed = match self.remove_file() {
            Err(error) if error.kind() != ErrorKind::NotFound && self.is_directory()? => {
                for name in self.list()? {
                    self.join(name).remove_all()?;
                }
                self.files.remove_directory(&self.path)
            }
            other => other,
        };
        match removed {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Makes the names in this directory durable.
    pub(crate) fn sync_names(&self) -> io::Result<()> {
        self.open_directory()?.sync()
    }

    /// Makes the names on the way to this directory durable: a process that has made them may have ended
    /// before it could.
    ///
    /// A directory that this process may not read, or whose file system cannot sync it, was made by somebody
    /// else: [`FsPath::create_directory`] would have failed.
    pub(crate) fn sync_own_name(&self) -> io::Result<()> {
        use ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
        for above in self.path.ancestors().skip(1) {
            let above = if above == Path::new("") { Path::new(".") } else { above };
            let synced = self.files.open_directory(above).and_then(|directory| directory.sync());
            match synced.map_err(|error| (error.kind(), error)) {
                Ok(()) => {}
                Err((InvalidInput | PermissionDenied | ReadOnlyFilesystem | Unsupported, _)) => {
                    return Ok(());
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Creates this directory, which only its owner may enter, and its parents, durably.
    pub(crate) fn create_directory(&self) -> io::Result<()> {
        if self.is_directory()? {
            return Ok(());
        }
        let parent = self.parent();
        parent.create_directory()?;
        match self.files.create_directory(&self.path) {
            // Another instance that starts in the same moment may have made it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && self.is_directory()? => {}
            other => other?,
        }
        parent.sync_names()
    }

    /// Copies a file, or a directory with its content. Not durably.
    pub(crate) fn copy_all(&self, to: &FsPath) -> io::Result<()> {
        if self.is_directory()? {
            to.create_directory()?;
            for name in self.list()? {
                self.join(&name).copy_all(&to.join(&name))?;
            }
            return Ok(());
        }
        let (source, target) = (self.open(Access::Read)?, to.open(Access::Create)?);
        let (mut piece, mut offset) = (vec![0; COPIED_BYTES], 0);
        loop {
            let read = source.read_at(&mut piece, offset)?;
            target.write_at(&piece[..read], offset)?;
            offset += read as u64;
            if read < piece.len() {
                return Ok(());
            }
        }
    }
}

impl dyn File {
    /// The content, up to so many bytes.
    pub(crate) fn content(&self, most: u64) -> io::Result<Vec<u8>> {
        let length = self.length()?.min(most);
        let mut bytes = vec![0; usize::try_from(length).map_err(|_| ErrorKind::FileTooLarge)?];
        let read = self.read_at(&mut bytes, 0)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Fills all of these bytes from a place.
    pub(crate) fn read_all_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let wanted = bytes.len();
        if self.read_at(bytes, offset)? < wanted {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}
