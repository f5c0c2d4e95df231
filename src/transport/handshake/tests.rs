//! The bytes of a handshake, and its checks.

use proptest::prelude::*;

use super::*;

fn local() -> LocalPeer {
    LocalPeer {
        cluster: 77,
        node: 1,
        incarnation: 5,
        version: 3,
        address: "one:7400".to_owned(),
        boot: 8,
    }
}

const HELLO: Hello = Hello { version: 1, cluster: 77, from: 2, to: 1, incarnation: 6, run: None };

fn hello() -> Hello {
    let run = Run { address: "two:7400".to_owned(), boot: 300 };
    Hello { version: 3, run: Some(run), ..HELLO }
}

#[test]
fn golden_handshake() {
    let mut golden = crate::golden::Golden::new("handshake");
    golden.sample("hello", &HELLO.encode(Vec::new()));
    golden.sample("welcome", &Answer::Welcome(None).encode(1, Vec::new()));
    let refusal = Refusal::new(RefusalCode::Cluster, "another cluster".to_owned());
    golden.sample("refusal", &Answer::Refused(refusal).encode(1, Vec::new()));
    golden.sample("hello, version 2", &Hello { version: 2, ..HELLO }.encode(Vec::new()));
    golden.sample("welcome, version 2", &Answer::Welcome(None).encode(2, Vec::new()));
    let keys = Refusal::new(RefusalCode::Security, "other keys".to_owned());
    golden.sample("refusal, other keys", &Answer::Refused(keys).encode(2, Vec::new()));
    let identity = Refusal::new(RefusalCode::Identity, "another's".to_owned());
    golden.sample("refusal, another's id", &Answer::Refused(identity).encode(2, Vec::new()));
    golden.sample("preface of a secret", &crate::transport::secure::SECRET_PREFACE);
    golden.sample("hello, version 3", &hello().encode(Vec::new()));
    let welcome = Answer::Welcome(Some(Host::of(&local())));
    golden.sample("welcome, version 3", &welcome.encode(3, Vec::new()));
    let duplicate = Refusal::new(RefusalCode::Duplicate, "a copy".to_owned());
    golden.sample("refusal, a copied directory", &Answer::Refused(duplicate).encode(3, Vec::new()));
    golden.check();
}

#[test]
fn hello_and_answers_survive_encoding() {
    let bytes = HELLO.encode(Vec::new());
    assert_eq!(&bytes[..10], b"quorate\n\x01\x00");
    assert_eq!(Hello::decode(&bytes, 1..=1), Ok(HELLO));
    assert_eq!(Hello::decode(&bytes, 1..=3), Ok(HELLO));
    for code in (1..=255).map(RefusalCode::from_byte) {
        let answer = Answer::Refused(Refusal::new(code, "nein \u{fc}".to_owned()));
        assert_eq!(Answer::decode(&answer.encode(3, Vec::new())), Some((3, answer)));
    }
    let welcome = Answer::Welcome(None).encode(1, Vec::new());
    assert_eq!(Answer::decode(&welcome), Some((1, Answer::Welcome(None))));
    assert_eq!(Hello::decode(&hello().encode(Vec::new()), 1..=3), Ok(hello()));
    let welcome = Answer::Welcome(Some(Host::of(&local())));
    assert_eq!(Answer::decode(&welcome.encode(4, Vec::new())), Some((4, welcome)));
    assert_eq!(Hello::new(&local(), 2, 9).run, None);
    assert_eq!(Hello::new(&local(), 3, 9).run, Some(Run::of(&local())));
}

#[test]
fn hello_of_another_version_is_recognised_whatever_follows() {
    for body in [&b""[..], b"\xff\xff\xff", &[0; 3000]] {
        let bytes = [&b"quorate\n\x02\x01"[..], body].concat();
        let refusal = Hello::decode(&bytes, 1..=2).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Protocol);
        assert!(refusal.text.contains("versions 1 to 2"), "{}", refusal.text);
        assert!(refusal.text.contains("258"), "{}", refusal.text);
    }
}

#[test]
fn an_address_that_is_none_is_damage() {
    let long = format!("{}:7400", "x".repeat(ADDRESS_BYTES_MAX));
    for address in ["two", "two:0", ":7400", "t\no:7400", "t o:7400", &long] {
        let run = Run { address: address.to_owned(), boot: 1 };
        let hello = Hello { run: Some(run.clone()), ..hello() };
        let refused = Hello::decode(&hello.encode(Vec::new()), 1..=3).unwrap_err();
        assert_eq!(refused.code, RefusalCode::Malformed, "{address:?}");
        nobody(run);
    }
    // A client has no address, and a node that listens has one.
    let nowhere = Run { address: String::new(), boot: 1 };
    let hello_of_client = Hello { run: Some(nowhere.clone()), ..hello() };
    let bytes = hello_of_client.encode(Vec::new());
    assert_eq!(Hello::decode(&bytes, 1..=3), Ok(hello_of_client));
    nobody(nowhere);
    fn nobody(run: Run) {
        let address = run.address.clone();
        let welcome = Answer::Welcome(Some(Host { node: 1, cluster: 0, run }));
        assert_eq!(Answer::decode(&welcome.encode(3, Vec::new())), None, "{address:?}");
    }
    let bytes = hello().encode(Vec::new());
    assert!(Hello::decode(&bytes[..bytes.len() - 1], 1..=3).is_err());
    assert!(Hello::decode(&[&bytes[..], b"0"].concat(), 1..=3).is_err());
}

#[test]
fn hello_is_checked_in_every_respect() {
    let code = |hello: Hello| check(&local(), &hello).map_err(|refusal| refusal.code);
    let own = |boot| Some(Run { boot, ..Run::of(&local()) });
    for good in [HELLO, hello(), Hello { to: 0, ..hello() }, Hello { cluster: 0, ..hello() }] {
        assert_eq!(code(good), Ok(()));
    }
    let wrong = [
        (Hello { cluster: 78, ..HELLO }, RefusalCode::Cluster),
        (Hello { cluster: 78, to: 0, ..hello() }, RefusalCode::Cluster),
        (Hello { to: 3, ..HELLO }, RefusalCode::NotAddressed),
        (Hello { to: 3, ..hello() }, RefusalCode::NotAddressed),
        (Hello { to: 0, ..HELLO }, RefusalCode::NotAddressed),
        (Hello { from: 1, ..HELLO }, RefusalCode::OwnId),
        (Hello { from: 1, to: 0, run: own(8), ..hello() }, RefusalCode::OwnId),
        (Hello { from: 1, to: 0, run: own(9), ..hello() }, RefusalCode::Duplicate),
        (Hello { from: 0, ..HELLO }, RefusalCode::Malformed),
    ];
    for (hello, refused) in wrong {
        assert_eq!(code(hello), Err(refused));
    }
    let blank = LocalPeer { cluster: 0, ..local() };
    assert_eq!(check(&blank, &Hello { cluster: 78, ..hello() }), Ok(()));
}

#[test]
fn host_is_checked_in_every_respect() {
    let code = |to, node, cluster| {
        let host = Host { node, cluster, ..Host::of(&local()) };
        check_host(&local(), to, Some(&host)).map_err(|refusal| refusal.code)
    };
    assert_eq!(check_host(&local(), 2, None), Ok(2));
    assert!(check_host(&local(), 0, None).is_err());
    for to in [0, 2] {
        assert_eq!(code(to, 2, 77), Ok(2));
        assert_eq!(code(to, 2, 0), Ok(2));
        assert_eq!(code(to, 2, 78), Err(RefusalCode::Cluster));
    }
    assert_eq!(code(3, 2, 77), Err(RefusalCode::NotAddressed));
    assert_eq!(code(0, 1, 77), Err(RefusalCode::OwnId));
    assert_eq!(code(0, 0, 77), Err(RefusalCode::OwnId));
}

#[test]
fn answer_text_is_bounded_and_harmless() {
    let text = "\u{1F980}\n".repeat(1000);
    let answer = Answer::Refused(Refusal::new(RefusalCode::Cluster, text));
    let bytes = answer.encode(1, Vec::new());
    assert!(bytes.len() <= FRONT_BYTES + 1 + TEXT_BYTES_MAX);
    let Some((1, Answer::Refused(refusal))) = Answer::decode(&bytes) else {
        panic!("not a refusal");
    };
    assert!(!refusal.text.contains(['\n', '\u{fffd}']));
    assert!(refusal.text.len() > TEXT_BYTES_MAX / 2);
}

proptest! {
    #[test]
    fn any_bytes_decode_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        ours in 0..4_u8,
    ) {
        let front = [&b"quorate\n"[..], &[ours, 0]].concat();
        let bytes = if ours > 0 { [front, bytes].concat() } else { bytes };
        let _ = Answer::decode(&bytes);
        if let Ok(hello) = Hello::decode(&bytes, 1..=3) {
            prop_assert_eq!(&Hello::decode(&hello.encode(Vec::new()), 1..=3), &Ok(hello.clone()));
            let _ = check(&local(), &hello);
        }
    }

    #[test]
    fn whoever_welcomes_is_understood_or_not_at_all(
        node in any::<u64>(),
        cluster in any::<u64>(),
        boot in any::<u64>(),
        harm in any::<u8>(),
        at in 11..30_usize,
    ) {
        let run = Run { address: "a.b:1".to_owned(), boot };
        let welcome = Answer::Welcome(Some(Host { node, cluster, run }));
        let mut bytes = welcome.encode(3, Vec::new());
        prop_assert_eq!(Answer::decode(&bytes), Some((3, welcome)));
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= harm;
        }
        if let Some((_, answer)) = Answer::decode(&bytes) {
            let again = Answer::decode(&answer.encode(3, Vec::new()));
            prop_assert_eq!(again, Some((3, answer)));
        }
    }
}
