//! The program `quorate`.

#[path = "../../../tests/common/addresses.rs"]
mod addresses;
mod cluster;
#[path = "../../../tests/common/data_dir.rs"]
mod data_dir;

#[cfg(unix)]
mod encrypted;
mod files;
#[cfg(unix)]
mod flood;
#[cfg(unix)]
mod held;
mod hostile;
mod live;
#[cfg(unix)]
mod log_dir;
#[cfg(unix)]
mod manifests;
#[cfg(unix)]
mod rights;
mod screen;
mod scripts;
#[cfg(unix)]
mod serve_secrets;
mod shell;
mod top;
mod work;
