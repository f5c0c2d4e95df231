//! Access lists in the model.

use super::Model;
use crate::machine::command::OpError;
use crate::types::acl::{AccessList, Acl, Id, Permissions};
use crate::types::znode::SessionId;

impl Model {
    /// Whether a session has any of these permissions for a znode, or the znode does not exist.
    pub(crate) fn may(&self, id: SessionId, path: &str, wanted: Permissions) -> bool {
        let Some(acl) = self.znodes.get(path).and_then(|znode| znode.acl.as_ref()) else {
            return true;
        };
        let ids = self.sessions.get(&id).map_or(&[][..], |session| &session.ids);
        acl.iter().any(|entry| {
            let gives = entry.permissions.bits() & wanted.bits() != 0;
            gives && (entry.id == Id::anyone() || ids.contains(&entry.id))
        })
    }

    pub(super) fn need(
        &self,
        id: SessionId,
        path: &str,
        permission: Permissions,
    ) -> Result<(), OpError> {
        if self.may(id, path, permission) {
            return Ok(());
        }
        Err(OpError::NoAuth { path: path.to_owned(), permission })
    }

    /// The access list that a request asks for; `None` if everybody may do everything.
    pub(super) fn requested_acl(
        &self,
        id: SessionId,
        path: &str,
        acl: &[Acl],
    ) -> Result<Option<Vec<Acl>>, OpError> {
        let ids = &self.sessions[&id].ids;
        let mut list: Vec<Acl> = Vec::new();
        let mut add = |permissions, id: &Id| {
            let entry = Acl::new(permissions, id.clone());
            if !list.contains(&entry) {
                list.push(entry);
            }
        };
        let mut valid = !acl.is_empty();
        for entry in acl {
            match entry.id.scheme.as_str() {
                "auth" => {
                    ids.iter().for_each(|id| add(entry.permissions, id));
                    valid &= !ids.is_empty();
                }
                "world" => {
                    add(entry.permissions, &entry.id);
                    valid &= entry.id.id == "anyone";
                }
                "digest" => {
                    add(entry.permissions, &entry.id);
                    valid &= entry.id.id.split(':').count() == 2;
                    valid &= !entry.id.id.contains(char::is_control);
                }
                scheme => unreachable!("the model does not support the scheme {scheme}"),
            }
        }
        if !valid {
            // The text of the reason is for people; the model uses the machine's.
            let reason = AccessList::requested(acl, ids).err().unwrap_or_default();
            return Err(OpError::InvalidAcl { path: path.to_owned(), reason });
        }
        Ok(Some(list).filter(|list| *list != Acl::open()))
    }
}
