//! What each credential allows: every cell of the table in docs/security.md, with processes that serve and the program
//! as it asks them, for secrets and for certificates.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::addresses;

/// Writes a file that its owner alone can read.
fn private(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// The exit code of `status` during an election.
const ELECTION: i32 = 5;
/// How often a command is tried: far more than any step takes.
const TIMES_MAX: u32 = 2000;
const RIGHTS: [&str; 4] = ["member", "operator", "client", "none"];

/// The rows of the table: what is done, and whether each right allows it.
fn table() -> BTreeMap<String, [bool; 4]> {
    let page = include_str!("../../../docs/security.md");
    let rows = page.split("| | member | operator | client | none |").nth(1).unwrap();
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let mut cells = row.trim_matches('|').split(" | ").map(str::trim);
        let action = cells.next().unwrap().to_owned();
        let allowed: Vec<bool> = cells.map(|cell| cell == "yes").collect();
        (action, allowed.try_into().unwrap())
    })
    .collect()
}

/// How a process presents itself: to the program and to `serve`.
struct Credential {
    program: Vec<String>,
    serve: Vec<String>,
}

/// A process that holds a session, until it is dropped.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    root: PathBuf,
    peers: Vec<String>,
    processes: Vec<Child>,
    credentials: Vec<Credential>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Cluster {
    fn start(root: &Path, member: &[String], credentials: Vec<Credential>) -> Cluster {
        let peers = addresses::addresses(3);
        let mut cluster = Cluster {
            root: root.to_owned(),
            peers: peers.clone(),
            processes: Vec::new(),
            credentials,
        };
        for peer in &peers {
            let process = cluster.serve(peer, member);
            cluster.processes.push(process);
        }
        let ready = |output: &Output| output.status.success();
        cluster.until(0, &["create", "/mine", "x"], ready);
        cluster
    }

    fn serve(&self, address: &str, credential: &[String]) -> Child {
        let name = address.replace(':', "_");
        let log = File::create(self.root.join(format!("{name}.log"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        command.args(["serve", "--peers", &self.peers.join(","), "--advertise", address]);
        command.arg("--audit-file").arg(self.root.join(format!("{name}.audit")));
        command.arg("--data-dir").arg(self.root.join(name));
        command.args(["--zookeeper", "127.0.0.1:0", "--tick-time", "500"]).args(credential);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        command.spawn().unwrap()
    }

    fn log(&self, address: &str) -> String {
        fs::read_to_string(self.root.join(format!("{}.log", address.replace(':', "_")))).unwrap()
    }

    /// Runs the program with the credential of this right.
    fn run(&self, right: usize, arguments: &[&str]) -> Output {
        self.command(right, arguments).output().unwrap()
    }

    fn command(&self, right: usize, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
        let (name, rest) = arguments.split_first().unwrap();
        command
            .args([name, "--peers", &self.peers.join(",")])
            .args(&self.credentials[right].program);
        command.args(["--timeout", if right == 3 { "2" } else { "20" }]).args(rest);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs it until this holds.
    fn until(&self, right: usize, arguments: &[&str], holds: impl Fn(&Output) -> bool) -> Output {
        loop {
            let output = self.run(right, arguments);
            if holds(&output) {
                return output;
            }
            assert!(
                !text(&output.stderr).contains("unexpected argument"),
                "{}",
                text(&output.stderr)
            );
        }
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.until(0, arguments, |output| output.status.success());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Whether this right allows it. `Err`: what was said, which is neither.
    fn may(&mut self, right: usize, action: &str) -> bool {
        let output = match action {
            "hold sessions of its own: read, write, watch, lock" => {
                let path = format!("/of-{}", RIGHTS[right]);
                let created = self.run(right, &["create", &path, "x"]);
                if created.status.success() {
                    let read = self.run(right, &["get", &path]);
                    assert_eq!(text(&read.stdout).trim(), "x", "{read:?}");
                    let locked = self.run(right, &["lock", "/lock", "--", "true"]);
                    assert!(locked.status.success(), "{locked:?}");
                }
                created
            }
            "`status`, `members`, `sessions`" => {
                // An election, as after the lead was moved, has a code of its own.
                let mut first = self.run(right, &["status"]);
                for _ in 0..TIMES_MAX {
                    if first.status.code() != Some(ELECTION) {
                        break;
                    }
                    first = self.run(right, &["status"]);
                }
                let [_, last] = ["members", "sessions"].map(|name| self.run(right, &[name]));
                assert_eq!(first.status.code(), last.status.code(), "{first:?} {last:?}");
                last
            }
            "`backup`" => {
                let file = self.root.join(format!("backup-{}", RIGHTS[right]));
                let output = self.run(right, &["backup", file.to_str().unwrap()]);
                assert_eq!(file.exists(), output.status.success(), "{output:?}");
                output
            }
            "`move-leader`" => {
                let members = self.json(&["members", "--json"]);
                let members = members["members"].as_array().unwrap();
                let follows = members.iter().find(|member| member["role"] != "leader").unwrap();
                self.run(right, &["move-leader", follows["address"].as_str().unwrap()])
            }
            "`expire`" => {
                let _holder = Holder(self.command(0, &["watch", "/mine"]).spawn().unwrap());
                let mut times = 0;
                let session = loop {
                    times += 1;
                    assert!(times < TIMES_MAX, "nobody holds a session");
                    let sessions = self.json(&["sessions", "--json"]);
                    if let Some(session) = sessions["sessions"][0]["id"].as_str() {
                        break session.to_owned();
                    }
                };
                let output = self.run(right, &["expire", &session]);
                let expired = text(&output.stdout).contains(&session);
                assert_eq!(expired, output.status.success(), "{output:?}");
                output
            }
            // It is alive, so whoever may remove it is told that.
            "`remove-member`" => self.run(right, &["remove-member", &self.peers[1].clone()]),
            "be a member: vote, hold the state, forward for others" => return self.joins(right),
            other => panic!("the page has a row that is not tested: {other}"),
        };
        let said = text(&output.stderr);
        let refused = said.contains("the credential of this instance");
        // A stranger is not let in at all.
        let stranger = output.status.code() == Some(4);
        assert_eq!(stranger, right == 3, "{action} by {}: {said}", RIGHTS[right]);
        !refused && !stranger
    }

    /// Whether an instance with this credential becomes a member.
    fn joins(&mut self, right: usize) -> bool {
        let address = addresses::address();
        let process = self.serve(&address, &self.credentials[right].serve);
        self.processes.push(process);
        for _ in 0..TIMES_MAX {
            let members = self.json(&["members", "--json"]);
            let mut members = members["members"].as_array().unwrap().iter();
            if members.any(|member| member["address"] == *address) {
                return true;
            }
            let log = self.log(&address);
            let reasons = [
                "needs one of a member",
                "shared secret",
                "UnknownCA",
                "with TLS",
                "not protected",
            ];
            if reasons.iter().any(|reason| log.contains(reason)) {
                return false;
            }
        }
        panic!("neither a member nor refused: {}", self.log(&address));
    }

    /// Access lists go by the subject that the members have verified, and by its roles.
    fn check_ids(&self) {
        for (path, id) in [("/subject", "x509:CN=operator"), ("/role", "role:reader")] {
            let list = format!("cdrwa=x509:CN=member\nr={id}");
            self.until(0, &["create", path, "x"], |output| output.status.success());
            self.until(0, &["acl", path, "--set", &list], |output| output.status.success());
        }
        for (right, path, may) in
            [(1, "/subject", true), (1, "/role", false), (2, "/subject", false), (2, "/role", true)]
        {
            let read = self.run(right, &["get", path]);
            assert_eq!(read.status.success(), may, "{path} by {}: {read:?}", RIGHTS[right]);
        }
        // Nobody gets another's id by asking for it.
        let asks = ["get", "/subject", "--auth", "x509:CN=operator"];
        assert!(!self.run(2, &asks).status.success());
        let said = self.run(2, &["get", "/role", "--auth", "digest:alice:secret"]);
        assert!(text(&said.stderr).contains("do not take its word"), "{said:?}");
    }

    fn check(&mut self) {
        let table = table();
        assert_eq!(table.len(), 7);
        for (action, allowed) in table {
            for right in 0..RIGHTS.len() {
                let name = RIGHTS[right];
                assert_eq!(self.may(right, &action), allowed[right], "{action} by {name}");
            }
        }
        // Who asked for what is in the audit log, by its connection, with the result.
        for action in ["Backup", "MoveLeader", "Expire", "Remove"] {
            self.is_audited("client", "action", action, "refused: ");
        }
        for (action, result) in [
            ("Backup", "begun"),
            ("Backup", "complete"),
            ("MoveLeader", "Begun"),
            ("Expire", "Begun"),
        ] {
            self.is_audited("operator", "action", action, result);
        }
        for right in &RIGHTS[..3] {
            self.is_audited(right, "operation", "create", "success");
        }
        // Strangers have no right.
        self.is_audited("", "result", "", "refused: ");
    }

    /// Waits for a line of a member's audit log with this, and who asked.
    fn is_audited(&self, right: &str, field: &str, name: &str, result: &str) {
        let has = |line: &Value, field: &str, text: &str| {
            line[field].as_str().is_some_and(|of| of.contains(text))
        };
        let subject = self.credentials[0].program.iter().any(|argument| argument == "--tls-cert");
        let subject = Some(format!("CN={right}")).filter(|_| subject && !right.is_empty());
        let is = |line: &str| {
            let line: Value = serde_json::from_str(line).unwrap();
            line["right"].as_str().unwrap_or_default() == right
                && has(&line, "from", "127.0.0.1:")
                && has(&line, field, name)
                && line["result"].as_str().is_some_and(|of| of.starts_with(result))
                && (subject.is_none() || line["subject"].as_str() == subject.as_deref())
        };
        let mut tries = 0..TIMES_MAX * 1000;
        let found = tries.any(|_| {
            let files = self.peers.iter().map(|peer| format!("{}.audit", peer.replace(':', "_")));
            let lines = files.map(|file| fs::read_to_string(self.root.join(file)).unwrap());
            // The last line may be half written.
            let whole =
                lines.map(|text| text[..text.rfind('\n').map_or(0, |end| end + 1)].to_owned());
            whole.collect::<String>().lines().any(is)
        });
        assert!(found, "{name} by {right} is not in the audit log");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn flags(pairs: &[(&str, &Path)]) -> Vec<String> {
    pairs.iter().map(|(flag, file)| format!("{flag}={}", file.display())).collect()
}

#[test]
fn a_secret_allows_what_the_table_says() {
    let root = tempfile::tempdir().unwrap();
    let files = RIGHTS.map(|right| {
        let file = root.path().join(format!("{right}.secret"));
        private(&file, &format!("violin-carbon-otter-meadow-quartz-{right}"));
        file
    });
    let member = flags(&[
        ("--secret-file", &files[0]),
        ("--operators-secret-file", &files[1]),
        ("--clients-secret-file", &files[2]),
    ]);
    let of = |file| Credential {
        program: flags(&[("--secret-file", file)]),
        serve: flags(&[("--secret-file", file)]),
    };
    let credentials = files.iter().map(|file| of(file)).collect();
    Cluster::start(root.path(), &member, credentials).check();
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// The files of a certificate and its key.
    fn files(&self, dir: &Path, name: &str) -> [PathBuf; 2] {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let files = ["pem", "key"].map(|kind| dir.join(format!("{name}.{kind}")));
        private(&files[0], &certificate.pem());
        private(&files[1], &key.serialize_pem());
        files
    }

    fn file(&self, dir: &Path, name: &str) -> PathBuf {
        let file = dir.join(name);
        private(&file, &self.0.pem());
        file
    }
}

#[test]
fn a_certificate_allows_what_the_table_says() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let authorities = RIGHTS.map(Authority::new);
    let [members, operators, clients, _] =
        std::array::from_fn(|at| authorities[at].file(dir, &format!("{}-ca.pem", RIGHTS[at])));
    let own = |at: usize| authorities[at].files(dir, RIGHTS[at]);
    let [certificate, key] = own(0);
    let member = flags(&[
        ("--members-tls-authority", &members),
        ("--members-tls-certificate", &certificate),
        ("--members-tls-key", &key),
        ("--operators-tls-authority", &operators),
        ("--clients-tls-authority", &clients),
    ]);
    let of = |at: usize| {
        let [certificate, key] = own(at);
        // To be accepted at its own start, an instance that serves needs an authority that has signed it.
        let both = dir.join(format!("{}-both.pem", RIGHTS[at]));
        private(&both, &format!("{}{}", authorities[0].0.pem(), authorities[at].0.pem()));
        Credential {
            program: flags(&[
                ("--tls-ca", &members),
                ("--tls-cert", &certificate),
                ("--tls-key", &key),
            ]),
            serve: flags(&[
                ("--members-tls-authority", &both),
                ("--members-tls-certificate", &certificate),
                ("--members-tls-key", &key),
            ]),
        }
    };
    let roles = dir.join("roles");
    private(&roles, "# Who may read.\nreader: CN=client\n");
    let member = [member, flags(&[("--roles-file", &roles)])].concat();
    let credentials = (0..RIGHTS.len()).map(of).collect();
    let mut cluster = Cluster::start(dir, &member, credentials);
    cluster.check_ids();
    cluster.check();
}
