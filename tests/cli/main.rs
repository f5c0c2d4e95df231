//! The program `quorate`.

#[path = "../common/mod.rs"]
mod common;

#[cfg(all(unix, feature = "gateway"))]
mod encrypted;
mod files;
#[cfg(all(unix, feature = "gateway"))]
mod flood;
#[cfg(unix)]
mod held;
mod hostile;
mod live;
#[cfg(all(unix, feature = "gateway"))]
mod log_dir;
#[cfg(all(unix, feature = "gateway", feature = "admin"))]
mod rights;
mod screen;
mod scripts;
#[cfg(all(feature = "gateway", feature = "admin"))]
mod serve_secrets;
mod shell;
mod top;
mod work;
