//! The `KEY=VALUE` options of workloads and orders.

use std::collections::BTreeMap;

#[derive(Clone, Default)]
pub(crate) struct Options(pub(crate) BTreeMap<String, String>);

impl Options {
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Options {
        let pair = |word: &'a str| word.split_once('=').unwrap_or((word, ""));
        Options(words.map(pair).map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    pub(crate) fn number(&self, key: &str, default: u64) -> u64 {
        self.0.get(key).map_or(default, |value| value.parse().unwrap())
    }

    pub(crate) fn seconds(&self, key: &str, default: f64) -> u64 {
        let seconds = self.0.get(key).map_or(default, |value| value.parse().unwrap());
        (seconds * 1e9) as u64
    }

    pub(crate) fn text<'a>(&'a self, key: &str, default: &'a str) -> &'a str {
        self.0.get(key).map_or(default, |value| value)
    }

    pub(crate) fn line(&self) -> String {
        let pairs: Vec<String> =
            self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(" ")
    }
}
