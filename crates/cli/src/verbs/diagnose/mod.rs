//! Verbs beyond kubectl's: why an object is as it is, how it came to be so, and what runs hot.
//! Rows of `verbs::ROOT`; also `minke why`, `minke timeline` and `minke top`.
//! They only read.

pub mod live_top;
pub mod timeline;
pub mod why;

use crate::{
    failure::{Failure, Result},
    flags::{Flag, Matches, string},
    resource::{Info, Selection},
    session::Session,
};

pub const OUTPUT: &[Flag] = &[string("output", "", "Form of the output: json, or nothing for people").short('o')];

/// Whether JSON is wanted; other forms are refused.
fn wants_json(matches: &Matches) -> Result<bool> {
    match matches.str("output") {
        "" | "text" => Ok(false),
        "json" => Ok(true),
        other => Err(Failure::message(format!(
            "unable to match a printer suitable for the output format \"{other}\", allowed formats are: json"
        ))),
    }
}

/// The objects that were named, as they are now.
async fn named(session: &Session, matches: &Matches) -> Result<Vec<Info>> {
    if matches.args.is_empty() {
        return Err(Failure::usage("You must name an object: TYPE/NAME or TYPE NAME"));
    }
    let mut selection = Selection::of(session, matches)?;
    selection.latest = true;
    selection.all_or_nothing(session).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::fake::FakeServer;

    fn server() -> FakeServer {
        let pod = |name: &str, status| {
            json!({"apiVersion": "v1", "kind": "Pod", "status": status, "spec": {"nodeName": "n1", "containers": [
                {"name": "c", "image": "No Image"}]}, "metadata": {"name": name, "namespace": "default",
                "creationTimestamp": "2026-01-01T00:00:00Z"}})
        };
        let waiting = json!({"phase": "Pending", "containerStatuses": [
            {"name": "c", "state": {"waiting": {"reason": "InvalidImageName"}}}]});
        FakeServer::default()
            .on(
                "GET /api",
                200,
                json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": ""}, "versions": [
                {"version": "v1", "resources": [{"resource": "pods", "singularResource": "pod", "scope": "Namespaced",
                    "responseKind": {"kind": "Pod"}, "verbs": ["get", "list"]}]}]}]}),
            )
            .on("GET /apis", 200, json!({"kind": "APIGroupDiscoveryList", "items": []}))
            .on("GET /api/v1/namespaces/default/pods/bad", 200, pod("bad", waiting))
            .on("GET /api/v1/namespaces/default/pods/good", 200, pod("good", json!({"phase": "Succeeded"})))
            .on(
                "GET /api/v1/namespaces/default/pods/gone",
                404,
                json!({"kind": "Status", "reason": "NotFound", "code": 404, "message": "pods \"gone\" not found"}),
            )
    }

    #[test]
    fn without_a_terminal_top_draws_once() {
        let list = |items| json!({"kind": "List", "items": items});
        let metrics = server()
            .on(
                "GET /api/v1/nodes",
                200,
                list(json!([{"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "1"}}}])),
            )
            .on(
                "GET /apis/metrics.k8s.io/v1beta1/nodes",
                200,
                list(json!([
                {"metadata": {"name": "n1"}, "usage": {"cpu": "250m", "memory": "1Gi"}}])),
            )
            .on("GET /apis/metrics.k8s.io/v1beta1/pods", 200, list(json!([])));
        let (out, err, code) = metrics.run(&["live-top"]);
        assert!(out.contains("n1") && out.contains("250m") && out.contains("25%"), "{out}{err}");
        assert_eq!(code, 0);
        let (_, err, code) = server().on("GET /api/v1/nodes", 200, list(json!([]))).run(&["live-top"]);
        assert_eq!((err.as_str(), code), ("error: Metrics API not available\n", 1));
    }

    #[test]
    fn the_exit_code_says_whether_something_is_wrong() {
        let check = |words: &[&str], beginning: &str, code: u8| {
            let (out, err, found) = server().run(words);
            assert!(format!("{out}{err}").starts_with(beginning), "{words:?}: {out}{err}");
            assert_eq!(found, code, "{words:?}");
        };
        check(
            &["why", "pod/bad"],
            "pod/bad in namespace default: No Image is not a valid image name.\n\nEvidence:\n",
            1,
        );
        check(&["why", "pod", "good"], "pod/good in namespace default: It ran to its end", 0);
        check(&["why", "pod/bad", "-o", "json"], "{\n    \"cause\": \"No Image is not a valid image name.\"", 1);
        check(&["why", "pod/gone"], "Error from server (NotFound): pods \"gone\" not found", 2);
        check(&["timeline", "pod/good"], "pod/good in namespace default, 2026-01-01 ", 0);
        check(&["timeline", "pod/good", "-o", "yaml"], "error: unable to match a printer", 1);
    }
}
