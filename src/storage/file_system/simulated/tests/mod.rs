//! Tests of the simulated file system: each rule by itself, and against the system's file system.

mod agreement;
mod database;
mod faults;
mod history;
mod power;
mod processes;

use std::path::Path;

use super::{Device, ProcessFiles};
use crate::storage::file_system::{Access, File, FileSystem};

fn path(path: &str) -> &Path {
    Path::new(path)
}

/// A device with a process, and an empty file `/file` whose name is durable.
fn device() -> (Device, ProcessFiles, Box<dyn File>) {
    let device = Device::new(1);
    let files = device.process();
    let file = files.open(path("/file"), Access::Create).unwrap();
    sync_names(&files, "/");
    (device, files, file)
}

fn sync_names(files: &dyn FileSystem, directory: &str) {
    files.open_directory(path(directory)).unwrap().sync().unwrap();
}

fn content(files: &dyn FileSystem, of: &str) -> Vec<u8> {
    read(&*files.open(path(of), Access::Read).unwrap())
}

fn read(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.length().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// A file with this content and a durable name.
fn make(files: &dyn FileSystem, at: &str, bytes: &[u8]) -> Box<dyn File> {
    let file = files.open(path(at), Access::Create).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync_all().unwrap();
    sync_names(files, path(at).parent().unwrap().to_str().unwrap());
    file
}
