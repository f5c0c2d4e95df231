//! A small disk that can be filled: a `tmpfs` of a few megabytes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;

pub(crate) struct Quota {
    directory: PathBuf,
}

impl Quota {
    pub(crate) fn new(directory: &Path) -> Result<Quota, String> {
        std::fs::create_dir_all(directory).map_err(|error| error.to_string())?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=96m", "tmpfs"])
            .arg(directory)
            .output()
            .map_err(|error| format!("mount: {error}"))?;
        if !mounted.status.success() {
            let reason = String::from_utf8_lossy(&mounted.stderr);
            return Err(format!("this user may not mount one ({})", reason.trim()));
        }
        Ok(Quota { directory: directory.to_owned() })
    }

    fn ballast(&self) -> PathBuf {
        self.directory.join("ballast")
    }

    /// Fills all the space that is left.
    pub(crate) fn fill(&self) -> Outcome<()> {
        let mut file = File::options().create(true).append(true).open(self.ballast())?;
        for size in [1 << 20, 4096, 1] {
            while file.write_all(&vec![0; size]).is_ok() {}
        }
        Ok(())
    }

    pub(crate) fn empty(&self) -> Outcome<()> {
        match std::fs::remove_file(self.ballast()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.directory).status();
    }
}
