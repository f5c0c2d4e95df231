//! The program `quorate` on real files.

#[path = "common/addresses.rs"]
mod addresses;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use quorate::{Coordinator, CreateMode};

fn quorate(arguments: &[&str]) -> (i32, String, String) {
    let output: Output =
        Command::new(env!("CARGO_BIN_EXE_quorate")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn member(address: &str, dir: &Path) -> Coordinator {
    let member = Coordinator::builder().advertise(address).data_dir(dir).join([address]).unwrap();
    member.wait_ready(Duration::from_secs(60)).unwrap();
    member
}

#[test]
fn a_cluster_is_inspected_backed_up_restored_and_recovered() {
    let work = tempfile::tempdir().unwrap();
    let path = |name: &str| work.path().join(name).to_str().unwrap().to_owned();
    let (data, backup, new) = (path("data"), path("backup"), path("new"));
    let address = addresses::address();
    let first = member(&address, Path::new(&data));
    first.session().create("/kept", b"1", CreateMode::Persistent).unwrap();
    first.backup(&backup).unwrap();
    first.session().create("/later", b"2", CreateMode::Persistent).unwrap();

    let (code, _, error) = quorate(&["inspect", &data]);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("in use by another process"), "{error}");
    first.close();
    let (code, told, error) = quorate(&["inspect", &data]);
    assert_eq!((code, error.as_str()), (0, ""));
    assert!(told.contains(&address) && told.contains("6 znodes"), "{told}");
    // One that is missing is an error, and the other is told of all the same.
    let (code, told, error) = quorate(&["inspect", &path("nothing"), &data]);
    assert_eq!(code, 1);
    assert!(told.contains("6 znodes") && error.contains("no such directory"), "{told}{error}");

    let (code, json, _) = quorate(&["verify", "--json", &backup]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, json["znodes"].is_u64()), (0, true), "{json}");
    let (code, told, _) = quorate(&["verify", &backup]);
    assert_eq!(code, 0);
    assert!(told.contains("5 znodes"), "{told}");
    let restored_at = addresses::address();
    let (code, told, error) = quorate(&["restore", &backup, &new, "--address", &restored_at]);
    assert_eq!(code, 0, "{error}");
    assert!(told.contains("founded cluster") && told.contains(&restored_at), "{told}");
    let restored = member(&restored_at, Path::new(&new));
    assert!(restored.session().exists("/kept").unwrap().is_some());
    assert!(restored.session().exists("/later").unwrap().is_none());
    restored.close();
    let (code, _, error) = quorate(&["restore", &backup, &new, "--address", &restored_at]);
    assert_eq!(code, 1);
    assert!(error.contains("empty directory"), "{error}");
    let mut damaged = fs::read(&backup).unwrap();
    damaged[90] ^= 1;
    fs::write(&backup, damaged).unwrap();
    let (code, told, error) = quorate(&["verify", &backup]);
    assert_eq!((code, told.as_str()), (1, ""));
    assert!(error.contains("damaged at byte"), "{error}");

    let identity = || fs::read(Path::new(&data).join("IDENTITY")).unwrap();
    let before = identity();
    let (code, json, said) = quorate(&["recover", "--json", &data]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, json["best"]["dir"].as_str()), (0, Some(data.as_str())), "{json}");
    assert!(said.contains("nothing was written"), "{said}");
    let (code, told, _) = quorate(&["recover", &data]);
    assert_eq!(code, 0);
    assert!(told.contains("nothing was written"), "{told}");
    assert!(told.contains("nothing that was acknowledged is lost"), "{told}");
    assert_eq!(identity(), before);
    let (code, told, error) = quorate(&["recover", "--yes", &data]);
    assert_eq!(code, 0, "{error}");
    assert!(told.contains("founded cluster") && told.contains("before-"), "{told}");
    assert_ne!(identity(), before);
    let recovered = member(&address, Path::new(&data));
    assert!(recovered.session().exists("/later").unwrap().is_some());
    recovered.close();
    // A damaged directory is taken only if it is asked for, and what may be lost is told.
    let witness = Path::new(&data).join("log/witness");
    let sound = fs::read(&witness).unwrap();
    fs::write(&witness, b"nonsense").unwrap();
    let (code, _, error) = quorate(&["recover", &data]);
    assert_eq!(code, 1);
    assert!(error.contains("--damaged"), "{error}");
    let (code, told, error) = quorate(&["recover", "--damaged", &data]);
    assert_eq!(code, 0, "{error}");
    assert!(told.contains("the witness") && told.contains("may be lost"), "{told}");
    fs::write(&witness, sound).unwrap();
    // Of two clusters there is no best.
    let (code, _, error) = quorate(&["recover", "--yes", &data, &new]);
    assert_eq!(code, 1);
    assert!(error.contains("of cluster"), "{error}");
}

#[test]
fn a_wrong_call_is_told_from_an_error() {
    for wrong in [&[][..], &["inspect"], &["recover"], &["restore", "a", "b"], &["destroy"]] {
        let (code, _, error) = quorate(wrong);
        assert_eq!(code, 2, "{wrong:?}: {error}");
    }
    let (code, told, _) = quorate(&["--help"]);
    assert_eq!(code, 0);
    assert!(told.contains("inspect") && told.contains("recover"), "{told}");
}

#[cfg(feature = "gateway")]
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
    // What only shows when all settings are known.
    fs::write(&file, "peers = 127.0.0.1:1\nmaxSessionTimeout = 1\n").unwrap();
    let data = work.path().join("data");
    let given = ["serve", "--config", path, "--data-dir", data.to_str().unwrap()];
    let (code, _, error) = quorate(&given);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains("session_timeout_bounds"), "{error}");
    assert!(!data.exists());
}
