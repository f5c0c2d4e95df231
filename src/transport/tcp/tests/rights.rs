//! Credentials that are not a member's.

use super::unlisted::{client, hello_of, let_go};
use super::*;
use crate::security::{Secret, Security};
use crate::types::right::{Connection, Right};

fn phrase(one: &str) -> String {
    format!("violin-carbon-otter-meadow-{one}")
}

fn secret(one: &str) -> Secret {
    Secret::new(&phrase(one)).unwrap()
}

/// What members have: secrets for clients and operators, too.
fn member() -> Security {
    let members = secret("members").with_clients(secret("clients")).unwrap();
    members.with_operators(secret("operators")).unwrap().into()
}

fn with(security: impl Into<Security>) -> TransportOptions {
    TransportOptions {
        security: security.into(),
        reload_interval: Duration::from_millis(5),
        // The cryptography of a debug build is slow on a busy machine.
        stall_timeout: PATIENCE * 10,
        ..quick()
    }
}

impl Node {
    /// The connection of the client that connects next.
    fn authenticated(&self) -> (NodeId, Connection) {
        loop {
            if let TransportEvent::Authenticated { peer, connection: Some(connection) } =
                self.event()
            {
                return (peer, connection);
            }
        }
    }
}

/// A message that only members send, though not only to those of one cluster.
fn announce() -> PeerMessage {
    use crate::node::bootstrap::message::Announcement;
    use crate::types::membership::{Member, Promise};
    let (member, list) = (Member::new(9, "here:7400"), vec!["here:7400".to_owned()]);
    let promise = Promise::default();
    PeerMessage::Announce { announcement: Announcement { member, list, cluster: 0, promise } }
}

fn request() -> PeerMessage {
    let asked = crate::node::admin::message::AdminRequest::Report;
    PeerMessage::AdminRequest { number: 1, cluster: 0, relay: true, asked, asker: None }
}

#[test]
fn a_secret_decides_what_a_client_may_send() {
    let (listener, address) = listen();
    let one = Node::start(listener, local(1), &[], &with(member()));
    for (id, of, right) in [
        (7, "clients", Right::Client),
        (8, "operators", Right::Operator),
        (9, "members", Right::Member),
    ] {
        let node = client(id, &[address.to_string()], &with(secret(of)));
        node.await_connected(1);
        let (known, connection) = one.authenticated();
        let id = client_id(id);
        assert_eq!((known, connection.right, connection.subject), (id, right, None));
        assert_eq!(connection.address.ip(), address.ip());
        // The next event shows that the connection is up; only then messages of it follow.
        assert_eq!(one.await_connected(id), VERSION);
        node.transport.send(vec![(1, announce()), (1, request())]);
        if right == Right::Member {
            assert_eq!(one.received(), (id, announce()));
        }
        assert_eq!(one.received(), (id, request()));
        one.transport.send(vec![(id, let_go(1, 1))]);
        assert_eq!(node.received(), (1, let_go(1, 1)));
    }
}

/// A message of 4 MiB became a list of 470 MB.
#[test]
fn a_list_of_a_client_that_takes_too_much_memory_is_not_decoded() {
    use crate::node::client_message::FromClient;
    let (listener, address) = listen();
    let one = Node::start(listener, local(1), &[], &with(member()));
    for (id, of, is_refused) in [(7, "members", false), (8, "clients", true)] {
        let node = client(id, &[address.to_string()], &with(secret(of)));
        node.await_connected(1);
        let (attachment, number, received) = (1, 1, 0);
        let messages = vec![FromClient::End; 1 << 19];
        let message = PeerMessage::FromClient { attachment, number, received, messages };
        node.transport.send(vec![(1, message.clone())]);
        match is_refused {
            true => one.await_refused(1),
            false => assert!(one.received() == (client_id(id), message)),
        }
        node.transport.close();
    }
}

/// One process with a client's secret took every place and every file, and nobody else was let in: no member that had
/// started again, and no operator.
#[test]
fn clients_leave_places_which_operators_and_members_take() {
    let (listener, address) = listen();
    // Clients may have four of these, and operators six.
    let options = TransportOptions { unlisted_max: 8, ..with(member()) };
    let one = Node::start(listener, local(1), &[], &options);
    let seeds = [address.to_string()];
    let connect = |ids: std::ops::Range<u64>, of: &str| -> Vec<Node> {
        let nodes = ids.map(|id| client(id, &seeds, &with(secret(of))));
        nodes.inspect(|node| _ = node.await_connected(1)).collect()
    };
    let clients = connect(10..14, "clients");
    let late = client(14, &seeds, &with(secret("clients")));
    let refusal = loop {
        if let TransportEvent::SeedUnreachable { reason, .. } = late.event() {
            break reason;
        }
    };
    assert!(refusal.contains("too many clients"), "{refusal}");
    // The third operator takes the place of the latest client.
    let operators = connect(20..23, "operators");
    // It is closed or reset, by what is still under way.
    let is_lost = |node: &Node| matches!(node.unreachable(), (1, _, false));
    assert!(is_lost(&clients[3]));
    // So do members, when their own places are used up, and then they take those of operators.
    let members: Vec<Node> = (30..36)
        .map(|id| {
            let peers = [remote(1, address)];
            let node = Node::start(listen().0, local(id), &peers, &with(secret("members")));
            node.await_connected(1);
            node
        })
        .collect();
    assert!(clients[..3].iter().all(is_lost));
    assert!(is_lost(&operators[2]));
    // What a member of the list needs is never taken.
    one.transport.set_peers(vec![remote(99, NOWHERE)]);
    let listed =
        Node::start(listen().0, local(99), &[remote(1, address)], &with(secret("members")));
    listed.await_connected(1);
    drop((members, operators));
}

/// A client that connected without end, each time as another one, took all places without a connection.
#[test]
fn a_client_that_has_left_leaves_its_place() {
    let (listener, address) = listen();
    let options = TransportOptions { unlisted_max: 2, ..with(member()) };
    let _one = Node::start(listener, local(1), &[], &options);
    for id in 10..20 {
        let node = client(id, &[address.to_string()], &with(secret("clients")));
        node.await_connected(1);
    }
}

#[test]
fn only_a_members_secret_makes_a_member() {
    for (of, right) in [("clients", "a client"), ("operators", "an operator")] {
        let (listener, address) = listen();
        let one = Node::start(listener, local(1), &[], &with(member()));
        let two = Node::start(listen().0, local(2), &[remote(1, address)], &with(secret(of)));
        let (peer, reason, permanent) = two.unreachable();
        assert_eq!((peer, permanent), (1, true));
        assert!(reason.contains(&format!("that of {right}, ")), "{reason}");
        one.await_refused(1);
        // A member that connects does not take the holder of a client's secret for a member.
        let (listener, address) = listen();
        let _impostor = Node::start(listener, local(3), &[], &with(secret(of)));
        let four = Node::start(listen().0, local(4), &[remote(3, address)], &with(member()));
        let (_, reason, permanent) = four.unreachable();
        assert!(permanent && reason.contains("secret"), "{reason}");
    }
}

#[test]
fn a_secret_that_is_taken_away_ends_its_connections() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("clients");
    std::fs::write(&file, format!("{}\n{}\n", phrase("old"), phrase("new"))).unwrap();
    let clients = Secret::from_file(&file).unwrap();
    let (listener, address) = listen();
    let options = with(secret("members").with_clients(clients).unwrap());
    let one = Node::start(listener, local(1), &[], &options);
    let seeds = [address.to_string()];
    let (seven, eight) =
        (client(7, &seeds, &with(secret("old"))), client(8, &seeds, &with(secret("new"))));
    seven.await_connected(1);
    eight.await_connected(1);
    for node in [&seven, &eight] {
        node.transport.set_peers(vec![remote(1, address)]);
    }
    std::fs::write(&file, phrase("new")).unwrap();
    assert_eq!(seven.unreachable().0, 1);
    loop {
        let (_, reason, permanent) = seven.unreachable();
        if permanent {
            assert!(reason.contains("secret"), "{reason}");
            break;
        }
    }
    eight.transport.send(vec![(1, request())]);
    assert_eq!(one.received(), (client_id(8), request()));
}

/// Each member has its own file, and its peers change at another moment.
#[test]
fn a_members_secret_changes_while_it_is_connected() {
    let dir = tempfile::tempdir().unwrap();
    let files = ["one", "two"].map(|name| dir.path().join(name));
    let write = |file: usize, lines: &[&str]| {
        let text: Vec<String> = lines.iter().map(|one| phrase(one)).collect();
        std::fs::write(&files[file], text.join("\n")).unwrap();
    };
    write(0, &["old"]);
    write(1, &["old"]);
    let options = files.clone().map(|file| with(Secret::from_file(file).unwrap()));
    let ((listener_1, address_1), (listener_2, address_2)) = (listen(), listen());
    let one = Node::start(listener_1, local(1), &[remote(2, address_2)], &options[0]);
    let two = Node::start(listener_2, local(2), &[remote(1, address_1)], &options[1]);
    let talk = |number| {
        one.await_connected(2);
        two.await_connected(1);
        one.transport.send(vec![(2, numbered(number))]);
        two.transport.send(vec![(1, numbered(number))]);
        assert_eq!((two.received().0, one.received().0), (1, 2));
    };
    talk(1);
    for (round, lines) in [&["old", "new"][..], &["new", "old"], &["new"]].into_iter().enumerate() {
        for file in 0..2 {
            write(file, lines);
            [&one, &two][file].await_turns(20);
        }
        if round == 2 {
            // The connections that were made with the former secret are made again.
            talk(2);
        }
    }
    // A stranger with the former one is refused.
    let three = client(3, &[address_1.to_string()], &with(secret("old")));
    three.transport.set_peers(vec![remote(1, address_1)]);
    assert!(three.unreachable().1.contains("secret"));
}

/// A member forgot the right of a client when it reported that a former peer with its id is unreachable.
#[test]
fn a_client_keeps_its_right_as_long_as_its_connection() {
    let (listener, address) = listen();
    let (listener_9, address_9) = listen();
    let one = Node::start(listener, local(1), &[], &with(member()));
    let to = [remote(1, address)];
    let nine = Node::start(listener_9, at(client_id(9), address_9), &to, &with(secret("members")));
    nine.await_connected(1);
    assert_eq!(one.authenticated().1.right, Right::Member);
    one.await_connected(client_id(9));
    nine.transport.close();
    assert_eq!(one.unreachable().0, client_id(9));
    let other = client(9, &[address.to_string()], &with(secret("clients")));
    other.await_connected(1);
    let (known, connection) = one.authenticated();
    assert_eq!((known, connection.right), (client_id(9), Right::Client));
    // The address of the former one answers otherwise now, which is reported.
    let listener = listen_again(address_9);
    let close = std::thread::spawn(move || drop(listener.accept()));
    assert_eq!(one.unreachable().0, client_id(9));
    other.transport.send(vec![(1, request())]);
    loop {
        match one.event() {
            TransportEvent::Received { from, message } => {
                assert_eq!((from, message), (client_id(9), request()));
                break;
            }
            TransportEvent::Authenticated { .. } => panic!("its right has changed"),
            _ => {}
        }
    }
    close.join().unwrap();
    // Its end is reported, and takes the right back.
    other.transport.close();
    loop {
        if let TransportEvent::Authenticated { peer, connection: None } = one.event() {
            break assert_eq!(peer, client_id(9));
        }
    }
}

#[cfg(feature = "tls")]
mod tls {
    use super::super::authority::Authority;
    use super::*;
    use crate::security::Tls;

    /// Writes the files of a certificate, and returns their paths.
    fn files(dir: &std::path::Path, name: &str, pem: [String; 3]) -> [std::path::PathBuf; 3] {
        let mut parts = ["ca", "pem", "key"].iter().zip(pem);
        std::array::from_fn(|_| {
            let (kind, pem) = parts.next().unwrap();
            let file = dir.join(format!("{name}.{kind}"));
            std::fs::write(&file, pem).unwrap();
            file
        })
    }

    fn subject(name: &str) -> Option<String> {
        Some(format!("CN={name}"))
    }

    #[test]
    fn the_authority_decides_what_a_client_may() {
        let dir = tempfile::tempdir().unwrap();
        let members = Authority::new();
        // The operators' authority has a certificate of the members', and is not one of theirs for that.
        let (operators, clients) = (members.below(), Authority::new());
        let write = |name: &str, pem: String| {
            let file = dir.path().join(name);
            std::fs::write(&file, pem).unwrap();
            file
        };
        let [ca, certificate, key] = files(dir.path(), "one", members.pem("one", 2999));
        let member = Tls::from_pem_files(&ca, &certificate, &key).unwrap();
        let member = member.with_clients(write("clients", clients.0.pem())).unwrap();
        let member = member.with_operators(write("operators", operators.0.pem())).unwrap();
        let (listener, address) = listen();
        let one = Node::start(listener, local(1), &[], &with(member.clone()));
        for (id, authority, name, right) in [
            (7, &clients, "laptop", Right::Client),
            (8, &operators, "on-call", Right::Operator),
            (9, &members, "two", Right::Member),
        ] {
            let [_, mut chain, own_key] = authority.pem(name, 2999);
            chain.push_str(&authority.0.pem());
            let [ca, chain, key] = files(dir.path(), name, [members.0.pem(), chain, own_key]);
            let own: Security = Tls::client_from_pem_files(&ca, &chain, &key).unwrap().into();
            let node = client(id, &[address.to_string()], &with(own.clone()));
            node.await_connected(1);
            let (known, connection) = one.authenticated();
            let known_by = (client_id(id), right, subject(name));
            assert_eq!((known, connection.right, connection.subject), known_by);
            let joins =
                Node::start(listen().0, local(20 + id), &[remote(1, address)], &with(own.clone()));
            if right == Right::Member {
                joins.await_connected(1);
                continue;
            }
            let (_, reason, permanent) = joins.unreachable();
            assert!(
                permanent && reason.contains(&format!("that of {}, ", right.one())),
                "{reason}"
            );
        }
        // A node that listens with a client's certificate is no member to anybody.
        let [_, certificate, key] = clients.pem("laptop", 2999);
        let impostor = Tls::from_pem(clients.0.pem(), certificate, key).unwrap();
        let impostor = impostor.with_clients(write("members", members.0.pem())).unwrap();
        let (listener, address) = listen();
        let _impostor = Node::start(listener, local(3), &[], &with(impostor));
        let four = Node::start(listen().0, local(4), &[remote(3, address)], &with(member.clone()));
        let (_, reason, permanent) = four.unreachable();
        assert!(permanent && reason.contains("authority"), "{reason}");
        let refused = member.with_clients(ca).unwrap_err().to_string();
        assert!(refused.contains("another right's, too"), "{refused}");
    }

    /// Whoever gives clients certificates of the one authority for clients alone, as elsewhere, made operators.
    #[test]
    fn a_certificate_for_one_end_is_no_members() {
        use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        let dir = tempfile::tempdir().unwrap();
        let members = Authority::new();
        let (listener, address) = listen();
        let one = Node::start(listener, local(1), &[], &with(members.tls("one")));
        let all = members.pem_for("two", 2999, &[ServerAuth, ClientAuth]);
        let [ca, pem, key] = all;
        let two = Tls::from_pem(ca, pem, key).unwrap();
        let two = Node::start(listen().0, local(2), &[remote(1, address)], &with(two));
        two.await_connected(1);
        one.await_connected(2);
        let [ca, pem, key] =
            files(dir.path(), "laptop", members.pem_for("laptop", 2999, &[ClientAuth]));
        let laptop: Security = Tls::client_from_pem_files(ca, pem, key).unwrap().into();
        let nine = client(9, &[address.to_string()], &with(laptop.clone()));
        let joins = Node::start(listen().0, local(3), &[remote(1, address)], &with(laptop));
        loop {
            match nine.event() {
                TransportEvent::SeedUnreachable { reason, permanent: true, .. } => {
                    break assert!(reason.contains("serverAuth and clientAuth"), "{reason}");
                }
                TransportEvent::Connected { .. } => panic!("it has a right"),
                _ => {}
            }
        }
        let (_, reason, permanent) = joins.unreachable();
        assert!(permanent && reason.contains("serverAuth and clientAuth"), "{reason}");
        // Nor is one that listens, and could connect to nobody.
        let [ca, pem, key] = members.pem_for("web", 2999, &[ServerAuth]);
        let (listener, address) = listen();
        let _web = Node::start(listener, local(4), &[], &with(Tls::unverified(&ca, &pem, &key)));
        let five =
            Node::start(listen().0, local(5), &[remote(4, address)], &with(members.tls("five")));
        let (_, reason, _) = five.unreachable();
        assert!(reason.contains("serverAuth and clientAuth"), "{reason}");
    }

    /// TLS refuses another protocol's name, and took a connection without any.
    #[test]
    fn a_connection_names_its_protocol_inside_tls() {
        use rustls::pki_types::ServerName;
        use rustls::{ClientConnection, StreamOwned};
        let members = Authority::new();
        let (listener, address) = listen();
        let one = Node::start(listener, local(1), &[], &with(members.tls("one")));
        let Security::Tls(tls) = members.tls("two") else { unreachable!("it has certificates") };
        let mut config = (*tls.keys().client).clone();
        config.alpn_protocols.clear();
        let name = ServerName::try_from("quorate").unwrap();
        let connection = ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        let hello = hello_of(&local(2), 1);
        stream.write_all(&frame(|buffer| hello.encode(buffer))).unwrap();
        let mut answer = Vec::new();
        // Its end of TLS may be missing.
        let _ = stream.read_to_end(&mut answer);
        assert!(String::from_utf8_lossy(&answer).contains("ALPN"), "{answer:?}");
        one.await_refused(1);
    }

    #[test]
    fn a_refused_subject_is_disconnected_and_stays_out() {
        let dir = tempfile::tempdir().unwrap();
        let members = Authority::new();
        let list = dir.path().join("refused");
        std::fs::write(&list, "# nobody yet\n").unwrap();
        let [ca, certificate, key] = files(dir.path(), "one", members.pem("one", 2999));
        let member = Tls::from_pem_files(ca, certificate, key).unwrap();
        let (listener, address) = listen();
        let (listener_2, address_2) = listen();
        let options = with(member.with_refused(&list).unwrap());
        let one = Node::start(listener, local(1), &[remote(2, address_2)], &options);
        let two = with(members.tls("two"));
        let two = Node::start(listener_2, local(2), &[remote(1, address)], &two);
        let three = with(members.tls("three"));
        let three = Node::start(listen().0, local(3), &[remote(1, address)], &three);
        one.await_connected(2);
        two.await_connected(1);
        three.await_connected(1);
        std::fs::write(&list, "# lost\nCN=two\n").unwrap();
        // Both ways: the connection that it has made, and the one that was made to it.
        for (node, peer) in [(&two, 1), (&one, 2)] {
            loop {
                let (of, reason, _) = node.unreachable();
                if of == peer && reason.contains("certificates of CN=two are refused") {
                    break;
                }
            }
        }
        three.transport.send(vec![(1, numbered(1))]);
        assert_eq!(one.received(), (3, numbered(1)));
        // The list is the same on all members, so it may have the own subject; what is no subject is named.
        let own = dir.path().join("own");
        std::fs::write(&own, "CN=one\n").unwrap();
        let [ca, certificate, key] = files(dir.path(), "again", members.pem("one", 2999));
        let tls = Tls::from_pem_files(ca, certificate, key).unwrap();
        let tls = tls.with_refused(&own).unwrap();
        std::fs::write(&own, "/CN=one\n").unwrap();
        let wrong = tls.with_refused(&own).unwrap_err().to_string();
        assert!(wrong.contains("/CN=one") && wrong.contains("not of the form"), "{wrong}");
    }

    /// One wrong file does not keep another from being used.
    #[test]
    fn a_subject_is_refused_although_the_certificate_is_being_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let members = Authority::new();
        let list = dir.path().join("refused");
        std::fs::write(&list, "").unwrap();
        let [ca, certificate, key] = files(dir.path(), "one", members.pem("one", 2999));
        let tls = Tls::from_pem_files(ca, &certificate, key).unwrap().with_refused(&list).unwrap();
        let (listener, address) = listen();
        let one = Node::start(listener, local(1), &[], &with(tls));
        let two = with(members.tls("two"));
        let two = Node::start(listen().0, local(2), &[remote(1, address)], &two);
        two.await_connected(1);
        // Its key is still the former one, and stays so.
        std::fs::write(&certificate, &members.pem("one", 2999)[1]).unwrap();
        one.await_turns(20);
        std::fs::write(&list, "CN=two\n").unwrap();
        loop {
            if two.unreachable().1.contains("certificates of CN=two are refused") {
                break;
            }
        }
    }

    /// An operators' authority that the members' has signed.
    #[test]
    fn an_operator_does_not_listen_as_a_member() {
        let dir = tempfile::tempdir().unwrap();
        let members = Authority::new();
        let operators = members.below();
        let [ca, certificate, key] = files(dir.path(), "four", members.pem("four", 2999));
        let member = Tls::from_pem_files(&ca, &certificate, &key).unwrap();
        let file = dir.path().join("operators");
        std::fs::write(&file, operators.0.pem()).unwrap();
        let member = member.with_operators(&file).unwrap();
        let [_, mut chain, own_key] = operators.pem("on-call", 2999);
        chain.push_str(&operators.0.pem());
        let impostor = Tls::from_pem(members.0.pem(), chain, own_key).unwrap();
        let (listener, address) = listen();
        let _impostor = Node::start(listener, local(3), &[], &with(impostor));
        let four = Node::start(listen().0, local(4), &[remote(3, address)], &with(member));
        loop {
            match four.event() {
                TransportEvent::Connected { peer, .. } => panic!("{peer} is taken for a member"),
                TransportEvent::Unreachable { reason, .. } => {
                    break assert!(reason.contains("poses as a member"), "{reason}");
                }
                _ => {}
            }
        }
    }

    /// The members' authority is an intermediate one of the company's, which signs clients: all members would be
    /// clients to each other.
    #[test]
    fn a_member_below_the_clients_authority_is_refused_at_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let company = Authority::new();
        let members = company.below();
        let clients = dir.path().join("clients");
        std::fs::write(&clients, "").unwrap();
        let [ca, mut chain, key] = members.pem("one", 2999);
        chain.push_str(&members.0.pem());
        let [ca, chain, key] = files(dir.path(), "one", [ca, chain, key]);
        let tls = Tls::from_pem_files(ca, chain, key).unwrap().with_clients(&clients).unwrap();
        std::fs::write(&clients, company.0.pem()).unwrap();
        let again = tls.read_again().wrong.unwrap();
        assert!(again.contains("must not have signed each other"), "{again}");
        let refused = tls.with_clients(&clients).unwrap_err().to_string();
        assert!(refused.contains("must not have signed each other"), "{refused}");
    }
}
