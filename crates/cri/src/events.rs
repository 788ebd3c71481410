//! containerd's own event service, for runtimes that lack CRI's GetContainerEvents (containerd before 1.7).
//! Called by `remote`. The few messages are written out here so that no containerd proto has to be compiled.
//! Exits of exec sessions are not reported; only those of whole containers and sandboxes are.

use futures::StreamExt;
use prost::Message;
use tonic::{Request, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{Error, EventStream, Result, RuntimeEvent};

/// The containerd namespace in which its CRI plugin keeps everything.
pub const CRI_NAMESPACE: &str = "k8s.io";

#[derive(Clone, PartialEq, Message)]
struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(string, tag = "3")]
    topic: String,
    #[prost(message, optional, tag = "4")]
    event: Option<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TaskExit {
    #[prost(string, tag = "1")]
    container_id: String,
    /// The exec session's id, or the container's own.
    #[prost(string, tag = "2")]
    exec_id: String,
}

/// What every other event about one container begins with.
#[derive(Clone, PartialEq, Message)]
struct AboutContainer {
    #[prost(string, tag = "1")]
    container_id: String,
}

const TOPICS: [&str; 7] = [
    "/tasks/start",
    "/tasks/exit",
    "/tasks/oom",
    "/containers/delete",
    "/images/create",
    "/images/update",
    "/images/delete",
];

/// containerd sends no headers before the first event, so this returns only then: run it as part of the stream.
pub(crate) async fn subscribe(channel: Channel) -> Result<EventStream> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| Error::Unavailable(format!("failed to reach the runtime: {error}")))?;
    let filters = TOPICS.iter().map(|topic| format!("topic==\"{topic}\",namespace==\"{CRI_NAMESPACE}\"")).collect();
    let path = PathAndQuery::from_static("/containerd.services.events.v1.Events/Subscribe");
    let codec: ProstCodec<SubscribeRequest, Envelope> = ProstCodec::default();
    let stream = grpc.server_streaming(Request::new(SubscribeRequest { filters }), path, codec).await?.into_inner();
    Ok(stream
        .filter_map(|envelope| async move {
            match envelope {
                Ok(envelope) => translate(&envelope).map(Ok),
                Err(status) => Some(Err(status.into())),
            }
        })
        .boxed())
}

fn translate(envelope: &Envelope) -> Option<RuntimeEvent> {
    let body = envelope.event.as_ref().map(|any| any.value.as_slice()).unwrap_or_default();
    let id = || AboutContainer::decode(body).ok().map(|event| event.container_id);
    match envelope.topic.as_str() {
        "/tasks/start" => Some(RuntimeEvent::Started { id: id()? }),
        "/tasks/exit" => {
            let event = TaskExit::decode(body).ok()?;
            (event.exec_id == event.container_id || event.exec_id.is_empty())
                .then_some(RuntimeEvent::Exited { id: event.container_id })
        }
        "/tasks/oom" => Some(RuntimeEvent::OutOfMemory { id: id()? }),
        "/containers/delete" => Some(RuntimeEvent::Deleted { id: id()? }),
        topic if topic.starts_with("/images/") => Some(RuntimeEvent::ImagesChanged),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_of_exec_sessions_are_not_exits_of_containers() {
        let check = |topic: &str, exec_id: &str, expected: Option<RuntimeEvent>| {
            let value = TaskExit { container_id: "c1".into(), exec_id: exec_id.into() }.encode_to_vec();
            let envelope = Envelope { topic: topic.into(), event: Some(Any { value }) };
            assert_eq!(translate(&envelope), expected, "{topic} {exec_id}");
        };
        let id = || "c1".to_string();
        check("/tasks/exit", "c1", Some(RuntimeEvent::Exited { id: id() }));
        check("/tasks/exit", "exec-7", None);
        check("/tasks/oom", "", Some(RuntimeEvent::OutOfMemory { id: id() }));
        check("/containers/delete", "", Some(RuntimeEvent::Deleted { id: id() }));
        check("/images/create", "", Some(RuntimeEvent::ImagesChanged));
        check("/snapshot/prepare", "", None);
    }
}
