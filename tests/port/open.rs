//! Members without keys, and with a secret.

use quorate::CreateMode;
use quorate::StartError;

use super::*;

#[test]
fn addresses_beyond_the_loopback_need_keys() {
    let dir = tempfile::tempdir().unwrap();
    let not_secured = |builder: Builder, list: &[&str]| match builder.join(list).wait() {
        Err(Error::Start(StartError::NotSecured { address })) => address,
        other => panic!("{other:?}"),
    };
    let builder = || Coordinator::builder().data_dir(dir.path().join("data"));
    // A documentation address (RFC 5737), which belongs to no host.
    let list = ["127.0.0.1:7400", "192.0.2.1:7400"];
    assert_eq!(not_secured(builder(), &list), "192.0.2.1:7400");
    assert_eq!(not_secured(builder(), &["[2001:db8::1]:7400"]), "[2001:db8::1]:7400");
    let port = port_everywhere();
    let free = format!("127.0.0.1:{port}");
    let everywhere = builder().advertise(&free).listen(format!("0.0.0.0:{port}"));
    assert_eq!(not_secured(everywhere.clone(), &[&free]), format!("0.0.0.0:{port}"));
    let error = everywhere.clone().join([&free]).wait().unwrap_err().to_string();
    for way in ["Secret", "certificates", "Security::Insecure", "Builder::security"] {
        assert!(error.contains(way), "{error}");
    }
    assert!(!dir.path().join("data").exists(), "nothing was begun");
    // Declared as open, or with a secret, the address is accepted.
    for security in [Security::Insecure, secret(ONE).into()] {
        let member = everywhere.clone().security(security).join([&free]).wait().unwrap();
        member.wait_ready(PATIENCE).wait().unwrap();
        member.close().wait().unwrap();
    }
    // The loopback needs no declaration, by whatever name.
    Coordinator::builder()
        .data_dir(dir.path().join("named"))
        .join([format!("localhost:{port}")])
        .wait()
        .unwrap()
        .wait_ready(PATIENCE)
        .wait()
        .unwrap();
}

#[test]
fn a_secret_is_changed_while_the_cluster_runs() {
    let members = Members::new(3);
    let changed = [secret(ONE).or(OTHER).unwrap(), secret(OTHER).or(ONE).unwrap(), secret(OTHER)];
    let mut running: Vec<Coordinator> =
        (0..3).map(|place| members.start(place, secret(ONE))).collect();
    running.iter().for_each(|member| member.wait_ready(PATIENCE).wait().unwrap());
    running[0].session().create("/kept", b"", CreateMode::Persistent).wait().unwrap();
    for secret in changed {
        for place in 0..3 {
            let former = running.remove(place);
            former.close().wait().unwrap();
            drop(former);
            running.insert(place, members.start(place, secret.clone()));
            running[place].wait_ready(PATIENCE).wait().unwrap();
            assert!(running[place].session().exists("/kept").wait().unwrap().is_some());
        }
    }
}

#[test]
fn a_member_with_another_secret_or_none_gets_the_reason() {
    let members = Members::new(2);
    let _one = members.start(0, secret(ONE));
    let two = members.start(1, secret(OTHER));
    let reason = refused(&two);
    assert!(reason.contains("the shared secret of the two nodes is not the same"), "{reason}");
    drop(two);
    let reason = refused(&members.start(1, Security::Loopback));
    assert!(reason.contains("give all members the same security"), "{reason}");
    members.start(1, secret(ONE)).wait_ready(PATIENCE).wait().unwrap();
}
