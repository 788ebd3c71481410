//! Events in both of their versions: made, found, changed, removed one by one and together.

use serde_json::{Value, json};

use crate::harness::{Server, names, server};

/// How one version calls its fields.
struct Version {
    root: &'static str,
    api_version: &'static str,
    text: &'static str,
    about: &'static str,
    reporter: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version {
        root: "/api/v1",
        api_version: "v1",
        text: "message",
        about: "involvedObject",
        reporter: "reportingComponent",
    },
    Version {
        root: "/apis/events.k8s.io/v1",
        api_version: "events.k8s.io/v1",
        text: "note",
        about: "regarding",
        reporter: "reportingController",
    },
];

impl Version {
    fn event(&self, name: &str) -> Value {
        json!({
            "apiVersion": self.api_version, "kind": "Event",
            "metadata": { "name": name, "labels": { "of": "tests" } },
            "eventTime": "2026-01-01T00:00:00.000001Z", "type": "Normal", "reason": "Because", "action": "Do",
            self.text: "as made", self.about: { "kind": "Pod", "name": "p", "namespace": "default" },
            self.reporter: "tests",
            "reportingInstance": "tests-1",
        })
    }

    fn collection(&self) -> String {
        format!("{}/namespaces/default/events", self.root)
    }

    /// Of all namespaces, by label.
    fn selected(&self) -> String {
        format!("{}/events?labelSelector=of%3Dtests", self.root)
    }
}

async fn lives(s: &Server, version: &Version) {
    let (collection, selected) = (version.collection(), version.selected());
    let path = format!("{collection}/one");
    s.post(&collection, version.event("one")).await.expect(201);
    assert_eq!(names(&s.get(&selected).await.expect(200)), ["one"]);
    let series = |count: u32| json!({ "count": count, "lastObservedTime": "2026-02-03T04:05:06.000007Z" });
    let patched = s.patch("strategic-merge-patch", &path, json!({ version.text: "as patched" })).await;
    let said = match version.root {
        "/api/v1" => {
            patched.expect(200);
            "as patched"
        }
        // The newer version lets nobody change what was said, only how often.
        _ => {
            patched.refused(422, "Invalid", "note: Invalid value: \"as patched\": field is immutable");
            "as made"
        }
    };
    s.patch("strategic-merge-patch", &path, json!({ "series": series(2) })).await.expect(200);
    let mut event = s.get(&path).await.expect(200);
    assert_eq!((&event["series"], &event[version.text]), (&series(2), &json!(said)));
    let series = series(100);
    event["series"] = series.clone();
    s.put(&path, event).await.expect(200);
    let event = s.get(&path).await.expect(200);
    assert_eq!((&event["series"], &event[version.text]), (&series, &json!(said)));
    // In the other version it is the same event.
    let other = VERSIONS.iter().find(|v| v.root != version.root).unwrap();
    let seen = s.get(&format!("{}/one", other.collection())).await.expect(200);
    assert_eq!((&seen["series"], &seen[other.text]), (&series, &json!(said)));
    s.delete(&path, Value::Null).await.expect(200);
    assert!(names(&s.get(&selected).await.expect(200)).is_empty());
    assert!(names(&s.get(&collection).await.expect(200)).is_empty());
}

#[tokio::test]
async fn an_event_is_found_patched_updated_and_deleted() {
    let s = server().await;
    for version in &VERSIONS {
        lives(&s, version).await;
    }
}

#[tokio::test]
async fn events_go_together() {
    let s = server().await;
    for version in &VERSIONS {
        let collection = version.collection();
        for name in ["one", "two", "three"] {
            s.post(&collection, version.event(name)).await.expect(201);
        }
        let mut other = version.event("other");
        other["metadata"]["labels"] = json!({});
        s.post(&collection, other).await.expect(201);
        assert_eq!(names(&s.get(&version.selected()).await.expect(200)), ["one", "three", "two"]);
        s.delete(&format!("{collection}?labelSelector=of%3Dtests"), Value::Null).await.expect(200);
        assert!(names(&s.get(&version.selected()).await.expect(200)).is_empty());
        assert_eq!(names(&s.get(&collection).await.expect(200)), ["other"]);
        s.delete(&collection, Value::Null).await.expect(200);
        assert!(names(&s.get(&collection).await.expect(200)).is_empty());
    }
}
