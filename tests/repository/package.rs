//! The published packages, the library and the program, have no tests, no simulator and no fuzz targets, and the
//! list of features names none of them. `.ci/run features` builds them.

use std::path::{Path, PathBuf};

fn manifest(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The body of a list or of a table of the manifest.
fn part<'a>(manifest: &'a str, head: &str, end: &str) -> &'a str {
    let body = manifest.split_once(head).unwrap_or_else(|| panic!("there is no {head}")).1;
    body.split(end).next().unwrap()
}

/// Whether a pattern of `exclude` leaves this file out. `**` stands for any folders, as in `/src/**/tests/`.
fn leaves_out(pattern: &str, file: &str) -> bool {
    let pattern = pattern.strip_prefix('/').expect("a pattern begins at the root");
    let Some((folder, rest)) = pattern.split_once("**/") else {
        return file == pattern || file.starts_with(&format!("{}/", pattern.trim_end_matches('/')));
    };
    let Some(within) = file.strip_prefix(folder) else { return false };
    if let Some(ending) = rest.strip_prefix('*') {
        return within.ends_with(ending);
    }
    match rest.strip_suffix('/') {
        Some(folder) => within.split('/').rev().skip(1).any(|part| part == folder),
        None => within.split('/').next_back() == Some(rest),
    }
}

/// The files of modules that only a build with tests, the simulator or fuzz targets has.
fn only_ours(package: &str) -> Vec<String> {
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join(package);
    let (mut folders, mut found) = (vec![root.join("src")], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.extend(modules_of(&path));
            }
        }
    }
    let named = |path: PathBuf| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
    found.into_iter().map(named).collect()
}

fn modules_of(file: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(file).unwrap();
    let stem = file.file_stem().unwrap();
    let is_root = ["mod", "lib", "main"].iter().any(|name| stem == *name);
    let here = if is_root { file.parent().unwrap().to_owned() } else { file.with_extension("") };
    let (mut ours, mut elsewhere, mut found) = (false, false, Vec::new());
    for line in text.lines() {
        if line.starts_with("#[") {
            ours |= ["#[cfg(test)]", "#[cfg(any(test", "#[cfg(all(test"]
                .iter()
                .any(|head| line.starts_with(head));
            elsewhere |= line.starts_with("#[path = \"../");
            continue;
        }
        let name = line.strip_suffix(';').and_then(|line| line.split_once("mod "));
        if let Some((_, name)) = name.filter(|_| ours && !elsewhere && !line.starts_with("//")) {
            let (one, folder) = (here.join(format!("{name}.rs")), here.join(name));
            let file = [one, folder.join("mod.rs")];
            found.push(file.into_iter().find(|file| file.exists()).expect(name));
        }
        (ours, elsewhere) = (false, false);
    }
    found
}

/// Whether a package leaves out these files and those of at least so many modules, and has the others.
fn check(package: &str, out: &[&str], modules: usize, within: &[&str]) {
    let own = manifest(&format!("{package}/Cargo.toml"));
    let list = part(&own, "\nexclude = [", "]");
    let patterns: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let is_out = |file: &str| patterns.iter().any(|pattern| leaves_out(pattern, file));
    for file in out {
        assert!(is_out(file), "{file} is in the package");
    }
    let ours = only_ours(package);
    assert!(ours.len() >= modules, "too few modules were found: {ours:?}");
    for file in ours {
        assert!(is_out(&file), "{file} is in the package: exclude it in {package}/Cargo.toml");
    }
    for file in within {
        assert!(!is_out(file), "{file} is not in the package");
    }
}

#[test]
fn the_packages_have_only_what_users_build() {
    let out = ["tests/repository/main.rs", "benches/read.rs", ".ci/run"];
    check(".", &out, 50, &["src/lib.rs", "src/testing/nodes.rs"]);
    check("cli", &["tests/cli/main.rs"], 3, &["src/main.rs", "src/live/top/model/mod.rs"]);
    // Cargo leaves out the folders of other packages.
    for package in ["simulation", "fuzz", "loom"] {
        assert!(
            manifest(&format!("{package}/Cargo.toml")).contains("publish = false"),
            "{package}"
        );
    }
    let own = manifest("Cargo.toml");
    let features = part(&own, "\n[features]\n", "\n[");
    let names = features.lines().filter(|line| !line.starts_with('#'));
    let names: Vec<&str> = names.filter_map(|line| Some(line.split_once(" =")?.0)).collect();
    let of_users = ["default", "tls", "metrics", "json", "futures", "cron", "gateway", "admin"];
    assert_eq!(names, of_users);
}

/// The workflow of a release compares them, too, when it is late to mend it.
#[test]
fn the_changelog_has_the_version_or_waits_for_it() {
    let (changelog, manifest) = (manifest("CHANGELOG.md"), manifest("Cargo.toml"));
    let package = part(&manifest, "\n[workspace.package]\n", "\n[");
    let version = package.lines().find_map(|line| line.strip_prefix("version = \"")).unwrap();
    let version = version.trim_end_matches('"');
    let heads: Vec<&str> =
        changelog.lines().filter_map(|line| line.strip_prefix("## [")?.split(']').next()).collect();
    assert_eq!(heads.first(), Some(&"Unreleased"), "what comes next has a place");
    assert!(heads.len() == 1 || heads[1] == version, "{version} is not the newest of {heads:?}");
}
