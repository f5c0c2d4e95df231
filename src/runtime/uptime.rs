//! The time since the machine was started, as the system counts it.
//!
//! A lease that was granted before the machine was suspended must not look fresh afterwards, so
//! time in which it was suspended has to count. The clocks that do that:
//!
//! | system | clock | counts a suspend |
//! | --- | --- | --- |
//! | Linux, Android | `CLOCK_BOOTTIME` | yes |
//! | Windows | `Instant`, from `QueryPerformanceCounter` | yes |
//! | macOS, iOS | `Instant`, from `CLOCK_UPTIME_RAW` | no |
//! | other Unix | `Instant`, from `CLOCK_MONOTONIC` | depends on the system; mostly not |
//!
//! If a hypervisor pauses a virtual machine or resets it to a saved state, this can only be detected if the
//! hypervisor notifies the kernel of the machine. This module cannot detect it.

use std::time::Duration;

/// The time since some moment before this process started. It never goes back.
///
/// Since Linux 5.3 this needs no system call, like `Instant`: 23 ns for either.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn uptime() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    // Neither part is ever negative: the clock starts at zero.
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// The time since some moment during this process. It never goes back.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
pub(super) fn uptime() -> Duration {
    use std::time::Instant;

    use once_cell::sync::OnceCell;

    static FIRST: OnceCell<Instant> = OnceCell::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const LEAST: &str = "QUORATE_TEST_UPTIME_LEAST";
    /// The length of the simulated suspend: the clock that counts suspends is ahead by this time afterwards.
    const SUSPENDED: u64 = 1_000_000;

    /// The clock stood still while the machine was suspended. Afterwards a client believed that it still
    /// held a lock that another client had acquired long ago.
    #[test]
    fn a_suspend_counts() {
        if let Ok(least) = std::env::var(LEAST) {
            assert!(uptime() >= Duration::from_secs(least.parse().unwrap()), "{:?}", uptime());
            return;
        }
        // Linux gives a process its own time only if it may create namespaces.
        let in_suspended = |program: &std::ffi::OsStr| {
            let mut command = Command::new("unshare");
            let ahead = SUSPENDED.to_string();
            command.args(["--map-root-user", "--time", "--boottime", &ahead]).arg(program);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        let possible = in_suspended("true".as_ref()).status();
        if !possible.is_ok_and(|status| status.success()) {
            return;
        }
        let least = (uptime() + Duration::from_secs(SUSPENDED)).as_secs();
        let this = std::env::current_exe().unwrap();
        let mut test = in_suspended(this.as_os_str());
        test.args(["--exact", "runtime::uptime::tests::a_suspend_counts"]);
        assert!(test.env(LEAST, least.to_string()).status().unwrap().success());
    }

    #[test]
    fn uptime_increases() {
        let mut last = uptime();
        for _ in 0..100_000 {
            let now = uptime();
            assert!(now >= last);
            last = now;
        }
    }
}
