//! The keys of data directories and backups that are encrypted, and where logs are.

use std::path::{Path, PathBuf};

use clap::Args;
use quorate::encryption::AtRest;
use quorate::recovery::{Backup, Founded, Inspection, Plan, Recovery};
use quorate::{Builder, Result, Snapshot};

#[derive(Debug, Args)]
pub(crate) struct DataKeyArgs {
    /// A file with the keys under which data directories and backups are encrypted: a line `id: key` for each, with the
    /// key in base64. The first encrypts.
    #[arg(long, env = "QUORATE_DATA_KEY_FILE", value_name = "FILE")]
    data_key_file: Option<PathBuf>,
}

impl DataKeyArgs {
    fn keys(&self) -> Result<Option<AtRest>> {
        let Some(file) = &self.data_key_file else { return Ok(None) };
        crate::access::warn_if_exposed(file);
        AtRest::from_file(file).map(Some)
    }

    /// Encrypts what an instance stores, if there are keys.
    pub(crate) fn encrypted(&self, builder: Builder) -> Result<Builder> {
        if let Some(keys) = self.keys()? {
            return Ok(builder.encryption(keys));
        }
        Ok(builder)
    }

    fn options(&self) -> Result<Recovery> {
        if let Some(keys) = self.keys()? {
            return Ok(Recovery::new().encryption(keys));
        }
        Ok(Recovery::new())
    }

    pub(crate) fn verify(&self, file: &Path) -> Result<Backup> {
        self.options()?.verify(file)
    }

    pub(crate) fn read_backup(&self, file: &Path) -> Result<Snapshot> {
        self.options()?.read_backup(file)
    }
}

/// How data directories of stopped instances are read.
#[derive(Debug, Args)]
pub(crate) struct StoppedArgs {
    /// Where their logs are, if they have them on another device and not where they have recorded it. The log of a
    /// new cluster is made there.
    #[arg(long, value_name = "DIRECTORY")]
    log_dir: Option<PathBuf>,
    #[command(flatten)]
    keys: DataKeyArgs,
}

impl StoppedArgs {
    fn options(&self) -> Result<Recovery> {
        let options = self.keys.options()?;
        Ok(match &self.log_dir {
            Some(dir) => options.log_dir(dir),
            None => options,
        })
    }

    pub(crate) fn inspect(&self, dir: &Path) -> Result<Inspection> {
        self.options()?.inspect(dir)
    }
}

/// How a new cluster is founded.
#[derive(Debug, Args)]
pub(crate) struct FoundArgs {
    /// Goes on from this machine's clock if the log's time is later, as after a member's clock was far ahead.
    #[arg(long)]
    set_time_back: bool,
    #[command(flatten)]
    stopped: StoppedArgs,
}

impl FoundArgs {
    fn options(&self) -> Result<Recovery> {
        let options = self.stopped.options()?;
        Ok(if self.set_time_back { options.set_time_back() } else { options })
    }

    pub(crate) fn recover<P: AsRef<Path>>(&self, dirs: &[P], damaged: bool) -> Result<Plan> {
        match damaged {
            true => self.options()?.recover_damaged(dirs),
            false => self.options()?.recover(dirs),
        }
    }

    pub(crate) fn restore(&self, file: &Path, dir: &Path, address: &str) -> Result<Founded> {
        self.options()?.restore(file, dir, address)
    }
}
