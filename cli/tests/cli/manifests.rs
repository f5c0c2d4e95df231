//! The manifests of `contrib` fit the program.

use std::path::Path;
use std::process::Command;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// The program has every option that the manifests, the unit and the page use.
#[test]
fn manifests_use_existing_options_and_settings() {
    let program = env!("CARGO_BIN_EXE_quorate");
    let help = Command::new(program).args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let page = read("docs/gateway.md");
    let mut seen = 0;
    for path in [
        "contrib/kubernetes/statefulset.yaml",
        "contrib/kubernetes/deployment.yaml",
        "contrib/compose/compose.yaml",
        "contrib/systemd/quorate.service",
    ] {
        let text = read(path);
        let commands = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let commands = commands.filter(|line| line.contains("serve"));
        let words = commands.flat_map(|line| line.split([' ', '=', ',', '[', ']']));
        for flag in words.filter(|word| word.starts_with("--")) {
            assert!(help.contains(&format!("{flag} ")), "{path}: {flag} is not in\n{help}");
            seen += 1;
        }
        for (at, _) in text.match_indices("QUORATE_") {
            let is_part = |of: char| of == '_' || of.is_ascii_uppercase();
            let rest = &text[at..];
            let name = &rest[..rest.find(|of| !is_part(of)).unwrap_or(rest.len())];
            assert!(help.contains(&format!("[env: {name}=")), "{path}: {name} is not read");
            assert!(page.contains(&format!("`{name}`")), "{name} is not on the page");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
    let both = ["serve", "--peers=a:1", "--discover=b:1", "--data-dir=never-made"];
    let both = Command::new(program).args(both).output().unwrap();
    assert_eq!(both.status.code(), Some(1), "{both:?}");
    assert!(String::from_utf8_lossy(&both.stderr).contains("listed or discovered"), "{both:?}");
}
