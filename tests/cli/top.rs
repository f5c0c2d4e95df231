//! `quorate top` in a real terminal: tmux, whose keys are typed and whose screen is read.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::addresses;
use crate::common::cluster::Cluster;
use quorate::CreateMode;

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A terminal of 80 columns and 24 lines, with a tmux server of its own, which ends with it.
struct Screen {
    socket: String,
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]).output();
    }
}

impl Screen {
    /// Runs `quorate top` in a terminal; then the shell prints its exit code and the terminal's settings.
    fn start(peers: &str, no_color: &str) -> Screen {
        Screen::start_with("", peers, no_color)
    }

    /// The same, after other commands of the shell.
    fn start_with(before: &str, peers: &str, no_color: &str) -> Screen {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let screen = Screen { socket: format!("quorate-test-{}-{number}", std::process::id()) };
        let top = env!("CARGO_BIN_EXE_quorate");
        let script = format!("{before}'{top}' top; echo exited with $?; stty -a; exec cat");
        let mut tmux = screen.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &script]);
        tmux.env("QUORATE_PEERS", peers).env("NO_COLOR", no_color).env("SHELL", "/bin/sh");
        assert!(tmux.status().unwrap().success());
        screen
    }

    fn tmux(&self, arguments: &[&str]) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.args(["-u", "-L", &self.socket, "-f", "/dev/null"]).args(arguments);
        tmux.env_remove("TMUX").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        tmux
    }

    fn output(&self, arguments: &[&str]) -> String {
        let output = self.tmux(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.output(&[&["send-keys"], keys].concat());
    }

    /// The process id that the screen shows.
    fn process(&self) -> String {
        let shell = self.output(&["display-message", "-p", "#{pane_pid}"]);
        let shell = shell.trim();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
        children.unwrap().trim().to_owned()
    }

    /// Waits until one line of the screen contains all of these.
    fn wait(&self, what: &[&str]) -> String {
        let screen = std::cell::RefCell::default();
        let is_shown = || {
            *screen.borrow_mut() = self.output(&["capture-pane", "-p"]);
            screen.borrow().lines().any(|line| what.iter().all(|part| line.contains(part)))
        };
        wait_for(is_shown, || format!("{what:?}:\n{}", screen.borrow()));
        screen.into_inner()
    }

    /// Waits until the program has ended, and checks that the terminal's settings are restored.
    fn wait_restored(&self) {
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
fn wait_for(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "waited for {}", what());
    }
}

fn has_tmux() -> bool {
    let has = Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success());
    if !has {
        eprintln!("skipped: there is no tmux");
    }
    has
}

#[test]
fn an_operator_watches_a_cluster() {
    if !has_tmux() {
        return;
    }
    let mut cluster = Cluster::new(3);
    let status = loop {
        let status = cluster.json(&["status"]);
        if status["availability"]["healthy"]["spare"] == 1 {
            break status;
        }
    };
    let leader = status["leader"].as_str().unwrap().to_owned();
    // The member to stop neither leads nor holds the lock.
    let place = |of: &Cluster, lead: bool| {
        of.members.iter().position(|member| (member.address() == leader) == lead).unwrap()
    };
    let holder = cluster.members[place(&cluster, true)].open_session().unwrap();
    holder.create("/app", b"", CreateMode::Persistent).unwrap();
    holder.create("/app/config", b"{\"limit\":20}", CreateMode::Persistent).unwrap();
    let guard = holder.lock("/jobs/nightly").unwrap().acquire().unwrap();
    let waiter = cluster.members[place(&cluster, true)].open_session().unwrap();
    let waiting = waiter.lock("/jobs/nightly").unwrap();

    let screen = Screen::start(&cluster.peers, "");
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| waiting.acquire().unwrap().release());
        screen.wait(&["leader", &leader, "3 members (3 vote)"]);
        println!("{}", screen.wait(&[&leader, "leader", " ms"]));
        let colored = screen.output(&["capture-pane", "-p", "-e"]);
        assert!(colored.contains("\x1b[38;"), "{colored:?}");

        screen.keys(&["3"]);
        screen.wait(&["/jobs/nightly (lock)"]);
        screen.wait(&["waits", &waiter.id().to_string()]);
        println!("{}", screen.wait(&["holds", &holder.id().to_string(), &leader]));
        screen.keys(&["2"]);
        println!("{}", screen.wait(&[&holder.id().to_string(), &leader, " ago"]));
        guard.release().unwrap();
        waited.join().unwrap().unwrap();
    });

    screen.keys(&["4"]);
    screen.wait(&["+ app"]);
    screen.keys(&["/", "a", "p", "p", "Enter", "Down", "Right"]);
    screen.wait(&["+ config"]);
    screen.keys(&["Down"]);
    screen.wait(&["the znode as of", "/app/config"]);
    println!("{}", screen.wait(&["  \"limit\": 20"]));
    holder.set("/app/config", b"second").unwrap();
    screen.wait(&["second"]);
    screen.wait(&["text, 6 B"]);
    screen.keys(&["?"]);
    screen.wait(&["q Ctrl-C", "quit"]);
    // A terminal would read Escape and the next key as one sequence, so they are sent apart.
    screen.keys(&["Escape"]);
    screen.wait(&["- /"]);
    screen.keys(&["1"]);

    // The program follows the size of its terminal.
    screen.output(&["resize-window", "-x", "40", "-y", "10"]);
    screen.wait(&[" 1 Members  2  3  4  5"]);
    screen.output(&["resize-window", "-x", "5", "-y", "2"]);
    screen.output(&["resize-window", "-x", "80", "-y", "24"]);
    screen.wait(&["quorate top", "5 Log"]);

    let gone = cluster.members.remove(place(&cluster, false));
    let address = gone.address();
    gone.close();
    screen.wait(&[&address, "voter, silent"]);
    screen.keys(&["5"]);
    println!("{}", screen.wait(&[&address, "is silent"]));
    // Without a quorum, the last member still reports.
    let last = cluster.members.remove(place(&cluster, true));
    last.close();
    screen.wait(&["no leader", "3 members (3 vote, 2 silent)"]);
    screen.keys(&["3"]);
    screen.wait(&["no quorum, so nothing can be read here"]);
    screen.keys(&["1"]);
    screen.wait(&["members as of", " ms ago"]);
    screen.keys(&["q"]);
    screen.wait_restored();
}

#[test]
fn the_terminal_is_restored_however_it_ends() {
    if !has_tmux() {
        return;
    }
    // No member answers at this address; the screen shows that, without colours.
    let nobody = addresses::address();
    let screen = Screen::start(&nobody, "1");
    screen.wait(&["members: not read yet"]);
    let plain = screen.output(&["capture-pane", "-p", "-e"]);
    let is_color = |parameter: &str| matches!(parameter.as_bytes(), [b'3' | b'9', b'0'..=b'8', ..]);
    let parameters = plain.split("\x1b[").skip(1).filter_map(|rest| rest.split_once('m'));
    let mut parameters = parameters.flat_map(|(parameters, _)| parameters.split(';'));
    assert!(!parameters.any(is_color), "{plain:?}");
    screen.keys(&["C-c"]);
    screen.wait_restored();

    if cfg!(target_os = "linux") {
        let screen = Screen::start(&nobody, "");
        screen.wait(&["members: not read yet"]);
        assert!(Command::new("kill").arg(screen.process()).status().unwrap().success());
        screen.wait_restored();
    }
}

/// After the terminal was gone, the program went on for ever and used a whole processor: its read did not
/// end.
#[cfg(target_os = "linux")]
#[test]
fn it_ends_with_its_terminal() {
    if !has_tmux() {
        return;
    }
    // Once with SIGHUP, and once with SIGHUP ignored.
    for trap in ["", "trap '' HUP; "] {
        let screen = Screen::start_with(trap, &addresses::address(), "");
        screen.wait(&["members: not read yet"]);
        let process = screen.process();
        drop(screen);
        wait_for(
            || !std::path::Path::new(&format!("/proc/{process}")).exists(),
            || process.clone(),
        );
    }
}

#[test]
fn it_needs_a_terminal() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(arguments).env("QUORATE_PEERS", "127.0.0.1:1").stdin(Stdio::null());
        let output = command.output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(run(&["top"]).contains("it needs a terminal"));
    assert!(run(&["top", "--json"]).contains("it has no JSON"));
}
