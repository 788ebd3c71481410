//! Moves objects from the keys of older versions to upstream's, once, at the start of a server.
//! Called by `pipeline` before the cache is loaded; which keys moved is in the table of kinds.
//! An object is never at both keys or at none: it moves in one transaction, and only as it was read. What is at the new
//! key already stays, and so does what is then left at the old one.

use store::{Compare, Operation, Outcome, Range, Record, Store, StoreError, Transaction};

use super::keys;

/// How a value begins that nobody could open.
const SEALED: &[u8] = b"k8s:enc:";
const PAGE_RECORDS: usize = 500;
/// Each is two comparisons and two operations; etcd takes 128.
const MOVES_TOGETHER: usize = 30;

/// How many objects were moved. Safe with several servers at once: each object is moved by one of them.
pub async fn migrate_keys(store: &dyn Store) -> Result<usize, StoreError> {
    let mut moved = 0;
    for resource in api::kinds::builtin().iter().filter(|r| r.storage.prefix != r.plural && r.stored()) {
        let old = format!("{}{}/", keys::ROOT, resource.plural);
        let mut start = old.clone();
        loop {
            let range = Range { start, end: store::prefix_end(&old), limit: PAGE_RECORDS, revision: None };
            let page = store.range(range).await?;
            // Below `services/` are the new keys, too.
            let is_old = |record: &&Record| keys::prefix_of_key(&record.key) == Some(old.as_str());
            let mut found: Vec<&Record> = page.records.iter().filter(is_old).collect();
            found.retain(|record| {
                let sealed = record.value.starts_with(SEALED);
                if sealed {
                    tracing::error!(key = record.key, "left at its old key: it can't be decrypted");
                }
                !sealed
            });
            for together in found.chunks(MOVES_TOGETHER) {
                moved += move_records(store, together, &old, &keys::prefix(resource)).await?;
            }
            match page.records.last() {
                Some(last) if page.remaining > 0 => start = format!("{}\0", last.key),
                _ => break,
            }
        }
    }
    Ok(moved)
}

async fn move_records(store: &dyn Store, records: &[&Record], old: &str, new: &str) -> Result<usize, StoreError> {
    if let Outcome::Done { .. } = store.transact(moves(records, old, new)).await? {
        return Ok(records.len());
    }
    let mut moved = 0;
    for record in records {
        match store.transact(moves(&[record], old, new)).await? {
            Outcome::Done { .. } => moved += 1,
            // Another server moved it, or changed it and is of an older version.
            Outcome::Conflict { current, .. } if current.first().is_some_and(Option::is_none) => {}
            Outcome::Conflict { .. } => {
                tracing::warn!(key = record.key, "left at its old key: there is another at the new one");
            }
        }
    }
    Ok(moved)
}

fn moves(records: &[&Record], old: &str, new: &str) -> Transaction {
    let mut transaction = Transaction::default();
    for record in records {
        let to = format!("{new}{}", &record.key[old.len()..]);
        let from = Compare { key: record.key.clone(), mod_revision: record.mod_revision };
        transaction.compare.extend([from, Compare { key: to.clone(), mod_revision: 0 }]);
        let put = Operation::Put { key: to, value: record.value.clone(), ttl_seconds: None };
        transaction.operations.extend([Operation::Delete { key: record.key.clone() }, put]);
    }
    transaction
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use env::Env;
    use store::MemoryStore;

    use super::*;

    async fn put(store: &dyn Store, key: &str, value: &str) {
        let put = Operation::Put { key: key.into(), value: value.to_string().into(), ttl_seconds: None };
        store.transact(Transaction { compare: Vec::new(), operations: vec![put] }).await.unwrap();
    }

    async fn all(store: &dyn Store) -> Vec<(String, String)> {
        let range = Range { start: String::new(), end: store::prefix_end(""), limit: 0, revision: None };
        let text = |record: Record| (record.key, String::from_utf8_lossy(&record.value).into_owned());
        store.range(range).await.unwrap().records.into_iter().map(text).collect()
    }

    const MOVED: [(&str, &str); 9] = [
        ("/registry/services/default/web", "/registry/services/specs/default/web"),
        ("/registry/services/specs/web", "/registry/services/specs/specs/web"),
        ("/registry/endpoints/default/web", "/registry/services/endpoints/default/web"),
        ("/registry/nodes/n", "/registry/minions/n"),
        ("/registry/replicationcontrollers/d/r", "/registry/controllers/d/r"),
        ("/registry/ingresses/d/i", "/registry/ingress/d/i"),
        ("/registry/apiservices/v1.x.y", "/registry/apiregistration.k8s.io/apiservices/v1.x.y"),
        ("/registry/customresourcedefinitions/a.b.c", "/registry/apiextensions.k8s.io/customresourcedefinitions/a.b.c"),
        ("/registry/pods/d/p", "/registry/pods/d/p"),
    ];

    #[tokio::test]
    async fn objects_of_older_versions_move_once() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new(Env::real()));
        for (old, _) in MOVED {
            put(&*store, old, old).await;
        }
        for n in 0..100 {
            put(&*store, &format!("/registry/nodes/many-{n:03}"), "node").await;
        }
        // Two servers start at once.
        let (a, b) = tokio::join!(migrate_keys(&*store), migrate_keys(&*store));
        assert_eq!(a.unwrap() + b.unwrap(), MOVED.len() - 1 + 100);
        let found = all(&*store).await;
        for (old, new) in MOVED {
            assert!(found.contains(&(new.to_string(), old.to_string())), "{new}");
            assert!(old == new || !found.iter().any(|(key, _)| key == old), "{old}");
        }
        assert_eq!(found.len(), MOVED.len() + 100);
        assert_eq!(migrate_keys(&*store).await.unwrap(), 0);
        // What an older server writes meanwhile is not written over what is there.
        put(&*store, "/registry/nodes/n", "stray").await;
        put(&*store, "/registry/nodes/late", "late").await;
        assert_eq!(migrate_keys(&*store).await.unwrap(), 1);
        let found = all(&*store).await;
        assert!(found.contains(&("/registry/minions/n".into(), "/registry/nodes/n".into())));
        assert!(found.contains(&("/registry/nodes/n".into(), "stray".into())));
    }
}
