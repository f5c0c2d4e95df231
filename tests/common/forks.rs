//! Forks of a test's process.

#![allow(clippy::disallowed_methods, reason = "a deadline for the child to end")]

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use fork::Fork;

use super::PATIENCE;

/// Runs this in a fork with copies of the captured handles, and waits for the fork's end.
pub(crate) fn in_a_fork(check: impl FnOnce()) {
    let child = match fork::fork().unwrap() {
        Fork::Parent(child) => child,
        Fork::Child => {
            let result = catch_unwind(AssertUnwindSafe(check));
            if let Err(panic) = &result {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                // Bypasses the output that the harness captures, which is lost with this process.
                let _ = writeln!(std::io::stderr(), "in the fork: {text:?}");
            }
            std::process::exit(i32::from(result.is_err()));
        }
    };
    let end = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = fork::waitpid_nohang(child).unwrap() {
            break status;
        }
        if Instant::now() > end {
            let _ = std::process::Command::new("kill").args(["-9", &child.to_string()]).status();
            panic!("the fork hangs");
        }
        std::thread::yield_now();
    };
    assert_eq!(status, 0, "the fork has failed");
}
