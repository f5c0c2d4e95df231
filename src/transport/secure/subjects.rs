//! The subjects of peers' certificates.

use std::collections::BTreeMap;

use crate::types::membership::NodeId;

/// The subject of the certificate that each node id was first seen with, since the start of this
/// process.
///
/// Every member has a certificate of the authority, so a certificate alone would let a member take
/// another's id. The id is not in the certificate, since it comes from a data directory and
/// certificates are made earlier. The key may not be compared, since it is renewed. So the subject
/// is compared. If all members have the same certificate, or certificates without a subject, this
/// distinguishes nothing.
#[derive(Debug, Default)]
pub(crate) struct Subjects(BTreeMap<NodeId, String>);

impl Subjects {
    /// Checks that `node` has this subject; the first one seen is accepted.
    pub(crate) fn check(&mut self, node: NodeId, subject: Option<String>) -> Result<(), String> {
        let Some(subject) = subject.filter(|subject| !subject.is_empty()) else {
            return Ok(());
        };
        let known = self.0.entry(node).or_insert_with(|| subject.clone());
        if *known == subject {
            return Ok(());
        }
        Err(format!(
            "this is a certificate of {subject}, and node {node:016x} has one of {known}; if that was \
             renewed under another name, restart this node"
        ))
    }

    /// Forgets a node that is no longer a peer.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_subject_of_a_node_stays() {
        let mut subjects = Subjects::default();
        let mut check = |node, subject: &str| subjects.check(node, Some(subject.to_owned()));
        check(1, "CN=a").unwrap();
        check(2, "CN=a").unwrap();
        check(3, "").unwrap();
        check(3, "CN=c").unwrap();
        let refused = check(1, "CN=b").unwrap_err();
        assert!(refused.contains("CN=a") && refused.contains("CN=b"), "{refused}");
        check(1, "CN=a").unwrap();
        subjects.forget(1);
        subjects.check(1, Some("CN=b".to_owned())).unwrap();
        assert!(subjects.check(2, Some("CN=b".to_owned())).is_err());
        subjects.check(2, None).unwrap();
    }
}
