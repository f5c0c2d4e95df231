//! `quorate top` in a real terminal: tmux, whose keys are typed and whose screen is read.

use std::process::{Command, Stdio};

use crate::addresses;
use crate::cluster::Cluster;
use crate::screen::{Screen, has_tmux, wait_for};
use quorate::CreateMode;

/// Runs `quorate top` in a terminal, after other commands of the shell.
fn top(before: &str, peers: &str, no_color: &str) -> Screen {
    let program = env!("CARGO_BIN_EXE_quorate");
    Screen::start(&format!("{before}'{program}' top"), peers, no_color)
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
    holder.create("/app", b"", CreateMode::Persistent).wait().unwrap();
    holder.create("/app/config", b"{\"limit\":20}", CreateMode::Persistent).wait().unwrap();
    let guard = holder.lock("/jobs/nightly").unwrap().acquire().wait().unwrap();
    let waiter = cluster.members[place(&cluster, true)].open_session().unwrap();
    let waiting = waiter.lock("/jobs/nightly").unwrap();

    let screen = top("", &cluster.peers, "");
    std::thread::scope(|scope| {
        let waited = scope.spawn(|| waiting.acquire().wait().unwrap().release().wait());
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
        guard.release().wait().unwrap();
        waited.join().unwrap().unwrap();
    });

    screen.keys(&["4"]);
    screen.wait(&["+ app"]);
    screen.keys(&["/", "a", "p", "p", "Enter", "Down", "Right"]);
    screen.wait(&["+ config"]);
    screen.keys(&["Down"]);
    screen.wait(&["the znode as of", "/app/config"]);
    println!("{}", screen.wait(&["  \"limit\": 20"]));
    holder.set("/app/config", b"second").wait().unwrap();
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
    gone.close().wait().unwrap();
    screen.wait(&[&address, "voter, silent"]);
    screen.keys(&["5"]);
    println!("{}", screen.wait(&[&address, "is silent"]));
    // Without a quorum, the last member still reports.
    let last = cluster.members.remove(place(&cluster, true));
    last.close().wait().unwrap();
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
    let screen = top("", &nobody, "1");
    screen.wait(&["members: not read yet"]);
    let plain = screen.output(&["capture-pane", "-p", "-e"]);
    let is_color = |parameter: &str| matches!(parameter.as_bytes(), [b'3' | b'9', b'0'..=b'8', ..]);
    let parameters = plain.split("\x1b[").skip(1).filter_map(|rest| rest.split_once('m'));
    let mut parameters = parameters.flat_map(|(parameters, _)| parameters.split(';'));
    assert!(!parameters.any(is_color), "{plain:?}");
    screen.keys(&["C-c"]);
    screen.wait_restored();

    if cfg!(target_os = "linux") {
        let screen = top("", &nobody, "");
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
        let screen = top(trap, &addresses::address(), "");
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
