//! A terminal: tmux, whose keys are typed and whose screen is read.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of 80 columns and 24 lines, with a tmux server of its own, which ends with it.
pub(crate) struct Screen {
    socket: String,
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

impl Screen {
    /// Runs a command of the shell in a terminal; then the shell prints its exit code and the terminal's settings.
    pub(crate) fn start(command: &str, peers: &str, no_color: &str) -> Screen {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let screen = Screen { socket: format!("quorate-test-{}-{number}", std::process::id()) };
        let script = format!("{command}; echo exited with $?; stty -a; exec cat");
        let mut tmux = screen.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &script]);
        tmux.env("QUORATE_PEERS", peers).env("NO_COLOR", no_color).env("SHELL", "/bin/sh");
        assert!(tmux.status().unwrap().success());
        screen
    }

    pub(crate) fn tmux(&self, arguments: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.args(["-u", "-L", &self.socket, "-f", "/dev/null"]).args(arguments);
        tmux.env_remove("TMUX").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        tmux
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> String {
        let output = self.tmux(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn keys(&self, keys: &[&str]) {
        self.output(&[&["send-keys"], keys].concat());
    }

    /// The process id that the screen shows.
    pub(crate) fn process(&self) -> String {
        let shell = self.output(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
        children.unwrap().trim().to_owned()
    }

    pub(crate) fn text(&self) -> String {
        self.output(&["capture-pane", "-p"])
    }

    /// Waits until one line of the screen contains all of these.
    pub(crate) fn wait(&self, what: &[&str]) -> String {
        let screen = std::cell::RefCell::default();
        let is_shown = || {
            *screen.borrow_mut() = self.text();
            screen.borrow().lines().any(|line| what.iter().all(|part| line.contains(part)))
        };
        wait_for(is_shown, || format!("{what:?}:\n{}", screen.borrow()));
        screen.into_inner()
    }

    /// Waits until the program has ended, and checks that the terminal's settings are restored.
    pub(crate) fn wait_restored(&self) {
        let screen = self.wait(&["exited with 0"]);
        assert!(!screen.contains("Members"), "{screen}");
        let settings = self.wait(&["icanon", "isig"]);
        let words: Vec<&str> = settings.split_whitespace().collect();
        assert!(words.contains(&"icanon") && words.contains(&"echo"), "{settings}");
        let flags = self.output(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        assert_eq!(flags.trim(), "0 1", "the first screen, with a cursor");
    }
}

#[allow(clippy::disallowed_methods, reason = "a test that fails should end")]
pub(crate) fn wait_for(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "waited for {}", what());
    }
}

pub(crate) fn has_tmux() -> bool {
    let has = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("skipped: there is no tmux");
    }
    has
}
