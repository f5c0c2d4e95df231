//! Members with certificates.

use quorate::CreateMode;

use super::authority::Authority;
use super::*;

#[test]
fn members_with_certificates_form_a_cluster() {
    let (members, authority) = (Members::new(3), Authority::new());
    let start = |place: usize| members.start(place, authority.tls(&format!("app-{place}")));
    let mut running: Vec<Coordinator> = (0..3).map(start).collect();
    running.iter().for_each(|member| member.wait_ready(PATIENCE).wait().unwrap());
    running[0].session().create("/kept", vec![7; 1 << 20], CreateMode::Persistent).wait().unwrap();
    // One member comes back with a new key and the same name.
    running.remove(1).close().wait().unwrap();
    running[0].session().create("/later", b"", CreateMode::Persistent).wait().unwrap();
    let back = start(1);
    back.wait_ready(PATIENCE).wait().unwrap();
    let session = back.session();
    assert_eq!(session.get("/kept").wait().unwrap().0.len(), 1 << 20);
    assert!(session.exists("/later").wait().unwrap().is_some());
}

#[test]
fn a_member_with_a_certificate_of_another_authority_gets_the_reason() {
    let (members, authority) = (Members::new(2), Authority::new());
    let _one = members.start(0, authority.tls("app-0"));
    let two = members.start(1, Authority::new().tls("app-1"));
    let reason = refused(&two);
    assert!(reason.contains("not one of this cluster's authority"), "{reason}");
    drop(two);
    let reason = refused(&members.start(1, secret(ONE)));
    assert!(reason.contains("with TLS"), "{reason}");
    members.start(1, authority.tls("app-1")).wait_ready(PATIENCE).wait().unwrap();
}
