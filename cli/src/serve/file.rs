//! Settings from a file: lines `name = value`, with the names of the flags and ZooKeeper's, as in its `zoo.cfg`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::Command;
use clap::parser::ValueSource;

/// The flag that names the file.
const CONFIG: &str = "config";

/// The arguments of a command line with those of the file that it names, except what the command line or the
/// environment sets. `serve` is the subcommand's description. An error names the wrong line.
pub(crate) fn with_file(
    arguments: Vec<OsString>,
    serve: &Command,
) -> Result<Vec<OsString>, String> {
    let asks = arguments.get(1).is_some_and(|command| command == "serve");
    let lenient = serve.clone().no_binary_name(true).mut_args(|setting| setting.required(false));
    // Errors in the command line itself are reported later, when it is parsed completely.
    let Some(given) =
        asks.then(|| lenient.clone().try_get_matches_from(&arguments[2..]).ok()).flatten()
    else {
        return Ok(arguments);
    };
    let Some(file) = given.get_one::<std::path::PathBuf>(CONFIG) else { return Ok(arguments) };
    let is_given = |id: &str| {
        matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let text = fs::read_to_string(file)
        .map_err(|error| format!("cannot read the settings in {}: {error}", file.display()))?;
    let settings = settings(&text, file, &lenient)?;
    let settings = settings.into_iter().filter(|(id, _)| !is_given(id));
    let mut arguments = arguments;
    arguments.extend(settings.map(|(_, argument)| argument.into()));
    Ok(arguments)
}

/// The settings of a file, by the ids of their flags, as arguments.
fn settings(text: &str, file: &Path, serve: &Command) -> Result<BTreeMap<String, String>, String> {
    let mut settings = BTreeMap::new();
    let mut lines = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |reason: String| format!("{}:{number}: {reason}", file.display());
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| wrong(format!("{line:?} is not of the form `name = value`")))?;
        let (name, value) = (name.trim(), value.trim());
        let is_named = |flag: &&clap::Arg| {
            flag.get_long() == Some(name)
                || flag.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        };
        let flag = serve.get_arguments().find(is_named);
        let flag = flag.filter(|flag| ![CONFIG, "help"].contains(&flag.get_id().as_str()));
        let Some((id, long)) =
            flag.and_then(|flag| Some((flag.get_id().as_str(), flag.get_long()?)))
        else {
            return Err(wrong(format!(
                "no setting is named {name:?}: `quorate serve --help` has their names"
            )));
        };
        if let Some(former) = lines.insert(id, number) {
            return Err(wrong(format!("{name} is set in line {former} already")));
        }
        let argument = format!("--{long}={value}");
        if let Err(error) = serve.clone().try_get_matches_from([&argument]) {
            let error = error.to_string();
            let reason = error.lines().next().unwrap_or_default().trim_start_matches("error: ");
            return Err(wrong(format!("{name}: {reason}")));
        }
        settings.insert(id.to_owned(), argument);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tempfile::NamedTempFile;

    use super::*;

    #[derive(Debug, Parser)]
    struct Serve {
        #[command(flatten)]
        arguments: crate::serve::ServeArgs,
    }

    /// The settings of this file and command line.
    fn read(text: &str, given: &[&str]) -> Result<crate::serve::ServeArgs, String> {
        let file = NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        let path = file.path().display().to_string();
        let named = ["quorate", "serve", "--config", &path];
        let all = named.iter().chain(given).map(OsString::from).collect();
        let command = <Serve as clap::CommandFactory>::command();
        let all = with_file(all, &command).map_err(|error| error.replace(&path, "FILE"))?;
        let parsed = Serve::try_parse_from(&all[1..]).map_err(|error| error.to_string())?;
        Ok(parsed.arguments)
    }

    #[test]
    fn settings_have_the_names_of_flags_and_of_zookeeper() {
        let text = "\
            # The cluster.\n\
            peers = a:1,b:2, c:3\n\
            dataDir=/var/lib/a b\n\n\
            tickTime = 500\n\
            max-session-timeout = 120000\n\
            readonlymode.enabled=true\n\
            skipACL = no\n\
            4lw.commands.whitelist=ruok, srvr\n\
            superDigest = super:a#b=\n";
        let read_back = read(text, &["--tick-time", "700", "--zookeeper=:1"]).unwrap();
        assert_eq!(read_back.peers, ["a:1", "b:2", " c:3"]);
        assert_eq!(read_back.data_dir, Path::new("/var/lib/a b"));
        assert_eq!((read_back.tick_time, read_back.max_session_timeout), (700, Some(120_000)));
        assert!(read_back.read_only_mode && !read_back.skip_acl);
        assert_eq!(read_back.four_letter_words.unwrap(), ["ruok", " srvr"]);
        assert_eq!(read_back.super_digest.as_deref(), Some("super:a#b="));
        assert_eq!(read_back.zookeeper.as_deref(), Some(":1"));
        // The same as on a command line.
        let given = ["--peers=a:1", "--data-dir=d", "--skip-acl", "--read-only-mode=off"];
        let read_back = read("", &given).unwrap();
        assert!(read_back.skip_acl && !read_back.read_only_mode);
    }

    #[test]
    fn the_admin_endpoint_is_set_in_a_file_too() {
        let text = "peers=a:1\ndata-dir=d\nadmin = 127.0.0.1:7480\nadmin-token-file=/t\nadmin-writable=yes";
        assert!(read(text, &[]).is_ok());
        let error = read("peers=a:1\ndata-dir=d\nadmin-writable=perhaps", &[]).unwrap_err();
        assert!(error.starts_with("FILE:3: admin-writable: invalid value"), "{error}");
    }

    #[test]
    fn a_line_that_is_wrong_is_named_with_its_setting() {
        for (text, error) in [
            ("tickTime = 2s", "FILE:1: tickTime: invalid value '2s' for '--tick-time <TICK_TIME>'"),
            ("\n# a\nskip-acl=perhaps", "FILE:3: skip-acl: invalid value 'perhaps'"),
            ("enforceQuota=no", "FILE:1: enforceQuota: invalid value 'no' for '--enforce-quota"),
            ("initLimit=5", "FILE:1: no setting is named \"initLimit\""),
            ("config=other", "FILE:1: no setting is named \"config\""),
            ("tickTime=1\ntick-time=1", "FILE:2: tick-time is set in line 1 already"),
            ("peers", "FILE:1: \"peers\" is not of the form `name = value`"),
            ("data-dir=", "FILE:1: data-dir: a value is required"),
        ] {
            let found = read(text, &["--peers=a:1"]).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
        let missing = read("peers = a:1", &[]).unwrap_err();
        assert!(missing.contains("--data-dir <DATA_DIR>"), "{missing}");
        let wrong = read("peers = a:1", &["--data-dir=a", "--tick-time=x"]).unwrap_err();
        assert!(wrong.contains("--tick-time"), "{wrong}");
    }
}
