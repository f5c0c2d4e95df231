//! The program `quorate` on real files.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::addresses;
use crate::data_dir::current;
use quorate::{Coordinator, CreateMode};

fn quorate(arguments: &[&str]) -> (i32, String, String) {
    let output: Output =
        Command::new(env!("CARGO_BIN_EXE_quorate")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The output of a process that is to end soon. It is killed if it does not.
#[cfg(target_os = "linux")]
fn ended(process: std::process::Child) -> Output {
    let (sender, receiver) = std::sync::mpsc::channel();
    let id = process.id().to_string();
    let wait = move || drop(sender.send(process.wait_with_output().unwrap()));
    std::thread::Builder::new().spawn(wait).unwrap();
    receiver.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| {
        let _ = Command::new("kill").args(["-KILL", &id]).status();
        panic!("the process does not end");
    })
}

fn member(address: &str, dir: &Path) -> Coordinator {
    let member =
        Coordinator::builder().advertise(address).data_dir(dir).join([address]).wait().unwrap();
    member.wait_ready(Duration::from_secs(60)).wait().unwrap();
    member
}

#[test]
fn a_cluster_is_inspected_backed_up_restored_and_recovered() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name).to_str().unwrap().to_owned();
    let (data, backup, new) = (path("data"), path("backup"), path("new"));
    let address = addresses::address();
    let first = member(&address, Path::new(&data));
    first.session().create("/kept", b"1", CreateMode::Persistent).wait().unwrap();
    first.backup(&backup).wait().unwrap();
    first.session().create("/later", b"2", CreateMode::Persistent).wait().unwrap();

    let (code, _, error) = quorate(&["inspect", &data]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("in use by another process"), "{error}");
    first.close().wait().unwrap();
    let (code, output, error) = quorate(&["inspect", &data]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(output.contains(&address) && output.contains("6 znodes"), "{output}");
    // A missing directory is an error, and the other one is reported all the same.
    let (code, output, error) = quorate(&["inspect", &path("nothing"), &data]);
    assert_eq!(code, 1);
    assert!(output.contains("6 znodes") && error.contains("no such directory"), "{output}{error}");

    let (code, json, _) = quorate(&["verify", "--json", &backup]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, json["znodes"].is_u64()), (0, true), "{json}");
    let (code, output, _) = quorate(&["verify", &backup]);
    assert_eq!(code, 0);
    assert!(output.contains("5 znodes"), "{output}");
    let restored_at = addresses::address();
    let (code, output, error) = quorate(&["restore", &backup, &new, "--address", &restored_at]);
    assert_eq!(code, 0, "{error}");
    assert!(output.contains("founded cluster") && output.contains(&restored_at), "{output}");
    let restored = member(&restored_at, Path::new(&new));
    assert!(restored.session().exists("/kept").wait().unwrap().is_some());
    assert!(restored.session().exists("/later").wait().unwrap().is_none());
    restored.close().wait().unwrap();
    let (code, _, error) = quorate(&["restore", &backup, &new, "--address", &restored_at]);
    assert_eq!(code, 1);
    assert!(error.contains("empty directory"), "{error}");
    let mut damaged = fs::read(&backup).unwrap();
    damaged[90] ^= 1;
    fs::write(&backup, damaged).unwrap();
    let (code, output, error) = quorate(&["verify", &backup]);
    assert_eq!((code, output.as_str()), (1, ""));
    assert!(error.contains("damaged at byte"), "{error}");

    let identity = || fs::read(current(Path::new(&data)).join("IDENTITY")).unwrap();
    let before = identity();
    let (code, json, notes) = quorate(&["recover", "--json", &data]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, json["best"]["dir"].as_str()), (0, Some(data.as_str())), "{json}");
    assert!(notes.contains("nothing was written"), "{notes}");
    let (code, output, _) = quorate(&["recover", &data]);
    assert_eq!(code, 0);
    assert!(output.contains("nothing was written"), "{output}");
    assert!(output.contains("nothing that was acknowledged is lost"), "{output}");
    assert_eq!(identity(), before);
    let (code, output, error) = quorate(&["recover", "--yes", &data]);
    assert_eq!(code, 0, "{error}");
    assert!(output.contains("founded cluster") && output.contains("incarnation-"), "{output}");
    assert_ne!(identity(), before);
    let recovered = member(&address, Path::new(&data));
    assert!(recovered.session().exists("/later").wait().unwrap().is_some());
    recovered.close().wait().unwrap();
    // A damaged directory is used only on request, and the possible losses are reported.
    let witness = current(Path::new(&data)).join("log/witness");
    let sound = fs::read(&witness).unwrap();
    fs::write(&witness, b"nonsense").unwrap();
    let (code, _, error) = quorate(&["recover", &data]);
    assert_eq!(code, 1);
    assert!(error.contains("--damaged"), "{error}");
    let (code, output, error) = quorate(&["recover", "--damaged", &data]);
    assert_eq!(code, 0, "{error}");
    assert!(output.contains("the witness") && output.contains("may be lost"), "{output}");
    fs::write(&witness, sound).unwrap();
    // Directories of two clusters cannot be compared.
    let (code, _, error) = quorate(&["recover", "--yes", &data, &new]);
    assert_eq!(code, 1);
    assert!(error.contains("of cluster"), "{error}");
}

#[test]
fn a_usage_error_has_an_exit_code_of_its_own() {
    for wrong in [&[][..], &["inspect"], &["recover"], &["restore", "a", "b"], &["destroy"]] {
        let (code, _, error) = quorate(wrong);
        assert_eq!(code, 2, "{wrong:?}: {error}");
    }
    let (code, output, _) = quorate(&["--help"]);
    assert_eq!(code, 0);
    assert!(output.contains("inspect") && output.contains("recover"), "{output}");
}

#[cfg(unix)]
#[test]
fn settings_in_a_file_that_are_wrong_are_named_with_their_line() {
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("quorate.conf");
    fs::write(&file, "# One member.\npeers = 127.0.0.1:1\ntickTime = soon\n").unwrap();
    let path = file.to_str().unwrap();
    let (code, _, error) = quorate(&["serve", "--config", path]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains(&format!("{path}:3: tickTime: invalid value 'soon'")), "{error}");
    let (code, _, error) = quorate(&["serve", "--config", "none.conf"]);
    assert_eq!(code, 2, "{error}");
    assert!(error.contains("cannot read the settings in none.conf"), "{error}");
    // An error that shows only when all settings are known.
    fs::write(&file, "peers = 127.0.0.1:1\nmaxSessionTimeout = 1\n").unwrap();
    let data = work.path().join("data");
    let given = ["serve", "--config", path, "--data-dir", data.to_str().unwrap()];
    let (code, _, error) = quorate(&given);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("session_timeout_bounds"), "{error}");
    assert!(!data.exists());
}

/// A disk that failed once stopped the member for good, and its process stayed without ports. So nothing that
/// restarts what ends ever restarted it.
#[cfg(target_os = "linux")]
#[test]
fn a_served_member_whose_disk_has_failed_ends_its_process() {
    let work = tempfile::tempdir().unwrap();
    let [address, zookeeper] = &addresses::addresses(2)[..] else { panic!() };
    let mut command = Command::new("sh");
    // With the signal ignored, a write over the limit fails and does not end the process.
    command.args([
        "-c",
        "trap '' XFSZ; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_quorate"),
        "serve",
    ]);
    command.args(["--peers", address, "--zookeeper", zookeeper, "--data-dir"]);
    command.arg(work.path().join("data")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let served = command.spawn().unwrap();
    let client = Coordinator::builder().client().join([address]).wait().unwrap();
    client.wait_ready(Duration::from_secs(60)).wait().unwrap();
    let id = served.id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &id, "--fsize=0:"]).status();
    assert!(limited.expect("the program prlimit, of util-linux").success());
    // Its answer never comes.
    drop(client.session().create("/a", b"", CreateMode::Persistent));
    let output = ended(served);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("error: the node has stopped: the disk failed: "), "{text}");
}

/// A terminal that was closed ended the member without its close.
#[cfg(target_os = "linux")]
#[test]
fn a_served_member_closes_when_its_terminal_goes_away() {
    // What started the tests may ignore the signal, as `nohup` does.
    for (option, ignores) in [("--default-signal=HUP", false), ("--ignore-signal=HUP", true)] {
        let work = tempfile::tempdir().unwrap();
        let [address, zookeeper] = &addresses::addresses(2)[..] else { panic!() };
        let mut command = Command::new("env");
        command.args([option, env!("CARGO_BIN_EXE_quorate")]);
        command.args(["serve", "--peers", address, "--zookeeper", zookeeper, "--data-dir"]);
        command.arg(work.path().join("data")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let served = command.spawn().unwrap();
        let client = Coordinator::builder().client().join([address]).wait().unwrap();
        client.wait_ready(Duration::from_secs(60)).wait().unwrap();
        let signal = |signal: &str| {
            let id = served.id().to_string();
            assert!(Command::new("kill").args(["-s", signal, &id]).status().unwrap().success());
        };
        signal("HUP");
        if ignores {
            // `nohup` holds: it still serves.
            client.session().create("/a", b"", CreateMode::Persistent).wait().unwrap();
            signal("TERM");
        }
        let output = ended(served);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{text}");
        let line = if ignores { "signal=15" } else { "signal=1\n" };
        assert!(text.contains(line), "{text}");
    }
}
