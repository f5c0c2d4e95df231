use super::*;
use crate::golden::Golden;
use crate::types::membership::Member;

fn commands() -> Vec<(&'static str, Command)> {
    let create = |mode| Op::Create { path: "/a".into(), data: "data".into(), mode };
    let check = |condition| Op::Check { path: "/a".into(), condition };
    let ttl = Duration::from_millis(1500);
    let member = Member { zone: "east".to_owned(), ..Member::new(300, "here:7400") };
    let form = CounterForm::Int;
    let add = |number, within| Command::Op(Op::Add { path: "/a".into(), number, form, within });
    let configure = Command::Configure { version: 300, seats: vec![Seat { member, votes: true }] };
    vec![
        ("open", Command::Open { secret: [7; 16], timeout_ms: 30_000, owner: 3, base: 99 }),
        ("resume", Command::Resume { secret: [7; 16], timeout_ms: 30_000, owner: 3 }),
        ("close", Command::Close),
        ("expire", Command::Expire { term: 5 }),
        ("create", Command::Op(create(CreateMode::Persistent))),
        ("set", Command::Op(Op::Set { path: "/a".into(), data: "".into(), version: Some(300) })),
        ("delete", Command::Op(Op::Delete { path: "/a".into(), version: None })),
        (
            "multi",
            Command::Multi(vec![
                create(CreateMode::PersistentSequential),
                create(CreateMode::Ephemeral),
                create(CreateMode::EphemeralSequential),
                create(CreateMode::Container),
                create(CreateMode::PersistentWithTtl(ttl)),
                create(CreateMode::PersistentSequentialWithTtl(ttl)),
                check(Condition::Exists),
                check(Condition::Absent),
                check(Condition::Version(1)),
                check(Condition::Czxid(2)),
                check(Condition::Mzxid(3)),
                check(Condition::Pzxid(4)),
                check(Condition::Cversion(5)),
                check(Condition::Aversion(6)),
            ]),
        ),
        ("delete tree", Command::Op(Op::DeleteTree { path: "/a".into() })),
        ("reap", Command::Reap { path: "/a".to_owned() }),
        ("authenticate", Command::Authenticate { ids: vec![Id::digest("alice", "secret")] }),
        (
            "acls",
            Command::Multi(vec![
                Op::CreateWithAcl {
                    path: "/a".into(),
                    data: "data".into(),
                    mode: CreateMode::Persistent,
                    acl: Acl::creator_all(),
                },
                Op::SetAcl { path: "/a".into(), acl: Acl::read_only(), version: Some(7) },
            ]),
        ),
        (
            "create or set",
            Command::Op(Op::CreateOrSet {
                path: "/a".into(),
                data: "data".into(),
                mode: CreateMode::Persistent,
            }),
        ),
        (
            "take over",
            Command::Op(Op::TakeOver {
                path: "/a".into(),
                data: "data".into(),
                from: SessionId(300),
            }),
        ),
        (
            "put",
            Command::Op(Op::Put {
                path: "/a".into(),
                data: "data".into(),
                order: Box::new(QueueOrder {
                    priority: -1,
                    delay_ms: 300,
                    id: "ix".into(),
                    max: Some(7),
                }),
            }),
        ),
        ("take", Command::Op(Op::Take { path: "/a".into(), claims: true })),
        ("add", add(-300, None)),
        ("add to a time", add(300, Some(300))),
        ("raise version", Command::RaiseVersion { version: 300 }),
        ("configure", configure),
        ("use", Command::Multi(vec![check(Condition::Usage { znodes: 7, bytes: 8 })])),
    ]
}

#[test]
fn golden_commands() {
    let mut golden = Golden::new("commands");
    for (name, command) in commands() {
        let (session, holder) = (SessionId(0x0123_4567_89ab_cdef), 42);
        let version = if let Command::RaiseVersion { version } = command { version } else { FIRST };
        assert_eq!(command.version(), version, "{name}");
        let request = Request { session, holder, seq: 9, acked: 8, command };
        let batch = Batch { time: 1_700_000_000_000, requests: vec![request] };
        let bytes = batch.encode();
        golden.sample(name, &bytes);
        assert_eq!(Batch::decode(&bytes), Ok(batch));
    }
    golden.check();
}

/// `too_large` does not measure small commands.
#[test]
fn no_command_takes_more_than_ten_times_its_size() {
    let (path, max): (Arc<str>, _) = ("".into(), Some(u64::MAX));
    let order = QueueOrder { priority: i32::MIN, delay_ms: u64::MAX, id: String::new(), max };
    let (znodes, bytes) = (u64::MAX, u64::MAX);
    let (number, form) = (i64::MIN, CounterForm::Long);
    let (nobody, acl) = (Id::new("", ""), vec![Acl::new(Permissions::ALL, Id::new("", "")); 1000]);
    let mode = CreateMode::PersistentWithTtl(Duration::MAX);
    let ops = [
        Op::Put { path: path.clone(), data: "".into(), order: order.into() },
        Op::Check { path: path.clone(), condition: Condition::Usage { znodes, bytes } },
        Op::Add { path: path.clone(), number, form, within: max },
        Op::CreateWithAcl { path: path.clone(), data: "".into(), mode, acl: acl.clone() },
        Op::CreateWithAcl { path: path.clone(), data: "".into(), mode, acl: Vec::new() },
        Op::SetAcl { path, acl, version: max },
    ];
    let extremes = ops.map(|op| Command::Multi(vec![op; 100])).into_iter();
    let extremes = extremes.chain([Command::Authenticate { ids: vec![nobody; 1000] }]);
    for command in commands().into_iter().map(|(_, command)| command).chain(extremes) {
        let limit = 10 * command.size();
        let results = command.ops().len() * 44;
        assert!(encoding::size(&command) + results <= limit, "{:.200}", format!("{command:?}"));
    }
}

#[test]
fn a_command_is_too_large_by_its_bytes_or_by_those_of_its_results() {
    const LIMIT: usize = 1 << 20;
    let refusal = |command: Command| command.too_large(LIMIT);
    let data = |bytes| Op::Set { path: "/a".into(), data: vec![7; bytes].into(), version: None };
    let check = || Op::Check { path: "/".into(), condition: Condition::Exists };
    assert_eq!(refusal(Command::Op(data(LIMIT - 100))), None);
    let limit = LIMIT as u64;
    let too_large = |path: &str, size| OpError::TooLarge { path: path.to_owned(), size, limit };
    let encoded = encoding::size(&Command::Op(data(LIMIT))) as u64;
    assert_eq!(refusal(Command::Op(data(LIMIT))), Some(too_large("/a", encoded)));

    let half = || data(LIMIT / 2 - 100);
    assert_eq!(refusal(Command::Multi(vec![half(), half()])), None);
    let refused = refusal(Command::Multi(vec![half(), half(), check(), half(), check()]));
    let Some(OpError::Multi { index: 3, error }) = refused else { panic!("{refused:?}") };
    assert!(matches!(*error, OpError::TooLarge { size, .. } if size > limit * 5 / 4));
    assert_eq!(refusal(Command::Multi(vec![check(); LIMIT / 50])), None);
    let refused = refusal(Command::Multi(vec![check(); LIMIT / 46]));
    assert!(matches!(refused, Some(OpError::Multi { .. })));

    let ids = vec![Id::new("x509", "n".repeat(1000)); LIMIT / 1000];
    let refused = refusal(Command::Authenticate { ids });
    assert!(matches!(refused, Some(OpError::TooLarge { .. })));
}
