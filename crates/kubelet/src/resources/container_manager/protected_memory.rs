//! Memory that pods ask for, summed by class: what is protected below a group must be protected in the group, too.
//! Kept by `container_manager` as pods come, change and go.
//! A change costs the same however many pods there are.

use std::collections::HashMap;

use crate::pod::pod_spec::QosClass;

#[derive(Default)]
pub struct ProtectedMemory {
    /// Class and bytes by pod UID.
    requests: HashMap<String, (QosClass, i64)>,
    burstable_bytes: i64,
    all_bytes: i64,
}

impl ProtectedMemory {
    /// What a pod asks for; `None` when it is gone.
    pub fn set(&mut self, uid: &str, request: Option<(QosClass, i64)>) {
        let before = match request {
            Some(request) => self.requests.insert(uid.into(), request),
            None => self.requests.remove(uid),
        };
        for (sign, (class, bytes)) in before.map(|b| (-1, b)).into_iter().chain(request.map(|r| (1, r))) {
            self.all_bytes += sign * bytes;
            if class == QosClass::Burstable {
                self.burstable_bytes += sign * bytes;
            }
        }
    }

    pub fn burstable_bytes(&self) -> i64 {
        self.burstable_bytes
    }

    pub fn all_bytes(&self) -> i64 {
        self.all_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_protected_as_their_pods_together() {
        let mut memory = ProtectedMemory::default();
        let mut check = |uid: &str, request, expected: (i64, i64)| {
            memory.set(uid, request);
            assert_eq!((memory.burstable_bytes(), memory.all_bytes()), expected, "{uid} {request:?}");
        };
        check("a", Some((QosClass::Burstable, 5)), (5, 5));
        check("b", Some((QosClass::Guaranteed, 7)), (5, 12));
        check("a", Some((QosClass::Burstable, 2)), (2, 9));
        check("a", None, (0, 7));
        check("c", None, (0, 7));
    }
}
