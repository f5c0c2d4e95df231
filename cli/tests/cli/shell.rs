//! `quorate shell`: from a pipe, and in a terminal with completion and history.

use std::io::Write;
use std::process::{Command, Stdio};

use quorate::CreateMode;

use crate::cluster::Cluster;
use crate::screen::{Screen, has_tmux, wait_for};

/// Runs lines from a pipe; returns the exit code, the output and the errors.
fn run(cluster: &Cluster, lines: &str) -> (i32, String, String) {
    let mut shell = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["shell", "--peers", &cluster.peers])
        .env("QUORATE_HISTORY", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = shell.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn lines_from_a_pipe_run_in_one_session() {
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    let lines = "create '/a b' \"one two\"\n\n# a comment\n create --ephemeral /mine\nls /\nget \"/a b\"\n \
                 set /a\\ b 3\nstat '/a b' --json\nls --recursive '/a b'\ntxn 'exists /mine' 'create /c d'\n";
    let (code, out, error) = run(&cluster, lines);
    assert_eq!((code, &*error), (0, ""), "{out}");
    let mut shown = out.lines();
    for expected in ["/a b", "/mine", "a b", "mine"] {
        assert_eq!(shown.next(), Some(expected), "{out}");
    }
    assert!(out.contains("\none two\n") && out.contains("\"version\": 1"), "{out}");
    assert!(out.ends_with("/a b\nexists /mine\ncreated /c\n"), "{out}");
    // A slow disk may need longer than the shell waits for it.
    wait_for(
        || session.exists("/mine").wait() == Ok(None),
        || "the end of the shell's session".to_owned(),
    );
    assert_eq!(
        cluster.members[0].metrics().wait().unwrap().sessions_expired,
        0,
        "the shell closes its session"
    );

    // The first that fails is the last.
    let (code, out, error) = run(&cluster, "get /missing\nls /\n");
    assert_eq!((code, &*out), (3, ""));
    assert!(error.contains("/missing"), "{error}");
    for wrong in ["set /c -\n", "fly /a\n", "get\n", "get 'a\n", "get --fast /a\n", "get a\n"] {
        let (code, out, error) = run(&cluster, wrong);
        assert_eq!((code, &*out), (2, ""), "{wrong:?}: {error}");
        assert!(!error.is_empty());
    }
    let (code, out, _) = run(&cluster, "help\nexit\nget /missing\n");
    assert_eq!(code, 0);
    assert!(out.contains("Lists the children of a znode"), "{out}");
}

#[test]
fn paths_are_completed_and_lines_come_back() {
    if !has_tmux() {
        return;
    }
    let cluster = Cluster::new(1);
    let session = cluster.members[0].session();
    for path in ["/alpha", "/alpha/one two", "/alpha/\u{202e}red", "/beta"] {
        session.create(path, path, CreateMode::Persistent).wait().unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("state/history");
    // Ctrl-C goes to the shell that runs it, too.
    let start = || {
        let shell = format!(
            "trap : INT; QUORATE_HISTORY='{}' '{}' shell",
            history.display(),
            env!("CARGO_BIN_EXE_quorate")
        );
        let screen = Screen::start(&shell, &cluster.peers, "");
        screen.wait(&["quorate>"]);
        screen
    };
    let screen = start();
    for (keys, shown) in [("ge", "get"), (" /al", "get /alpha"), ("/o", "get /alpha/one\\ two")] {
        screen.keys(&[keys, "Tab"]);
        screen.wait(&[&format!("quorate> {shown}")]);
    }
    screen.keys(&["Enter"]);
    screen.wait(&["/alpha/one two"]);
    // An error does not end it, nor does Ctrl-C, which ends a watch.
    screen.keys(&["get /missing", "Enter"]);
    screen.wait(&["error:", "/missing"]);
    screen.keys(&["watch /beta", "Enter"]);
    let changed = || {
        session.set("/beta", "x").wait().unwrap();
        screen.text().contains("changed   /beta")
    };
    wait_for(changed, || "the watch".to_owned());
    screen.keys(&["C-c"]);
    wait_for(|| screen.text().trim_end().ends_with("\nquorate>"), || screen.text());
    screen.keys(&["exit", "Enter"]);
    screen.wait(&["exited with 0"]);

    let screen = start();
    screen.keys(&["Up", "Up", "Up"]);
    screen.wait(&["quorate> get /missing"]);
    screen.keys(&["C-c"]);
    wait_for(|| screen.text().trim_end().ends_with("\nquorate>"), || screen.text());
    screen.keys(&["exit", "Enter"]);
    screen.wait(&["exited with 0"]);
    let kept = std::fs::read_to_string(&history).unwrap();
    assert!(kept.contains("two\nget /missing\nwatch /beta\nexit\n"), "{kept}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        assert_eq!(history.metadata().unwrap().mode() & 0o077, 0, "others cannot read it");
    }
}
